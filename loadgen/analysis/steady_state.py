"""From when on a phase was in its steady state, by its service times and by its throughput.

The rule, of each of the two signals (docs/steady-state.md has the error rates by simulation):

1. One level or not: the CUSUM test for a change of the mean (Ploberger and Kraemer 1992; under one level the statistic
   is the largest distance of a Brownian bridge from 0).  Dependence is in its variance, which comes from the differences
   of adjacent means of GROUPS equal parts (von Neumann 1941), so that a trend does not hide itself.
2. If not, MSER-5 (White 1997) says how much of the beginning to cut: `warming_up` when that is at most half of the
   phase and the rest passes the test of 1.
3. Otherwise `drift` when the means of the parts have a trend (Mann-Kendall), else `never_settled`.

A difference of less than LEAST between the two sides of the change is `settled`, however significant.
Service times count as logarithms: levels compare as ratios, and a few slow requests are no level.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from scipy.stats import kendalltau

from loadgen.analysis.columns import Ints

Floats = npt.NDArray[np.float64]

GROUPS = 20
PARTS = 100
TRIMMED = 0.47
CRITICAL = 1.73
TREND = 0.01
LEAST = 0.1
BATCH, MOST_BATCHES = 5, 4000
FEWEST = 200
BINS, CYCLES = 100, 5


class State(StrEnum):
    SETTLED = "settled"
    WARMING_UP = "warming_up"
    DRIFT = "drift"
    NEVER_SETTLED = "never_settled"
    TOO_LITTLE_DATA = "too_little_data"
    NOT_CONSTANT = "not_constant"


@dataclass(frozen=True, slots=True)
class Level:
    """What one signal says; `kept` is the place of the first value of its steady part, None where there is none."""

    state: State
    kept: int | None = None


def level(values: Floats) -> Level:
    """Of values at equal distances, in units in which a difference of LEAST matters."""
    if values.size < 2 * GROUPS:
        return Level(State.TOO_LITTLE_DATA)
    cut = 0
    while cut <= values.size // 2:
        if _one_level(values[cut:]):
            return Level(State.WARMING_UP if cut else State.SETTLED, cut)
        more = mser(values[cut:])
        if not more:
            break
        cut += more
    means = _means(values, GROUPS)
    trend = kendalltau(np.arange(means.size), means).pvalue < TREND
    return Level(State.DRIFT if trend else State.NEVER_SETTLED)


def mser(values: Floats) -> int:
    """How many values MSER cuts off the beginning: where the variance of the rest over its size is least."""
    size = max(1, values.size // PARTS)
    means = _means(values, values.size // size)
    left = np.arange(means.size, 0, -1)
    centred = means - means.mean()
    sums, squares = (np.cumsum(one[::-1])[::-1] for one in (centred, centred**2))
    statistic = (squares - sums**2 / left) / left.astype(np.float64) ** 2
    at = int(np.argmin(statistic[: means.size * 9 // 10]))
    return at and values.size % size + at * size


def _means(values: Floats, parts: int) -> Floats:
    """Of so many equal parts; what does not divide is left out at the beginning."""
    size = values.size // parts
    return np.asarray(values[values.size - size * parts :].reshape(parts, size).mean(axis=1), np.float64)


def _one_level(values: Floats) -> bool:
    n = values.size
    variance = max(_variance(values, GROUPS), _variance(values, GROUPS // 2))
    walk = np.cumsum(values - values.mean())[:-1]
    at = int(np.abs(walk).argmax())
    if abs(values[: at + 1].mean() - values[at + 1 :].mean()) < LEAST:
        return True
    return bool(abs(walk[at]) <= CRITICAL * np.sqrt(variance * n))


def _variance(values: Floats, parts: int) -> float:
    """Of a value, dependence included (n times the variance of the mean of n)."""
    squares = np.sort(np.diff(_means(values, parts)) ** 2)[: round(0.8 * (parts - 1))]
    return values.size / parts * float(squares.mean()) / 2 / TRIMMED
