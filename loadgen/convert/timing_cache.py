"""What TensorRT measured of its kernels, kept so that the next build need not measure again.

It must not know what is built.
"""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

from loadgen.environment.cuda import Device


def file_of(folder: Path, version: str, device: Device) -> Path:
    """The cache of this TensorRT on this GPU: timings of another are worth nothing."""
    name = f"{version}-{device.name}-{device.compute}-cuda{device.driver_cuda}".replace(" ", "_")
    return folder / f"{name}.timing"


def load(config: Any, file: Path | None) -> str:
    """Gives the builder what the file holds; "used", "new", or "none" without a file."""
    if file is None:
        return "none"
    try:
        old = file.read_bytes()
    except OSError:
        old = b""
    known = config.create_timing_cache(old) if old else None  # None also for a damaged file
    if known is not None and config.set_timing_cache(known, False):
        return "used"
    config.set_timing_cache(config.create_timing_cache(b""), False)
    return "new"


def store(file: Path, data: Any) -> None:
    """Best effort: a build that worked is not lost over its cache."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as new:
            new.write(memoryview(data))
        os.replace(new.name, file)  # noqa: PTH105
