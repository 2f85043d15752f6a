"""The one percentile rule, and a histogram that keeps it in bounded memory.

A quantile here is the smallest recorded value such that at least that share of all values are <= it:
nearest rank, the value at rank ceil(q * n) of the sorted values (definition 1 in Hyndman and Fan, "Sample
Quantiles in Statistical Packages", The American Statistician 50(4), 1996; numpy's `inverted_cdf`).  It
never invents a value between two that were measured, so P99 is never above the maximum.  numpy's default
(`linear`) interpolates: of [1, 2] it calls 1.5 the median, which nobody waited.

`Histogram` is for what streams, is merged across machines or exported; every figure of a summary comes from
the values themselves (analysis.percentiles).  It wraps HdrHistogram, which drops values beyond its range in
silence and rounds ranks to the nearest instead of up; here both are mended.
"""

from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
from hdrh.histogram import HdrHistogram

HIGHEST_NS = 24 * 3600 * 10**9  # one day; anything above is counted in `over` and ranks last
_DIGITS = 3
_CHUNK = 1 << 17  # values looked at together: their temporaries stay in the processor's cache


def rank(q: float, n: int) -> int:
    """The 1-based rank of quantile `q` (0 to 1) among `n` sorted values: ceil(q * n), at least 1.

    Decimal, because in floats 0.07 * 100 is above 7 and would skip a rank.
    """
    if not 0 <= q <= 1:
        raise ValueError(f"quantile {q} is outside 0..1")
    if n < 1:
        raise ValueError("no values have no quantile")
    return max(1, int((Decimal(repr(float(q))) * n).to_integral_value(ROUND_CEILING)))


def nearest_rank(ordered: Sequence[Any] | npt.NDArray[Any], q: float) -> Any:
    """The quantile `q` of ascending values, one of them; raises ValueError when there are none."""
    return ordered[rank(q, len(ordered)) - 1]


class Histogram:
    """Counts of integers 0..24 h in ns at three significant digits; n, min, max and mean are exact.

    Not for several threads.  Merging is lossless: it equals the histogram of all values together.
    """

    def __init__(self) -> None:
        self._hdr = HdrHistogram(1, HIGHEST_NS, _DIGITS)
        self._sum = 0
        self.n = 0
        self.over = 0
        self.min: int | None = None
        self.max: int | None = None

    @property
    def mean(self) -> float | None:
        return None if self.n == 0 else self._sum / self.n

    def record(self, value: int, count: int = 1) -> None:
        """Raises ValueError on a negative value: no duration of a monotonic clock is one."""
        if value < 0:
            raise ValueError(f"a histogram of durations cannot hold {value}")
        if count < 1:
            raise ValueError(f"count must be at least 1, not {count}")
        if value > HIGHEST_NS or not self._hdr.record_value(value, count):
            self.over += count
        self._note(value, value, value * count, count)

    def record_many(self, values: Iterable[int] | npt.NDArray[np.int64]) -> None:
        """As `record` for each, in bounded memory: a chunk's buckets are counted together."""
        array = np.asarray(values if isinstance(values, np.ndarray) else list(values), dtype=np.int64)
        if array.size and int(array.min()) < 0:
            raise ValueError(f"a histogram of durations cannot hold {int(array.min())}")
        for start in range(0, array.size, _CHUNK):
            chunk = array[start : start + _CHUNK]
            low, high = int(chunk.min()), int(chunk.max())
            inside = chunk if high <= HIGHEST_NS else chunk[chunk <= HIGHEST_NS]
            self.over += int(chunk.size - inside.size)
            if inside.size:
                self._count(inside)
            self._note(low, high, _exact_sum(chunk), int(chunk.size))

    def _count(self, inside: npt.NDArray[np.int64]) -> None:
        """Adds to HdrHistogram's own counters, which it would do one value at a time."""
        counts = np.frombuffer(self._hdr.counts, dtype=np.int64)
        counts += np.bincount(self._bucket(inside), minlength=counts.size)
        self._hdr.total_count += int(inside.size)
        self._hdr.min_value = min(self._hdr.min_value, int(inside.min()))
        self._hdr.max_value = max(self._hdr.max_value, int(inside.max()))

    def merge(self, other: "Histogram") -> None:
        """Adds the other's counts to this one's."""
        if other.n == 0 or other.min is None or other.max is None:
            return
        self._hdr.add(other._hdr)  # noqa: SLF001 - the same class
        self.over += other.over
        self._note(other.min, other.max, other._sum, other.n)  # noqa: SLF001 - the same class

    def quantile(self, q: float) -> int | None:
        """The value at rank ceil(q * n), at most 0.1 % above the true one and never above `max`.

        Values over the range rank last and answer with the exact maximum.  None when empty.
        """
        return None if self.n == 0 else self.at(rank(q, self.n))

    def at(self, place: int) -> int:
        """The value at a rank, counted from 1, as `quantile` would give it.  Not of an empty one."""
        if self.min is None or self.max is None:
            raise ValueError("no values have no ranks")
        counts = np.frombuffer(self._hdr.counts, dtype=np.uint64)
        reached = np.cumsum(counts)
        if place > int(reached[-1]):
            return self.max
        index = int(np.searchsorted(reached, place))
        value = self._hdr.get_highest_equivalent_value(self._hdr.get_value_from_index(index))
        return max(self.min, min(self.max, int(value)))

    def _bucket(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The place of each value's bucket among HdrHistogram's counters.

        With h the bits of half its sub-buckets, a value of h + 1 + s bits is told to its highest h + 1: it
        falls into the s-th run of 2^h buckets.
        """
        half = int(self._hdr.sub_bucket_half_count_magnitude)
        # frexp's exponent is the bit length; exact, as 24 h in ns is far below 2**53
        length = np.frexp(values.astype(np.float64))[1].astype(np.int64)
        shift = np.maximum(length - half - 1, 0)
        return (shift << half) + (values >> shift)

    def _note(self, low: int, high: int, total: int, count: int) -> None:
        self.n += count
        self._sum += total
        self.min = low if self.min is None else min(self.min, low)
        self.max = high if self.max is None else max(self.max, high)


def _exact_sum(array: npt.NDArray[np.int64]) -> int:
    """Halves summed apart: a million values of a day each overflow 64 bits."""
    return (int((array >> 32).sum()) << 32) + int((array & 0xFFFFFFFF).sum())
