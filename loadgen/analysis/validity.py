"""Whether a run's figures can be believed, and why not when not.

Each rule looks at one thing and returns the doubts it has, with numbers, units and what to do about it.
A doubt that `invalidates` says the figures are not what they are called; the others say what to keep in
mind.  Rules about the client itself are in loadgen.analysis.clientside, about the steady state in
loadgen.analysis.steadiness.  This module must not know how doubts are shown or which exit code they lead to.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.analysis import clientside, steadiness, tokens
from loadgen.analysis.figures import answered
from loadgen.analysis.frame import Bools, Frame, measured_phases
from loadgen.analysis.words import amount
from loadgen.records import Doubt, Outcome
from loadgen.traffic.objective import STREAM_TIMES, parse_objective
from loadgen.units import show_ns

MOST_LOST = 0.01  # a larger share of requests without an answer bends every percentile that is printed
FEW = 100  # successes: of fewer, P99 is the maximum
REFUSED, ERRORS = 3, 10  # so many in a row before a server is called away
MOST_HITS = 0.01
UNBATCHED = 1.05
BY_CHANCE = 0.001  # less likely than that, a stretch of failures is no accident
# what a server that is away looks like from here, with the statuses by which a proxy says so
OUTAGES = (Outcome.CONNECT, Outcome.CONNECTION, Outcome.REFUSED_STREAM, Outcome.STREAM_ENDED_EARLY)
OUTAGE_STATUSES = {Outcome.HTTP_5XX: (502, 503, 504), Outcome.GRPC_STATUS: (14,)}
NO_ANSWER = (Outcome.TIMEOUT, Outcome.CLIENT)  # says neither that a server is there nor that it is not
RELAY_LATE_NS, RELAY_LATE = 2_000_000, 0.05  # of the delay


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
            (self.info["phases"][i], self.phases[i], self.frame.of_phase(i))
            for i in measured_phases(self.info)
            if self.info["phases"][i].get("start_ns") is not None
        ]

    @property
    def cut(self) -> bool:
        """Whether more than MOST_LOST of the plan was never sent; of a timed closed loop, of its time."""
        counts = self.total["counts"]
        short = [
            told
            for told in (self.info["phases"][i] for i in measured_phases(self.info))
            if told["loop"] == "closed"
            and told.get("duration_ns")
            and (told.get("load_end_ns") or 0) - (told.get("start_ns") or 0)
            < (1 - MOST_LOST) * told["duration_ns"]
        ]
        return bool(short) or counts.get("never_sent", 0) > MOST_LOST * counts["planned"]

    @property
    def incomplete(self) -> bool:
        """Whether requests were sent of which there is no record: by a lost worker, a killed run, on a full disk."""
        return (
            self.info.get("status") not in ("finished", "interrupted")
            or any(doubt.get("code") == "worker_lost" for doubt in self.info.get("doubts", []))
            or any("seen_ns" in told or told.get("unknown") for told, _, _ in self.measured)
        )


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
    rules = (
        _ended,
        _unknown_ends,
        _nothing,
        _outage,
        _lost,
        _few,
        _steadiness,
        _warm_up,
        _server,
        _cache,
        _metrics,
        _batching,
        _tokens,
        _status_only,
        _relay,
    )
    client = clientside.doubts(info, [(told, rows) for told, _, rows in evidence.measured])
    told = [_worker_lost(doubt, total["counts"]) if doubt.code == "worker_lost" else doubt for doubt in told]
    found = told + [doubt for rule in rules for doubt in rule(evidence)] + client
    return list(dict.fromkeys(found))


def _ended(seen: Evidence) -> list[Doubt]:
    """A run that did not end by itself.  Requests given up or lost on the way are the slow ones, not a sample:
    more than MOST_LOST of them, and what is left is not what the server did.
    """
    status, counts = seen.info.get("status"), seen.total["counts"]
    ends = [told.get("unknown", 0) for told, _, _ in seen.measured]
    on_the_way = sum(n or 0 for n in ends)
    lost = counts.get("never_sent", 0)
    unsent = f"; {lost} of {counts['planned']} planned requests were never sent" if lost > 0 else ""
    if status == "interrupted":
        return [_interrupted(counts, on_the_way, unsent)]
    if status in ("running", "killed"):
        return [_unfinished(seen, None if None in ends else on_the_way, unsent)]
    if status == "failed":
        return [Doubt("run_failed", f"the run broke off{unsent}", "see the other doubts and repeat it", True)]
    return []


def _worker_lost(doubt: Doubt, counts: dict[str, int]) -> Doubt:
    """With how many were never sent; an open plan with a gap is not the plan."""
    lost, planned = counts.get("never_sent", 0), counts["planned"]
    if not lost:
        return doubt
    text = f"{doubt.text.partition(':')[0]}: {lost} of {planned} planned requests ({_percent(lost / planned)}) were never sent"
    return Doubt(doubt.code, text, doubt.hint, lost > MOST_LOST * planned)


def _interrupted(counts: dict[str, int], on_the_way: int, unsent: str) -> Doubt:
    """`on_the_way`: in flight when a second interrupt ended everything at once."""
    hint = "the figures are of what was sent until then; run to the end to compare with other runs"
    cancelled = counts.get("cancelled", 0)
    asked = answered(counts) + counts["dropped"] + cancelled + on_the_way
    given_up = (
        f": {cancelled} of {asked} requests due ({_percent(cancelled / asked)}) were given up"
        if cancelled
        else ""
    )
    unknown = f"; how {on_the_way} of {asked} requests due ended is not known" if on_the_way else ""
    text = f"the run was interrupted{given_up}{unknown}{unsent}"
    return Doubt("interrupted", text, hint, cancelled + on_the_way > MOST_LOST * asked)


def _unfinished(seen: Evidence, on_the_way: int | None, unsent: str) -> Doubt:
    """`on_the_way`: requests of whose end nothing is known; None: nor how many they were."""
    counts, killed = seen.total["counts"], seen.info.get("status") == "killed"
    what = "the run was killed" if killed else "the run has not been closed"
    hint = "nothing is known after its last sign of life: repeat it"
    if not killed:
        hint = "if it still runs, wait; if it was killed, nothing is known after its last sign of life"
    if on_the_way is None:
        text = f"{what}, and how many requests were on their way is not known{unsent}"
        return Doubt("unfinished", text, hint, True)
    asked = answered(counts) + counts["dropped"] + counts.get("cancelled", 0) + on_the_way
    how = f": how {on_the_way} of {asked} requests due ended is not known" if on_the_way else ""
    invalid = seen.cut or on_the_way > MOST_LOST * asked
    return Doubt("unfinished", f"{what}{how}{unsent}", hint, invalid)


def _unknown_ends(seen: Evidence) -> list[Doubt]:
    """What was on its way in a worker that was lost while the run went on: as little known as a killed run's."""
    n = sum(told.get("lost_on_the_way", 0) for told, _, _ in seen.measured)
    if not n:
        return []
    counts = seen.total["counts"]
    asked = answered(counts) + counts["dropped"] + counts.get("cancelled", 0) + n
    text = (
        f"how {n} of {asked} requests due ({_percent(n / asked)}) ended is not known: they were on their way in a "
        "worker that was lost"
    )
    hint = "objectives count them both ways; see what ended the worker, and repeat the run"
    return [Doubt("unknown_ends", text, hint, n > MOST_LOST * asked)]


