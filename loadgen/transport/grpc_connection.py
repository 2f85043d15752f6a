"""One HTTP/2 connection of the gRPC transport: bytes in, ended calls out, answers written in few pieces.

It must not know which connection a call is best sent on, nor what becomes of one that was not processed.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from loadgen.records import Outcome
from loadgen.transport.dial import Link, direct_write, no_delay
from loadgen.wire.errors import ProtocolError
from loadgen.wire.h2 import H2Connection
from loadgen.wire.h2_frames import NOT_READ, Reset, Stream, goodbye
from loadgen.wire.hpack_lite import SUCCESS

if TYPE_CHECKING:
    from loadgen.transport.grpc import GrpcTransport

_OK = Outcome.OK


class Connection(Link):
    __slots__ = ("_now", "_owner", "corked", "gone", "h2", "now", "proven", "trailing", "transport", "unsent",
                 "write")  # fmt: skip

    transport: asyncio.Transport
    write: Callable[[bytes], None]

    def __init__(self, owner: "GrpcTransport") -> None:
        self.ready = asyncio.get_running_loop().create_future()
        self._owner = owner
        self._now = owner.now_ns
        self.h2 = H2Connection(owner.blocks)
        self.gone = False
        self.opened_ns = 0
        self.proven = False  # it has answered a call, however
        self.corked = False  # what is sent now goes to h2.out, and into `unsent`: it has no sent_ns yet
        self.unsent: list[Stream] = []
        self.now = 0  # when what is being read came
        self.trailing: deque[Stream] = deque()  # whose answer has ended and whose trailers may be to come

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        no_delay(transport)
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        self.write = direct_write(transport)
        self._owner.made(self)
        self.write(self.h2.greeting())

    def data_received(self, data: bytes) -> None:
        now = self.now = self._now()
        owner = self._owner
        h2 = self.h2
        try:
            ended = h2.receive(data, now)
        except ProtocolError as why:
            self._broken(why, data, now)
            return
        if h2.out:
            self._control()
        if ended and not self.proven:
            self._prove(ended)
        if h2.retiring:
            self._owner.retire(self, f"the server takes no calls: {h2.farewell}")
        # what the callbacks send on this connection leaves in few writes: a system call each would cost more
        # than the callbacks do; it is stamped when it leaves
        self.corked = True
        try:
            for stream in ended:
                if (
                    stream.end is SUCCESS
                    and stream.body is None
                    and stream.bytes_in
                    and (stream.read == stream.bytes_in or stream.read == NOT_READ)  # noqa: PLR1714 - faster
                ):
                    token = stream.token
                    del owner.flying[token]
                    owner.on_reply(token, stream.sent_ns, stream.first_ns, now, _OK, 0, stream.bytes_in, None)
                else:
                    owner.ended(stream, now, h2.farewell)
            if owner.queue:
                owner.serve()
        finally:
            self.corked = False
            if h2.out:
                self.flush()
        if h2.retiring:
            self._retire()

    def _prove(self, ended: list[Stream]) -> None:
        self.proven = any(not isinstance(stream.end, Reset) for stream in ended)
        if self.proven:
            self._owner.dialer.answered()

    def flush(self) -> None:
        """Writes what was held back."""
        if self.unsent:
            now = self._now()
            for stream in self.unsent:
                stream.sent_ns = now
            self.unsent.clear()
        if not self.gone:
            self.write(self.h2.take())

    def _control(self) -> None:
        """Writes what framing itself has to say; the first of it answers the peer's SETTINGS."""
        self.write(self.h2.take())
        if self.ready is not None and not self.ready.done() and self.h2.ready:
            self.ready.set_result(None)

    def _retire(self) -> None:
        if self.ready is not None and not self.ready.done():
            self.ready.set_result(None)  # the owner sees that it is gone
        if not self.h2.streams and not self.gone:
            self.gone = True
            self.transport.close()

    def _broken(self, why: ProtocolError, data: bytes, now: int) -> None:
        words = str(why)
        if not self.h2.ready and data.startswith(b"HTTP/1."):
            words = "the server speaks HTTP/1.1 here, not gRPC"
        self.gone = True
        self.write(goodbye(why.code, words))
        self.transport.close()
        self._owner.retire(self, words)
        for stream in self.h2.ended:
            self._owner.ended(stream, now, self.h2.farewell)
        self._lose(now, words, Outcome.PROTOCOL)

    def connection_lost(self, exc: Exception | None) -> None:
        words = self.h2.farewell or "the connection ended before the answer did"
        if exc is not None and not self.h2.farewell:
            words += f" ({exc})"
        if not self.gone:
            self.gone = True
            self._owner.reconnects += 1
        self._owner.retire(self, "the server ended a new connection without an answer")
        self._lose(self._now(), words, None)
        self._owner.forget(self)

    def _lose(self, now: int, words: str, outcome: Outcome | None) -> None:
        """`outcome` None: by whether the answer had begun."""
        if self.ready is not None and not self.ready.done():
            self.ready.set_exception(ProtocolError(words))
        streams = list(self.h2.streams.values())
        self.h2.streams.clear()
        for stream in streams:
            lost = Outcome.STREAM_ENDED_EARLY if stream.first_ns else Outcome.CONNECTION
            self._owner.tell(stream, now, lost if outcome is None else outcome, 0, words)
        self._owner.want()
