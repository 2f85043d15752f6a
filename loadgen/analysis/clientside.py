"""The client judges itself: late sends, waits at the cap or for a connection, a full core or event loop.

Latency from due stays true whatever happens here; what these doubts say is whose time it was, and up to which
rate this client's figures are to be believed.  This module must not know the server's figures.
"""

from typing import Any

import numpy as np

from loadgen.analysis.frame import Frame, measured_phases
from loadgen.analysis.percentiles import quantile
from loadgen.records import Doubt, Outcome
from loadgen.target import parse_target
from loadgen.units import show_ns

LATE_NS = 10_000_000
LATE_SHARE = 0.1  # of the median service time
LATE_LEAST_NS = 100_000  # below it lateness is the grain of timers and of one write
FULL_CORE = 0.85
LEAST_WALL_NS, LEAST_PROBES = 10**9, 100  # in a shorter look one hiccup of the machine is everything
BEHIND = 0.95
RESENT = 0.01
RATE_WINDOWS = 20
BUSY = 0.5  # of the machine's cores: from here on a sender waits for one


def client_figures(info: dict[str, Any], total: dict[str, Any]) -> dict[str, Any]:
    """What the client says of itself in the measured phases.

    Loop lags of several phases cannot be pooled from their percentiles: the worst phase's are given.
    `cpu_ns_per_request` holds the client's fixed work too, which is most of it at a few requests a second;
    `cpu_share` is cores in use while the load lasted.
    """
    phases = [
        info["phases"][i] for i in measured_phases(info) if info["phases"][i].get("start_ns") is not None
    ]
    lags = [phase["loop_lag_ns"] for phase in phases if (phase.get("loop_lag_ns") or {}).get("n")]
    cpu = [(phase["cpu_ns"], _load_ns(phase)) for phase in phases if phase.get("cpu_ns") is not None]
    used, load = sum(ns for ns, _ in cpu), sum(ns for _, ns in cpu)
    sent = total["counts"]["sent"]
    worst = {key: max((lag[key] for lag in lags), default=None) for key in ("p50", "p99", "max")}
    full = [phase["max_in_flight"] for phase in phases if phase.get("max_in_flight") is not None]
    return {
        "cpu_ns_per_request": round(used / sent) if cpu and sent else None,
        "cpu_share": used / load if load else None,
        "max_in_flight": max(full, default=None),
        "loop_lag_ns": {"n": sum(lag["n"] for lag in lags), **worst},
        **{key: _sum(phases, key) for key in ("resent", "reconnects", "conn_waits")},
        "workers": info.get("client", {}).get("workers", 1),
        "cap": info.get("cap", {}),
        "proxies_ignored": info.get("client", {}).get("proxies_ignored", []),
    }


def _sum(phases: list[dict[str, Any]], key: str) -> int | None:
    told = [phase[key] for phase in phases if phase.get(key) is not None]
    return sum(told) if told else None


def _load_ns(told: dict[str, Any]) -> int:
    start, end = int(told["start_ns"]), told.get("load_end_ns")
    return 0 if end is None else max(0, int(end) - start)


def doubts(info: dict[str, Any], measured: list[tuple[dict[str, Any], Frame]]) -> list[Doubt]:
    """`measured`: what run.json says of each measured phase that started, and its rows."""
    workers = max(1, info.get("client", {}).get("workers") or 1)
    found = _resent(measured)
    for told, rows in measured:
        sent = rows.where(rows.sent)
        if len(sent):
            refused = np.isin(rows.outcome, (Outcome.CONNECT, Outcome.CLIENT)) & ~rows.sent
            cap = info.get("cap", {}).get("in_flight")
            for_realtime = _for_realtime(info, told)
            found += _late(told, sent, cap, int(np.count_nonzero(refused)), for_realtime)
            bound = _client_bound(told, rows, workers, for_realtime)
            found += bound or _client_time(told, rows, for_realtime)
    return found


