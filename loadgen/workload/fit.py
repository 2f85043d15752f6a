"""Whether a kind of request fits a model, and into which shapes: refused before anything is sent.

It must not know how values are drawn, or any protocol.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from loadgen.records import LoadgenError, ModelFacts, TensorSpec
from loadgen.traffic.inputs import Fill
from loadgen.traffic.profile import Kind
from loadgen.traffic.words import near

FLOATS = {"FP16": "<f2", "BF16": "<u2", "FP32": "<f4", "FP64": "<f8"}
WHOLES = {
    "INT8": "<i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8",
    "UINT8": "<u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8",
}  # fmt: skip
DTYPES = {**FLOATS, **WHOLES, "BOOL": "?"}
TOKEN_NAMES = frozenset({"input_ids", "decoder_input_ids", "token_ids", "tokens"})
_MOST_BYTES = 2**31 - 1  # one gRPC message


def item_bytes(datatype: str) -> int:
    """Of one value in raw form; of BYTES the least."""
    return {"BYTES": 4, "BOOL": 1}.get(datatype) or int(DTYPES[datatype][-1])


class FitError(LoadgenError):
    """A kind of request that its model cannot take."""


@dataclass(frozen=True, slots=True)
class Given:
    """Rows of a file for an input: the most bytes of one, and the mean; token ids can be joined to a length."""

    row_bytes: int
    mean_bytes: float
    tokens: bool


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor to fill: the full shape, batch axis and all, where -1 stands for the row's length."""

    spec: TensorSpec
    shape: tuple[int, ...]
    fill: Fill | None
    given: Given | None = None  # its rows come from a file
    batched: bool = False  # the batch axis stands in front

    def sized(self, length: int | None) -> tuple[int, ...]:
        """The shape of a request of this length."""
        return tuple(length if dim == -1 and length is not None else dim for dim in self.shape)

    @property
    def sizes_text(self) -> bool:
        """Whether the kind's length is the bytes of this input's strings: no axis and no law takes it."""
        is_text = self.spec.datatype == "BYTES" and self.given is None
        return is_text and -1 not in self.shape and (not self.fill or not self.fill.law)

    @property
    def rows(self) -> int:
        """Along the batch axis."""
        return self.shape[0] if self.batched else 1

    @property
    def longest_given(self) -> int:
        """An upper bound of the free axis that a file's rows give; 0 without."""
        if self.given is None or -1 not in self.shape:
            return 0
        return self.given.row_bytes // item_bytes(self.spec.datatype)

    def most_bytes(self, length: int | None) -> int:
        """An upper bound of the raw bytes at this length."""
        if self.given is not None and not (self.given.tokens and length is not None):
            return self.given.row_bytes * self.rows
        values = math.prod(self.sized(length))
        if self.spec.datatype != "BYTES":
            return values * item_bytes(self.spec.datatype)
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

    @property
    def mean_bytes(self) -> int:
        """Of a request whose files' rows are as long as the mean; an upper bound for the rest."""
        given = [(slot.given, slot.rows) for slot in self.slots if slot.given is not None]
        excess = sum((rows.row_bytes - rows.mean_bytes) * n for rows, n in given)
        return max(int(self.most_bytes - excess), 1)


def fit(
    kind: Kind,
    facts: ModelFacts,
    lengths: tuple[int, int] | None = None,
    given: Mapping[str, Given] | None = None,
) -> Fit:
    """The slots of a kind in a model, for requests of the shortest and the longest of `lengths`.

    `given` are the inputs whose rows come from files.  FitError names kind, model and limit.
    """
    where, given = f"kind {kind.name!r}, model {facts.name!r}", given or {}
    _check_names(kind, facts, where)
    vocab_size = model_number(facts, "vocab_size", where)
    batched = _check_batch(kind, facts, where)
    named = kind.inputs.keys() | given.keys()
    slots = tuple(
        _slot(spec, kind, given.get(spec.name), batched, facts.max_batch_size, where)
        for spec in facts.inputs
        if not spec.optional or spec.name in named
    )
    _check_length(lengths, facts, slots, where)
    longest = lengths[1] if lengths else max((slot.longest_given for slot in slots), default=None)
    most = sum(slot.most_bytes(longest) for slot in slots)
    if most > _MOST_BYTES:
        raise FitError(f"{where}: a request would have up to {most:,} bytes; allowed: {_MOST_BYTES:,}")
    return Fit(slots, kind.batch if batched else 1, most, vocab_size)


