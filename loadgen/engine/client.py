"""The client watches itself while it sends: how late its event loop runs, and the CPU time it takes.

A probe wakes up on an absolute grid; how late it comes is how late anything else on the loop may be.
This module must not know requests.
"""

from __future__ import annotations

import time
from array import array
from typing import TYPE_CHECKING, Any

from loadgen.histogram import nearest_rank

if TYPE_CHECKING:
    from loadgen.seams import Clock, Pacer

_STEP_NS = 20_000_000  # 50 probes a second cost nothing and see a stall of 20 ms for sure


class LoopLag:
    """Lateness of a wake-up on a 20 ms grid, while started."""

    def __init__(self, pacer: Pacer, clock: Clock) -> None:
        self._pacer, self._now = pacer, clock.now_ns
        self._late = array("q")
        self._at = 0
        self._on = False

    def start(self, at_ns: int) -> None:
        """Forgets what was seen; the first probe is at `at_ns`."""
        self._late, self._at, self._on = array("q"), at_ns, True
        self._pacer.arm(at_ns, self._probe)

    def _probe(self) -> None:
        if not self._on:
            return
        now = self._now()
        # a stall longer than the step swallows probes: each of them was late, too
        while self._at <= now:
            self._late.append(now - self._at)
            self._at += _STEP_NS
        self._pacer.arm(self._at, self._probe)

    def stop(self) -> None:
        """No more probes until the next start."""
        self._on = False

    def distribution(self) -> dict[str, int | None]:
        """n, p50, p99 (nearest rank) and max in nanoseconds; None when nothing was seen."""
        late = sorted(self._late)
        if not late:
            return {"n": 0, "p50": None, "p99": None, "max": None}
        return {
            "n": len(late),
            "p50": nearest_rank(late, 0.5),
            "p99": nearest_rank(late, 0.99),
            "max": late[-1],
        }

    def close(self) -> None:
        """Frees the pacer."""
        self._on = False
        self._pacer.close()


class Load:
    """The client's own figures of one phase at a time: they end with its load, for in the drain nobody sends."""

    def __init__(self, pacer: Pacer, clock: Clock) -> None:
        self._lag, self._now = LoopLag(pacer, clock), clock.now_ns

    def start(self, start_ns: int, duration_ns: int | None) -> None:
        """A phase begins, maybe of a planned duration."""
        self._start_ns, self._cpu_ns = start_ns, time.process_time_ns()
        self._planned_ns = None if duration_ns is None else start_ns + duration_ns
        self._over: tuple[int, int] | None = None
        self._lag.start(start_ns)

    def end(self) -> None:
        """The load is over, unless it was before: now, or when it was planned to be."""
        if self._over is None:
            now = self._now()
            end_ns = now if self._planned_ns is None else min(now, self._planned_ns)
            self._over = (max(end_ns, self._start_ns), time.process_time_ns() - self._cpu_ns)
            self._lag.stop()

    def figures(self, zero_ns: int) -> dict[str, Any]:
        """For engine.parts.PhaseResult, times counted from `zero_ns`; ends the load."""
        self.end()
        assert self._over is not None  # noqa: S101 - just made
        (end_ns, cpu_ns), now = self._over, self._now()
        return {
            "start_ns": self._start_ns - zero_ns, "load_end_ns": end_ns - zero_ns, "end_ns": max(now, end_ns) - zero_ns,
            "cpu_ns": cpu_ns, "cpu_max_ns": cpu_ns, "loop_lag_ns": self._lag.distribution(),
        }  # fmt: skip

    def close(self) -> None:
        """Frees the pacer."""
        self._lag.close()
