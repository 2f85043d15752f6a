"""A few requests outside any load, each waited for: a server's first answers, a cold start, a grid of shapes.

It must not know what is asked, nor what becomes of the answers.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loadgen.records import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loadgen.records import Streamed
    from loadgen.seams import Prepared, Transport

STAGGER_S = 0.005  # between the first requests of several in flight, so that no batch takes them all


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request; absolute stamps."""

    sent_ns: int
    done_ns: int
    outcome: Outcome
    status: int
    detail: str | None

    @property
    def latency_ns(self) -> int:
        """From sent to done, also of one that was given up."""
        return self.done_ns - self.sent_ns


class Asker:
    """The receiver of a transport that it asks through, one call after the other."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._tokens = itertools.count()

    async def ask(
        self,
        transport: Transport[Any],
        requests: Sequence[Prepared],
        *,
        in_flight: int,
        timeout_s: float,
        stagger_s: float = STAGGER_S,
    ) -> list[Answer]:
        """The answers in the order of the requests, so many in flight; each is given up after the timeout."""
        loop, places = asyncio.get_running_loop(), iter(range(len(requests)))
        answers: dict[int, Answer] = {}

        async def one_user(number: int) -> None:
            await asyncio.sleep(number * stagger_s)
            for place in places:
                token, future = next(self._tokens), loop.create_future()
                self._waiting[token] = future
                timer = loop.call_later(timeout_s, transport.cancel, token, Outcome.TIMEOUT)
                transport.send(token, requests[place])
                try:
                    answers[place] = await future
                finally:
                    timer.cancel()

        async with asyncio.TaskGroup() as group:
            for number in range(min(in_flight, len(requests))):
                group.create_task(one_user(number))
        return [answers[place] for place in sorted(answers)]

    def on_reply(  # noqa: PLR0913 - seams.Receiver
        self,
        token: int,
        sent_ns: int,
        first_ns: int,  # noqa: ARG002
        done_ns: int,
        outcome: Outcome,
        status: int,
        bytes_in: int,  # noqa: ARG002
        detail: str | None,
    ) -> None:
        """See seams.Receiver."""
        future = self._waiting.pop(token, None)
        if future is not None and not future.done():
            future.set_result(Answer(sent_ns or done_ns, done_ns, outcome, status, detail))

    def on_streamed(self, token: int, sent_ns: int, outcome: Outcome, streamed: Streamed) -> None:
        """See seams.Receiver; of a stream only that and when it ended matters."""
