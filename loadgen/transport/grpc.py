"""gRPC over our own HTTP/2 framing on asyncio: many calls in flight a connection, replies told by a plain call.

No Task, Future or protobuf object per request.  It must not know schedules, records or what a message means.
"""

import asyncio
import itertools
import ssl
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from loadgen.records import LoadgenError, Outcome, Request, Streamed
from loadgen.seams import Clock, Receiver
from loadgen.target import Target
from loadgen.transport.dial import CONNECT_TIMEOUT_NS, Dialer, Via
from loadgen.transport.grpc_answer import Answer
from loadgen.transport.grpc_connection import Connection
from loadgen.transport.outcomes import grpc_outcome
from loadgen.units import show_bytes
from loadgen.wire.errors import ProtocolError
from loadgen.wire.h2_frames import (
    NO_ERROR,
    NOT_READ,
    REFUSED_STREAM,
    SAMPLED,
    UNPROCESSED,
    Call,
    Reset,
    Stream,
    error_name,
    goodbye,
)
from loadgen.wire.hpack_lite import Blocks, encode_call
from loadgen.wire.known import KnownAnswers

MESSAGE_LIMIT = 2**31 - 1
TRIES = 5  # times that a call which a server refused unprocessed is sent again
_PAUSE_S = 0.01  # before a refused stream is opened again; doubles with each refusal
_ENHANCE_YOUR_CALM = 11
_TRAILERS_LATE = (
    256  # answers that end before a connection breaks off the oldest call that never got its trailers
)
_BATCH = 16  # calls sent while answers are read leave together, at most this many


