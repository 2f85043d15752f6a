"""One inference through the official gRPC library, and its errors in our list of outcomes.

A call is what `tritonclient.grpc.aio` makes of one: the same messages on the same grpc.aio method; only the
answer's bytes are kept beside the parsed message.  It must not know HTTP/2 framing or who asked.
"""

import itertools
import re
from typing import TYPE_CHECKING, Any

from loadgen.connect.channel import OfficialChannel, connection_words, lost_connection
from loadgen.connect.options import ConnectOptions
from loadgen.records import LoadgenError, Outcome, Request
from loadgen.seams import Clock
from loadgen.target import Target
from loadgen.transport.outcomes import grpc_outcome
from loadgen.transport.reference_parts import Ended, Flight, PreparedReference
from loadgen.units import show_ns
from loadgen.wire.errors import one_line
from loadgen.wire.hpack_lite import Trailers
from loadgen.wire.kserve_grpc import METHOD
from loadgen.wire.statuses import says_full

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX = 5  # bytes before a message
_NEVER_MADE = re.compile(
    r"failed to connect|refused|resol(?:ve|ution)|unreachable|no route|handshake", re.IGNORECASE
)
_HTTP_STATUS = re.compile(r"http2? header with status: (\d+)", re.IGNORECASE)
_RESET = re.compile(r"RST_STREAM", re.IGNORECASE)
_UNAVAILABLE = 14
# by what the library makes of ENHANCE_YOUR_CALM and REFUSED_STREAM; any other reset came before an answer
_RESETS = {8: Outcome.REJECTED, 14: Outcome.REFUSED_STREAM}


class GrpcCarrier:
    """Calls go round `connections` channels of one connection each."""

    def __init__(self, target: Target, clock: Clock, options: ConnectOptions, timeout_ns: int) -> None:
        self._target = target
        self._now = clock.now_ns
        self._options = options
        self._timeout_ns = timeout_ns
        self._metadata = options.grpcio_metadata()
        self._channels: list[OfficialChannel] = []
        self._methods: list[Any] = []
        self._turn: Iterator[Any] = itertools.cycle(())
        self.connections_opened = self.reconnects = self.resent = self.conn_waits = 0

    def prepare(self, request: Request) -> PreparedReference:
        from tritonclient.grpc import service_pb2 as pb

        if request.path != METHOD:
            raise LoadgenError(f"the reference transport knows only {METHOD}, not {request.path}")
        message = pb.ModelInferRequest.FromString(request.body)
        metadata = (*((name.lower(), value) for name, value in request.headers), *self._metadata)
        return PreparedReference((message, metadata), len(request.body) + _PREFIX, request)

    async def open(self, connections: int) -> None:
        from tritonclient.grpc import service_pb2 as pb

        while len(self._channels) < connections:
            self._channels.append(OfficialChannel(self._target, self._options))
            channel = await self._channels[-1].open()
            await self._connected(self._channels[-1], channel)
            serialize = pb.ModelInferRequest.SerializeToString
            self._methods.append(channel.unary_unary(f"/{METHOD}", request_serializer=serialize))
            self.connections_opened += 1
        self._turn = itertools.cycle(self._methods)

    async def _connected(self, official: OfficialChannel, channel: Any) -> None:
        """The library tells the reason of a failure only to a call: one that changes nothing."""
        import grpc

        live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        try:
            await live(b"", timeout=self._timeout_ns / 1e9)
        except grpc.aio.AioRpcError as why:
            code, details = why.code(), why.details() or ""
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                words = f"no connection within {show_ns(self._timeout_ns)}"
            elif code is grpc.StatusCode.UNAVAILABLE and lost_connection(details):
                words, _ = await official.failure(details)
            else:
                return  # an answer, whatever it says
            raise LoadgenError(f"no server answers at {self._target.url}: {words}") from None

    async def carry(self, flight: Flight, *, keep: bool) -> Ended:
        import grpc
        from google.protobuf.message import DecodeError
        from tritonclient.grpc import service_pb2 as pb

        message, metadata = flight.prepared.request
        flight.sent_ns = self._now()
        try:
            raw: bytes = await next(self._turn)(message, metadata=metadata)
        except grpc.aio.AioRpcError as why:
            return self._refused(flight, why.code().value[0], why.details() or "")
        flight.first_ns = self._now()
        said: Any = None
        try:
            pb.ModelInferResponse.FromString(raw)
        except DecodeError as why:
            said = f"the official library cannot read the answer: {one_line(str(why))}"
        check = flight.prepared.check
        if said is None and check is not None:
            said = check({}, raw)
        if isinstance(said, str):
            return Ended(Outcome.PROTOCOL, 0, len(raw) + _PREFIX, said)
        return Ended(Outcome.OK, 0, len(raw) + _PREFIX, None, raw if keep else None)

    def _refused(self, flight: Flight, status: int, details: str) -> Ended:
        http = _HTTP_STATUS.search(details)
        if http is not None:
            flight.first_ns = self._now()
            end = Trailers(int(http[1]), None, "")
            outcome, code, words = grpc_outcome(end, got_data=False, full=flight.prepared.full)
            return Ended(outcome, code, 0, words)
        if _RESET.search(details):
            return Ended(_RESETS.get(status, Outcome.CONNECTION), 0, 0, one_line(details))
        if status == _UNAVAILABLE and not says_full(status, details) and lost_connection(details):
            if _NEVER_MADE.search(details):
                flight.sent_ns = 0
                return Ended(Outcome.CONNECT, 0, 0, connection_words(details))
            return Ended(Outcome.CONNECTION, 0, 0, connection_words(details))
        flight.first_ns = self._now()
        end = Trailers(None, status, one_line(details))
        outcome, status, words = grpc_outcome(end, got_data=False, full=flight.prepared.full)
        return Ended(outcome, status, 0, words)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()
