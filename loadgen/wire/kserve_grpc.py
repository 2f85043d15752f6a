"""KServe v2 inference over gRPC: tensors to a ModelInferRequest message by hand, a ModelInferResponse to tensors.

Protobuf's wire format is small enough to write: field number and kind, then a varint or a length and bytes.
It must not know HTTP/2, connections or where tensors come from.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from loadgen.records import LoadgenError, Request, Tensor
from loadgen.units import show_bytes
from loadgen.wire.errors import ProtocolError
from loadgen.wire.kserve_http import NUMPY, Parameter, checked, join_bytes

METHOD = "inference.GRPCInferenceService/ModelInfer"
MESSAGE_LIMIT = 2**31 - 1  # protobuf's, and gRPC's length is the same
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_INT64 = range(-(2**63), 2**63)
# InferTensorContents: field number of each datatype
_CONTENTS = {"BOOL": 1, "INT8": 2, "INT16": 2, "INT32": 2, "INT64": 3, "UINT8": 4, "UINT16": 4, "UINT32": 4, "UINT64": 5,
             "FP32": 6, "FP64": 7, "BYTES": 8}  # fmt: skip


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode()) if text else b""


def _parameter(name: str, value: Parameter) -> bytes:
    if isinstance(value, bool):
        told = _varint(1 << 3) + _varint(value)
    elif isinstance(value, int):
        if value not in _INT64:
            raise LoadgenError(f"parameter {name}: {value} is outside 64 bits")
        told = _varint(2 << 3) + _varint(value)
    elif isinstance(value, float):
        told = _varint(4 << 3 | _FIXED64) + struct.pack("<d", value)
    else:
        told = _field(3, value.encode())
    return _field(1, name.encode()) + _field(2, told)


def infer_request(
    model: str,
    version: str,
    tensors: Sequence[Tensor],
    *,
    request_id: str | None = None,
    parameters: Mapping[str, Parameter] | None = None,
    outputs: Sequence[str] | None = None,
) -> Request:
    """One inference; `outputs` None asks for all of them.  Raises LoadgenError above 2 GiB."""
    parts = [_text(1, model), _text(2, version), _text(3, request_id or "")]
    parts += [_field(4, _parameter(name, value)) for name, value in (parameters or {}).items()]
    for tensor in tensors:
        shape = b"".join(_varint(n) for n in tensor.shape)
        packed = _field(3, shape) if shape else b""
        parts.append(_field(5, _text(1, tensor.name) + _text(2, tensor.datatype) + packed))
    parts += [_field(6, _text(1, name)) for name in outputs or ()]
    for tensor in tensors:
        parts += [_varint(7 << 3 | _BYTES) + _varint(len(tensor.data)), tensor.data]
    size = sum(map(len, parts))
    if size > MESSAGE_LIMIT:
        raise LoadgenError(
            f"a request for model {model} has {show_bytes(size)} ({size} bytes): one gRPC message holds"
            f" at most 2 GiB ({MESSAGE_LIMIT} bytes); use a smaller batch or HTTP"
        )
    return Request(METHOD, (), b"".join(parts))


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field; fixed ones as their bytes.  Raises ProtocolError."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, at = _read_varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ProtocolError(f"a protobuf field of unknown kind {kind}")
        if at + size > len(data):
            raise ProtocolError("a protobuf message that ends inside a field")
        yield key >> 3, data[at : at + size]
        at += size


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


def _varints(values: Iterable[int | bytes]) -> list[int]:
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


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ProtocolError("a protobuf field of the wrong kind")
    return value


def read_infer_response(message: bytes) -> list[Tensor]:
    """The outputs of a ModelInferResponse, from raw or typed contents.  Raises ProtocolError."""
    heads: list[tuple[str, str, tuple[int, ...], bytes | None]] = []
    raw: list[bytes] = []
    for number, value in _fields(message):
        if number == 5:  # noqa: PLR2004 - outputs
            heads.append(_output(_bytes(value)))
        elif number == 6:  # noqa: PLR2004 - raw_output_contents
            raw.append(_bytes(value))
    if raw and len(raw) != len(heads):
        raise ProtocolError(f"{len(heads)} outputs, but {len(raw)} raw contents")
    tensors = []
    for place, (name, datatype, shape, contents) in enumerate(heads):
        data = raw[place] if raw else _typed(name, datatype, contents or b"")
        tensors.append(checked(name, datatype, shape, data))
    return tensors


def _output(data: bytes) -> tuple[str, str, tuple[int, ...], bytes | None]:
    name = datatype = ""
    shape: list[int | bytes] = []
    contents = None
    for number, value in _fields(data):
        if number == 1:
            name = _bytes(value).decode("utf-8", "replace")
        elif number == 2:  # noqa: PLR2004 - datatype
            datatype = _bytes(value).decode("utf-8", "replace")
        elif number == 3:  # noqa: PLR2004 - shape
            shape.append(value)
        elif number == 5:  # noqa: PLR2004 - contents
            contents = _bytes(value)
    return name, datatype, tuple(map(_signed, _varints(shape))), contents


def _typed(name: str, datatype: str, contents: bytes) -> bytes:
    wanted = _CONTENTS.get(datatype)
    if wanted is None:
        raise ProtocolError(f"output {name}: {datatype} without raw contents")
    values = [value for number, value in _fields(contents) if number == wanted]
    if datatype == "BYTES":
        return join_bytes([_bytes(value) for value in values])
    if datatype in ("FP32", "FP64"):
        return b"".join(_bytes(value) for value in values)  # packed or not: the same bytes
    numbers = _varints(values)
    if not datatype.startswith("U"):
        numbers = [_signed(number) for number in numbers]
    try:
        return np.array(numbers, dtype=NUMPY[datatype]).tobytes()
    except OverflowError:
        raise ProtocolError(f"output {name}: values outside {datatype}") from None
