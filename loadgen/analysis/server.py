"""What the server says it did in the measured phases: batch sizes, queue and compute times, cache hits.

An ensemble has no batches, queue or instances: the models it is made of have, and are told one by one.

Statistics are cumulative since a model was loaded, so only differences between the snapshots before and
after a phase mean anything; the arithmetic is loadgen.triton.statistics'.  A reload or a version swap within a
phase starts the counters anew: it shows as a counter that fell, as a version that has a snapshot on one side
only, or as fewer successes than this run had.  Then nothing of that phase can be told.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from loadgen.analysis.frame import Frame
from loadgen.runread import Run
from loadgen.triton.facts import composing, instance_count, is_ensemble, steps_of
from loadgen.triton.statistics import ServerWindow, merge, of_ensemble, window

SLACK, SLACK_SHARE = 2, 0.01  # of the counts: answers that were on their way between two readings


class Role(Enum):
    """What a model has to do with a run."""

    ASKED = "asked"
    COMPOSING = "composing"  # a step of an ensemble that was asked
    OTHER = "other"  # it moved: another client's, or called by a model that was asked


@dataclass(frozen=True, slots=True)
class Counted:
    """One model in one measured phase.  `window` is None when its counters were reset within the phase."""

    model: str
    phase: str
    ok: int  # this run's own successes, with it or with the ensembles that it is a step of
    told: int  # the successes that the server counted, as far as it can be told
    window: ServerWindow | None
    span_ns: int | None = None  # of the phase, its drain included
    in_flight: float | None = None  # mean over that, by the client's stamps
    instances: int | None = None  # that execute the model, by its configuration
    role: Role = Role.ASKED
    ensemble: bool = False


def counted(run: Run, frame: Frame) -> list[Counted]:
    """Of each measured phase with snapshots on both sides: the models asked for, what they are made of, and others
    that moved.
    """
    phases = run.info.get("phases", [])
    measured = {p["name"]: i for i, p in enumerate(phases) if p.get("measured")}
    seen: dict[tuple[str, str], dict[str, dict[str, Any]]] = defaultdict(lambda: {"before": {}, "after": {}})
    for line in run.server:
        stats = line.get("stats")
        known = line.get("phase") in measured and line.get("model") is not None
        if known and isinstance(stats, Mapping) and line.get("at") in ("before", "after"):
            version = str(stats.get("version", line.get("version")))
            seen[line["phase"], line["model"]][line["at"]][version] = stats
    return [
        _counted(run, frame.of_phase(measured[phase]), phases[measured[phase]], (model, sides))
        for (phase, model), sides in seen.items()
        if sides["before"] and sides["after"]
        # else the server could not be read, or the run was killed: nothing is told, nothing was reset
    ]


def _counted(
    run: Run, rows: Frame, phase: Mapping[str, Any], of: tuple[str, dict[str, dict[str, Any]]]
) -> Counted:
    model, sides = of
    before, after = sides["before"], sides["after"]
    asked = [kind["model"] for kind in run.info.get("kinds", [])]
    configs = _configs(run)
    roots = [name for name in asked if name == model or model in composing([name], configs)]
    role = Role.ASKED if model in asked else Role.COMPOSING if roots else Role.OTHER
    mine, directly = (
        rows.where(np.isin(rows.kind, [kind for kind, name in enumerate(asked) if name in names]))
        for names in (roots or asked, [model])
    )
    ok, own = int(np.count_nonzero(mine.ok)) if roots else 0, int(np.count_nonzero(directly.ok))
    both = merge(window(before[version], after[version]) for version in before.keys() & after.keys())
    told, counts = both.success.count, any(_counts(stats) for stats in after.values())
    few = counts and told < own - max(SLACK, SLACK_SHARE * own)
    reset = before.keys() != after.keys() or both.went_back or few
    span_ns, in_flight = _occupancy(phase, mine)
    ensemble = is_ensemble(configs.get(model))
    return Counted(
        model=model,
        phase=phase["name"],
        ok=ok,
        told=told,
        window=None if reset else of_ensemble(both) if ensemble else both,
        span_ns=span_ns,
        in_flight=in_flight,
        instances=instance_count(configs.get(model)),
        role=role,
        ensemble=ensemble,
    )


def _configs(run: Run) -> dict[str, Mapping[str, Any] | None]:
    """By model, as far as the server told them."""
    server = run.info.get("server")
    models = server.get("models") if isinstance(server, Mapping) else None
    return {name: (facts or {}).get("config") for name, facts in (models or {}).items()}


def _occupancy(told: Mapping[str, Any], rows: Frame) -> tuple[int | None, float | None]:
    """How long a phase was, and how many requests were at the server at a time: successes, as its own count has them."""
    start, end = told.get("start_ns"), told.get("end_ns")
    if start is None or end is None or end <= start:
        return None, None
    ok = rows.where(rows.ok & rows.sent)
    return end - start, float(ok.service_ns.sum()) / (end - start)


def _counts(stats: Mapping[str, Any]) -> bool:
    """Whether this server counts successes at all."""
    return window(None, stats).success.count > 0


def server_figures(run: Run, found: list[Counted]) -> dict[str, Any]:
    """batch_sizes, mean_batch, queue_ns_mean, compute_ns_mean and counts over all models asked, and by model.

    None where nothing was measured.  `request_count` and what follows it are of requests that came from clients: those
    that ensembles send to their steps are not in it.  Where an ensemble was asked the figures of executions are those of
    the only model that executed, else None; `composing` has each one's, `ensembles` which each is made of.
    `other_models` are those that moved although nobody of this run asked for them.  `resets` names the models whose
    counters were reset within a phase, `reset_phases` these phases with both counts; they are in no figure.
    """
    configs = _configs(run)
    good = [one for one in found if one.window is not None]
    asked = [one for one in good if one.role is Role.ASKED]
    ensembles = sorted(
        {kind["model"] for kind in run.info.get("kinds", []) if is_ensemble(configs.get(kind["model"]))}
    )
    of_ensembles = composing(ensembles, configs)
    executing = [one for one in good if one.role is not Role.OTHER and not one.ensemble]
    figures = _figures(_windows(asked)) | _use(asked, executing)
    by_model = {name: _figures(_windows(asked, name)) for name in _names(asked)}
    if len(by_model) > 1:
        figures["by_model"] = by_model
    if ensembles:
        executed_by = {*of_ensembles, *_names(asked)}
        only = len([name for name in executed_by if not is_ensemble(configs.get(name))]) == 1
        executed = _figures(_windows(executing) if only else [])
        figures |= {key: executed[key] for key in OF_EXECUTIONS} | {"split_ns": None}
        if figures["request_count"] is not None:
            figures["request_count"] = max(0, figures["request_count"] - _inner(good, configs))
    lost = [one for one in found if one.window is None and one.role is not Role.OTHER]
    return figures | {
        "ensembles": {name: composing([name], configs) for name in ensembles},
        "composing": _each([one for one in executing if one.model in of_ensembles], configs),
        "other_models": _each([one for one in good if one.role is Role.OTHER], configs),
        "resets": sorted({one.model for one in lost}),
        "reset_phases": [
            {"model": one.model, "phase": one.phase, "ok": one.ok, "counted": one.told} for one in lost
        ],
        "dynamic_batching": _tells(run.info.get("server"), "dynamic_batching"),
    }


# of no ensemble: what Triton counts there is no execution
OF_EXECUTIONS = (
    "batch_sizes",
    "mean_batch",
    "queue_ns_mean",
    "compute_ns_mean",
    "by_batch",
    "execution_count",
)


def _names(found: list[Counted]) -> list[str]:
    return sorted({one.model for one in found})


def _windows(found: list[Counted], model: str | None = None) -> list[ServerWindow]:
    return [one.window for one in found if one.window is not None and model in (None, one.model)]


def _inner(good: list[Counted], configs: Mapping[str, Mapping[str, Any] | None]) -> int:
    """Requests to models that were asked which ensembles sent them, not clients."""
    asked = {one.model for one in good if one.role is Role.ASKED}
    return sum(
        steps * one.window.success.count
        for one in good
        if one.window is not None
        for (model, _), steps in steps_of(configs.get(one.model)).items()
        if model in asked
    )


def _each(found: list[Counted], configs: Mapping[str, Mapping[str, Any] | None]) -> dict[str, dict[str, Any]]:
    """Figures by model, with how busy its instances were."""
    return {
        name: _figures(_windows(found, name))
        | {"busy": _use([one for one in found if one.model == name], [one for one in found if one.model == name])["busy"],
           "dynamic_batching": _tells(configs.get(name), "dynamic_batching")}
        for name in _names(found)
    }  # fmt: skip


def _use(found: list[Counted], executing: list[Counted]) -> dict[str, Any]:
    """How busy the instances of those executing were, and Little's law: requests at the server by its counters and by our stamps.

    The two agree when the server's times are whole; by far fewer at the server, requests wait where it does not
    look (a proxy, its network threads).  None where spans or instances are not known.
    """
    parts = [(one, one.window, one.span_ns) for one in found if one.window is not None and one.span_ns]
    known = [one for one in executing if one.window is not None and one.span_ns and one.instances]
    capacity = sum((one.span_ns or 0) * (one.instances or 0) for one in known)
    busy = sum(window.busy_ns for window in _windows(known))
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
