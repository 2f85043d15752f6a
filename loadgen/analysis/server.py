"""What the server says it did in the measured phases: batch sizes, queue and compute times, cache hits.

Statistics are cumulative since a model was loaded, so only differences between the snapshots before and
after a phase mean anything; the arithmetic is loadgen.triton.statistics'.  A reload or a version swap within a
phase starts the counters anew: it shows as a counter that fell, as a version that has a snapshot on one side
only, or as fewer successes than this run had.  Then nothing of that phase can be told.  This module must not
know how a snapshot is fetched.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.analysis.frame import Frame
from loadgen.runread import Run
from loadgen.triton.facts import instance_count
from loadgen.triton.statistics import ServerWindow, merge, window

SLACK, SLACK_SHARE = 2, 0.01  # of the counts: answers that were on their way between two readings


@dataclass(frozen=True, slots=True)
class Counted:
    """One model in one measured phase.  `window` is None when its counters were reset within the phase."""

    model: str
    phase: str
    ok: int  # this run's own successes
    told: int  # the successes that the server counted, as far as it can be told
    window: ServerWindow | None
    span_ns: int | None = None  # of the phase, its drain included
    in_flight: float | None = None  # mean over that, by the client's stamps
    instances: int | None = None  # that execute the model, by its configuration


def counted(run: Run, frame: Frame) -> list[Counted]:
    """Of each measured phase with snapshots on both sides, of the models asked for.

    Steps of an ensemble are left out: they would count the same requests again.
    """
    asked = [kind["model"] for kind in run.info.get("kinds", [])]
    measured = {p["name"]: i for i, p in enumerate(run.info.get("phases", [])) if p.get("measured")}
    seen: dict[tuple[str, str], dict[str, dict[str, Any]]] = defaultdict(lambda: {"before": {}, "after": {}})
    for line in run.server:
        stats = line.get("stats")
        known = line.get("phase") in measured and line.get("model") in asked
        if known and isinstance(stats, Mapping) and line.get("at") in ("before", "after"):
            version = str(stats.get("version", line.get("version")))
            seen[line["phase"], line["model"]][line["at"]][version] = stats
    found = []
    for (phase, model), sides in seen.items():
        before, after = sides["before"], sides["after"]
        if not (before and after):
            continue  # the server could not be read, or the run was killed: nothing is told, nothing was reset
        of_model = [kind for kind, name in enumerate(asked) if name == model]
        rows = frame.of_phase(measured[phase])
        ok = int(np.count_nonzero(np.isin(rows.kind, of_model) & rows.ok))
        both = merge(window(before[version], after[version]) for version in before.keys() & after.keys())
        told, counts = both.success.count, any(_counts(stats) for stats in after.values())
        few = counts and told < ok - max(SLACK, SLACK_SHARE * ok)
        reset = before.keys() != after.keys() or both.went_back or few
        span_ns, in_flight = _occupancy(
            run.info["phases"][measured[phase]], rows.where(np.isin(rows.kind, of_model))
        )
        instances = _instances(run.info.get("server"), model)
        found.append(Counted(model, phase, ok, told, None if reset else both, span_ns, in_flight, instances))
    return found


def _occupancy(told: Mapping[str, Any], rows: Frame) -> tuple[int | None, float | None]:
    """How long a phase was, and how many requests were at the server at a time: successes, as its own count has them."""
    start, end = told.get("start_ns"), told.get("end_ns")
    if start is None or end is None or end <= start:
        return None, None
    ok = rows.where(rows.ok & rows.sent)
    return end - start, float(ok.service_ns.sum()) / (end - start)


def _instances(server: Any, model: str) -> int | None:
    """How many instances a model's configuration has, over all its devices; None where it does not tell."""
    told = server.get("models", {}).get(model) if isinstance(server, Mapping) else None
    return instance_count((told or {}).get("config"))


def _counts(stats: Mapping[str, Any]) -> bool:
    """Whether this server counts successes at all."""
    return window(None, stats).success.count > 0


