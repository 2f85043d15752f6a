"""Which rule of Triton's dynamic batcher closed each batch, told from the stamps of its requests.

Requests that share an execution are a batch.  Where it ended is read from what was left behind: the first request
that was queued when the batch began and is in a later one.  A rule is named only where it decided; a batch that
took all that waited was closed by none.  In this order:

* `unbatched`: the model has no dynamic batching, each request is executed alone (or a sequence batcher chose).
* `full`: max_batch_size is reached.
* `client batch`: the next request's rows do not fit any more; a request is never split.
* `shape mismatch`: the next request has another shape, and the input is not ragged: the queue is first in, first out,
  and nothing is looked for behind it.
* `stalled`: an instance was free and the batcher slept for STALL_NS longer than the delay asks.
* `delay expired`: an instance was free before the delay was over, the batch began after.
* `preferred size`: it ended at a preferred size below max_batch_size, with others left behind or before the delay.
* `bound early`: others of its shape would have fit, but it was closed before they came: with prefetch two batches an
  instance are bound ahead of time and only the newest grows; a merge at the last moment takes whole batches only.
* `all waiting`: an instance was free and took all there was.

With several priorities a trace does not tell who was next: the oldest one left behind stands for it.
Times are ns of one clock.  Pure; it must not know where stamps come from, nor what is made of the batches.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.triton.facts import instance_count
from loadgen.triton.trace import Timeline

RULES = ("full", "preferred size", "delay expired", "shape mismatch", "client batch", "bound early", "stalled",
         "all waiting", "unbatched")  # fmt: skip
STALL_NS = 200_000_000  # a busy machine may wake a thread some tens of ms late; Triton's own timer is 500 ms
HANDOVER_NS = 2_000_000  # who came that shortly before the execution began was not there when it was decided

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What a model's configuration says of its batches.

    `preferred` are those below max_batch_size: as a preferred size that is no rule of its own.  `prefetch`: no
    queue policy and no priorities, so batches are bound to an instance's queue ahead of time.
    """

    max_batch: int
    dynamic: bool
    preferred: tuple[int, ...] = ()
    delay_ns: int = 0
    instances: int = 1
    prefetch: bool = True
    ragged: frozenset[str] = frozenset()  # inputs whose shapes may differ within a batch
    sequences: bool = False  # a sequence batcher, of whose rules nothing is known here


