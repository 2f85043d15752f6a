"""Whether a run's figures can be believed, and why not when not.

Each rule looks at one thing and returns the doubts it has, with numbers, units and what to do about it.
A doubt that `invalidates` says the figures are not what they are called; the others say what to keep in
mind.  Rules about the client itself are in loadgen.analysis.clientside.  This module must not know how
doubts are shown or which exit code they lead to.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.analysis import clientside
from loadgen.analysis.figures import judged
from loadgen.analysis.frame import Frame, measured_phases
from loadgen.analysis.percentiles import quantile
from loadgen.records import Doubt
from loadgen.units import show_ns

MOST_LOST = 0.01  # a larger share of requests without an answer bends every percentile that is printed
FEW, FEW_P999 = 100, 1000
DRIFT, DRIFT_LEAST = 1.5, 30  # medians of the thirds; requests in each
UNBATCHED = 1.05


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the rules look at: run.json, all rows, the phases' figures, the totals, the server's figures."""

    info: dict[str, Any]
    frame: Frame
    phases: list[dict[str, Any]]
    total: dict[str, Any]
    server: dict[str, Any]

    @property
    def measured(self) -> list[tuple[dict[str, Any], dict[str, Any], Frame]]:
        """(told by run.json, figures, rows) of each measured phase that started."""
        return [
            (self.info["phases"][i], self.phases[i], self.frame.where(self.frame.phase == i))
            for i in measured_phases(self.info)
            if self.info["phases"][i].get("start_ns") is not None
        ]


def doubts(
    info: dict[str, Any],
    frame: Frame,
    phases: list[dict[str, Any]],
    total: dict[str, Any],
    server: dict[str, Any],
) -> list[Doubt]:
    """Those found while running first, then those found by reading; none twice."""
    evidence = Evidence(info, frame, phases, total, server)
    told = [
        Doubt(str(d["code"]), str(d["text"]), str(d.get("hint", "")), bool(d.get("invalidates")))
        for d in info.get("doubts", [])
    ]
    rules = (_ended, _nothing, _lost, _few, _not_sustained, _drift, _warm_up, _server, _batching)
    client = clientside.doubts(info, [(told, rows) for told, _, rows in evidence.measured])
    found = told + [doubt for rule in rules for doubt in rule(evidence)] + client
    return list(dict.fromkeys(found))


def _ended(seen: Evidence) -> list[Doubt]:
    status = seen.info.get("status")
    lost = seen.total["counts"]["planned"] - seen.total["counts"]["sent"] - seen.total["counts"]["dropped"]
    unsent = (
        f"; {lost} of {seen.total['counts']['planned']} planned requests were never sent" if lost > 0 else ""
    )
    if status == "interrupted":
        hint = "the figures are of what was sent until then; run to the end to compare with other runs"
        return [Doubt("interrupted", f"the run was interrupted{unsent}", hint)]
    if status == "running":
        hint = "if it still runs, wait; if it was killed, at most the last second of records is lost"
        return [Doubt("unfinished", f"the run has not been closed{unsent}", hint)]
    if status == "failed":
        return [Doubt("run_failed", f"the run broke off{unsent}", "see the other doubts and repeat it", True)]
    return []


def _nothing(seen: Evidence) -> list[Doubt]:
    counts = seen.total["counts"]
    if counts["ok"]:
        return []
    asked = judged(counts)
    if asked == 0:
        hint = "give a measured phase a rate and a duration, or let the run go on until one begins"
        return [Doubt("nothing_measured", "no request was sent in a measured phase", hint, True)]
    hint = "see the errors; send one request by hand first"
    return [Doubt("nothing_measured", f"none of {asked} requests succeeded", hint, True)]


def _lost(seen: Evidence) -> list[Doubt]:
    counts = seen.total["counts"]
    n = judged(counts)
    bad = counts["failed"] + counts["timeout"]
    kinds = (
        ("failures", bad, "failed or timed out", "percentiles are of the successes only; see the errors"),
        ("rejected", counts["rejected"], "were rejected by the server",
         "the server is full: ask for less, or give it more queue or instances"),
        ("dropped", counts["dropped"], "were never sent: the cap on requests in flight was reached",
         "raise cap.in_flight, or say when_full: wait, to see what they would have waited"),
    )  # fmt: skip
    return [
        Doubt(code, f"{amount} of {n} requests ({_percent(amount / n)}) {what}", hint, amount / n > MOST_LOST)
        for code, amount, what, hint in kinds
        if amount
    ]


def _few(seen: Evidence) -> list[Doubt]:
    n = seen.total["counts"]["ok"]
    if not 0 < n < FEW_P999:
        return []
    hint = "measure longer or at a higher rate"
    if n < FEW:
        text = f"P99 is of {n} successes: fewer than {FEW}, so it is their maximum"
        return [Doubt("few_samples", text, hint)]
    return [
        Doubt(
            "few_samples", f"P99.9 is of {n} successes: fewer than {FEW_P999}, so it is their maximum", hint
        )
    ]


