"""summary.json: what scripts read of a run.  Its keys are a public contract; they only ever grow.

Pure reading of a run folder: the same folder gives the same summary, on any machine, at any time.
Warm-up phases are listed, and are in no total, no objective and no server figure.  A figure that could
not be measured is None with its n.  This module must not know how a summary is shown.
"""

from pathlib import Path
from typing import Any

import numpy as np

from loadgen.analysis import figures, validity
from loadgen.analysis.frame import Frame, frame_of, measured_phases
from loadgen.analysis.server import server_figures
from loadgen.analysis.slo import judge
from loadgen.runfile import Run, read_run

FORMAT = 1


def summarise(run: Run | Path | str, objectives: list[str] | None = None) -> dict[str, Any]:
    """The summary of a run folder, also of one cut short.

    `objectives` replaces those the profile stated.  Raises LoadgenError when the folder is no run or an
    objective cannot be read.
    """
    run = run if isinstance(run, Run) else read_run(Path(run))
    frame = frame_of(run)
    info = _with_starts(run.info, frame)
    kinds = info.get("kinds", [])
    phases = [_phase(frame.where(frame.phase == i), told, kinds) for i, told in enumerate(info["phases"])]
    measured = measured_phases(info)
    kept = frame.where(np.isin(frame.phase, measured))
    total = _total(kept, [phases[i] for i in measured], kinds)
    server = server_figures(run)
    doubts = validity.doubts(info, frame, phases, total, server)
    wanted = info.get("objectives", []) if objectives is None else objectives
    return {
        "format": FORMAT,
        "valid": not any(doubt.invalidates for doubt in doubts),
        "run": _identity(info),
        "doubts": [
            {"code": d.code, "text": d.text, "hint": d.hint, "invalidates": d.invalidates} for d in doubts
        ],
        "phases": phases,
        "total": total,
        "server": server,
        "slo": judge(wanted, kept, total, server, [kind["name"] for kind in kinds]),
        "client": _client(info, total, measured),
        "first_request_ns": info.get("first_request_ns", {}),
    }


def _with_starts(info: dict[str, Any], frame: Frame) -> dict[str, Any]:
    """A killed run's run.json does not know that its last phase began: its first due time is the start."""
    phases = [dict(phase) for phase in info["phases"]]
    for place, phase in enumerate(phases):
        due = frame.due_ns[frame.phase == place]
        if phase.get("start_ns") is None and due.size:
            phase["start_ns"] = int(due.min())
    return info | {"phases": phases}


def _identity(info: dict[str, Any]) -> dict[str, Any]:
    keys = ("id", "status", "started_at", "target", "seed")
    return {key: info.get(key) for key in keys} | {"profile": info.get("profile", {}).get("name")}


def _phase(frame: Frame, told: dict[str, Any], kinds: list[dict[str, Any]]) -> dict[str, Any]:
    """One phase's figures.  `told` is what run.json says of it."""
    found = figures.counts(frame)
    is_open = told["loop"] == "open"
    planned = told["planned"] if is_open and told.get("planned") is not None else found["sent"]
    span = span_ns(frame, told)
    asked = told.get("duration_ns") if is_open else span
    return {
        "name": told["name"],
        "measured": bool(told["measured"]),
        "loop": told["loop"],
        "users": told.get("users", 0),
        "duration_ns": told.get("duration_ns"),
        "span_ns": span,
        "counts": {"planned": planned, **found},
        "offered_per_s": per_s(planned, asked or span),
        **_achieved(frame, found["ok"], span),
        **figures.durations(frame),
        "by_kind": figures.by_kind(frame, kinds),
        "by_length": figures.by_length(frame),
        "errors": figures.errors(frame),
        "max_in_flight": told.get("max_in_flight"),
        "cap_waits": told.get("cap_waits", 0),
    }


def span_ns(frame: Frame, told: dict[str, Any]) -> int | None:
    """From the phase's start until its load ended or its last success was done, whichever is later.

    Of a run that was killed, run.json may not know when the load ended: then until the last record.
    None for a phase that never started.
    """
    start, end = told.get("start_ns"), told.get("load_end_ns")
    if start is None:
        return None
    last_ok = int(frame.done_ns[frame.ok].max(initial=start))
    if end is None:
        end = int(max(frame.due_ns.max(initial=start), frame.done_ns.max(initial=start)))
    span = max(end, last_ok) - start
    return span if span > 0 else None


def per_s(count: float | None, span: int | None) -> float | None:
    return None if count is None or not span else count * 1e9 / span


def _achieved(frame: Frame, ok: int, span: int | None) -> dict[str, float | None]:
    items = int(frame.items[frame.ok].sum())
    return {"achieved_per_s": per_s(ok, span), "items_per_s": per_s(items, span)}


def _total(frame: Frame, phases: list[dict[str, Any]], kinds: list[dict[str, Any]]) -> dict[str, Any]:
    """Over the measured phases: latencies pooled, counts and spans summed, rates over the summed spans."""
    found = figures.counts(frame)
    span = sum(phase["span_ns"] or 0 for phase in phases) or None
    asked = [
        (phase["offered_per_s"], phase["duration_ns"] or phase["span_ns"])
        for phase in phases
        if phase["offered_per_s"] is not None
    ]
    offered = sum(rate * ns for rate, ns in asked) / sum(ns for _, ns in asked) if asked else None
    return {
        "span_ns": span,
        "counts": {"planned": sum(phase["counts"]["planned"] for phase in phases), **found},
        "offered_per_s": offered,
        **_achieved(frame, found["ok"], span),
        **figures.durations(frame),
        "by_kind": figures.by_kind(frame, kinds),
        "by_length": figures.by_length(frame),
        "errors": figures.errors(frame),
    }


def _client(info: dict[str, Any], total: dict[str, Any], measured: list[int]) -> dict[str, Any]:
    """What the client says of itself in the measured phases.

    Loop lags of several phases cannot be pooled from their percentiles: the worst phase's are given.
    """
    phases = [info["phases"][i] for i in measured if info["phases"][i].get("end_ns") is not None]
    lags = [phase["loop_lag_ns"] for phase in phases if (phase.get("loop_lag_ns") or {}).get("n")]
    cpu = [phase["cpu_ns"] for phase in phases if phase.get("cpu_ns") is not None]
    sent = total["counts"]["sent"]
    worst = {key: max((lag[key] for lag in lags), default=None) for key in ("p50", "p99", "max")}
    return {
        "cpu_ns_per_request": round(sum(cpu) / sent) if cpu and sent else None,
        "max_in_flight": max((phase["max_in_flight"] for phase in phases if phase.get("max_in_flight") is not None),
                             default=None),
        "loop_lag_ns": {"n": sum(lag["n"] for lag in lags), **worst},
        "workers": info.get("client", {}).get("workers", 1),
        "cap": info.get("cap", {}),
        "proxies_ignored": info.get("client", {}).get("proxies_ignored", []),
    }  # fmt: skip
