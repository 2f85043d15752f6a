"""The server's own trace for the time of a run: turned on before the load, off after it, kept in the run folder.

Triton writes its trace to a file of its own machine, named when it starts: only a server of this machine, or one
whose file is seen from here, can be traced.  This module must not know what is read out of a trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.records import LoadgenError, NotMeasuredError
from loadgen.triton.trace import BACK, OFF, ON, parse_trace
from loadgen.triton.tracefile import write_timelines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loadgen.triton.control import Control

MOST_REQUESTS = 200_000  # the server holds them in memory until the end: about a KiB each
_WRITTEN_S = 10.0
_POLL_S = 0.05
_STILL = 4  # equal readings in a row
_START = (
    "start the server with --trace-config=mode=triton --trace-config=triton,file=PATH (loadgen serve does)"
)


@dataclass(frozen=True, slots=True)
class ServerTrace:
    """Of some models of one server, whose trace goes to `file`."""

    control: Control
    models: tuple[str, ...]
    file: Path
    before: frozenset[Path]  # numbered files of earlier traces

    async def begin(self) -> None:
        """Every request of these models from now on, up to MOST_REQUESTS a model."""
        for model in self.models:
            await self.control.trace(model, ON | {"trace_count": str(MOST_REQUESTS)})

    async def end(self, folder: Path, origin_ns: int) -> dict[str, Any]:
        """Turns it off and takes what it told since `origin_ns` (monotonic) into the run folder; facts for
        run.json.  Raises LoadgenError when no file comes.
        """
        for model in self.models:
            await self.control.trace(model, OFF)
        for model in self.models:
            await self.control.trace(model, BACK)
        found = [one for text in await self._texts() for one in parse_trace(text)]
        mine = [one for one in found if one.model in self.models and one.queue_ns >= origin_ns]
        write_timelines(folder, sorted(mine, key=lambda one: one.queue_ns), origin_ns)
        full = sorted({m for m in self.models if sum(o.model == m for o in mine) >= MOST_REQUESTS})
        return {"requests": len(mine), "full": full}

    def _new(self) -> dict[Path, int]:
        """The numbered files that were not there before the run, and their sizes."""
        files = set(self.file.parent.glob(f"{escape(self.file.name)}.*")) - self.before
        return {file: file.stat().st_size for file in files}

    async def _texts(self) -> list[str]:
        """The files, once there are some and they grow no more; they are taken away from the server's folder."""
        deadline = time.monotonic() + _WRITTEN_S
        sizes: dict[Path, int] = {}
        same = 0
        while same < _STILL and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
            last, sizes = sizes, self._new()
            same = same + 1 if sizes and sizes == last else 0
        if not sizes:
            raise NotMeasuredError(f"the server wrote no trace to {self.file}.N: is it this machine's?")
        texts = [await asyncio.to_thread(file.read_text, errors="replace") for file in sorted(sizes)]
        for file in sizes:
            with contextlib.suppress(OSError):  # another user's: left there
                file.unlink()
        return texts


async def find_trace(control: Control, models: Sequence[str]) -> ServerTrace:
    """Where the server would write its trace, before anything is turned on.

    Raises LoadgenError for a server that has no trace, or whose file cannot be seen from here.
    """
    if not models:
        raise LoadgenError(
            "--trace-server: the profile asks no model of a KServe v2 server; nothing to trace"
        )
    told = await control.trace(models[0])
    if told.get("trace_mode", "triton") != "triton" or not told.get("trace_file"):
        raise LoadgenError(f"--trace-server: {control.target.url} writes no trace file; {_START}")
    file = Path(told["trace_file"])
    if not file.is_absolute() or not file.parent.is_dir():
        raise LoadgenError(
            f"--trace-server: {control.target.url} writes its trace to {file} on its own machine, which is not "
            f"seen from here; {_START}"
        )
    before = frozenset(file.parent.glob(f"{escape(file.name)}.*"))
    return ServerTrace(control, tuple(dict.fromkeys(models)), file, before)
