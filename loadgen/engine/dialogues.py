"""Dialogues under way: requests that follow one another, with a pause between an answer and the next.

The engine asks here only for variants that need care.  It must not know what the requests say, nor records.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from loadgen.engine.parts import Care, Dialogue, Shot
    from loadgen.records import Streamed
    from loadgen.seams import Clock, Pacer

FOLLOWING = (
    2**32
)  # the k-th request after the first of a dialogue is called its first's name plus k times this


class Dialogues:
    """Those of one phase at a time; a request's name leads to its dialogue while it is in flight."""

    def __init__(
        self,
        make_pacer: Callable[[], Pacer],
        clock: Clock,
        numbering: tuple[int, int],
        send: Callable[..., None],
    ) -> None:
        """`send(seq, due_ns, shot)` is called when a request of a dialogue is due."""
        self._make_pacer, self._now, self._send = make_pacer, clock.now_ns, send
        self._begun, self._step = numbering
        self._pacer: Pacer | None = None
        self._of: dict[int, Dialogue] = {}
        self._streamed: dict[int, Streamed] = {}
        self._waiting: list[tuple[int, int, Shot]] = []  # a heap: due, name, request
        self.followed = 0

    @property
    def thinking(self) -> int:
        """Dialogues between an answer and the next request."""
        return len(self._waiting)

    def begin(self, seq: int, care: Care) -> Shot:
        """The first request of a new dialogue, which is called `seq`."""
        assert care.begin is not None  # noqa: S101 - asked by the caller
        dialogue = self._of[seq] = care.begin(self._begun)
        self._begun += self._step
        return dialogue.first()._replace(care=replace(care, begin=None))

    def heard(self, seq: int, streamed: Streamed) -> None:
        """What a request of a dialogue was answered."""
        if seq in self._of:
            self._streamed[seq] = streamed

    def forget(self, seq: int) -> None:
        """A request that was never sent is the end of its dialogue."""
        self._of.pop(seq, None)

    def go_on(self, seq: int, care: Care, done_ns: int, until_ns: int, *, answered: bool) -> bool:
        """Whether a next request follows the one that has ended: not after a failure, and past `until_ns` only one
        that brings the dialogue to its end.
        """
        dialogue, streamed = self._of.pop(seq, None), self._streamed.pop(seq, None)
        if dialogue is None or not answered:
            return False
        due_ns = done_ns + care.think_ns
        shot = dialogue.after(streamed, last=due_ns >= until_ns)
        if shot is None:
            return False
        self.followed += 1
        following, shot = seq + FOLLOWING, shot._replace(care=care)
        self._of[following] = dialogue
        if not care.think_ns:
            self._send(following, due_ns, shot)
            return True
        heappush(self._waiting, (due_ns, following, shot))
        if self._pacer is None:
            self._pacer = self._make_pacer()
        self._pacer.arm(self._waiting[0][0], self._fire)
        return True

    def _fire(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._now():
            due_ns, seq, shot = heappop(self._waiting)
            self._send(seq, due_ns, shot)
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
