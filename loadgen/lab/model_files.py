"""What a model's folder holds, so that two runs tell whether they measured the same model."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_MOST_BYTES = 1 << 30  # of a larger file size and time are taken for its contents
_DIGITS = 16


def model_files(folder: Path) -> dict[str, str]:
    """The beginning of the SHA-256 of each file by its path in the folder, its size and time where it is large.

    Empty where the folder cannot be read.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            try:
                stat = path.stat()
                found[path.relative_to(folder).as_posix()] = _print_of(path, stat.st_size, stat.st_mtime_ns)
            except OSError:
                continue
    return found


@cache
def _print_of(path: Path, size: int, mtime_ns: int) -> str:
    if size > _MOST_BYTES:
        return f"{size} bytes of {mtime_ns}"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_DIGITS]
