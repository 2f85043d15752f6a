"""How many replicas carry a forecast, and what they cost, with the uncertainty of the measured capacity.

One capacity is taken times the number of replicas; several, at different instance counts, are fitted by the Universal
Scalability Law (Gunther, "Guerrilla Capacity Planning", 2007): X(N) = lambda N / (1 + sigma (N - 1) + kappa N (N - 1)),
sigma for what is serial, kappa for what replicas have to agree on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from loadgen.histogram import rank
from loadgen.records import LoadgenError

if TYPE_CHECKING:
    from collections.abc import Sequence

Floats = npt.NDArray[np.float64]
MOST_REPLICAS = 100_000
LEAST_COUNTS = 3  # instance counts for a fit of three parameters
DRAWS, SEED = 1000, 20261201
_95 = 1.96


@dataclass(frozen=True, slots=True)
class Measured:
    """A capacity in requests/s with its 95 % interval (an end that is not known None), at so many instances."""

    value: float
    low: float | None
    high: float | None
    instances: int = 1


@dataclass(frozen=True, slots=True)
class Forecast:
    """Requests/s that are expected at the peak, as a range."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Usl:
    """The fitted law: requests/s of one instance, the share that is serial, the cost of agreement; each with its 95 %
    interval.  `peak`: the number of instances beyond which more of them carry less; None where there is none.
    """

    rate: float
    rate_interval: tuple[float, float]
    serial: float
    serial_interval: tuple[float, float]
    agreement: float
    agreement_interval: tuple[float, float]
    peak: float | None


@dataclass(frozen=True, slots=True)
class Sizing:
    """`replicas` is what is recommended: enough for the forecast's high end at the capacity's low end, with headroom and
    spares; `likely` at the measured capacity and the middle of the forecast, `least` at the other ends (None: not
    known).  Costs are per million requests at the middle of the forecast, in the price's currency.
    """

    replicas: int
    likely: int
    least: int | None
    headroom: float
    spare: int
    forecast: Forecast
    capacity: Measured
    cost_per_million: float | None
    likely_cost_per_million: float | None
    cost_per_hour: float | None
    usl: Usl | None
    proportional: bool  # replicas were taken to add up, without a measurement that they do


def size(
    measured: Sequence[Measured],
    forecast: Forecast,
    headroom: float = 0.0,
    spare: int = 0,
    price_per_hour: float | None = None,
) -> Sizing:
    """Replicas for a forecast: `headroom` is a share kept free (0.2: 20 % more than the forecast), `spare` how many may
    be lost.

    Raises LoadgenError where no number of replicas carries it, or the capacity has no low end.
    """
    first = min(measured, key=lambda one: one.instances)
    middle = (forecast.low + forecast.high) / 2
    needs = [rate * (1 + headroom) for rate in (forecast.low, middle, forecast.high)]
    if len({one.instances for one in measured}) >= LEAST_COUNTS:
        law, draws = fit_usl(measured)
        each = [_replicas_of(needs[2], *draw) for draw in draws]
        few = [_replicas_of(needs[0], *draw) for draw in draws]
        likely = _replicas_of(needs[1], law.rate, law.serial, law.agreement)
        enough, least = _nearest(each, 0.975), _nearest(few, 0.025)
    else:
        law = None
        if first.low is None or first.low <= 0:
            raise LoadgenError("the capacity has no low end: measure for longer (loadgen capacity resume)")
        one = first.instances
        likely, enough = _ceil(needs[1] * one / first.value), _ceil(needs[2] * one / first.low)
        least = None if first.high is None else _ceil(needs[0] * one / first.high)
    if likely is None or enough is None:
        raise LoadgenError(
            f"no number of replicas carries {needs[2]:.4g} requests/s: by the fitted law more of them carry less"
        )
    counts = [None if n is None else n + spare for n in (enough, likely, least)]
    recommended, probable = counts[0] or 1, counts[1] or 1
    costs = [None if price_per_hour is None else n * price_per_hour for n in (recommended, probable)]
    per_million = [None if cost is None else cost / (middle * 3600) * 1e6 for cost in costs]
    return Sizing(
        replicas=recommended,
        likely=probable,
        least=counts[2],
        headroom=headroom,
        spare=spare,
        forecast=forecast,
        capacity=first,
        cost_per_million=per_million[0],
        likely_cost_per_million=per_million[1],
        cost_per_hour=costs[0],
        usl=law,
        proportional=law is None,
    )


def fit_usl(measured: Sequence[Measured]) -> tuple[Usl, Floats]:
    """The law of several capacities, and draws of (rate, serial, agreement) that their intervals allow.

    Raises LoadgenError where a capacity has no interval or the law cannot be fitted.
    """
    if any(one.low is None or one.high is None for one in measured):
        raise LoadgenError(
            "a fit needs capacities with an interval: measure for longer (loadgen capacity resume)"
        )
    n = np.array([one.instances for one in measured], np.float64)
    value = np.array([one.value for one in measured])
    error = np.array([((one.high or 0) - (one.low or 0)) / (2 * _95) for one in measured])
    best = _fit(n, value, error)
    rng = np.random.default_rng(SEED)
    draws = np.array([_fit(n, rng.normal(value, error), error) for _ in range(DRAWS)])
    ends = [
        tuple(float(x) for x in np.quantile(draws[:, i], (0.025, 0.975), method="inverted_cdf"))
        for i in range(3)
    ]
    peak = math.sqrt((1 - best[1]) / best[2]) if best[2] > 1e-9 and best[1] < 1 else None  # noqa: PLR2004 - none
    law = Usl(
        float(best[0]), (ends[0][0], ends[0][1]), float(best[1]), (ends[1][0], ends[1][1]),
        float(best[2]), (ends[2][0], ends[2][1]), peak,
    )  # fmt: skip
    return law, draws


def usl(n: npt.ArrayLike, rate: float, serial: float, agreement: float) -> Floats:
    """X(N) in requests/s."""
    n = np.asarray(n, np.float64)
    return np.asarray(rate * n / (1 + serial * (n - 1) + agreement * n * (n - 1)), np.float64)


def _fit(n: Floats, value: Floats, error: Floats) -> Floats:
    from scipy.optimize import curve_fit

    start = (max(1e-9, float((value / n).max())), 0.02, 0.0001)
    try:
        found, _ = curve_fit(
            usl, n, np.maximum(value, 1e-9), p0=start, sigma=np.maximum(error, 1e-9),
            bounds=([0, 0, 0], [np.inf, 1, 1]),
        )  # fmt: skip
    except RuntimeError:
        raise LoadgenError("the scalability law cannot be fitted to these capacities") from None
    return np.asarray(found, np.float64)


def _replicas_of(need: float, rate: float, serial: float, agreement: float) -> int | None:
    """The fewest instances whose X(N) is enough; None where none is."""
    n = np.arange(1, min(MOST_REPLICAS, 10 + int(100 * need / max(rate, 1e-9))) + 1)
    enough = np.flatnonzero(usl(n, rate, serial, agreement) >= need)
    return int(n[enough[0]]) if enough.size else None


def _nearest(each: Sequence[int | None], q: float) -> int | None:
    """Nearest rank; None counts as more than any number."""
    ordered = sorted(each, key=lambda one: math.inf if one is None else one)
    return ordered[rank(q, len(ordered)) - 1]


def _ceil(x: float) -> int:
    """Up to the next whole number; a hair above one is that one."""
    return max(1, math.ceil(x - 1e-9))
