"""Confidence intervals of the figures of a run whose requests depend on each other.

A queue that is long now is long a moment later, so the spread of a figure is taken from batches of successive
requests (batch means; Asmussen and Glynn, "Stochastic Simulation", chapter IV), never from single ones.

* The variance inflation of a share is the variance of its batch sums over what independent requests would have.  The
  number of batches is the largest of BATCHES whose batches are CLEAR times longer than the memory they show; with the
  fewest, neighbours' covariance is added, and a batch that is hardly longer than the memory widens the interval.
* A quantile is bounded by the order statistics at q -+ t sqrt(q (1 - q) inflation / n), Student's t: the share of
  requests above the true quantile is known beforehand, so this is a test of each value, not an interval of a share.
* A run that saw no long queue does not know that it missed one: few exceedances make their own inflation too small.
  That of a high quantile is drawn towards what the median and the quantile with ten times the exceedances show, by as
  much as its own is uncertain (its degrees of freedom, by Satterthwaite, from the fourth moment of the batch sums).
  What is expected of a tail, and the least number of effective exceedances, were chosen by simulation of queues.
* Where there are too few effective exceedances there is no interval, but a bound on one side and how much is missing.

`make calibration` measures how often the intervals hold the truth (docs/calibration.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loadgen.histogram import rank

if TYPE_CHECKING:
    from collections.abc import Sequence

Floats = npt.NDArray[np.float64]
ALPHA = 0.05  # of a two-sided interval
LEAST = 20  # values; of fewer no spread can be told
BATCHES = (80, 40, 20)
CLEAR = 30  # memories in a batch: then batches are as good as independent
CLOSE = 20  # fewer than this: the longer batches are asked too
WINDOWS = 1000  # of time, for a rate
LEAST_MEMORIES = 1.0  # in a batch
LEAST_EFFECTIVE, LEAST_EXPECTED = 4.0, 5.0  # exceedances: by their own inflation, by the one expected
LEAST_OF_MEAN = 40.0  # effective values
ENOUGH = 6.0  # of both: then there will probably be an interval
TAIL, SHOULDER, REFERENCE = (
    3.5,
    2.5,
    1.3,
)  # inflation - 1 of a tail over that of the median, of the reference level
_OWN = 120.0  # degrees of freedom, squared, at which a measured and an expected inflation weigh alike
_LENT = 4.0  # degrees of freedom that the expected one adds
_FLOOR = 0.8  # of an inflation: less would be taken for luck
_POOLED = 0.4  # level of the test whether runs differ by more than their batches do


class Method(StrEnum):
    """Where the spread of a figure was taken from."""

    BATCHES = "batch means"
    RUNS = "spread between runs"
    EXACT = "exact binomial"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its confidence interval.

    `low` and `high` are None where the data do not bound the figure on that side.  `effective_n`: so many independent
    requests would give the same spread.  `more`: how many times as much data as there is would probably bound it on
    both sides; None where it is bounded, or nobody can say.  Of quantiles, `most` is the largest value, and `stretches` how
    many independent stretches the run has by the dependence that its median shows.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    effective_n: float | None = None
    method: Method | None = None
    more: float | None = None
    most: float | None = None
    stretches: float | None = None

    @property
    def bounded(self) -> bool:
        return self.low is not None and self.high is not None


@dataclass(frozen=True, slots=True)
class _Spread:
    """`inflation`: variance over that of independent values; `memories`: how many times a batch is longer than that."""

    inflation: float
    freedom: float
    memories: float
    method: Method = Method.BATCHES


def quantile(parts: Sequence[npt.NDArray[Any]], q: float, alpha: float = ALPHA) -> Estimate:
    """The nearest-rank quantile `q`, between 0 and 1, of all values.

    Each part holds the values of one run or stretch in the order of their due times; what never succeeded is inf.
    """
    n = sum(part.size for part in parts)
    if n == 0:
        return Estimate(None, None, None, 0)
    ordered = np.sort(np.concatenate(list(parts)))
    value = float(ordered[rank(q, n) - 1])
    if n < LEAST:
        return Estimate(value, None, None, n, more=LEAST / n)
    p = min(q, 1 - q)

    def spread(level: float) -> _Spread:
        limit = ordered[rank(level, n) - 1]
        return _spread([part > limit for part in parts], level * (1 - level))

    own, middle = spread(q), spread(0.5)
    expected = _expected(q, middle, spread)
    inflation, freedom = _blended(own, expected)
    if own.method is Method.RUNS:
        inflation, freedom = own.inflation, own.freedom
    memories = min(own.memories, middle.memories) if q == 0.5 else middle.memories  # noqa: PLR2004 - the median
    short = max(
        LEAST_MEMORIES / memories,
        LEAST_EXPECTED * expected / (n * p),
        LEAST_EFFECTIVE * inflation / (n * p),
    )
    if short > 1:
        inflation = max(inflation, expected)
    half = _t(freedom, alpha) * math.sqrt(q * (1 - q) * inflation / n)
    below, above = math.floor(n * (q - half)), math.ceil(n * (q + half)) + 1  # ranks
    low = float(ordered[below - 1]) if below >= 1 else None
    high = float(ordered[above - 1]) if above <= n else None
    if short > 1:  # what is above or below was hardly seen
        low, high = (low, None) if q >= 0.5 else (None, high)  # noqa: PLR2004 - the median
    more = max(short, ENOUGH * inflation / (n * p), 1.2) if low is None or high is None else None
    return Estimate(
        value,
        low,
        high,
        n,
        n / inflation,
        own.method,
        more,
        float(ordered[-1]),
        n / max(middle.inflation, 1.0),
    )


def share(parts: Sequence[npt.NDArray[np.bool_]], alpha: float = ALPHA) -> Estimate:
    """The share of requests for which something holds; each part as for `quantile`.

    The interval is that of Clopper and Pearson (1934) for the effective number of requests.
    """
    from scipy.special import betaincinv, ndtr

    n = sum(part.size for part in parts)
    if n == 0:
        return Estimate(None, None, None, 0)
    count = sum(int(np.count_nonzero(part)) for part in parts)
    p, effective, tail, method = count / n, float(n), alpha / 2, Method.EXACT
    if 0 < count < n and n >= LEAST:
        spread = _spread(parts, p * (1 - p))
        effective, method = n / max(spread.inflation, 1.0), spread.method
        tail = float(ndtr(-_t(spread.freedom, alpha)))
    good, bad = p * effective, (1 - p) * effective
    low = 0.0 if count == 0 else float(betaincinv(good, bad + 1, tail))
    high = 1.0 if count == n else float(betaincinv(good + 1, bad, 1 - tail))
    return Estimate(p, low, high, n, effective, method)


def mean(parts: Sequence[npt.NDArray[Any]], alpha: float = ALPHA) -> Estimate:
    """The mean of all values; each part as for `quantile`."""
    return _mean(parts, alpha, of_tails=True)


def _mean(parts: Sequence[npt.NDArray[Any]], alpha: float, *, of_tails: bool) -> Estimate:
    """`of_tails`: the mean hangs on rare large values, as that of latencies does and a count's does not."""
    n = sum(part.size for part in parts)
    if n == 0:
        return Estimate(None, None, None, 0)
    value = sum(float(part.sum(dtype=np.float64)) for part in parts) / n
    if not math.isfinite(value):
        return Estimate(value, None, None, n)
    if n < LEAST:
        return Estimate(value, None, None, n, more=LEAST / n)
    variance = sum(float(np.square(part - value).sum()) for part in parts) / (n - 1)
    if variance == 0:
        return Estimate(value, value, value, n, float(n), Method.BATCHES)
    median = float(np.median(np.concatenate(list(parts))))
    own, middle = _spread(parts, variance), _spread([part > median for part in parts], 0.25)
    expected = 1 + SHOULDER * max(0.0, middle.inflation - 1)
    inflation, freedom = _blended(own, expected)
    if own.method is Method.RUNS:
        inflation, freedom = own.inflation, own.freedom
    short = LEAST_OF_MEAN * max(expected, inflation) / n
    if not of_tails:
        inflation, freedom, short = (
            max(own.inflation, 1e-6),
            own.freedom,
            LEAST_MEMORIES / max(own.memories, 1e-9),
        )
    if short > 1:
        return Estimate(value, None, None, n, n / inflation, own.method, 1.2 * short)
    half = _t(freedom, alpha) * math.sqrt(variance * inflation / n)
    return Estimate(value, value - half, value + half, n, n / inflation, own.method)


