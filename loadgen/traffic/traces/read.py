"""`read_trace`: from a trace's description and a folder to due times, lengths and kinds, with the whole story told.

The file streams through in blocks; what stays is 22 bytes a row kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from loadgen.traffic.trace import Trace
from loadgen.traffic.traces.columns import NONE, BadValueError, Ints, times_ns
from loadgen.traffic.traces.csv_rows import read_csv
from loadgen.traffic.traces.json_rows import read_jsonl
from loadgen.traffic.traces.layouts import Layout, layout_of
from loadgen.traffic.traces.log_rows import read_nginx_log, read_triton_log
from loadgen.traffic.traces.parquet_rows import read_parquet
from loadgen.traffic.traces.select import Mask, Sieve
from loadgen.traffic.traces.sharegpt import estimate, read_sharegpt, tokenizer
from loadgen.traffic.traces.source import BLOCK_BYTES, Batch, Source, TraceError, open_source
from loadgen.traffic.traces.story import facts_of
from loadgen.traffic.traces.timeline import StepBackError, Timeline, due

MOST_KEPT = 50_000_000


@dataclass(frozen=True, slots=True)
class TraceRows:
    """A trace ready to be sent; every array has one entry a row kept.

    `due_ns` ascends from 0; None when the file has no times: the rows then have an order only.  `length` and
    `output` are tokens, -1 where the trace does not tell; `kind` indexes `kinds`, -1 where any will do.
    `facts` is JSON; `facts["said"]` are its sentences.
    """

    due_ns: npt.NDArray[np.int64] | None
    length: npt.NDArray[np.int32]
    output: npt.NDArray[np.int32]
    kind: npt.NDArray[np.int16]
    kinds: tuple[str, ...]
    facts: dict[str, Any]

    @property
    def duration_ns(self) -> int:
        """How long a phase of these rows lasts: the last is followed by the mean gap, so that rows over
        duration is their rate; a second where all are due at once.  0 without times.
        """
        if self.due_ns is None:
            return 0
        n, last = len(self.due_ns), int(self.due_ns[-1])
        return last + -(-last // (n - 1)) if last else 10**9


def read_trace(trace: Trace, folder: Path, block_bytes: int = BLOCK_BYTES) -> TraceRows:
    """Reads a trace that lies in, or relative to, a folder.  Raises TraceError, naming file and line."""
    source = open_source(trace.file, folder)
    layout, how = layout_of(trace, source)
    reading = _Reading(trace, source, layout)
    for batch in _batches(trace, source, layout, folder, block_bytes):
        if not reading.take(batch):
            break
    return reading.finish(how)


def _batches(trace: Trace, source: Source, layout: Layout, folder: Path, block_bytes: int) -> Iterator[Batch]:
    columns = layout.columns
    own = [name for name in (columns.time, columns.input, columns.output) if name is not None]
    needed = list(dict.fromkeys([*own, *trace.asked_columns]))
    if layout.format in ("mooncake", "bailian", "ragpulse", "jsonl"):
        must = needed if layout.columns_must_be else [name for name in needed if name not in own]
        return read_jsonl(source, needed, must, block_bytes)
    if layout.format == "parquet":
        return read_parquet(source, needed)
    if layout.format == "sharegpt":
        if trace.asked_columns:
            raise TraceError(f"{source.name}: sharegpt has no columns for where or kinds")
        count = tokenizer(folder / trace.tokenizer) if trace.tokenizer else estimate
        return read_sharegpt(source, count, block_bytes)
    if layout.format in ("triton_log", "nginx_log"):
        read = read_triton_log if layout.format == "triton_log" else read_nginx_log
        return read(source, needed, block_bytes)
    return read_csv(source, needed, block_bytes)


class _Reading:
    """What has been kept so far."""

    def __init__(self, trace: Trace, source: Source, layout: Layout) -> None:
        self.trace, self.source, self.layout = trace, source, layout
        self.timeline = Timeline(trace.seam or layout.seam)
        self.sieve = Sieve(trace, layout.columns.input, layout.columns.output, layout.format == "sharegpt")
        self.read = 0
        self.unread = 0  # lines that are no rows
        self.others: dict[str, None] = {}  # columns that nothing is read of, in their order
        self.kept = 0
        self.stopped = ""  # why the rest of the file was not read
        self._timed: bool | None = None if layout.columns.time else False
        self._parts: dict[str, list[npt.NDArray[Any]]] = {"time": [], "length": [], "output": [], "kind": []}

    def take(self, batch: Batch) -> bool:
        """False when the rest of the file need not be read."""
        trace = self.trace
        self.unread += batch.unread
        self.others |= dict.fromkeys(batch.others)
        low = min(max(trace.skip - self.read, 0), batch.rows)
        high = batch.rows if trace.first is None else min(trace.skip + trace.first - self.read, batch.rows)
        self.read += high
        if low:
            self.sieve.dropped["skip"] += low
        for said, rows in batch.notes.items():
            if n := sum(rows[low:high]):
                self.sieve.changed[said] += n
        columns = {name: column.slice(low, high - low) for name, column in batch.columns.items()}
        try:
            more = self._rows(columns, high - low)
        except (BadValueError, StepBackError) as why:
            hint = "; write seam: sort" if isinstance(why, StepBackError) else ""
            raise TraceError(f"{batch.where(low + why.row)}: {why}{hint}") from None
        if trace.first is not None and self.read == trace.skip + trace.first:
            self.stopped = "first"
        if self.kept > MOST_KEPT:
            raise TraceError(
                f"{self.source.name}: more than {MOST_KEPT:,} rows; allowed: {MOST_KEPT:,}; take a part of it "
                "with first, to or where"
            )
        return more and not self.stopped

    def _rows(self, columns: dict[str, pa.Array], rows: int) -> bool:
        times = self._times(columns, rows)
        keep = np.ones(len(times) if times is not None else rows, dtype=np.bool_)
        if len(keep) < rows:  # the file ends at its first seam
            self.read -= rows - len(keep)
            self.stopped = "seam"
            columns = {name: column.slice(0, len(keep)) for name, column in columns.items()}
        if times is not None:
            keep = self._between(times, keep)
        keep, length, output, kind = self.sieve.take(columns, keep)
        self.kept += int(keep.sum())
        if times is not None:
            self._parts["time"].append(times[keep])
        self._parts["length"].append(length[keep].astype(np.int32))
        self._parts["output"].append(output[keep].astype(np.int32))
        self._parts["kind"].append(kind[keep].astype(np.int16))
        return not self.timeline.ended

    def _between(self, times: Ints, keep: Mask) -> Mask:
        from_ns, to_ns = self.trace.from_ns, self.trace.to_ns
        if from_ns:
            keep = self.sieve.narrow(keep, times >= from_ns, "before from")
        if to_ns is not None:
            keep = self.sieve.narrow(keep, times < to_ns, "at or after to")
            if len(times) and times.min() >= to_ns and not self.timeline.late:
                self.stopped = "to"
        return keep

    def _times(self, columns: dict[str, pa.Array], rows: int) -> Ints | None:
        name, unit = self.layout.columns.time, self.layout.unit
        if name is None or unit is None or not rows:
            return np.empty(0, dtype=np.int64) if self._timed else None
        stamps = times_ns(columns[name], unit)
        there = stamps != NONE
        if self._timed is None:
            self._timed = bool(there.any())
        if there.all() == self._timed == there.any():
            return self.timeline.place(stamps) if self._timed else None
        row = int(np.argmax(there != self._timed))
        said = (
            "no time, but rows before it have one" if self._timed else "a time, but rows before it have none"
        )
        raise BadValueError(row, f"{name}: {said}; all rows need one, or none")

    def finish(self, how: str) -> TraceRows:
        """All rows in their order, due times and facts."""
        trace = self.trace
        arrays = {name: _joined(parts) for name, parts in self._parts.items()}
        if not self.kept:
            lost = ", ".join(f"{reason}: {n:,}" for reason, n in self.sieve.dropped.items() if n)
            raise TraceError(
                f"{self.source.name}: no row is left of {self.read:,} ({lost or 'none was read'})"
            )
        if self.unread:
            self.sieve.dropped["lines in another format"] += self.unread
        due_ns, span_ns, cut, cut_ns = None, 0, 0, 0
        if self._timed:
            if self.timeline.late:
                order = np.argsort(arrays["time"], kind="stable")
                arrays = {name: array[order] for name, array in arrays.items()}
            times = arrays.pop("time")
            span_ns = int(times[-1] - times[0])
            due_ns, cut, cut_ns = due(times, trace.max_gap_ns, trace.speed)
        elif asked := _about_time(trace):
            raise TraceError(f"{self.source.name}: has no times, so {' and '.join(asked)} cannot be applied")
        facts = facts_of(
            trace, self.layout, self.source, how, read=self.read + self.unread, kept=self.kept, stopped=self.stopped,
            sieve=self.sieve, timeline=self.timeline, trace_span_ns=span_ns, due_ns=due_ns,
            gaps_cut=cut, gaps_cut_ns=cut_ns, others=list(self.others),
        )  # fmt: skip
        return TraceRows(
            due_ns=due_ns,
            length=arrays["length"],
            output=arrays["output"],
            kind=arrays["kind"],
            kinds=trace.kind_names,
            facts=facts,
        )


def _joined(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """One array of many, which are let go: no two copies of more than one column at a time."""
    whole = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    parts.clear()
    return whole


def _about_time(trace: Trace) -> Sequence[str]:
    given = {
        "from": trace.from_ns != 0,
        "to": trace.to_ns is not None,
        "max_gap": trace.max_gap_ns is not None,
        "speed": trace.speed != 1,
    }
    return [key for key, is_given in given.items() if is_given]