def _nothing(seen: Evidence) -> list[Doubt]:
    counts = seen.total["counts"]
    if counts["ok"]:
        return []
    asked = answered(counts) + counts["dropped"] + counts.get("planned_cancels", 0)
    if asked == 0:
        hint = "give a measured phase a rate and a duration, or let the run go on until one begins"
        return [Doubt("nothing_measured", "no request was sent in a measured phase", hint, True)]
    hint = "see the errors; send one request by hand first"
    return [Doubt("nothing_measured", f"none of {amount(asked, 'request')} succeeded", hint, True)]


def _lost(seen: Evidence) -> list[Doubt]:
    counts = seen.total["counts"]
    n = answered(counts)
    bad = counts["failed"] + counts["timeout"]
    kinds = (
        ("failures", bad, n, "failed or timed out", _of_failures(seen, bad)),
        ("rejected", counts["rejected"], n, "were rejected: the server's queue was full",
         "ask for less, or give the server a longer queue or more instances"),
        ("dropped", counts["dropped"], n + counts["dropped"],
         "were never sent: the cap on requests in flight was reached",
         "raise cap.in_flight, or say when_full: wait, to see what they would have waited"),
    )  # fmt: skip
    return [
        Doubt(code, f"{amount} of {n} requests ({_percent(amount / n)}) {what}", hint, amount / n > MOST_LOST)
        for code, amount, n, what, hint in kinds
        if amount
    ]


def _of_failures(seen: Evidence, bad: int) -> str:
    """What to do about failures: where most of them are an outage, that is what to look at."""
    away = sum(int(np.count_nonzero(_absent(rows))) for _, _, rows in seen.measured)
    if 2 * away <= bad:
        return "percentiles are of the successes only; see the errors"
    return (
        "an outage: the server, or a proxy before it, was away or would not answer; see its log and its health.  If its "
        "words mean a full queue, say so with full: in the profile"
    )


def _absent(rows: Frame) -> Bools:
    """Which requests ended as those to a server that is away do."""
    outcome, status = rows.outcome, rows.status
    found = np.isin(outcome, OUTAGES)
    for answered_with, statuses in OUTAGE_STATUSES.items():
        found |= (outcome == answered_with) & np.isin(status, statuses)
    return found