def server_figures(run: Run, frame: Frame) -> dict[str, Any]:
    """batch_sizes, mean_batch, queue_ns_mean, compute_ns_mean and counts over all models, and by model.

    None where nothing was measured.  `resets` names the models whose counters were reset within a phase,
    `reset_phases` these phases with both counts; they are in no figure.
    """
    found = counted(run, frame)
    good = [(one.model, one.window) for one in found if one.window is not None]
    models = sorted({model for model, _ in good})
    figures = _figures([one for _, one in good]) | _use([one for one in found if one.window is not None])
    if len(models) > 1:
        figures["by_model"] = {
            name: _figures([one for model, one in good if model == name]) for name in models
        }
    lost = [one for one in found if one.window is None]
    return figures | {
        "resets": sorted({one.model for one in lost}),
        "reset_phases": [
            {"model": one.model, "phase": one.phase, "ok": one.ok, "counted": one.told} for one in lost
        ],
        "dynamic_batching": _tells(run.info.get("server"), "dynamic_batching"),
    }


def _use(found: list[Counted]) -> dict[str, Any]:
    """How busy the instances were, and Little's law: requests at the server by its counters and by our stamps.

    The two agree when the server's times are whole; by far fewer at the server, requests wait where it does not
    look (a proxy, its network threads).  None where spans or instances are not known.
    """
    parts = [(one, one.window, one.span_ns) for one in found if one.window is not None and one.span_ns]
    capacity = sum(span * one.instances for one, _, span in parts if one.instances)
    busy = sum(window.busy_ns for one, window, _ in parts if one.instances)
    span_ns = sum({one.phase: span for one, _, span in parts}.values())
    mine = sum((one.in_flight or 0.0) * span for one, _, span in parts)
    theirs = sum(window.success.ns for _, window, _ in parts)
    return {
        "busy": round(busy / capacity, 4) if capacity else None,
        "in_flight": {"server": round(theirs / span_ns, 3) if span_ns else None,
                      "client": round(mine / span_ns, 3) if span_ns else None},
    }  # fmt: skip


def _figures(found: list[ServerWindow]) -> dict[str, Any]:
    total = merge(found)
    figures = {
        "batch_sizes": {str(size): n for size, n in total.batch_sizes.items()},
        "mean_batch": total.mean_batch,
        "queue_ns_mean": _rounded(total.queue_ns_mean),
        "compute_ns_mean": _rounded(total.compute_ns_mean),
        "split_ns": _split(total),
        "by_batch": {str(size): {"executions": tally.count, "mean_ns": _rounded(tally.mean_ns)}
                     for size, tally in sorted(total.batches.items()) if tally.count},
        "inference_count": total.inferences,
        "execution_count": total.executions,
        "request_count": total.success.count + total.failed.count,
        "fail_count": total.failed.count,
        "cache_hits": total.cache_hits,
        "cache_misses": total.cache_misses,
    }  # fmt: skip
    return figures if found else dict.fromkeys(figures)


def _split(total: ServerWindow) -> dict[str, int | None]:
    """Where a request's time at the server went, means: each request of a batch is charged the whole batch.

    `frontend` is what is in none of the parts: receiving, answering, hand-overs, looking into a cache.  It is of all
    requests, those that a cache answered among them, which have no part in compute.
    """
    parts = {"queue": total.queue, **total.parts}
    told = {
        name: parts[name].mean_ns if name in parts else None for name in ("queue", "input", "infer", "output")
    }
    unknown = None in told.values() or not total.success.count
    in_parts = sum(tally.ns for tally in parts.values())
    rest = None if unknown else max(0, total.success.ns - in_parts) / total.success.count
    return {name: _rounded(value) for name, value in {**told, "frontend": rest}.items()}


def _tells(facts: Any, key: str) -> bool:
    """Whether a model's configuration, anywhere in the server facts, has this section."""
    if isinstance(facts, Mapping):
        return facts.get(key) not in (None, False) or any(_tells(value, key) for value in facts.values())
    return isinstance(facts, list) and any(_tells(value, key) for value in facts)


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)
