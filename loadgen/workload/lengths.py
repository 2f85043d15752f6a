"""Lengths from a law: the law's own mid-quantiles, so that a small pool carries it nearly exactly.

It must not know tensors, models or randomness.
"""

from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from loadgen.traffic.lengths import Bin, Law, Lognormal, Normal, Uniform

_Ints = npt.NDArray[np.int64]
_Reals = npt.NDArray[np.float64]


def quantile_lengths(law: Law, n: int) -> _Ints:
    """`n` lengths, ascending: the quantiles (i + 0.5) / n of the law.

    A cut law is scaled up to fill what is left (not clamped): a whole number k stands for the stretch from
    k - 0.5 to k + 0.5, and min and max keep their whole stretches.
    """
    at = (np.arange(n, dtype=np.float64) + 0.5) / n
    if isinstance(law, int):
        return np.full(n, law, dtype=np.int64)
    if isinstance(law, Uniform):
        return _within(at, law.min, law.max)
    if isinstance(law, Normal):
        return _cut(NormalDist(law.mean, law.sd), at, law.min - 0.5, law.max + 0.5, law)
    if isinstance(law, Lognormal):
        low, high = float(np.log(law.min - 0.5)), float(np.log(law.max + 0.5))
        return _cut(NormalDist(float(np.log(law.median)), law.sigma), at, low, high, law)
    return _histogram(law, at)


def min_length(law: Law) -> int:
    """The shortest length that the law can give."""
    if isinstance(law, tuple):
        return min(bar.low for bar in law if bar.weight)
    return law if isinstance(law, int) else law.min


def max_length(law: Law) -> int:
    """The longest length that the law can give."""
    if isinstance(law, tuple):
        return max(bar.high for bar in law if bar.weight)
    return law if isinstance(law, int) else law.max


def _within(at: _Reals, low: int, high: int) -> _Ints:
    """Quantiles of whole numbers that are equally likely."""
    whole: _Ints = np.minimum(low + np.floor(at * (high - low + 1)).astype(np.int64), high)
    return whole


def _cut(normal: NormalDist, at: _Reals, low: float, high: float, law: Normal | Lognormal) -> _Ints:
    below, above = normal.cdf(low), normal.cdf(high)
    values = np.array([normal.inv_cdf(below + share * (above - below)) for share in at])
    if isinstance(law, Lognormal):
        values = np.exp(values)
    lengths: _Ints = np.clip(np.rint(values), law.min, law.max).astype(np.int64)
    return lengths


def _histogram(bars: tuple[Bin, ...], at: _Reals) -> _Ints:
    weights = np.array([bar.weight for bar in bars], dtype=np.float64)
    edges = np.concatenate([[0.0], np.cumsum(weights) / weights.sum()])
    edges[np.flatnonzero(weights)[-1] + 1 :] = 1.0
    which = np.searchsorted(edges[1:], at, side="right")
    lengths = np.empty(len(at), dtype=np.int64)
    for index, bar in enumerate(bars):
        mine = which == index
        inside = (at[mine] - edges[index]) / max(edges[index + 1] - edges[index], 1e-300)
        lengths[mine] = _within(np.clip(inside, 0.0, 1.0), bar.low, bar.high)
    return lengths
