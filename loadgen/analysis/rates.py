"""How many successes a phase had a second: which of them count, by what share, over which span.

The span is the load: from the phase's start S to the load's end E, T = E - S.  The drain after it is in no
rate, so one request that takes long can neither stretch the span nor empty it.

* Open loop: successes done in [S + m, E + m) over T, where m is the median latency of the phase's successes.
  An answer comes a latency after its arrival, so the answers of [S, E) come m later; while a server is
  overloaded it answers without a gap throughout the moved window, which then shows what it can do.
  Bias of a server that keeps up: -mean(|latency - m|) / T, the least that any one shift can have (the median
  minimises the mean distance).  Constant latency: none.
* Closed loop of N users: each success counts by the share of its cycle, due to done and the think time after
  it, that lies within [S, E].  Users are busy from S on, so every instant of every user belongs to one cycle.
  Bias: +N cv^2 / (2 T) with cv the cycles' coefficient of variation (renewal theory: a user's whole cycles
  are T/mu - 1/2 + cv^2/2 on average, and the cut one adds 1/2).  Constant cycles: none.
* When the median success took longer than the load lasted (one request in a phase shorter than itself), nothing
  was steady: all successes over the span from S to the last of them.
* A run that was killed knows nothing after the last sign of life: the open window ends there.

This module must not know where a rate is shown.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.analysis.columns import Ints
from loadgen.analysis.frame import Bools, Frame
from loadgen.analysis.percentiles import quantile

Floats = npt.NDArray[np.float64]
Shares = npt.NDArray[np.float64] | Bools  # where each counts whole or not at all, a byte a row


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
    nothing = np.zeros(len(rows), np.bool_)
    if start is None or end is None:
        return Window(None, nothing, 0.0)
    ok, done, judged = rows.ok, rows.done_ns, ~rows.cancelled
    median = quantile(rows.where(ok).latency_ns, 0.5) or 0
    if ok.any() and median >= end - start:
        span = int(done[ok].max()) - start
        return Window(span if span > 0 else None, ok, float(np.count_nonzero(judged)))
    if end <= start:
        return Window(None, nothing, 0.0)
    if told["loop"] == "closed":
        share = _overlap(rows.due_ns, done + (told.get("think_ns") or 0), start, end)
        return Window(end - start, share * ok, float((share * judged).sum()))
    first, last = start + median, min(end + median, told.get("seen_ns") or end + median)
    if last <= first:
        first, last = start, end
    inside = (done >= first) & (done < last)
    return Window(last - first, inside & ok, float(np.count_nonzero(inside & judged)))


def _overlap(begin: Ints, end: Ints, start: int, stop: int) -> Floats:
    """The share of each [begin, end] that lies within [start, stop]; a moment counts whole where it lies."""
    length = np.maximum(end - begin, 1)
    inside = np.minimum(np.maximum(end, begin + 1), stop) - np.maximum(begin, start)
    return np.asarray(np.clip(inside / length, 0.0, 1.0), dtype=np.float64)


def per_s(count: float | None, span: int | None) -> float | None:
    """None where there is no span or no count."""
    return None if count is None or not span else float(count) * 1e9 / span
