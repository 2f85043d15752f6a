"""The pieces of HTTP/2 that a gRPC client handles: frames, a call's bytes, a stream.  It must not know windows."""

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, Protocol

from loadgen.records import AnswerCheck, AnswerReader, QueueFull
from loadgen.wire.errors import ProtocolError, one_line
from loadgen.wire.hpack_lite import ACCEPTED, Trailers
from loadgen.wire.known import SAMPLE, KnownAnswers
from loadgen.wire.slot import put

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, PRIORITISED = 0x4, 0x8, 0x20
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR = 0, 1, 3, 6
REFUSED_STREAM, CANCEL = 7, 8
ERROR_NAMES = ("NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT",
               "STREAM_CLOSED", "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR",
               "CONNECT_ERROR", "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED")  # fmt: skip
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 2, 3, 4, 5

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
BIGGEST_WINDOW = 2**31 - 1
FIRST_WINDOW = 65_535  # of a connection, both ways, until a WINDOW_UPDATE (RFC 9113, 6.9.2)
FIRST_FRAME = 16_384
OUR_FRAME = 1 << 20  # the largest frame we accept
LAST_STREAM = 2**31 - 1
NOT_READ = -1
HEAD: Final = Struct(">IBI")  # length and kind share the first word
WORD: Final = Struct(">I")
SETTING: Final = Struct(">HI")


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return HEAD.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def goodbye(code: int, text: str = "") -> bytes:
    """A GOAWAY to write before closing."""
    return frame(GOAWAY, 0, 0, WORD.pack(0) + WORD.pack(code) + text.encode()[:200])


def error_name(code: int) -> str:
    """An HTTP/2 error code in words."""
    return ERROR_NAMES[code] if code < len(ERROR_NAMES) else f"error {code:#x}"


class Call:
    """A call's bytes, framed but for its stream id; `slot` in the message may be patched.

    `check` reads the message of a unary answer, unless it is like one of the `known` ones (with their prefix).
    """

    __slots__ = (
        "block", "body", "bytes_out", "check", "first", "full", "joint", "known", "reader", "size", "slot"
    )  # fmt: skip

    def __init__(
        self,
        block: bytes,
        message: bytes,
        reader: Callable[[], AnswerReader] | None = None,
        slot: tuple[int, int] | None = None,
        *,
        check: AnswerCheck | None = None,
        known: KnownAnswers | None = None,
        full: QueueFull | None = None,
    ) -> None:
        self.block = block
        self.full = full
        self.reader = reader
        self.check = check
        self.known = KnownAnswers() if known is None else known
        self.slot = None if slot is None else (slot[0] + 5, slot[1] + 5)  # behind the message's prefix
        self.body = b"\0" + WORD.pack(len(message)) + message
        self.size = len(self.body)
        # the fast way: first + id + joint + id + body; only for what fits one frame each
        self.first = HEAD.pack((len(block) & 0xFFFFFF) << 8 | HEADERS, END_HEADERS, 0)[:5]
        self.joint = block + HEAD.pack((self.size & 0xFFFFFF) << 8 | DATA, END_STREAM, 0)[:5]
        self.bytes_out = len(block) + self.size + 18

    def patched(self, piece: bytes) -> "Call":
        """The same call with other bytes in its slot.  Raises ValueError unless they are as many."""
        other = Call.__new__(Call)
        other.block, other.first, other.joint, other.reader = self.block, self.first, self.joint, self.reader
        other.check, other.known = self.check, self.known
        other.size, other.bytes_out, other.slot = self.size, self.bytes_out, self.slot
        other.full = self.full
        other.body = put(self.body, piece, self.slot)
        return other


class Reset:
    """How a stream ended when the peer broke it off."""

    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code


SAMPLED = 2 * SAMPLE + 1  # a stream whose number has but the lowest of these bits is read in any case
UNPROCESSED = Reset(-1)  # GOAWAY told that the peer never looked at the stream
End = Trailers | Reset


