"""Quick starts: what a command need not wait for.  It must not know any command."""

from __future__ import annotations

import os

_THREADS = "OPENBLAS_NUM_THREADS"


def numpy_without_threads() -> None:
    """Imports numpy with one thread for its linear algebra, which loadgen never uses: starting more takes 45 ms.

    Children (a server, a converter) get the environment as it was.
    """
    if _THREADS in os.environ:
        return
    os.environ[_THREADS] = "1"
    try:
        import numpy as np  # noqa: F401
    finally:
        del os.environ[_THREADS]
