"""The server along a run: starts the process that watches it, and ends it.

Reading counters takes a millisecond of Python, which the loop that sends has not; so another process does.  It must
not know what the figures mean.
"""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.lab.watch_process import WatchOrder
from loadgen.runfile import WATCH
from loadgen.triton import named

if TYPE_CHECKING:
    from loadgen.connect.options import ConnectOptions
    from loadgen.target import Target
    from loadgen.triton.launch import Running

EVERY_NS = 2 * 10**9
_END_S = 3.0


@dataclass(frozen=True, slots=True)
class Beside:
    """What else can be read of the server: its metrics page, its process and its repository on this machine."""

    metrics_url: str | None = None
    pid: int | None = None
    repository: Path | None = None
    asked: bool = False  # the page was named by a person: it is read however short the run is


def beside(running: Running) -> Beside:
    """Of a server that we started."""
    return Beside(running.metrics_url, running.server_pid, Path(running.repository))


def known_beside(target: Target) -> Beside:
    """Of the server that `loadgen serve` runs at this target, if it does."""
    name = named.name_at(target)
    running = named.find(name) if name else None
    return beside(running) if running else Beside()


class Watch:
    """The process.  Nothing that becomes of it can fail a run."""

    def __init__(
        self, target: Target, options: ConnectOptions, models: list[tuple[str, str]], at: Beside, folder: Path,
        origin_ns: int, every_ns: int = EVERY_NS,
    ) -> None:  # fmt: skip
        order = WatchOrder(
            target, options, models, at.metrics_url, at.pid, folder / WATCH, origin_ns, every_ns
        )
        data = pickle.dumps(order)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loadgen.lab.watch_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip - a session of its own: the terminal's Ctrl-C is for the run, which ends it when it is done
        assert self._process.stdin is not None  # noqa: S101 - asked for
        with contextlib.suppress(OSError):
            self._process.stdin.write(len(data).to_bytes(4, "big") + data)
            self._process.stdin.flush()

    def close(self) -> None:
        """Ends it: at once when it waits, within moments when it asks."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