def _outage(seen: Evidence) -> list[Doubt]:
    """The server went away: more than MOST_LOST of a phase ended so (`_absent`) in one stretch without a sign of life.

    Any answer is one, also an error of the server's own.  A server that refuses connections is gone after REFUSED in a
    row, one that ends or refuses what it took after ERRORS; and the stretch is longer than the rate of such failures
    around it explains: of n independent requests some k in a row fail with a probability below n p^k.
    """
    if not seen.total["counts"]["ok"]:
        return []  # that says all
    for told, _, rows in seen.measured:
        mine = rows.where(rows.judged & ~rows.dropped)
        order = np.argsort(mine.done_ns, kind="stable")
        absent, done = _absent(mine)[order], mine.done_ns[order]
        refused = mine.outcome[order] == Outcome.CONNECT
        alive = ~(absent | np.isin(mine.outcome[order], NO_ANSWER))
        stretch = np.cumsum(alive)  # the same number between two signs of life
        bad = np.bincount(stretch[absent])
        gone = np.bincount(stretch[refused], minlength=bad.size)
        around = (bad.sum() - bad) / np.maximum(len(mine) - bad, 1)
        away = (bad > MOST_LOST * len(mine)) & ((bad >= ERRORS) | (gone >= REFUSED))
        away &= len(mine) * around**bad < BY_CHANCE
        if away.any():
            most = int(np.argmax(np.where(away, bad, 0)))
            at = done[absent & (stretch == most)]
            text = (
                f"phase {told['name']}: the server went away: {bad[most]} of {amount(len(mine), 'request')} failed in a "
                f"row, without an answer between {at[0] / 1e9:.3f} s and {at[-1] / 1e9:.3f} s of the run"
            )
            hint = "see the errors and the server's log: no figure of this run is one of a server that was there; repeat it"
            return [Doubt("outage", text, hint, True)]
    return []


def _few(seen: Evidence) -> list[Doubt]:
    """P99 is always shown; of other percentiles only those that an objective asks for matter."""
    n = seen.total["counts"]["ok"]
    if not n:
        return []
    hint = "measure longer or at a higher rate"
    if n < FEW:
        text = f"P99 is of {amount(n, 'success')}: fewer than {FEW}, so it is the maximum"
        return [Doubt("few_samples", text, hint)]
    return [Doubt("few_samples", text, hint) for text in _few_for_objectives(seen)]


def _few_for_objectives(seen: Evidence) -> Iterator[str]:
    kinds = [kind["name"] for kind in seen.info.get("kinds", [])]
    for asked in map(parse_objective, seen.info.get("objectives", [])):
        q = asked.quantile
        if q is None or q >= 1 or asked.metric in STREAM_TIMES:
            continue
        mine = [rows.ok & (rows.kind == kinds.index(asked.kind)) if asked.kind in kinds else rows.ok
                for _, _, rows in seen.measured]  # fmt: skip
        n, least = sum(int(np.count_nonzero(ok)) for ok in mine), round(1 / (1 - q))
        if 0 < n < least:
            of = f" of {asked.kind}" if asked.kind in kinds else ""
            yield f"P{100 * q:.6g}{of} is of {amount(n, 'success')}: fewer than {least}, so it is the maximum"


def _steadiness(seen: Evidence) -> list[Doubt]:
    finished = seen.info.get("status") == "finished"
    return [doubt for told, figures, rows in seen.measured
            for doubt in steadiness.doubts(told, figures, rows, finished)]  # fmt: skip


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
    hint = "put a phase with warmup: true, at the same concurrency or rate, before the first measured one"
    if not warm:
        return [Doubt("short_warmup", "there was no warm-up phase: first requests are in the figures", hint)]
    # an open loop reaches its maximum by chance: only a clear excess means slots that were never warmed
    allowed = {"closed": max(warm), "open": max(1.5 * max(warm), max(warm) + 2)}
    beyond = [
        told["max_in_flight"]
        for told, _, rows in seen.measured
        if len(rows) and (told.get("max_in_flight") or 0) > allowed[told["loop"]]
    ]
    if beyond:
        text = f"up to {max(beyond)} requests were in flight, but only {max(warm)} during warm-up: some slots began cold"
        return [Doubt("short_warmup", text, hint)]
    return []