def scheduling(config: Mapping[str, Any]) -> Scheduling:
    """Out of a model's configuration in its JSON form, as the server tells it."""
    batcher = config.get("dynamic_batching")
    most = int(config.get("max_batch_size") or 0)
    told = batcher or {}
    policies = [told.get("default_queue_policy") or {}, *(told.get("priority_queue_policy") or {}).values()]
    keys = ("default_timeout_microseconds", "allow_timeout_override", "max_queue_size")
    by_policy = any(int(policy.get(key) or 0) for policy in policies for key in keys)
    return Scheduling(
        max_batch=max(1, most),
        dynamic=batcher is not None and most > 0,
        preferred=tuple(sorted(n for n in map(int, told.get("preferred_batch_size") or ()) if n < most)),
        delay_ns=1000 * int(told.get("max_queue_delay_microseconds") or 0),
        instances=instance_count(config) or 1,
        prefetch=not by_policy and not int(told.get("priority_levels") or 0),
        sequences=config.get("sequence_batching") is not None,
        ragged=frozenset(t["name"] for t in config.get("input") or () if t.get("allow_ragged_batch")),
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """One execution, and what closed it.

    `rows` counts a request that did not say its rows as one.  `left` are the rows that were queued behind it when it
    began.  `idle_ns`: how long an instance was free while its oldest request waited.  `company_ns` adds up, over its
    requests, the time they waited although an instance was free; `queued_ns` all of their time in the queue.
    `tokens` and `padded` are what lengths add up to, and what they do when each row is as long as the longest; 0
    where no length is known.
    """

    start_ns: int
    end_ns: int
    requests: int
    rows: int
    rule: str
    left: int
    idle_ns: int
    company_ns: int
    queued_ns: int
    tokens: int = 0
    padded: int = 0


def rebuild(timelines: Sequence[Timeline], config: Scheduling) -> list[Batch]:
    """The batches of one model version, by their beginning.  `timelines` are all its requests, in any order."""
    queue = sorted(timelines, key=lambda one: one.queue_ns)
    members: dict[tuple[int, int], list[Timeline]] = defaultdict(list)
    for one in queue:
        if one.start_ns is not None and one.end_ns is not None:
            members[one.start_ns, one.end_ns].append(one)
    behind = _Behind(queue)
    free = _free_since([*members], config.instances)
    return [
        _batch(*span, members[span], since, behind, config)
        for span, since in zip(sorted(members), free, strict=True)
    ]


def _batch(
    start: int, end: int, requests: list[Timeline], free_ns: int, behind: "_Behind", config: Scheduling
) -> Batch:
    rows = sum(_rows(one) for one in requests)
    nearest, left = behind.at(start)
    idle = max(0, start - max(requests[0].queue_ns, free_ns))
    lengths = [(_rows(one), one.length) for one in requests if one.length is not None]
    return Batch(
        start_ns=start,
        end_ns=end,
        requests=len(requests),
        rows=rows,
        rule=_rule(start, requests, rows, nearest, free_ns, config),
        left=left,
        idle_ns=idle,
        company_ns=sum(max(0, start - max(one.queue_ns, free_ns)) for one in requests),
        queued_ns=sum(start - one.queue_ns for one in requests),
        tokens=sum(n * length for n, length in lengths),
        padded=sum(n for n, _ in lengths) * max((length for _, length in lengths), default=0),
    )


def _rule(  # noqa: PLR0911 - one return a rule
    start: int,
    requests: list[Timeline],
    rows: int,
    nearest: Timeline | None,
    free_ns: int,
    config: Scheduling,
) -> str:
    if not config.dynamic:
        return "unbatched"
    if rows >= config.max_batch:
        return "full"
    oldest = requests[0].queue_ns
    if nearest is not None and rows + _rows(nearest) > config.max_batch:
        return "client batch"
    if nearest is not None and _differ(requests[0], nearest, config):
        return "shape mismatch"
    if start - max(oldest, free_ns) > config.delay_ns + STALL_NS:
        return "stalled"
    over = oldest + config.delay_ns
    waited = config.delay_ns > 0 and free_ns < over <= start
    if waited and (nearest is None or nearest.queue_ns >= over):
        return "delay expired"
    if nearest is not None and nearest.queue_ns >= start - HANDOVER_NS:
        nearest = None
    if rows in config.preferred and (nearest is not None or (config.delay_ns and start < over)):
        return "preferred size"
    return "all waiting" if nearest is None else "bound early"


def _rows(one: Timeline) -> int:
    return max(1, one.rows or 1)


def _differ(a: Timeline, b: Timeline, config: Scheduling) -> bool:
    """Whether both say their shapes, and those that the batcher compares are not the same."""
    if a.shapes is None or b.shapes is None:
        return False
    checked = [
        {name: s for name, s in one.items() if name not in config.ragged} for one in (a.shapes, b.shapes)
    ]
    return checked[0] != checked[1]


class _Behind:
    """Who is left in the queue when a batch begins; asked in order of beginnings."""

    def __init__(self, queue: list[Timeline]) -> None:
        self._queue, self._at = queue, 0
        self._arrived = np.array([one.queue_ns for one in queue], np.int64)
        self._rows = np.concatenate(([0], np.cumsum([_rows(one) for one in queue], dtype=np.int64)))
        gone = sorted((_gone(one), _rows(one)) for one in queue)
        self._gone = np.array([at for at, _ in gone], np.int64)
        self._gone_rows = np.concatenate(([0], np.cumsum([n for _, n in gone], dtype=np.int64)))

    def at(self, start: int) -> tuple[Timeline | None, int]:
        """The oldest request that was queued before `start` and began later, and the rows of all such."""
        while self._at < len(self._queue) and _gone(self._queue[self._at]) <= start:
            self._at += 1
        nearest = self._queue[self._at] if self._at < len(self._queue) else None
        there = self._until(self._arrived, self._rows, start, "left")
        left = there - self._until(self._gone, self._gone_rows, start, "right")
        return (nearest if nearest is not None and nearest.queue_ns < start else None), max(0, left)

    @staticmethod
    def _until(at: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], when: int, side: Any) -> int:
        return int(rows[np.searchsorted(at, when, side=side)])


def _gone(one: Timeline) -> int:
    """When it left the queue: executed, rejected, cancelled or answered from the cache."""
    return one.done_ns if one.start_ns is None else one.start_ns


def _free_since(spans: list[tuple[int, int]], instances: int) -> Iterator[int]:
    """For each execution, by its beginning: the last moment at which every instance was busy with others."""
    ends: list[int] = []
    free = -(2**62)
    for start, end in sorted(spans):
        while ends and ends[0] <= start:
            heapq.heappop(ends)
        yield min(free, start) if len(ends) < instances else start
        heapq.heappush(ends, end)
        if len(ends) >= instances:
            free = ends[0]
