"""KServe v2 inference over HTTP with the binary tensor extension: tensors to a Request, a reply to tensors.

Binary wherever the server has that extension: FP16, BF16 and bytes that are not UTF-8 have no JSON form, and
JSON numbers cost the server more than the model.  It must not know framing, connections or where tensors
come from.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import numpy as np

from loadgen.records import LoadgenError, Placed, Region, Request, Tensor
from loadgen.wire.errors import ProtocolError

Parameter = bool | int | float | str
SequenceId = int | str
_PARAMETERS = b'{"parameters":{'
HEAD_LENGTH = "Inference-Header-Content-Length"
NUMPY = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip


def model_path(model: str, version: str) -> str:
    """`v2/models/NAME[/versions/V]`, percent-encoded: a name may hold any character.

    Raises LoadgenError for a name that every URL reader would resolve away.
    """
    if model in ("", ".", ".."):
        raise LoadgenError(f"model {model!r}: not a name that a URL can carry")
    path = f"v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path


def infer_request(  # noqa: PLR0913 - a request's parts
    model: str,
    version: str,
    tensors: Sequence[Tensor | Placed],
    *,
    request_id: str | None = None,
    parameters: Mapping[str, Parameter] | None = None,
    outputs: Sequence[str] | Mapping[str, Region] | None = None,
    sequence: SequenceId | None = None,
    binary: bool = True,
) -> Request:
    """One inference; `outputs` None asks for all of them.  Answers come in the form of the request, or go to
    the region of their name.

    `sequence`: the request belongs to one; its slot takes the `sequence_piece` of each sending, whose ids
    are written in as many bytes as this one.  Raises LoadgenError for a tensor that cannot go as JSON when
    `binary` is off.
    """
    head: dict[str, Any] = {} if request_id is None else {"id": request_id}
    told: dict[str, Parameter] = dict(parameters or {})
    if isinstance(outputs, Mapping):
        head["outputs"] = [{"name": name, "parameters": placing(at)} for name, at in outputs.items()]
    elif outputs is not None:
        head["outputs"] = [
            {"name": name, "parameters": {"binary_data": True}} if binary else {"name": name}
            for name in outputs
        ]
    elif binary:
        told["binary_data_output"] = True
    if told and sequence is None:
        head["parameters"] = told
    head["inputs"] = [_input(tensor, binary=binary) for tensor in tensors]
    text = _dump(head)
    slot = None
    if sequence is not None:
        piece, more = sequence_piece(sequence, start=True, end=True), _dump(told)[1:]
        text = b"".join((_PARAMETERS, piece, b"," if told else b"", more, b",", text[1:]))
        slot = len(_PARAMETERS), len(_PARAMETERS) + len(piece)
    path = model_path(model, version) + "/infer"
    if not binary:
        return Request(path, (("Content-Type", "application/json"),), text, slot=slot)
    headers = (("Content-Type", "application/octet-stream"), (HEAD_LENGTH, str(len(text))))
    return Request(
        path, headers, b"".join((text, *(t.data for t in tensors if isinstance(t, Tensor)))), slot=slot
    )


def placing(region: Region) -> dict[str, Parameter]:
    """The parameters that stand for a tensor's bytes."""
    told: dict[str, Parameter] = {
        "shared_memory_region": region.name,
        "shared_memory_byte_size": region.size,
    }
    return told | ({"shared_memory_offset": region.offset} if region.offset else {})


def _input(tensor: Tensor | Placed, *, binary: bool) -> dict[str, Any]:
    head = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
    if isinstance(tensor, Placed):
        return head | {"parameters": placing(tensor.region)}
    if binary:
        return head | {"parameters": {"binary_data_size": len(tensor.data)}}
    return head | {"data": _to_json(tensor)}