def _server(seen: Evidence) -> list[Doubt]:
    found = [
        Doubt("counters_reset",
              f"model {one['model']}: the server's counters were reset during phase {one['phase']}: they tell of "
              f"{one['counted']} successes, this run had {one['ok']}",
              "a model or version was loaded anew, or the server restarted: its figures of that phase are left out")
        for one in seen.server["reset_phases"]
    ]  # fmt: skip
    counted, sent = seen.server["request_count"], seen.total["counts"]["sent"]
    if counted is not None and not seen.server["resets"] and not seen.incomplete:
        more = counted - sent - sum(told.get("resent") or 0 for told, _, _ in seen.measured)
        if more > max(2, 0.01 * sent):
            text = f"the server counted {counted} requests while this run sent {sent}: {more} were another client's"
            hint = "run alone on the server, or take latency and batch sizes as those of the mixed load"
            found.append(Doubt("other_clients", text, hint))
    if others := seen.server.get("other_models"):
        each = ", ".join(
            f"{name} {amount(told['request_count'], 'request')}" for name, told in others.items()
        )
        text = f"models that this run did not ask for were executed meanwhile: {each}"
        hint = (
            "a model that was asked calls them (BLS), then their batches and queues are a part of its latency; or they are "
            "another client's, then run alone on the server"
        )
        found.append(Doubt("other_models", text, hint))
    return found


def _cache(seen: Evidence) -> list[Doubt]:
    told = [("the model", seen.server), *(seen.server.get("composing") or {}).items()]
    found = []
    for model, server in told:
        hits = server["cache_hits"] or 0
        n = (server["request_count"] or 0) - (server["fail_count"] or 0)  # a refusal is no answer
        if hits > MOST_HITS * n:
            text = (
                f"{hits} of {n} requests ({_percent(hits / n)}) were answered from the server's response cache, not by {model}"
                if n
                else f"{hits} requests were answered from the server's response cache"
            )
            hint = "latencies are of a mixture that hangs on how often inputs repeat: switch response_cache off to measure the model"
            found.append(Doubt("cache_hits", text, hint))
    return found


def _metrics(seen: Evidence) -> list[Doubt]:
    page = seen.server.get("metrics")
    if page is None or not (page["failed"] or (page["why"] and not page["looks"])):
        return []
    hint = "name the page with --metrics, e.g. http://host:8002/metrics, and see that it answers from here"
    if page["failed"] == page["looks"]:
        text = f"the metrics page {page['url']} could not be read: {page['why']}; its figures are missing"
        return [Doubt("no_metrics", text, hint)]
    text = (
        f"the metrics page {page['url']} could not be read in {page['failed']} of {page['looks']} looks: {page['why']}; its "
        "figures are of the others alone"
    )
    return [Doubt("metrics_gaps", text, hint)]


def _batching(seen: Evidence) -> list[Doubt]:
    ok = seen.total["counts"]["ok"]
    items = seen.frame.items[seen.frame.ok]
    in_flight = max((told.get("max_in_flight") or 0 for told, _, _ in seen.measured), default=0)
    if not ok or in_flight <= 1:
        return []
    own = float(items.mean())  # a request of 8 items is a batch of 8 on its own
    steps = seen.server.get("composing") or {}
    executing = {f" of {name}": told for name, told in steps.items()} or {"": seen.server}
    found = []
    for whose, told in executing.items():
        mean = told["mean_batch"]
        if mean is not None and told["dynamic_batching"] and mean < UNBATCHED * own:
            text = (
                f"dynamic batching is on, yet the mean batch{whose} was {mean:.2f} items with {own:.3g} "
                f"item{'' if own == 1 else 's'} a request"
            )
            hint = "raise the load, or max_queue_delay_microseconds, until requests wait for each other"
            found.append(Doubt("no_batching", text, hint))
    return found


def _tokens(seen: Evidence) -> list[Doubt]:
    streaming = seen.total.get("streaming")
    return tokens.doubts(streaming) if streaming is not None else []


def _status_only(seen: Evidence) -> list[Doubt]:
    """Kinds of plain HTTP whose profile does not say what a right answer looks like."""
    kinds = seen.info.get("kinds", [])
    names = [k["name"] for k in kinds if k.get("status_only") and k["name"] in seen.total["by_kind"]]
    if not names:
        return []
    text = f"kind {', '.join(names)}: only the HTTP status was judged; an error page with status 200 counts as a success"
    hint = "say in the profile what a right answer holds: success: {json: {path: ...}}"
    return [Doubt("status_only", text, hint)]


def _relay(seen: Evidence) -> list[Doubt]:
    """Network conditions by a relay that could not keep its times."""
    network = seen.info.get("network") or {}
    late = ((network.get("relay") or {}).get("late_ns") or {}).get("p99")
    if late is None or late <= max(RELAY_LATE_NS, RELAY_LATE * network["delay_ns"]):
        return []
    text = f"the relay that makes the network's conditions was late: P99 {show_ns(late)} past what was asked"
    hint = "that much is the relay's own and not the network's: ask for less, or give it a core of its own"
    return [Doubt("relay_late", text, hint)]


def _percent(share: float) -> str:
    return f"{share * 100:.2g} %" if share < 0.995 else f"{share * 100:.3g} %"  # noqa: PLR2004 - digits
