"""How many successes a phase had a second: what each of them counts for, over which span.

The load lasts from the phase's start S to its end E, T = E - S.  The drain after it is in no rate of its own.

* Open loop: all n successes over T, unless the server fell behind.  Nothing is cut off at the edges of the load, so
  whatever the pattern of the arrivals, a server that keeps up shows the rate it was asked for.  What it had not done when
  the load ended counts as backlog where something speaks for one:
  - (n - k * B) / T.  B: successes in flight at E beyond those that the first latencies (of 20 requests) explain.  k, 0 to 1:
    by how many standard deviations that is more than half-way (0 up to 1.5, 1 from 3), or 1 when 5 % of the requests and
    more were turned away (rejected, timed out, dropped), for a full queue does not grow.
  - n / (T + k * g), where that is alike and less (by up to 10 %: it is the sharper one); n / (T + g) where fewer than a quarter
    ended within the load, as what was in flight tells little then.  g is by how much later than at the
    beginning the server was at the end.  Due times and ends are sorted apart: v(q) is the time from the q-th due to the
    q-th end, so no order of answering plays a part; g = v(0.99) - v(0.01), if v and the latencies grew as they do while
    a backlog grows.  A server of capacity c that was asked for more answers without a gap until S + n / c: n / (T + g) is c.
  - When 99 % have ended within 0.5 % of T after E, nobody fell behind; what is in flight counts in full from 2 % on.
  A server that fell behind early and kept pace from then on shows the rate asked, as one that is slower when busy does:
  the latency tells of it.
  By simulation of 267 cases (tests/bench/rates.py: latencies that do not depend on the load with and without rejections, queues with one and
  many servers, bounded ones, collapses, pauses; 10, 20 and 60 s; 20 runs each) the bias is below 1 % in the mean where T
  is ten mean latencies and more, up to +2 % within 10 % of the capacity, where noise hides a backlog.  Single runs
  spread by about the root of the number in flight.  Of 50 slots that take 5 s each: +5 % at T = 60 s, +14 % at 20 s.
* Closed loop of N users: each success counts by the share of its cycle, due to done and the think time after
  it, that lies within [S, E].  Users are busy from S on, so every instant of every user belongs to one cycle.
  Bias: +N cv^2 / (2 T) with cv the cycles' coefficient of variation (renewal theory: a user's whole cycles
  are T/mu - 1/2 + cv^2/2 on average, and the cut one adds 1/2).  Constant cycles: none.
* Where nothing can be compared (one success that took longer than the load, a closed loop whose median success
  did, a load without length): all successes over the span from S to the last of them.
* A run that was killed knows nothing after the last sign of life: an open load ends there, less the median latency.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.analysis.columns import Ints
from loadgen.analysis.frame import Bools, Frame
from loadgen.analysis.percentiles import quantile
from loadgen.histogram import rank

Floats = npt.NDArray[np.float64]
Shares = npt.NDArray[np.float64] | Bools  # where each counts whole or not at all, a byte a row
GRAIN_NS = 2_000_000  # an event loop's timer may come that much before a phase's end
_LOW, _HIGH = 0.01, 0.99  # of the successes: what lies outside may be a straggler
_ALIKE = 1.1  # spans that differ less than this are taken for the same one
_CLEAR = 3  # standard errors
_SMALL = 0.005  # of the load: who has answered that soon after it did not fall behind
_FULL = 0.05  # turned away: from here on the queue was full
_FIRST = (20, 50)  # how many requests are the first ones: a 20th of all, within these
_POINTS, _LOOKS = 500, 33  # of all latencies; at how many are in flight


@dataclass(frozen=True, slots=True)
class Window:
    """`share`: what each row of the phase counts for, 0 to 1; `asked`: the sum of what every request counts
    for, successful or not.
    """

    span_ns: int | None  # None: the phase never started, or nothing took any time
    share: Shares
    asked: float


def window(rows: Frame, told: dict[str, Any]) -> Window:
    """Of one phase.  `told` is what run.json says of it: start_ns, load_end_ns, loop, think_ns, seen_ns."""
    start, end = told.get("start_ns"), told.get("load_end_ns")
    if start is None or end is None:
        return Window(None, np.zeros(len(rows), np.bool_), 0.0)
    duration = told.get("duration_ns") if told["loop"] == "open" else None
    if (
        duration is not None and duration - GRAIN_NS < end - start < duration
    ):  # it lasted that long all the same
        end = start + duration
    ok, judged = rows.ok, ~rows.cancelled
    good = rows.where(ok)
    if _incomparable(good, told["loop"] == "closed", end - start):
        span = int(good.done_ns.max()) - start if len(good) else 0
        return Window(span if span > 0 else None, ok, float(np.count_nonzero(judged)))
    if told["loop"] == "closed":
        done = rows.done_ns + (told.get("think_ns") or 0)
        share = _overlap(rows.due_ns, done, start, end)
        return Window(end - start, share * ok, float((share * judged).sum()))
    if (seen := told.get("seen_ns")) is not None:
        known = min(end, seen - (quantile(_first(good.latency_ns[_by_due(good)]), 0.5) or 0))
        end = known if known > start else end
    turned = np.count_nonzero(rows.rejected | rows.timeout | rows.dropped) / max(1, len(rows))
    span = _open_span(good, start, end - start, turned)
    return Window(round(span), ok, float(np.count_nonzero(judged)))


def _incomparable(good: Frame, closed: bool, length: int) -> bool:
    if length <= 0:
        return True
    return (closed or len(good) == 1) and (quantile(good.latency_ns, 0.5) or 0) >= length


def _by_due(good: Frame) -> npt.NDArray[np.intp]:
    return np.lexsort((good.sent_ns, good.due_ns))


def _first(latency: Ints) -> Ints:
    """Of latencies in the order of their due times, those of the first requests."""
    return latency[: min(_FIRST[1], max(_FIRST[0], latency.size // 20))]


def _open_span(good: Frame, start: int, length: int, turned: float) -> float:
    """The ns over which an open load's successes make its rate."""
    n = len(good)
    if n < 2:  # noqa: PLR2004 - one shows no growth
        return float(length)
    high = rank(_HIGH, n) - 1
    done = good.done_ns - start
    late = float(np.partition(done, high)[high]) - length
    if late <= _SMALL * length:  # most runs: nothing is sorted for them
        return float(length)
    order = _by_due(good)
    latency, began, ended = good.latency_ns[order], good.due_ns[order] - start, np.sort(done)
    first, some = _first(latency), latency[:: max(1, n // _POINTS)]
    over, more = _backlog(began, ended, first, some, length)
    behind = _ramp(more, 1.5, 3.0) * _ramp(late / length, _SMALL, 4 * _SMALL)
    span = float(n * length / (n - over * max(behind, min(1.0, turned / _FULL))))
    growth = _growth_ns(latency, ended - began, late, length)
    if 4 * np.searchsorted(ended, length, "right") < n:
        return max(span, length + growth)
    later = length + behind * growth
    return later if span < later < _ALIKE * span else span


def _backlog(began: Ints, ended: Ints, first: Ints, some: Ints, length: int) -> tuple[float, float]:
    """How many successes more were in flight at the end than the first latencies explain, and by how many standard
    deviations that is more than half-way.

    `some` are latencies of all the load: their spread tells how much the few first ones may mislead.
    """
    at = np.append(np.linspace(0.25, 0.75, _LOOKS), 1.0) * length
    here = np.searchsorted(began, at, "right")
    flying = here - np.searchsorted(ended, at, "right")
    usual = here - np.searchsorted(began, at[:, None] - first, "right").mean(axis=1)
    excess = flying - usual
    middle, when = excess[:-1], at[:-1] - at[:-1].mean()
    trend = when * (when @ (middle - middle.mean())) / (when @ when)
    misled = float(np.searchsorted(began, length - some, "right").var()) / first.size
    chance = 1 + max(float(flying[:-1].mean()), float(usual[-1])) + misled
    noise = max(float((middle - middle.mean() - trend).std()), chance**0.5)
    more = float(excess[-1] - max(float(middle.mean()), 0.0)) / noise
    usual_now = np.searchsorted(began, length - _at_first(first[: _FIRST[0]]), "right").mean()
    over = int(flying[-1]) - int(here[-1]) + float(usual_now)
    return min(max(0.0, over), began.size - 1.0), more


def _at_first(latency: Ints) -> Floats:
    """The first latencies without their trend: of a queue that grows each is longer than the one before."""
    found = latency.astype(np.float64)
    place = np.arange(found.size) - (found.size - 1) / 2
    slope = float(place @ found) / max(1.0, float(place @ place))
    error = float((found - found.mean() - slope * place).std()) / max(1.0, float(place @ place)) ** 0.5
    if slope > _CLEAR * error:
        found = np.maximum(found - slope * np.arange(found.size), found.min())
    return found


def _growth_ns(latency: Ints, behind: Ints, late: float, length: int) -> float:
    """By how much later than at the beginning the successes came at the end, if that is real: g above.

    Both ascend by due; `late`: how long after the load nearly all had ended.
    """
    n = behind.size
    low, high = rank(_LOW, n) - 1, rank(_HIGH, n) - 1
    growth = min(late * n / (high + 1), float(behind[high] - behind[low]) * n / max(1, high - low))
    growth = min(growth, 2 * (growth - _SMALL * length))
    if growth <= 0:
        return 0.0
    weight = (1 + growth / length) ** 0.25  # a drain that outlasts the load needs less proof
    return growth * _still_growing(behind, growth) * _ramp(_later(latency) * weight, 2.0, 3.5)


def _still_growing(behind: Ints, growth: float) -> float:
    """Whether the middle of the last third is later than that of the second by the third of the growth that a
    backlog which grows evenly shows: 0 under 0.4 of it, 1 from 0.75 on.
    """
    third = behind.size // 3
    last = quantile(behind[behind.size - max(1, third) :], 0.5) or 0
    middle = quantile(behind[third : behind.size - third], 0.5) or 0
    return _ramp(3 * (last - middle) / growth, 0.4, 0.75)


def _later(latency: Ints) -> float:
    """By how many standard errors more requests of the second half were slower than the median than of the first.

    The sign test for two samples, which no straggler bends.
    """
    half = latency.size // 2
    side = np.sign(latency - np.median(latency))  # a cut between the halves, no figure that is shown
    error = float(side.std()) * (2 / half) ** 0.5
    return float(side[latency.size - half :].mean() - side[:half].mean()) / error if error else 0.0


def _ramp(value: float, nothing: float, whole: float) -> float:
    return min(1.0, max(0.0, (value - nothing) / (whole - nothing)))


def _overlap(begin: Ints, end: Ints, start: int, stop: int) -> Floats:
    """The share of each [begin, end] that lies within [start, stop]; a moment counts whole where it lies."""
    length = np.maximum(end - begin, 1)
    inside = np.minimum(np.maximum(end, begin + 1), stop) - np.maximum(begin, start)
    return np.asarray(np.clip(inside / length, 0.0, 1.0), dtype=np.float64)


def per_s(count: float | None, span: int | None) -> float | None:
    """None where there is no span or no count."""
    return None if count is None or not span else float(count) * 1e9 / span
