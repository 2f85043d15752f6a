"""Whether a kind of request fits a model, and into which shapes: refused before anything is sent.

It must not know how values are drawn, or any protocol.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from loadgen.records import LoadgenError, ModelFacts, TensorSpec
from loadgen.traffic.inputs import Fill
from loadgen.traffic.profile import Kind
from loadgen.traffic.words import near
from loadgen.workload.lengths import max_length, min_length

FLOATS = {"FP16": "<f2", "BF16": "<u2", "FP32": "<f4", "FP64": "<f8"}
WHOLES = {
    "INT8": "<i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8",
    "UINT8": "<u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8",
}  # fmt: skip
DTYPES = {**FLOATS, **WHOLES, "BOOL": "?"}
TOKEN_NAMES = frozenset({"input_ids", "decoder_input_ids", "token_ids", "tokens"})
_MOST_BYTES = 2**31 - 1  # one gRPC message


class FitError(LoadgenError):
    """A kind of request that its model cannot take."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor to fill: the full shape, batch axis and all, where -1 stands for the row's length."""

    spec: TensorSpec
    shape: tuple[int, ...]
    fill: Fill | None

    def sized(self, length: int | None) -> tuple[int, ...]:
        """The shape of a request of this length."""
        return tuple(length if dim == -1 and length is not None else dim for dim in self.shape)

    @property
    def sizes_text(self) -> bool:
        """Whether the kind's length is the bytes of this input's strings: no axis and no law takes it."""
        return self.spec.datatype == "BYTES" and -1 not in self.shape and (not self.fill or not self.fill.law)

    def most_bytes(self, length: int | None) -> int:
        """An upper bound of the raw bytes at this length."""
        values = math.prod(self.sized(length))
        if self.spec.datatype != "BYTES":
            return values * int(DTYPES[self.spec.datatype][-1] if self.spec.datatype != "BOOL" else 1)
        text = self.fill.text if self.fill else None
        constant = self.fill.constant if self.fill else None
        if text:
            each = text.max
        elif constant is not None:
            each = len(str(constant).encode())
        else:
            each = length if length is not None and self.sizes_text else 64
        return values * (4 + each)


@dataclass(frozen=True, slots=True)
class Fit:
    """A kind's slots in its model, the rows of a request, and the most bytes one can have."""

    slots: tuple[Slot, ...]
    items: int
    most_bytes: int
    vocab_size: int | None


def fit(kind: Kind, facts: ModelFacts) -> Fit:
    """The slots of a kind in a model; FitError names kind, model and limit."""
    where = f"kind {kind.name!r}, model {facts.name!r}"
    _check_names(kind, facts, where)
    vocab_size = _number(facts, "vocab_size", where)
    batched = _check_batch(kind, facts, where)
    chosen = [spec for spec in facts.inputs if not spec.optional or spec.name in kind.inputs]
    slots = tuple(_slot(spec, kind, batched, facts.max_batch_size, where) for spec in chosen)
    _check_length(kind, facts, slots, where)
    most = sum(slot.most_bytes(max_length(kind.length.law) if kind.length else None) for slot in slots)
    if most > _MOST_BYTES:
        raise FitError(f"{where}: a request would have up to {most:,} bytes; allowed: {_MOST_BYTES:,}")
    return Fit(slots, kind.batch if batched else 1, most, vocab_size)


def _check_names(kind: Kind, facts: ModelFacts, where: str) -> None:
    known = [spec.name for spec in facts.inputs]
    for name in kind.inputs:
        if name not in known:
            raise FitError(f"{where}: no input {name!r}{near(name, known)}; allowed: {', '.join(known)}")
    for spec in facts.inputs:
        if spec.datatype not in DTYPES and spec.datatype != "BYTES":
            raise FitError(
                f"{where}: input {spec.name!r} has datatype {spec.datatype}; allowed: {', '.join(DTYPES)}, BYTES"
            )


def _number(facts: ModelFacts, key: str, where: str) -> int | None:
    text = facts.parameters.get(key)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) == 0:
        raise FitError(f"{where}: its parameter {key} is {text!r}; allowed: a whole number of 1 or more")
    return int(text)


def _check_batch(kind: Kind, facts: ModelFacts, where: str) -> bool:
    """Whether requests have a batch axis.

    A server that tells no max_batch_size tells full shapes instead; a free first dimension is taken for the
    batch axis then.
    """
    most = facts.max_batch_size
    if most is None:
        batched = any(spec.shape[:1] == (-1,) for spec in facts.inputs)
        if kind.batch > 1 and not batched:
            raise FitError(
                f"{where}: batch {kind.batch}, but no input has a free first dimension; allowed: 1"
            )
        return batched
    if most == 0 and kind.batch > 1:
        raise FitError(
            f"{where}: batch {kind.batch}, but the model takes no batches (max_batch_size 0); allowed: 1"
        )
    if kind.batch > max(most, 1):
        raise FitError(f"{where}: batch {kind.batch}, but its max_batch_size is {most}; allowed: 1 to {most}")
    return most > 0


