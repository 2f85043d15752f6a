"""Distributions of durations: one rule for every percentile the project prints.

The rule is nearest rank (see loadgen.histogram).  Under EXACT_BELOW values it is applied to the sorted values
themselves and is exact; from there on to an HdrHistogram, where a percentile is at most 0.1 % too high
while n, mean and max stay exact.  Which of the two was used follows from n alone.  This module must not
know what the durations are durations of.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loadgen.histogram import Histogram, rank

if TYPE_CHECKING:
    from collections.abc import Iterable

EXACT_BELOW = 100_000
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}

Ints = npt.NDArray[np.int64]


def quantile(values: Ints, q: float) -> int | None:
    """The smallest value such that at least a share `q` of all values are <= it; None when there are none."""
    if values.size == 0:
        return None
    if values.size < EXACT_BELOW:
        at = rank(q, values.size) - 1
        return int(np.partition(values, at)[at])
    return histogram(values).quantile(q)


def distribution(values: Ints) -> dict[str, Any]:
    """n, mean, p50 to p999 and max, as ints; all but n are None when there are no values."""
    n = int(values.size)
    if n == 0:
        return {"n": 0, "mean": None, **dict.fromkeys(QUANTILES), "max": None}
    if n < EXACT_BELOW:
        ordered = np.sort(values)
        points = {name: int(ordered[rank(q, n) - 1]) for name, q in QUANTILES.items()}
        mean = float(np.mean(values, dtype=np.float64))
    else:
        binned = histogram(values)
        points = {name: int(binned.quantile(q) or 0) for name, q in QUANTILES.items()}
        mean = binned.mean or 0.0
    return {"n": n, "mean": round(mean), **points, "max": int(values.max())}


def histogram(values: Ints) -> Histogram:
    """Of many values: they are counted, not copied nor sorted."""
    binned = Histogram()
    binned.record_many(values)
    return binned


class Tally:
    """Values that come in parts, too many to keep: under EXACT_BELOW they are kept, then only counted."""

    __slots__ = ("_binned", "_kept", "_ordered", "_squares", "_sum", "size")

    def __init__(self) -> None:
        self.size = 0
        self._kept: list[Ints] = []
        self._binned: Histogram | None = None
        self._ordered: Ints | None = None
        self._sum = self._squares = 0.0

    def add(self, values: Ints) -> None:
        """Durations in ns, none negative."""
        if values.size == 0:
            return
        floats = values.astype(np.float64)
        self._sum, self._squares = self._sum + float(floats.sum()), self._squares + float(floats @ floats)
        self.size += int(values.size)
        self._ordered = None
        if self._binned is None and self.size < EXACT_BELOW:
            self._kept.append(values)
            return
        if self._binned is None:
            self._binned = Histogram()
            for part in self._kept:
                self._binned.record_many(part)
            self._kept = []
        self._binned.record_many(values)

    @staticmethod
    def merged(tallies: Iterable[Tally]) -> Tally:
        """All values together."""
        whole = Tally()
        for one in tallies:
            if one._binned is None:  # noqa: SLF001 - the same class
                for part in one._kept:  # noqa: SLF001
                    whole.add(part)
                continue
            binned = Histogram()
            binned.merge(one._binned)  # noqa: SLF001
            if whole._binned is not None:
                binned.merge(whole._binned)
            for part in whole._kept:
                binned.record_many(part)
            whole._binned, whole._kept, whole._ordered = binned, [], None
            whole.size += one.size
            whole._sum, whole._squares = whole._sum + one._sum, whole._squares + one._squares  # noqa: SLF001
        return whole

    def at(self, place: int) -> int:
        """The value at a rank, counted from 1."""
        if self._binned is not None:
            return self._binned.at(place)
        if self._ordered is None:
            self._ordered = np.sort(np.concatenate(self._kept))
        return int(self._ordered[place - 1])

    @property
    def mean(self) -> float | None:
        return self._sum / self.size if self.size else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the sample."""
        if self.size < 2:  # noqa: PLR2004 - one value has none
            return None
        return math.sqrt(max(0.0, (self._squares - self._sum**2 / self.size) / (self.size - 1)))

    def distribution(self) -> dict[str, Any]:
        """As `distribution` of all values."""
        n, mean = self.size, self.mean
        if mean is None:
            return distribution(np.zeros(0, np.int64))
        points = {name: self.at(rank(q, n)) for name, q in QUANTILES.items()}
        return {"n": n, "mean": round(mean), **points, "max": self.at(n)}
