"""Memory of a server on this machine, with all processes it started (python stubs hold the models).

It must not know what the processes are for.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def tree_memory(pid: int) -> int | None:
    """Bytes of a process and its descendants; None when it is gone or this system does not tell.

    The proportional share (Pss), so that what they share is counted once; where it is hidden, the resident set.
    """
    children = _children()
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        if (size := _memory(one)) is not None:
            found.append(size)
        waiting += children[one]
    return sum(found) if found else None


def _children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = defaultdict(list)
    with suppress(OSError):
        for folder in _PROC.iterdir():
            if folder.name.isdigit():
                with suppress(OSError, ValueError, IndexError):
                    # the name, in brackets, may hold anything: what follows the last bracket is state and parent
                    parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                    children[parent].append(int(folder.name))
    return children


def _memory(pid: int) -> int | None:
    for name, key in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        with suppress(OSError, ValueError):
            for line in (_PROC / str(pid) / name).read_text().splitlines():
                if line.startswith(key):
                    return int(line.split()[1]) * 1024
    return None
