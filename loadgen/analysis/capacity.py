"""The search for the highest load that meets the objectives: which probe comes next, and what the probes say.

Every probe is a run at one load (a rate, or a number of users).  An objective is a share of bad requests that may not
be passed: of "latency p99 < 50ms" those later than 50 ms, at most 1 %.  The logarithm of that share grows nearly in a
straight line with the load near the limit (in M/M/1 exactly: the response time is exponential with rate mu - lambda),
so it is fitted by quasi-Poisson regression (McCullagh and Nelder, "Generalized Linear Models", chapter 9) to all probes
near the limit.  Requests of a queue depend on each other: the dispersion is that of batches of successive requests, of
all these probes together.  The capacity is where the line crosses the allowed share, its interval the loads at which
the line cannot be told from it (Fieller's theorem).

The load doubles until an objective is missed, the gap is halved by short probes, then longer ones lie on both sides of
the crossing until its interval is narrow enough.  All constants were chosen by simulation (docs/capacity.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

Floats = npt.NDArray[np.float64]
BATCHES = 10  # of a probe
SATURATED = 0.5  # of all requests bad: the load is far beyond
# where probes are placed
CLOSE = 1.35  # the lowest load that failed over the highest that passed: then probes are longer
LONGER, GROWTH = 4.0, 1.4  # than the first probes; from one to the next while no line is fitted
HIGHER, LOWER = 0.6, -0.6  # logarithms of the share over the allowed one
APART, FAR = 1.12, 1.03  # from the crossing at most; from a load known to say nothing at least
# what is fitted
WINDOW, NEAR = 1.35, 1.6  # around the crossing, as a ratio of loads and in logarithms of the share
OUTSIDE = 1.15  # so much beyond the loads around the limit a line is believed
SLOPE, SLOPE_SPREAD = 8.0, 8.0  # expected of the line, for a relative change of load
SPREADS = 1.0  # the inflation grows as this power of the share
LEAST_BAD = 2.0  # requests
# when it ends
CONFIDENT = 2.4  # standard errors: more than 2 as the interval is looked at until it is narrow enough
LEAST_EFFECTIVE = 8.0  # bad requests near the limit
WHOLE = 1.2  # half an interval of users that is narrow enough
FILLING, FILLING_SECONDS, FILLING_LIMITS = 0.2, 4.0, 10.0  # of a probe; at least, and in times of the limit
_ITERATIONS, _CENTERED = 60, 6


class Answer(StrEnum):
    """What a search came to."""

    FOUND = auto()
    AT_LEAST = auto()  # the highest load that was allowed met the objectives
    BELOW = auto()  # the lowest load did not
    UNDECIDED = auto()  # time or probes ran out before the interval was narrow enough
    CLIENT = auto()  # the client, not the server, was the limit


@dataclass(frozen=True, slots=True)
class Bad:
    """Of one objective in one probe: how many requests of each batch of successive ones were bad."""

    allowed: float  # share of 1
    bad: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def count(self) -> int:
        return sum(self.bad)

    @property
    def n(self) -> int:
        return sum(self.sizes)

    @property
    def share(self) -> float:
        return self.count / self.n if self.n else 1.0

    @property
    def inflation(self) -> float:
        """The variance of the number of bad ones over that of independent requests; at least 1."""
        if self.count in (0, self.n) or len(self.sizes) < 2:  # noqa: PLR2004 - no spread
            return 1.0
        sizes, share = np.array(self.sizes), self.share
        off = np.array(self.bad) - share * sizes
        return max(1.0, float(np.square(off).sum()) / (share * (1 - share) * self.n * (1 - 1 / off.size)))


def batched(allowed: float, bad: npt.NDArray[np.bool_]) -> Bad:
    """Of which requests were bad, in order of their due times."""
    edges = np.linspace(0, bad.size, BATCHES + 1).astype(int)
    counts = [int(np.count_nonzero(bad[i:j])) for i, j in pairwise(edges)]
    return Bad(allowed, tuple(counts), tuple(np.diff(edges).tolist()))


def filling_seconds(seconds: float, limit_s: float | None) -> float:
    """How long a probe's queue fills from empty, in no figure: FILLING of it, no more than many times the limit.

    An M/M/1 queue with a P99 of T forgets within about rate T^2 / 5 (Cohen, "The Single Server Queue").
    """
    most = math.inf if limit_s is None else max(FILLING_SECONDS, FILLING_LIMITS * limit_s)
    return min(FILLING * seconds, most)


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
    precision: float = 0.04  # half the interval over the capacity
    whole: bool = False

    def tolerance(self, load: float) -> float:
        """Half the interval of a capacity that is narrow enough."""
        return max(self.precision * load, WHOLE if self.whole else 0.0)


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
    effective: (
        float  # bad requests near the limit with information of their own: twice those of the poorer side
    )

    def distance(self, load: float) -> float:
        """The logarithm of the share over the allowed one at a load."""
        return self.intercept + self.slope * (load - self.middle)

    def at(self, distance: float) -> float:
        """The load at which the share has this logarithm over the allowed one."""
        return self.middle + (distance - self.intercept) / self.slope

    @property
    def interval(self) -> tuple[float, float]:
        """The loads at which the line is not told from the allowed share; infinite where the slope is not told from 0."""
        if not np.isfinite(self.covariance).all():
            return -math.inf, math.inf
        g = CONFIDENT**2
        a = self.slope**2 - g * self.covariance[1, 1]
        b = self.intercept * self.slope - g * self.covariance[0, 1]
        c = self.intercept**2 - g * self.covariance[0, 0]
        inside = b * b - a * c
        if a <= 0 or inside < 0:
            return -math.inf, math.inf
        ends = ((-b - math.sqrt(inside)) / a, (-b + math.sqrt(inside)) / a)
        return self.middle + float(min(ends)), self.middle + float(max(ends))


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
    if known.answer is not Answer.UNDECIDED or spent >= settings.within_seconds:
        return known
    found = _next(settings, probes)
    if found is None:
        return known
    load = round(found.load) if settings.whole else found.load
    left = max(settings.first_seconds, settings.within_seconds - spent)
    return Next(
        float(min(settings.most_load, max(settings.least_load, load))),
        float(min(found.seconds, settings.most_seconds, left)),
    )


def _next(settings: Settings, probes: Sequence[Probe]) -> Next | None:
    """Without regard for what is allowed; None where no probe would say more."""
    limiting = _limiting(probes)
    if limiting is not None:
        return _refined(settings, probes, *limiting)
    longest = max(probe.seconds for probe in probes)
    step = 2.0 if longest <= settings.first_seconds else CLOSE
    brackets = [_bracket(probes, place) for place in range(len(probes[0].bad))]
    known_ends = [one for one in brackets if one is not None]
    if not known_ends:
        loads = [probe.load for probe in probes]
        if all(sum(_excess(probes, place).values()) <= 0 for place in range(len(brackets))):
            return _beyond(settings, probes, max(loads), settings.most_load, step)
        return _beyond(settings, probes, min(loads), settings.least_load, 1 / step)
    low, high = min(known_ends, key=lambda one: one[1])
    load = math.sqrt(low * high)
    if high > CLOSE * low:
        return Next(load, settings.first_seconds)
    if settings.whole and round(load) in (low, high):
        spent = {end: sum(probe.seconds for probe in probes if probe.load == end) for end in (low, high)}
        load = min(spent, key=lambda end: spent[end])
    return Next(load, GROWTH * longest)


def _beyond(settings: Settings, probes: Sequence[Probe], load: float, end: float, step: float) -> Next | None:
    """Further in one direction, up to the end of what is allowed; there for longer, until it is clear."""
    longest = max(probe.seconds for probe in probes)
    further = load * step
    if settings.whole:
        further = max(load + 1, further) if step > 1 else min(load - 1, further)
    if (further < end) == (step > 1):
        return Next(further, longest)
    if load != end:
        return Next(end, longest)
    longest = max(probe.seconds for probe in probes if probe.load == load)
    return Next(load, 2 * longest) if longest < settings.most_seconds else None


def _refined(settings: Settings, probes: Sequence[Probe], place: int, line: Line) -> Next:
    """On the side of the limit that says less so far, for as long as the interval probably needs."""
    center = line.at(0.0)
    near = [probe for probe in probes if center / WINDOW <= probe.load <= center * WINDOW]
    above = sum(probe.bad[place].n for probe in near if probe.load > center)
    below = sum(probe.bad[place].n for probe in near if probe.load <= center)
    target = line.at(HIGHER if above <= below else LOWER)
    target = _informative(probes, place, center, min(max(target, center / APART), center * APART))
    if settings.whole:
        target = max(1.0, math.ceil(target) if target > center else math.floor(target))
    spent, (low, high) = sum(probe.seconds for probe in near), line.interval
    more = spent * (
        ((high - low) / 2 / settings.tolerance(center)) ** 2 - 1
    )  # an interval narrows as the root of time
    least = LONGER * settings.first_seconds
    return Next(target, min(max(0.7 * more, least), max(2 * spent, least)))


def _informative(probes: Sequence[Probe], place: int, center: float, target: float) -> float:
    """The target, or a load nearer to the center where one that was probed turned out to be far from the limit."""
    distances = [(probe.load, _log_share(probe.bad[place])) for probe in probes]
    over = min((load for load, distance in distances if distance > NEAR), default=math.inf)
    under = max((load for load, distance in distances if distance < -NEAR and load < over), default=0.0)
    if target >= over / FAR:
        return math.sqrt(over * max(min(center, over), under, over / APART))
    if target <= under * FAR:
        return math.sqrt(under * min(max(center, under), over, under * APART))
    return target


def capacity_of(settings: Settings, probes: Sequence[Probe]) -> Capacity:
    """What the probes say so far."""
    spent = sum(probe.seconds for probe in probes)
    limiting = _limiting(probes)
    if limiting is not None:
        place, line = limiting
        value, (low, high) = line.at(0.0), line.interval
        low, high = max(low, 0.0), max(high, value)
        narrow = line.effective >= LEAST_EFFECTIVE and (high - low) / 2 <= settings.tolerance(value)
        if settings.whole:  # the highest number that still meets them
            value, low, high = (float(math.floor(x)) if math.isfinite(x) else x for x in (value, low, high))
        ends = (low if low > 0 else None, high if math.isfinite(high) else None)
        if ends != (None, None) and settings.least_load <= value < settings.most_load:
            return Capacity(Answer.FOUND if narrow else Answer.UNDECIDED, value, *ends, place, spent)
    most, least = max(probe.load for probe in probes), min(probe.load for probe in probes)
    if most >= settings.most_load and any(_is_below(p) for p in probes if p.load == most):
        return Capacity(Answer.AT_LEAST, most, most, None, None, spent)
    if least <= settings.least_load and any(_is_above(p) for p in probes if p.load == least):
        return Capacity(Answer.BELOW, None, None, least, None, spent)
    below = max((probe.load for probe in probes if _is_below(probe)), default=None)
    above = min((probe.load for probe in probes if _is_above(probe)), default=None)
    if below is not None and above is not None and above - below >= 0:
        # an objective that is missed all at once has no line
        value = below if settings.whole else math.sqrt(below * above)
        if (above - below) / 2 <= (0.5 if settings.whole else settings.precision * value):
            return Capacity(Answer.FOUND, value, below, above, _worst(probes, above), spent)
    return Capacity(Answer.UNDECIDED, None, below, above, None, spent)


def _limiting(probes: Sequence[Probe]) -> tuple[int, Line] | None:
    """The objective whose line crosses first, and the line; None where another one, without a line, is missed before."""
    each = [(line.at(0.0), place, line) for place, line in enumerate(lines(probes)) if line is not None]
    saturated = min((probe.load for probe in probes if probe.is_saturated), default=math.inf)
    first = min(each, key=lambda one: one[0], default=None)
    if first is None or not 0 < first[0] <= min(saturated, _least_missed(probes)):
        return None
    return first[1], first[2]


def _least_missed(probes: Sequence[Probe]) -> float:
    """The lowest load above which an objective without a line is missed; infinite where there is none."""
    brackets = [_bracket(probes, i) for i, line in enumerate(lines(probes)) if line is None]
    return min((one[1] for one in brackets if one is not None), default=math.inf)


def _worst(probes: Sequence[Probe], load: float) -> int:
    """The place of the objective that is missed most at a load."""
    probe = next(probe for probe in probes if probe.load == load and _is_above(probe))
    return max(range(len(probe.bad)), key=lambda place: _log_share(probe.bad[place]))


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
    """Fitted to the probes whose load is near the limit by the fit itself: those chosen by what they saw would
    be a biased choice.
    """
    bracket = _bracket(probes, place)
    if bracket is None:
        return None
    center, line = math.sqrt(bracket[0] * bracket[1]), None
    for _ in range(_CENTERED):
        chosen = _chosen(probes, place, bracket, center, line)
        found = _fit(chosen, place)
        if found is None:  # too few: enough to say where to look, not how sure that is
            return None if line is None else replace(line, covariance=np.full((2, 2), math.inf))
        before, line, center = center, found, found.at(0.0)
        if not bracket[0] / OUTSIDE <= center <= bracket[1] * OUTSIDE:
            return None
        if abs(center / before - 1) < 1e-3:  # noqa: PLR2004 - the same probes next time
            break
    return line


def _chosen(
    probes: Sequence[Probe], place: int, bracket: tuple[float, float], center: float, line: Line | None
) -> list[Probe]:
    """Those near the limit by the line so far; on a side without any the nearest there is."""
    usable = [
        probe
        for probe in probes
        if probe.bad[place].n and not probe.is_saturated and center / WINDOW <= probe.load <= center * WINDOW
    ]
    near = [probe for probe in usable if line is None or abs(line.distance(probe.load)) <= NEAR]
    if not any(probe.load <= bracket[0] for probe in near):
        near += [probe for probe in usable if probe.load == bracket[0]]
    if not any(probe.load >= bracket[1] for probe in near):
        near += [probe for probe in usable if probe.load == bracket[1]]
    return near


def _excess(probes: Sequence[Probe], place: int) -> dict[float, float]:
    """By load, lowest first: how many more bad requests were seen than allowed."""
    found = dict.fromkeys(sorted({probe.load for probe in probes}), 0.0)
    for probe in probes:
        one = probe.bad[place]
        found[probe.load] += one.count - one.allowed * one.n
    return found


def _bracket(probes: Sequence[Probe], place: int) -> tuple[float, float] | None:
    """The highest load below which more bad requests were allowed than seen, the lowest load above which fewer were."""
    by_load = _excess(probes, place)
    loads, excess = list(by_load), list(by_load.values())
    if not (min(excess) <= 0 < max(excess)):
        return None
    # the cut with the least evidence against it
    loss = [
        sum(max(0.0, e) for e in excess[:i]) + sum(max(0.0, -e) for e in excess[i:])
        for i in range(1, len(loads))
    ]
    cut = int(np.argmin(loss)) + 1
    return loads[cut - 1], loads[cut]


def _fit(probes: Sequence[Probe], place: int) -> Line | None:
    """Quasi-Poisson regression; the covariance is the sandwich of the batches (Huber; Newey and West with one lag)."""
    if len({probe.load for probe in probes}) < 2:  # noqa: PLR2004 - a line
        return None
    each = [probe.bad[place] for probe in probes]
    load = np.array([probe.load for probe in probes])
    n, count, allowed = (
        np.array([one.n for one in each]),
        np.array([one.count for one in each], np.float64),
        each[0].allowed,
    )
    if count.sum() < LEAST_BAD:
        return None
    base = allowed * n
    middle = float(np.average(load, weights=n))
    x = np.stack([np.ones(load.size), load / middle - 1], axis=1)
    prior = np.array([0.0, 1 / SLOPE_SPREAD**2])
    beta = np.array([math.log((count.sum() + 0.5) / base.sum()), SLOPE])
    phi = 1.0
    for i in range(_ITERATIONS):
        eta = np.clip(x @ beta, -8, 8)
        mean, damp = base * np.exp(eta), np.exp(-SPREADS * eta)
        if i % 5 == 0:
            phi = _inflation(each, mean / n, damp)
        information = x.T @ ((mean * damp)[:, None] * x) / phi + np.diag(prior)
        score = x.T @ ((count - mean) * damp) / phi - prior * (beta - [0.0, SLOPE])
        step = np.linalg.solve(information, score)
        beta = beta + np.clip(step, -2, 2)
        if i >= 10 and float(np.abs(step).max()) < 1e-6:  # noqa: PLR2004 - as good as none
            break
    if beta[1] <= 0:
        return None
    near = np.where(np.abs(np.log((count + 0.5) / (base + 0.5))) <= NEAR, np.minimum(count, base) / phi, 0.0)
    above = load > middle * (1 - beta[0] / beta[1])
    effective = 2 * min(float(near[above].sum()), float(near[~above].sum()))
    covariance = np.linalg.inv(information)
    between = float((damp * (count - mean) ** 2 / mean).sum()) / phi / max(1, load.size - 2)
    covariance *= max(1.0, between) if load.size > 3 else 1.0  # noqa: PLR2004
    turn = np.diag([1.0, 1 / middle])
    return Line(
        middle, float(beta[0]), float(beta[1] / middle), turn @ covariance @ turn, load.size, effective
    )


def _inflation(each: Sequence[Bad], rates: Floats, damp: Floats) -> float:
    """Of all batches together, over what the fitted load explains."""
    squares = lags = expected = 0.0
    for one, rate, weight in zip(each, rates.tolist(), damp.tolist(), strict=True):
        sizes = np.array(one.sizes)
        off = np.array(one.bad) - one.share * sizes
        squares += weight * float(np.square(off).sum()) / (1 - 1 / sizes.size)
        lags += weight * float((off[1:] * off[:-1]).sum())
        expected += rate * one.n
    return max(1.0, (squares + 2 * max(0.0, lags)) / expected)


def _log_share(one: Bad) -> float:
    return math.log(max(one.count, 0.5) / one.n / one.allowed)
