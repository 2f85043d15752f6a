"""A receiver that keeps what it is told and lets a test wait for it, and runs on both event loops."""

import asyncio
from collections import Counter
from typing import NamedTuple

import uvloop

LOOPS = {"asyncio": asyncio.run, "uvloop": uvloop.run}


class Reply(NamedTuple):
    token: int
    sent_ns: int
    first_ns: int
    done_ns: int
    outcome: object
    status: int
    bytes_in: int
    detail: str | None


class Told:
    def __init__(self, then=None):
        self.replies = []
        self.streamed = {}  # token -> what came of a streamed answer
        self.then = then
        self.sending = False
        self._changed = asyncio.Event()

    def on_reply(self, *values):
        reply = Reply(*values)
        assert not self.sending, "told from within send"
        assert reply.token not in {r.token for r in self.replies[-500:]}, "told twice"
        if reply.token in self.streamed:
            assert self._before == (reply.token, reply.sent_ns, reply.outcome), "not right before the reply"
        self.replies.append(reply)
        self._changed.set()
        if self.then is not None:
            self.then(reply)

    def on_streamed(self, token, sent_ns, outcome, streamed):
        assert not self.sending, "told from within send"
        assert token not in self.streamed, "told twice"
        assert token not in {r.token for r in self.replies[-500:]}, "told after the reply"
        self.streamed[token] = streamed
        self._before = token, sent_ns, outcome

    def send(self, transport, token, prepared):
        self.sending = True
        transport.send(token, prepared)
        self.sending = False

    async def wait(self, count, timeout=10):  # noqa: ASYNC109 - a bound for the test
        """The first `count` replies by token."""
        async with asyncio.timeout(timeout):
            while len(self.replies) < count:
                self._changed.clear()
                await self._changed.wait()
        return sorted(self.replies)

    @property
    def outcomes(self):
        return Counter(r.outcome.name for r in self.replies)


async def until(condition, timeout=5):  # noqa: ASYNC109 - a bound for the test
    """Waits for something that no event tells."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 - the point
            await asyncio.sleep(0.001)
