"""The client watches itself: how late the event loop runs.

A probe wakes up on an absolute grid; how late it comes is how late anything else on the loop may be.
This module must not know requests.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

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
        n = len(late)
        return {
            "n": n,
            "p50": late[-(-n * 50 // 100) - 1],
            "p99": late[-(-n * 99 // 100) - 1],
            "max": late[-1],
        }

    def close(self) -> None:
        """Frees the pacer."""
        self._on = False
        self._pacer.close()
