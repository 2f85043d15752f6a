"""HTTP/1.1 over asyncio: one request in flight a connection, replies found by framing, told by a plain call.

No Task, Future or header dict per request.  It must not know schedules, records or what a tensor is.
"""

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import cast

from loadgen.records import Outcome, Request
from loadgen.seams import Clock, Receiver
from loadgen.target import Target
from loadgen.transport.dial import CONNECT_TIMEOUT_NS, Dialer, Link, Via, direct_write, no_delay
from loadgen.transport.outcomes import http_outcome
from loadgen.units import show_ns
from loadgen.wire.errors import ProtocolError
from loadgen.wire.http1 import Heads, ResponseReader, encode_request, failure_words, head_fields
from loadgen.wire.slot import put

Entity = tuple[dict[str, str], bytes]  # header fields (names in lower case), body


class PreparedHttp:
    """Head and body as they go on the wire; `slot` in them may be patched."""

    __slots__ = ("bytes_out", "data", "slot")

    def __init__(self, data: bytes, slot: tuple[int, int] | None = None) -> None:
        self.data = data
        self.bytes_out = len(data)
        self.slot = slot

    def patched(self, piece: bytes) -> "PreparedHttp":
        """The same request with other bytes in its slot.  Raises ValueError unless they are as many."""
        return PreparedHttp(put(self.data, piece, self.slot), self.slot)


_NOTHING = PreparedHttp(b"")
_OK = Outcome.OK
_NEW, _AHEAD, _PROVEN = range(3)  # opened for the request in flight; opened ahead of any; has answered one
_AT_ONCE = "the server closed a new connection without an answer"


