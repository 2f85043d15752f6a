"""How many successes a phase had a second: what each of them counts for, over which span.

The load lasts from the phase's start S to its end E, T = E - S.  The drain after it is in no rate of its own.

* Open loop: all successes over T + k * g.  Whatever the pattern of the arrivals, a server that answered all of
  them as fast at the end as before shows the rate it was asked for: nothing is cut off at the edges of the load.
  - g is by how much later than at the beginning the server was at the end.  Due times and ends are sorted apart:
    v(q) is the time from the q-th due to the q-th end, so the order in which a server answers plays no part.
    g = v(0.99) - v(0.01), scaled up by 1 / 0.98, and at most the time from E until 99 % had ended, scaled up to
    all; so neither one straggler nor a burst at an edge makes any of it.  A server of capacity c that was asked
    for more answers without a gap until S + n / c: n / (T + g) is c.  Under 0.5 % of T g is nothing; it is whole
    from 1 % on.
  - k, 0 to 1, is what speaks for the growth being real.  The product of two: `_still_growing`, whether v grew
    in the last two thirds as it does while a backlog grows (a server that is slower when busy, and stays so,
    keeps up), and `_later`, whether the requests themselves took longer in the second half of the load than
    chance explains.  1 when 5 % or more were turned away (rejected, timed out, dropped): then the queue was full
    and no longer grew.
  - Bias, by simulation (tests/unit/test_analysis_rates.py): 0 while all ends within 0.5 % of T after E, else of
    latencies that do not depend on the load -0.1 % in the mean, 1 % or more in some 2 % of the runs where the mean
    latency is 6 % of T; none under overload by 1.5 and more, +1 to 2 % by 1.1, where noise hides the growth.
    A last-come-first-served server without rejections shows what it was asked for.
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
_LOW, _HIGH = 0.01, 0.99  # of the successes: what lies outside may be a straggler
_SMALL = 0.005  # of the load: a growth under it is none, twice as much is whole
_FULL = 0.05  # turned away: from here on the queue was full


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
        known = min(end, seen - (quantile(good.latency_ns, 0.5) or 0))
        end = known if known > start else end
    turned = np.count_nonzero(rows.rejected | rows.timeout | rows.dropped) / max(1, len(rows))
    span = end - start + round(_growth_ns(good, start, end - start, turned))
    return Window(span, ok, float(np.count_nonzero(judged)))


def _incomparable(good: Frame, closed: bool, length: int) -> bool:
    if length <= 0:
        return True
    return (closed or len(good) == 1) and (quantile(good.latency_ns, 0.5) or 0) >= length


def _growth_ns(good: Frame, start: int, length: int, turned: float) -> float:
    """By how much later than at the beginning of an open load its successes came at its end: k * g above."""
    n = len(good)
    if n < 2:  # noqa: PLR2004 - one shows no growth
        return 0.0
    low, high = rank(_LOW, n) - 1, rank(_HIGH, n) - 1
    done = good.done_ns - start
    late = float(np.partition(done, high)[high]) * n / (high + 1) - length
    if late <= _SMALL * length or low == high:  # most runs: nothing is sorted for them
        return 0.0
    behind = np.sort(done) - np.sort(good.due_ns - start)
    growth = min(late, float(behind[high] - behind[low]) * n / (high - low))
    growth = min(growth, 2 * (growth - _SMALL * length))
    if growth <= 0:
        return 0.0
    weight = (1 + growth / length) ** 0.25  # a drain that outlasts the load needs less proof
    real = _still_growing(behind, growth) * _ramp(_later(good) * weight, 2.0, 3.5)
    return growth * max(real, min(1.0, turned / _FULL))


def _still_growing(behind: Ints, growth: float) -> float:
    """Whether the middle of the last third is later than that of the second by the third of the growth that a
    backlog which grows evenly shows: 0 under 0.4 of it, 1 from 0.75 on.
    """
    third = behind.size // 3
    last = quantile(behind[behind.size - max(1, third) :], 0.5) or 0
    middle = quantile(behind[third : behind.size - third], 0.5) or 0
    return _ramp(3 * (last - middle) / growth, 0.4, 0.75)


def _later(good: Frame) -> float:
    """By how many standard errors more requests of the second half were slower than the median than of the first.

    Halves by due, equal ones by sent; the sign test for two samples, which no straggler bends.
    """
    order = np.lexsort((good.sent_ns, good.due_ns))
    latency = good.latency_ns[order]
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
