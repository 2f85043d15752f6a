"""Change points in a series of runs: where a figure's level shifted and stayed.

The largest two-sample t over all places at which a series can be parted (the likelihood ratio test of a change of the
mean when the variance is not known: K. J. Worsley, Journal of the American Statistical Association 74, 1979), then the
same for the runs before and after it (binary segmentation: A. J. Scott and M. Knott, Biometrics 30, 1974).

* A run weighs by its own interval and by the spread between runs: 1 / (own variance + variance between runs).  The
  latter is what the differences of neighbouring runs have beyond their own intervals; a shift is in one of them only.
* The spread that a shift is held against is that of the runs about their two levels, and never less than their own
  intervals explain.
* The p-value is the share of simulated series without a change, with the same weights, whose largest t is as large.
* A level is of two runs or more: one run that is off is an outlier, not a change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
ALPHA = 0.01  # false alarms in a series without a change; it is looked at after each new run
LEAST = 5  # runs in a series; of fewer none is found
_LEVEL = 2  # runs on each side of a change
_DRAWS = 4000  # series without a change
_SEED = 20_260_101


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """`place`: of the first run at the new level; `low` and `high`: the 95 % interval of `shift`, the new level less
    the old one; it holds if the place is right.
    """

    place: int
    p_value: float
    shift: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class _Split:
    place: int
    t: float
    shift: float
    error: float
    freedom: int


def change_points(values: npt.ArrayLike, errors: npt.ArrayLike, alpha: float = ALPHA) -> list[ChangePoint]:
    """The change points of a series in order of time.

    `values`: one a run; `errors`: the standard error of each, of its own interval, 0 where it has none.
    """
    y, own = np.asarray(values, dtype=np.float64), np.square(np.asarray(errors, dtype=np.float64))
    found: list[ChangePoint] = []
    parts = [(0, y.size)]
    while parts:
        begin, end = parts.pop()
        one = _change(y[begin:end], own[begin:end], alpha)
        if one is not None:
            found.append(ChangePoint(begin + one.place, one.p_value, one.shift, one.low, one.high))
            parts += [(begin, begin + one.place), (begin + one.place, end)]
    return sorted(found, key=lambda one: one.place)


def _change(y: Floats, own: Floats, alpha: float) -> ChangePoint | None:
    from scipy.special import stdtrit

    if y.size < LEAST or np.ptp(y) == 0:
        return None
    variance = own + _between(y, own)
    if not variance.any():  # all the same but for one shift
        variance = np.ones(y.size)
    variance = np.maximum(variance, variance.max() * 1e-9)
    least = float((own / variance).mean())
    split = _largest(y[None, :], variance, least)
    if split is None:
        return None
    null = _null(variance)
    p_value = (1 + int(np.count_nonzero(null >= split.t))) / (1 + null.size)
    if p_value > alpha:
        return None
    half = float(stdtrit(split.freedom, 0.975)) * split.error
    return ChangePoint(split.place, p_value, split.shift, split.shift - half, split.shift + half)


def _between(y: Floats, own: Floats) -> float:
    """The variance between runs beyond their own, from differences of neighbours, without the largest difference."""
    squares = np.square(np.diff(y)) / 2
    expected = (own[1:] + own[:-1]) / 2
    keep = np.argsort(squares)[:-1]
    return max(0.0, float((squares[keep] - expected[keep]).mean()))


def _largest(y: Floats, variance: Floats, least: float) -> _Split | None:
    """The split of a series (one row) with the largest t."""
    t, shift, error = _splits(y, variance, least)
    best = int(t[0].argmax())
    if not math.isfinite(t[0, best]) or t[0, best] <= 0:
        return None
    return _Split(best + _LEVEL, float(t[0, best]), float(shift[0, best]), float(error[0, best]), y.shape[1] - 2)


def _splits(y: Floats, variance: Floats, least: float) -> tuple[Floats, Floats, Floats]:
    """(|t|, shift, its standard error) of each row of series and each place from _LEVEL to n - _LEVEL."""
    n = y.shape[1]
    weight = 1 / variance
    y = y - (y @ weight / weight.sum())[:, None]  # about their mean: no digits are lost
    to = slice(_LEVEL - 1, n - _LEVEL)
    left, sums = np.cumsum(weight)[to], np.cumsum(y * weight, axis=1)
    right = weight.sum() - left
    shift = (sums[:, -1:] - sums[:, to]) / right - sums[:, to] / left
    squares = (np.square(y) @ weight)[:, None] - np.square(sums[:, to]) / left
    squares = squares - np.square(sums[:, -1:] - sums[:, to]) / right
    scale = np.maximum(squares / (n - 2), max(least, 1e-12))
    error = np.sqrt(scale * (1 / left + 1 / right))
    return np.abs(shift) / error, shift, error


def _null(variance: Floats) -> Floats:
    """The largest t of each of _DRAWS series without a change."""
    rng = np.random.default_rng(_SEED)
    y = rng.standard_normal((_DRAWS, variance.size)) * np.sqrt(variance)
    largest: Floats = _splits(y, variance, 0.0)[0].max(axis=1)
    return largest
