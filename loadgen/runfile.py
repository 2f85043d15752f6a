"""The run folder: the wall between measuring and reading.

`RecordWriter` appends finished requests to a preallocated block (one `pack_into` each) and hands full blocks
to a thread that writes them as Arrow record batches, so that a kill loses at most a second of records; each
process that sends has a file of its own.  `RunFolder` holds run.json and server.jsonl; `runread` reads them.
This module must not know how requests are sent nor what the figures mean.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import re
import struct
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen import streamfile
from loadgen.records import LoadgenError, NotMeasuredError, NotWrittenError, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from loadgen.records import Streamed

    Observer = Callable[[np.ndarray[Any, Any]], None]

FORMAT = 1
RECORDS, RUN, SERVER, WATCH, SUMMARY, REPORT = (
    "records.arrow",
    "run.json",
    "server.jsonl",
    "watch.jsonl",
    "summary.json",
    "report.html",
)
_ROW = struct.Struct("<qhhqqqqiiqqbih")
_FIELDS = (("seq", "<i8"), ("phase", "<i2"), ("kind", "<i2"), ("due_ns", "<i8"), ("sent_ns", "<i8"),
           ("first_ns", "<i8"), ("done_ns", "<i8"), ("length", "<i4"), ("items", "<i4"), ("bytes_out", "<i8"),
           ("bytes_in", "<i8"), ("outcome", "i1"), ("status", "<i4"), ("detail", "<i2"))  # fmt: skip
ROW_DTYPE = np.dtype(list(_FIELDS))
_NULLABLE = {"sent_ns", "first_ns", "length"}  # -1 stands for null
_BLOCK_ROWS = 8192
_MOST_WAITING = (
    256  # blocks that the writer is behind (190 MB): beyond it the loop waits, and its lag shows it
)
_MOST_STREAMS = 1024  # rows of streams.arrow in one batch
OUTCOMES = [outcome.name.lower() for outcome in Outcome]


def make_run_folder(name: str, out: Path | None, started: str, claim: str = RUN) -> Path:
    """Makes the folder of a new run: `out` if given, else runs/<time>-<name>, escaped and never one twice.

    `claim` is the file that is made in it at once.

    Raises LoadgenError if `out` exists and is not an empty folder, NotWrittenError if it cannot be made or written.
    """
    safe = re.sub(r"[^\w.-]+", "-", name).strip(".-")[:60] or "run"
    path = out or Path("runs") / f"{re.sub(r'[^0-9T]', '', started)[:15]}-{safe}"
    first, number = path, 2
    try:
        while True:
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                if out is None:  # another run of this second
                    path, number = first.with_name(f"{first.name}.{number}"), number + 1
                    continue
                if not path.is_dir() or any(path.iterdir()):
                    raise LoadgenError(
                        f"output {path}: exists already; name a folder that does not exist with --out"
                    ) from None
            (path / claim).open("x").close()  # the claim: of two runs with one --out, one gets it
            return path
    except FileExistsError:
        raise LoadgenError(
            f"output {path}: another run has just begun there; choose another with --out"
        ) from None
    except OSError as why:
        raise NotWrittenError(path, why, "name a writable folder with --out") from None


def drop_run_folder(path: Path) -> None:
    """Takes back a folder in which nothing was recorded: the run was refused."""
    with contextlib.suppress(OSError):
        (path / RUN).unlink()
        path.rmdir()


def write_atomic(path: Path, text: str) -> None:
    """Replaces `path` whole or not at all.  Raises NotWrittenError on a full or read-only disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as why:
        with contextlib.suppress(OSError):  # a read-only disk refuses that too
            temporary.unlink(missing_ok=True)
        raise NotWrittenError(path, why) from None


class RunFolder:
    """run.json and server.jsonl of one run; `info` is run.json as it will be saved next."""

    def __init__(self, path: Path, info: dict[str, Any]) -> None:
        """`path` was made by `make_run_folder`."""
        self.path, self.info = path, info
        self.save()

    def save(self) -> None:
        """Writes run.json as `info` stands."""
        write_atomic(self.path / RUN, json.dumps(self.info, indent=1) + "\n")

    def snapshot(self, line: dict[str, Any]) -> None:
        """Appends one line to server.jsonl.  Raises NotWrittenError on a full disk."""
        try:
            with (self.path / SERVER).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as why:
            raise _disk_error(self.path, why) from None

    def writer(self, worker: int = 0, observe: Observer | None = None) -> RecordWriter:
        """The records file of one of the processes that send."""
        phases, kinds = ([row["name"] for row in self.info[key]] for key in ("phases", "kinds"))
        return RecordWriter(self.path / records_name(worker), phases, kinds, observe)


def records_name(worker: int) -> str:
    """records.arrow for the first process that sends, records-1.arrow for the next."""
    return f"records-{worker}.arrow" if worker else RECORDS


def progress_path(records: Path) -> Path:
    """records-1.arrow has its heartbeats in progress-1.jsonl."""
    return records.with_name(records.name.replace("records", "progress")).with_suffix(".jsonl")


