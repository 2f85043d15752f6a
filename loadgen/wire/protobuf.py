"""Protobuf's wire format by hand: field number and kind, then a varint or a length and bytes.

It must not know any message.
"""

from collections.abc import Iterable, Iterator

from loadgen.wire.errors import ProtocolError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; a negative value as its two's complement."""
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, data: bytes) -> bytes:
    """A field of bytes."""
    return varint(number << 3 | BYTES) + varint(len(data)) + data


def text(number: int, value: str) -> bytes:
    """A field of text; nothing when it is empty."""
    return field(number, value.encode()) if value else b""


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field; fixed ones as their bytes.  Raises ProtocolError."""
    return ((number, value) for number, value, _ in fields_with_ends(data))


def fields_with_ends(data: bytes) -> Iterator[tuple[int, int | bytes, int]]:
    """(number, value, offset of the byte after it) of each field.  Raises ProtocolError."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _read_varint(data, at)
            yield key >> 3, value, at
            continue
        if kind == BYTES:
            size, at = _read_varint(data, at)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise ProtocolError(f"a protobuf field of unknown kind {kind}")
        if at + size > len(data):
            raise ProtocolError("a protobuf message that ends inside a field")
        at += size
        yield key >> 3, data[at - size : at], at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70 and at < len(data):  # noqa: PLR2004 - ten bytes of seven bits
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:  # noqa: PLR2004 - the last byte
            return value & (2**64 - 1), at
        shift += 7
    raise ProtocolError("a broken protobuf varint")


def varints(values: Iterable[int | bytes]) -> list[int]:
    """Repeated varints, packed or not."""
    out: list[int] = []
    for value in values:
        if isinstance(value, int):
            out.append(value)
            continue
        at = 0
        while at < len(value):
            number, at = _read_varint(value, at)
            out.append(number)
    return out


def signed(value: int) -> int:
    """A varint as an int64."""
    return value - 2**64 if value >= 2**63 else value


def as_bytes(value: int | bytes) -> bytes:
    """Raises ProtocolError for a number."""
    if isinstance(value, int):
        raise ProtocolError("a protobuf field of the wrong kind")
    return value
