"""How capacity grows with the number of servers: Gunther's Universal Scalability Law, fitted to measured capacities.

X(N) = rate N / (1 + contention (N - 1) + coherency N (N - 1)) (N. J. Gunther, Guerrilla Capacity Planning, 2007,
chapter 4).  N / X(N) is linear in 1 / rate, contention / rate and coherency / rate, all of which are 0 or more, so
weighted non-negative least squares (scipy.optimize.nnls) finds the best fit at once, without first guesses.
Intervals are by parametric bootstrap: every capacity is drawn anew from its own interval and the fit repeated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from loadgen.records import LoadgenError

if TYPE_CHECKING:
    from collections.abc import Sequence

Floats = npt.NDArray[np.float64]
LEAST_COUNTS = 4  # three parameters, and one count to see whether they fit
DRAWS = 1000
LEVEL = 0.95
_NORMAL = 1.959964  # standard errors in half a 95 % interval
_MISFIT = 0.01  # of the chi-squared test
_MOST = 10_000_000  # servers; more is as good as never


@dataclass(frozen=True, slots=True)
class Point:
    """The capacity measured with `count` servers, with its 95 % interval."""

    count: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Parameter:
    """A fitted number with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Scaling:
    """The law and its parameters: `rate` of one server, `contention` (sigma) and `coherency` (kappa), both of 1.

    `best`: the number of servers beyond which more are slower; None where there is none (coherency 0).
    `p_value`: how often measurements of servers that follow the law lie as far from it; `fits`: whether that is 1 % or more.
    `draws`: rows of (rate, contention, coherency) of the bootstrap.
    """

    points: tuple[Point, ...]
    rate: Parameter
    contention: Parameter
    coherency: Parameter
    best: int | None
    p_value: float
    draws: Floats

    @property
    def fits(self) -> bool:
        return self.p_value >= _MISFIT

    @property
    def largest(self) -> int:
        """The largest count measured."""
        return max(point.count for point in self.points)


def throughput(count: npt.ArrayLike, law: Floats) -> Floats:
    """X(N) of the rows (rate, contention, coherency) of a law, in the rate's unit."""
    n = np.asarray(count, dtype=np.float64)
    law = np.atleast_2d(law)
    slowed: Floats = law[:, 0] * n / (1 + law[:, 1] * (n - 1) + law[:, 2] * n * (n - 1))
    return slowed


def fit(points: Sequence[Point], seed: int = 0) -> Scaling:
    """Fits the law to capacities of LEAST_COUNTS different counts or more.  Raises LoadgenError where there are fewer.

    Where the points lie further from the law than their intervals explain, the intervals are widened by as much.
    """
    from scipy.special import chdtrc

    if len({point.count for point in points}) < LEAST_COUNTS:
        raise LoadgenError(
            f"a fit takes capacities of {LEAST_COUNTS} different numbers of servers, not {len(points)}"
        )
    count = np.array([point.count for point in points], dtype=np.float64)
    value = np.array([point.value for point in points])
    error = np.maximum(np.array([(p.high - p.low) / (2 * _NORMAL) for p in points]), 1e-6 * value)
    law = _fit(count, value, error)
    residuals = (value - throughput(count, law)) / error
    chi2, freedom = float(np.square(residuals).sum()), len(points) - 3
    wider = math.sqrt(max(1.0, chi2 / freedom))
    rng = np.random.default_rng(seed)
    drawn = np.maximum(value + error * wider * rng.standard_normal((DRAWS, count.size)), value / 100)
    draws = np.array([_fit(count, one, error) for one in drawn])
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    rate, contention, coherency = (
        Parameter(float(v), min(float(a), float(v)), max(float(b), float(v)))
        for v, a, b in zip(law, low, high, strict=True)
    )
    return Scaling(
        tuple(points), rate, contention, coherency, _best(law), float(chdtrc(freedom, chi2)), draws
    )


def needed(load: float, draws: Floats) -> Floats:
    """The fewest servers whose capacity is at least `load`, by each row of a law; inf where no number is enough.

    X(N) >= load is coherency load N^2 + (load (contention - coherency) - rate) N + load (1 - contention) <= 0.
    """
    rate, contention, coherency = draws.T
    a, b, c = coherency * load, load * (contention - coherency) - rate, load * (1 - contention)
    root = np.sqrt(np.maximum(b * b - 4 * a * c, 0.0))
    possible = (b < 0) & (b * b >= 4 * a * c)
    smaller = np.divide(2 * c, -b + root, out=np.full(b.size, np.inf), where=possible)
    whole: Floats = np.maximum(1.0, np.ceil(smaller - 1e-9))
    larger = np.divide(-b + root, 2 * a, out=np.full(b.size, np.inf), where=a > 0)
    whole[(whole > larger + 1e-9) | (whole > _MOST)] = np.inf
    return whole


def _fit(count: Floats, value: Floats, error: Floats) -> Floats:
    """(rate, contention, coherency) by weighted non-negative least squares of N / X(N)."""
    from scipy.optimize import nnls

    y = count / value
    weight = value * value / (count * error)  # one over the standard error of N / X
    design = np.column_stack([np.ones_like(count), count - 1, count * (count - 1)]) * weight[:, None]
    solution, _ = nnls(design, y * weight)
    first = max(float(solution[0]), 1e-12)
    return np.array([1 / first, solution[1] / first, solution[2] / first])


def _best(law: Floats) -> int | None:
    """The whole number at which X(N) is largest, next to sqrt((1 - contention) / coherency)."""
    _, contention, coherency = law
    if coherency <= 0:
        return None
    peak = max(1.0, math.sqrt(max(0.0, 1 - contention) / coherency))
    near = [max(1, math.floor(peak)), math.ceil(peak)]
    return max(near, key=lambda n: float(throughput(n, law)[0]))
