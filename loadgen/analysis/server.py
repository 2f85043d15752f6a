"""What the server says it did in the measured phases: batch sizes, queue and compute times.

Statistics are cumulative since a model was loaded, so only differences between the snapshots before and
after a phase mean anything; the arithmetic is loadgen.triton.statistics'.  This module must not know how a
snapshot is fetched.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from loadgen.runfile import Run
from loadgen.triton.statistics import ServerWindow, merge, window


def windows(run: Run) -> list[tuple[str, ServerWindow]]:
    """(model, window) of each measured phase that has a snapshot on both sides, of the models asked for.

    Steps of an ensemble are left out: they would count the same requests again.
    """
    asked = {kind["model"] for kind in run.info.get("kinds", [])}
    measured = {phase["name"] for phase in run.info.get("phases", []) if phase.get("measured")}
    seen: dict[tuple[str, str, str], dict[str, Any]] = defaultdict(dict)
    for line in run.server:
        stats = line.get("stats")
        if line.get("phase") in measured and line.get("model") in asked and isinstance(stats, Mapping):
            version = str(stats.get("version", line.get("version")))
            seen[line["phase"], line["model"], version][line.get("at", "")] = stats
    return [
        (model, window(sides["before"], sides["after"]))
        for (_, model, _), sides in seen.items()
        if sides.keys() >= {"before", "after"}
    ]


def server_figures(run: Run) -> dict[str, Any]:
    """batch_sizes, mean_batch, queue_ns_mean, compute_ns_mean and counts over all models, and by model.

    None where nothing was measured.  `resets` names the models whose counters went backwards in a phase;
    that phase is in no figure.
    """
    found = windows(run)
    good = [(model, one) for model, one in found if not one.went_back]
    models = sorted({model for model, _ in good})
    figures = _figures([one for _, one in good])
    if len(models) > 1:
        figures["by_model"] = {
            name: _figures([one for model, one in good if model == name]) for name in models
        }
    return figures | {
        "resets": sorted({model for model, one in found if one.went_back}),
        "dynamic_batching": _tells(run.info.get("server"), "dynamic_batching"),
    }


def _figures(found: list[ServerWindow]) -> dict[str, Any]:
    total = merge(found)
    figures = {
        "batch_sizes": {str(size): n for size, n in total.batch_sizes.items()},
        "mean_batch": total.mean_batch,
        "queue_ns_mean": _rounded(total.queue_ns_mean),
        "compute_ns_mean": _rounded(total.compute_ns_mean),
        "inference_count": total.inferences,
        "execution_count": total.executions,
        "request_count": total.success.count + total.failed.count,
        "fail_count": total.failed.count,
    }
    return figures if found else dict.fromkeys(figures)


def _tells(facts: Any, key: str) -> bool:
    """Whether a model's configuration, anywhere in the server facts, has this section."""
    if isinstance(facts, Mapping):
        return facts.get(key) not in (None, False) or any(_tells(value, key) for value in facts.values())
    return isinstance(facts, list) and any(_tells(value, key) for value in facts)


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)
