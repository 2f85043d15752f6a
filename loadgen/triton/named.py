"""Servers that go on without us, by name: where their state and log are, and starting no name twice.

It must not know the command line.
"""

import fcntl
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from loadgen.records import LoadgenError, NotWrittenError
from loadgen.target import Target
from loadgen.triton.install import home, writable_home
from loadgen.triton.launch import Running
from loadgen.triton.local import LocalTriton
from loadgen.triton.process import LOOPBACK


def folder_of(name: str) -> Path:
    """state.json, exit.json and server.log of that name; raises LoadgenError for a name that is none."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise LoadgenError(f"server name {name!r}: allowed are letters, digits, '.', '_' and '-'")
    return home() / "servers" / name


def find(name: str) -> Running | None:
    """The last server started under that name, alive or not."""
    with suppress(OSError, ValueError, TypeError):
        return Running(**json.loads((folder_of(name) / "state.json").read_text()))
    return None


def find_alive(name: str) -> Running:
    """Raises LoadgenError when none of that name runs, telling those that do."""
    running = find(name)
    if running is not None and running.alive():
        return running
    others = [other for other in names() if (its := find(other)) is not None and its.alive()]
    hint = f"running: {', '.join(others)}" if others else "none is"
    raise LoadgenError(f"no server named {name!r} is running ({hint}); loadgen serve start begins one")


def names() -> list[str]:
    servers = home() / "servers"
    return sorted(f.name for f in servers.iterdir() if f.is_dir()) if servers.is_dir() else []


def name_at(target: Target) -> str | None:
    """The name of the server that `loadgen serve` runs at this target, if it does."""
    if target.host not in (LOOPBACK, "localhost"):
        return None
    for name in names():
        running = find(name)
        if running is not None and target.port in (running.http_port, running.grpc_port) and running.alive():
            return name
    return None


@contextmanager
def claimed(name: str) -> Iterator[Path]:
    """The folder of a name that is free, held against other starts while within.

    Raises LoadgenError when a server of that name runs or is just being started.
    """
    writable_home()
    folder = folder_of(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("w")
    except OSError as why:
        raise NotWrittenError(folder, why, "set LOADGEN_TRITON_HOME to a writable folder") from None
    with file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LoadgenError(f"a server named {name!r} is being started by another process") from None
        running = find(name)
        if running is not None and running.alive():
            raise LoadgenError(
                f"a server named {name!r} already runs at {running.http_target} and {running.grpc_target} "
                f"(pid {running.server_pid}); stop it first (loadgen serve stop --name {name}) or take another --name"
            )
        yield folder


def start(name: str, server: LocalTriton, tell: Callable[[Running], None]) -> None:
    """Starts a server made with `state_dir=folder_of(name)`, tells where, and lets it go on without us.

    Until it was told the server ends with us: none goes on that nobody knows of.
    """
    with claimed(name):
        server.start()
        try:
            tell(server.facts)
        except BaseException:
            server.stop()
            raise
        server.detach()


def stop(name: str) -> Running:
    """Ends it and returns what it was; raises LoadgenError when none of that name runs."""
    running = find_alive(name)
    running.end()
    return running
