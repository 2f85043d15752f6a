"""HTTP/1.1 as a client frames it: a request to bytes ahead of time, bytes to replies in any cutting.

A reply's head is remembered by its exact bytes, so a server that repeats itself costs one look-up a reply.
It must not know sockets, time, tensors or who asked; chunked framing is httptools' business.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import httptools

from loadgen.records import LoadgenError, Request
from loadgen.wire.errors import ProtocolError, one_line

HEAD_LIMIT = 64 * 1024
WORDS_LIMIT = 2048  # bytes of a failure's body that are kept for its words
CHUNKED = -1
UNTIL_CLOSE = -2
_MEMO_LIMIT = 4096
_INTERIM = range(100, 200)
_BODYLESS = (204, 304)
_FAILURE = 400

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [^\r\n\0]*)?")
_HEADER_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\n\0]*?)[ \t]*")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
ENTITY = ("content-encoding", "inference-header-content-length")  # fields that say how a body is to be read
_OURS = ("content-length", "transfer-encoding", "connection")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")  # HEAD would need framing of its own


class Head(NamedTuple):
    """What framing needs of a reply's head; `length` may be CHUNKED or UNTIL_CLOSE.

    `entity`: its fields of ENTITY, names in lower case.
    """

    status: int
    length: int
    keep_alive: bool
    entity: tuple[tuple[str, str], ...] = ()


def encode_request(
    request: Request, authority: str, base_path: str, headers: Iterable[tuple[str, str]] = ()
) -> bytes:
    """The whole request as bytes: head and body; a header `Host` replaces `authority`.

    Raises LoadgenError for a method, path or header that cannot be sent.
    """
    if request.method not in _METHODS:
        raise LoadgenError(f"method {request.method!r}: allowed: {', '.join(_METHODS)}")
    path = f"{base_path}/{request.path.lstrip('/')}"
    if not path.isascii() or any(c <= " " for c in path):
        raise LoadgenError(f"path {path!r}: must be percent-encoded ASCII")
    lines = [f"{request.method} {path} HTTP/1.1", f"Host: {authority}"]
    if request.body or request.method not in ("GET", "DELETE"):
        lines.append(f"Content-Length: {len(request.body)}")
    for name, value in (*request.headers, *headers):
        if _TOKEN.fullmatch(name) is None or name.lower() in _OURS:
            raise LoadgenError(
                f"header {name!r}: not a name that can be set (any token but {', '.join(_OURS)})"
            )
        if any(c in value for c in "\r\n\0") or not value.isascii():
            raise LoadgenError(f"header {name}: its value must be one line of ASCII")
        if name.lower() == "host":
            lines[1] = f"Host: {value}"
        else:
            lines.append(f"{name}: {value}")
    return b"\r\n".join((*(line.encode("ascii") for line in lines), b"", request.body))


def parse_head(block: bytes) -> Head:
    """Framing facts of a head that ends with CRLF CRLF.  Raises ProtocolError."""
    first, *lines = block[:-4].split(b"\r\n")
    start = _STATUS_LINE.fullmatch(first)
    if start is None:
        raise ProtocolError(f"not an HTTP/1 reply: {one_line(first.decode('latin-1'), 60)!r}")
    status = int(start[2])
    keep_alive = start[1] == b"1"
    length: int | None = None
    codings = b""
    entity: dict[str, str] = {}
    for line in lines:
        match = _HEADER_LINE.fullmatch(line)
        if match is None:
            raise ProtocolError(f"malformed header line {one_line(line.decode('latin-1'), 60)!r}")
        name = match[1].lower()
        if name == b"content-length":
            length = _content_length(match[2], length)
        elif name == b"transfer-encoding":
            codings += b"," + match[2].lower()
        elif name == b"connection":
            options = [option.strip() for option in match[2].lower().split(b",")]
            keep_alive = b"close" not in options and (keep_alive or b"keep-alive" in options)
        elif (field := name.decode()) in ENTITY:
            value = match[2].decode("latin-1")
            entity[field] = f"{entity[field]}, {value}" if field in entity else value
    return Head(status, *_framing(status, length, codings, keep_alive), tuple(entity.items()))


def _content_length(value: bytes, before: int | None) -> int:
    for part in value.split(b","):
        text = part.strip()
        if not text.isdigit() or len(text) > 18 or before not in (None, int(text)):  # noqa: PLR2004 - below 2^63
            raise ProtocolError(
                f"invalid or conflicting Content-Length {one_line(value.decode('latin-1'), 60)!r}"
            )
        before = int(text)
    return before or 0


def _framing(status: int, length: int | None, codings: bytes, keep_alive: bool) -> tuple[int, bool]:
    if status in _INTERIM or status in _BODYLESS:
        return 0, keep_alive
    if codings:
        if length is not None:
            raise ProtocolError("both Content-Length and Transfer-Encoding")
        if codings.strip(b", \t") != b"chunked":
            raise ProtocolError(
                f"Transfer-Encoding {one_line(codings[1:].decode('latin-1'), 60)!r} was not asked for"
            )
        return CHUNKED, keep_alive
    return (UNTIL_CLOSE, False) if length is None else (length, keep_alive)


def head_fields(block: bytes) -> dict[str, str]:
    """The header fields of a head, names in lower case; repeated ones joined by a comma."""
    fields: dict[str, str] = {}
    for line in block[:-4].split(b"\r\n")[1:]:
        name, _, value = line.decode("latin-1").partition(":")
        key = name.strip().lower()
        fields[key] = f"{fields[key]}, {value.strip()}" if key in fields else value.strip()
    return fields


def compressed_words(fields: Mapping[str, str]) -> str | None:
    """What to say of a body that is compressed, which is never asked for; None: it is not."""
    codings = fields.get("content-encoding", "")
    if {coding.strip().lower() for coding in codings.split(",")} <= {"", "identity"}:
        return None
    return f"Content-Encoding {one_line(codings, 40)!r} was not asked for"


class Heads(dict[bytes, Head]):
    """Heads by their exact bytes, bounded."""

    def __missing__(self, block: bytes) -> Head:
        head = parse_head(block)
        if len(self) >= _MEMO_LIMIT:  # a server that never repeats itself gains nothing from a memory
            self.clear()
        self[block] = head
        return head


class ResponseReader:
    """Reads one reply after another; `feed` until it says True, then look, then `reset`."""

    __slots__ = (
        "_chunks",
        "_heads",
        "_held",
        "_interim",
        "_keep_body",
        "_keep_failure",
        "_kept",
        "_left",
        "_parts",
        "block",
        "excess",
        "head",
    )  # fmt: skip

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        self.reset()

    def reset(self, *, keep_body: bool = False, keep_failure: bool = False) -> None:
        """Makes ready for the next reply; of a failure its first words are kept, or with `keep_failure` all."""
        self._keep_body, self._keep_failure = keep_body, keep_failure
        self._held = bytearray()
        self._interim = 0
        self._parts: list[bytes] = []
        self._kept = 0
        self._left = 0
        self._chunks: _Chunks | None = None
        self.head: Head | None = None
        self.block = b""
        self.excess = False  # bytes after the reply's end: the connection cannot be trusted any more

    @property
    def body(self) -> bytes:
        """What was kept of the body."""
        return b"".join(self._parts)

    def take(self) -> bytes:
        """What was kept of the body since it was last taken."""
        parts, self._parts = self._parts, []
        return b"".join(parts)

    def feed(self, data: bytes) -> bool:
        """Takes the next bytes; True when the reply is complete.  Raises ProtocolError."""
        head = self.head
        if head is None:
            rest = self._feed_head(data)
            if rest is None:
                return False
            data = rest
            head = self._heads[self.block]
        if head.length >= 0:
            self._left -= len(data)
            if self._left > 0:
                self._keep(data)
                return False
            self._keep(data[: len(data) + self._left])
            self.excess = self._left < 0
            return True
        if head.length == UNTIL_CLOSE:
            self._keep(data)
            return False
        assert self._chunks is not None  # noqa: S101 - set with the head
        done = self._chunks.feed(data)
        self.excess = self._chunks.excess
        return done

    def eof(self) -> bool:
        """The peer closed its side: True when that completes the reply."""
        return self.head is not None and self.head.length == UNTIL_CLOSE

    def _feed_head(self, data: bytes) -> bytes | None:
        """What follows the head once it is whole; interim replies (1xx) are passed over."""
        held = self._held
        seen = max(0, len(held) - 3)
        held += data
        while True:
            end = held.find(b"\r\n\r\n", seen) + 4
            if end < 4:  # noqa: PLR2004 - not found
                if len(held) + self._interim >= HEAD_LIMIT:
                    raise ProtocolError(f"a reply's head of more than {HEAD_LIMIT} bytes")
                if not b"HTTP/1.".startswith(held[:7]) or b"\n\n" in held:
                    raise ProtocolError(f"not an HTTP/1 reply: {one_line(held[:60].decode('latin-1'))!r}")
                return None
            if end + self._interim > HEAD_LIMIT:
                raise ProtocolError(f"a reply's head of more than {HEAD_LIMIT} bytes")
            block = bytes(held[:end])
            head = self._heads[block]
            del held[:end]
            seen = 0
            if head.status not in _INTERIM:
                break
            if head.status == 101:  # noqa: PLR2004 - Switching Protocols
                raise ProtocolError("the server switched protocols, which was not asked for")
            self._interim += end
        self.head, self.block, self._left = head, block, head.length
        if head.length == CHUNKED:
            self._chunks = _Chunks(self, block)
        return bytes(held)

    def _keep(self, data: bytes) -> None:
        failed = self.head is not None and self.head.status >= _FAILURE
        if self._keep_failure if failed else self._keep_body:
            self._parts.append(data)
        elif failed and self._kept < WORDS_LIMIT:
            self._parts.append(data[: WORDS_LIMIT - self._kept])
            self._kept += len(data)


class _Chunks:
    """A chunked body through httptools, which calls the methods named on_*."""

    __slots__ = ("_done", "_framing", "_parser", "_reader", "excess")

    def __init__(self, reader: ResponseReader, block: bytes) -> None:
        self._reader = reader
        self._done = False
        self._framing = 0
        self.excess = False
        self._parser = httptools.HttpResponseParser(self)
        self._parse(block)

    def feed(self, data: bytes) -> bool:
        self._framing += len(data)
        if data:
            self._parse(data)
        if self._framing > HEAD_LIMIT and not self._done:
            raise ProtocolError(f"more than {HEAD_LIMIT} bytes of chunk framing or trailers without any body")
        return self._done

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as why:
            if not self._done:
                raise ProtocolError(f"broken chunked body: {one_line(str(why), 80)}") from None
            self.excess = True

    def on_message_begin(self) -> None:
        self.excess = self._done

    def on_body(self, data: bytes) -> None:
        self._framing = 0
        self._reader._keep(data)  # noqa: SLF001 - two halves of one reader

    def on_message_complete(self) -> None:
        self._done = True


def failure_words(body: bytes) -> str:
    """The server's own words in a failure's body: KServe's {"error": "…"}, else its text, as one line."""
    text = body.decode("utf-8", "replace")
    try:
        told = json.loads(text)
    except ValueError:
        return one_line(text)
    if isinstance(told, dict):
        for key in ("error", "message", "detail"):
            words = told.get(key)
            if isinstance(words, dict):
                words = words.get("message")
            if isinstance(words, str):
                return one_line(words)
    return one_line(text)
