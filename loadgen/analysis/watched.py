"""What the watch saw of the server along the measured phases: use, pending requests, resets between two looks.

Reads watch.jsonl, a line a look (lab.watch_process).  What counts on is added up over pairs of looks within one
phase, so nothing that lies between two phases is in it; what a counter lost to a reload is not taken for a negative
count.  The edges, from a phase's begin to its first look and from its last to its end, are not seen.
An ensemble's requests are counted, and have no batches or queue.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from loadgen.analysis.frame import Frame
from loadgen.runread import Run
from loadgen.triton.facts import is_ensemble
from loadgen.triton.statistics import merge, of_ensemble, window

_PENDING, _FAILED = "nv_inference_pending_request_count", "nv_inference_request_failure"
_USED, _MEMORY, _POWER = "nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_gpu_power_usage"
_ENERGY = "nv_energy_consumption"
MOST_POINTS = 1000

Row = dict[str, Any]
Pair = tuple[Row, Row]


def metrics_page(run: Run) -> dict[str, Any] | None:
    """The metrics page that was to be read along the measured phases: how often it was looked at, how often in vain and
    why (the first reason, or that of the look before the load).  None where there was none to read.
    """
    told = run.info.get("metrics")
    if not told:
        return None
    spans = _spans(run)
    tried = [row for row in run.watch if "metrics" in row or "no_metrics" in row]
    looks = [
        row for row in tried if any(a <= row["t_ns"] and (b is None or row["t_ns"] <= b) for a, b in spans)
    ]
    vain = [row["no_metrics"] for row in looks if "no_metrics" in row]
    return {
        "url": told["url"],
        "looks": len(looks),
        "failed": len(vain),
        "why": next(iter(vain), told["why"]),
    }


def _spans(run: Run) -> list[tuple[int, int | None]]:
    """Begin and end of the measured phases that began."""
    return [(p["start_ns"], p.get("end_ns") or p.get("load_end_ns")) for p in run.info.get("phases", [])
            if p.get("measured") and p.get("start_ns") is not None]  # fmt: skip


def watched(run: Run, frame: Frame) -> dict[str, Any] | None:
    """Figures of the measured phases; None where nobody watched.  Each is None where it was not told.

    `cpu_cores` is the server process's own use (its children counted), `memory_bytes` the most it had, `pending`
    requests waiting before an execution, `rejected` failures by the server's reason, `gpu` as in `_gpu`,
    `timeline` a point a window between looks: its end in ns of the run, successes/s, mean batch, pending.
    """
    spans, rows = _spans(run), run.watch
    if not rows or not spans:
        return None
    phases = [[row for row in rows if a <= row["t_ns"] and (b is None or row["t_ns"] <= b)] for a, b in spans]
    inside = [row for looks in phases for row in looks]
    pairs = [pair for looks in phases for pair in pairwise(looks)]
    pages = [row["metrics"] for row in inside if row.get("metrics")]
    pending = [sum(_of(page, _PENDING)) for page in pages if _has(page, _PENDING)]
    models = (run.info.get("server") or {}).get("models") or {}
    ensembles = {name for name, facts in models.items() if is_ensemble((facts or {}).get("config"))}
    told, resets = _timeline(phases, ensembles)
    return {
        "looks": len(inside),
        "failed_looks": sum("why" in row or "no_metrics" in row for row in inside),
        "resets": resets,
        "cpu_cores": _cores(pairs),
        "memory_bytes": max((row["memory_bytes"] for row in inside if "memory_bytes" in row), default=None),
        "pending": {"mean": round(sum(pending) / len(pending), 2), "max": max(pending)} if pending else None,
        "rejected": _failures(phases),
        "gpu": _gpu(pages, phases, frame),
        "timeline": told[:: -(-len(told) // MOST_POINTS) or 1],
    }


def _cores(pairs: list[Pair]) -> float | None:
    """CPU time over time.  A pair in which it fell is left out: a child ended, and took its time along."""
    used = [
        (b["cpu_ns"] - a["cpu_ns"], b["t_ns"] - a["t_ns"])
        for a, b in pairs
        if "cpu_ns" in a and "cpu_ns" in b and b["cpu_ns"] >= a["cpu_ns"]
    ]
    span = sum(ns for _, ns in used)
    return round(sum(ns for ns, _ in used) / span, 3) if span else None


def _timeline(
    phases: list[list[Row]], ensembles: Collection[str] = ()
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Each model is held against its own last look: one that could not be read once was not loaded anew."""
    points: list[dict[str, Any]] = []
    resets: list[dict[str, Any]] = []
    seen: dict[tuple[str, str], Row] = {}
    for looks in phases:
        begun: set[tuple[str, str]] = set()  # in this phase
        for row in looks:
            windows, missing = [], False
            for one in row["stats"]:
                key = one["model"], one["version"]
                earlier = seen.get(key)
                found = window(earlier and earlier["stats"], one["stats"])
                if found.went_back or (earlier is None and any(model == key[0] for model, _ in seen)):
                    resets.append({"model": one["model"], "t_ns": one["t_ns"]})
                    missing = True
                elif earlier is not None and key in begun:
                    told = of_ensemble(found) if key[0] in ensembles else found
                    windows.append((one["t_ns"] - earlier["t_ns"], told))
                seen[key] = one
                begun.add(key)
            if windows or missing:
                points.append(_point(row, [] if missing else windows))
    return points, resets