def rate(parts: Sequence[npt.NDArray[Any]], spans_ns: Sequence[int], alpha: float = ALPHA) -> Estimate:
    """Events per second: each part holds the moments of the events of one run in ns from its start, `spans_ns` how
    long each lasted.
    """
    return weighted_rate(parts, [np.ones(part.size) for part in parts], spans_ns, alpha)


def weighted_rate(
    parts: Sequence[npt.NDArray[Any]],
    weights: Sequence[npt.NDArray[Any]],
    spans_ns: Sequence[int],
    alpha: float = ALPHA,
) -> Estimate:
    """The same of events that count for `weights` each (items, tokens): the mean over short windows of time."""
    n, total = sum(part.size for part in parts), sum(spans_ns)
    if n == 0 or total <= 0:
        return Estimate(None, None, None, 0)
    windows = []
    for at, weight, span in zip(parts, weights, spans_ns, strict=True):
        pieces = max(1, round(min(WINDOWS, n) * span / total))
        sums, _ = np.histogram(np.clip(at, 0, span), np.linspace(0, span, pieces + 1), weights=weight)
        windows.append(sums * (1e9 * pieces / span))
    each = _mean(windows, alpha, of_tails=False)
    value = sum(float(weight.sum()) for weight in weights) * 1e9 / total
    if each.low is None or each.high is None or each.value is None:
        return Estimate(value, None, None, n, None, each.method, each.more)
    moved = value - each.value
    effective = each.effective_n and each.effective_n * n / each.n
    return Estimate(value, max(0.0, each.low + moved), each.high + moved, n, effective, each.method)


