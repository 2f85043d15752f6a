"""Whether a phase was one state of the server: sustained, warm from its start, without drift, steady.

A phase gets one of these doubts at most; `not_sustained` explains the others.

* not_sustained (open loop): the backlog, requests due and not yet answered, grew.  Its mean over the last tenth
  of the load is compared with that over the tenth around the middle, scaled by the arrivals there.  It grew when
  it did so by more than BEHIND of the arrivals in between, and by more than chance (three standard deviations of two
  Poisson counts).  A long but constant service time has a constant backlog; one straggler is one request.
  Where arrivals do not come at one rate (a ramp, bursts, stamps of whole seconds) such tenths say little: there the
  backlog at the end of the load is compared, by the same bounds, with what it would have been with the latencies of
  its start.
* warm_up, drift, unsteady: the state that loadgen.analysis.steady_state found.
* unsteady also: in any of ten equal windows the median service time differs from the phase's by more than DRIFT, beyond
  what its own sample explains (four standard deviations, from order statistics), or the rate of answers by more than a
  quarter and four standard deviations of a count.  Only where at least 30 successes fall in a window and
  a window is longer than five median latencies (else users that move in step look like a changing rate).
  The reason for a quarter: a figure that moves by that much within its own phase does not carry over to another.
  Short disturbances are seen so that do not change the level.

All but the first need a rate that was meant to be constant.  This module must not know the client's figures.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.analysis.columns import Ints
from loadgen.analysis.frame import Frame
from loadgen.analysis.percentiles import quantile
from loadgen.analysis.steady_state import State, SteadyState, steady_state
from loadgen.records import Doubt
from loadgen.units import show_ns

BEHIND = 0.05
DRIFT, DRIFT_LEAST = 1.5, 30  # between medians; requests in each third
WINDOWS, RATE_VARIES, LATENCIES = 10, 0.25, 5
_BUILDING_UP = "a queue was building up: latencies here grow with the length of the phase"


def doubts(told: dict[str, Any], figures: dict[str, Any], rows: Frame, finished: bool) -> list[Doubt]:
    """Of one measured phase that started: what run.json says of it, its figures, its rows."""
    start, end = told["start_ns"], told.get("load_end_ns")
    if end is None or end <= start:
        return []
    if finished and told["loop"] == "open" and (found := _not_sustained(told, figures, rows, start, end)):
        return found
    return _of_state(told, figures["steady"], rows, start, end)


def _of_state(told: dict[str, Any], steady: dict[str, Any], rows: Frame, start: int, end: int) -> list[Doubt]:
    state, is_open = steady["state"], told["loop"] == "open"
    if state == State.WARMING_UP:
        return [_warm_up(told, steady)]
    if state == State.DRIFT:
        return [_drift(told, steady, rows, start, end)]
    if state == State.NOT_CONSTANT or (is_open and not _constant(rows.due_ns, start, end)):
        return []
    return _unsteady(told, rows, start, end, steady)


def steady_of(told: dict[str, Any], rows: Frame) -> SteadyState | None:
    """Of one measured phase and its rows; None where no load was sent."""
    start, end = told.get("start_ns"), told.get("load_end_ns")
    if start is None or end is None or end <= start:
        return None
    is_open, rates = told["loop"] == "open", told.get("rates")
    constant = not is_open or (
        _constant(rows.due_ns, start, end)
        if rates is None
        else len({rate for pair in rates for rate in pair}) == 1
    )
    ok = rows.where(rows.ok & rows.sent)
    at = ok.due_ns if is_open else ok.sent_ns
    return steady_state(
        at,
        ok.service_ns,
        ok.done_ns,
        ok.latency_ns,
        (start, end),
        constant=constant,
        think_ns=told.get("think_ns") or 0,
    )


def backlog(rows: Frame, start: int, end: int) -> float:
    """The mean number of requests between due and done over [start, end)."""
    due, done = rows.due_ns, rows.done_ns
    there = (done > start) & (due < end)
    inside = np.minimum(done[there], end) - np.maximum(due[there], start)
    return float(np.clip(inside, 0, None).sum()) / max(1, end - start)


def _not_sustained(
    told: dict[str, Any], figures: dict[str, Any], rows: Frame, start: int, end: int
) -> list[Doubt]:
    ok = rows.where(rows.ok)  # what failed has doubts of its own
    if not _constant(rows.due_ns, start, end):
        return _left_over(told, ok, end)
    tenth = (end - start) // 10
    middle = (start + 9 * tenth // 2, start + 11 * tenth // 2)
    last = (end - tenth, end)
    before, after = backlog(ok, *middle), backlog(ok, *last)
    due = rows.due_ns
    arrived = [int(np.count_nonzero((due >= a) & (due < b))) for a, b in (middle, last)]
    scale = max(1.0, arrived[1] / arrived[0]) if arrived[0] else 1.0
    grew = after - before * scale
    between = int(np.count_nonzero((due >= sum(middle) // 2) & (due < end)))
    if not _beyond(after, before, grew, between):
        return []
    text = (
        f"phase {told['name']}: {after:.0f} requests were waiting or in flight when the load ended, {before:.0f} in "
        f"the middle of it; {_per_s(figures['achieved_per_s'])} of {_per_s(figures['offered_per_s'])} requests/s "
        "asked were answered"
    )
    return [Doubt("not_sustained", text, _BUILDING_UP)]


def _beyond(after: float, before: float, grew: float, arrivals: int) -> bool:
    return grew > BEHIND * arrivals and grew > 3 * float(np.sqrt(after + before))


def _left_over(told: dict[str, Any], ok: Frame, end: int) -> list[Doubt]:
    """`ok`: the successes, of arrivals of any pattern."""
    due, latency = ok.due_ns, ok.latency_ns
    if due.size < DRIFT_LEAST:
        return []
    left = int(np.count_nonzero((due <= end) & (ok.done_ns > end)))
    early = latency[
        due <= np.sort(due)[max(DRIFT_LEAST, due.size // 10) - 1]
    ]  # with all that were due at once
    slower = early.size - np.searchsorted(np.sort(early), end - due[due <= end], side="right")
    explained = float(slower.sum()) / early.size
    if not _beyond(left, explained, left - explained, due.size):
        return []
    drain = int(ok.done_ns.max()) - end
    text = (
        f"phase {told['name']}: {left} requests were waiting or in flight when the load ended, where the latencies of its "
        f"start explain {explained:.0f}; they took {show_ns(drain)} more"
    )
    return [Doubt("not_sustained", text, _BUILDING_UP)]


def _per_s(rate: float | None) -> str:
    """Three digits or more."""
    rate = rate or 0.0
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"  # noqa: PLR2004 - digits


def _constant(due: Ints, start: int, end: int) -> bool:
    """Whether arrivals came at one rate all along, give or take chance: no ramp, no burst."""
    counts = _counts(due, start, end, WINDOWS)
    mean = float(counts.mean())
    return bool(np.abs(counts - mean).max() <= 4 * np.sqrt(mean) + 1)


def _counts(at: Ints, start: int, end: int, parts: int) -> npt.NDArray[np.int64]:
    return np.histogram(at, np.linspace(start, end, parts + 1))[0].astype(np.int64)


def _warm_up(told: dict[str, Any], steady: dict[str, Any]) -> Doubt:
    declared, detected = steady["declared"], steady["detected"]
    longer = show_ns(detected["start_ns"] - declared["start_ns"])
    each = [
        f"P50 {show_ns(one['p50_ns'] or 0)}, P99 {show_ns(one['p99_ns'] or 0)} in the {name} window "
        f"({_seconds(one['start_ns'])} to {_seconds(one['end_ns'])} of the run)"
        for name, one in (("declared", declared), ("detected steady", detected))
    ]
    text = f"phase {told['name']}: its first {longer} were warm-up: latency {each[0]}, {each[1]}"
    hint = f"the figures are of the declared window: warm up for {longer} longer"
    slower = (detected["p50_ns"] or 0) > (declared["p50_ns"] or 0)
    if slower and steady["service"] == State.WARMING_UP:  # a queue that filled, or a server that changed
        hint += ", or find what slowed the server down"
    return Doubt("warm_up", text, hint)


def _seconds(ns: int) -> str:
    return f"{ns / 1e9:.3f} s"


def _drift(told: dict[str, Any], steady: dict[str, Any], rows: Frame, start: int, end: int) -> Doubt:
    ok, third = rows.where(rows.ok & rows.sent), (end - start) // 3
    at, service = ok.due_ns if told["loop"] == "open" else ok.sent_ns, ok.service_ns
    first, last = service[at < start + third], service[at >= end - third]
    a, b = quantile(first, 0.5) or 0, quantile(last, 0.5) or 0
    text = (
        f"phase {told['name']}: median service time went from {show_ns(a)} in the first third "
        f"to {show_ns(b)} in the last"
    )
    if steady["service"] != State.DRIFT:
        b, a = _counts(ok.done_ns, start, end, 3)[[0, 2]].tolist()  # the more answers, the faster
        text = f"phase {told['name']}: {_per_s(b * 1e9 / third)} answers/s in the first third, {_per_s(a * 1e9 / third)} in the last"
    less = "lower the rate" if told["loop"] == "open" else "use fewer users"
    hint = "warm up for longer" if a > b else f"the server slowed down: no steady state, {less}"
    return Doubt("drift", text, hint)


def _unsteady(told: dict[str, Any], rows: Frame, start: int, end: int, steady: dict[str, Any]) -> list[Doubt]:
    ok = rows.where(rows.ok & rows.sent)
    edges = np.linspace(start, end, WINDOWS + 1)
    at, service = ok.due_ns if told["loop"] == "open" else ok.sent_ns, ok.service_ns
    parts = [service[(at >= a) & (at < b)] for a, b in pairwise(edges)]
    whole, latency = quantile(service, 0.5), quantile(ok.latency_ns, 0.5)
    if whole is None or latency is None or sum(part.size for part in parts) < DRIFT_LEAST * WINDOWS:
        return []
    reasons = []
    medians = [quantile(part, 0.5) or 0 for part in parts if part.size >= DRIFT_LEAST]
    if any(_off(part, whole) for part in parts):
        reasons.append(
            f"median service time was {show_ns(min(medians))} to {show_ns(max(medians))} in tenths of the phase"
        )
    cycle = latency + (told.get("think_ns") or 0)
    if (end - start) / WINDOWS >= LATENCIES * cycle:
        answers = _counts(
            ok.done_ns, start + latency, end, WINDOWS - 1
        )  # before it nothing could be answered
        mean = float(answers.mean())
        allowed = max(RATE_VARIES * mean, 4 * float(np.sqrt(mean)))
        if np.abs(answers - mean).max() > allowed:
            per_s = answers * (WINDOWS - 1) * 1e9 / (end - start - latency)
            reasons.append(f"{per_s.min():.3g} to {per_s.max():.3g} answers/s")
    if not reasons and steady["state"] == State.NEVER_SETTLED:
        names = {"service": "service time", "throughput": "answers/s"}
        changed = [name for key, name in names.items() if steady[key] == State.NEVER_SETTLED]
        reasons.append(f"{' and '.join(changed)} did not settle at one level")
    if not reasons:
        return []
    hint = "see latency over time in report.html; find what disturbed the server, or measure for longer"
    return [Doubt("unsteady", f"phase {told['name']}: not steady: {'; '.join(reasons)}", hint)]


def _off(part: Ints, whole: int) -> bool:
    """Whether a window's median is beyond DRIFT of the phase's, four standard deviations of its rank away."""
    n = int(part.size)
    if n < DRIFT_LEAST:
        return False
    half = 2 * float(np.sqrt(n))
    ranks = max(0, int(n / 2 - half)), min(n - 1, int(n / 2 + half))
    low, high = np.partition(part, ranks)[list(ranks)]
    return bool(low > DRIFT * whole or high * DRIFT < whole)
