"""Change points in a series of runs: where a figure's level shifted and stayed.

The largest two-sample t over all places at which a series can be parted (the likelihood ratio test of a change of the
mean when the variance is not known: K. J. Worsley, Journal of the American Statistical Association 74, 1979), its
p-value times the number of places (Bonferroni).

* The series is read in order of time, run by run, as somebody does who looks after each new one; a change begins a new
  series.  So a shift that was taken back later is found as well.  At the end each change is placed anew between its
  neighbours, and one that later runs took back the significance of is dropped.
* A run weighs by its own interval and by the spread between runs: 1 / (own variance + variance between runs).  The
  latter is what the differences of neighbouring runs have beyond their own intervals; a shift is in one of them only.
* The spread that a shift is held against is that of the runs about their two levels, and never less than their own
  intervals explain.
* A level is of two runs or more: one run that is off is an outlier, not a change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
ALPHA = 0.01  # of one look
LEAST = 5  # runs in a series; of fewer no change is found
_LEVEL = 2  # runs on each side of a change


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


def change_points(values: npt.ArrayLike, errors: npt.ArrayLike, alpha: float = ALPHA) -> list[ChangePoint]:
    """The change points of a series in order of time.

    `values`: one a run; `errors`: the standard error of each, of its own interval, 0 where it has none.
    """
    y, own = np.asarray(values, dtype=np.float64), np.square(np.asarray(errors, dtype=np.float64))
    begin, places = 0, []
    for end in range(LEAST, y.size + 1):
        one = _change(y[begin:end], own[begin:end])
        if one is not None and one.p_value <= alpha:
            begin += one.place
            places.append(begin)
    return _placed(y, own, places, alpha)


def _placed(y: Floats, own: Floats, places: list[int], alpha: float) -> list[ChangePoint]:
    """Each change where it is largest between its neighbours; without those that are not significant there."""
    while True:
        changes: list[ChangePoint] = []
        begin = 0
        for end in [*places[1:], y.size][: len(places)]:
            one = _change(y[begin:end], own[begin:end])
            if one is not None:
                begin += one.place
                changes.append(replace(one, place=begin))
        worst = max(changes, key=lambda one: one.p_value, default=None)
        sure = worst is None or worst.p_value <= alpha
        if sure and len(changes) == len(places):
            return changes
        places = [one.place for one in changes if sure or one is not worst]


def _change(y: Floats, own: Floats) -> ChangePoint | None:
    """The split of a series with the largest t; None where there is none."""
    from scipy.special import stdtr, stdtrit

    n = y.size
    if n < LEAST or np.ptp(y) == 0:
        return None
    variance = own + _between(y, own)
    if not variance.any():  # all the same but for one shift
        variance = np.ones(n)
    variance = np.maximum(variance, variance.max() * 1e-9)
    weight = 1 / variance
    y = y - float(y @ weight) / float(weight.sum())  # no digits are lost
    to = slice(_LEVEL - 1, n - _LEVEL)
    left, sums = np.cumsum(weight)[to], np.cumsum(y * weight)
    right, rest = weight.sum() - left, sums[-1] - sums[to]
    shift = rest / right - sums[to] / left
    squares = float(np.square(y) @ weight) - np.square(sums[to]) / left - np.square(rest) / right
    explained = float((own / variance).mean())  # by the runs' own intervals
    scale = np.maximum(squares / (n - 2), max(explained, 1e-12))
    error = np.sqrt(scale * (1 / left + 1 / right))
    best = int((np.abs(shift) / error).argmax())
    p_value = 2 * shift.size * float(stdtr(n - 2, -abs(shift[best]) / error[best]))
    half = float(stdtrit(n - 2, 0.975) * error[best])
    middle = float(shift[best])
    return ChangePoint(best + _LEVEL, min(1.0, p_value), middle, middle - half, middle + half)


def _between(y: Floats, own: Floats) -> float:
    """The variance between runs beyond their own, from differences of neighbours, without the largest difference."""
    squares = np.square(np.diff(y)) / 2
    expected = (own[1:] + own[:-1]) / 2
    keep = np.argsort(squares)[:-1]
    return max(0.0, float((squares[keep] - expected[keep]).mean()))
