"""A real Triton on this machine, without Docker: starts it, waits for what was asked, ends it.

    with LocalTriton("model_repository", models=["minilm"]) as server:
        print(server.grpc_target)

Everything is bound to loopback, models are loaded only when named.  A server ends with the process that
started it, unless `detach` lets it go.  This module must not know how its packages are installed, nor
requests and their timing.
"""

import http.client
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from loadgen.records import LoadgenError
from loadgen.triton.install import Environment, Say, ensure_installed
from loadgen.triton.launch import (
    HASTE_S,
    STOP_S,
    Running,
    check_model_name,
    check_options,
    launch,
    read_exit_code,
)
from loadgen.triton.process import LOOPBACK, choose_ports, listening
from loadgen.triton.words import faults, last_lines, load_failure

_POLL_S = 0.02
_ATTEMPTS = 3
_MAX_STATE_WAIT_S = 10.0


@dataclass(slots=True)
class Readiness:
    """When what was ready, counted from the start of the process.  A server is ready before, or after, a
    model is: they are separate facts.
    """

    live_ns: int | None = None
    server_ready_ns: int | None = None
    model_ready_ns: dict[str, int] = field(default_factory=dict)
    load_ns: dict[str, int] = field(default_factory=dict)  # from the load call to the model's own ready


