"""Answers at once without a socket: what the engine itself costs.  It must not know any protocol."""

import asyncio

from loadgen.records import Outcome, Request
from loadgen.seams import Clock, Prepared, Receiver


class PreparedNull:
    """A request that goes nowhere."""

    __slots__ = ("bytes_out",)

    def __init__(self, bytes_out: int) -> None:
        self.bytes_out = bytes_out

    def patched(self, piece: bytes) -> "PreparedNull":  # noqa: ARG002 - nothing is read
        """See seams.Prepared."""
        return self


class NullTransport:
    """Every request succeeds in the loop's next round."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.now_ns
        self._pending: dict[int, int] = {}
        self._receiver: Receiver | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.on_body = None
        self.connections_opened = self.reconnects = self.resent = self.conn_waits = self.waiting = 0

    @property
    def in_flight(self) -> int:
        """Requests sent and not yet answered."""
        return len(self._pending)

    def prepare(self, request: Request) -> PreparedNull:
        return PreparedNull(len(request.body))

    async def open(self, receiver: Receiver, connections: int) -> None:  # noqa: ARG002 - there are none
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()

    def send(self, token: int, prepared: Prepared) -> None:  # noqa: ARG002 - nothing is read
        assert self._loop is not None  # noqa: S101 - opened first
        if not self._pending:
            self._loop.call_soon(self._answer)
        self._pending[token] = self._now()

    def _answer(self) -> None:
        assert self._receiver is not None  # noqa: S101 - opened first
        pending, self._pending = self._pending, {}
        now = self._now()
        tell = self._receiver.on_reply
        for token, sent_ns in pending.items():
            tell(token, sent_ns, now, now, Outcome.OK, 200, 0, None)

    def cancel(self, token: int, outcome: Outcome) -> None:
        sent_ns = self._pending.pop(token, None)
        if sent_ns is not None and self._receiver is not None:
            self._receiver.on_reply(token, sent_ns, 0, self._now(), outcome, 0, 0, "given up")

    def sent_at(self, token: int) -> int:
        return self._pending.get(token, 0)

    async def close(self) -> None:
        for token in list(self._pending):
            self.cancel(token, Outcome.CANCELLED)
