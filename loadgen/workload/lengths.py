"""Lengths from a law: drawn at random for a plan, or the law's own mid-quantiles for a look at it.

Both read the same inverse: a share of 1 in, the whole length below which that share of the law lies out.
It must not know tensors or models.
"""

import numpy as np
import numpy.typing as npt

from loadgen.traffic.lengths import Bin, Law, Lognormal, Normal, Uniform

_Ints = npt.NDArray[np.int64]
_Reals = npt.NDArray[np.float64]

_CHUNK = 2**18  # drawn at a time: temporaries that stay in the processor's cache


def draw_lengths(law: Law, rng: np.random.Generator, n: int) -> npt.NDArray[np.int32]:
    """`n` independent lengths; one uniform number is taken from `rng` for each (none for a fixed length)."""
    if isinstance(law, int):
        return np.full(n, law, dtype=np.int32)
    drawn = np.empty(n, dtype=np.int32)
    for start in range(0, n, _CHUNK):
        part = drawn[start : start + _CHUNK]
        part[:] = lengths_at(law, rng.random(len(part)))
    return drawn


def quantile_lengths(law: Law, n: int) -> _Ints:
    """`n` lengths, ascending: the quantiles (i + 0.5) / n of the law."""
    return lengths_at(law, (np.arange(n, dtype=np.float64) + 0.5) / n)


def lengths_at(law: Law, at: _Reals) -> _Ints:
    """The law's quantiles at these shares, each in [0, 1).

    A cut law is scaled up to fill what is left (not clamped): a whole number k stands for the stretch from
    k - 0.5 to k + 0.5, and min and max keep their whole stretches.
    """
    if isinstance(law, int):
        return np.full(len(at), law, dtype=np.int64)
    if isinstance(law, Uniform):
        return _within(at, law.min, law.max)
    if isinstance(law, Normal):
        return _cut(at, (law.min - 0.5, law.max + 0.5), law.mean, law.sd, law)
    if isinstance(law, Lognormal):
        ends = float(np.log(law.min - 0.5)), float(np.log(law.max + 0.5))
        return _cut(at, ends, float(np.log(law.median)), law.sigma, law)
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


def _within(at: _Reals, low: int | _Ints, high: int | _Ints) -> _Ints:
    """Quantiles of whole numbers that are equally likely."""
    whole: _Ints = np.minimum(low + (at * (high - low + 1)).astype(np.int64), high)
    return whole


def _cut(at: _Reals, ends: tuple[float, float], mean: float, sd: float, law: Normal | Lognormal) -> _Ints:
    from scipy.special import ndtr, ndtri  # here: a run without such a law starts without it

    below, above = ndtr((ends[0] - mean) / sd), ndtr((ends[1] - mean) / sd)
    values = np.clip(mean + sd * ndtri(below + at * (above - below)), *ends)
    if isinstance(law, Lognormal):
        values = np.exp(values)
    lengths: _Ints = np.clip(np.rint(values), law.min, law.max).astype(np.int64)
    return lengths


def _histogram(bars: tuple[Bin, ...], at: _Reals) -> _Ints:
    weights = np.array([bar.weight for bar in bars], dtype=np.float64)
    edges = np.concatenate([[0.0], np.cumsum(weights) / weights.sum()])
    edges[np.flatnonzero(weights)[-1] + 1 :] = 1.0
    which = np.searchsorted(edges[1:], at, side="right")
    low, high = np.array([bar.low for bar in bars]), np.array([bar.high for bar in bars])
    inside = (at - edges[which]) / np.maximum(edges[which + 1] - edges[which], 1e-300)
    return _within(np.clip(inside, 0.0, 1.0), low[which], high[which])
