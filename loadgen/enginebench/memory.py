"""Peak memory while something runs: torch's allocator, the GPU, the process.

A process's peak is the kernel's own, set back before each cell; where that is not allowed it says so by being
absent.  It must not know what runs.
"""

import ctypes
import gc
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_NOISE = 4 * 2**20  # bytes: what a process's figure moves by on its own
_STEEPER = 1.5


def rss() -> tuple[int, int]:
    """(bytes the process holds now, the most it held since `reset_peak`); zeros where the kernel does not say."""
    try:
        text = _STATUS.read_text(encoding="ascii")
    except OSError:
        return 0, 0
    told = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return tuple(int(told.get(key, "0").split()[0]) * 1024 for key in ("VmRSS", "VmHWM"))  # type: ignore[return-value]


def reset_peak(device: str) -> bool:
    """Starts new peaks; False where the kernel keeps the process's old one."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    try:
        _CLEAR.write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def device_used(device: str) -> int:
    """Bytes of the GPU that are taken, by all processes; 0 without a GPU."""
    if device != "cuda":
        return 0
    import torch

    free, whole = torch.cuda.mem_get_info()
    return int(whole - free)


def tidy(device: str) -> None:
    """Gives back what nothing uses, so that the next runtime starts from the same place."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
    with suppress(OSError, AttributeError):  # another libc
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def peaks(
    device: str, *, before: int, taken: int, opened: int | None, fresh: bool, torch_runs: bool
) -> dict[str, int]:
    """Bytes by where they were counted (see cells.Cell).  `before` and `opened` are the process's then, `taken` the
    GPU's before the runtime was opened.  `torch_runs`: every byte of it is of torch's allocator.
    """
    now, most = rss()
    found: dict[str, int] = {}
    if device == "cuda":
        import torch

        if torch_runs:
            found["torch_peak"] = int(torch.cuda.max_memory_allocated())
        found["device_used"] = device_used(device)
        found["device_growth"] = max(0, found["device_used"] - taken)
    if now and fresh:
        found["rss_peak"] = most
        found["rss_growth"] = max(0, most - before)
        if opened is not None:
            found["arena"] = max(0, now - opened)
    return found


def growth(points: Mapping[int, int]) -> dict[str, object]:
    """How peak memory ({batch: bytes}) grows: bytes a further row costs, and whether it costs more and more.

    "linear": every step is within 1.5 times the cheapest slope before it, or within the figure's own noise.
    Smaller batches that fit into what opening the model took, and so cost nothing, say nothing; None with fewer
    than two steps beside those.
    """
    batches = sorted(points)
    slopes = [(points[b] - points[a]) / (b - a) for a, b in pairwise(batches)]
    flat = next(
        (at for at, (a, b) in enumerate(pairwise(batches)) if points[b] - points[a] > _NOISE), len(slopes)
    )
    if len(slopes) - flat < 2:  # noqa: PLR2004 - two points are always a line
        return {"linear": None, "bytes_per_row": slopes, "at_batch": None}
    bad: Sequence[int] = [
        batches[at + 1]
        for at in range(flat + 1, len(slopes))
        if (slopes[at] - _STEEPER * max(0.0, min(slopes[flat:at]))) * (batches[at + 1] - batches[at]) > _NOISE
    ]
    return {"linear": not bad, "bytes_per_row": slopes, "at_batch": bad[0] if bad else None}
