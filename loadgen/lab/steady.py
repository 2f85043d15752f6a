"""Warm until steady: windows of load until the last of them took the same time.

A model that was just loaded is slow at first, for seconds or for minutes; a fixed number of warm-up requests is
either too few or a waste.  This module must not know how a window is sent.
"""

from __future__ import annotations

import shutil
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from loadgen.analysis.summary import summarise
from loadgen.records import LoadgenError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WINDOW_NS = 10**9
LAST, WITHIN = 3, 0.15  # so many windows in a row, the slowest at most that much above the fastest
FALLS = 0.02  # from the first of them to the last, each below the one before: still on its way down


def is_steady(medians: list[float]) -> bool:
    """Whether the last windows took alike and are not falling, each faster than the one before it.

    A model that warms up over minutes gains little from one window to the next; what gains less than FALLS in LAST
    windows passes for steady.
    """
    last = medians[-LAST:]
    if len(last) < LAST or max(last) > (1 + WITHIN) * min(last):
        return False
    falling = all(b < a for a, b in pairwise(last))
    return not (falling and last[0] > (1 + FALLS) * last[-1])


def warm(
    window: Callable[[str], tuple[Path, bool]], most_ns: int, now_ns: Callable[[], int] = time.monotonic_ns
) -> dict[str, Any] | None:
    """Sends windows until the medians of their service times are steady or the time is over; None when interrupted.

    `window` gets a name, and gives the run folder (which goes when it was read) and whether it was cut short.
    Raises LoadgenError when nothing succeeds.
    """
    end, medians = now_ns() + most_ns, list[float]()
    while not is_steady(medians) and (len(medians) < LAST or now_ns() < end):
        folder, interrupted = window(str(len(medians) + 1))
        told = summarise(folder)["total"]["service_ns"]["p50"]
        shutil.rmtree(folder, ignore_errors=True)
        if interrupted:
            return None
        if told is None:
            raise LoadgenError("nothing succeeded while warming the model")
        medians.append(told)
    return {"steady": is_steady(medians), "warm_p50_ns": medians}
