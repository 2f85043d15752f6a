"""What a cold start asks a model: one shape a length bucket of the profile, and a warm-up over the same grid.

Pure: profile and facts in, requests and configurations out.  It must not know connections.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.lab.kinds import TensorKind, check_target
from loadgen.records import LoadgenError, Wanted
from loadgen.workload.demand import demand
from loadgen.workload.payloads import pool_rng

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from loadgen.records import ModelFacts, Plan, Request
    from loadgen.target import Target
    from loadgen.traffic.profile import Kind, TrafficProfile

_VARIANTS = 4  # values of a shape that take turns
_MOST_WARMUPS = 64


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind at one length, and requests of it that take turns.  `timeout_ns` is the kind's own."""

    kind: str
    length: int | None
    batch: int
    timeout_ns: int
    requests: tuple[Request, ...]


def cold_kinds(profile: TrafficProfile, model: str | None) -> tuple[list[Kind], str]:
    """The profile's kinds of one model, and its name.  Raises LoadgenError when that is unclear or not possible."""
    kinds = list(profile.kinds.values())
    models = sorted({kind.model for kind in kinds if kind.is_kserve})
    if not models:
        raise LoadgenError("a cold start is measured with tensors: the profile has no kind that sends some")
    if model is None and len(models) > 1:
        raise LoadgenError(f"the profile has several models, name one with --model: {', '.join(models)}")
    name = model or models[0]
    mine = [kind for kind in kinds if kind.model == name and kind.is_kserve]
    if not mine:
        raise LoadgenError(f"no kind of the profile sends to model {name!r}; it has: {', '.join(models)}")
    for kind in mine:
        for key in ("sequence", "shared_memory", "stream"):
            if getattr(kind, key):
                raise LoadgenError(f"kind {kind.name!r}: {key} does not go with coldstart; take it out")
    return mine, name


def cold_lengths(plan: Plan, kind: str, buckets: int, given: Sequence[int]) -> list[int | None]:
    """The lengths to ask of a kind: those given, else the upper end of each of so many equal shares of the plan's."""
    if given:
        return list(given)
    place = plan.kinds.index(kind)
    columns = [p.length[p.kind == place] for p in plan.phases if p.length is not None]
    every = np.sort(np.concatenate(columns)) if columns else np.array([], np.int32)
    every = every[every >= 0]
    if not len(every):
        return [None]
    ends = [int(every[-(-len(every) * (i + 1) // buckets) - 1]) for i in range(buckets)]
    return list(dict.fromkeys(ends))


def make_shapes(
    kinds: Sequence[Kind],
    facts: Mapping[str, ModelFacts],
    target: Target,
    profile: TrafficProfile,
    plan: Plan,
    *,
    buckets: int,
    lengths: Sequence[int] = (),
) -> list[Shape]:
    """The shapes in the profile's order, short to long.  `facts` by version.  Raises LoadgenError (FitError)."""
    shapes = []
    for kind in kinds:
        check_target(kind, target)
        maker = TensorKind(kind, facts[kind.version], target, profile.folder, None)
        has_length = kind.length is not None or kind.lengths is not None or _traced(plan, kind.name)
        asked = cold_lengths(plan, kind.name, buckets, lengths if has_length else ())
        for length in asked:
            built = maker.messages([Wanted(length)] * _VARIANTS, pool_rng(plan.seed, kind.name))
            requests = tuple(message.request for message in built)
            shapes.append(Shape(kind.name, length, kind.batch, kind.timeout_ns, requests))
    return shapes


def _traced(plan: Plan, kind: str) -> bool:
    place = plan.kinds.index(kind)
    return any(w.length is not None for w in demand(plan, [1] * len(plan.kinds)).wanted[place])


def warmup_rows(config: Mapping[str, Any] | None, instances: int) -> int:
    """The inferences that a configuration's warm-up adds to the counters of a freshly loaded model."""
    rows = (config or {}).get("model_warmup") or []
    return instances * sum(int(r.get("batch_size") or 0) * max(1, int(r.get("count") or 0)) for r in rows)


def with_warmup(facts: ModelFacts, shapes: Sequence[Shape]) -> dict[str, Any]:
    """The configuration as served, with a warm-up: its own if it has one, else batch 1 and the greatest batch of
    every length.  Zeros: random bytes would be ids in no vocabulary.

    Raises LoadgenError when the server tells no configuration.
    """
    if facts.config is None:
        raise LoadgenError(
            f"model {facts.name!r}: the server tells no configuration, so no warm-up can be added"
        )
    config = dict(facts.config)
    if config.get("model_warmup"):
        return config
    most = facts.max_batch_size or 0
    batches = sorted({1, max(1, most)}) if most else [1]
    lengths = sorted({shape.length for shape in shapes}, key=lambda n: n or 0)
    grid = [(batch, length) for length in lengths for batch in batches][:_MOST_WARMUPS]
    config["model_warmup"] = [
        {"name": f"batch {batch} length {length}", "batch_size": batch, "count": 1,
         "inputs": {i.name: {"data_type": f"TYPE_{_triton(i.datatype)}", "dims": _concrete(i.shape, length), "zero_data": True}
                    for i in facts.inputs}}
        for batch, length in grid
    ]  # fmt: skip
    return config


def without_warmup(facts: ModelFacts) -> dict[str, Any] | None:
    """The configuration as served without its warm-up; None when it has none, so that a plain load will do."""
    if not (facts.config or {}).get("model_warmup"):
        return None
    return {key: value for key, value in (facts.config or {}).items() if key != "model_warmup"}


def _triton(datatype: str) -> str:
    return "STRING" if datatype == "BYTES" else datatype


def _concrete(shape: Sequence[int], length: int | None) -> list[int]:
    return [size if size >= 0 else length or 1 for size in shape]
