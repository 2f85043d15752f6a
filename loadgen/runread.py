"""Reading a run folder: what is there, also of a run that was killed and whose last batch was cut.

It must not know how it was written as the run went (runfile), nor what the figures mean.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loadgen import streamfile
from loadgen.records import LoadgenError, NotMeasuredError
from loadgen.runfile import FORMAT, RECORDS, RUN, SERVER, WATCH, schema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it lies on disk: run.json, the lines of server.jsonl, and records that are read when asked for.

    `files` are the records files with how many whole batches each had when the run was opened (more may come
    while it runs), `rows` how many rows these hold.  `beats` holds the last heartbeat of each process that
    sent, with the number of the process as `worker`.
    """

    path: Path
    info: dict[str, Any]
    files: list[tuple[Path, int]]
    rows: int
    server: list[dict[str, Any]]
    beats: list[dict[str, Any]] = field(default_factory=list)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The records file by file, one batch in memory at a time."""
        import pyarrow as pa

        for path, count in self.files:
            with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
                for _ in range(count):
                    yield stream.read_next_batch()

    @property
    def watch(self) -> list[dict[str, Any]]:
        """The lines of watch.jsonl: the server's counters along the run; none where nobody watched."""
        return _whole_lines(self.path / WATCH)

    @property
    def has_streams(self) -> bool:
        """Whether answers were streamed."""
        return any(streamfile.path_beside(path).exists() for path, _ in self.files)

    def stream_batches(self) -> Iterator[pa.RecordBatch]:
        """What streamed answers were made of (streamfile.schema), one batch in memory at a time; none where
        nothing was streamed.
        """
        for path, _ in self.files:
            yield from streamfile.batches(streamfile.path_beside(path))

    @property
    def records(self) -> pa.Table:
        """All records in memory at once."""
        import pyarrow as pa

        return pa.Table.from_batches(self.batches(), schema())


def read_run(path: Path) -> Run:
    """Opens a run folder, also one cut short.  Raises LoadgenError if it is none or of a newer format."""
    info = _read_info(path)
    if info.get("status") == "running" and _is_gone(info.get("client") or {}):
        info["status"] = "killed"
    files, rows = [], 0
    for file in sorted(path.glob("records*.arrow")):
        batches, of_file = _whole_batches(file)
        files.append((file, batches))
        rows += of_file
    written = info.get("records")
    if isinstance(written, int) and rows != written:
        raise NotMeasuredError(
            f"{path}: {RECORDS} holds {rows} of the {written} records that were written: damaged"
        )
    beats = [
        last | {"worker": _worker(file)}
        for file in sorted(path.glob("progress*.jsonl"), key=_worker)
        for last in _whole_lines(file)[-1:]
    ]
    return Run(path, info, files, rows, _whole_lines(path / SERVER), beats)


def _is_gone(client: dict[str, Any]) -> bool:
    """Whether the process that sent is known to have ended: it ran on this machine, and there is none of its number."""
    if client.get("pid") is None or client.get("host") != socket.gethostname():
        return False
    try:
        os.kill(client["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:  # another user's
        return False
    return False


def _worker(file: Path) -> int:
    """Of records-1.arrow and progress-1.jsonl 1, of records.arrow and progress.jsonl 0."""
    number = file.stem.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file up to the first that was cut: the last one of a killed run.  None if there is none."""
    lines: list[dict[str, Any]] = []
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return lines
    for line in text.split("\n"):  # not splitlines: a server's words may hold U+2028
        try:
            told = json.loads(line)
        except ValueError:
            break
        if isinstance(told, dict):  # anything else is none of ours
            lines.append(told)
    return lines


def _read_info(path: Path) -> dict[str, Any]:
    try:
        info = json.loads((path / RUN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = f"; it is a sweep's: loadgen sweep show {path}" if (path / "sweep.json").exists() else ""
        if (path / "repeat.json").exists():
            hint = f"; it holds repeats: name one of them, e.g. {path / '1'}"
        raise LoadgenError(f"{path}: not a run folder (no {RUN} in it){hint}") from None
    except NotADirectoryError:
        raise LoadgenError(f"{path}: not a run folder but a file") from None
    except OSError as why:
        raise LoadgenError(f"{path}: cannot read {RUN}: {why.strerror}") from None
    except ValueError:
        raise LoadgenError(f"{path}: {RUN} is not readable JSON") from None
    if not isinstance(info, dict) or not isinstance(info.get("format"), int):
        raise LoadgenError(f"{path}: {RUN} names no format; not a run folder of loadgen")
    if info["format"] > FORMAT:
        raise LoadgenError(
            f"{path}: format {info['format']} is newer than this loadgen reads ({FORMAT}); upgrade"
        )
    return info


def _whole_batches(path: Path) -> tuple[int, int]:
    """How many batches of a file are whole, and their rows; none of one killed within its first second.

    Mapped, so that only the batches' heads are read.
    """
    import pyarrow as pa

    batches = rows = 0
    with (
        contextlib.suppress(StopIteration, OSError, pa.ArrowInvalid),
        pa.memory_map(str(path)) as file,
        pa.ipc.open_stream(file) as stream,
    ):
        while True:
            rows += stream.read_next_batch().num_rows
            batches += 1
    return batches, rows
