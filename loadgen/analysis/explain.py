"""Why batches had the size they had: each rule's share and cost in the measured phases, and advice with numbers.

Reads trace.arrow of a run folder and the model's configuration in run.json; the rules are analysis.batches'.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.analysis.batches import RULES, STALL_NS, Batch, Scheduling, rebuild, scheduling
from loadgen.analysis.counsel import counsel
from loadgen.histogram import nearest_rank
from loadgen.records import LoadgenError
from loadgen.runread import Run
from loadgen.triton.facts import composing, is_ensemble
from loadgen.triton.trace import Timeline
from loadgen.triton.tracefile import read_timelines

_MOST_STALLS = 20  # listed with their stamps: the longest


@dataclass(frozen=True, slots=True)
class Cost:
    """S(b) = fixed + a_row * b, in ns, by least squares over the medians of each batch size."""

    fixed_ns: float
    row_ns: float


def explain(run: Run) -> list[dict[str, Any]]:
    """One entry a model version that executed something, by name; of an ensemble those it is made of (`step_of` names it).

    Raises LoadgenError when the run has no trace, or its models no configuration to compare with.
    """
    timelines = read_timelines(run.path)
    spans = [
        (p["start_ns"], p["end_ns"])
        for p in run.info["phases"]
        if p.get("measured") and p.get("start_ns") is not None and p.get("end_ns") is not None
    ]
    models = (run.info.get("server") or {}).get("models") or {}
    configs = {name: (facts or {}).get("config") for name, facts in models.items()}
    ensembles = sorted(name for name, config in configs.items() if is_ensemble(config))
    timelines = [one for one in timelines if one.model not in ensembles]  # which execute nothing themselves
    found = []
    for model, version in sorted({(one.model, one.version) for one in timelines}):
        config = configs.get(model)
        if config is None:
            raise LoadgenError(
                f"{run.path}: no configuration of model {model!r} in it: its rules are not known"
            )
        mine = [one for one in timelines if (one.model, one.version) == (model, version)]
        batches = [b for b in rebuild(mine, scheduling(config)) if _within(b.start_ns, spans)]
        never = sum(one.start_ns is None and _within(one.queue_ns, spans) for one in mine)
        if batches or never:
            step_of = [name for name in ensembles if model in composing([name], configs)]
            told = story(model, version, batches, scheduling(config), never, _unsaid(mine))
            found.append(told | {"step_of": step_of})
    if not found and ensembles:
        steps = ", ".join(composing(ensembles, configs))
        raise LoadgenError(
            f"{run.path}: {', '.join(ensembles)} is an ensemble and executes nothing itself, and the trace has no execution "
            f"of what it is made of ({steps}) in a measured phase"
        )
    if not found:
        raise LoadgenError(f"{run.path}: the server's trace has no execution in a measured phase")
    return found


def story(
    model: str, version: str, batches: Sequence[Batch], config: Scheduling, never: int, unsaid: int
) -> dict[str, Any]:
    """The figures of one model's batches; `never` requests were not executed, `unsaid` did not say their shapes."""
    cost = cost_of(batches)
    busy = sum(b.end_ns - b.start_ns for b in batches)
    stalls = [
        {"start_ns": b.start_ns - b.idle_ns, "end_ns": b.start_ns, "idle_ns": b.idle_ns, "rows": b.rows}
        for b in batches
        if b.idle_ns > config.delay_ns + STALL_NS
    ]
    longest = sorted(stalls, key=lambda one: -one["idle_ns"])[:_MOST_STALLS]
    figures: dict[str, Any] = {
        "model": model,
        "version": version,
        "batches": len(batches),
        "requests": sum(b.requests for b in batches),
        "rows": sum(b.rows for b in batches),
        "mean_batch": sum(b.rows for b in batches) / len(batches) if batches else None,
        "sizes": {str(n): c for n, c in zip(*_counted([b.rows for b in batches]), strict=True)},
        "never_executed": never,
        "unknown_shapes": unsaid,
        "cost": None if cost is None else {"fixed_ns": round(cost.fixed_ns), "row_ns": round(cost.row_ns)},
        "service_ns_p50": _median(batches) if batches else None,
        "rules": {rule: _of_rule([b for b in batches if b.rule == rule], len(batches), busy)
                  for rule in RULES if any(b.rule == rule for b in batches)},
        "padding": _padding(batches),
        "stall_count": len(stalls), "stalls": sorted(longest, key=lambda one: one["start_ns"]),
        "max_batch": config.max_batch, "preferred": list(config.preferred), "delay_ns": config.delay_ns,
        "instances": config.instances, "prefetch": config.prefetch,
        "sequences": config.sequences,
    }  # fmt: skip
    return figures | {"advice": counsel(figures)}


def cost_of(batches: Sequence[Batch]) -> Cost | None:
    """None where all batches had one size, or larger ones were not slower than none: then nothing can be told."""
    sizes = sorted({b.rows for b in batches})
    if len(sizes) < 2:  # noqa: PLR2004 - a line
        return None
    typical = [_median([b for b in batches if b.rows == n]) for n in sizes]
    counts = [sum(b.rows == n for b in batches) for n in sizes]
    row, fixed = np.polyfit(sizes, typical, 1, w=np.sqrt(counts))
    return Cost(max(0.0, float(fixed)), max(0.0, float(row)))


def _median(batches: Sequence[Batch]) -> int:
    """Of how long they took, ns."""
    return int(nearest_rank(sorted(b.end_ns - b.start_ns for b in batches), 0.5))


def _of_rule(batches: Sequence[Batch], of: int, busy: int) -> dict[str, Any]:
    requests = sum(b.requests for b in batches)
    return {
        "batches": len(batches),
        "share": len(batches) / of,
        "busy_share": sum(b.end_ns - b.start_ns for b in batches) / busy if busy else None,
        "requests": requests,
        "mean_rows": sum(b.rows for b in batches) / len(batches),
        "mean_left": sum(b.left for b in batches) / len(batches),
        "company_ns_mean": round(sum(b.company_ns for b in batches) / requests),
        "queued_ns_mean": round(sum(b.queued_ns for b in batches) / requests),
    }


def _padding(batches: Sequence[Batch]) -> dict[str, Any] | None:
    """What a model that pads each batch to its longest row computes in vain."""
    tokens, padded = sum(b.tokens for b in batches), sum(b.padded for b in batches)
    return {"tokens": tokens, "padded": padded, "waste": 1 - tokens / padded} if padded else None


def _within(at: int, spans: Sequence[tuple[int, int]]) -> bool:
    return any(start <= at <= end for start, end in spans)


def _unsaid(timelines: Sequence[Timeline]) -> int:
    return sum(one.shapes is None for one in timelines)


def _counted(values: Sequence[int]) -> tuple[list[int], list[int]]:
    sizes, counts = np.unique(np.array(values, np.int64), return_counts=True)
    return sizes.tolist(), counts.tolist()
