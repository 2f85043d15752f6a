"""Requests that follow one another: Triton's stateful sequences, and chats of several turns.

A variant opens a dialogue; what follows is made when the answer has come (engine.parts.Dialogue).  It must not
know when anything is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loadgen.engine.parts import Care
from loadgen.lab.texts import later_turns
from loadgen.records import Wanted
from loadgen.wire.openai import next_turn
from loadgen.workload.sequences import first_id, sequence_id, steps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy as np

    from loadgen.engine.parts import Dialogue, Shot
    from loadgen.records import Message, Request, Streamed
    from loadgen.seams import Prepared, Transport
    from loadgen.target import Target
    from loadgen.traffic.chat import Chat
    from loadgen.traffic.triton import Sequence as Stateful

_UNKNOWN = -1  # how long a history is in tokens: its answers are the server's


class StatefulSequence:
    """Requests with one correlation id: variant after variant, the first and the last marked as such.

    One that the load's end cuts short still gets its last request: the server would keep its state otherwise.
    """

    def __init__(self, pool: Sequence[Shot], at: int, pieces: Sequence[bytes]) -> None:
        """`pieces` are what each request has in its slot."""
        self._pool, self._at, self._pieces, self._next = pool, at, pieces, 0

    def first(self) -> Shot:
        return self._step()

    def after(self, streamed: Streamed | None, *, last: bool) -> Shot | None:  # noqa: ARG002 - see engine.parts.Dialogue
        if self._next == len(self._pieces):
            return None
        if last:
            self._next = len(self._pieces) - 1
        return self._step()

    def _step(self) -> Shot:
        shot, piece = self._pool[(self._at + self._next) % len(self._pool)], self._pieces[self._next]
        self._next += 1
        return shot._replace(prepared=shot.prepared.patched(piece))


def sequence_dialogues(
    shots: list[Shot], asked: Stateful, target: Target, entropy: int, requests: int | None = None
) -> list[Shot]:
    """Each variant opens sequences of `requests` (those asked for) requests, every one with an id of its own."""
    from loadgen.wire import kserve_grpc, kserve_http

    piece = (kserve_grpc if target.protocol == "grpc" else kserve_http).sequence_piece
    base, ends = first_id(entropy), steps(requests or asked.requests)

    def opening(at: int) -> Callable[[int], Dialogue]:
        def begin(nth: int) -> Dialogue:
            number = sequence_id(base, nth)
            told = number if asked.ids == "number" else str(number)
            return StatefulSequence(shots, at, [piece(told, start=start, end=end) for start, end in ends])

        return begin

    return [shot._replace(care=Care(begin=opening(at))) for at, shot in enumerate(shots)]


class ChatTurns:
    """A chat that resends its history: the model's answers and what the user says to them."""

    def __init__(
        self, opening: Shot, request: Request, texts: Sequence[str], prepare: Callable[[Request], Prepared]
    ) -> None:
        self._shot, self._request, self._texts, self._prepare = opening, request, iter(texts), prepare

    def first(self) -> Shot:
        return self._shot

    def after(self, streamed: Streamed | None, *, last: bool) -> Shot | None:
        text = next(self._texts, None)
        if text is None or last:
            return None
        self._request = next_turn(self._request, streamed.text if streamed else "", text)
        return self._shot._replace(prepared=self._prepare(self._request), length=_UNKNOWN)


def chat_dialogues(
    shots: list[Shot],
    messages: Sequence[Message],
    part: Chat,
    rng: np.random.Generator,
    folder: Path,
    transport: Transport[Any],
) -> list[Shot]:
    """Each variant opens a chat of as many turns as the profile asks for."""
    texts = later_turns(part, [Wanted(message.length) for message in messages], rng, folder)

    def opening(shot: Shot, request: Request, said: list[str]) -> Callable[[int], Dialogue]:
        return lambda _: ChatTurns(shot, request, said, transport.prepare)

    return [
        shot._replace(care=Care(begin=opening(shot, message.request, said), think_ns=part.think_ns))
        for shot, message, said in zip(shots, messages, texts, strict=True)
    ]
