"""KServe v2 inference over HTTP with the binary tensor extension: tensors to a Request, a reply to tensors.

Binary wherever the server has that extension: FP16, BF16 and bytes that are not UTF-8 have no JSON form, and
JSON numbers cost the server more than the model.  It must not know framing, connections or where tensors
come from.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from loadgen.records import AnswerTemplate, LoadgenError, Placed, Region, Request, Tensor
from loadgen.wire.errors import ProtocolError, one_line
from loadgen.wire.http1 import compressed_words, failure_words
from loadgen.wire.kserve_answer import Declared, Output, fits, hold_against, split_bytes, template_of

Parameter = bool | int | float | str
SequenceId = int | str
_PARAMETERS = b'{"parameters":{'
HEAD_LENGTH = "Inference-Header-Content-Length"
NUMPY = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
_INTEGERS = {"BOOL": (0, 1), **{f"INT{n}": (-(2 ** (n - 1)), 2 ** (n - 1) - 1) for n in (8, 16, 32, 64)},
             **{f"UINT{n}": (0, 2**n - 1) for n in (8, 16, 32, 64)}}  # fmt: skip
# the least number that rounds to infinity: the largest, and half of the distance to it from the next smaller
_INFINITE = {"FP16": 65520, "BF16": 2**128 - 2**119, "FP32": 2**128 - 2**103, "FP64": 2**1024 - 2**970}
_FLOAT_TYPES = {float, int, type(None)}  # some servers write NaN as null
_TOKENS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}  # known by identity: 1e400 is none
_JSON = json.JSONDecoder(parse_constant=_TOKENS.__getitem__)
_SHOWN = 300  # bytes of a wrong body that are shown


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
    outputs = _outputs(headers, body)
    return [
        o._replace(data=_raw_form(o.datatype, o.data) if isinstance(o.data, list) else o.data).tensor()
        for o in outputs
    ]


def check_answer(
    declared: Declared, headers: Mapping[str, str], body: bytes, *, in_memory: bool = False
) -> AnswerTemplate | str | None:
    """Whether a reply with a good status is an answer of the model (records.Request.check): a template of its like,
    or what is wrong with it and its first words.

    `in_memory`: outputs may lie in shared memory.
    """
    compressed = compressed_words(headers)
    if compressed is not None:
        return compressed
    try:
        outputs = _outputs(headers, body)
        hold_against(declared, outputs, declared.keys(), in_memory=in_memory)
    except ProtocolError as why:
        return f"{why}: {failure_words(body[:_SHOWN]) or 'the body is empty'}"
    return template_of(body, outputs)


def _outputs(headers: Mapping[str, str], body: bytes) -> list[Output]:
    told = headers.get(HEAD_LENGTH.lower())
    if told is not None and not (told.isdecimal() and told.isascii() and int(told) <= len(body)):
        raise ProtocolError(f"{HEAD_LENGTH} {one_line(told, 40)!r} does not fit the body")
    at = len(body) if told is None else int(told)
    outputs = []
    for head in _heads(body[:at]):
        name, datatype, shape = head["name"], head["datatype"], tuple(head["shape"])
        parameters = head.get("parameters") or {}
        size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
        start = None
        data: bytes | list[Any] | None
        if size is None:
            # Triton says nothing else of an output that it put into shared memory
            data = _values(name, datatype, shape, head["data"]) if "data" in head else None
        elif _is_natural(size) and size <= len(body) - at:
            start, at = at, at + size
            data = body[start:at]
        else:
            raise ProtocolError(
                f"output {name}: its binary_data_size is no size, or more than the reply holds"
            )
        outputs.append(fits(Output(name, datatype, shape, data, start)))
    if at != len(body):
        raise ProtocolError("bytes after the last output")
    return outputs


def _heads(text: bytes) -> list[dict[str, Any]]:
    """What a reply's JSON says of each output: name, datatype, shape and more."""
    try:
        told = _JSON.decode(text.decode("utf-8-sig"))  # json.loads would take UTF-16 too
    except (ValueError, RecursionError):
        raise ProtocolError("not a KServe v2 answer") from None
    heads = told.get("outputs") if isinstance(told, dict) else None
    if not isinstance(heads, list) or told.get("error"):
        raise ProtocolError("not a KServe v2 answer")
    for head in heads:
        whole = (
            isinstance(head, dict)
            and isinstance(head.get("name"), str)
            and isinstance(head.get("datatype"), str)
            and isinstance(head.get("shape"), list)
            and all(map(_is_natural, head["shape"]))
        )
        if not whole:
            raise ProtocolError("an output without a name, a datatype or a shape")
    return heads


def _is_natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def join_bytes(items: Sequence[bytes]) -> bytes:
    """The raw form of a BYTES tensor: each element behind its length in 4 bytes."""
    return b"".join(part for item in items for part in (len(item).to_bytes(4, "little"), item))


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


def _values(name: str, datatype: str, shape: tuple[int, ...], data: Any) -> list[Any]:
    """JSON values of an output, flat, as many as its shape has and each of its datatype.  Raises ProtocolError."""
    if not isinstance(data, list):
        raise ProtocolError(f"output {name}: neither data nor binary_data_size")
    flat = _flat(data)
    if len(flat) != math.prod(shape):
        raise ProtocolError(f"output {name}: {len(flat)} values do not fill {list(shape)}")
    if not _are(datatype, flat):
        raise ProtocolError(f"output {name}: JSON values that are no {datatype}")
    return flat


def _flat(data: list[Any]) -> list[Any]:
    """Values of a list that may be nested by its shape."""
    while data and all(type(part) is list for part in data):
        data = [item for part in data for item in part]
    return data


def _are(datatype: str, values: list[Any]) -> bool:
    """Whether JSON values are of a datatype and within its range; a bool is no int.  Nothing is converted."""
    types = set(map(type, values))
    if datatype in _INFINITE:
        infinite = _INFINITE[datatype]
        return types <= _FLOAT_TYPES and (
            (type(None) not in types and _far_below(infinite, values)) or _finite(values, infinite)
        )
    if datatype in _INTEGERS:
        low, high = _INTEGERS[datatype]
        right = types <= ({bool, int} if datatype == "BOOL" else {int})
        if not right or not values or (low < 0 and _far_below(high, values)):
            return right
        return bool(low <= min(values) and max(values) <= high)
    return datatype == "BYTES" and types <= {str} and _is_utf8("".join(values))


def _far_below(bound: int, numbers: list[Any]) -> bool:
    """Whether none can reach `bound`, nor is NaN: all of them squared do not come near.  A sixth of the cost of min and
    max; what is not far below must be looked at one by one.
    """
    try:
        return math.hypot(*numbers) < bound / 2
    except OverflowError:
        return False


def _finite(values: list[Any], infinite: int) -> bool:
    """Whether each is smaller than `infinite`, or was written as a token or as null."""
    tokens = set(map(id, _TOKENS.values()))
    return all(v is None or id(v) in tokens or -infinite < v < infinite for v in values)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _raw_form(datatype: str, values: list[Any]) -> bytes:
    """The raw form of JSON values that are of a datatype."""
    if datatype == "BYTES":
        return join_bytes([item.encode() for item in values])
    if datatype != "BF16":
        return np.array(values, dtype=NUMPY[datatype]).tobytes()
    bits = np.array(values, dtype="<f4").view("<u4")
    nearest: npt.NDArray[np.uint32] = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16  # ties to even
    return nearest.astype("<u2").tobytes()
