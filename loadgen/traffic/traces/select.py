"""Which rows of a batch are replayed, as what kind and with which lengths; everything left out is counted.

It must not know times or files.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from loadgen.traffic.trace import Condition, KindsOf, Trace
from loadgen.traffic.traces.columns import BadValueError, Ints, lengths, numbers, texts

MOST_TOKENS = 10**7
Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Sieve:
    """Filters batches of one trace; `dropped` and `changed` count rows by reason."""

    trace: Trace
    input: str | None
    output: str | None
    must_have_lengths: bool
    dropped: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)

    def take(self, columns: Mapping[str, pa.Array], keep: Mask) -> tuple[Mask, Ints, Ints, Ints]:
        """Narrows `keep`; input, output and kind (index, -1 for any) of every row.  Raises BadValueError."""
        for name, condition in self.trace.where.items():
            keep = self.narrow(keep, holds(columns[name], condition), f"where {name}")
        tokens = {
            key: lengths(columns[name], key) if name else np.full(len(keep), -1)
            for key, name in (("input", self.input), ("output", self.output))
        }
        if self.must_have_lengths:
            empty = (tokens["input"] < 0) & (tokens["output"] < 0)
            keep = self.narrow(keep, ~empty, "no exchange")
        zero = (tokens["input"] == 0) | (tokens["output"] == 0)
        if self.trace.zero == "drop":
            keep = self.narrow(keep, ~zero, "0 tokens")
        kind = np.full(len(keep), 0 if self.trace.kind else -1)
        if self.trace.kinds is not None:
            kind = self._kinds(columns[self.trace.kinds.column], self.trace.kinds, keep)
            keep = self.narrow(keep, kind >= 0, f"other {self.trace.kinds.column}")
        if self.trace.zero != "drop" and (n := int((zero & keep).sum())):
            self.changed[f"0 tokens: {'sent as 1' if self.trace.zero == 'one' else 'length left unset'}"] += n
        return (
            keep,
            self._length("input", tokens["input"], keep),
            self._length("output", tokens["output"], keep),
            kind,
        )

    def narrow(self, keep: Mask, passes: Mask, reason: str) -> Mask:
        """What passes of what was kept; the rest is counted."""
        if lost := int((keep & ~passes).sum()):
            self.dropped[reason] += lost
        return keep & passes

    def _kinds(self, column: pa.Array, kinds: KindsOf, keep: Mask) -> Ints:
        names = self.trace.kind_names
        of_value = np.array([names.index(name) for name in kinds.map.values()] + [-1])
        found = pc.index_in(texts(column), value_set=pa.array(list(kinds.map), pa.string()))
        index: Ints = of_value[pc.fill_null(found, -1).to_numpy(zero_copy_only=False)]
        if kinds.other == "refuse" and ((index < 0) & keep).any():
            row = int(np.flatnonzero((index < 0) & keep)[0])
            said = f"{kinds.column} is {column[row].as_py()!r}, which kinds.map does not have"
            raise BadValueError(row, f"{said}; add it, or write other: drop")
        return index

    def _length(self, key: str, tokens: Ints, keep: Mask) -> Ints:
        factor, limit = getattr(self.trace.scale, key), getattr(self.trace.clamp, key)
        tokens = np.where(tokens == 0, 1 if self.trace.zero == "one" else -1, tokens)
        if factor != 1:
            tokens = np.where(tokens > 0, np.maximum(np.rint(tokens * factor), 1), -1).astype(np.int64)
        if limit is not None:
            if n := int(((tokens > limit) & keep).sum()):
                self.changed[f"{key} cut to {limit:,}"] += n
            tokens = np.minimum(tokens, limit)
        beyond = keep & (tokens > MOST_TOKENS)
        if beyond.any():
            row = int(np.flatnonzero(beyond)[0])
            said = f"{key} of {tokens[row]:,} tokens; allowed: {MOST_TOKENS:,} at most, or a clamp"
            raise BadValueError(row, said)
        if n := int(((tokens < 0) & keep).sum()):
            self.changed[f"{key} not in the trace"] += n
        return tokens


def holds(column: pa.Array, condition: Condition) -> Mask:
    """Where a column meets a condition; an empty cell meets none.  Raises BadValueError."""
    passes = np.zeros(len(column), dtype=np.bool_)
    if condition.any_of is None:
        values, there = numbers(column)
        if condition.min is not None:
            there &= values >= condition.min
        return there if condition.max is None else there & (values <= condition.max)
    asked = [
        value for value in condition.any_of if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    words = [str(value).lower() if isinstance(value, bool) else value for value in condition.any_of]
    words = [value for value in words if isinstance(value, str)]
    if words:
        found = pc.is_in(texts(column), value_set=pa.array(words, pa.string()))
        passes |= np.asarray(found, dtype=np.bool_)
    if asked:
        values, there = (_loose(column), passes | True) if words else numbers(column)
        for value in asked:
            passes |= there & (values == value)
    return passes


def _loose(column: pa.Array) -> npt.NDArray[np.float64]:
    """Numbers where there are any: a list that names words too is about text and numbers alike."""
    values = np.full(len(column), np.nan)
    for row, text in enumerate(texts(column).to_pylist()):
        try:
            values[row] = float(text)
        except (TypeError, ValueError):
            continue
    return values
