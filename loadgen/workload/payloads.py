"""Payload variants of a kind, built to demand: one for each that is wanted.

Values are random within what the model accepts, or rows of files in their order; of equal wants no two are
alike while the values last.  It must not know protocols, connections or time.
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from loadgen.records import ModelFacts, Payload, Tensor, Wanted
from loadgen.traffic.inputs import Fill, Integers
from loadgen.traffic.profile import Kind
from loadgen.workload.budget import MOST_BYTES, affordable
from loadgen.workload.fills import draw, raw_numbers
from loadgen.workload.fit import (
    Fit,
    FitError,
    Given,
    Slot,
    faulty_ranges,
    fit,
    is_token_input,
    whole_range,
)  # fmt: skip
from loadgen.workload.lengths import max_length, min_length
from loadgen.workload.rows import NO_DATA, KindData
from loadgen.workload.stacks import Stack, stack

_TRIES = 20  # where a model's inputs have few values, equal variants cannot be ruled out
# What these names mean to every encoder that has them: values that are not ours to vary.
_BY_NAME = frozenset({"attention_mask", "token_type_ids", "position_ids"})


def pool_rng(seed: int, kind: str) -> np.random.Generator:
    """The random numbers of a kind's pool: its own, whatever other kinds there are."""
    spawn_key = (zlib.crc32(b"payloads"), zlib.crc32(kind.encode()))
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=spawn_key)))


def build(
    kind: Kind,
    facts: ModelFacts,
    wanted: Sequence[Wanted],
    rng: np.random.Generator,
    data: KindData = NO_DATA,
) -> list[Payload]:
    """One variant for each of `wanted`, in their order; rows of `data` in theirs.

    Raises FitError when the model cannot take the kind, DataError for a row that it cannot take.
    """
    fitted = _fitted(kind, facts, wanted, data)
    slots = [_ready(slot, kind, fitted) for slot in fitted.slots]
    tries = _TRIES if any(_varies(slot) for slot in slots) else 1
    rows = [group.picks(len(wanted) * fitted.items, rng) for group in data.groups]
    by_name = {slot.spec.name: slot for slot in slots}
    pad = _pad_id(facts)
    pool: list[Payload] = []
    seen: set[tuple[bytes, ...]] = set()
    for index, want in enumerate(wanted):
        mine = slice(index * fitted.items, (index + 1) * fitted.items)
        given = stack(data, by_name, [chosen[mine] for chosen in rows], want.length, pad)
        length = given.length if want.length is None else want.length
        for _ in range(tries):
            tensors = [_tensor(slot, length, given, rng) for slot in slots if not _left_out(slot, given)]
            payload = Payload(tuple(tensors), length, fitted.items)
            if (mark := tuple(tensor.data for tensor in payload.tensors)) not in seen:
                break
        seen.add(mark)
        pool.append(payload)
    return pool


def most_variants(
    kind: Kind,
    facts: ModelFacts,
    data: KindData = NO_DATA,
    wanted: Sequence[Wanted] = (),
    most: int = 512,
) -> int:
    """How many variants of a kind are worth having: up to `most`, or as many requests as use every row of its
    files once; within what memory allows.

    64 MiB, but at least 8 variants unless those pass 1 GiB; with files 1 GiB.  `wanted` are lengths beside
    those of the kind's own law.  Raises as `build`.
    """
    fitted = _fitted(kind, facts, wanted, data)
    if not data.groups:
        return affordable(fitted.most_bytes, most=most)
    once = data.rows // math.gcd(data.rows, fitted.items)
    varies = any(_varies(slot) for slot in fitted.slots)
    return affordable(fitted.mean_bytes, MOST_BYTES, most=max(once, most if varies else 1), fewest=1)


def size_of(kind: Kind, facts: ModelFacts, data: KindData, want: Wanted) -> int:
    """An upper bound of the bytes of one variant.  Raises as `build`."""
    return max(_fitted(kind, facts, [want], data).most_bytes, 1)


