"""What a person watches while a run goes: one line, cheap enough not to disturb what it shows.

Percentiles here are read from bins 1 % wide and marked so; the summary has the exact ones.  A plain line
is written, not a rendered table: drawing tables takes milliseconds from the loop that sends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.histogram import rank
from loadgen.records import Outcome
from loadgen.units import show_ns

if TYPE_CHECKING:
    from loadgen.seams import Clock

_PER_DECADE = 231  # log bins: each 1 % wide
_BINS = 12 * _PER_DECADE + 1  # 1 ns to 1,000 s


class LiveLatency:
    """Latencies of the successes of the newest phase; fed with blocks of rows, from the writer's thread."""

    def __init__(self) -> None:
        self.bins = np.zeros(_BINS, np.int64)
        self._phase = -1

    def add(self, rows: np.ndarray[Any, Any]) -> None:
        """`rows` of runfile.ROW_DTYPE."""
        if rows["phase"][-1] != self._phase:
            self._phase = rows["phase"][-1]
            self.bins[:] = 0
        ok = rows[(rows["outcome"] == Outcome.OK) & (rows["phase"] == self._phase)]
        latency = np.maximum(ok["done_ns"] - ok["due_ns"], 1)
        at = np.minimum((np.log10(latency) * _PER_DECADE).astype(np.int64), _BINS - 1)
        self.bins += np.bincount(at, minlength=_BINS)


def live_quantile(bins: np.ndarray[Any, Any], q: float) -> float | None:
    """Nanoseconds, to about 1 %, of LiveLatency's bins (or a sum of them); None before the first success."""
    seen = np.cumsum(bins)
    if len(seen) == 0 or seen[-1] == 0:
        return None
    return float(10 ** ((int(np.searchsorted(seen, rank(q, int(seen[-1])))) + 0.5) / _PER_DECADE))


class LiveLine:
    """Turns counters into one line of text; rates are over the time since the line before, or the first phase's start.

    The counters are of the whole run: the first line of a later phase has neither rates nor latencies of its own yet.
    """

    def __init__(self, clock: Clock) -> None:
        self._now = clock.now_ns
        self._last = (clock.now_ns(), 0, 0)
        self._phase, self._ok_before = "", 0  # of the phase, and of those before it as of its first line

    def text(self, phase: str, elapsed_ns: int, planned_ns: int | None, watched: Any) -> str:
        """`watched` has the engine's counters (due, ok, failed, dropped), requests in flight and latency bins."""
        now, counts = self._now(), watched.counts
        then, due, ended = self._last
        if not due:  # nothing was sent before this phase: the first line leaves out the time before it began
            then = max(then, now - max(elapsed_ns, 0))
        begins = phase != self._phase
        if begins:
            self._phase, self._ok_before = phase, counts.ok if due else 0
        own_rates = not (begins and due)
        seconds = max(now - then, 1) / 1e9
        self._last = (now, counts.due, counts.ok)
        of = f"/{planned_ns / 1e9:.0f} s" if planned_ns else " s"
        parts = [f"{phase} {max(elapsed_ns, 0) / 1e9:.0f}{of}"]
        if own_rates:
            parts.append(f"asked {(counts.due - due) / seconds:.0f}/s")
            parts.append(f"answered {(counts.ok - ended) / seconds:.0f}/s")
        parts.append(f"in flight {watched.in_flight}")
        if own_rates:
            parts.append(self._latencies(watched))
        parts.append(f"errors {counts.failed}")
        if counts.dropped:
            parts.append(f"dropped {counts.dropped}")
        return "  ".join(parts)

    def _latencies(self, watched: Any) -> str:
        p50, p99 = live_quantile(watched.bins, 0.5), live_quantile(watched.bins, 0.99)
        if p50 and p99 and watched.counts.ok > self._ok_before:
            return f"P50 ~{show_ns(p50)}  P99 ~{show_ns(p99)}"
        return "no answer yet"
