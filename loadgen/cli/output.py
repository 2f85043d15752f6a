"""What a verb prints.  A reader who has enough (`| head`) changes neither what a verb does nor its exit code."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from rich.console import Console


class _Unread(io.FileIO):
    """Standard output or error: what is written after its reader has gone is let go, as if it had been read."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return memoryview(data).nbytes


def outlive_readers() -> None:
    """Puts both standard streams on `_Unread`, so that a BrokenPipeError which reaches anybody is of something else."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        buffer = getattr(stream, "buffer", None)
        if stream is not getattr(sys, f"__{name}__") or buffer is None or buffer.fileno() != number:
            continue  # somebody else's: a test, a notebook
        stream.flush()
        raw = _Unread(number, "w", closefd=False)
        whole = raw if isinstance(buffer, io.RawIOBase) else io.BufferedWriter(raw)
        put = io.TextIOWrapper(
            whole,
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, put)


def stderr_console() -> Console:
    """For progress on stderr."""
    from rich.console import Console

    return Console(stderr=True)