def difference(a: Estimate, b: Estimate) -> Estimate:
    """The difference b - a of two independent estimates with its interval (MOVER: Zou and Donner, Statistics in
    Medicine 27, 2008).
    """
    n = min(a.n, b.n)
    if a.value is None or b.value is None or not math.isfinite(a.value - b.value):
        return Estimate(None, None, None, n)
    value, method = b.value - a.value, b.method or a.method
    low = high = None
    if b.low is not None and a.high is not None:
        low = value - math.hypot(b.value - b.low, a.high - a.value)
    if b.high is not None and a.low is not None:
        high = value + math.hypot(b.high - b.value, a.value - a.low)
    more = max(a.more or 0.0, b.more or 0.0) or None
    effective = min(a.effective_n, b.effective_n) if a.effective_n and b.effective_n else None
    return Estimate(value, low, high, n, effective, method, more)


def ratio(a: Estimate, b: Estimate) -> Estimate:
    """The ratio b / a of two independent estimates that are not negative: the difference of their logarithms."""
    logs = difference(_log(a), _log(b))
    value, low, high = (
        None if x is None else math.exp(min(x, 700.0)) for x in (logs.value, logs.low, logs.high)
    )
    return Estimate(value, low, high, logs.n, logs.effective_n, logs.method, logs.more)


def _log(one: Estimate) -> Estimate:
    value, low, high = (
        math.log(x) if x is not None and x > 0 else None for x in (one.value, one.low, one.high)
    )
    return Estimate(value, low, high, one.n, one.effective_n, one.method, one.more)


def _t(freedom: float, alpha: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - alpha / 2))


