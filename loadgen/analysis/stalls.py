"""Idle while pending: no success for longer than a batch takes, although requests are in flight all that time.

Triton's batcher can sleep for up to 500 ms with requests pending (a queue policy or priorities switch prefetch off);
other servers have their own ways to forget.  From the client's records alone it is a stretch without any answer,
which a server may also spend on one long execution: so a stretch counts only beyond LEAST_NS and twice the longest that
is usual, the longest mean execution by batch size where the server counts, and the slowest kind's median service
time.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loadgen.analysis.columns import Ints
from loadgen.analysis.frame import Frame
from loadgen.analysis.percentiles import quantile
from loadgen.analysis.server import Counted, Role
from loadgen.records import Doubt
from loadgen.triton.facts import ServerKind
from loadgen.units import show_ns

LEAST_NS, USUAL = 250_000_000, 2
_LISTED = 100


def stalls(name: str, rows: Frame, counted: Sequence[Counted]) -> list[dict[str, Any]]:
    """Of one phase: [{phase, start_ns, end_ns, in_flight}], stamps in ns of the run, in order.

    Streamed answers are left out: their first answer is not their end.  So are refusals and errors: a server that
    turns others away at once may still sleep over those it took.  What timed out was in flight until then.
    """
    mine = rows.where(rows.sent & ~rows.streamed & (rows.ok | rows.timeout))
    if len(mine) < 2:  # noqa: PLR2004 - a stretch has two ends
        return []
    sent, done = mine.sent_ns, mine.done_ns
    ok = mine.where(mine.ok)
    if not len(ok):
        return []
    longest = _longest_usual(ok, counted)
    return [
        {"phase": name, "start_ns": start, "end_ns": end, "in_flight": n}
        for start, end, n in silences(sent, done, LEAST_NS + USUAL * longest)
    ]


def silences(sent: Ints, done: Ints, limit_ns: int) -> list[tuple[int, int, int]]:
    """(begin, end, requests in flight) of each stretch over `limit_ns` in which none ended and some were in flight all
    along: from the last answer, or from when they were sent if none was in flight before.
    """
    ends, begins = np.sort(done), np.sort(sent)
    found = []
    for place in np.flatnonzero(np.diff(ends, prepend=begins[0]) > limit_ns).tolist():
        end = int(ends[place])
        start = int(ends[place - 1]) if place else int(begins[0])
        there = int(np.searchsorted(begins, start, "right")) - place
        if there <= 0:  # nobody waited after that answer: the stretch begins with the next request
            start = int(begins[place])
            there = int(np.searchsorted(begins, start, "right")) - place
        if end - start > limit_ns and there > 0:
            found.append((start, end, there))
    return found


def _longest_usual(ok: Frame, counted: Sequence[Counted]) -> int:
    kinds, service = ok.kind, ok.service_ns
    usual = [quantile(service[kinds == kind], 0.5) or 0 for kind in np.unique(kinds).tolist()]
    executions = [
        round(tally.ns / tally.count)
        for one in counted
        if one.window is not None and one.role is not Role.OTHER
        for tally in one.window.batches.values()
        if tally.count
    ]
    # a median service holds the time in queue as well: where the server tells its executions these are enough,
    # but a request of an ensemble is several of them, one after the other
    if any(one.ensemble for one in counted):
        return max([*executions, *usual])
    return max(executions) if executions else max(usual)


def listed(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The longest of them, in order."""
    longest = sorted(found, key=lambda one: one["start_ns"] - one["end_ns"])[:_LISTED]
    return sorted(longest, key=lambda one: int(one["start_ns"]))


def stall_doubts(found: Sequence[Mapping[str, Any]], server: ServerKind) -> list[Doubt]:
    """One for all of them: `idle_while_pending` where it may be Triton's batcher, else `stalled`."""
    if not found:
        return []
    longest = max(found, key=lambda one: one["end_ns"] - one["start_ns"])
    total = sum(one["end_ns"] - one["start_ns"] for one in found)
    times = "once" if len(found) == 1 else f"{len(found)} times"
    text = (
        f"{times} no request succeeded although some were in flight, {show_ns(total)} in all: the longest for "
        f"{show_ns(longest['end_ns'] - longest['start_ns'])} with {longest['in_flight']} in flight all along, from "
        f"{longest['start_ns'] / 1e9:.3f} s of the run on"
    )
    hint = "the server sat idle or was frozen, or one execution took that long"
    if server is not ServerKind.TRITON:
        return [Doubt("stalled", text, f"{hint}: see its log and what else its machine did then")]
    hint += (
        ": a Triton with a queue policy or priorities can sleep for 500 ms; `loadgen run --trace-server` and "
        "`loadgen explain` tell which"
    )
    return [Doubt("idle_while_pending", text, hint)]