class _Connection(Link):
    """One connection; `token` is -1 when no request is in flight."""

    __slots__ = ("_busy", "_heads", "_idle", "_now", "_owner", "_plain", "_waiting", "bytes_in", "clogged",
                 "first_ns", "gone", "prepared", "reader", "sent_ns", "stage", "token", "transport",
                 "write")  # fmt: skip

    transport: asyncio.Transport
    write: Callable[[bytes], None]

    def __init__(self, owner: "HttpTransport") -> None:
        self.ready = None
        self._owner = owner
        self._now = owner.now_ns
        self._idle, self._busy, self._waiting = owner.idle, owner.busy, owner.queue
        self._heads, self._plain = owner.heads, owner.heads.plain
        self.reader = ResponseReader(owner.heads)
        self.token = -1
        self.prepared = _NOTHING
        self.sent_ns = self.first_ns = self.bytes_in = self.opened_ns = 0
        self.stage = _AHEAD
        self.clogged = False  # the kernel takes no more of our request for now
        self.gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        no_delay(transport)
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        self.write = direct_write(transport)
        self._owner.made(self)

    def data_received(self, data: bytes) -> None:
        now = self._now()
        token = self.token
        end = data.find(b"\r\n\r\n") + 4
        if (
            self._plain.get(data[:end]) == len(data) - end
            and token >= 0
            and not self.first_ns
            and not self.clogged
            and self._owner.on_body is None
        ):
            sent_ns = self.sent_ns
            self.token = -1
            del self._busy[token]
            if self.stage != _PROVEN:
                self._prove()
            if self._waiting:
                self._owner.serve(self)
            else:
                self._idle.append(self)
            self._owner.on_reply(token, sent_ns, now, now, _OK, 200, len(data), None)
        else:
            self._read(data, now)

    def _prove(self) -> None:
        self.stage = _PROVEN
        self._owner.dialer.answered()

    def _read(self, data: bytes, now: int) -> None:
        """Anything but a plain reply in one piece."""
        if self.token < 0:  # nothing was asked: a server's last words before it closes, or bytes too many
            self.drop()
            return
        if not self.first_ns:
            self.first_ns = now
            self.bytes_in = 0
            self.reader.reset(keep_body=self._owner.on_body is not None)
        self.bytes_in += len(data)
        try:
            done = self.reader.feed(data)
        except ProtocolError as why:
            self.drop()
            if self.stage != _PROVEN:
                self._owner.dialer.ended(self, Outcome.CONNECT, str(why))
            self.end(now, Outcome.PROTOCOL, 0, str(why))
        else:
            if done:
                self._complete(now)

    def _complete(self, now: int) -> None:
        reader, owner, token = self.reader, self._owner, self.token
        head = reader.head
        assert head is not None  # noqa: S101 - a complete reply has one
        outcome = http_outcome(head.status)
        detail = None
        if outcome is Outcome.PROTOCOL:
            detail = f"redirected to {head_fields(reader.block).get('location', '?')}, which is not followed"
        elif outcome is not Outcome.OK:
            detail = failure_words(reader.body) or f"HTTP {head.status}"
        elif owner.on_body is not None:
            owner.on_body(token, (head_fields(reader.block), reader.body))
        if self.stage != _PROVEN:
            self._prove()
        if not head.keep_alive or reader.excess or self.clogged:
            owner.reconnects += not head.keep_alive
            self.drop()
        self.end(now, outcome, head.status, detail)

    def end(self, now: int, outcome: Outcome, status: int, detail: str | None) -> None:
        """The request in flight is over; the connection, unless dropped, is free for the next."""
        token, sent_ns, first_ns = self.token, self.sent_ns, self.first_ns
        size = self.bytes_in if first_ns else 0
        self.token = -1
        self.first_ns = 0
        self.prepared = _NOTHING
        del self._busy[token]
        if not self.gone:
            if self._waiting:
                self._owner.serve(self)
            else:
                self._idle.append(self)
        elif self._waiting:
            self._owner.want()
        self._owner.on_reply(token, sent_ns, first_ns, now, outcome, status, size, detail)

    def drop(self) -> None:
        """No further request on this connection."""
        if not self.gone:
            self.gone = True
            self.transport.abort()
            if self in self._idle:
                self._idle.remove(self)

    def eof_received(self) -> None:
        if self.token >= 0 and self.first_ns and self.reader.eof():
            self.gone = True  # the transport closes itself when this returns
            self._complete(self._now())
        else:
            self._lost()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - every loss is one
        self._lost()
        self._owner.forget(self)

    def _lost(self) -> None:
        by_server = not self.gone
        self.gone = True
        owner = self._owner
        token = self.token
        if token < 0 and self in self._idle:
            self._idle.remove(self)
        if by_server:
            owner.reconnects += 1
            if self.stage != _PROVEN:
                owner.dialer.ended(self, Outcome.CONNECT, _AT_ONCE)
        if token < 0:
            return
        if self.first_ns:
            words = f"the connection ended after {self.bytes_in} bytes of the answer"
            self.end(self._now(), Outcome.STREAM_ENDED_EARLY, 0, words)
        elif self.stage != _NEW and self._now() - self.sent_ns < owner.dialer.race_ns:
            self.token = -1
            del self._busy[token]
            owner.send_again(token, self.prepared, self.sent_ns)
        else:
            words = "the connection ended before the answer began"
            self.end(self._now(), Outcome.STREAM_ENDED_EARLY, 0, words)

    def pause_writing(self) -> None:
        self.clogged = True

    def resume_writing(self) -> None:
        self.clogged = False


