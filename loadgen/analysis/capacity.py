"""The search for the highest load that meets the objectives: which probe comes next, and what the probes say.

Every probe is a run at one load (a rate, or a number of users).  An objective is a share of bad requests that may not
be passed: of "latency p99 < 50ms" those later than 50 ms, at most 1 %.  The logarithm of that share grows nearly in a
straight line with the load near the limit (in M/M/1 exactly: the response time is exponential with rate mu - lambda),
so it is fitted by Poisson regression, each probe weighing as many requests as its effective sample size; the capacity
is where the line crosses the allowed share, its interval the loads at which the line cannot be told from it
(Fieller's theorem).  Probes far from the limit only say on which side they lie.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

Floats = npt.NDArray[np.float64]
NEAR_BELOW, NEAR_ABOVE = (
    1.5,
    2.3,
)  # logarithms of the share over the allowed one between which probes are fitted
OUTSIDE = 1.15  # so much beyond the probes that were fitted a line is believed
SATURATED = 0.5  # of all requests bad: the load is far beyond
HIGHER, LOWER = 1.0, -0.7  # where probes are placed, in logarithms of the allowed share
CLOSE = 1.35  # the lowest load that failed over the highest that passed: from here on probes are longer
LONGER, GROWTH, TRUSTED = 4.0, 1.4, 3.0  # than the first probe; from one to the next; than the longest
LEAST_BAD = 2.0  # effective bad requests for a probe to count as seen
CONFIDENT = 2.6  # standard errors of the interval: more than 2 as it is looked at until it is narrow enough (simulated)
_ITERATIONS = 50


class Answer(StrEnum):
    """What a search came to."""

    FOUND = auto()
    AT_LEAST = auto()  # the highest load that was allowed met the objectives
    BELOW = auto()  # the lowest load did not
    UNDECIDED = auto()  # time or probes ran out before the interval was narrow enough
    CLIENT = auto()  # the client, not the server, was the limit


@dataclass(frozen=True, slots=True)
class Bad:
    """Of one objective in one probe: so many of n requests were bad; `inflation` is the variance of their number over
    that of independent ones.
    """

    allowed: float  # share of 1
    count: int
    n: int
    inflation: float

    @property
    def share(self) -> float:
        return self.count / self.n if self.n else 1.0

    @property
    def effective(self) -> float:
        """Bad requests that carry information of their own."""
        return self.count / self.inflation


@dataclass(frozen=True, slots=True)
class Probe:
    """A run at one load; `seconds` of load; one `Bad` an objective."""

    load: float
    seconds: float
    bad: tuple[Bad, ...]

    @property
    def distance(self) -> float:
        """Of the worst objective, the logarithm of its share over the allowed one."""
        return max(math.log(max(one.share, 0.5 / max(one.n, 1)) / one.allowed) for one in self.bad)

    @property
    def is_saturated(self) -> bool:
        return any(one.share >= max(SATURATED, 2 * one.allowed) for one in self.bad)


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the search begins and ends.  Loads are requests/s, or users (`whole`: only whole numbers)."""

    first_load: float
    least_load: float
    most_load: float
    first_seconds: float = 5.0
    most_seconds: float = 60.0  # of one probe
    within_seconds: float = 600.0  # of all probes together
    precision: float = 0.03  # half the interval over the capacity
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Next:
    """The probe to make."""

    load: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Line:
    """log(share / allowed) = intercept + slope (load - middle), with the covariance of both."""

    middle: float
    intercept: float
    slope: float
    covariance: Floats
    points: int

    def at(self, distance: float) -> float:
        """The load at which the share has this logarithm over the allowed one."""
        return self.middle + (distance - self.intercept) / self.slope

    @property
    def interval(self) -> tuple[float, float]:
        """The loads at which the line is not told from the allowed share; infinite where the slope is not told from 0."""
        g = CONFIDENT**2
        a = self.slope**2 - g * self.covariance[1, 1]
        b = self.intercept * self.slope - g * self.covariance[0, 1]
        c = self.intercept**2 - g * self.covariance[0, 0]
        inside = b * b - a * c
        if a <= 0 or inside < 0:
            return -math.inf, math.inf
        ends = ((-b - math.sqrt(inside)) / a, (-b + math.sqrt(inside)) / a)
        return self.middle + min(ends), self.middle + max(ends)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest load that meets all objectives; `low` and `high` are its 95 % interval, None where it has no end."""

    answer: Answer
    value: float | None
    low: float | None
    high: float | None
    objective: int | None = None  # the place of the one that limits
    seconds: float = 0.0  # of load


def next_step(settings: Settings, probes: Sequence[Probe]) -> Next | Capacity:
    """The next probe, or what all of them say."""
    spent = sum(probe.seconds for probe in probes)
    if not probes:
        return Next(settings.first_load, settings.first_seconds)
    known = capacity_of(settings, probes)
    if known.answer is Answer.FOUND or spent >= settings.within_seconds:
        return known
    found = _next(settings, probes, known)
    if found is None:
        return known
    load = min(
        settings.most_load, max(settings.least_load, round(found.load) if settings.whole else found.load)
    )
    return Next(
        load,
        min(
            found.seconds, settings.most_seconds, max(settings.first_seconds, settings.within_seconds - spent)
        ),
    )


def _next(settings: Settings, probes: Sequence[Probe], known: Capacity) -> Next | None:
    """Without regard for what is allowed; None where no probe would say more."""
    if known.value is not None and known.objective is not None:
        return _refined(settings, probes, known)
    trusted, longest = _trusted(probes), max(probe.seconds for probe in probes)
    met = [probe.load for probe in trusted if probe.distance <= 0]
    missed = [probe.load for probe in trusted if probe.distance > 0]
    step = 2.0 if longest <= settings.first_seconds else CLOSE**0.5
    if not missed:
        return _beyond(settings, probes, max(met), settings.most_load, step)
    if not met:
        return _beyond(settings, probes, min(missed), settings.least_load, 1 / step)
    low, high = max(met), min(missed)
    seconds = longest if high > CLOSE * low else max(LONGER * settings.first_seconds, GROWTH * longest)
    return Next(math.sqrt(low * high), seconds)


def _beyond(settings: Settings, probes: Sequence[Probe], load: float, end: float, step: float) -> Next | None:
    """Further in one direction, up to the end of what is allowed; there for longer, until it is clear."""
    longest = max(probe.seconds for probe in probes)
    if (load * step < end) == (step > 1):
        return Next(load * step, longest)
    if load != end:
        return Next(end, longest)
    longest = max(probe.seconds for probe in probes if probe.load == load)
    return Next(load, 2 * longest) if longest < settings.most_seconds else None


def _trusted(probes: Sequence[Probe]) -> list[Probe]:
    """The longer ones: a queue near its limit needs time to fill, so a short probe finds too little wrong with it."""
    longest = max(probe.seconds for probe in probes)
    return [probe for probe in probes if probe.is_saturated or probe.seconds >= longest / TRUSTED]


def _refined(settings: Settings, probes: Sequence[Probe], known: Capacity) -> Next:
    """A longer probe on the side of the limit that has been looked at for less time."""
    assert known.value is not None  # noqa: S101 - of a line
    line = lines(probes)[known.objective or 0]
    near = [probe for probe in probes if -NEAR_BELOW <= probe.distance <= NEAR_ABOVE]
    over = sum(probe.seconds for probe in near if probe.load > known.value)
    under = sum(probe.seconds for probe in near if probe.load <= known.value)
    target = known.value if line is None else line.at(HIGHER if over <= 0.5 * under else LOWER)
    target = min(max(target, 0.75 * known.value), 1.2 * known.value)
    saturated = min((probe.load for probe in probes if probe.is_saturated), default=math.inf)
    target = min(target, (known.value + saturated) / 2 if saturated > known.value else target)
    if settings.whole:
        step = 1 if target > known.value else -1
        target = max(1, target) if round(target) != round(known.value) else round(known.value) + step
    longest = max((probe.seconds for probe in near), default=settings.first_seconds)
    return Next(target, GROWTH * longest)


def capacity_of(settings: Settings, probes: Sequence[Probe]) -> Capacity:
    """What the probes say so far."""
    spent = sum(probe.seconds for probe in probes)
    each = [
        (line.at(0.0), *line.interval, place) for place, line in enumerate(lines(probes)) if line is not None
    ]
    each = [one for one in each if math.isfinite(one[0]) and one[0] > 0]
    if each:
        value, low, high, place = min(each)
        low, high = max(low, 0.0), max(high, value)
        narrow = (high - low) / 2 <= settings.precision * value
        if settings.whole:  # the highest number that still meets them
            value, low, high = (float(math.floor(x)) if math.isfinite(x) else x for x in (value, low, high))
            narrow = high - low <= max(3.0, 2 * settings.precision * value)
        if value < settings.most_load or not narrow:
            ends = (low if low > 0 else None, high if math.isfinite(high) else None)
            if settings.least_load <= value <= settings.most_load:
                return Capacity(Answer.FOUND if narrow else Answer.UNDECIDED, value, *ends, place, spent)
    most, least = max(probe.load for probe in probes), min(probe.load for probe in probes)
    if most >= settings.most_load and any(_is_below(p) for p in probes if p.load == most):
        return Capacity(Answer.AT_LEAST, most, most, None, None, spent)
    if least <= settings.least_load and any(_is_above(p) for p in probes if p.load == least):
        return Capacity(Answer.BELOW, None, None, least, None, spent)
    below = max((probe.load for probe in probes if _is_below(probe)), default=None)
    above = min((probe.load for probe in probes if _is_above(probe)), default=None)
    return Capacity(Answer.UNDECIDED, None, below, above, None, spent)


def _is_above(probe: Probe) -> bool:
    """Whether it is clear that some objective was missed."""
    return any(one.share > one.allowed and _clear(one) for one in probe.bad)


def _is_below(probe: Probe) -> bool:
    """Whether it is clear that all objectives were met."""
    return all(one.share <= one.allowed and _clear(one) for one in probe.bad)


def _clear(one: Bad) -> bool:
    """Two standard errors of the number that is allowed away from it."""
    expected = one.allowed * one.n
    return abs(one.count - expected) > 2 * math.sqrt(max(expected, 0.5) * one.inflation)


def lines(probes: Sequence[Probe]) -> list[Line | None]:
    """One an objective; None where fewer than two loads near the limit were seen."""
    return [_line(probes, place) for place in range(len(probes[0].bad))] if probes else []


def _line(probes: Sequence[Probe], place: int) -> Line | None:
    chosen = [
        (probe.load, probe.bad[place])
        for probe in _trusted(probes)
        if probe.bad[place].n
        and not probe.is_saturated
        and -NEAR_BELOW <= _log_share(probe.bad[place]) <= NEAR_ABOVE
    ]
    if len({load for load, _ in chosen}) < 2 or sum(one.effective for _, one in chosen) < 2 * LEAST_BAD:  # noqa: PLR2004 - a line
        return None
    load = np.array([load for load, _ in chosen])
    count = np.array([one.count for _, one in chosen], np.float64)
    base = np.array([one.allowed * one.n for _, one in chosen])
    own = np.log([max(one.inflation, 1.0) for _, one in chosen])
    # a probe that saw few long queues shows too little dependence: half of it is taken from the others
    inflation = np.exp((own + np.average(own, weights=[one.n for _, one in chosen])) / 2)
    middle, scale = float(np.average(load, weights=count + 1)), float(load.max() - load.min())
    x = np.stack([np.ones(load.size), (load - middle) / scale], axis=1)
    beta = np.array([math.log((count.sum() + 0.5) / base.sum()), 1.0])
    for _ in range(_ITERATIONS):
        mean = base * np.exp(np.clip(x @ beta, -8, 8))
        weight = mean / inflation
        information = x.T @ (weight[:, None] * x) + np.diag([0.0, 1e-6])
        step = np.linalg.solve(information, x.T @ ((count - mean) / inflation))
        beta = beta + np.clip(step, -2, 2)
        if float(np.abs(step).max()) < 1e-8:  # noqa: PLR2004 - as good as none
            break
    mean = base * np.exp(np.clip(x @ beta, -8, 8))
    information = x.T @ ((mean / inflation)[:, None] * x) + np.diag([0.0, 1e-6])
    left = float(((count - mean) ** 2 / (mean * inflation)).sum())
    beyond = max(1.0, left / (load.size - 2)) if load.size > 2 else 1.0  # noqa: PLR2004 - a line takes two
    crossing = middle - scale * float(beta[0] / beta[1]) if beta[1] > 0 else math.nan
    saturated = min((probe.load for probe in probes if probe.is_saturated), default=math.inf)
    if not load.min() / OUTSIDE <= crossing <= min(load.max() * OUTSIDE, saturated):
        return None
    turn = np.diag([1.0, 1 / scale])
    return Line(
        middle,
        float(beta[0]),
        float(beta[1] / scale),
        turn @ np.linalg.inv(information) @ turn * beyond,
        load.size,
    )


def _log_share(one: Bad) -> float:
    return math.log(max(one.count, 0.5) / one.n / one.allowed)
