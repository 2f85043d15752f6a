"""The Protocols, on one page: what the engine asks of a clock, a pacer, a transport and a record sink.

`records` and this page together are the ten-minute reading for a newcomer.  No implementation here.
"""

from collections.abc import Callable
from typing import Protocol, Self, TypeVar

from loadgen.records import AnswerReader, Outcome, Request, Streamed

__all__ = ["AnswerReader", "Clock", "Pacer", "Prepared", "PreparedT", "Receiver", "RecordSink", "Transport"]


class Clock(Protocol):
    """Monotonic nanoseconds; the origin is arbitrary, one clock serves a whole run."""

    def now_ns(self) -> int: ...


class Pacer(Protocol):
    """Calls back once, at or as soon as possible after an absolute time of the run's clock."""

    def arm(self, at_ns: int, call: Callable[[], None]) -> None:
        """Replaces whatever was armed before."""

    def close(self) -> None: ...


class Prepared(Protocol):
    """A request's bytes, framed ahead of time by the transport that will send them."""

    @property
    def bytes_out(self) -> int:
        """Bytes that go on the wire for one sending of it."""

    def patched(self, piece: bytes) -> Self:
        """The same request with other bytes in its slot (records.Request); ValueError unless they fit."""


PreparedT = TypeVar("PreparedT", bound=Prepared)


class Receiver(Protocol):
    """Whom a transport tells what became of a request: a plain call, from inside the event loop."""

    def on_reply(  # noqa: PLR0913 - one call, plain ints
        self,
        token: int,
        sent_ns: int,  # absolute clock; 0 when it was never written
        first_ns: int,  # first byte of the answer; 0 when none came
        done_ns: int,
        outcome: Outcome,
        status: int,  # HTTP status or grpc-status
        bytes_in: int,
        detail: str | None,  # the server's words on a failure, at most a line
    ) -> None:
        """Exactly once for each token given to `send`, also after `cancel`; never from within `send`."""

    def on_streamed(self, token: int, sent_ns: int, outcome: Outcome, streamed: Streamed) -> None:
        """Right before `on_reply`, with the same values, of a request whose answer has a reader."""


class Transport(Protocol[PreparedT]):
    """Moves prepared bytes.  No hidden cap: it opens connections as they are needed.

    `on_body`, when set, is given (token, body) of each complete successful answer before `on_reply`:
    for HTTP the decoded entity (with its headers as a dict), for gRPC the message; unset on the hot path.
    """

    @property
    def connections_opened(self) -> int:
        """Since the start."""

    def prepare(self, request: Request) -> PreparedT: ...

    async def open(self, receiver: Receiver, connections: int) -> None:
        """Opens that many connections ahead of the load; raises LoadgenError if none can be opened.

        Called again between loads, it hands the transport to another receiver and opens what is missing.
        """

    def send(self, token: int, prepared: PreparedT) -> None:
        """Writes now if a connection is free, else as soon as one is; stamps `sent_ns` before the write."""

    def cancel(self, token: int, outcome: Outcome) -> None:
        """Gives a request up: ends it with that outcome; unknown or ended tokens are ignored."""

    def sent_at(self, token: int) -> int:
        """When a request that has not ended was first written, absolute clock; 0 while it waits for a connection."""

    async def close(self) -> None: ...


class RecordSink(Protocol):
    """Takes one finished request.  Must not block: it is called on the hot path."""

    def append(  # noqa: PLR0913 - one row, one call
        self,
        seq: int,
        phase: int,
        kind: int,
        due_ns: int,
        sent_ns: int,
        first_ns: int,
        done_ns: int,
        length: int,
        items: int,
        bytes_out: int,
        bytes_in: int,
        outcome: int,
        status: int,
        detail: str | None,
    ) -> None:
        """Times are counted from the start of the run; -1 stands for "never" and for "no length"."""

    def append_streamed(  # noqa: PLR0913 - one row, one call
        self,
        seq: int,
        phase: int,
        kind: int,
        due_ns: int,
        sent_ns: int,
        outcome: int,
        origin_ns: int,
        streamed: Streamed,
    ) -> None:
        """What a streamed answer was made of, besides its record; its stamps are absolute, `origin_ns` is the
        start of the run.
        """
