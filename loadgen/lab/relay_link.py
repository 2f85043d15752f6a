"""When data that enters a link leaves it: delay, jitter and bandwidth as arithmetic on given stamps.

    enters -> waits for the link to be free -> takes size / bandwidth -> travels delay +- jitter -> leaves

Nothing overtakes within a lane (one direction of one connection): what would arrive before its predecessor
arrives with it.  So a dense stream under jitter is a little later than its delay, as in a real queue.  This
module must not know sockets, and it has no clock.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ItemT = TypeVar("ItemT")
_PIECE_S = 0.001  # a piece takes about that long to send: a receiver sees a stream, not lumps
_LEAST_PIECE, _MOST_PIECE = 1448, 1 << 16
_WINDOW = 4 << 20  # bytes of a lane that may be under way, about what TCP allows by default
_ROOM = 1 << 18


class Way:
    """One direction of the link, shared by all connections."""

    __slots__ = (
        "_bytes_per_s",
        "_delay_ns",
        "_free_ns",
        "_jitter_ns",
        "_random",
        "instant",
        "piece",
        "window",
    )

    def __init__(
        self, delay_ns: int, jitter_ns: int, bytes_per_s: int | None, random: Callable[[], float]
    ) -> None:
        """`random` gives numbers evenly spread over [0, 1)."""
        self._delay_ns, self._jitter_ns, self._bytes_per_s = delay_ns, jitter_ns, bytes_per_s
        self._random = random
        self._free_ns = 0
        self.instant = not (delay_ns or jitter_ns or bytes_per_s)
        self.piece, self.window = _MOST_PIECE, _WINDOW
        if bytes_per_s is not None:
            self.piece = min(max(int(bytes_per_s * _PIECE_S), _LEAST_PIECE), _MOST_PIECE)
            self.window = min(int(bytes_per_s * (delay_ns + jitter_ns) / 1e9) + _ROOM, _WINDOW)

    def leaves_ns(self, now_ns: int, size: int, after_ns: int) -> int:
        """When `size` bytes that enter now have left, not before `after_ns`.  Called in order of time."""
        if self._bytes_per_s is not None:
            self._free_ns = max(now_ns, self._free_ns) + -(-size * 1_000_000_000 // self._bytes_per_s)
            now_ns = self._free_ns
        travels = self._delay_ns
        if self._jitter_ns:
            travels += round((2 * self._random() - 1) * self._jitter_ns)
        return max(now_ns + travels, after_ns)


class Lane(Generic[ItemT]):
    """One direction of one connection: what is under way, in order, and how many bytes that is."""

    __slots__ = ("clogged", "free_ns", "held", "last_ns", "listed", "low", "queue")

    def __init__(self) -> None:
        self.queue: deque[tuple[int, int, ItemT]] = deque()  # (leaves_ns, size, item)
        self.last_ns = 0
        self.held = 0
        self.listed = False  # its head is in the agenda
        self.clogged = False  # its receiver takes no more for now
        self.free_ns = 0  # since when it takes again
        self.low: Callable[[], None] | None = None  # called once when less than half a window is under way

    def take(self, now_ns: int) -> tuple[int, ItemT] | None:
        """The head (leaves_ns, item) if it has to leave by now."""
        if not self.queue or self.queue[0][0] > now_ns:
            return None
        leaves_ns, size, item = self.queue.popleft()
        self.held -= size
        return leaves_ns, item


class Agenda(Generic[ItemT]):
    """The heads of all lanes, by the time at which they leave."""

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Lane[ItemT]]] = []
        self._count = 0

    @property
    def next_ns(self) -> int | None:
        """When the next item leaves; None when nothing is under way."""
        return self._heap[0][0] if self._heap else None

    def enter(self, lane: Lane[ItemT], way: Way, now_ns: int, size: int, item: ItemT) -> None:
        """Puts an item under way."""
        lane.last_ns = way.leaves_ns(now_ns, size, lane.last_ns)
        lane.queue.append((lane.last_ns, size, item))
        lane.held += size
        if not lane.clogged:
            self.list(lane)

    def list(self, lane: Lane[ItemT]) -> None:
        """A lane takes part again, after it was due or its receiver had taken no more."""
        if lane.queue and not lane.listed:
            lane.listed = True
            self._count += 1
            heapq.heappush(self._heap, (lane.queue[0][0], self._count, lane))

    def due(self, now_ns: int) -> Iterator[Lane[ItemT]]:
        """Lanes whose head has to leave by now; each takes part again only when it is listed again."""
        while self._heap and self._heap[0][0] <= now_ns:
            _, _, lane = heapq.heappop(self._heap)
            lane.listed = False
            if lane.queue:
                yield lane
