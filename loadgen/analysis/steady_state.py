"""From when on a phase was in its steady state, by its service times and by its throughput.

The rule, for each of the two signals (docs/steady-state.md: its error rates by simulation, and what it cannot see):

1. One level or not: the CUSUM test for a change of the mean (Ploberger and Kraemer 1992; of one level the statistic is
   the largest distance from 0 of a Brownian bridge).  Its variance has the dependence of requests in it: it comes from
   the means of equal parts, by the differences of neighbours (von Neumann 1941), without the largest, so that neither
   a trend nor jumps hide themselves.
2. If not, MSER (White 1997), on means of 5 requests and more, says how much of the beginning to cut, again until the
   rest passes 1: `warming_up`, if the rest is at least half and does not go on changing at half the pace (`drift`).
3. Otherwise `drift` when the means of the parts have a trend (Mann-Kendall), else `never_settled`.

A change by less than LEAST, a tenth, is `settled` however significant.  Service times count as logarithms: levels
compare as ratios, and a few slow requests are no level.  Phases whose planned rate changes have no one level to find
(`not_constant`); what comes after the load's end, the drain, is in no window.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from scipy.stats import kendalltau

from loadgen.analysis.columns import Ints
from loadgen.analysis.percentiles import quantile

Floats = npt.NDArray[np.float64]

GROUPS = 20  # parts of the whole for the variance and the trend
CRITICAL = 1.95  # the Brownian bridge goes beyond in 0.1 % (Kolmogorov); dependence makes that up to 5 %
KEPT = 0.6  # of the squared differences of neighbours, the smaller ones
TRIMMED = 0.24  # their mean over that of all (normal values, by simulation: 0.236 of 19, 0.258 of 9)
TREND = 0.01  # the significance of Mann-Kendall's test
LEAST = 0.1
BATCH, MOST_BATCHES, PARTS = 5, 4000, 100  # requests in a mean; how many means at most; MSER looks at so many
BINS, CYCLES = 100, 5  # of throughput; a bin is so many cycles (latency and think time) or longer


class State(StrEnum):
    """In the order of severity; the last two: nothing was looked for."""

    SETTLED = "settled"
    WARMING_UP = "warming_up"
    DRIFT = "drift"
    NEVER_SETTLED = "never_settled"
    TOO_LITTLE_DATA = "too_little_data"
    NOT_CONSTANT = "not_constant"


_SEVERITY = list(State)
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Level:
    """What one signal says; `first` is the place of the first value of its steady part (0 where there is none)."""

    state: State
    first: int = 0


@dataclass(frozen=True, slots=True)
class Stretch:
    """Successes due (closed loop: sent) in [start_ns, end_ns) of the run, and their latency from due."""

    start_ns: int
    end_ns: int
    n: int
    p50_ns: int | None
    p99_ns: int | None


@dataclass(frozen=True, slots=True)
class SteadyState:
    """`declared` is the phase as the profile states it, `detected` its steady part; None: there is none."""

    state: State
    service: State
    throughput: State
    declared: Stretch
    detected: Stretch | None
    method: str = "CUSUM, MSER-5, Mann-Kendall"


def steady_state(
    at: Ints,
    service: Ints,
    done: Ints,
    latency: Ints,
    span: tuple[int, int],
    *,
    constant: bool,
    think_ns: int = 0,
) -> SteadyState:
    """Of a phase's successes: when they were due (closed loop: sent), ended, and took, all in ns; any order.

    `span` is the load's start and end; `constant` says whether one rate was planned all along.
    """
    start, end = span
    inside = (at >= start) & (at < end)
    at, service, latency = at[inside], service[inside], latency[inside]
    declared = _stretch(at, latency, start, end)
    if not constant:
        nothing = State.NOT_CONSTANT
        return SteadyState(nothing, nothing, nothing, declared, None)
    of_service, since = _of_service(at, service)
    of_rate, bin_start = _of_throughput(done, span, CYCLES * ((declared.p50_ns or 0) + think_ns))
    states = [one for one in (of_service, of_rate) if one is not State.TOO_LITTLE_DATA]
    state = max(states, key=_SEVERITY.index) if of_service in states else of_service
    detected = None
    if state is State.SETTLED:
        detected = declared
    elif state is State.WARMING_UP:
        detected = _stretch(at, latency, max(since, bin_start, start), end)
    return SteadyState(state, of_service, of_rate, declared, detected)


def _stretch(at: Ints, latency: Ints, start: int, end: int) -> Stretch:
    kept = latency[at >= start]
    return Stretch(start, end, int(kept.size), quantile(kept, 0.5), quantile(kept, 0.99))


def _of_service(at: Ints, service: Ints) -> tuple[State, int]:
    """The state, and from when on it holds (0: from the beginning)."""
    size = max(BATCH, -(-service.size // MOST_BATCHES))
    order = np.argsort(at, kind="stable")[service.size % size :]
    means = np.log(np.maximum(service[order], 1)).reshape(-1, size).mean(axis=1)
    found = level(means)
    return found.state, int(at[order[found.first * size]]) if found.first else 0


def _of_throughput(done: Ints, span: tuple[int, int], least_ns: int) -> tuple[State, int]:
    """As for service, of the ends of requests in equal bins; the first, before which nothing could end, is left out."""
    start, end = span
    bins = int(min(BINS, (end - start) // max(1, least_ns)))
    edges = np.linspace(start, end, bins + 1)
    counts = np.histogram(done, edges)[0][1:]
    if not counts.any():
        return State.TOO_LITTLE_DATA, 0
    found = level(counts / counts.mean())
    return found.state, int(edges[found.first + 1]) if found.first else 0


def level(values: Floats) -> Level:
    """Of values in order of time, in units in which a difference of LEAST matters."""
    if values.size < 2 * GROUPS:
        return Level(State.TOO_LITTLE_DATA)
    cut = 0
    while cut <= values.size // 2:
        if _one_level(values[cut:]):
            if cut and _goes_on(values, cut):
                return Level(State.DRIFT)
            return Level(State.WARMING_UP if cut else State.SETTLED, cut)
        more = mser(values[cut:])
        if not more:
            break
        cut += more
    means = _means(values, GROUPS)
    trend = kendalltau(np.arange(means.size), means).pvalue < TREND
    return Level(State.DRIFT if trend else State.NEVER_SETTLED)


def _goes_on(values: Floats, cut: int) -> bool:
    """Whether what is left changes at half the pace or more at which the beginning went over into it."""
    early, late = np.array_split(values[cut:], 2)
    pace = (early.mean() - late.mean()) / (values.size - cut)
    before = (values[:cut].mean() - values[cut:].mean()) / values.size
    return bool(pace * np.sign(before) >= abs(before) / 2)


def mser(values: Floats) -> int:
    """How many values MSER cuts off the beginning: where the variance of the rest over its size is least."""
    size = max(1, values.size // PARTS)
    means = _means(values, values.size // size)
    left = np.arange(means.size, 0, -1)
    centred = means - means.mean()
    sums, squares = (np.cumsum(one[::-1])[::-1] for one in (centred, centred**2))
    spread = squares - sums**2 / left
    spread[spread < _ROUNDING * squares[0]] = 0
    statistic = spread / left.astype(np.float64) ** 2
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
    squares = np.sort(np.diff(_means(values, parts)) ** 2)[: round(KEPT * (parts - 1))]
    return values.size / parts * float(squares.mean()) / 2 / TRIMMED