def _expected(q: float, middle: _Spread, spread: Any) -> float:
    """The inflation that a quantile should have by what less extreme ones show."""
    p = min(q, 1 - q)
    if q <= 0.5:  # noqa: PLR2004 - the median; below it queues are short and forget
        return middle.inflation
    if p >= 0.05:  # noqa: PLR2004 - ten times the exceedances would be the median
        factor = 1 + (SHOULDER - 1) * min(1.0, (0.5 - p) / 0.4)
        return 1 + factor * max(0.0, middle.inflation - 1)
    of_middle = 1 + TAIL * max(0.0, middle.inflation - 1)
    of_reference = 1 + REFERENCE * max(0.0, spread(1 - 10 * p).inflation - 1)
    return float(of_middle**0.45 * of_reference**0.55)


def _blended(own: _Spread, expected: float) -> tuple[float, float]:
    """(inflation, degrees of freedom) of a measured inflation drawn towards the expected one."""
    weight = own.freedom**2 / (own.freedom**2 + _OWN)
    inflation = max(own.inflation, 1e-3) ** weight * expected ** (1 - weight)
    return max(inflation, _FLOOR), own.freedom + _LENT


def _spread(parts: Sequence[npt.NDArray[Any]], variance: float) -> _Spread:
    """How much wider the sum of all values spreads than that of independent ones of this variance."""
    n = sum(part.size for part in parts)
    for batches in BATCHES:
        if n < 5 * batches and batches != BATCHES[-1]:
            continue
        sums, neighbours = _batch_sums(parts, batches)
        count = sums.size
        square = float(np.square(sums).sum())
        inflation = square * count / max(1, count - 1) / (n * variance)
        fourth = float((sums**4).sum())
        freedom = min(count - 1.0, max(1.0, 2 * square * square / fourth)) if fourth else 1.0
        memories = n / count / max(inflation, 1e-9)
        if memories >= CLEAR:
            return _with_runs(parts, n * variance, _Spread(inflation, freedom, memories))
    inflation += 2 * max(0.0, neighbours) / (n * variance)
    freedom = min(freedom, max(1.0, 0.7 * (count - 1)))
    memories = n / count / max(inflation, 1e-9)
    if memories < CLOSE:
        for longer, lag in ((10, 2.0), (5, 0.0)):
            sums, neighbours = _batch_sums(parts, longer)
            square = float(np.square(sums).sum()) * sums.size / max(1, sums.size - 1)
            inflation = max(inflation, (square + lag * max(0.0, neighbours)) / (n * variance))
        freedom = min(freedom, 8.0)
        memories = n / count / max(inflation, 1e-9)
    widened = inflation * (1 + 1 / memories)
    return _with_runs(parts, n * variance, _Spread(widened, freedom, n / count / widened))


def _batch_sums(parts: Sequence[npt.NDArray[Any]], batches: int) -> tuple[Floats, float]:
    """(sums about the mean of all values, the sum of the products of neighbours) of about so many batches, none of
    which reaches over two parts.
    """
    n = sum(part.size for part in parts)
    middle = sum(float(part.sum(dtype=np.float64)) for part in parts) / n
    found, products = [], 0.0
    for part in parts:
        if part.size == 0:
            continue
        pieces = min(part.size, max(1, round(batches * part.size / n)))
        edges = np.linspace(0, part.size, pieces + 1).astype(np.int64)
        sums = np.add.reduceat(part, edges[:-1], dtype=np.float64) - middle * np.diff(edges)
        products += float((sums[1:] * sums[:-1]).sum())
        found.append(sums)
    return np.concatenate(found), products


def _with_runs(parts: Sequence[npt.NDArray[Any]], variance: float, within: _Spread) -> _Spread:
    """The spread between several runs, where it is more than their batches explain."""
    from scipy.special import fdtri

    runs = [part for part in parts if part.size]
    if len(runs) < 2:  # noqa: PLR2004 - one run has no spread between runs
        return within
    sums, _ = _batch_sums(runs, len(runs))
    between = float(np.square(sums).sum()) * sums.size / (sums.size - 1) / variance
    if between <= within.inflation * float(fdtri(sums.size - 1, within.freedom, 1 - _POOLED)):
        return within
    return _Spread(between, sums.size - 1.0, within.memories, Method.RUNS)
