"""summary.json: what scripts read of a run.  Its keys are a public contract: more may come at any time, and
CHANGELOG.md names each that is renamed or taken away.

Pure reading of a run folder: the same folder gives the same summary, on any machine, at any time.
Warm-up phases are listed, and are in no total, no objective and no server figure.  A figure that could
not be measured is None with its n.
"""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.analysis import figures, validity
from loadgen.analysis.clientside import client_figures
from loadgen.analysis.frame import Frame, measured_phases
from loadgen.analysis.intervals import ALPHA
from loadgen.analysis.rates import GRAIN_NS, Window, per_s
from loadgen.analysis.slo import Measured, SloRow, interval_rows, judge, measured_of
from loadgen.analysis.stalls import listed, stall_doubts, stalls
from loadgen.analysis.steadiness import steady_of
from loadgen.analysis.streaming import streaming
from loadgen.runread import Run
from loadgen.triton.facts import server_kind

FORMAT = 1
BURSTINESS = ("gap_cv", "dispersion", "bins", "largest_burst")  # of planned arrivals (loadgen.planstory)
POOLED = ("latency_ns", "service_ns", "lag_ns", "by_kind", "by_length", "errors")


def summarise(
    run: Run | Path | str,
    objectives: list[str] | None = None,
    frame: Frame | None = None,
    alpha: float = ALPHA,
) -> dict[str, Any]:
    """The summary of a run folder, also of one cut short.

    `objectives` replaces those the profile stated; `frame` holds the run's rows when they were read already; `alpha`
    is the share of intervals that may miss the truth.
    Raises LoadgenError when the folder is no run or an objective cannot be read.
    """
    seen = measured_of(run, objectives, frame, alpha)
    return summary_of(seen, judge(seen.objectives, seen))


def summary_of(seen: Measured, rows: list[SloRow]) -> dict[str, Any]:
    """The summary of a run that was read, with the objectives' rows."""
    info, frame, spans, told = seen.info, seen.frame, seen.windows, seen.counted
    kinds, parts = info.get("kinds", []), [frame.of_phase(i) for i in range(len(info["phases"]))]
    asked = [_asked(*each) for each in zip(parts, info["phases"], spans, strict=True)]
    phases = [_phase(*each, kinds) for each in zip(parts, info["phases"], spans, asked, strict=True)]
    measured = measured_phases(info)
    kept = frame.of_phases(measured)
    total = _total(kept, [parts[i] for i in measured], [spans[i] for i in measured],
                   [phases[i] for i in measured], [asked[i] for i in measured], kinds)  # fmt: skip
    share = (
        spans[measured[0]].share
        if len(measured) == 1
        else np.concatenate([np.zeros(0, np.bool_), *(spans[i].share for i in measured)])
    )  # rows lie in order of their phase
    if frame.columns.streams is not None:
        for figures_of, part, span in zip(phases, parts, spans, strict=True):
            figures_of["streaming"] = streaming(part, span.share, span.span_ns, kinds, seen.bounds)
        total["streaming"] = streaming(kept, share, total["span_ns"], kinds, seen.bounds)
    server = seen.server
    silent = [
        one
        for i in measured
        for one in stalls(
            info["phases"][i]["name"], parts[i], [c for c in told if c.phase == info["phases"][i]["name"]]
        )
    ]
    doubts = validity.doubts(info, frame, phases, total, server) + stall_doubts(
        silent, server_kind(info.get("server"))
    )
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
        "slo": [row.json() for row in rows],
        "intervals": [asdict(row) for row in interval_rows(seen)],
        "client": client_figures(info, total),
        "first_request_ns": info.get("first_request_ns", {}),
        **({"first_each_ns": each} if (each := info.get("first_each_ns")) else {}),
        "cold_start": info.get("cold_start"),
        **({"stalls": listed(silent)} if silent else {}),
        **({"inputs": info["inputs"]} if info.get("inputs") else {}),
        **({"network": info["network"]} if info.get("network") else {}),
    }


def _identity(info: dict[str, Any]) -> dict[str, Any]:
    keys = ("id", "status", "started_at", "target", "seed")
    return {key: info.get(key) for key in keys} | {"profile": info.get("profile", {}).get("name")}


Asked = tuple[float, int | None]


def _asked(frame: Frame, told: dict[str, Any], span: Window) -> Asked:
    """How many requests a phase asked for, and over how many ns (None: it never began).

    Open loop: what was planned over its duration, or what was due until the load was cut short, over that.
    """
    if told["loop"] != "open":
        return span.asked, span.span_ns
    start, end, duration = told.get("start_ns"), told.get("load_end_ns"), told.get("duration_ns")
    if start is None or end is None:
        return 0, None
    if duration is None or end - start < duration - GRAIN_NS or told.get("planned") is None:
        due = int(np.count_nonzero(frame.due_ns < end)) + (told.get("unknown") or 0)
        return due, (end - start) or None
    return told["planned"], duration


