"""One tritonserver process under its keeper: its options, its facts on disk, its end.

It must not know readiness or models: a launched server is a process, no more.
"""

import json
import os
import re
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
HASTE_S = 2.0  # the same for a server that never served, or whose starter is gone
_SHM = Path("/dev/shm")  # noqa: S108 - Linux's shared memory
_SHM_BYTES = 1 << 20  # a python stub's region to begin with, and to grow by
_PLAIN = re.compile(r"[A-Za-z0-9/._+:@%,=-]+")  # what a shell takes as it stands, and ASCII
TRACE = "trace.json"  # in the folder of a server
_LOOPBACK = "loadgen's servers listen on loopback only"
_NEEDED = "loadgen needs that door"
_EMBEDDED = "it belongs to the embedded server"
_SET = {
    "--model-repository": "give loadgen's own --repository",
    "--model-store": "give loadgen's own --repository",
    "--load-model": "give loadgen's own --model",
    "--model-control-mode": "loadgen loads models by name (--model, `loadgen serve load`)",
    "--http-port": "give loadgen's own --http-port",
    "--grpc-port": "give loadgen's own --grpc-port",
    "--metrics-port": "give loadgen's own --metrics-port",
    "--http-address": _LOOPBACK,
    "--grpc-address": _LOOPBACK,
    "--metrics-address": _LOOPBACK,
    "--allow-http": _NEEDED,
    "--allow-grpc": _NEEDED,
    "--allow-metrics": _NEEDED,
    "--allow-sagemaker": _LOOPBACK,
    "--allow-vertex-ai": _LOOPBACK,
    "--backend-directory": _EMBEDDED,
    "--cache-directory": _EMBEDDED,
    "--exit-timeout-secs": "`loadgen serve stop` relies on it",
}


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


def check_options(options: Sequence[str]) -> None:
    """Raises LoadgenError for a tritonserver option that we set ourselves, also in its short form: the
    server takes `--http-p` for `--http-port`, and the last of two.
    """
    for option in options:
        given = option.partition("=")[0]
        ours = [name for name in _SET if given.startswith("--") and given != "--" and name.startswith(given)]
        if ours:
            name = given if given in ours else ours[0]
            raise LoadgenError(f"--option {option}: loadgen sets {name} itself; {_SET[name]}")
        if "python,shm-" in option:
            raise LoadgenError(f"--option {option}: loadgen sets the python backend's shm- values itself")


def check_model_name(model: str) -> None:
    """Raises LoadgenError for a name that Triton's python backend cannot serve, see `_plain`."""
    if _PLAIN.fullmatch(model) is None:
        raise LoadgenError(
            f"model {model!r}: Triton cannot start Python for a model whose folder's name has spaces, quotes "
            "or letters beyond ASCII in it; rename the folder (and the name in its config.pbtxt)"
        )


def launch(
    environment: Environment,
    repository: Path,
    ports: Mapping[str, int],
    options: Sequence[str],
    folder: Path,
    *,
    temporary: bool = False,
) -> tuple[subprocess.Popen[str], Running]:
    """Starts keeper and server; `folder` gets state.json, server.log and in the end exit.json.

    A `temporary` one goes with the server if its starter is gone by then.  Whoever holds the keeper's process ends the server by its going; "d" on its stdin lets the server go.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("state.json", "exit.json", "server.log"):
        (folder / name).unlink(missing_ok=True)
    prefix = f"loadgen_{secrets.token_hex(6)}_"
    facts = {option[2:].replace("-", "_"): port for option, port in ports.items()}
    order = {
        "command": _command(
            Environment(_plain(environment.folder, f"{prefix}server"), environment.libdir),
            _plain(repository, f"{prefix}repository"),
            ports,
            prefix,
            [*_traces(options, folder), *options],
        ),
        "log": str(folder / "server.log"),
        "state": str(folder / "state.json"),
        "exit": str(folder / "exit.json"),
        "facts": {**facts, "repository": str(repository)},
        "shm_prefix": prefix,
        "stop_s": STOP_S,
        "haste_s": HASTE_S,
        "parent": os.getpid(),
        "temporary": str(folder) if temporary else None,
    }
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", keeper.__file__, json.dumps(order)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
            env=environment.variables(folder),  # not in the order: anyone may read a command line
        )  # fmt: skip
    assert process.stdout is not None  # noqa: S101 - asked for above
    try:
        with process.stdout:
            line = process.stdout.readline()
    except BaseException:  # Ctrl-C: nobody holds this process yet
        assert process.stdin is not None  # noqa: S101 - asked for above
        process.stdin.close()
        process.wait()
        raise
    if not line:
        process.kill()
        process.wait()
        said = last_lines((folder / "server.log").read_text(errors="replace"), 1)
        raise LoadgenError(f"Triton could not be started: {'; '.join(said)}")
    return process, Running(**json.loads((folder / "state.json").read_text()))


def _plain(folder: Path, name: str) -> Path:
    """The folder by a path that Triton can pass on: it starts its python stubs by a line of shell, unquoted,
    and their Python knows ASCII only.  If need be a link, which the keeper removes as it does shared memory.
    """
    if _PLAIN.fullmatch(str(folder)):
        return folder
    link = _SHM / name
    link.symlink_to(folder, target_is_directory=True)
    return link


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


def _traces(options: Sequence[str], folder: Path) -> list[str]:
    """Where a trace goes once somebody turns it on; a file cannot be named later.  Costs nothing until then."""
    if any(option.startswith("--trace") for option in options):
        return []
    told = (f"triton,file={folder / TRACE}", "mode=triton", "level=OFF")
    return [f"--trace-config={one}" for one in told]


def read_exit_code(folder: Path) -> int | None:
    """What the keeper wrote down when the server ended."""
    with suppress(OSError, ValueError):
        return int(json.loads((folder / "exit.json").read_text())["exit_code"])
    return None
