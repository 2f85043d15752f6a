"""What the watch saw of the server along the measured phases: use, pending requests, resets between two looks.

Reads watch.jsonl, a line a look (lab.watch_process).  Between two looks the counters' differences are small windows
of their own; one that went back was a reload.  This module must not know who looked.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from loadgen.runread import Run
from loadgen.triton.statistics import merge, window

_PENDING, _FAILED = "nv_inference_pending_request_count", "nv_inference_request_failure"
_GPU = {
    "nv_gpu_utilization": "utilisation",
    "nv_gpu_memory_used_bytes": "memory_bytes",
    "nv_gpu_power_usage": "power_w",
}
_ENERGY = "nv_energy_consumption"
MOST_POINTS = 1000


def watched(run: Run) -> dict[str, Any] | None:
    """Figures of the measured phases; None where nobody watched.  Each is None where it was not told.

    `cpu_cores` is the server process's own use (its children counted), `memory_bytes` the most it had, `pending`
    requests waiting before an execution, `rejected` failures by the server's reason, `gpu` means over the looks,
    `timeline` a point a window between looks: its end in ns of the run, successes/s, mean batch, pending.
    """
    spans = [(p["start_ns"], p.get("end_ns") or p.get("load_end_ns")) for p in run.info.get("phases", [])
             if p.get("measured") and p.get("start_ns") is not None]  # fmt: skip
    rows = run.watch
    if not rows or not spans:
        return None
    inside = [
        row for row in rows if any(a <= row["t_ns"] and (b is None or row["t_ns"] <= b) for a, b in spans)
    ]
    metrics = [row["metrics"] for row in inside if row.get("metrics")]
    pending = [
        sum(_of(page, _PENDING)) for page in metrics if any(_of(page, _PENDING)) or _has(page, _PENDING)
    ]
    used = [(row["t_ns"], row["cpu_ns"]) for row in inside if "cpu_ns" in row]
    told, resets = _timeline(inside)
    return {
        "looks": len(inside),
        "failed_looks": sum("why" in row for row in inside),
        "resets": resets,
        "cpu_cores": round((used[-1][1] - used[0][1]) / (used[-1][0] - used[0][0]), 3)
        if len(used) > 1
        else None,
        "memory_bytes": max((row["memory_bytes"] for row in inside if "memory_bytes" in row), default=None),
        "pending": {"mean": round(sum(pending) / len(pending), 2), "max": max(pending)} if pending else None,
        "rejected": _failures(metrics),
        "gpu": _gpu(metrics),
        "timeline": told[:: -(-len(told) // MOST_POINTS) or 1],
    }


def _timeline(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    points, resets = [], []
    for before, after in pairwise(row for row in rows if row["stats"]):
        old = {(one["model"], one["version"]): one for one in before["stats"]}
        windows = []
        for one in after["stats"]:
            earlier = old.get((one["model"], one["version"]))
            found = window(earlier and earlier["stats"], one["stats"])
            if found.went_back or earlier is None:
                resets.append({"model": one["model"], "t_ns": one["t_ns"]})
            else:
                windows.append(found)
        total, span = merge(windows), after["t_ns"] - before["t_ns"]
        page = after.get("metrics") or {}
        points.append({"t_ns": after["t_ns"], "ok_per_s": round(total.success.count * 1e9 / span, 2),
                       "mean_batch": total.mean_batch and round(total.mean_batch, 3),
                       "queue_ns": total.queue_ns_mean and round(total.queue_ns_mean),
                       "pending": sum(_of(page, _PENDING)) if _has(page, _PENDING) else None})  # fmt: skip
    return points, resets


def _of(page: Mapping[str, float], name: str) -> Iterator[float]:
    return (value for key, value in page.items() if key.partition("{")[0] == name)


def _has(page: Mapping[str, float], name: str) -> bool:
    return any(key.partition("{")[0] == name for key in page)


def _failures(pages: list[dict[str, float]]) -> dict[str, int] | None:
    """Since the first look, by the reason in the label; None where the server tells none."""
    if len(pages) < 2 or not _has(pages[-1], _FAILED):  # noqa: PLR2004 - a difference
        return None
    found: dict[str, int] = {}
    for key, value in pages[-1].items():
        if key.startswith(_FAILED):
            reason = key.partition('reason="')[2].partition('"')[0] or "unknown"
            found[reason] = found.get(reason, 0) + round(value - pages[0].get(key, 0.0))
    return {reason: n for reason, n in found.items() if n}


def _gpu(pages: list[dict[str, float]]) -> dict[str, float] | None:
    """Means over the looks, summed over the GPUs; energy between the first and the last."""
    found = {}
    for name, key in _GPU.items():
        values = [sum(_of(page, name)) for page in pages if _has(page, name)]
        if values:
            found[key] = round(sum(values) / len(values), 3)
    if found and _has(pages[0], _ENERGY):
        found["energy_j"] = round(sum(_of(pages[-1], _ENERGY)) - sum(_of(pages[0], _ENERGY)), 3)
    return found or None
