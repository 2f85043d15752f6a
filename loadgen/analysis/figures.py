"""What a set of requests comes to: counts, distributions, groups by kind, length and error.

Percentiles are of successes only; whatever failed has counts and an error distribution of its own, so
that quick refusals cannot flatter a median.  This module must not know of phases, servers or verdicts.
"""

from collections import Counter
from typing import Any

import numpy as np

from loadgen.analysis.frame import Frame
from loadgen.analysis.percentiles import distribution
from loadgen.records import Outcome

TEXT_CHARS = 300


def counts(frame: Frame) -> dict[str, int]:
    """How many were tried, sent, ok, failed, rejected, timeout, dropped (see frame for the words).

    "cancelled" too when there were any: given up by us, sent or not.  ok + failed + rejected + timeout +
    dropped + cancelled are all requests.
    """
    found = {
        "tried": int(frame.tried.sum()),
        "sent": int(frame.sent.sum()),
        "ok": int(frame.ok.sum()),
        "failed": int(frame.failed.sum()),
        "rejected": int(frame.rejected.sum()),
        "timeout": int(frame.timeout.sum()),
        "dropped": int(frame.dropped.sum()),
    }
    cancelled = int(frame.cancelled.sum())
    return found | ({"cancelled": cancelled} if cancelled else {})


def answered(found: dict[str, int]) -> int:
    """The denominator of failure rates: requests tried that ended by themselves, well or not."""
    return found["ok"] + found["failed"] + found["rejected"] + found["timeout"]


def durations(frame: Frame) -> dict[str, Any]:
    """latency, service and lag of the successes."""
    ok = frame.where(frame.ok)
    return {
        "latency_ns": distribution(ok.latency_ns),
        "service_ns": distribution(ok.service_ns[ok.sent]),
        "lag_ns": distribution(ok.lag_ns[ok.sent]),
    }


def by_kind(frame: Frame, kinds: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of each kind that was asked for at all, with its batch (items a request)."""
    found = {}
    for place, kind in enumerate(kinds):
        part = frame.where(frame.kind == place)
        if len(part):
            found[kind["name"]] = {"batch": kind.get("batch"), "counts": counts(part), **durations(part)}
    return found


def by_length(frame: Frame) -> list[dict[str, Any]]:
    """Successes by length, in buckets that end at powers of two: 1, 2, 3-4, 5-8, ... 65-128, ...

    They end there because lengths are usually padded up to, and models built for, powers of two.
    """
    ok = frame.where(frame.ok & (frame.length >= 0))
    edges = np.ceil(np.log2(np.maximum(ok.length, 1))).astype(np.int64)
    found = []
    for edge in np.unique(edges).tolist():
        part = ok.where(edges == edge)
        found.append(
            {
                "from": 0 if edge == 0 and int(part.length.min()) == 0 else (1 << edge) // 2 + 1,
                "to": 1 << edge,
                "n": len(part),
                "latency_ns": distribution(part.latency_ns),
                "service_ns": distribution(part.service_ns[part.sent]),
            }
        )
    return found


def errors(frame: Frame) -> dict[str, Any]:
    """Each way of going wrong once: n, the status codes, its most common words, the time until it ended.

    `service_ns` is sent to done, of those that were sent at all: how long the error took to come.
    Dropped and cancelled requests are no errors of the server's and have counts only.
    """
    found = {}
    for outcome in np.unique(frame.outcome[frame.failed | frame.rejected | frame.timeout]).tolist():
        part = frame.where(frame.outcome == outcome)
        texts = Counter(text for text in part.detail.tolist() if text)
        codes, numbers = np.unique(part.status, return_counts=True)
        found[Outcome(outcome).name.lower()] = {
            "n": len(part),
            "status": dict(zip(map(str, codes.tolist()), numbers.tolist(), strict=True)),
            "text": texts.most_common(1)[0][0][:TEXT_CHARS] if texts else None,
            "different_texts": len(texts),
            "service_ns": distribution(part.service_ns[part.sent]),
        }
    return found
