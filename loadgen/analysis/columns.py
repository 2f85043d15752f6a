"""The records of a run as numpy columns: in memory once, in order of their phase, and no row an object.

Ten million rows take 510 MB here.  Everything that is computed from them is computed from whole columns, and
their copies are what costs: see loadgen.analysis.frame.  This module must not know what the columns mean.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.analysis.streams import NEVER, Ints, Small, StreamColumns, read_streams
from loadgen.records import Outcome
from loadgen.runread import Run

__all__ = ["NEVER", "Columns", "Ints", "Small", "columns_of"]

_TYPES: dict[str, type[np.signedinteger[Any]]] = {
    "seq": np.int64, "phase": np.int16, "kind": np.int16, "due_ns": np.int64, "sent_ns": np.int64, "done_ns": np.int64,
    "length": np.int32, "items": np.int32, "outcome": np.int8, "status": np.int32, "detail": np.int32,
}  # fmt: skip
_OLDER_PLANNED_CANCEL = "cancelled as the profile asks"


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of equal length, each as narrow as its values.

    `seq` is a request's place in its phase, `phase` and `kind` index run.json's lists, `outcome` holds the numbers of records.Outcome, `detail`
    indexes `texts`.  Rows ascend by phase, and are within it as they were recorded.
    `streams` holds what came in pieces, when anything did.
    """

    seq: Small
    phase: Small
    kind: Small
    due_ns: Ints
    sent_ns: Ints
    done_ns: Ints
    length: Small
    items: Small
    outcome: Small
    status: Small
    detail: Small
    texts: tuple[str, ...] = ()
    streams: StreamColumns | None = None

    def of_phases(self, first: int, last: int) -> "Columns":
        """The rows of phases first..last, sharing their memory with these columns."""
        start, stop = np.searchsorted(self.phase, np.array([first, last + 1], self.phase.dtype)).tolist()
        found: dict[str, Any] = {name: getattr(self, name)[start:stop] for name in _TYPES}
        streams = self.streams and self.streams.part(start, stop)
        return Columns(**found, texts=self.texts, streams=streams)


def columns_of(run: Run) -> Columns:
    """Filled batch by batch; null times and lengths become NEVER, rows of an unlisted phase are left out."""
    listed = {
        "phase": {phase["name"]: place for place, phase in enumerate(run.info.get("phases", []))},
        "kind": {kind["name"]: place for place, kind in enumerate(run.info.get("kinds", []))},
        "outcome": {outcome.name.lower(): int(outcome) for outcome in Outcome},
    }
    otherwise = {"phase": NEVER, "kind": NEVER, "outcome": int(Outcome.CLIENT)}
    texts: dict[str, int] = {}
    filling = {name: _Filling(run.rows, dtype) for name, dtype in _TYPES.items()}
    has_streams = run.has_streams
    for batch in run.batches():
        for name, column in filling.items():
            if name == "seq" and not has_streams:  # only what came in pieces is looked up by it
                continue
            values = batch.column(name)
            part: Ints | int
            if name in listed:
                part = _places(values, listed[name], otherwise[name])
            elif name == "detail":
                part = _detail(values, texts)
            else:
                part = _filled(values)
            column.take(part, len(batch))
    found: dict[str, Any] = {name: column.whole() for name, column in filling.items()}
    _name_planned_cancels(found, texts)
    _sort(found)
    columns = Columns(**found, texts=tuple(texts)).of_phases(0, np.iinfo(np.int16).max - 1)
    ok = np.asarray(columns.outcome == int(Outcome.OK), np.bool_)
    streams = read_streams(
        run.stream_batches(), listed["phase"], columns.phase, columns.kind, columns.seq, ok
    )
    return replace(columns, streams=streams)


class _Filling:
    """A column as it is read: one number as long as all rows have the same, which most columns of most runs do."""

    def __init__(self, rows: int, dtype: Any) -> None:
        self._rows, self._dtype, self._at = rows, dtype, 0
        self._same: int | None = None
        self._array: npt.NDArray[Any] | None = None

    def take(self, part: Ints | int, n: int) -> None:
        """The next `n` rows."""
        if self._array is None:
            first = int(part if isinstance(part, int) else part[0]) if n else self._same
            same = first if self._same is None else self._same
            if n and (first != same or not np.all(part == same)):
                self._array = np.empty(self._rows, self._dtype)
                self._array[: self._at] = self._same or 0
            else:
                self._same = same
        if self._array is not None:
            self._array[self._at : self._at + n] = part
        self._at += n

    def whole(self) -> npt.NDArray[Any]:
        """All rows; read-only and without memory of its own where they are the same."""
        if self._array is not None:
            return self._array
        return np.broadcast_to(np.array(self._same or 0, self._dtype), self._rows)


def _places(coded: Any, places: dict[str, int], otherwise: int) -> Ints:
    """A dictionary column's codes turned into our numbers, without a string a row."""
    numbers = [places.get(text, otherwise) for text in coded.dictionary.to_pylist()]
    found: Ints = np.array([*numbers, otherwise], dtype=np.int64)[_filled(coded.indices, len(numbers))]
    return found


def _filled(values: Any, null: int = NEVER) -> Ints:
    """Whole numbers with `null` where there are none.

    By hand: Arrow's own fill_null imports all its compute functions, 50 ms of each run's report.
    """
    bits, data = values.buffers()
    part = slice(values.offset, values.offset + len(values))
    found = np.frombuffer(data, values.type.to_pandas_dtype())[part]
    if values.null_count:
        valid = np.unpackbits(np.frombuffer(bits, np.uint8), count=part.stop, bitorder="little")[part]
        found = np.where(valid, found, found.dtype.type(null))
    return found


def _detail(column: Any, texts: dict[str, int]) -> Ints | int:
    """Places in `texts`, which grows by those seen for the first time; most batches have none."""
    if column.null_count == len(column):
        return NEVER
    coded = column.dictionary_encode()
    places = {text: texts.setdefault(text, len(texts)) for text in coded.dictionary.to_pylist()}
    return _places(coded, places, NEVER)


def _name_planned_cancels(found: dict[str, Small], texts: dict[str, int]) -> None:
    """Reads older run folders, in which only the text of a cancelled request told that the profile had asked for it."""
    planned = [place for text, place in texts.items() if text.startswith(_OLDER_PLANNED_CANCEL)]
    if planned:
        outcome = found["outcome"]
        theirs = (outcome == Outcome.CANCELLED) & np.isin(found["detail"], planned)
        found["outcome"] = np.where(theirs, outcome.dtype.type(Outcome.PLANNED_CANCEL), outcome)


def _sort(found: dict[str, Small]) -> None:
    """By phase.  One sender's records are in that order already, several senders' are not."""
    if (np.diff(found["phase"]) < 0).any():
        order = np.argsort(found["phase"], kind="stable")
        for name, column in found.items():
            if any(column.strides):
                found[name] = column[order]  # one at a time: only one column is in memory twice