class Body(Protocol):
    """Takes the DATA of an answer: a list that keeps it, or a reader of messages."""

    def append(self, data: bytes, /) -> None: ...


class Stream:
    """One call in flight.  The owner's fields: token, call, sent_ns, tries, link.

    `read`: how many bytes of DATA were found to be a known answer; NOT_READ: nobody reads it.  An answer that is
    not known is kept in `body`.
    """

    __slots__ = ("body", "bytes_in", "call", "end", "first_ns", "granted", "id", "link", "offset", "read",
                 "sent_ns", "token", "tries", "window")  # fmt: skip

    id: int
    window: int  # what may still be sent, and from where: only while its body waits for a window
    offset: int
    link: Any

    def __init__(self, token: int, call: Call) -> None:
        self.token = token
        self.call = call
        self.sent_ns = 0
        self.first_ns = 0
        self.bytes_in = 0  # of DATA frames
        self.granted = 0  # of bytes_in, what the peer got its window back for
        self.tries = 0
        self.read = NOT_READ if call.check is None else 0
        self.end: End = ACCEPTED
        self.body: Body | None = None

    def data(self) -> bytes:
        """The DATA of a unary answer that was kept."""
        return b"".join(self.body) if isinstance(self.body, list) else b""

    def message(self) -> bytes:
        """The one message of a unary answer that was kept.  Raises ProtocolError."""
        whole = self.data()
        if len(whole) < 5 or len(whole) != 5 + int.from_bytes(whole[1:5], "big"):  # noqa: PLR2004 - the prefix
            raise ProtocolError("the answer is not one gRPC message")
        if whole[0]:
            raise ProtocolError("the answer is compressed, which was not asked for")
        return whole[5:]


def exactly(payload: bytes, size: int, what: str) -> bytes:
    if len(payload) != size:
        raise ProtocolError(f"a {what} frame of {len(payload)} bytes, not {size}", FRAME_SIZE_ERROR)
    return payload


def unpad(payload: bytes, flags: int) -> bytes:
    """A payload without its padding."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ProtocolError("padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def header_part(payload: bytes, flags: int) -> bytes:
    """The piece of a header block in a HEADERS frame."""
    block = unpad(payload, flags)
    if not flags & PRIORITISED:
        return block
    if len(block) < 5:  # noqa: PLR2004 - the priority fields
        raise ProtocolError("a HEADERS frame too short for its priority", FRAME_SIZE_ERROR)
    return block[5:]


def read_settings(flags: int, sid: int, payload: bytes) -> list[tuple[int, int]]:
    """(key, value) of a SETTINGS frame, values within what the protocol allows."""
    if sid or len(payload) % 6 or (flags & ACK and payload):
        raise ProtocolError("a malformed SETTINGS frame", FRAME_SIZE_ERROR)
    pairs = list(SETTING.iter_unpack(payload))
    for key, value in pairs:
        if key == INITIAL_WINDOW_SIZE and value > BIGGEST_WINDOW:
            raise ProtocolError("INITIAL_WINDOW_SIZE above 2^31-1", FLOW_CONTROL_ERROR)
        if key == MAX_FRAME_SIZE and not FIRST_FRAME <= value < 1 << 24:
            raise ProtocolError("MAX_FRAME_SIZE outside 2^14 to 2^24-1")
    return pairs


def read_goaway(sid: int, payload: bytes) -> tuple[int, str]:
    """The last stream that the peer took, and its words."""
    if sid or len(payload) < 8:  # noqa: PLR2004 - last stream and code
        raise ProtocolError("a malformed GOAWAY frame", FRAME_SIZE_ERROR)
    words = one_line(payload[8:].decode("utf-8", "replace"), 120)
    name = error_name(int.from_bytes(payload[4:8], "big"))
    last = int.from_bytes(payload[:4], "big") & LAST_STREAM
    return last, f"GOAWAY {name}" + (f" ({words})" if words else "")
