"""What the server says it did in the measured phases: batch sizes, queue and compute times.

Statistics are cumulative since a model was loaded, so only differences between the snapshots before and
after a phase mean anything; a counter that went down means the model was loaded anew in between, and the
phase then has no server figures.  Means are per request (`inference_stats`), batch sizes per execution
(`batch_stats`).  This module must not know how a snapshot is fetched.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.runfile import Run

Counters = dict[str, int]
_REQUEST_PARTS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True, slots=True)
class Window:
    """One model's counters over one phase, as differences; `reset` when one of them went down."""

    phase: str
    model: str
    version: str
    counters: Counters
    reset: bool


def windows(run: Run) -> list[Window]:
    """The windows of the measured phases that have a snapshot on both sides, of the models asked for.

    Steps of an ensemble are left out: they would count the same requests again.
    """
    asked = {kind["model"] for kind in run.info.get("kinds", [])}
    measured = {phase["name"] for phase in run.info.get("phases", []) if phase.get("measured")}
    seen: dict[tuple[str, str, str], dict[str, Counters]] = defaultdict(dict)
    for line in run.server:
        known = line.get("phase") in measured and line.get("model") in asked
        if known and isinstance(line.get("stats"), Mapping):
            key = (line["phase"], str(line.get("model")), str(line.get("version")))
            seen[key][str(line.get("at"))] = flat(line["stats"])
    found = []
    for (phase, model, version), sides in seen.items():
        if "before" in sides and "after" in sides:
            before, after = sides["before"], sides["after"]
            change = {name: value - before.get(name, 0) for name, value in after.items()}
            reset = any(value < 0 for value in change.values()) or bool(before.keys() - after.keys())
            found.append(Window(phase, model, version, change, reset))
    return found


def flat(stats: Mapping[str, Any]) -> Counters:
    """One model's statistics as plain counters; numbers may be texts, as protobuf's JSON writes 64 bits."""
    counters = {name: _int(stats.get(name)) for name in ("inference_count", "execution_count")}
    inference = stats.get("inference_stats", {})
    for part in _REQUEST_PARTS:
        told = inference.get(part, {})
        counters[f"{part}.count"], counters[f"{part}.ns"] = _int(told.get("count")), _int(told.get("ns"))
    for batch in stats.get("batch_stats", []):
        counters[f"batch.{_int(batch.get('batch_size'))}"] = _int(batch.get("compute_infer", {}).get("count"))
    return counters


def server_figures(run: Run) -> dict[str, Any]:
    """batch_sizes, mean_batch, queue_ns_mean, compute_ns_mean and counts over all models, and by model.

    None where nothing was measured.  `resets` names the models whose counters went backwards.
    """
    all_windows = windows(run)
    good = [window for window in all_windows if not window.reset]
    models = sorted({window.model for window in good})
    figures = _figures(good)
    if len(models) > 1:
        figures["by_model"] = {model: _figures([w for w in good if w.model == model]) for model in models}
    return figures | {
        "resets": sorted({window.model for window in all_windows if window.reset}),
        "dynamic_batching": _tells(run.info.get("server"), "dynamic_batching"),
    }


def _tells(facts: Any, key: str) -> bool:
    """Whether a model's configuration, anywhere in the server facts, has this section."""
    if isinstance(facts, Mapping):
        return facts.get(key) not in (None, False) or any(_tells(value, key) for value in facts.values())
    return isinstance(facts, list) and any(_tells(value, key) for value in facts)


def _figures(found: list[Window]) -> dict[str, Any]:
    total: Counters = defaultdict(int)
    for window in found:
        for name, value in window.counters.items():
            total[name] += value
    compute_ns = sum(total[f"{part}.ns"] for part in ("compute_input", "compute_infer", "compute_output"))
    sizes = {
        int(name.removeprefix("batch.")): n for name, n in total.items() if name.startswith("batch.") and n
    }
    return {
        "batch_sizes": {str(size): sizes[size] for size in sorted(sizes)} if found else None,
        "mean_batch": _ratio(total["inference_count"], total["execution_count"]),
        "queue_ns_mean": _rounded(_ratio(total["queue.ns"], total["queue.count"])),
        "compute_ns_mean": _rounded(_ratio(compute_ns, total["compute_infer.count"])),
        "inference_count": total["inference_count"] if found else None,
        "execution_count": total["execution_count"] if found else None,
        "request_count": total["success.count"] + total["fail.count"] if found else None,
        "fail_count": total["fail.count"] if found else None,
    }


def _ratio(amount: int, count: int) -> float | None:
    return amount / count if count > 0 else None


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _int(value: Any) -> int:
    try:
        return int(value or 0)
    except (TypeError, ValueError):
        return 0
