"""What a set of requests comes to: counts, distributions, groups by kind, length and error.

Percentiles are of successes only; whatever failed has counts and an error distribution of its own, so
that quick refusals cannot flatter a median.  This module must not know of phases, servers or verdicts.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.analysis.columns import Ints
from loadgen.analysis.frame import Bools, Frame
from loadgen.analysis.percentiles import distribution
from loadgen.records import Outcome

TEXT_CHARS = 300
_CHUNK = 2**20


def counts(frame: Frame) -> dict[str, int]:
    """How many were tried, sent, ok, failed, rejected, timeout, dropped (see frame for the words).

    "cancelled" (by an interrupt) and "planned_cancels" (by the profile) too when there were any: given up by
    us, sent or not.  ok + failed + rejected + timeout + dropped + both of these are all requests.
    """
    ended = np.bincount(frame.outcome, minlength=len(Outcome)).tolist()
    ok, rejected, timeout = ended[Outcome.OK], ended[Outcome.REJECTED], ended[Outcome.TIMEOUT]
    dropped = ended[Outcome.DROPPED]
    by_us = {"cancelled": ended[Outcome.CANCELLED], "planned_cancels": ended[Outcome.PLANNED_CANCEL]}
    given_up = sum(by_us.values())
    found = {
        "tried": int(np.count_nonzero(frame.tried)) if given_up else len(frame) - dropped,
        "sent": int(np.count_nonzero(frame.sent)),
        "ok": ok,
        "failed": len(frame) - ok - rejected - timeout - dropped - given_up,
        "rejected": rejected,
        "timeout": timeout,
        "dropped": dropped,
    }
    return found | {key: n for key, n in by_us.items() if n}


def answered(found: dict[str, int]) -> int:
    """The denominator of failure rates: requests tried that ended by themselves, well or not."""
    return found["ok"] + found["failed"] + found["rejected"] + found["timeout"]


def details(frame: Frame, kinds: list[dict[str, Any]]) -> dict[str, Any]:
    """latency, service and lag; the same by kind, by length, and the errors."""
    whole = durations(frame)
    return {
        **whole,
        "by_kind": by_kind(frame, kinds, whole),
        "by_length": by_length(frame),
        "errors": errors(frame),
    }


def durations(frame: Frame) -> dict[str, Any]:
    """latency, service and lag of the successes."""
    ok = frame.where(frame.ok)
    due, sent, done = ok.due_ns, ok.sent_ns, ok.done_ns
    left = sent >= 0
    return {
        "latency_ns": distribution(done - due),
        "service_ns": distribution(_picked(done - sent, left)),
        "lag_ns": distribution(_picked(sent - due, left)),
    }


def _picked(values: npt.NDArray[np.int64], keep: Bools) -> npt.NDArray[np.int64]:
    return values if keep.all() else values[keep]


def by_kind(frame: Frame, kinds: list[dict[str, Any]], whole: dict[str, Any]) -> dict[str, Any]:
    """Figures of each kind that was asked for at all, with its batch (items a request).

    `whole`: the durations of all of `frame`, which are those of an only kind.
    """
    found, asked = {}, frame.kind
    for place, kind in enumerate(kinds):
        part = frame.where(asked == place)
        if len(part):
            figures = whole if part is frame else durations(part)
            found[kind["name"]] = {"batch": kind.get("batch"), "counts": counts(part), **figures}
    return found


def by_length(frame: Frame) -> list[dict[str, Any]]:
    """Successes by length, in buckets that end at powers of two: 1, 2, 3-4, 5-8, ... 65-128, ...

    They end there because lengths are usually padded up to, and models built for, powers of two.
    """
    ok = frame.where(frame.ok & (frame.length >= 0))
    length = ok.length
    edges = np.empty(len(length), np.int8)
    for start in range(0, len(length), _CHUNK):
        part = slice(start, start + _CHUNK)
        edges[part] = np.ceil(np.log2(np.maximum(length[part], 1)))
    buckets = np.flatnonzero(np.bincount(edges)).tolist()
    latency = _by_bucket(ok.latency_ns, edges, buckets, None)
    service = _by_bucket(ok.service_ns, edges, buckets, ok.sent)
    return [
        {
            "from": 0 if edge == 0 and int(length[edges == edge].min()) == 0 else (1 << edge) // 2 + 1,
            "to": 1 << edge,
            "n": latency[edge]["n"],
            "latency_ns": latency[edge],
            "service_ns": service[edge],
        }
        for edge in buckets
    ]


def _by_bucket(
    values: Ints, edges: npt.NDArray[np.int8], buckets: list[int], keep: Bools | None
) -> dict[int, dict[str, Any]]:
    """One measure at a time: the next one's numbers are not in memory beside it."""
    found = {}
    for edge in buckets:
        part = edges == edge
        found[edge] = distribution(_picked(values, part if keep is None else part & keep))
    return found


def errors(frame: Frame) -> dict[str, Any]:
    """Each way of going wrong once: n, the status codes, its most common words, the time until it ended.

    `service_ns` is sent to done, of those that were sent at all: how long the error took to come.
    Dropped and cancelled requests are no errors of the server's and have counts only.
    """
    found = {}
    bad = frame.where(frame.failed | frame.rejected | frame.timeout)
    for outcome in np.unique(bad.outcome).tolist():
        part = bad.where(bad.outcome == outcome)
        text, different = _commonest(part)
        codes, numbers = np.unique(part.status, return_counts=True)
        found[Outcome(outcome).name.lower()] = {
            "n": len(part),
            "status": dict(zip(map(str, codes.tolist()), numbers.tolist(), strict=True)),
            "text": text,
            "different_texts": different,
            "service_ns": distribution(part.service_ns[part.sent]),
        }
    return found


def _commonest(frame: Frame) -> tuple[str | None, int]:
    """The text most of them have, of equals the one that came first, and how many texts there are."""
    said = frame.detail
    told = np.array([bool(text) for text in (*frame.texts, "")])  # the last for NEVER
    said = said[told[said]]
    if said.size == 0:
        return None, 0
    numbers = np.bincount(said)
    most = numbers[said] == numbers.max()
    return frame.texts[int(said[np.argmax(most)])][:TEXT_CHARS], int(np.count_nonzero(numbers))
