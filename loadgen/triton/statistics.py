"""What a server did in a window: arithmetic on two readings of its cumulative counters.

Batch sizes and service times come from `batch_stats` (one entry an execution); what a request experienced
comes from `inference_stats`, where each request of a batch is charged the whole batch.
Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

_Key = TypeVar("_Key", int, str)
_COMPUTE = ("compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True, slots=True)
class Tally:
    """A count and the nanoseconds it took in all."""

    count: int = 0
    ns: int = 0

    @property
    def mean_ns(self) -> float | None:
        return self.ns / self.count if self.count else None

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.count + other.count, self.ns + other.ns)

    def __sub__(self, other: "Tally") -> "Tally":
        return Tally(self.count - other.count, self.ns - other.ns)


@dataclass(frozen=True, slots=True)
class ServerWindow:
    """Differences of counters.  Means are None where nothing was measured."""

    inferences: int = 0  # rows, without cache hits
    executions: int = 0  # batches
    success: Tally = field(default_factory=Tally)  # requests, from arrival to answer
    failed: Tally = field(default_factory=Tally)
    queue: Tally = field(default_factory=Tally)
    compute: Tally = field(default_factory=Tally)  # input + infer + output, as requests experienced it
    parts: Mapping[str, Tally] = field(default_factory=dict)  # compute by input, infer, output
    batches: Mapping[int, Tally] = field(default_factory=dict)  # by batch size, a count an execution
    cache_hits: int = 0
    cache_misses: int = 0
    went_back: bool = False  # a counter fell: reloaded or restarted in the window; or is no number: nothing here can be told

    @property
    def batch_sizes(self) -> dict[int, int]:
        """Executions by batch size, only sizes that were executed."""
        return {size: tally.count for size, tally in sorted(self.batches.items()) if tally.count}

    @property
    def mean_batch(self) -> float | None:
        return self.inferences / self.executions if self.executions else None

    @property
    def busy_ns(self) -> int:
        """Of all instances together: what the executions took."""
        return sum(tally.ns for tally in self.batches.values())

    @property
    def queue_ns_mean(self) -> float | None:
        return self.queue.mean_ns

    @property
    def compute_ns_mean(self) -> float | None:
        return self.compute.mean_ns


def window(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> ServerWindow:
    """What one model version did between two readings of its statistics.

    `before` None: it was loaded within the window, all it counted belongs to it.  `after` None: it was
    unloaded within the window and took its counters along.
    """
    if after is None:
        return ServerWindow() if before is None else ServerWindow(went_back=True)
    try:
        new, old = _total(after), _total(before) if before is not None else ServerWindow()
    except (AttributeError, KeyError, TypeError, ValueError):  # counters that are no numbers
        return ServerWindow(went_back=True)
    batches = {size: tally - old.batches.get(size, Tally()) for size, tally in new.batches.items()}
    vanished = any(size not in new.batches and tally.count for size, tally in old.batches.items())
    result = ServerWindow(
        inferences=new.inferences - old.inferences,
        executions=new.executions - old.executions,
        success=new.success - old.success,
        failed=new.failed - old.failed,
        queue=new.queue - old.queue,
        compute=new.compute - old.compute,
        parts={part: tally - old.parts.get(part, Tally()) for part, tally in new.parts.items()},
        batches={size: tally for size, tally in batches.items() if tally.count or tally.ns},
        cache_hits=new.cache_hits - old.cache_hits,
        cache_misses=new.cache_misses - old.cache_misses,
    )
    return ServerWindow(went_back=True) if vanished or _negative(result) else result


def of_ensemble(one: ServerWindow) -> ServerWindow:
    """What the counters of an ensemble can tell: its requests, failures and cache.

    Triton counts each request as an execution of one, queue times before its first step and compute times summed over
    the steps: no batch, queue or execution there ever was.
    """
    return replace(one, executions=0, queue=Tally(), compute=Tally(), parts={}, batches={})


def moved(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> bool:
    """Whether a model version was asked or executed between two readings."""
    seen = window(before, after)
    return seen.went_back or bool(seen.executions or seen.success.count or seen.failed.count)


def merge(windows: Iterable[ServerWindow]) -> ServerWindow:
    """Several models, versions or stretches of time as one.  One that went back taints the whole."""
    total = ServerWindow()
    for one in windows:
        if one.went_back or total.went_back:
            total = ServerWindow(went_back=True)
            continue
        total = ServerWindow(
            inferences=total.inferences + one.inferences,
            executions=total.executions + one.executions,
            success=total.success + one.success,
            failed=total.failed + one.failed,
            queue=total.queue + one.queue,
            compute=total.compute + one.compute,
            parts=_added(total.parts, one.parts),
            batches=_added(total.batches, one.batches),
            cache_hits=total.cache_hits + one.cache_hits,
            cache_misses=total.cache_misses + one.cache_misses,
        )
    return total


def _added(some: Mapping[_Key, Tally], more: Mapping[_Key, Tally]) -> dict[_Key, Tally]:
    return {key: some.get(key, Tally()) + more.get(key, Tally()) for key in {**some, **more}}


def _total(reading: Mapping[str, Any]) -> ServerWindow:
    """One reading as the window since load."""
    stats = reading.get("inference_stats") or {}
    infer = _tally(stats, "compute_infer")
    return ServerWindow(
        inferences=int(reading.get("inference_count") or 0),
        executions=int(reading.get("execution_count") or 0),
        success=_tally(stats, "success"),
        failed=_tally(stats, "fail"),
        queue=_tally(stats, "queue"),
        compute=Tally(infer.count, sum(_tally(stats, part).ns for part in _COMPUTE)),
        parts={part.removeprefix("compute_"): _tally(stats, part) for part in _COMPUTE if part in stats},
        batches={
            int(row["batch_size"]): Tally(
                _tally(row, "compute_infer").count, sum(_tally(row, part).ns for part in _COMPUTE)
            )
            for row in reading.get("batch_stats") or ()
        },
        cache_hits=_tally(stats, "cache_hit").count,
        cache_misses=_tally(stats, "cache_miss").count,
    )


def _tally(stats: Mapping[str, Any], name: str) -> Tally:
    row = stats.get(name) or {}
    return Tally(int(row.get("count") or 0), int(row.get("ns") or 0))


def _negative(delta: ServerWindow) -> bool:
    tallies = (delta.success, delta.failed, delta.queue, delta.compute, *delta.batches.values())
    counts = (delta.inferences, delta.executions, delta.cache_hits, delta.cache_misses)
    return any(count < 0 for count in counts) or any(t.count < 0 or t.ns < 0 for t in tallies)
