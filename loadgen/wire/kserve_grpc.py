"""KServe v2 inference over gRPC: tensors to a ModelInferRequest message by hand, a ModelInferResponse to tensors.

Protobuf's wire format is small enough to write (wire/protobuf.py).  It must not know HTTP/2, connections or where tensors come from.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from loadgen.records import AnswerTemplate, LoadgenError, Placed, Region, Request, Tensor
from loadgen.units import show_bytes
from loadgen.wire.errors import ProtocolError, one_line
from loadgen.wire.known import KnownAnswers
from loadgen.wire.kserve_answer import Declared, Output, fits, hold_against, template_of
from loadgen.wire.kserve_http import NUMPY, Parameter, SequenceId, join_bytes, placing
from loadgen.wire.kserve_stream import ASK_FINAL, StreamReader
from loadgen.wire.protobuf import (
    BYTES,
    FIXED64,
    as_bytes,
    field,
    fields,
    fields_with_ends,
    signed,
    text,
    varint,
    varints,
)

METHOD = "inference.GRPCInferenceService/ModelInfer"
STREAM_METHOD = "inference.GRPCInferenceService/ModelStreamInfer"
MESSAGE_LIMIT = 2**31 - 1  # protobuf's, and gRPC's length is the same
_SHOWN = 120  # bytes of a wrong message that are shown
_INT64 = range(-(2**63), 2**63)  # no uint64_param: Triton takes none
# InferTensorContents: field number of each datatype
_CONTENTS = {"BOOL": 1, "INT8": 2, "INT16": 2, "INT32": 2, "INT64": 3, "UINT8": 4, "UINT16": 4, "UINT32": 4, "UINT64": 5,
             "FP32": 6, "FP64": 7, "BYTES": 8}  # fmt: skip


def _parameter(name: str, value: Parameter) -> bytes:
    if isinstance(value, bool):
        told = varint(1 << 3) + varint(value)
    elif isinstance(value, int):
        if value not in _INT64:
            raise LoadgenError(f"parameter {name}: {value} is outside 64 bits")
        told = varint(2 << 3) + varint(value)
    elif isinstance(value, float):
        told = varint(4 << 3 | FIXED64) + struct.pack("<d", value)
    else:
        told = field(3, value.encode())
    return field(1, name.encode()) + field(2, told)


def _placing(number: int, region: Region) -> bytes:
    """The parameters of a tensor that lies in shared memory, in the map of that field number."""
    return b"".join(field(number, _parameter(name, value)) for name, value in placing(region).items())


def infer_request(
    model: str,
    version: str,
    tensors: Sequence[Tensor | Placed],
    *,
    request_id: str | None = None,
    parameters: Mapping[str, Parameter] | None = None,
    outputs: Sequence[str] | Mapping[str, Region] | None = None,
    sequence: SequenceId | None = None,
) -> Request:
    """One inference; `outputs` None asks for all of them.  Raises LoadgenError above 2 GiB.

    `sequence`: the request belongs to one; its slot takes the `sequence_piece` of each sending, whose ids
    are encoded in as many bytes as this one.  Tensors that are placed, and outputs with a region, carry no bytes.
    """
    parts = [text(1, model), text(2, version), text(3, request_id or "")]
    parts += [field(4, _parameter(name, value)) for name, value in (parameters or {}).items()]
    for tensor in tensors:
        shape = b"".join(varint(n) for n in tensor.shape)
        packed = field(3, shape) if shape else b""
        where = _placing(4, tensor.region) if isinstance(tensor, Placed) else b""
        parts.append(field(5, text(1, tensor.name) + text(2, tensor.datatype) + packed + where))
    for name in outputs or ():
        where = _placing(2, outputs[name]) if isinstance(outputs, Mapping) else b""
        parts.append(field(6, text(1, name) + where))
    for tensor in tensors:
        if isinstance(tensor, Placed):
            continue
        parts += [varint(7 << 3 | BYTES) + varint(len(tensor.data)), tensor.data]
    slot = None
    if sequence is not None:  # fields come in any order: these in the end
        at = sum(map(len, parts))
        parts.append(sequence_piece(sequence, start=True, end=True))
        slot = at, at + len(parts[-1])
    size = sum(map(len, parts))
    if size > MESSAGE_LIMIT:
        raise LoadgenError(
            f"a request for model {model} has {show_bytes(size)} ({size} bytes): one gRPC message holds"
            f" at most 2 GiB ({MESSAGE_LIMIT} bytes); use a smaller batch or HTTP"
        )
    return Request(METHOD, (), b"".join(parts), slot=slot)


def stream_infer_request(  # noqa: PLR0913 - a request's parts
    model: str,
    version: str,
    tensors: Sequence[Tensor | Placed],
    *,
    request_id: str | None = None,
    parameters: Mapping[str, Parameter] | None = None,
    outputs: Sequence[str] | Mapping[str, Region] | None = None,
    sequence: SequenceId | None = None,
    reader: Callable[[], StreamReader] | None = None,
) -> Request:
    """One inference on a stream of its own, answered any number of times: see `infer_request`.  `reader` makes
    what reads the answers; without one any outputs will do.
    """
    plain = infer_request(
        model, version, tensors, request_id=request_id, parameters={**(parameters or {}), ASK_FINAL: True},
        outputs=outputs, sequence=sequence,
    )  # fmt: skip
    return replace(plain, path=STREAM_METHOD, reader=reader or stream_reader({}))


def stream_reader(declared: Declared, *, in_memory: bool = False) -> Callable[[], StreamReader]:
    """What makes the readers of a decoupled model's answers: of those alike, whatever request they belong to, the first
    is decoded.  See `check_answer`.
    """
    return partial(
        StreamReader, KnownAnswers(), partial(check_answer, declared, in_memory=in_memory, partly=True)
    )


def sequence_piece(number: SequenceId, *, start: bool, end: bool) -> bytes:
    """A sequence's parameters: equally long for all ids of `workload.sequences`, or texts of one length."""
    return field(4, _parameter("sequence_id", number)) + _ENDS[start, end]


