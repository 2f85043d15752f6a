"""Rounds of one call: warm-up apart, CUDA events on a GPU, the monotonic clock on a CPU.

It must not know what is called.
"""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from loadgen.enginebench.cells import latency

_MOST_ROUNDS = 100_000

Call = Callable[[], Any]


def time_calls(
    call: Call, *, device: str, seconds: float, rounds: int, warmup: int, on_stream: bool = True
) -> dict[str, Any]:
    """Latencies of `call`: at least `rounds`, more while `seconds` last.  Nothing of the warm-up is in them.

    On CUDA with `on_stream` a call's work is on torch's current stream: it is timed by events on it, and each
    round waits for the one before.  Elsewhere a call is over when it returns.
    """
    cuda = device == "cuda"
    start = time.monotonic_ns()
    call()
    wait(device)
    first_ns = float(time.monotonic_ns() - start)
    for _ in range(warmup - 1):
        call()
    wait(device)
    one = _by_events if cuda and on_stream else _by_clock
    found: list[float] = []
    end = time.monotonic() + seconds
    while len(found) < rounds or (time.monotonic() < end and len(found) < _MOST_ROUNDS):
        found.append(one(call))
    return {**latency(found), "first_ns": first_ns}


def time_parts(
    parts: Sequence[tuple[str, Call]], *, device: str, seconds: float, rounds: int, warmup: int
) -> dict[str, Any]:
    """Latencies of calls made one after the other, as one whole; the median of each in `parts`."""
    start = time.monotonic_ns()
    for _, call in parts:
        call()
    wait(device)
    first_ns = float(time.monotonic_ns() - start)
    for _ in range(warmup - 1):
        for _, call in parts:
            call()
    wait(device)
    found: list[list[float]] = []
    end = time.monotonic() + seconds
    while len(found) < rounds or (time.monotonic() < end and len(found) < _MOST_ROUNDS):
        found.append(_marked(parts, device))
    medians = {name: latency([row[at] for row in found])["median_ns"] for at, (name, _) in enumerate(parts)}
    return {**latency([sum(row) for row in found]), "first_ns": first_ns, "parts": medians}


def wait(device: str) -> None:
    """Until the GPU has done what it was given; nothing on a CPU."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def _by_clock(call: Call) -> float:
    start = time.monotonic_ns()
    call()
    return float(time.monotonic_ns() - start)


def _by_events(call: Call) -> float:
    before, after = _event(), _event()
    before.record()
    call()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after) * 1e6)  # milliseconds


def _marked(parts: Sequence[tuple[str, Call]], device: str) -> list[float]:
    if device != "cuda":
        marks = [time.monotonic_ns()]
        for _, call in parts:
            call()
            marks.append(time.monotonic_ns())
        return [float(b - a) for a, b in pairwise(marks)]
    events = [_event() for _ in range(len(parts) + 1)]
    events[0].record()
    for (_, call), event in zip(parts, events[1:], strict=True):
        call()
        event.record()
    events[-1].synchronize()
    return [float(a.elapsed_time(b) * 1e6) for a, b in pairwise(events)]


def _event() -> Any:
    import torch

    made: Any = torch.cuda.Event
    return made(enable_timing=True)