def _point(row: Row, windows: list[tuple[int, Any]]) -> dict[str, Any]:
    """Of a look; rates are None where a model was loaded anew since the last one."""
    total, page = merge(found for _, found in windows), row.get("metrics") or {}
    rates = [found.success.count * 1e9 / span for span, found in windows if span > 0]
    return {"t_ns": row["t_ns"], "ok_per_s": round(sum(rates), 2) if rates else None,
            "mean_batch": total.mean_batch and round(total.mean_batch, 3),
            "queue_ns": total.queue_ns_mean and round(total.queue_ns_mean),
            "pending": sum(_of(page, _PENDING)) if _has(page, _PENDING) else None}  # fmt: skip


def _of(page: Mapping[str, float], name: str) -> Iterator[float]:
    return (value for key, value in page.items() if key.partition("{")[0] == name)


def _has(page: Mapping[str, float], name: str) -> bool:
    return any(key.partition("{")[0] == name for key in page)


def _pages(phases: list[list[Row]], has: Callable[[Row], bool]) -> Iterator[Pair]:
    """Pairs of successive looks with a metrics page that tells, within a phase."""
    for looks in phases:
        yield from pairwise(row for row in looks if has(row.get("metrics") or {}))


def _failures(phases: list[list[Row]]) -> dict[str, int] | None:
    """By the reason in the label; None where the server tells none.  A counter that fell began anew at 0."""
    pairs = list(_pages(phases, lambda page: _has(page, _FAILED)))
    if not pairs:
        return None
    found: dict[str, int] = {}
    for before, after in pairs:
        for key, value in after["metrics"].items():
            if key.partition("{")[0] == _FAILED:
                reason = key.partition('reason="')[2].partition('"')[0] or "unknown"
                old = before["metrics"].get(key, 0.0)
                found[reason] = found.get(reason, 0) + round(value - old if value >= old else value)
    return {reason: n for reason, n in found.items() if n}


def _gpu(pages: list[Mapping[str, float]], phases: list[list[Row]], frame: Frame) -> dict[str, Any] | None:
    """Of all GPUs that are told of, whoever uses them: `utilisation` their mean, memory and power their sums, means
    over the looks; `energy_j` between looks, `energy_j_per_request` over the successes that ended there.
    """
    found: dict[str, Any] = {}
    for name, key in ((_USED, "utilisation"), (_MEMORY, "memory_bytes"), (_POWER, "power_w")):
        values = [list(_of(page, name)) for page in pages if _has(page, name)]
        if values:
            each = [sum(one) / len(one) if name == _USED else sum(one) for one in values]
            found[key] = round(sum(each) / len(each), 3)
    joules, done = 0.0, 0
    ends = np.sort(frame.done_ns[frame.ok])
    for before, after in _pages(phases, lambda page: _has(page, _ENERGY)):
        old = {key: value for key, value in before["metrics"].items() if key.partition("{")[0] == _ENERGY}
        rises = [after["metrics"][key] - value for key, value in old.items() if key in after["metrics"]]
        if len(rises) < len(old) or min(rises) < 0:
            continue  # a GPU went out of sight, or its driver was loaded anew
        joules += sum(rises)
        done += int(np.diff(np.searchsorted(ends, (before["t_ns"], after["t_ns"]), side="right"))[0])
        found["energy_j"] = round(joules, 3)
    if done:
        found["energy_j_per_request"] = round(joules / done, 6)
    return found or None
