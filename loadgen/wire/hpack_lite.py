"""Header blocks of HTTP/2 without a dynamic table: ours written by hand, the peer's read once and remembered.

We advertise a header table of size 0, so equal bytes always mean equal headers.  It must not know frames.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from hpack import Decoder, HPACKError

from loadgen.records import LoadgenError
from loadgen.wire.errors import ProtocolError, one_line

BLOCK_LIMIT = 64 * 1024
_MEMO_LIMIT = 1024
_NAME = re.compile(r"[0-9a-z_.\-]+")
_OURS = ("te", "content-type", "connection")
_PATH, _AUTHORITY, _CONTENT_TYPE = 4, 1, 31  # places in the static table


class Trailers(NamedTuple):
    """What framing needs of a header block: None for what the block does not carry."""

    http_status: int | None
    grpc_status: int | None
    message: str
    retry_after: bool = False  # whether it has that header


SUCCESS = Trailers(None, 0, "")  # trailers of an answered call
ACCEPTED = Trailers(200, None, "")  # the head of an answer


def _integer(value: int, bits: int, first: int) -> bytes:
    top = (1 << bits) - 1
    if value < top:
        return bytes((first | value,))
    out = bytearray((first | top,))
    value -= top
    while value > 127:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _literal(name: int | str, value: str) -> bytes:
    """A field that no table remembers; `name` is a place in the static table or a text."""
    head = _integer(name, 4, 0) if isinstance(name, int) else b"\0" + _text(name)
    return head + _text(value)


def _text(text: str) -> bytes:
    raw = text.encode("ascii")
    return _integer(len(raw), 7, 0) + raw


def encode_call(path: str, authority: str, *, tls: bool, metadata: Iterable[tuple[str, str]] = ()) -> bytes:
    """The header block of a gRPC call; `host` among the metadata replaces `authority`.

    Raises LoadgenError for metadata that cannot be sent.
    """
    parts = [b"\x83", b"\x87" if tls else b"\x86", _literal(_PATH, path), _literal(_AUTHORITY, authority),
             _literal("te", "trailers"), _literal(_CONTENT_TYPE, "application/grpc")]  # fmt: skip
    for given, value in metadata:
        name = given.lower()
        if _NAME.fullmatch(name) is None or name.startswith("grpc-status") or name in _OURS:
            raise LoadgenError(
                f"metadata {given!r}: a name is made of a-z, 0-9, _ - . and none of {', '.join(_OURS)}"
            )
        if not value.isascii() or not value.isprintable():
            raise LoadgenError(f"metadata {name}: its value must be printable ASCII (base64 for a -bin name)")
        if name == "host":
            parts[3] = _literal(_AUTHORITY, value)
        else:
            parts.append(_literal(name, value))
    return b"".join(parts)


def parse_block(block: bytes) -> Trailers:
    """Reads a complete header block.  Raises ProtocolError (COMPRESSION_ERROR)."""
    decoder = Decoder(max_header_list_size=BLOCK_LIMIT)
    decoder.header_table_size = decoder.max_allowed_table_size = 0
    try:
        fields = dict(decoder.decode(block, raw=True))
        http = fields.get(b":status")
        grpc = fields.get(b"grpc-status")
        http_status = None if http is None else int(http)
        grpc_status = None if grpc is None else int(grpc)
    except HPACKError as why:
        raise ProtocolError(f"broken header block: {one_line(str(why), 80)}", 9) from None
    except (ValueError, IndexError) as why:
        raise ProtocolError(f"broken header block: {one_line(str(why), 80)}") from None
    raw = unquote_to_bytes(bytes(fields.get(b"grpc-message", b"")))
    message = one_line(raw.decode("utf-8", "replace"))
    if grpc_status == 0 and http_status is None:
        return SUCCESS
    if grpc_status is None and http_status == 200:  # noqa: PLR2004 - OK
        return ACCEPTED
    return Trailers(http_status, grpc_status, message, b"retry-after" in fields)


class Blocks(dict[bytes, Trailers]):
    """Header blocks by their exact bytes, bounded: error texts can differ in every reply."""

    def __missing__(self, block: bytes) -> Trailers:
        told = parse_block(block)
        if len(self) >= _MEMO_LIMIT:
            self.clear()
        self[block] = told
        return told