_ENDS = {
    (start, end): field(4, _parameter("sequence_start", start)) + field(4, _parameter("sequence_end", end))
    for start in (False, True)
    for end in (False, True)
}


def read_infer_response(message: bytes) -> list[Tensor]:
    """The outputs of a ModelInferResponse, from raw or typed contents.  Raises ProtocolError."""
    return [output.tensor() for output in _outputs(message)]


def check_answer(
    declared: Declared,
    headers: Mapping[str, str],
    message: bytes,
    *,
    in_memory: bool = False,
    partly: bool = False,
) -> AnswerTemplate | str | None:
    """Whether a message is an answer of the model (records.Request.check): a template of its like, or what is wrong
    with it and its first words.

    `in_memory`: outputs may lie in shared memory; `partly`: some may be missing (answers of a decoupled model).
    `headers` tell nothing here.
    """
    del headers
    try:
        outputs = _outputs(message)
        names = {output.name for output in outputs} if partly else declared.keys()
        hold_against(declared, outputs, names, in_memory=in_memory)
    except ProtocolError as why:
        shown = one_line(message[:_SHOWN].decode("utf-8", "replace"))
        return f"{why}: {shown or 'nothing legible'}" if message else f"{why}: the message is empty"
    return template_of(message, outputs)


class _Head(NamedTuple):
    name: str
    datatype: str
    shape: tuple[int, ...]
    contents: bytes | None  # typed ones


def _outputs(message: bytes) -> list[Output]:
    heads: list[_Head] = []
    raw: list[tuple[bytes, int]] = []  # content, and the offset of the byte after it
    for number, value, end in fields_with_ends(message):
        if number == 5:  # noqa: PLR2004 - outputs
            heads.append(_head(as_bytes(value)))
        elif number == 6:  # noqa: PLR2004 - raw_output_contents
            raw.append((as_bytes(value), end))
    if raw and len(raw) != len(heads):
        raise ProtocolError(f"{len(heads)} outputs, but {len(raw)} raw contents")
    return [_with_content(head, raw[place] if raw else None) for place, head in enumerate(heads)]


def _with_content(head: _Head, raw: tuple[bytes, int] | None) -> Output:
    name, datatype, shape, typed = head
    if typed is None and not (raw and raw[0]) and 0 not in shape:
        return fits(Output(name, datatype, shape, None))  # in shared memory, or missing
    if raw is None:
        return fits(Output(name, datatype, shape, _typed(name, datatype, typed or b"")))
    return fits(Output(name, datatype, shape, raw[0], raw[1] - len(raw[0])))


def _head(data: bytes) -> _Head:
    name = datatype = ""
    shape: list[int | bytes] = []
    contents = None
    for number, value in fields(data):
        if number == 1:
            name = as_bytes(value).decode("utf-8", "replace")
        elif number == 2:  # noqa: PLR2004 - datatype
            datatype = as_bytes(value).decode("utf-8", "replace")
        elif number == 3:  # noqa: PLR2004 - shape
            shape.append(value)
        elif number == 5:  # noqa: PLR2004 - contents
            contents = as_bytes(value)
    return _Head(name, datatype, tuple(map(signed, varints(shape))), contents)


def _typed(name: str, datatype: str, contents: bytes) -> bytes:
    wanted = _CONTENTS.get(datatype)
    if wanted is None:
        raise ProtocolError(f"output {name}: {datatype} without raw contents")
    values = [value for number, value in fields(contents) if number == wanted]
    if datatype == "BYTES":
        return join_bytes([as_bytes(value) for value in values])
    if datatype in ("FP32", "FP64"):
        return b"".join(as_bytes(value) for value in values)  # packed or not: the same bytes
    numbers = varints(values)
    if not datatype.startswith("U"):
        numbers = [signed(number) for number in numbers]
    try:
        return np.array(numbers, dtype=NUMPY[datatype]).tobytes()
    except OverflowError:
        raise ProtocolError(f"output {name}: values outside {datatype}") from None
