"""run.json as the analysis reads it: what a killed run did not get to write down is filled in.

A phase's results are written when it has drained.  Of one that was cut short the heartbeats tell how far it
came, how full it was, and how many requests were on their way of whose end nothing is known.  Without
heartbeats (an older run) the records tell how far it came, and what is unknown stays unknown.  A worker that
was lost takes the ends of its requests along while the run goes on to its end.  This module must not know what
is computed from it.
"""

from typing import Any

import numpy as np

from loadgen.analysis.frame import Frame

OF_THE_ENGINE = ("max_in_flight", "cap_waits", "conn_waits", "resent", "reconnects", "cpu_ns", "cpu_max_ns")


def completed(info: dict[str, Any], beats: list[dict[str, Any]], frame: Frame) -> dict[str, Any]:
    """`info` with every phase that began having start_ns and load_end_ns.

    A phase that was cut short gets `seen_ns`, the last sign of life, and `unknown`, the requests of whose end
    nothing is known (None: not even how many).  Figures that only a whole phase has are None there.  One in
    which a worker was lost gets `unknown` and `lost_on_the_way`, both what was on its way in that worker.
    """
    senders = (info.get("client") or {}).get("senders") or []
    lost = {worker for worker, facts in enumerate(senders) if facts.get("lost")}
    phases = []
    for place, told in enumerate(info["phases"]):
        rows = frame.of_phase(place)
        if told.get("load_end_ns") is None:
            phases.append(_cut(told, [beat for beat in beats if beat.get("phase") == place], rows))
        else:
            gone = [b for b in beats if b.get("phase") == place and b.get("worker") in lost]
            phases.append(_older(told, rows) | _on_the_way(gone))
    return info | {"phases": phases}


def _cut(told: dict[str, Any], beats: list[dict[str, Any]], rows: Frame) -> dict[str, Any]:
    unmeasured = dict.fromkeys(OF_THE_ENGINE) | {"loop_lag_ns": None}
    starts = [beat["start_ns"] for beat in beats] + ([int(rows.due_ns.min())] if len(rows) else [])
    if told.get("start_ns") is None and not starts:
        return told | unmeasured
    start = told["start_ns"] if told.get("start_ns") is not None else starts[0]
    seen = max([start, *(beat["t_ns"] for beat in beats)])
    if len(rows):
        seen = max(seen, int(rows.due_ns.max()), int(rows.done_ns.max()))
    planned_end = start + told["duration_ns"] if told.get("duration_ns") else seen
    found = told | unmeasured | {
        "start_ns": start, "load_end_ns": min(planned_end, seen), "seen_ns": seen, "unknown": None,
    }  # fmt: skip
    if beats:
        known = int((rows.due_ns <= max(beat["t_ns"] for beat in beats)).sum())
        asked = sum(max(b["due"], b["ended"] + b["in_flight"] + b["waiting"]) for b in beats)
        found["unknown"] = max(0, asked - known)
        for key in ("max_in_flight", "cap_waits", "conn_waits"):
            told_of = [beat[key] for beat in beats if beat.get(key) is not None]
            found[key] = sum(told_of) if told_of else None
    return found


def _on_the_way(beats: list[dict[str, Any]]) -> dict[str, int]:
    """Of lost workers.  Their last heartbeats are at most half a second older than their ends."""
    n = sum(beat["in_flight"] + beat["waiting"] for beat in beats)
    return {"unknown": n, "lost_on_the_way": n} if n else {}


def _older(told: dict[str, Any], rows: Frame) -> dict[str, Any]:
    """Runs that do not tell a closed loop's limit called its drain a part of the load."""
    if "requests" in told or told["loop"] != "closed" or told.get("duration_ns") or not len(rows):
        return dict(told)
    last = int(np.max(rows.due_ns))
    return told | {"load_end_ns": min(told["load_end_ns"], max(last, told.get("start_ns") or last))}
