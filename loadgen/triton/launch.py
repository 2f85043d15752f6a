"""One tritonserver process under its keeper: its options, its facts on disk, its end.

It must not know readiness or models: a launched server is a process, no more.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from loadgen.records import LoadgenError
from loadgen.triton import keeper
from loadgen.triton.install import Environment
from loadgen.triton.process import LOOPBACK, end_process, same_process
from loadgen.triton.words import last_lines

STOP_S = 15.0  # between SIGTERM and SIGKILL; Triton itself gives requests in flight 10 s
_SHM_BYTES = 1 << 20  # a python stub's region to begin with, and to grow by


@dataclass(frozen=True, slots=True)
class Running:
    """Where a server is and who it is: what `state.json` holds."""

    http_port: int
    grpc_port: int
    metrics_port: int
    repository: str
    keeper_pid: int
    keeper_born: str
    server_pid: int
    server_born: str

    @property
    def http_target(self) -> str:
        return f"http://{LOOPBACK}:{self.http_port}"

    @property
    def grpc_target(self) -> str:
        return f"grpc://{LOOPBACK}:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        return f"http://{LOOPBACK}:{self.metrics_port}/metrics"

    def alive(self) -> bool:
        return same_process(self.server_pid, self.server_born)

    def end(self) -> None:
        """Ends server and keeper, whichever of them is still there."""
        patience = STOP_S + 5
        if not end_process(self.keeper_pid, self.keeper_born, signal.SIGTERM, patience):
            end_process(self.keeper_pid, self.keeper_born, signal.SIGKILL, 1.0)
        # Without a keeper (it was killed) the server has had its SIGTERM from the kernel.
        if not end_process(self.server_pid, self.server_born, signal.SIGTERM, STOP_S):
            end_process(self.server_pid, self.server_born, signal.SIGKILL, 1.0)


def launch(
    environment: Environment,
    repository: Path,
    ports: Mapping[str, int],
    options: Sequence[str],
    folder: Path,
) -> tuple[subprocess.Popen[str], Running]:
    """Starts keeper and server; `folder` gets state.json, server.log and in the end exit.json.

    Whoever holds the keeper's process ends the server by its going; "d" on its stdin lets the server go.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("state.json", "exit.json", "server.log"):
        (folder / name).unlink(missing_ok=True)
    prefix = f"loadgen_{secrets.token_hex(6)}_"
    facts = {option[2:].replace("-", "_"): port for option, port in ports.items()}
    order = {
        "command": _command(environment, repository, ports, prefix, options),
        "log": str(folder / "server.log"),
        "state": str(folder / "state.json"),
        "exit": str(folder / "exit.json"),
        "facts": {**facts, "repository": str(repository)},
        "shm_prefix": prefix,
        "stop_s": STOP_S,
        "parent": os.getpid(),
    }
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", keeper.__file__, json.dumps(order)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
            env=environment.variables(folder),  # not in the order: anyone may read a command line
        )  # fmt: skip
    assert process.stdout is not None  # noqa: S101 - asked for above
    with process.stdout:
        line = process.stdout.readline()
    if not line:
        process.kill()
        process.wait()
        said = last_lines((folder / "server.log").read_text(errors="replace"), 1)
        raise LoadgenError(f"Triton could not be started: {'; '.join(said)}")
    return process, Running(**json.loads((folder / "state.json").read_text()))


def _command(
    environment: Environment, repository: Path, ports: Mapping[str, int], prefix: str, options: Sequence[str]
) -> list[str]:
    return [
        str(environment.binary),
        f"--model-repository={repository}",
        f"--backend-directory={environment.backends}",
        f"--cache-directory={environment.caches}",
        "--model-control-mode=explicit",
        *(f"--{door}-address={LOOPBACK}" for door in ("http", "grpc", "metrics")),
        *(f"{option}={port}" for option, port in ports.items()),
        "--allow-sagemaker=false",
        "--allow-vertex-ai=false",
        "--exit-timeout-secs=10",
        f"--backend-config=python,shm-region-prefix-name={prefix}",
        f"--backend-config=python,shm-default-byte-size={_SHM_BYTES}",
        f"--backend-config=python,shm-growth-byte-size={_SHM_BYTES}",
        *options,
    ]


def read_exit_code(folder: Path) -> int | None:
    """What the keeper wrote down when the server ended."""
    with suppress(OSError, ValueError):
        return int(json.loads((folder / "exit.json").read_text())["exit_code"])
    return None