class HttpTransport:
    """Idle connections are taken last in, first out; when none is free another is opened.

    Counters: connections_opened, reconnects (connections that the server ended), resent (requests written
    once more, theirs having ended before it can have been read), conn_waits (requests that no open connection
    could take at once), waiting, in_flight.
    """

    on_body: Callable[[int, Entity], None] | None

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
        self.on_body = None
        self.heads = Heads()
        self.idle: list[_Connection] = []
        self.busy: dict[int, _Connection] = {}
        self.queue: OrderedDict[int, PreparedHttp] = OrderedDict()  # waiting for a connection
        self._again: OrderedDict[int, tuple[PreparedHttp, int]] = (
            OrderedDict()
        )  # waiting for a new connection
        self._links: set[_Connection] = set()
        self.dialer: Dialer[_Connection] = Dialer(
            target, clock, tls, connect_timeout_ns, lambda: _Connection(self), self._opened, self._failed,
            self.want, "http/1.1", via,
        )  # fmt: skip
        self._closed = False
        self._all_gone: asyncio.Future[None] | None = None
        self.reconnects = self.resent = self.conn_waits = 0

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
        """Raises LoadgenError for a path or header that cannot be sent."""
        data = encode_request(request, self._target.authority, self._target.base_path, self._headers)
        if request.slot is None:
            return PreparedHttp(data)
        at = len(data) - len(request.body)
        return PreparedHttp(data, (request.slot[0] + at, request.slot[1] + at))

    async def open(self, receiver: Receiver, connections: int) -> None:
        """Opens up to that many connections, at least one.

        Called again it opens only those that are missing, and `receiver` takes over.  Raises LoadgenError
        when no server answers.
        """
        self.on_reply = receiver.on_reply
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
            now = self.now_ns()
            self._loop.call_soon(
                self.on_reply, token, 0, 0, now, Outcome.CLIENT, 0, 0, "the transport is closed"
            )
        else:
            self.conn_waits += 1
            self.queue[token] = prepared
            self.want()

    def want(self) -> None:
        """Starts an attempt for every waiting request that has none."""
        if not self._closed:
            self.dialer.want(len(self.queue) + len(self._again))

    def serve(self, link: "_Connection") -> None:
        """Gives the oldest waiting request to a connection that is free."""
        token, prepared = self.queue.popitem(last=False)
        self._write(link, token, prepared, 0)

    def _write(self, link: "_Connection", token: int, prepared: PreparedHttp, sent_ns: int) -> None:
        link.token = token
        link.prepared = prepared
        self.busy[token] = link
        link.sent_ns = sent_ns or self.now_ns()
        link.write(prepared.data)

    def send_again(self, token: int, prepared: PreparedHttp, sent_ns: int) -> None:
        """For a request whose connection the server had closed already; its `sent_ns` stays the first."""
        self._again[token] = (prepared, sent_ns)
        self.want()

    def _opened(self, link: "_Connection") -> None:
        if link.gone:
            self.dialer.ended(link, Outcome.CONNECT, _AT_ONCE)
        elif self._again:
            link.stage = _NEW
            token, (prepared, sent_ns) = self._again.popitem(last=False)
            self.resent += 1
            self._write(link, token, prepared, sent_ns)
        elif self.queue:
            link.stage = _NEW
            self.serve(link)
        else:
            self.idle.append(link)

    def _failed(self, outcome: Outcome, words: str) -> None:
        # counted first: who is told may ask again at once
        for _ in range(self.waiting - self.dialer.opening):
            sent_ns = 0
            if self._again:
                token, (_, sent_ns) = self._again.popitem(last=False)
            elif self.queue:
                token, _ = self.queue.popitem(last=False)
            else:
                break
            self.on_reply(token, sent_ns, 0, self.now_ns(), outcome, 0, 0, words)

    def cancel(self, token: int, outcome: Outcome) -> None:
        """Closes the request's connection: HTTP/1.1 has no other way to take a request back."""
        now = self.now_ns()
        link = self.busy.get(token)
        if link is not None:
            waited = show_ns(now - link.sent_ns)
            came = (
                f"{link.bytes_in} bytes of the answer came" if link.first_ns else "no byte of the answer came"
            )
            link.drop()
            link.end(now, outcome, 0, f"given up after {waited}: {came}")
        elif token in self.queue:
            del self.queue[token]
            outcome, words = self.dialer.given_up(outcome, "given up before any connection was free")
            self.on_reply(token, 0, 0, now, outcome, 0, 0, words)
        elif token in self._again:
            _, sent_ns = self._again.pop(token)
            outcome, words = self.dialer.given_up(outcome, "given up while connecting once more")
            self.on_reply(token, sent_ns, 0, now, outcome, 0, 0, words)

    def made(self, link: "_Connection") -> None:
        """A connection exists (it may not be open yet)."""
        self._links.add(link)

    def forget(self, link: "_Connection") -> None:
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
