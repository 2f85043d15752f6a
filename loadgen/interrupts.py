"""Ctrl-C, and the polite ends that others ask for: when they are told, and when they come too late.

What is in force is the handler that is installed, so who put it there can take it away.  It must not know what is
interrupted.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_PLAIN = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}
_AGAIN_S = 0.02
_came: list[int] = []  # the signals that were told since `install`


def install() -> None:
    """From here on each of them is a KeyboardInterrupt; what the caller ignores stays so (nohup)."""
    _came.clear()
    for number, plain in _PLAIN.items():
        if signal.getsignal(number) is plain:
            signal.signal(number, _tell)
    atexit.unregister(_ignore)
    atexit.register(_ignore)  # before those of libraries, so that it runs after them


def came() -> bool:
    """Whether one was told since `install`: who meets a fault afterwards may have to do with that."""
    return bool(_came)


def settle() -> None:
    """What was asked for is done, or will be in a moment: what comes now changes nothing."""
    _swap(_tell, _too_late)


def leave(code: int) -> None:
    """Nothing but the interpreter's own end is left: what comes now ends the process at once, with `code`."""

    def now(_number: int, _frame: FrameType | None) -> None:
        os._exit(code)

    _swap(_tell, now)
    _swap(_too_late, now)
    # One that was told inside a string's `exec`, as libraries have it in their imports, is remembered as met by nobody,
    # and the process would die of it in the end; the next `exec` forgets.
    exec("")  # noqa: S102


@contextmanager
def held() -> Iterator[None]:
    """What comes meanwhile is told at the end, whoever's handler it is: for steps that are only good together."""
    before: dict[int, Any] = {}
    waiting: list[int] = []
    if threading.current_thread() is threading.main_thread():
        before = {number: handler for number in _PLAIN if callable(handler := signal.getsignal(number))}
    try:
        for number in before:
            signal.signal(number, lambda number, _frame: waiting.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in waiting[:1]:
            signal.raise_signal(number)


def _tell(number: int, frame: FrameType | None) -> None:
    if _in_extension(
        frame
    ):  # whose C code would make an ImportError of it, and that may be caught: again in a moment
        signal.signal(signal.SIGALRM, _tell)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        return
    _came.append(number)
    raise KeyboardInterrupt


def _too_late(_number: int, _frame: FrameType | None) -> None:
    pass


def _in_extension(frame: FrameType | None) -> bool:
    """Whether a module written in C is just being imported."""
    while frame is not None:
        if frame.f_code.co_name in ("create_module", "exec_module") and isinstance(
            frame.f_locals.get("self"), ExtensionFileLoader
        ):
            return True
        frame = frame.f_back
    return False


def _swap(old: Any, new: Any) -> None:
    for number in (*_PLAIN, signal.SIGALRM):
        if signal.getsignal(number) is old:
            signal.signal(number, new)


def _ignore() -> None:
    """While the interpreter takes itself apart it gives back its handlers, and a signal would be the exit code."""
    for number in _PLAIN:
        signal.signal(number, signal.SIG_IGN)
