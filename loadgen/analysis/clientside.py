"""The client judges itself: late sends, waits at the cap, a core or an event loop that was full.

Latency from due stays true whatever happens here; what these doubts say is whose time it was.  This
module must not know the server's figures.
"""

from typing import Any

from loadgen.analysis.frame import Frame
from loadgen.analysis.percentiles import quantile
from loadgen.records import Doubt
from loadgen.units import show_ns

LATE_NS = 10_000_000
LATE_SHARE = 0.1  # of the median service time
LATE_LEAST_NS = 100_000  # below it lateness is the grain of timers and of one write
FULL_CORE = 0.85
BEHIND = 0.95


def doubts(info: dict[str, Any], measured: list[tuple[dict[str, Any], Frame]]) -> list[Doubt]:
    """`measured`: what run.json says of each measured phase that started, and its rows."""
    workers = max(1, info.get("client", {}).get("workers") or 1)
    found = []
    for told, rows in measured:
        sent = rows.where(rows.sent)
        if len(sent):
            found += _cap_or_late(told, sent, info.get("cap", {}).get("in_flight"))
            found += _client_bound(told, rows, workers)
    return found


def _cap_or_late(told: dict[str, Any], sent: Frame, cap: int | None) -> list[Doubt]:
    if told["loop"] != "open":
        return []
    lag = quantile(sent.lag_ns, 0.99) or 0
    waits = told.get("cap_waits") or 0
    name = told["name"]
    if waits:
        asked = max(told.get("planned") or 0, len(sent))
        limit = f" of {cap}" if cap else ""
        text = (
            f"phase {name}: {waits} of {asked} arrivals ({waits / asked:.0%}) waited at the cap{limit} requests "
            f"in flight; P99 of lag {show_ns(lag)}"
        )
        hint = "latency counts that wait, service does not; raise cap.in_flight if it is not a part of the question"
        return [Doubt("cap_reached", text, hint)]
    service = quantile(sent.service_ns, 0.5) or 0
    if lag > LATE_NS or lag > max(LATE_SHARE * service, LATE_LEAST_NS):
        text = f"phase {name}: requests were sent late: P99 of lag {show_ns(lag)}, median service {show_ns(service)}"
        hint = (
            "the client's own delay is in latency, not in service: give it a core of its own, or ask for less"
        )
        return [Doubt("late_sends", text, hint)]
    return []


def _client_bound(told: dict[str, Any], rows: Frame, workers: int) -> list[Doubt]:
    reasons = []
    cpu_ns = told.get("cpu_max_ns", told.get("cpu_ns"))
    if told.get("end_ns") is not None and cpu_ns is not None:
        wall = max(1, told["end_ns"] - told["start_ns"])
        busy = cpu_ns / wall
        if busy > FULL_CORE:
            reasons.append(f"it used {busy:.0%} of a core" + (" (the busiest worker)" if workers > 1 else ""))
    loop = (told.get("loop_lag_ns") or {}).get("p99")
    median = quantile(rows.latency_ns[rows.ok], 0.5) or 0
    if loop is not None and loop > max(LATE_NS, LATE_SHARE * median):
        reasons.append(f"P99 of its event loop's lag was {show_ns(loop)}")
    end = told.get("load_end_ns")
    if told["loop"] == "open" and end is not None and not told.get("cap_waits") and not rows.dropped.any():
        due = int((rows.due_ns <= end).sum())
        sent = int((rows.sent & (rows.sent_ns <= end)).sum())
        gone = int((rows.tried & ~rows.sent).sum())  # no connection: not for want of speed
        if due and sent + gone < BEHIND * due:
            reasons.append(f"of {due} requests due it had sent {sent} when the load ended")
    if not reasons:
        return []
    text = f"phase {told['name']}: the client was the limit: {'; '.join(reasons)}"
    hint = "ask for less, use more workers or another machine; the server may be able to do more"
    return [Doubt("client_bound", text, hint, invalidates=True)]
