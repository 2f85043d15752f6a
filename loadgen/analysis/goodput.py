"""How many requests were good: succeeded, and within every bound that the objectives set on one request.

A bound is an objective on a time of a request with < or <= ("ttft p95 < 500ms" bounds each by 500 ms), of a kind
or of all.  Bounds on streams concern the kinds that stream.  Without a time per token (fewer than two tokens) that
bound is met; an answer without a token has no first one, and is not good where that is bounded.  Requests that failed,
were rejected, timed out or were dropped are not good, nor are answers that stopped short of the length that was asked
(measures.stopped_short); those cancelled are not judged.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.analysis.frame import Bools, Frame
from loadgen.analysis.measures import OF_STREAMS, lengths, measured, stopped_short
from loadgen.analysis.rates import Shares, per_s
from loadgen.traffic.objective import Objective, parse_objective

PER_REQUEST = ("latency", "service", *OF_STREAMS)


@dataclass(frozen=True, slots=True)
class Bound:
    """An objective as a bound on each request of the kinds and phases at these places; `phases` None: of all."""

    objective: Objective
    kinds: tuple[int, ...]
    phases: tuple[int, ...] | None = None

    def concerns(self, frame: Frame) -> Bools:
        """Which rows it bounds."""
        found = np.isin(frame.kind, self.kinds)
        if self.phases is not None:
            found &= np.isin(frame.phase, self.phases)
        if (ends := self.objective.figure.length) is not None:
            length = lengths(frame, self.objective.metric)
            found &= (ends.low <= length) & (length <= ends.high)
        return np.asarray(found, np.bool_)


def bounds_of(texts: list[str], kinds: list[str], stream_kinds: list[int], phases: list[str]) -> list[Bound]:
    """The objectives that bound a request, of a run with these kinds and phases; raises ObjectiveError on a text
    that is none.
    """
    found = []
    for objective in map(parse_objective, texts):
        if objective.metric in PER_REQUEST and objective.op in ("<", "<="):
            places = range(len(kinds)) if objective.metric not in OF_STREAMS else stream_kinds
            of = tuple(place for place in places if objective.kind in (None, kinds[place]))
            named = objective.figure.phase
            during = None if named is None else tuple(i for i, phase in enumerate(phases) if phase == named)
            found.append(Bound(objective, of, during))
    return found


def good(frame: Frame, bounds: list[Bound]) -> Bools:
    """Which rows are good."""
    found = frame.ok & ~stopped_short(frame)
    for bound in bounds:
        values, known = measured(frame, bound.objective.metric)
        within = values < bound.objective.threshold
        if bound.objective.op == "<=":
            within |= values == bound.objective.threshold
        met = known & within
        if bound.objective.metric == "tpot":
            met |= ~known
        found = found & (met | ~bound.concerns(frame))
    return found


def goodput(frame: Frame, share: Shares, span_ns: int | None, bounds: list[Bound]) -> dict[str, Any] | None:
    """Share and rates of good requests, and of the tokens in them; None when nothing bounds a request."""
    if not bounds:
        return None
    which, n = good(frame, bounds), int(np.count_nonzero(frame.judged))
    count = int(np.count_nonzero(which))
    tokens = None
    if frame.columns.streams is not None and (frame.stream("tokens_out") >= 0).any():
        tokens = per_s(float((share * which * np.maximum(frame.stream("tokens_out"), 0)).sum()), span_ns)
    return {
        "bounds": [bound.objective.text for bound in bounds],
        "n": n,
        "good": count,
        "stopped_short": int(np.count_nonzero(stopped_short(frame))),
        "share": count / n if n else None,
        "requests_per_s": per_s(float((share * which).sum()), span_ns),
        "output_tokens_per_s": tokens,
    }