def _fitted(kind: Kind, facts: ModelFacts, wanted: Sequence[Wanted], data: KindData) -> Fit:
    lengths = {want.length for want in wanted if want.length is not None}
    if kind.length is not None:
        lengths |= {min_length(kind.length.law), max_length(kind.length.law)}
    given = {
        name: Given(column.row_bytes, column.mean_bytes, column.tokens)
        for name, column in data.columns.items()
    }
    fitted = fit(kind, facts, (min(lengths), max(lengths)) if lengths else None, given)
    unread = [name for name, fill in kind.inputs.items() if fill.file is not None and name not in given]
    if unread or (kind.data is not None and not data.groups):
        raise FitError(
            f"kind {kind.name!r}, model {facts.name!r}: its files were not read (workload.rows.read_data)"
        )
    return fitted


def _pad_id(facts: ModelFacts) -> int:
    text = facts.parameters.get("pad_token_id", "0").strip()
    return int(text) if text.isdecimal() else 0


def _varies(slot: Slot) -> bool:
    """Whether two tensors of one shape differ by chance."""
    law = slot.fill.law if slot.fill else None
    return slot.given is None and law != "constant" and not (law is None and _is_known(slot))


def _is_known(slot: Slot) -> bool:
    return slot.spec.name.lower() in _BY_NAME and slot.spec.datatype != "BYTES"


def _ready(slot: Slot, kind: Kind, fitted: Fit) -> Slot:
    """A slot whose law suits it; token ids get the vocabulary for theirs."""
    where = f"kind {kind.name!r}, model {kind.model!r}: input {slot.spec.name!r}"
    for fault in faulty_ranges(slot, fitted.vocab_size):
        raise FitError(f"{where}: {fault}")
    lawless = slot.given is None and (slot.fill is None or slot.fill.law is None)
    if not (lawless and is_token_input(slot.spec)):
        return slot
    if fitted.vocab_size is None:
        raise FitError(
            f"{where}: the model's configuration has no parameter vocab_size; add to kinds.{kind.name}: "
            f"inputs: {{{slot.spec.name}: {{integers: {{min: 0, max: 30521}}}}}} (max: the vocabulary's size less 1)"
        )
    _, high = whole_range(slot.spec.datatype)
    return replace(slot, fill=Fill(integers=Integers(min=0, max=min(fitted.vocab_size - 1, high))))


def _left_out(slot: Slot, given: Stack) -> bool:
    """Whether the request's rows of a file do not have this input."""
    return slot.given is not None and slot.spec.name not in given.tensors


def _tensor(slot: Slot, length: int | None, given: Stack, rng: np.random.Generator) -> Tensor:
    spec = slot.spec
    if spec.name in given.tensors:
        row = given.tensors[spec.name]
        return Tensor(spec.name, spec.datatype, row.shape, row.data)
    shape = slot.sized(length)
    if _is_known(slot) and (slot.fill is None or slot.fill.law is None):
        data = raw_numbers(_known(spec.name.lower(), shape, given.tokens), spec.datatype)
    else:
        data = draw(rng, spec.datatype, shape, slot.fill, length if slot.sizes_text else None)
    return Tensor(spec.name, spec.datatype, shape, data)


def _known(name: str, shape: tuple[int, ...], tokens: tuple[int, ...] | None) -> npt.NDArray[np.generic]:
    """Positions count up, types are 0, the mask is 1 for every token and 0 for padding."""
    if name == "token_type_ids":
        return np.zeros(shape, dtype=np.int64)
    at = np.broadcast_to(np.arange(shape[-1] if shape else 1), shape)
    if name == "position_ids":
        return at
    if tokens is None or not shape:
        return np.ones(shape, dtype=np.int64)
    counts = np.array(tokens)[:, None] if len(shape) > 1 else tokens[0]
    return (at < counts).astype(np.int64)
