"""Server-sent events as the WHATWG standard has them (HTML, 9.2.6): bytes in any cutting to events.

Lines and fields are found in bytes: CR and LF never stand inside a UTF-8 character, so an event's data can be
decoded when it is whole, however it was cut.  It must not know HTTP, time or what the data means.
"""

from loadgen.wire.errors import ProtocolError

EVENT_LIMIT = 64 * 2**20  # bytes of one event's lines, held until its blank line comes
_BOM = b"\xef\xbb\xbf"

Event = tuple[bytes, bytes]  # name (b"" when none was given), data (its lines joined by LF)


class SseParser:
    """`feed` gives the events that are whole by now; what no blank line ends is none, as the standard says."""

    __slots__ = (
        "_after_cr",
        "_data",
        "_fresh",
        "_held",
        "_name",
        "_parts",
        "_started",
        "last_id",
        "retry_ms",
    )

    def __init__(self) -> None:
        self._fresh = True  # between events, nothing held
        self._started = False  # the first line was seen: no byte order mark any more
        self._after_cr = False  # a LF that comes next belongs to a line's end already seen
        self._parts: list[bytes] = []  # of a line that is not whole
        self._held = 0  # bytes in _parts and _data
        self._data: list[bytes] = []
        self._name = b""
        self.last_id = b""
        self.retry_ms: int | None = None

    def feed(self, data: bytes) -> list[Event]:
        """Raises ProtocolError for an event of more than EVENT_LIMIT bytes."""
        if self._fresh and data[:6] == b"data: " and data[-2:] == b"\n\n" and b"\r" not in data:
            parts = data[6:-2].split(b"\n\ndata: ")
            if data.count(b"\n") == 2 * len(
                parts
            ):  # whole events of one line each, as most servers write tokens
                self._started = True
                return [(b"", part) for part in parts]
        events: list[Event] = []
        if self._after_cr and data:
            self._after_cr = False
            if data[:1] == b"\n":
                data = data[1:]
        if not data:
            return events
        lines = data.splitlines()  # of bytes: at CR, LF and CRLF only
        tail = b"" if data[-1:] in b"\r\n" else lines.pop()
        self._after_cr = data[-1:] == b"\r"
        if lines and self._parts:
            lines[0] = b"".join((*self._parts, lines[0]))
            self._held -= sum(map(len, self._parts))
            self._parts.clear()
        for line in lines:
            if line:
                self._line(line)
            else:
                self._blank(events)
        if tail:
            self._hold(len(tail))
            self._parts.append(tail)
        self._fresh = not (self._parts or self._data or self._name or self._after_cr)
        return events

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held > EVENT_LIMIT:
            raise ProtocolError(f"a server-sent event of more than {EVENT_LIMIT} bytes")

    def _line(self, line: bytes) -> None:
        if not self._started:
            self._started = True
            line = line.removeprefix(_BOM)
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._hold(len(value) + 1)
            self._data.append(value)
        elif field == b"event":
            self._name = value
        elif field == b"id" and b"\0" not in value:
            self.last_id = value
        elif field == b"retry" and value.isdigit():
            self.retry_ms = int(value[:18])

    def _blank(self, events: list[Event]) -> None:
        self._started = True
        if self._data:
            events.append((self._name, b"\n".join(self._data)))
            self._held = 0
            self._data = []
        self._name = b""
