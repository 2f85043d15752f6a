"""Progress on stderr: one line that renews itself on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType
from typing import Self

_EVERY_S = 5.0


class Progress:
    """`say(text)` shows a line of progress; nothing when quiet.  Never writes to stdout."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet, self._tty = quiet, sys.stderr.isatty()
        self._written, self._open = 0.0, False

    def say(self, text: str) -> None:
        """Shows the text; lines that renew (they count seconds) are thinned out when stderr is no terminal."""
        if self._quiet:
            return
        if self._tty:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write("\r\x1b[K" + text[:width])
            sys.stderr.flush()
            self._open = True
        elif "in flight" not in text or time.monotonic() - self._written > _EVERY_S:
            self._written = time.monotonic()
            sys.stderr.write(text + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open:
            sys.stderr.write("\n")
