"""Waiting until an absolute time on an event loop.

Event loop timers have millisecond grain (asyncio's epoll and uvloop alike); a Linux `timerfd` armed with an
absolute CLOCK_MONOTONIC time wakes the loop within tens of microseconds.  Elsewhere the loop's own timer
is used and `kind` says so.  This module must not know what is paced.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from loadgen.seams import Clock, Pacer

_CLOCK_MONOTONIC, _TFD_NONBLOCK, _TFD_CLOEXEC, _TFD_ABSTIME = 1, 0o4000, 0o2000000, 1


class _TimeSpec(ctypes.Structure):
    _fields_ = (("sec", ctypes.c_long), ("nsec", ctypes.c_long))


class _ITimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class TimerFdPacer:
    """A `timerfd` read by the loop; Linux only.  Raises OSError where the kernel has none."""

    kind = "timerfd"

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._settime = self._libc.timerfd_settime
        self._spec = _ITimerSpec()
        self._spec_ref = ctypes.byref(self._spec)
        self._call: Callable[[], None] | None = None
        self._at_ns = 0
        self._loop = loop
        loop.add_reader(self._fd, self._ready)

    def arm(self, at_ns: int, call: Callable[[], None]) -> None:
        """See seams.Pacer.  A time in the past fires on the loop's next turn."""
        self._call, self._at_ns = call, at_ns
        value = self._spec.value
        value.sec, value.nsec = divmod(max(at_ns, 1), 1_000_000_000)  # 0 would disarm
        if self._settime(self._fd, _TFD_ABSTIME, self._spec_ref, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def _ready(self) -> None:
        if time.monotonic_ns() < self._at_ns:
            return  # re-armed between the wake-up and this call
        call, self._call = self._call, None
        if call is not None:
            call()
        if self._call is None:  # arming anew empties the descriptor, else it must be read
            with contextlib.suppress(BlockingIOError):
                os.read(self._fd, 8)

    def close(self) -> None:
        """Disarms and frees the descriptor."""
        self._call = None
        self._loop.remove_reader(self._fd)
        os.close(self._fd)


class LoopPacer:
    """The loop's own timers: about a millisecond of grain on a real loop, exact on a virtual one."""

    kind = "event loop timer (no timerfd here): about 1 ms of grain"

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop, self._clock = loop, clock
        self._handle: asyncio.TimerHandle | None = None

    def arm(self, at_ns: int, call: Callable[[], None]) -> None:
        """See seams.Pacer."""
        self.close()
        self._handle = self._loop.call_later(max(0, at_ns - self._clock.now_ns()) / 1e9, call)

    def close(self) -> None:
        """Disarms."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


def make_pacer(loop: asyncio.AbstractEventLoop, clock: Clock) -> tuple[Pacer, str]:
    """The best pacer this machine has, and its name for run.json."""
    if sys.platform == "linux":
        try:
            pacer = TimerFdPacer(loop)
        except OSError:
            pass
        else:
            return pacer, pacer.kind
    fallback = LoopPacer(loop, clock)
    return fallback, fallback.kind