def sequence_piece(number: SequenceId, *, start: bool, end: bool) -> bytes:
    """A sequence's parameters: equally long for all ids of `workload.sequences`, or texts of one length."""
    first, last = (
        "true " if told else "false" for told in (start, end)
    )  # a space between tokens means nothing
    return f'"sequence_id":{json.dumps(number)},"sequence_start":{first},"sequence_end":{last}'.encode()


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def read_infer_response(headers: Mapping[str, str], body: bytes) -> list[Tensor]:
    """The outputs of a reply, binary or JSON.  `headers` has names in lower case.  Raises ProtocolError."""
    told = headers.get(HEAD_LENGTH.lower())
    if told is not None and not (told.isdecimal() and int(told) <= len(body)):
        raise ProtocolError(f"{HEAD_LENGTH} {told!r} does not fit a body of {len(body)} bytes")
    at = len(body) if told is None else int(told)
    try:
        head = json.loads(body[:at])
        outputs = [
            (str(o["name"]), str(o["datatype"]), tuple(int(n) for n in o["shape"]), o)
            for o in head["outputs"]
        ]
    except (ValueError, KeyError, TypeError):
        raise ProtocolError("the reply's JSON is not a KServe v2 answer with outputs") from None
    tensors = []
    for name, datatype, shape, output in outputs:
        size = (output.get("parameters") or {}).get("binary_data_size")
        if size is None:
            data = _from_json(name, datatype, shape, output.get("data"))
        elif isinstance(size, int) and 0 <= size <= len(body) - at:
            data = body[at : at + size]
            at += size
        else:
            raise ProtocolError(f"output {name}: binary_data_size {size} is more than the reply holds")
        tensors.append(checked(name, datatype, shape, data))
    if at != len(body):
        raise ProtocolError(f"{len(body) - at} bytes after the last output")
    return tensors


def checked(name: str, datatype: str, shape: tuple[int, ...], data: bytes) -> Tensor:
    """A tensor whose bytes fit its shape.  Raises ProtocolError."""
    kind = "<u2" if datatype == "BF16" else NUMPY.get(datatype)
    if kind is not None and math.prod(shape) * np.dtype(kind).itemsize != len(data):
        raise ProtocolError(f"output {name}: {len(data)} bytes do not fit {datatype} {list(shape)}")
    return Tensor(name, datatype, shape, data)


def join_bytes(items: Sequence[bytes]) -> bytes:
    """The raw form of a BYTES tensor: each element behind its length in 4 bytes."""
    return b"".join(part for item in items for part in (len(item).to_bytes(4, "little"), item))


def split_bytes(data: bytes) -> Iterator[bytes]:
    """The elements of a BYTES tensor in its raw form."""
    at = 0
    while at < len(data):
        start = at + 4
        at = start + int.from_bytes(data[at:start], "little")
        yield data[start:at]


def _to_json(tensor: Tensor) -> list[Any]:
    """Its values, flat."""
    why = "has no JSON form"
    if tensor.datatype == "BYTES":
        with suppress(UnicodeDecodeError):
            return [item.decode() for item in split_bytes(tensor.data)]
        why = "holds bytes that are not UTF-8, which JSON cannot carry"
    elif tensor.datatype in NUMPY and tensor.datatype != "FP16":
        values = np.frombuffer(tensor.data, NUMPY[tensor.datatype])
        if tensor.datatype not in ("FP32", "FP64") or np.isfinite(values).all():
            return [*values.tolist()]
        why = "holds NaN or infinity, which JSON cannot carry"
    raise LoadgenError(
        f"input {tensor.name!r}: {tensor.datatype} {why}, and the server takes no binary tensors over HTTP "
        "(extension binary_tensor_data); use gRPC"
    )


def _from_json(name: str, datatype: str, shape: tuple[int, ...], data: Any) -> bytes:
    if not isinstance(data, list):
        raise ProtocolError(f"output {name}: neither data nor binary_data_size")
    flat = _flat(data)
    if len(flat) != math.prod(shape):
        raise ProtocolError(f"output {name}: {len(flat)} values do not fill {list(shape)}")
    try:
        if datatype == "BYTES":
            return join_bytes([str(item).encode() for item in flat])
        return np.array(flat, dtype=NUMPY[datatype]).tobytes()
    except (KeyError, ValueError, TypeError, OverflowError):
        raise ProtocolError(f"output {name}: JSON values that are no {datatype}") from None


def _flat(data: list[Any]) -> list[Any]:
    """Values of a list that may be nested by its shape."""
    while data and isinstance(data[0], list):
        data = [item for part in data for item in (part if isinstance(part, list) else [part])]
    return data
