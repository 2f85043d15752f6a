"""The payloads of a kind, built to demand: one for each variant that the plan wants, all of them different.

Values are random within what the model accepts.  It must not know protocols, connections or time.
"""

import zlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from loadgen.records import ModelFacts, Payload, Tensor, Wanted
from loadgen.traffic.inputs import Fill, Integers
from loadgen.traffic.profile import Kind
from loadgen.workload.demand import VARIANTS
from loadgen.workload.fills import draw, raw_numbers
from loadgen.workload.fit import TOKEN_NAMES, WHOLES, Fit, FitError, Slot, faulty_ranges, fit, whole_range

_FEWEST = 8
_MOST_POOL_BYTES = 2**30  # whatever the fewest variants come to
_TRIES = 20  # where a model's inputs have few values, equal variants cannot be ruled out
_Shaped = Callable[[tuple[int, ...]], npt.NDArray[np.generic]]

# What these names mean to every encoder that has them: values that are not ours to vary.
_BY_NAME: dict[str, _Shaped] = {
    "attention_mask": lambda shape: np.ones(shape, dtype=np.int64),
    "token_type_ids": lambda shape: np.zeros(shape, dtype=np.int64),
    "position_ids": lambda shape: np.broadcast_to(np.arange(shape[-1] if shape else 1), shape),
}


def pool_rng(seed: int, kind: str) -> np.random.Generator:
    """The random numbers of a kind's pool: its own, whatever other kinds there are."""
    spawn_key = (zlib.crc32(b"payloads"), zlib.crc32(kind.encode()))
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=spawn_key)))


def most_variants(kind: Kind, facts: ModelFacts, budget_bytes: int = 64 * 2**20) -> int:
    """How many variants of a kind are worth having: up to 512 within the budget, but at least 8 (unless those
    would pass 1 GiB).  Raises FitError when the model cannot take the kind.
    """
    size = max(fit(kind, facts).most_bytes, 1)
    n = max(min(VARIANTS, budget_bytes // size), _FEWEST)
    return max(1, min(n, _MOST_POOL_BYTES // size))


def build(kind: Kind, facts: ModelFacts, wanted: Sequence[Wanted], rng: np.random.Generator) -> list[Payload]:
    """One variant for each that is wanted.  Raises FitError when the model cannot take the kind."""
    fitted = fit(kind, facts)
    slots = [_ready(slot, kind, fitted) for slot in fitted.slots]
    pool: list[Payload] = []
    seen: set[tuple[bytes, ...]] = set()
    for one in wanted:
        for _ in range(_TRIES):
            payload = Payload(
                tuple(_tensor(slot, one.length, rng) for slot in slots), one.length, fitted.items
            )
            if (mark := tuple(tensor.data for tensor in payload.tensors)) not in seen:
                break
        seen.add(mark)
        pool.append(payload)
    return pool


def _ready(slot: Slot, kind: Kind, fitted: Fit) -> Slot:
    """A slot whose law suits it; token ids get the vocabulary for theirs."""
    where = f"kind {kind.name!r}, model {kind.model!r}: input {slot.spec.name!r}"
    for fault in faulty_ranges(slot, fitted.vocab_size):
        raise FitError(f"{where}: {fault}")
    is_token = slot.spec.name.lower() in TOKEN_NAMES and slot.spec.datatype in WHOLES
    if not is_token or (slot.fill is not None and slot.fill.law is not None):
        return slot
    if fitted.vocab_size is None:
        raise FitError(
            f"{where}: the model's configuration has no parameter vocab_size; add to kinds.{kind.name}: "
            f"inputs: {{{slot.spec.name}: {{integers: {{min: 0, max: 30521}}}}}} (max: the vocabulary's size less 1)"
        )
    _, high = whole_range(slot.spec.datatype)
    ids = Fill(integers=Integers(min=0, max=min(fitted.vocab_size - 1, high)))
    return Slot(slot.spec, slot.shape, ids)


def _tensor(slot: Slot, length: int | None, rng: np.random.Generator) -> Tensor:
    spec, shape = slot.spec, slot.sized(length)
    known = _BY_NAME.get(spec.name.lower()) if slot.fill is None or slot.fill.law is None else None
    if known is not None and spec.datatype != "BYTES":
        data = raw_numbers(known(shape), spec.datatype)
    else:
        data = draw(rng, spec.datatype, shape, slot.fill, length if slot.sizes_text else None)
    return Tensor(spec.name, spec.datatype, shape, data)