def _check_names(kind: Kind, facts: ModelFacts, where: str) -> None:
    known = [spec.name for spec in facts.inputs]
    if not known:
        raise FitError(
            f"{where}: the server tells no inputs of it; declare them there, or write the whole request: "
            "http: {path: /v2/models/…/infer, json: {…}}"
        )
    for name in kind.inputs:
        if name not in known:
            raise FitError(f"{where}: no input {name!r}{near(name, known)}; allowed: {', '.join(known)}")
    for spec in facts.inputs:
        if spec.datatype not in DTYPES and spec.datatype != "BYTES":
            raise FitError(
                f"{where}: input {spec.name!r} has datatype {spec.datatype}; allowed: {', '.join(DTYPES)}, BYTES"
            )


def model_number(facts: ModelFacts, key: str, where: str) -> int | None:
    """A whole number of 1 or more among the model's parameters, None where it tells none.  Raises FitError."""
    text = facts.parameters.get(key)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) == 0:
        raise FitError(f"{where}: its parameter {key} is {text!r}; allowed: a whole number of 1 or more")
    return int(text)


def has_batch(facts: ModelFacts) -> bool:
    """Whether requests have a batch axis.

    A server that tells no max_batch_size tells full shapes instead; a free first dimension is taken for the
    batch axis then.
    """
    if facts.max_batch_size is None:
        return any(spec.shape[:1] == (-1,) for spec in facts.inputs)
    return facts.max_batch_size > 0


def _check_batch(kind: Kind, facts: ModelFacts, where: str) -> bool:
    batched, most = has_batch(facts), facts.max_batch_size
    if kind.batch > 1 and not batched:
        why = (
            "no input has a free first dimension"
            if most is None
            else "the model takes no batches (max_batch_size 0)"
        )
        raise FitError(f"{where}: batch {kind.batch}, but {why}; allowed: 1")
    if most is not None and kind.batch > max(most, 1):
        raise FitError(f"{where}: batch {kind.batch}, but its max_batch_size is {most}; allowed: 1 to {most}")
    return batched


def is_token_input(spec: TensorSpec) -> bool:
    """Whether an input's values are ids of tokens, by its name."""
    return spec.name.lower() in TOKEN_NAMES and spec.datatype in WHOLES


def axes(
    spec: TensorSpec, fill: Fill | None, batched: bool, most: int | None
) -> tuple[bool, tuple[int, ...]]:
    """Whether an input has the batch axis in front, and a row's shape behind it."""
    told = most is not None
    leading = batched and (told or spec.shape[:1] == (-1,))
    if fill is not None and fill.shape is not None and not told and len(fill.shape) == len(spec.shape):
        leading = False  # a full shape given: its first axis is no batch then
    return leading, spec.shape if told or not leading else spec.shape[1:]


def _slot(
    spec: TensorSpec, kind: Kind, given: Given | None, batched: bool, most: int | None, where: str
) -> Slot:
    fill = kind.inputs.get(spec.name)
    leading, row = axes(spec, fill, batched, most)
    if fill is not None and fill.shape is not None:
        row = _given_shape(spec.name, row, fill.shape, where)
    elif given is None and row.count(-1) > 1:
        dims = ", ".join(str(dim) for dim in row)
        line = f"inputs: {{{spec.name}: {{shape: [{_example(row)}]}}}}"
        raise FitError(f"{where}: input {spec.name!r} leaves more than one axis free ([{dims}]); add {line}")
    return Slot(spec, ((kind.batch, *row) if leading else row), fill, given, leading)


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


def _check_length(
    lengths: tuple[int, int] | None, facts: ModelFacts, slots: tuple[Slot, ...], where: str
) -> None:
    free = [slot for slot in slots if -1 in slot.shape]
    if lengths is None:
        if free and not any(slot.given for slot in free):
            raise FitError(
                f"{where}: input {free[0].spec.name!r} has a free dimension; give the kind a length, e.g. length: 32"
            )
        return
    for slot in free:
        if slot.given is not None and not slot.given.tokens:
            raise FitError(
                f"{where}: has a length, but the rows of input {slot.spec.name!r} have their own; take length out"
            )
    if not free and not any(slot.sizes_text for slot in slots):
        raise FitError(
            f"{where}: has a length, but no input of the model has a free dimension; take length out"
        )
    shortest, longest = lengths
    most = model_number(facts, "max_length", where)
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
    if (
        is_token_input(slot.spec)
        and vocab_size is not None
        and ends
        and (min(ends) < 0 or max(ends) >= vocab_size)
    ):
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