def _for_realtime(info: dict[str, Any], told: dict[str, Any]) -> str | None:
    """The advice to send in real time, where client and server share cores that were busy and it was not asked for."""
    busy = told.get("machine_busy")
    if busy is None or busy < BUSY or info.get("client", {}).get("realtime"):
        return None
    if not parse_target(info["target"]).is_local:
        return None
    return (
        f"the server shares this machine with the client, and its cores were {busy:.0%} busy: add --realtime, so that no "
        "other process delays the client"
    )


def _late(
    told: dict[str, Any], sent: Frame, cap: int | None, refused: int, for_realtime: str | None
) -> list[Doubt]:
    """Waits are counted where they arise; only lateness that they do not explain is the client's own.

    It is held against the service of successes: quick refusals would make any lag look long, slow timeouts none.
    `refused`: requests that waited for a connection and got none; they were never sent, and are errors.
    """
    if told["loop"] != "open":
        return []
    lags = sent.lag_ns
    lag, service = quantile(lags, 0.99) or 0, quantile(sent.service_ns[sent.ok], 0.5)
    at_cap = told.get("cap_waits") or 0
    for_conn = min(max((told.get("conn_waits") or 0) - refused, 0), len(sent))
    found, name = [], told["name"]
    if at_cap:
        asked = max(told.get("planned") or 0, len(sent))
        limit = f" of {cap}" if cap else ""
        text = (
            f"phase {name}: {at_cap} of {asked} arrivals ({at_cap / asked:.0%}) waited at the cap{limit} requests "
            f"in flight; P99 of lag {show_ns(lag)}"
        )
        hint = "latency counts that wait, service does not; raise cap.in_flight if it is not a part of the question"
        found.append(Doubt("cap_reached", text, hint))
    if for_conn and _is_late(lag, service):
        text = (
            f"phase {name}: {for_conn} of {len(sent)} requests waited for a connection to be opened; "
            f"P99 of lag {show_ns(lag)}"
        )
        hint = "connections took that long to be accepted, to shake hands or to be free: latency counts it, service does not"
        found.append(Doubt("connection_waits", text, hint))
    waited = at_cap + for_conn
    rest = (quantile(np.sort(lags)[: max(0, lags.size - waited)], 0.99) or 0) if waited else lag
    if _is_late(rest, service):
        which = " of those that waited for nothing" if waited else ""
        text = f"phase {name}: requests were sent late: P99 of lag{which} {show_ns(rest)}" + (
            f", median service of successes {show_ns(service)}" if service is not None else ""
        )
        own = for_realtime or "give it a core of its own, or use --workers"
        found.append(
            Doubt("late_sends", text, f"the client's own delay is in latency, not in service: {own}")
        )
    return found


def _is_late(lag: int, service: int | None) -> bool:
    """`service`: the median of successes; None: there were none to hold it against."""
    return lag > LATE_NS or (service is not None and lag > max(LATE_SHARE * service, LATE_LEAST_NS))


def _client_bound(told: dict[str, Any], rows: Frame, workers: int, for_realtime: str | None) -> list[Doubt]:
    reasons, wall = [], _load_ns(told)
    cpu_ns = told.get("cpu_max_ns", told.get("cpu_ns"))
    busy = cpu_ns / wall if cpu_ns is not None and wall else 0.0
    if busy > FULL_CORE and wall >= LEAST_WALL_NS:
        reasons.append(f"it used {busy:.0%} of a core" + (" (the busiest worker)" if workers > 1 else ""))
    lag = told.get("loop_lag_ns") or {}
    loop = lag.get("p99") if (lag.get("n") or 0) >= LEAST_PROBES else None
    median = quantile(rows.latency_ns[rows.ok], 0.5) or 0
    if loop is not None and loop > max(LATE_NS, LATE_SHARE * median):
        reasons.append(f"P99 of its event loop's lag was {show_ns(loop)}")
    dropped = rows.where(rows.dropped)
    late = (
        quantile(dropped.latency_ns, 0.99) or 0
    )  # dropped when it was looked at: due to done is our lateness
    if late > max(LATE_NS, LATE_SHARE * median):
        reasons.append(f"P99 of how late it looked at arrivals that it dropped was {show_ns(late)}")
    end = told.get("load_end_ns")
    if told["loop"] == "open" and end is not None and not told.get("cap_waits") and not rows.dropped.any():
        due = int(np.count_nonzero(rows.due_ns <= end))
        sent = int(np.count_nonzero(rows.sent & (rows.sent_ns <= end)))
        # no connection, or none yet: not for want of speed
        gone = int(np.count_nonzero(rows.tried & ~rows.sent)) + (told.get("conn_waits") or 0)
        if due and sent + gone < BEHIND * due:
            reasons.append(f"of {due} requests due it had sent {sent} when the load ended")
    if not reasons:
        return []
    text = (
        f"phase {told['name']}: the client was the limit: {'; '.join(reasons)}; {_believed(told, rows, busy)}"
    )
    hint = "ask for less, use more workers or another machine; the server may be able to do more"
    if for_realtime and busy <= FULL_CORE:  # it waited for a core rather than filled one
        hint = f"{for_realtime}; or ask for less"
    return [Doubt("client_bound", text, hint, invalidates=True)]


