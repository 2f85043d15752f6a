"""Confidence intervals of the figures of a run whose requests depend on each other.

A queue that is long now is long a moment later, so the spread of a figure is taken from batches of successive
requests (batch means; Asmussen and Glynn, "Stochastic Simulation", chapter IV), never from single ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from loadgen.histogram import rank

if TYPE_CHECKING:
    from collections.abc import Sequence

Floats = npt.NDArray[np.float64]
ALPHA = 0.05  # of a two-sided interval
BATCHES = 20
LEAST_EFFECTIVE = 3.0


class Method(StrEnum):
    """Where the spread of a figure was taken from."""

    BATCHES = "batch means"
    RUNS = "spread between runs"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its confidence interval.

    `low` and `high` may be infinite: the data bound the figure on one side only; both are None where they say nothing.
    `effective_n`: so many independent requests would give the same spread.  `more`: how many times as much data as
    there is would probably bound it on both sides; None where it is bounded, or nobody can say.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    effective_n: float | None = None
    method: Method | None = None
    more: float | None = None


def quantile(parts: Sequence[npt.NDArray[np.generic]], q: float, alpha: float = ALPHA) -> Estimate:
    """The nearest-rank quantile `q` (0 to 1, neither) of all values.

    Each part holds the values of one stretch of one phase in the order of their due times; what never succeeded is inf.
    """
    values = np.concatenate([np.asarray(part, np.float64) for part in parts]) if parts else np.zeros(0)
    if values.size == 0:
        return Estimate(None, None, None, 0)
    ordered = np.sort(values)
    value = float(ordered[rank(q, values.size) - 1])
    above = share([np.asarray(part, np.float64) > value for part in parts], alpha)
    effective = above.effective_n or 0.0
    low_share, high_share = _wilson(1 - q, effective, BATCHES - 1, alpha)
    n, few = values.size, effective * min(q, 1 - q) < LEAST_EFFECTIVE
    low = float(ordered[max(0, math.floor(n * (1 - high_share)) - 1)])
    high = math.inf if few else float(ordered[min(n - 1, math.ceil(n * (1 - low_share)))])
    return Estimate(value, low, high, n, effective, Method.BATCHES, 2.0 if few else None)


def share(parts: Sequence[npt.NDArray[np.bool_]], alpha: float = ALPHA) -> Estimate:
    """The share of requests for which something holds; each part as for `quantile`."""
    n = sum(part.size for part in parts)
    if n == 0:
        return Estimate(None, None, None, 0)
    sums, sizes = _batches(parts)
    p = float(sums.sum() / n)
    spread = float(np.square(sums - p * sizes).sum()) * sums.size / max(1, sums.size - 1)
    inflation = max(1.0, spread / (n * p * (1 - p))) if 0 < p < 1 else 1.0
    low, high = _wilson(p, n / inflation, max(1, sums.size - 1), alpha)
    return Estimate(p, low, high, n, n / inflation, Method.BATCHES)


def mean(parts: Sequence[npt.NDArray[np.generic]], alpha: float = ALPHA) -> Estimate:
    """The mean of all values; each part as for `quantile`."""
    from scipy.special import stdtrit

    n = sum(part.size for part in parts)
    if n == 0:
        return Estimate(None, None, None, 0)
    sums, sizes = _batches(parts)
    value = float(sums.sum() / n)
    if sums.size < 2 or not math.isfinite(value):  # noqa: PLR2004 - one batch has no spread
        return Estimate(value, None, None, n)
    spread = float(np.square(sums - value * sizes).sum()) * sums.size / (sums.size - 1)
    half = float(stdtrit(sums.size - 1, 1 - alpha / 2)) * math.sqrt(spread) / n
    return Estimate(value, value - half, value + half, n, None, Method.BATCHES)


def rate(parts: Sequence[npt.NDArray[np.float64]], spans_ns: Sequence[int], alpha: float = ALPHA) -> Estimate:
    """Events per second: each part holds the moments of the events of one stretch in ns from its start, and
    `spans_ns` how long each lasted; weights other than one come as `weighted_rate`.
    """
    return weighted_rate(parts, [np.ones(part.size) for part in parts], spans_ns, alpha)


def weighted_rate(
    parts: Sequence[npt.NDArray[np.float64]],
    weights: Sequence[Floats],
    spans_ns: Sequence[int],
    alpha: float = ALPHA,
) -> Estimate:
    """The same of events that count for `weights` each: items, tokens."""
    windows, total = [], sum(spans_ns)
    for at, weight, span in zip(parts, weights, spans_ns, strict=True):
        pieces = max(1, round(BATCHES * span / total)) if total else 1
        edges = np.linspace(0, span, pieces + 1)
        sums, _ = np.histogram(np.clip(at, 0, span), edges, weights=weight)
        windows += (sums / (span / pieces)).tolist()
    if not windows or total <= 0:
        return Estimate(None, None, None, 0)
    found = mean([np.array([each * 1e9]) for each in windows], alpha)
    return Estimate(found.value, found.low, found.high, sum(p.size for p in parts), None, Method.BATCHES)


def difference(a: Estimate, b: Estimate) -> Estimate:
    """The difference b - a of two independent estimates with its interval (MOVER: Zou and Donner, Statistics in Medicine 27, 2008)."""
    if a.value is None or b.value is None:
        return Estimate(None, None, None, min(a.n, b.n))
    value = b.value - a.value
    if None in (a.low, a.high, b.low, b.high):
        return Estimate(value, None, None, min(a.n, b.n))
    low = value - math.hypot(b.value - b.low, a.high - a.value)  # type: ignore[operator]
    high = value + math.hypot(b.high - b.value, a.value - a.low)  # type: ignore[operator]
    return Estimate(value, low, high, min(a.n, b.n), None, b.method)


def ratio(a: Estimate, b: Estimate) -> Estimate:
    """The ratio b / a of two independent positive estimates with its interval: the difference of their logarithms."""
    found = difference(_log(a), _log(b))
    return Estimate(_exp(found.value), _exp(found.low), _exp(found.high), found.n, None, found.method)


def _log(one: Estimate) -> Estimate:
    def log(x: float | None) -> float | None:
        return None if x is None else math.log(x) if x > 0 else -math.inf

    value = log(one.value)
    value = value if value is not None and math.isfinite(value) else None
    return Estimate(value, log(one.low), log(one.high), one.n, one.effective_n, one.method, one.more)


def _exp(x: float | None) -> float | None:
    return None if x is None else math.exp(min(x, 700.0)) if x != math.inf else math.inf


def _batches(parts: Sequence[npt.NDArray[np.generic]]) -> tuple[Floats, Floats]:
    """(sums, sizes) of batches of successive values, none across two parts, about BATCHES in all."""
    n = sum(part.size for part in parts)
    sums, sizes = [], []
    for part in parts:
        if part.size == 0:
            continue
        pieces = min(part.size, max(1, round(BATCHES * part.size / n)))
        edges = np.linspace(0, part.size, pieces + 1).astype(np.int64)
        sums.append(np.add.reduceat(part.astype(np.float64), edges[:-1]))
        sizes.append(np.diff(edges).astype(np.float64))
    return np.concatenate(sums), np.concatenate(sizes)


def _wilson(p: float, n: float, freedom: int, alpha: float) -> tuple[float, float]:
    """Wilson's interval of a share with Student's t."""
    from scipy.special import stdtrit

    t = float(stdtrit(freedom, 1 - alpha / 2))
    middle = (p + t * t / (2 * n)) / (1 + t * t / n)
    half = t / (1 + t * t / n) * math.sqrt(p * (1 - p) / n + t * t / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)
