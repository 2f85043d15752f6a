"""The same seam on other people's clients: the truth that tests hold the wire transports against.

gRPC goes through the official library (grpc.aio with tritonclient's messages); HTTP through aiohttp, because
tritonclient's HTTP half needs gevent.  One task a request, so it costs ten times the wire's CPU and more: it
is for answers and outcomes, not for load.  It must not use `wire` framing for what is sent or read.

What the libraries do not tell: gRPC's first byte (`first_ns` is `done_ns`, and an answer that broke off is a lost
connection), the exact size of heads, calls that
gRPC holds back while a connection has no stream left (they count as sent).
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from loadgen.connect.options import ConnectOptions
from loadgen.records import LoadgenError, Outcome, Request
from loadgen.seams import Clock, Receiver
from loadgen.target import Target
from loadgen.transport.dial import CONNECT_TIMEOUT_NS, Dialer, Link
from loadgen.transport.reference_grpc import GrpcCarrier
from loadgen.transport.reference_http import HttpCarrier
from loadgen.transport.reference_parts import Ended, Flight, PreparedReference
from loadgen.wire.slot import put


class _Carrier(Protocol):
    """One library.  `carry` sets the stamps of the flight and never raises but for cancellation."""

    connections_opened: int
    reconnects: int
    resent: int
    conn_waits: int

    def prepare(self, request: Request) -> PreparedReference: ...
    async def open(self, connections: int) -> None: ...
    async def carry(self, flight: Flight, *, keep: bool) -> Ended: ...
    async def close(self) -> None: ...


class ReferenceTransport:
    """See seams.Transport; `options` in place of the wire's headers and TLS context."""

    on_body: Callable[[int, Any], None] | None

    def __init__(
        self,
        target: Target,
        clock: Clock,
        *,
        options: ConnectOptions = ConnectOptions(),  # noqa: B008 - frozen
        connect_timeout_ns: int = CONNECT_TIMEOUT_NS,
    ) -> None:
        self._target = target
        self._options = options
        self._timeout_ns = connect_timeout_ns
        self._clock = clock
        self._now = clock.now_ns
        self._carrier: _Carrier
        if target.protocol == "grpc":
            self._carrier = GrpcCarrier(target, clock, options, connect_timeout_ns)
        else:
            self._carrier = HttpCarrier(target, clock, options, connect_timeout_ns)
        self._flights: dict[int, Flight] = {}
        self._closed = False
        self.on_body = None

    @property
    def connections_opened(self) -> int:
        """Connections, as far as the library tells (gRPC: channels)."""
        return self._carrier.connections_opened

    @property
    def reconnects(self) -> int:
        """Connections that the server ended between requests, as far as the library tells."""
        return self._carrier.reconnects

    @property
    def resent(self) -> int:
        """Requests written once more for that reason."""
        return self._carrier.resent

    @property
    def conn_waits(self) -> int:
        """Requests that had a connection opened for them, as far as the library tells (gRPC: it does not)."""
        return self._carrier.conn_waits

    @property
    def waiting(self) -> int:
        """Requests that wait for a connection."""
        return sum(not flight.sent_ns for flight in self._flights.values())

    @property
    def in_flight(self) -> int:
        """Requests written and not yet ended."""
        return len(self._flights) - self.waiting

    def prepare(self, request: Request) -> PreparedReference:
        """Raises LoadgenError for what cannot be sent."""
        if request.reader is not None:
            raise LoadgenError("the reference transport reads no streamed answers; use the wire transport")
        prepared = self._carrier.prepare(request)
        prepared.patched = lambda piece: self.prepare(
            replace(request, body=put(request.body, piece, request.slot))
        )
        return prepared

    async def open(self, receiver: Receiver, connections: int) -> None:
        """Proves that a server answers, in the words of the wire transports.  Raises LoadgenError."""
        self._tell = receiver.on_reply
        self._loop = asyncio.get_running_loop()
        if not self._flights and not self._carrier.connections_opened:
            await self._knock()
        await self._carrier.open(max(1, connections))

    async def _knock(self) -> None:
        target = self._target
        alpn = "h2" if target.protocol == "grpc" else "http/1.1"
        tls = self._options.tls_for(target)
        dialer = Dialer(
            target,
            self._clock,
            tls,
            self._timeout_ns,
            _Knock,
            lambda knock: knock.transport.close(),
            lambda *_: None,
            lambda: None,
            alpn,
        )
        await dialer.first()

    def send(self, token: int, prepared: PreparedReference) -> None:
        """The library writes in the loop's next round."""
        if self._closed:
            self._loop.call_soon(
                self._tell, token, 0, 0, self._now(), Outcome.CLIENT, 0, 0, "the transport is closed"
            )
            return
        flight = self._flights[token] = Flight(token, prepared)
        flight.task = self._loop.create_task(self._fly(flight))

    async def _fly(self, flight: Flight) -> None:
        on_body = self.on_body
        ended = await self._carrier.carry(flight, keep=on_body is not None)
        done = self._now()
        if self._flights.pop(flight.token, None) is None:
            return  # given up meanwhile
        if ended.outcome is Outcome.OK and on_body is not None:
            on_body(flight.token, ended.body)
        self._tell(flight.token, flight.sent_ns, flight.first_ns, done, ended.outcome, ended.status, ended.bytes_in,
                   ended.detail)  # fmt: skip

    def cancel(self, token: int, outcome: Outcome) -> None:
        """Takes the request back from the library."""
        flight = self._flights.pop(token, None)
        if flight is None:
            return
        now = self._now()
        words = "given up within the answer" if flight.first_ns else "given up before the answer began"
        if not flight.sent_ns:
            words = "given up before any connection was free"
        if flight.task is not None:
            flight.task.cancel()
        self._tell(token, flight.sent_ns, flight.first_ns, now, outcome, 0, 0, words)

    def sent_at(self, token: int) -> int:
        """See seams.Transport."""
        flight = self._flights.get(token)
        return flight.sent_ns if flight is not None else 0

    async def close(self) -> None:
        """Ends what is in flight as cancelled, then every connection."""
        self._closed = True
        tasks = [flight.task for flight in self._flights.values() if flight.task is not None]
        for token in list(self._flights):
            self.cancel(token, Outcome.CANCELLED)
        if tasks:
            await asyncio.wait(tasks)
        await self._carrier.close()


class _Knock(Link):
    """A connection that only proves that there is one to be had."""

    __slots__ = ("transport",)

    transport: asyncio.BaseTransport

    def __init__(self) -> None:
        self.ready = None
        self.opened_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
