"""Progress on stderr: one line that renews itself on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from types import TracebackType
from typing import Self

_EVERY_S = 5.0


class Progress:
    """`say` shows what happens once, `tick` what renews itself; nothing when quiet.  Never writes to stdout."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet, self._tty = quiet, sys.stderr.isatty()
        self._written, self._open = 0.0, False

    def say(self, text: str) -> None:
        """Shows one line; once nobody reads them, no more."""
        if self._quiet:
            return
        try:
            self._show(text)
        except OSError:
            self._quiet = True

    def _show(self, text: str) -> None:
        if self._tty:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write("\r\x1b[K" + text[:width])
            self._open = True
        else:
            sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def tick(self, text: str) -> None:
        """Shows a line in place of the last one; where lines cannot be replaced, one every few seconds."""
        if self._tty or time.monotonic() - self._written > _EVERY_S:
            self._written = time.monotonic()
            self.say(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open and not self._quiet:
            with contextlib.suppress(OSError):
                sys.stderr.write("\n")
