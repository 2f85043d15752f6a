"""What a verb prints on stdout.  A reader who has enough (`| head`) does not change the exit code."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console


@contextlib.contextmanager
def printed() -> Iterator[None]:
    """For everything that is printed before an exit code; rich ends a broken pipe with SystemExit(1)."""
    with contextlib.suppress(BrokenPipeError, SystemExit):
        yield
        sys.stdout.flush()


def stderr_console() -> Console:
    """For progress on stderr: nobody reading it is no reason to stop."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True

    return Quiet(stderr=True)
