"""Files in or out of the page cache, and how much of them is there: a condition is made, then measured.

It must not know servers.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_DROP = Path("/proc/sys/vm/drop_caches")
_PIECE = 2**22


def files_below(folders: Iterable[Path]) -> Iterator[Path]:
    """Every plain file with something in it."""
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            with suppress(OSError):
                if path.is_file() and not path.is_symlink() and path.stat().st_size:
                    yield path


def may_drop_all() -> bool:
    """Whether this process may drop the whole machine's cache."""
    return os.access(_DROP, os.W_OK)


def drop_all() -> bool:
    """Drops every clean page of the machine's cache that no process has mapped; False when that is not permitted."""
    os.sync()
    try:
        _DROP.write_text("3")
    except OSError:
        return False
    return True


def drop(folders: Iterable[Path]) -> None:
    """Takes the files below these folders out of the cache, as far as no process has them mapped.  No rights needed."""
    for path in files_below(folders):
        with suppress(OSError):
            _drop_one(path)


def _drop_one(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # dirty pages stay; a file that we may only read has none of ours
            os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def fill(folders: Iterable[Path]) -> None:
    """Reads the files below these folders, so that they are in the cache."""
    for path in files_below(folders):
        with suppress(OSError), path.open("rb", buffering=0) as file:
            while file.read(_PIECE):
                pass


def fresh_copy(folder: Path, into: Path) -> Path:
    """A copy of a folder that nobody has mapped and that is not in the cache."""
    target = into / folder.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("__pycache__"))
    drop([target])
    return target


def cached_share(folders: Iterable[Path]) -> float | None:
    """The share of the bytes below these folders that is in the page cache; None when the system does not tell."""
    pages = inside = 0
    for path in files_below(folders):
        found = _resident(path)
        if found is None:
            return None
        inside, pages = inside + found[0], pages + found[1]
    return inside / pages if pages else None


def _resident(path: Path) -> tuple[int, int] | None:
    """(pages in the cache, pages) of a file: mincore(2) of a mapping that touches none of them."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            size = len(view)
            pages = -(-size // mmap.PAGESIZE)
            there = (ctypes.c_ubyte * pages)()
            whole = np.frombuffer(view, np.uint8)
            failed = ctypes.CDLL(None).mincore(
                ctypes.c_void_p(whole.ctypes.data), ctypes.c_size_t(size), there
            )
            del whole  # or the mapping cannot be closed
            return None if failed else (sum(page & 1 for page in bytes(there)), pages)
    except (OSError, ValueError, AttributeError):
        return None