def _believed(told: dict[str, Any], rows: Frame, busy: float) -> str:
    """The rate above which this client's figures are not to be believed, from two sides; the lower one counts.

    From CPU: the rate sent, scaled to where the busiest sender would fill FULL_CORE.  From lateness: the
    highest rate sent in any twentieth of the load in which P99 of lag was not late.
    """
    start, wall = told["start_ns"], _load_ns(told)
    sent = rows.where(rows.sent & (rows.sent_ns < start + wall))
    rates = []
    if busy > FULL_CORE / 2:
        rates.append(len(sent) * 1e9 / wall * FULL_CORE / busy)
    if told["loop"] == "open" and len(sent) and wall >= RATE_WINDOWS:
        median = quantile(sent.service_ns[sent.ok], 0.5)
        place, lags = (sent.sent_ns - start) * RATE_WINDOWS // wall, sent.lag_ns
        parts = [lags[place == i] for i in range(RATE_WINDOWS)]
        good = [part.size for part in parts if part.size and not _is_late(quantile(part, 0.99) or 0, median)]
        rates.append(max(good, default=0) * RATE_WINDOWS * 1e9 / wall)
    if not rates:
        return "from which rate on cannot be told"
    if min(rates) <= 0:
        return "at none of its rates are the figures to be believed"
    return f"above {float(f'{min(rates):.3g}'):,.10g} requests/s figures are not to be believed"


def _client_time(told: dict[str, Any], rows: Frame, for_realtime: str | None) -> list[Doubt]:
    """A loop that runs late sends late and stamps late: both are within service, in both kinds of loop."""
    lag = told.get("loop_lag_ns") or {}
    service = rows.service_ns[rows.ok & rows.sent]
    for name, q in (("p50", 0.5), ("p99", 0.99)):
        late, whole = lag.get(name), quantile(service, q)
        if late is not None and whole is not None and late > max(LATE_SHARE * whole, LATE_LEAST_NS):
            text = (
                f"phase {told['name']}: {name.upper()} of the client's event loop lag is {show_ns(late)}, "
                f"of service {show_ns(whole)}: about that much of it is the client's own time"
            )
            hint = "give the client a core of its own, use --workers, or have fewer requests in flight"
            return [Doubt("client_time", text, for_realtime or hint)]
    return []


def _resent(measured: list[tuple[dict[str, Any], Frame]]) -> list[Doubt]:
    resent = sum(told.get("resent") or 0 for told, _ in measured)
    sent = sum(int(rows.sent.sum()) for _, rows in measured)
    if resent <= RESENT * sent:
        return []
    text = (
        f"{resent} of {sent} requests ({resent / sent:.1%}) were sent a second time: the server had closed their "
        "connection, or refused them, before it read them"
        if sent
        else f"{resent} requests were sent a second time"
    )
    hint = "the server ends connections under load: see its keep-alive limits; the second try's wait is in latency"
    return [Doubt("resent", text, hint)]
