"""What the operating system can do for a process that sends: real-time scheduling, cores of its own.

Both degrade with a said reason, never silently.  This module must not know what is sent.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_PRIORITY = 10  # above every ordinary process, below the kernel's own threads (50 and more)


class Granted(NamedTuple):
    """What the system made of a request, in words for run.json."""

    words: str
    done: bool


def go_realtime() -> Granted:
    """Puts the calling thread under SCHED_FIFO.

    Threads and processes made later are not real-time: the writer of records must not compete.  Linux
    keeps 5 % of each core for the others, so a full loop cannot lock the machine.
    """
    if not hasattr(os, "sched_setscheduler"):
        return Granted("not real-time: this system has no SCHED_FIFO", done=False)
    try:
        policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(_PRIORITY))
    except PermissionError:
        words = "not real-time: not permitted (needs root, CAP_SYS_NICE or `ulimit -r 10`)"
        return Granted(words, done=False)
    except OSError as why:
        return Granted(f"not real-time: {why.strerror}", done=False)
    return Granted(f"SCHED_FIFO {_PRIORITY}", done=True)


def leave_realtime() -> None:
    """Back to ordinary scheduling: reports are not urgent."""
    if hasattr(os, "sched_setscheduler"):
        try:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        except PermissionError:  # who got it by `ulimit -r` may leave, not take back the reset on fork
            os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))


def pin(cores: Sequence[int]) -> Granted:
    """Keeps the calling thread on these cores."""
    if not hasattr(os, "sched_setaffinity"):
        return Granted("not pinned: this system cannot", done=False)
    try:
        os.sched_setaffinity(0, cores)
    except OSError as why:
        return Granted(f"not pinned to {','.join(map(str, cores))}: {why.strerror}", done=False)
    return Granted(f"pinned to {','.join(map(str, cores))}", done=True)


def pinned_core(cores: Sequence[int], worker: int) -> tuple[int, ...]:
    """The core of one of several workers: they take turns; () when no cores were asked for."""
    return (cores[worker % len(cores)],) if cores else ()