def _phase(
    frame: Frame, told: dict[str, Any], span: Window, asked: Asked, kinds: list[dict[str, Any]]
) -> dict[str, Any]:
    """One phase's figures.  `told` is what run.json says of it."""
    found = figures.counts(frame)
    is_open = told["loop"] == "open"
    planned = told.get("planned") if is_open else None if told.get("duration_ns") else told.get("requests")
    planned = found["tried"] + found["dropped"] if planned is None else planned
    unknown = {"unknown": told["unknown"]} if told.get("unknown") else {}
    steady = steady_of(told, frame) if told["measured"] else None
    arrivals = told.get("arrivals")  # of an open loop; older runs do not tell
    return {
        "name": told["name"],
        "measured": bool(told["measured"]),
        "loop": told["loop"],
        "users": told.get("users", 0),
        "duration_ns": told.get("duration_ns"),
        "span_ns": span.span_ns,
        "load_ns": _load_ns(told),
        "drain_ns": _drain_ns(told),
        "steady": steady and asdict(steady),
        "plan": arrivals and {key: arrivals.get(key) for key in BURSTINESS},
        "counts": {"planned": planned, **found, **unknown, **_never_sent(planned, found, told)},
        "offered_per_s": per_s(*asked),
        "achieved_per_s": per_s(float(span.share.sum()), span.span_ns),
        "achieved_with_drain_per_s": _with_drain(found["ok"], _load_ns(told), _drain_ns(told)),
        "items_per_s": per_s(float((span.share * frame.items).sum()), span.span_ns),
        **figures.details(frame, kinds),
        **{
            key: told.get(key) for key in ("max_in_flight", "cap_waits", "conn_waits", "resent", "reconnects")
        },
    }


def _never_sent(planned: int, found: dict[str, int], told: dict[str, Any]) -> dict[str, int]:
    """What was planned and neither sent, dropped nor on its way: of a run cut short, or of a worker lost."""
    n = planned - found["tried"] - found["dropped"] - (told.get("unknown") or 0)
    return {"never_sent": n} if n > 0 else {}


def _drain_ns(told: dict[str, Any]) -> int | None:
    """From the end of the load until the last request had ended; None where nobody saw it."""
    if told.get("end_ns") is None or told.get("load_end_ns") is None:
        return None
    return max(0, int(told["end_ns"]) - int(told["load_end_ns"]))


def _load_ns(told: dict[str, Any]) -> int | None:
    if told.get("start_ns") is None or told.get("load_end_ns") is None:
        return None
    return int(told["load_end_ns"]) - int(told["start_ns"])


def _with_drain(ok: int, load_ns: int | None, drain_ns: int | None) -> float | None:
    """All successes over the load and its drain; None where nobody saw the drain."""
    return None if load_ns is None or drain_ns is None else per_s(ok, load_ns + drain_ns)


def _sum(values: Iterable[int | None]) -> int | None:
    """Of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _total(
    frame: Frame,
    parts: list[Frame],
    spans: list[Window],
    phases: list[dict[str, Any]],
    asked: list[Asked],
    kinds: list[dict[str, Any]],
) -> dict[str, Any]:
    """Over the measured phases: latencies pooled, counts and spans summed, rates over the summed spans."""
    span = sum(one.span_ns or 0 for one in spans) or None
    begun = [(n, ns) for n, ns in asked if ns]  # what never began was never asked
    offered = per_s(sum(n for n, _ in begun), sum(ns for _, ns in begun))
    counted = [phase["counts"] for phase in phases]
    at_the_end = {key: sum(counts.get(key, 0) for counts in counted) for key in ("unknown", "never_sent")}
    only = len(parts) == 1  # then pooling is repeating
    details = {key: phases[0][key] for key in POOLED} if only else figures.details(frame, kinds)
    loads, drains = (_sum(phase[key] for phase in phases) for key in ("load_ns", "drain_ns"))
    with_drain = [phase for phase in phases if phase["drain_ns"] is not None]
    of_these = [_sum(phase[key] for phase in with_drain) for key in ("load_ns", "drain_ns")]
    ok = sum(phase["counts"]["ok"] for phase in with_drain)
    items = sum(float((one.share * part.items).sum()) for one, part in zip(spans, parts, strict=True))
    return {
        "span_ns": span,
        "load_ns": loads,
        "drain_ns": drains,
        "counts": {
            "planned": sum(counts["planned"] for counts in counted),
            **figures.counts(frame),
            **{key: n for key, n in at_the_end.items() if n},
        },
        "offered_per_s": offered,
        "achieved_per_s": per_s(sum(float(one.share.sum()) for one in spans), span),
        "achieved_with_drain_per_s": _with_drain(ok, *of_these),
        "items_per_s": per_s(items, span),
        **details,
    }
