"""Dialogues under way: requests that follow one another, with a pause between an answer and the next.

The engine asks here only for variants that need care.  It must not know what the requests say, nor records.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from loadgen.engine.parts import Dialogue, Shot
    from loadgen.records import Streamed
    from loadgen.seams import Clock, Pacer, Prepared

FOLLOWING = (
    2**40
)  # the k-th request after the first of a dialogue is called its first's name plus k times this
Step = tuple[int, int, "Shot", "Prepared"]  # due, name, the variant it began with, the request


class Dialogues:
    """Those of one phase at a time; a request's name leads to its dialogue while it is in flight."""

    def __init__(
        self,
        make_pacer: Callable[[], Pacer],
        clock: Clock,
        numbering: tuple[int, int],
        send: Callable[..., None],
    ) -> None:
        """`send(seq, due_ns, shot, prepared)` is called when a request of a dialogue is due."""
        self._make_pacer, self._now, self._send = make_pacer, clock.now_ns, send
        self._begun, self._step = numbering
        self._pacer: Pacer | None = None
        self._of: dict[int, Dialogue] = {}
        self._streamed: dict[int, Streamed] = {}
        self._waiting: list[Step] = []  # a heap by due time
        self.followed = 0

    @property
    def thinking(self) -> int:
        """Dialogues between an answer and the next request."""
        return len(self._waiting)

    def begin(self, seq: int, shot: Shot) -> Prepared:
        """The first request of a new dialogue, which is called `seq`."""
        assert shot.care is not None  # noqa: S101 - asked by the caller
        assert shot.care.begin is not None  # noqa: S101
        dialogue = self._of[seq] = shot.care.begin(self._begun)
        self._begun += self._step
        return dialogue.first()

    def heard(self, seq: int, streamed: Streamed) -> None:
        """What a request of a dialogue was answered."""
        if seq in self._of:
            self._streamed[seq] = streamed

    def go_on(self, seq: int, shot: Shot, done_ns: int, until_ns: int, *, answered: bool) -> bool:
        """Whether a next request follows the one that has ended: not after a failure, nor if due past `until_ns`."""
        dialogue, streamed = self._of.pop(seq, None), self._streamed.pop(seq, None)
        if dialogue is None or not answered or shot.care is None:
            return False
        due_ns = done_ns + shot.care.think_ns
        if due_ns >= until_ns or (prepared := dialogue.after(streamed)) is None:
            return False
        self.followed += 1
        following = seq + FOLLOWING
        self._of[following] = dialogue
        if not shot.care.think_ns:
            self._send(following, due_ns, shot, prepared)
            return True
        heappush(self._waiting, (due_ns, following, shot, prepared))
        if self._pacer is None:
            self._pacer = self._make_pacer()
        self._pacer.arm(self._waiting[0][0], self._fire)
        return True

    def _fire(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._now():
            due_ns, seq, shot, prepared = heappop(self._waiting)
            self._send(seq, due_ns, shot, prepared)
        if self._waiting and self._pacer is not None:
            self._pacer.arm(self._waiting[0][0], self._fire)

    def drop(self) -> None:
        """Nothing more is said."""
        self.followed -= len(self._waiting)
        for _, seq, *_ in self._waiting:
            del self._of[seq]
        self._waiting.clear()

    def close(self) -> None:
        """Frees the pacer."""
        if self._pacer is not None:
            self._pacer.close()
