"""Whether a KServe v2 answer is one: its outputs held against those that the model declares.

Shared by both protocols.  An answer that was read leaves an `AnswerTemplate`: the bytes that every answer with
these outputs has in common, so that the next one alike need not be decoded again.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from loadgen.records import AnswerTemplate, AnyRank, Tensor
from loadgen.wire.errors import ProtocolError

SIZES = {"BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8,
         "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8}  # fmt: skip
Declared = Mapping[str, tuple[str, tuple[int, ...]]]  # datatype and full shape by name; -1: any size
_REPEATS = 1024  # bytes of an answer with values in its text, up to which another may be the same


class Output(NamedTuple):
    """One output of an answer: `data` is its raw form, or JSON values that were checked, flat; None when it lies in
    shared memory.  `at`: where the raw form begins in the body; None when that has other values (JSON, typed contents).
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | list[Any] | None
    at: int | None = None

    def tensor(self) -> Tensor:
        """Raises ProtocolError when it has no bytes here."""
        if not isinstance(self.data, bytes):
            raise ProtocolError(f"output {self.name} comes without data")
        return Tensor(self.name, self.datatype, self.shape, self.data)


def fits(output: Output) -> Output:
    """The output itself.  Raises ProtocolError when its shape is none, or its bytes do not fill it."""
    name, datatype, shape, data, _ = output
    if any(dim < 0 for dim in shape):
        raise ProtocolError(f"output {name}: {list(shape)} is no shape")
    if not isinstance(data, bytes):
        return output
    count = math.prod(shape)
    if datatype == "BYTES":
        found = sum(1 for _ in split_bytes(data))
        if found != count:
            raise ProtocolError(f"output {name}: {found} elements do not fill BYTES {list(shape)}")
    elif datatype not in SIZES:
        raise ProtocolError(f"output {name}: {datatype!r} is no KServe v2 datatype")
    elif count * SIZES[datatype] != len(data):
        raise ProtocolError(f"output {name}: {len(data)} bytes do not fit {datatype} {list(shape)}")
    return output


def hold_against(
    declared: Declared, outputs: Sequence[Output], required: Collection[str], *, in_memory: bool
) -> None:
    """Raises ProtocolError unless each output is as it is declared, none comes twice and none that is required is
    missing.  Nothing declared: any outputs, but some.

    `in_memory`: they were asked to be placed in shared memory, so they may come without bytes.
    """
    seen = {output.name: output for output in outputs}
    if not outputs:
        raise ProtocolError("an answer without outputs")
    if len(seen) != len(outputs):
        raise ProtocolError("an output comes twice")
    for name in required:
        if name not in seen:
            raise ProtocolError(f"no output {name!r}")
    for name, output in seen.items():
        if output.data is None and not in_memory:
            raise ProtocolError(f"output {name} comes without data")
        if declared:
            _compare(output, declared.get(name))


def _compare(output: Output, declared: tuple[str, tuple[int, ...]] | None) -> None:
    if declared is None:
        raise ProtocolError(f"output {output.name!r}, which the model does not declare")
    datatype, shape = declared
    if len(output.shape) == len(shape):
        same = all(want in (-1, dim) for want, dim in zip(shape, output.shape, strict=True))
    else:
        same = isinstance(shape, AnyRank)
    if output.datatype != datatype or not same:
        raise ProtocolError(
            f"output {output.name}: {output.datatype} {list(output.shape)}, "
            f"but the model declares {datatype} {list(shape)}"
        )


def template_of(body: bytes, outputs: Sequence[Output]) -> AnswerTemplate | None:
    """What answers with these outputs have in common: all of the body but the raw forms of numbers.

    Elements of BYTES have lengths of their own, which each answer must have right.  None where values stand in what
    would be in common, and so many that no other answer will have the same.
    """
    raw = [(o.at, o.at + len(o.data), o) for o in outputs if o.at is not None and isinstance(o.data, bytes)]
    in_common = len(body) - sum(stop - start for start, stop, _ in raw)
    if in_common > _REPEATS and any(o.at is None and o.data is not None for o in outputs):
        return None
    if not raw:
        return AnswerTemplate(body)
    pieces, texts, end = [], [], 0
    for start, stop, output in raw:
        pieces.append((end, body[end:start]))
        end = stop
        if output.datatype == "BYTES":
            texts.append((start, stop, math.prod(output.shape)))
    pieces.append((end, body[end:]))
    return AnswerTemplate(pieces[0][1], tuple(p for p in pieces[1:] if p[1]), tuple(texts))


def split_bytes(data: bytes) -> Iterator[bytes]:
    """The elements of a BYTES tensor in its raw form.  Raises ProtocolError when they do not fill it."""
    at, size = 0, len(data)
    while at < size:
        start = at + 4
        at = start + int.from_bytes(data[at:start], "little")
        if start > size or at > size:
            raise ProtocolError("a BYTES element that ends beyond its tensor")
        yield data[start:at]