class RecordWriter:
    """Writes one records file as the run goes.  All methods but the thread's own belong to the event loop."""

    def __init__(
        self, path: Path, phases: Sequence[str], kinds: Sequence[str], observe: Observer | None
    ) -> None:
        """`phases` and `kinds` name what `append`'s indices mean.

        `observe` is called in the writer thread with each block of rows (ROW_DTYPE).
        """
        import pyarrow as pa

        self.path = path
        self.error: LoadgenError | None = None
        self.rows = 0  # on disk
        self._observe = observe
        self._details: dict[str, int] = {}  # texts of the rows in `_block`: a block has its own
        self._pack = _ROW.pack_into
        self._names = {
            "phase": pa.array(phases, pa.string()),
            "kind": pa.array(kinds, pa.string()),
            "outcome": pa.array(OUTCOMES, pa.string()),
        }
        try:
            self._file = path.open("xb", buffering=0)
            self._stream = pa.ipc.new_stream(self._file, schema())
        except OSError as why:
            raise NotWrittenError(path, why, "choose another folder with --out") from None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="loadgen-writer")
        self._behind: deque[Future[None]] = deque()
        self._streams: list[streamfile.Row] = []
        self._streams_file: streamfile.StreamsFile | None = None
        self._block, self._at = bytearray(_BLOCK_ROWS * _ROW.size), 0

    def append(  # noqa: PLR0913 - one row, one call
        self,
        seq: int,
        phase: int,
        kind: int,
        due_ns: int,
        sent_ns: int,
        first_ns: int,
        done_ns: int,
        length: int,
        items: int,
        bytes_out: int,
        bytes_in: int,
        outcome: int,
        status: int,
        detail: str | None,
    ) -> None:
        """See seams.RecordSink."""
        self._pack(self._block, self._at, seq, phase, kind, due_ns, sent_ns, first_ns, done_ns, length, items,
                   bytes_out, bytes_in, outcome, status, -1 if detail is None else self._details.setdefault(detail, len(self._details)))  # fmt: skip
        self._at += _ROW.size
        if self._at == len(self._block):
            self.flush()

    def append_streamed(  # noqa: PLR0913 - one row, one call
        self, seq: int, phase: int, kind: int, due_ns: int, sent_ns: int, outcome: int, origin_ns: int, streamed: Streamed
    ) -> None:  # fmt: skip
        """See seams.RecordSink."""
        self._streams.append((seq, phase, kind, due_ns, sent_ns, outcome, origin_ns, streamed))
        if len(self._streams) == _MOST_STREAMS:
            self._flush_streams()

    def _flush_streams(self) -> None:
        rows, self._streams = self._streams, []
        if rows and self.error is None:
            self._submit(self._write_streams, rows)

    def _submit(self, call: Callable[[Any], None], what: Any) -> None:
        behind = self._behind
        while behind and (behind[0].done() or len(behind) >= _MOST_WAITING):
            concurrent.futures.wait((behind.popleft(),))
        behind.append(self._thread.submit(call, what))
        behind[-1].add_done_callback(self._note)

    def flush(self) -> None:
        """Hands the rows so far to the writer thread; returns at once.  After an error rows are let go."""
        if self.error is not None:
            self._at, self._details = 0, {}
        elif self._at:
            block, used = self._block, self._at
            self._block, self._at = bytearray(_BLOCK_ROWS * _ROW.size), 0
            details, self._details = [*self._details], {}
            rows = np.frombuffer(block, ROW_DTYPE, used // _ROW.size)
            self._submit(self._write, (rows, details))
        self._flush_streams()

    def beat(self, line: dict[str, Any]) -> None:
        """Hands a heartbeat to the writer thread: what a reader knows of a run that was killed."""
        if self.error is None:
            self._submit(self._append_beat, json.dumps(line) + "\n")

    def _append_beat(self, line: str) -> None:
        with progress_path(self.path).open("a", encoding="utf-8") as file:
            file.write(line)

    def close(self) -> None:
        """Writes what is left; after it `error` says whether all rows are on disk."""
        self.flush()
        self._thread.shutdown(wait=True)
        try:
            with self._file:
                self._stream.close()
            if self._streams_file is not None:
                self._streams_file.close()
        except OSError as why:
            self.error = self.error or _disk_error(self.path.parent, why)

    def _note(self, done: Future[None]) -> None:
        why = done.exception()
        if isinstance(why, OSError):
            self.error = self.error or _disk_error(self.path.parent, why)
        elif why is not None:
            self.error = self.error or NotMeasuredError(f"cannot write {self.path}: {why}")

    def _write(self, block: tuple[np.ndarray[Any, Any], list[str]]) -> None:
        """Rows, and the texts that their `detail` indexes."""
        import pyarrow as pa

        rows, details = block

        def column(name: str) -> pa.Array:
            values = np.ascontiguousarray(rows[name])
            if name in self._names:
                indices = values.astype(np.int16 if name != "outcome" else np.int8)
                return pa.DictionaryArray.from_arrays(pa.array(indices), self._names[name])
            if name == "detail":
                return pa.array([None if i < 0 else details[i] for i in values.tolist()], pa.string())
            return pa.array(values, mask=values < 0) if name in _NULLABLE else pa.array(values)

        self._stream.write_batch(pa.record_batch([column(n) for n, _ in _FIELDS], schema=schema()))
        self.rows += len(rows)
        if self._observe is not None:
            self._observe(rows)

    def _write_streams(self, rows: list[streamfile.Row]) -> None:
        if self._streams_file is None:
            self._streams_file = streamfile.StreamsFile(streamfile.path_beside(self.path), self._names)
        self._streams_file.write(rows)


def schema() -> pa.Schema:
    """The columns of records.arrow: a public contract."""
    import pyarrow as pa

    names = {"phase": pa.int16(), "kind": pa.int16(), "outcome": pa.int8()}
    plain = {"<i8": pa.int64(), "<i4": pa.int32()}
    return pa.schema(
        [
            pa.field(
                n,
                pa.dictionary(names[n], pa.string())
                if n in names
                else pa.string()
                if n == "detail"
                else plain[t],
            )
            for n, t in _FIELDS
        ]
    )


def _disk_error(path: Path, why: OSError) -> NotWrittenError:
    return NotWrittenError(path, why, "the run stopped, what was written is kept")