class GrpcTransport:
    """Calls go round the open connections; when all are full another is opened.

    Counters: connections_opened, reconnects (connections that the server ended), resent (calls that the
    server had not processed, sent once more), conn_waits (calls that no open connection could take at once),
    waiting, in_flight.
    """

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
        self._on_body: Callable[[int, bytes], None] | None = None
        self._streams = False  # some request has a reader
        self._keeps = False  # answers are looked at: one question a call on the hot path
        self.blocks = Blocks()
        self._known: dict[Any, KnownAnswers] = {}  # by who reads them
        self._call_blocks: dict[tuple[str, tuple[tuple[str, str], ...]], bytes] = {}
        self.flying: dict[int, Stream] = {}
        self.queue: OrderedDict[int, Stream] = OrderedDict()
        self._pausing: dict[int, tuple[Stream, asyncio.TimerHandle]] = {}  # refused, to be sent again
        self._open_links: list[Connection] = []  # those that take new calls
        self._turn: Iterator[Connection] = itertools.cycle(())
        self._links: set[Connection] = set()
        self.dialer: Dialer[Connection] = Dialer(
            target, clock, tls, connect_timeout_ns, lambda: Connection(self), self._opened, self._failed,
            self.want, "h2", via,
        )  # fmt: skip
        self._room = 1  # calls that a new connection will take, as far as we know
        self._closed = False
        self._all_gone: asyncio.Future[None] | None = None
        self.reconnects = self.resent = self.conn_waits = 0

    @property
    def on_body(self) -> Callable[[int, bytes], None] | None:
        """Who is given the message of each successful unary answer."""
        return self._on_body

    @on_body.setter
    def on_body(self, call: Callable[[int, bytes], None] | None) -> None:
        self._on_body = call
        self._keeps = self._streams or call is not None

    @property
    def connections_opened(self) -> int:
        """Connections made since the start."""
        return self.dialer.opened

    @property
    def waiting(self) -> int:
        """Calls that no connection has taken yet."""
        return len(self.queue) + len(self._pausing)

    @property
    def in_flight(self) -> int:
        """Calls written and not yet ended."""
        return len(self.flying)

    def prepare(self, request: Request) -> Call:
        """Raises LoadgenError for metadata that cannot be sent or a message of 2 GiB."""
        if len(request.body) > MESSAGE_LIMIT:
            size = show_bytes(len(request.body))
            raise LoadgenError(f"a gRPC message of {size} cannot be sent: at most 2 GiB is allowed")
        key = (request.path, request.headers)
        block = self._call_blocks.get(key)
        if block is None:
            path = "/" + request.path.lstrip("/")
            metadata = (*request.headers, *self._headers)
            block = encode_call(path, self._target.authority, tls=self._target.tls, metadata=metadata)
            self._call_blocks[key] = block
        if request.reader is not None:
            self._streams = self._keeps = True
        known = self._known.setdefault(request.check, KnownAnswers())
        return Call(
            block,
            request.body,
            request.reader,
            request.slot,
            check=request.check,
            known=known,
            full=request.full,
        )

    async def open(self, receiver: Receiver, connections: int) -> None:
        """Opens up to that many connections, at least one.

        Called again it opens only those that are missing, and `receiver` takes over.  Raises LoadgenError
        when no server answers.
        """
        self._receiver, self.on_reply = receiver, receiver.on_reply
        self._loop = asyncio.get_running_loop()
        if not self._links:
            await self.dialer.first()
        for _ in range(connections - len(self._links)):
            self.dialer.dial()
        await self.dialer.settle()

    def send(self, token: int, prepared: Call) -> None:
        stream = Stream(token, prepared)
        if self._keeps:
            self._keep(stream)
        link = next(self._turn, None)
        if link is not None and not self.queue:
            h2 = link.h2
            if len(h2.streams) < h2.limit:
                stream.link = link
                self.flying[token] = stream
                if link.corked:
                    h2.out.append(h2.request(stream))
                    unsent = link.unsent
                    unsent.append(stream)
                    if len(unsent) >= _BATCH:
                        link.flush()
                else:
                    stream.sent_ns = self.now_ns()
                    link.write(h2.request(stream))
                return
        self._send_slowly(stream)

    def _keep(self, stream: Stream) -> None:
        reader = stream.call.reader
        if reader is not None:
            stream.body = Answer(stream, reader())
        elif self._on_body is not None:
            stream.body = []

    def _send_slowly(self, stream: Stream) -> None:
        if self._closed:
            now = self.now_ns()
            self._loop.call_soon(self._unsent, stream, now, Outcome.CLIENT, "the transport is closed")
            return
        self.queue[stream.token] = stream
        self.serve()
        if stream.token in self.queue:
            self.conn_waits += 1
            self.want()

    def serve(self) -> None:
        """Gives waiting calls to connections with room, oldest first."""
        for link in self._open_links:
            h2 = link.h2
            while self.queue and len(h2.streams) < h2.limit:
                token, stream = self.queue.popitem(last=False)
                stream.link = link
                self.flying[token] = stream
                if stream.tries:
                    self.resent += 1
                if link.corked:
                    h2.out.append(h2.request(stream))
                    if not stream.sent_ns:  # else its first sending is what counts
                        link.unsent.append(stream)
                else:
                    stream.sent_ns = stream.sent_ns or self.now_ns()
                    link.write(h2.request(stream))

    def want(self) -> None:
        """Opens as many connections as the waiting calls need, unless the server takes no calls for now."""
        if self._closed or any(not (link.h2.limit or link.h2.retiring) for link in self._open_links):
            return
        self.dialer.want(-(-len(self.queue) // self._room))

    def ended(self, stream: Stream, now: int, farewell: str) -> None:
        """Anything but a plain success: what it is called, and whether it may be sent again."""
        end, body = stream.end, stream.body
        if self.flying.get(stream.token) is not stream:  # its answer was over before its trailers came
            return
        if isinstance(body, Answer) and body.over():
            self._over(stream, body, now)
            return
        if isinstance(end, Reset):
            self._reset(stream, now, end, farewell)
            return
        if isinstance(body, Answer):
            outcome, status, words = grpc_outcome(end, got_data=True, full=stream.call.full)
            if outcome is Outcome.OK:
                outcome, words = body.end()
            self.tell(stream, now, outcome, status, words)
            return
        outcome, status, words = grpc_outcome(end, got_data=stream.bytes_in > 0, full=stream.call.full)
        if outcome is Outcome.OK and not (body is None and stream.read in (NOT_READ, stream.bytes_in)):
            try:
                self._read(stream)
            except ProtocolError as why:
                outcome, words = Outcome.PROTOCOL, str(why)
        self.tell(stream, now, outcome, status, words)

    def _read(self, stream: Stream) -> None:
        """Reads the message of a unary success; those like it need no reading.  Raises ProtocolError."""
        data, call = stream.data(), stream.call
        known = call.known.get(len(data))  # in several frames, or cut by reads, it was not looked for
        if call.check is not None and (known is None or not known.fits(data) or stream.id & SAMPLED == 1):
            said = call.check({}, stream.message())
            if isinstance(said, str):
                raise ProtocolError(said)
            if said is not None:
                call.known.learn(data[:5], len(data), said)
        if self._on_body is not None:
            self._on_body(stream.token, stream.message())

    def _over(self, stream: Stream, answer: Answer, now: int) -> None:
        """A streamed answer's own end came; its trailers may still be on their way."""
        outcome, words = answer.end()
        self.tell(stream, now, outcome, 0, words)
        link: Connection = stream.link
        if stream.id in link.h2.streams:
            link.trailing.append(stream)
            if len(link.trailing) > _TRAILERS_LATE:
                link.h2.cancel(
                    link.trailing.popleft()
                )  # of nearly all the trailers have come: then it is nothing

    def _reset(self, stream: Stream, now: int, end: Reset, farewell: str) -> None:
        refused = end.code == REFUSED_STREAM and not stream.first_ns
        unprocessed = end is UNPROCESSED
        if (refused or unprocessed) and stream.tries < TRIES:
            again = Stream(stream.token, stream.call)
            again.sent_ns, again.tries = stream.sent_ns, stream.tries + 1
            self._keep(again)
            del self.flying[stream.token]
            if refused:
                pause_s = _PAUSE_S * 2**stream.tries
                self._pausing[stream.token] = again, self._loop.call_later(pause_s, self._again, stream.token)
            else:
                self._send_first(again)
            return
        words = f"the server reset the stream: {error_name(end.code)}"
        if refused:
            outcome, words = Outcome.REFUSED_STREAM, f"{words}, {TRIES + 1} times"
        elif unprocessed:
            outcome = Outcome.CONNECTION
            words = f"the server ended {TRIES + 1} connections without taking the call: {farewell}"
        elif end.code == _ENHANCE_YOUR_CALM:
            outcome = Outcome.REJECTED
        else:
            outcome = Outcome.STREAM_ENDED_EARLY if stream.first_ns else Outcome.CONNECTION
        self.tell(stream, now, outcome, 0, words)

    def _again(self, token: int) -> None:
        self._send_first(self._pausing.pop(token)[0])

    def _send_first(self, stream: Stream) -> None:
        """Before all that wait: it was sent once."""
        self.queue[stream.token] = stream
        self.queue.move_to_end(stream.token, last=False)
        self.serve()
        if stream.token in self.queue:
            self.want()

    def tell(self, stream: Stream, now: int, outcome: Outcome, status: int, words: str | None) -> None:
        """The call is over."""
        if self.flying.get(stream.token) is not stream:
            return
        del self.flying[stream.token]
        if isinstance(stream.body, Answer):
            streamed = stream.body.reader.streamed()
            if outcome is not Outcome.OK:
                words = f"{words} ({'after answers' if streamed.chunk_ns else 'before any answer'})"
            self._receiver.on_streamed(stream.token, stream.sent_ns, outcome, streamed)
        self.on_reply(
            stream.token, stream.sent_ns, stream.first_ns, now, outcome, status, stream.bytes_in, words
        )

    def _unsent(self, stream: Stream, now: int, outcome: Outcome, words: str) -> None:
        """The call is over before any connection took it (again)."""
        if stream.call.reader is not None:
            self._receiver.on_streamed(stream.token, stream.sent_ns, outcome, Streamed())
        self.on_reply(stream.token, stream.sent_ns, 0, now, outcome, 0, 0, words)

    def cancel(self, token: int, outcome: Outcome) -> None:
        """Resets the call's stream."""
        now = self.now_ns()
        stream = self.flying.get(token)
        if stream is not None:
            link: Connection = stream.link
            if link.unsent:
                link.flush()
            link.h2.cancel(stream)
            if not link.gone and not link.corked:
                link.write(link.h2.take())
            words = "given up within the answer" if stream.first_ns else "given up before the answer began"
            if self.queue:
                self.serve()
            self.tell(stream, now, outcome, 0, words)
            if link.h2.retiring and not link.h2.streams and not link.gone:
                link.gone = True
                link.transport.close()
        elif token in self.queue:
            stream = self.queue.pop(token)
            outcome, words = self.dialer.given_up(outcome, "given up before any connection had room")
            self._unsent(stream, now, outcome, words)
        elif token in self._pausing:
            stream, timer = self._pausing.pop(token)
            timer.cancel()
            self._unsent(stream, now, outcome, "given up while the server refused the stream")

    def sent_at(self, token: int) -> int:
        """See seams.Transport."""
        stream = self.flying.get(token) or self.queue.get(token)
        if stream is None and token in self._pausing:
            stream, _ = self._pausing[token]
        return stream.sent_ns if stream is not None else 0

    def made(self, link: Connection) -> None:
        """A connection exists (it may not be open yet)."""
        self._links.add(link)

    def _opened(self, link: Connection) -> None:
        if link.gone or link.h2.retiring:
            words = link.h2.farewell or "the connection ended"
            words = f"the server took no calls on a new connection: {words}"
            self.dialer.ended(link, Outcome.CONNECT, words)
            return
        self._room = max(1, link.h2.limit)
        self._open_links.append(link)
        self._turn = itertools.cycle(self._open_links)
        self.serve()
        self.want()

    def retire(self, link: Connection, words: str) -> None:
        """The server takes no new calls on a connection."""
        if link in self._open_links:
            self._open_links.remove(link)
            self._turn = itertools.cycle(self._open_links)
            if not link.proven and not self._closed:
                self.dialer.ended(link, Outcome.CONNECT, words)

    def _failed(self, outcome: Outcome, words: str) -> None:
        # counted first: who is told may ask again at once
        for _ in range(len(self.queue) - self.dialer.opening * self._room):
            if not self.queue:
                break
            _, stream = self.queue.popitem(last=False)
            self._unsent(stream, self.now_ns(), outcome, words)

    def forget(self, link: Connection) -> None:
        """A connection is no more."""
        self._links.discard(link)
        if self._all_gone is not None and not self._links and not self._all_gone.done():
            self._all_gone.set_result(None)

    async def close(self) -> None:
        """Ends what is in flight as cancelled, then every connection."""
        self._closed = True
        self._open_links.clear()
        self._turn = itertools.cycle(())
        for token in [*self.queue, *self._pausing, *self.flying]:
            self.cancel(token, Outcome.CANCELLED)
        await self.dialer.close()
        self._all_gone = asyncio.get_running_loop().create_future()
        for link in list(self._links):
            if not link.gone:
                link.gone = True
                link.write(goodbye(NO_ERROR))
            link.transport.close()
        if self._links:
            await asyncio.wait([self._all_gone], timeout=0.5)
        for link in self._links:
            link.transport.abort()
