"""HTTP/1.1 over asyncio: one request in flight a connection, replies found by framing, told by a plain call.

No Task, Future or header dict per request.  It must not know schedules, records or what a tensor is.
"""

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from loadgen.records import Outcome, Request, Streamed
from loadgen.seams import Clock, Receiver
from loadgen.target import Target
from loadgen.transport.dial import CONNECT_TIMEOUT_NS, Dialer, Via
from loadgen.transport.http_connection import AT_ONCE, NEW, Connection, PreparedHttp
from loadgen.wire.http1 import Heads, encode_request
from loadgen.wire.known import KnownAnswers

Entity = tuple[dict[str, str], bytes]  # header fields (names in lower case), body


class HttpTransport:
    """Idle connections are taken last in, first out; when none is free another is opened.

    Counters: connections_opened, reconnects (connections that the server ended), resent (requests written
    once more, theirs having ended before any of them can have been read), conn_waits (requests that no open connection
    could take at once), cut_short (connections dropped because the server kept a streamed answer open after
    its end), waiting, in_flight.
    """

    PATIENCE_S = 0.05  # for the last bytes of framing after a streamed answer's end

    def __init__(
        self,
        target: Target,
        clock: Clock,
        *,
        headers: Iterable[tuple[str, str]] = (),
        connect_timeout_ns: int = CONNECT_TIMEOUT_NS,
        tls: ssl.SSLContext | None = None,
        via: Via | None = None,
    ) -> None:
        self._target = target
        self._headers = tuple(headers)
        self.now_ns = clock.now_ns
        self._on_body: Callable[[int, Entity], None] | None = None
        self.heads = Heads()
        self._known: dict[Any, KnownAnswers] = {}  # by who reads them
        self.patience_s = self.PATIENCE_S  # less and less for a server that never sends them
        self.idle: list[Connection] = []
        self.busy: dict[int, Connection] = {}
        self.queue: OrderedDict[int, PreparedHttp] = OrderedDict()  # waiting for a connection
        self._again: OrderedDict[int, tuple[PreparedHttp, int]] = (
            OrderedDict()
        )  # waiting for a new connection
        self._links: set[Connection] = set()
        self.dialer: Dialer[Connection] = Dialer(
            target, clock, tls, connect_timeout_ns, lambda: Connection(self), self._opened, self._failed,
            self.want, "http/1.1", via,
        )  # fmt: skip
        self._closed = False
        self._all_gone: asyncio.Future[None] | None = None
        self.reconnects = self.resent = self.conn_waits = self.cut_short = 0

    @property
    def on_body(self) -> Callable[[int, Entity], None] | None:
        """See seams.Transport; while set, every reply is looked at.  Streamed answers go to their readers alone."""
        return self._on_body

    @on_body.setter
    def on_body(self, call: Callable[[int, Entity], None] | None) -> None:
        self._on_body = call
        for link in self._links:
            link.look(call is not None)

    @property
    def connections_opened(self) -> int:
        """Connections made since the start."""
        return self.dialer.opened

    @property
    def waiting(self) -> int:
        """Requests that no connection has taken yet."""
        return len(self.queue) + len(self._again)

    @property
    def in_flight(self) -> int:
        """Requests written and not yet ended."""
        return len(self.busy)

    def prepare(self, request: Request) -> PreparedHttp:
        """Raises LoadgenError for a method, path or header that cannot be sent."""
        data = encode_request(request, self._target.authority, self._target.base_path, self._headers)
        each = request.reader is not None or request.judge is not None
        known = None if each else self._known.setdefault(request.check, KnownAnswers())
        return PreparedHttp(data, request, known)

    async def open(self, receiver: Receiver, connections: int) -> None:
        """Opens up to that many connections, at least one.

        Called again it opens only those that are missing, and `receiver` takes over.  Raises LoadgenError
        when no server answers.
        """
        self.on_reply = receiver.on_reply
        self.on_streamed = receiver.on_streamed
        self._loop = asyncio.get_running_loop()
        if not self._links:
            await self.dialer.first()
        for _ in range(connections - len(self._links)):
            self.dialer.dial()
        await self.dialer.settle()

    def send(self, token: int, prepared: PreparedHttp) -> None:
        """Tokens are not negative."""
        idle = self.idle
        if idle:
            link = idle.pop()
            link.token = token
            link.prepared = prepared
            self.busy[token] = link
            link.sent_ns = self.now_ns()
            link.write(prepared.data)
        elif self._closed:
            words = "the transport is closed"
            self._loop.call_soon(self._unsent, token, prepared, 0, self.now_ns(), Outcome.CLIENT, words)
        else:
            self.conn_waits += 1
            self.queue[token] = prepared
            self.want()

    def want(self) -> None:
        """Starts an attempt for every waiting request that has none."""
        if not self._closed:
            self.dialer.want(len(self.queue) + len(self._again))

    def serve(self, link: Connection) -> None:
        """Gives the oldest waiting request to a connection that is free."""
        token, prepared = self.queue.popitem(last=False)
        self._write(link, token, prepared, 0)

    def _write(self, link: Connection, token: int, prepared: PreparedHttp, sent_ns: int) -> None:
        link.token = token
        link.prepared = prepared
        self.busy[token] = link
        link.sent_ns = sent_ns or self.now_ns()
        link.write(prepared.data)

    def send_again(self, token: int, prepared: PreparedHttp, sent_ns: int) -> None:
        """For a request of which the server can have read nothing; its `sent_ns` stays the first."""
        self._again[token] = (prepared, sent_ns)
        self.want()

    def _opened(self, link: Connection) -> None:
        if link.gone:
            self.dialer.ended(link, Outcome.CONNECT, AT_ONCE)
        elif self._again:
            link.stage = NEW
            token, (prepared, sent_ns) = self._again.popitem(last=False)
            self.resent += 1
            self._write(link, token, prepared, sent_ns)
        elif self.queue:
            link.stage = NEW
            self.serve(link)
        else:
            self.idle.append(link)

    def _failed(self, outcome: Outcome, words: str) -> None:
        # counted first: who is told may ask again at once
        for _ in range(self.waiting - self.dialer.opening):
            sent_ns = 0
            if self._again:
                token, (prepared, sent_ns) = self._again.popitem(last=False)
            elif self.queue:
                token, prepared = self.queue.popitem(last=False)
            else:
                break
            self._unsent(token, prepared, sent_ns, self.now_ns(), outcome, words)

    def _unsent(
        self, token: int, prepared: PreparedHttp, sent_ns: int, now: int, outcome: Outcome, words: str
    ) -> None:
        """Tells of a request that no connection has."""
        if prepared.reader is not None:
            self.on_streamed(token, sent_ns, outcome, Streamed())
        self.on_reply(token, sent_ns, 0, now, outcome, 0, 0, words)

    def cancel(self, token: int, outcome: Outcome) -> None:
        """Closes the request's connection: HTTP/1.1 has no other way to take a request back."""
        now = self.now_ns()
        link = self.busy.get(token)
        if link is not None:
            words = "given up within the answer" if link.first_ns else "given up before the answer began"
            link.cancel(now, outcome, words)
        elif token in self.queue:
            prepared = self.queue.pop(token)
            outcome, words = self.dialer.given_up(outcome, "given up before any connection was free")
            self._unsent(token, prepared, 0, now, outcome, words)
        elif token in self._again:
            prepared, sent_ns = self._again.pop(token)
            outcome, words = self.dialer.given_up(outcome, "given up while connecting once more")
            self._unsent(token, prepared, sent_ns, now, outcome, words)

    def sent_at(self, token: int) -> int:
        """See seams.Transport."""
        link = self.busy.get(token)
        return link.sent_ns if link is not None else self._again[token][1] if token in self._again else 0

    def made(self, link: Connection) -> None:
        """A connection exists (it may not be open yet)."""
        self._links.add(link)

    def forget(self, link: Connection) -> None:
        """A connection is no more."""
        self._links.discard(link)
        if self._all_gone is not None and not self._links and not self._all_gone.done():
            self._all_gone.set_result(None)

    async def close(self) -> None:
        """Ends what is in flight as cancelled, then every connection."""
        self._closed = True
        self.idle.clear()
        for token in [*self.queue, *self._again, *self.busy]:
            self.cancel(token, Outcome.CANCELLED)
        await self.dialer.close()
        self._all_gone = asyncio.get_running_loop().create_future()
        for link in list(self._links):
            link.gone = True
            link.transport.abort()
        if self._links:
            await asyncio.wait([self._all_gone], timeout=1)