def _slot(spec: TensorSpec, kind: Kind, batched: bool, most: int | None, where: str) -> Slot:
    fill = kind.inputs.get(spec.name)
    told = most is not None
    leading = batched and (told or spec.shape[:1] == (-1,))
    row = spec.shape if told or not leading else spec.shape[1:]
    if fill is not None and fill.shape is not None:
        if leading and not told and len(fill.shape) == len(spec.shape):
            leading, row = False, spec.shape  # a full shape given: its first axis is no batch then
        row = _given_shape(spec.name, row, fill.shape, where)
    elif row.count(-1) > 1:
        dims = ", ".join(str(dim) for dim in row)
        line = f"inputs: {{{spec.name}: {{shape: [{_example(row)}]}}}}"
        raise FitError(f"{where}: input {spec.name!r} leaves more than one axis free ([{dims}]); add {line}")
    return Slot(spec, ((kind.batch, *row) if leading else row), fill)


def _example(row: tuple[int, ...]) -> str:
    """A shape that would fit: the first free axis is the length."""
    first = row.index(-1)
    return ", ".join("length" if i == first else "16" if d == -1 else str(d) for i, d in enumerate(row))


def _given_shape(
    name: str, row: tuple[int, ...], given: tuple[int | str, ...], where: str
) -> tuple[int, ...]:
    fits = len(given) == len(row) and all(dim in (-1, ours) for dim, ours in zip(row, given, strict=True))
    if not fits:
        allowed = ", ".join("any" if dim == -1 else str(dim) for dim in row)
        said = ", ".join(str(dim) for dim in given)
        raise FitError(f"{where}: input {name!r} has shape [{said}] in the profile; allowed: [{allowed}]")
    return tuple(-1 if dim == "length" else int(dim) for dim in given)


def _check_length(kind: Kind, facts: ModelFacts, slots: tuple[Slot, ...], where: str) -> None:
    free = [slot.spec.name for slot in slots if -1 in slot.shape]
    if kind.length is None:
        if free:
            raise FitError(
                f"{where}: input {free[0]!r} has a free dimension; give the kind a length, e.g. length: 32"
            )
        return
    if not free and not any(slot.sizes_text for slot in slots):
        raise FitError(
            f"{where}: has a length, but no input of the model has a free dimension; take length out"
        )
    shortest, longest = min_length(kind.length.law), max_length(kind.length.law)
    most = _number(facts, "max_length", where)
    if most is not None and longest > most:
        raise FitError(f"{where}: lengths up to {longest}, but the model takes at most {most}; allowed: {shortest} to {most}"
                       if shortest <= most else
                       f"{where}: lengths from {shortest} to {longest}, but the model takes at most {most}")  # fmt: skip


def faulty_ranges(slot: Slot, vocab_size: int | None) -> Iterator[str]:
    """What is wrong with the law given for a slot, if anything; nothing is drawn to find out."""
    fill, datatype = slot.fill, slot.spec.datatype
    law = fill.law if fill else None
    if fill is None or law is None:
        return
    suits = {"integers": WHOLES | FLOATS, "uniform": FLOATS, "normal": FLOATS, "text": {"BYTES": ""}}
    if law in suits and datatype not in suits[law]:
        yield f"{law} cannot fill {datatype}; allowed: {', '.join(_laws_for(datatype))}"
    if law == "constant" and not _constant_suits(fill.constant, datatype):
        yield f"constant {fill.constant!r} cannot fill {datatype}"
    ends = [fill.integers.min, fill.integers.max] if fill.integers else []
    ends += [fill.constant] if isinstance(fill.constant, int) and not isinstance(fill.constant, bool) else []
    low, high = whole_range(datatype)
    if datatype in WHOLES and ends and (min(ends) < low or max(ends) > high):
        yield f"{min(ends)} to {max(ends)} is beyond {datatype}; allowed: {low} to {high}"
    is_token = slot.spec.name.lower() in TOKEN_NAMES and datatype in WHOLES
    if is_token and vocab_size is not None and ends and (min(ends) < 0 or max(ends) >= vocab_size):
        yield f"{min(ends)} to {max(ends)} leaves the vocabulary; allowed: 0 to {vocab_size - 1}"


def whole_range(datatype: str) -> tuple[int, int]:
    """The smallest and largest value of a whole-number datatype; (0, 0) for any other."""
    if datatype not in WHOLES:
        return 0, 0
    bits = 8 * int(WHOLES[datatype][-1])
    return (0, 2**bits - 1) if datatype.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _laws_for(datatype: str) -> list[str]:
    if datatype in FLOATS:
        return ["normal", "uniform", "integers", "constant"]
    if datatype in WHOLES:
        return ["integers", "constant"]
    return ["text", "constant"] if datatype == "BYTES" else ["constant"]


def _constant_suits(value: bool | float | str | None, datatype: str) -> bool:
    if isinstance(value, bool):
        return datatype == "BOOL"
    if isinstance(value, str):
        return datatype == "BYTES"
    return datatype in FLOATS or (datatype in WHOLES and isinstance(value, int))