def _not_sustained(seen: Evidence) -> list[Doubt]:
    found = []
    for told, figures, _ in seen.measured:
        offered, achieved = figures["offered_per_s"], figures["achieved_per_s"]
        planned_end = told["loop"] == "open" and seen.info.get("status") == "finished"
        lost = judged(figures["counts"]) - figures["counts"]["ok"]
        slow = offered and achieved and achieved < 0.95 * offered and lost < 0.01 * figures["counts"]["sent"]
        if planned_end and slow:
            text = f"phase {told['name']}: {achieved:.1f} of {offered:.1f} requests/s asked were answered in time"
            hint = "a queue was building up: latencies here grow with the length of the phase"
            found.append(Doubt("not_sustained", text, hint))
    return found


def _drift(seen: Evidence) -> list[Doubt]:
    found = []
    for told, _, rows in seen.measured:
        ok = rows.where(rows.ok & rows.sent)
        at = ok.due_ns if told["loop"] == "open" else ok.sent_ns
        if len(ok) < 3 * DRIFT_LEAST:
            continue
        start = told["start_ns"]
        span = (told.get("load_end_ns") or int(at.max())) - start
        first, last = ok.where(at < start + span // 3), ok.where(at >= start + span - span // 3)
        if min(len(first), len(last)) < DRIFT_LEAST:
            continue
        if told["loop"] == "open" and not _same_rate(rows, start, span):
            continue
        a, b = quantile(first.service_ns, 0.5) or 0, quantile(last.service_ns, 0.5) or 0
        if max(a, b) > DRIFT * min(a, b):
            text = (
                f"phase {told['name']}: median service time went from {show_ns(a)} in the first third "
                f"to {show_ns(b)} in the last"
            )
            hint = (
                "warm up for longer" if a > b else "the server slowed down: no steady state, lower the rate"
            )
            found.append(Doubt("drift", text, hint))
    return found


def _same_rate(rows: Frame, start: int, span: int) -> bool:
    """Whether as many requests were due in the first third as in the last, give or take chance."""
    first = int((rows.due_ns < start + span // 3).sum())
    last = int((rows.due_ns >= start + span - span // 3).sum())
    return abs(first - last) <= 4 * float(np.sqrt(first + last))


def _warm_up(seen: Evidence) -> list[Doubt]:
    """A server has cold slots as long as fewer requests were in flight than will be (one an instance)."""
    reached = [told.get("max_in_flight") or 0 for told, _, rows in seen.measured if len(rows)]
    if not reached:
        return []
    warm = [
        phase.get("max_in_flight") or 0
        for phase in seen.info["phases"]
        if not phase.get("measured") and phase.get("start_ns") is not None
    ]
    hint = "put a phase with measured: false, at the same concurrency or rate, before the first measured one"
    if not warm:
        return [Doubt("short_warmup", "there was no warm-up phase: first requests are in the figures", hint)]
    # an open loop reaches its maximum by chance: only a clear excess means slots that were never warmed
    closed = any(told["loop"] == "closed" for told, _, _ in seen.measured)
    most, allowed = max(reached), max(warm) if closed else max(1.5 * max(warm), max(warm) + 2)
    if most > allowed:
        text = f"up to {most} requests were in flight, but only {max(warm)} during warm-up: some slots began cold"
        return [Doubt("short_warmup", text, hint)]
    return []


def _server(seen: Evidence) -> list[Doubt]:
    found = [
        Doubt("counters_reset", f"model {model}: the server's counters went backwards during a phase",
              "the model was loaded anew or the server restarted: batch sizes of that phase are left out")
        for model in seen.server["resets"]
    ]  # fmt: skip
    counted, sent = seen.server["request_count"], seen.total["counts"]["sent"]
    if counted is not None and not seen.server["resets"]:
        more = counted - sent
        if more > max(2, 0.01 * sent):
            text = f"the server counted {counted} requests while this run sent {sent}: {more} were another client's"
            hint = "run alone on the server, or take latency and batch sizes as those of the mixed load"
            found.append(Doubt("other_clients", text, hint))
    return found


def _batching(seen: Evidence) -> list[Doubt]:
    mean, ok = seen.server["mean_batch"], seen.total["counts"]["ok"]
    items = seen.frame.items[seen.frame.ok]
    in_flight = max((told.get("max_in_flight") or 0 for told, _, _ in seen.measured), default=0)
    if mean is None or not ok or in_flight <= 1 or not seen.server["dynamic_batching"]:
        return []
    own = float(items.mean())  # a request of 8 items is a batch of 8 on its own
    if mean < UNBATCHED * own:
        text = (
            f"dynamic batching is on, yet the mean batch was {mean:.2f} items with {own:.3g} items a request"
        )
        hint = "raise the load, or max_queue_delay_microseconds, until requests wait for each other"
        return [Doubt("no_batching", text, hint)]
    return []


def _percent(share: float) -> str:
    return f"{share * 100:.2g} %" if share < 0.995 else f"{share * 100:.3g} %"  # noqa: PLR2004 - digits