class LocalTriton:
    """One server.  Not started by its making; may be started once."""

    def __init__(  # noqa: PLR0913 - the options of `loadgen serve start`, each by name
        self,
        repository: str | Path,
        *,
        models: Sequence[str] = (),
        http_port: int | None = None,
        grpc_port: int | None = None,
        metrics_port: int | None = None,
        timeout_ns: int = 120 * 10**9,
        state_dir: str | Path | None = None,  # state.json, exit.json and log; a temporary one if None
        options: Sequence[str] = (),  # further tritonserver options, e.g. "--log-verbose=1"
        say: Say = lambda _: None,
    ) -> None:
        self.repository = Path(repository).absolute()
        self.models = tuple(models)
        self.readiness = Readiness()
        self.running: Running | None = None
        self._asked = {"--http-port": http_port, "--grpc-port": grpc_port, "--metrics-port": metrics_port}
        self._timeout_ns = timeout_ns
        self._given_dir = None if state_dir is None else Path(state_dir)
        self._options = tuple(options)
        self._say = say
        self._dir: Path | None = None
        self._process: subprocess.Popen[str] | None = None
        self._began_ns = 0
        self._deadline_ns = 0

    # What it is, once started

    @property
    def facts(self) -> Running:
        if self.running is None:
            raise LoadgenError("this server was not started")
        return self.running

    @property
    def http_target(self) -> str:
        return self.facts.http_target

    @property
    def grpc_target(self) -> str:
        return self.facts.grpc_target

    @property
    def metrics_url(self) -> str:
        return self.facts.metrics_url

    @property
    def pid(self) -> int:
        return self.facts.server_pid

    @property
    def began_ns(self) -> int:
        """When the process was started, on the monotonic clock: what `readiness` counts from."""
        return self._began_ns

    @property
    def log_path(self) -> Path:
        return self._folder / "server.log"

    @property
    def _folder(self) -> Path:
        if self._dir is None:
            raise LoadgenError("this server was not started")
        return self._dir

    def log(self) -> str:
        """The server's whole log so far; "" before the first line."""
        with suppress(FileNotFoundError):
            return self.log_path.read_text(errors="replace")
        return ""

    # Its life

    def start(self) -> Self:
        """Installs if need be, starts, waits for live, ready and each model.  Nothing is left on failure.

        Raises LoadgenError: see `install`; no such repository or model; an option that is ours; a port taken;
        the server died; a model that cannot be loaded; not ready in time.
        """
        check_repository(self.repository, self.models)
        check_options(self._options)
        environment = ensure_installed(self._say)
        for attempt in range(1, _ATTEMPTS + 1):
            ports = choose_ports(self._asked)
            try:
                self._launch(environment, ports)
                self._wait_until_live()
                break
            except BaseException as why:
                # A free port of our choice can be snatched before the server binds it: choose again.
                snatched = isinstance(why, LoadgenError) and "already in use" in self.log()
                self.stop(HASTE_S)
                if attempt == _ATTEMPTS or not snatched:
                    raise
        try:
            for model in self.models:
                self._say(f"loading {model}")
                self.load(model)
        except BaseException:
            self.stop(HASTE_S)
            raise
        return self

    def detach(self) -> Running:
        """Lets a started server go on after this process."""
        process = self._process
        if process is None or process.stdin is None:
            raise LoadgenError("this server was not started")
        process.stdin.write("d")
        process.stdin.close()
        process.returncode = 0  # not ours to wait for any more, and no warning that we did not
        self._process = None
        return self.facts

    def stop(self, patience_s: float = STOP_S) -> None:
        """SIGTERM, patience, SIGKILL; returns when all is gone.  May be called again.

        An interrupt cuts it short: the keeper goes on by itself, and the folder goes all the same.
        """
        try:
            self._end(patience_s)
        finally:
            self._forget()

    def wait(self) -> int:
        """Until the server ends by itself or by another's hand; its exit code."""
        if self._process is not None:
            self._process.wait()
        return self._exit_code() or 0

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, why: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()

    # Models

    def load(self, model: str, config: Mapping[str, Any] | None = None) -> None:
        """Loads (or, with a configuration in JSON form, reloads) a model and waits for its own ready."""
        body: dict[str, Any] = {} if config is None else {"parameters": {"config": json.dumps(config)}}
        mark = len(self.log())
        asked_ns = time.monotonic_ns()
        status, said = self._ask("POST", f"/v2/repository/models/{quote(model, safe='')}/load", body)
        if status != http.client.OK:
            index = json.loads(self._ask("POST", "/v2/repository/index", {})[1] or "[]")
            raise LoadgenError(
                load_failure(model, _error(said), self.log()[mark:], [row["name"] for row in index])
            )
        while self._ask("GET", f"/v2/models/{quote(model, safe='')}/ready")[0] != http.client.OK:
            self._pause(f"model {model!r} was loaded but is not ready")
        now = time.monotonic_ns()
        self.readiness.model_ready_ns[model] = now - self._began_ns
        self.readiness.load_ns[model] = now - asked_ns

    # How

    def _launch(self, environment: Environment, ports: dict[str, int]) -> None:
        self._dir = self._given_dir or Path(tempfile.mkdtemp(prefix="loadgen-triton-"))
        self._say(f"starting Triton on {self.repository}")
        self._began_ns = time.monotonic_ns()
        self._deadline_ns = self._began_ns + self._timeout_ns
        self._process, self.running = launch(
            environment, self.repository, ports, self._options, self._dir, temporary=self._given_dir is None
        )

    def _wait_until_live(self) -> None:
        ready = self.readiness = Readiness()
        while self._probe("/v2/health/live") != http.client.OK:
            self._pause("the server is not live")
        ready.live_ns = time.monotonic_ns() - self._began_ns
        while self._probe("/v2/health/ready") != http.client.OK:
            self._pause("the server is live but not ready")
        ready.server_ready_ns = time.monotonic_ns() - self._began_ns
        for port in (self.facts.grpc_port, self.facts.metrics_port):  # they open around the same time
            while not listening(port):
                self._pause(f"port {port} does not answer")

    def _pause(self, why: str) -> None:
        """Between two looks at a server that is not yet where we want it."""
        if self._process is not None and self._process.poll() is not None:
            raise self.died()
        if time.monotonic_ns() > self._deadline_ns:
            late = f"{why} after {self._timeout_ns / 1e9:g} s (--timeout)"
            raise LoadgenError(_with_log(late, faults(self.log(), 5)))
        time.sleep(_POLL_S)

    def died(self) -> LoadgenError:
        """How a server that is no more ended, in words."""
        code = self._exit_code()
        how = (
            "ended"
            if code is None
            else f"was killed by signal {-code}"
            if code < 0
            else f"exited with code {code}"
        )
        # Who was killed had no time to log a fault: an older one would pass for the cause.
        lines = last_lines if code is not None and code < 0 else faults
        return LoadgenError(_with_log(f"Triton {how}", lines(self.log(), 5)))

    def _exit_code(self) -> int | None:
        return read_exit_code(self._folder)

    def _probe(self, path: str) -> int:
        try:
            return self._ask("GET", path)[0]
        except LoadgenError:
            return 0

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, str]:
        """Straight to loopback: no proxy can come between."""
        left_s = max((self._deadline_ns - time.monotonic_ns()) / 1e9, 0.01) if not self._loaded() else None
        connection = http.client.HTTPConnection(LOOPBACK, self.facts.http_port, timeout=left_s)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except TimeoutError:
            late = f"Triton did not answer {method} {path} within {self._timeout_ns / 1e9:g} s (--timeout)"
            raise LoadgenError(_with_log(late, faults(self.log(), 5))) from None
        except (OSError, http.client.HTTPException) as why:
            if self._process is not None and self._gone():
                raise self.died() from None
            raise LoadgenError(f"no server answers at {self.http_target}: {why}") from None
        finally:
            connection.close()

    def _loaded(self) -> bool:
        """All that `start` waits for has come: later loads take the time they take."""
        return set(self.models) <= set(self.readiness.model_ready_ns)

    def _gone(self) -> bool:
        """Whether the server died; gives its keeper a moment to notice and write the code down."""
        if self.facts.alive():
            return False
        with suppress(subprocess.TimeoutExpired):
            assert self._process is not None  # noqa: S101 - asked by the caller
            self._process.wait(_MAX_STATE_WAIT_S)
        return True

    def _end(self, patience_s: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            for wait_s in (patience_s, 10.0):  # asked twice, the keeper waits no more for the server
                with suppress(OSError):
                    process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(wait_s)
                    return
            process.kill()
            process.wait()
        finally:
            if process.stdin is not None:  # also tells a keeper that is still there that nobody waits for it
                process.stdin.close()

    def _forget(self) -> None:
        if self._given_dir is None and self._dir is not None:
            shutil.rmtree(self._dir, ignore_errors=True)


def check_repository(repository: Path, models: Sequence[str]) -> None:
    """Raises LoadgenError unless the folder is there and has a folder for each model."""
    if not repository.is_dir():
        raise LoadgenError(f"no model repository at {repository}: a folder with one folder a model is needed")
    have = sorted(folder.name for folder in repository.iterdir() if folder.is_dir())
    for model in models:
        if model not in have:
            raise LoadgenError(f"no model {model!r} in {repository}; it has: {', '.join(have) or 'none'}")
        check_model_name(model)


def _with_log(text: str, lines: Sequence[str]) -> str:
    return "\n  ".join((f"{text}; its last log lines:", *lines)) if lines else f"{text}; its log is empty"


def _error(said: str) -> str:
    """The server's own words out of its JSON."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(said)["error"])
    return said
