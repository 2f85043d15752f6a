"""Whether objectives are met: pass, fail, or inconclusive when the sample cannot say.

A percentile is judged by a distribution-free interval from order statistics, which would cover 95 % if requests
were independent: with n independent samples the number of them below the true q-quantile is Binomial(n, q), so X(l) and X(u)
enclose it for ranks l, u taken from that distribution's tails (Conover, "Practical Nonparametric
Statistics", section 3.2).  It passes when the whole interval is within the bound, fails when the whole
interval is beyond, and is inconclusive otherwise; P99 needs 368 requests before it can pass at all.
Shares use the exact interval of Clopper and Pearson (1934), a mean the normal one.  Rates, the mean batch
and the maximum are compared as observed: they are facts of this run, not samples of something else.

A request that failed, was rejected, timed out or was dropped never met a latency objective: it counts
as infinitely late.  So P99 cannot pass with more than 1 % of them, whatever the successes look like, and a
mean over any of them has no value.  A request that was cancelled was at least as late as it was old then: past
the bound, it counts as late too.  Of a younger one, and of those that were on their way when a run was killed,
nobody knows: the interval's one end leaves them out, the other takes them as never answered.  One that was
cancelled because the profile asks for it is in no objective.

Times of streams (ttft, first content, tpot, chunk gap) are of the kinds that stream; each of their requests that
failed counts as one infinite time.

Requests of one run are not independent (a queue that is long now is long a moment later), so intervals that
cover 95 % are wider, and another run on another day differs by more than that: each row says what its interval
assumes (`Assumption`).
"""

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum, auto
from typing import Any

import numpy as np

from loadgen.analysis import figures
from loadgen.analysis.columns import Ints
from loadgen.analysis.frame import Bools, Frame
from loadgen.analysis.goodput import Bound, goodput
from loadgen.analysis.measures import measured, never_seen
from loadgen.analysis.percentiles import Tally
from loadgen.analysis.rates import Shares, per_s
from loadgen.analysis.streaming import gaps, token_rates
from loadgen.analysis.words import amount
from loadgen.histogram import rank
from loadgen.records import LoadgenError
from loadgen.traffic.objective import RATES, SHARES, STREAM_TIMES, TIMES, Objective, parse_objective

ALPHA = 0.05
Ordered = Ints | Tally
UNKNOWN = "how many requests were on their way when the run was killed is not known"


class Verdict(StrEnum):
    """Worst first."""

    FAIL = auto()
    INCONCLUSIVE = auto()
    PASS = auto()


class Assumption(StrEnum):
    """What an interval takes for granted; None of a figure that is compared as observed."""

    INDEPENDENT = "independent requests"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its interval, 95 % if requests were independent; infinite where requests that never succeeded reach into it."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What objectives are held against: the rows of the measured phases, each one's share in the rates and
    the span of these, the server's figures, and how many requests were on their way when a run was killed
    (None: not known either).  `bounds` are those that make a request good, `stream_kinds` the places of the
    kinds whose answers come in pieces.
    """

    frame: Frame
    share: Shares
    span_ns: int | None
    server: dict[str, Any]
    unknown: int | None = 0
    bounds: list[Bound] = field(default_factory=list)
    stream_kinds: list[int] = field(default_factory=list)
    _ordered: dict[str, Ordered] = field(default_factory=dict)

    def where(self, keep: Bools) -> "Measured":
        """Some of the rows, chosen by kind."""
        return replace(self, frame=self.frame.where(keep), share=self.share[keep], _ordered={})

    def ordered(self, metric: str) -> Ordered:
        """The successes' times, ascending; sorted once for all objectives."""
        if metric not in self._ordered:
            if metric == "chunk gap":
                self._ordered[metric] = gaps(self.frame)
            else:
                values, known = measured(self.frame, metric)
                self._ordered[metric] = np.sort(values[known & self.frame.ok])
        return self._ordered[metric]


def judge(texts: list[str], seen: Measured, kinds: list[str]) -> list[dict[str, Any]]:
    """A row for each objective.

    Raises LoadgenError (ObjectiveError) on a text that is no objective or names a kind that the run has not.
    """
    rows: list[dict[str, Any]] = []
    parts: dict[str | None, Measured] = {None: seen}
    for objective in map(parse_objective, texts):
        if objective.kind is not None and objective.kind not in kinds:
            raise LoadgenError(
                f"objective {objective.text!r}: the run has no kind {objective.kind!r}; it has {', '.join(kinds)}"
            )
        if objective.kind is not None and objective.kind not in parts:
            parts[objective.kind] = seen.where(seen.frame.kind == kinds.index(objective.kind))
        found = _estimate(objective, parts[objective.kind])
        if seen.unknown is None:
            found = Estimate(found.value, None, None, found.n, UNKNOWN)
        interval = None if found.low is None else [_finite(found.low), _finite(found.high)]
        rows.append(
            {
                "objective": objective.text,
                "observed": _finite(found.value),
                "verdict": verdict(objective, found),
                "n": found.n,
                "metric": objective.metric,
                "interval": interval,
                "assumes": None if interval is None else _assumption(objective),
                "note": found.note,
            }
        )
    return rows


def _assumption(objective: Objective) -> Assumption | None:
    sampled = objective.metric in (*TIMES, *SHARES) and objective.quantile != 1.0
    return Assumption.INDEPENDENT if sampled else None


def verdict(objective: Objective, found: Estimate) -> Verdict:
    """Passes when all of the interval holds, fails when none of it does, else inconclusive."""
    if found.value is None or found.low is None or found.high is None:
        return Verdict.INCONCLUSIVE
    holds = [objective.holds(bound) for bound in (found.low, found.high)]
    return Verdict.PASS if all(holds) else Verdict.INCONCLUSIVE if any(holds) else Verdict.FAIL


def _estimate(objective: Objective, seen: Measured) -> Estimate:
    metric = objective.metric
    if metric in TIMES:
        return _time(objective, seen)
    if metric in ("goodput", "good requests/s", "good tokens/s"):
        return _good(objective, seen)
    if metric in SHARES:
        return _failures(objective, seen)
    if metric in RATES:
        return _rate(objective, seen)
    return _mean_batch(seen.server)


def _mean_batch(server: dict[str, Any]) -> Estimate:
    """Of an ensemble there is one only where a single model executes all of it."""
    mean, steps = server.get("mean_batch"), server.get("composing") or {}
    note = None
    if mean is None and server.get("ensembles"):
        each = ", ".join(
            f"{name} {'-' if told['mean_batch'] is None else format(told['mean_batch'], '.2f')}"
            for name, told in steps.items()
        )
        note = f"an ensemble has no batches of its own; its models: {each or 'not told'}"
    return _exact(mean, server.get("execution_count") or 0, note)


def _failures(objective: Objective, seen: Measured) -> Estimate:
    found = figures.counts(seen.frame)
    bad = found["rejected"] if objective.metric == "rejection rate" else found["failed"] + found["timeout"]
    unsure, n = found.get("cancelled", 0) + (seen.unknown or 0), figures.answered(found)
    best, worst = share(bad, n + unsure), share(bad + unsure, n + unsure)
    few = _too_few(requests_needed(objective), n)
    return Estimate(share(bad, n).value, best.low, worst.high, n, _noted(few, _unsure(unsure)))


def _rate(objective: Objective, seen: Measured) -> Estimate:
    metric, frame = objective.metric, seen.frame
    if metric not in ("output tokens/s", "input tokens/s"):
        items = 1 if metric == "requests/s" else frame.items
        return _exact(per_s(float((seen.share * items).sum()), seen.span_ns), int(np.count_nonzero(frame.ok)))
    if frame.columns.streams is None:
        return _exact(None, 0, "the run has no streams")
    observed, n = token_rates(frame, seen.share, seen.span_ns)[metric]
    return _exact(observed, n, None if n else "no answer told its tokens")


def _good(objective: Objective, seen: Measured) -> Estimate:
    found = goodput(seen.frame, seen.share, seen.span_ns, seen.bounds)
    if found is None:
        return _exact(None, 0, "no objective bounds a time of one request, e.g. ttft p95 < 500ms")
    if objective.metric != "goodput":
        key = "requests_per_s" if objective.metric == "good requests/s" else "output_tokens_per_s"
        return _exact(found[key], found["n"])
    n, count = found["n"], found["good"]
    unsure = int(np.count_nonzero(seen.frame.cancelled)) + (seen.unknown or 0)
    worst, best = share(count, n + unsure), share(count + unsure, n + unsure)
    few = _too_few(requests_needed(objective), n)
    return Estimate(share(count, n).value, worst.low, best.high, n, _noted(few, _unsure(unsure)))


def _time(objective: Objective, seen: Measured) -> Estimate:
    """The statistic over all requests: `late` of them are certainly infinite, `unsure` perhaps."""
    metric, values = objective.metric, seen.ordered(objective.metric)
    if metric == "lag":  # the client's own doing, whatever came of the request
        return _statistic(objective, values, 0)
    late, old, unsure = (_streams if metric in STREAM_TIMES else _whole)(objective, seen)
    unsure += seen.unknown or 0
    found = _statistic(objective, values, late + old)
    notes = [found.note] if found.note else []
    if late + old:
        n = values.size + late + old
        notes = (
            [f"{late} of {amount(n, 'request')} never succeeded and {_count(late)} as infinitely late"]
            if late
            else []
        )
        notes += (
            [f"{old} of {n} {'was' if old == 1 else 'were'} cancelled when later than that"] if old else []
        )
    if unsure:
        notes += [_unsure(unsure) or ""]
        worst = _statistic(objective, values, late + old + unsure)
        low = found.low if found.low is None or worst.low is None else min(found.low, worst.low)
        return Estimate(found.value, low, worst.high, found.n, "; ".join(notes))
    return Estimate(found.value, found.low, found.high, found.n, "; ".join(notes) or None)


def _whole(objective: Objective, seen: Measured) -> tuple[int, int, int]:
    """(late, old, unsure) of latency or service: of those that did not succeed, and of those given up by an
    interrupt the ones that were late already, and the others.
    """
    frame = seen.frame.where(~seen.frame.ok)
    # a drop, and what was cancelled unsent, has no service time
    of_all = np.ones(len(frame), dtype=np.bool_)
    service = objective.metric == "service"
    counts = frame.sent | ~(frame.dropped | frame.cancelled) if service else of_all
    age = frame.service_ns if service else frame.latency_ns
    late = int((counts & frame.judged).sum())
    old = int((counts & frame.cancelled & (age >= objective.threshold)).sum())
    return late, old, int((counts & frame.cancelled).sum()) - old


def _streams(objective: Objective, seen: Measured) -> tuple[int, int, int]:
    """The same of the times of streams.  A success without any token has no first one that could be late; when the
    first one came is not known where tokens were told and none was seen.
    """
    frame = seen.frame.where(np.isin(seen.frame.kind, seen.stream_kinds) & ~seen.frame.planned_cancel)
    late = int(np.count_nonzero(~frame.ok & frame.judged))
    given_up, old = int(np.count_nonzero(frame.cancelled)), 0
    if objective.metric.startswith("ttft"):
        age = frame.service_ns if objective.metric.endswith("sent") else frame.latency_ns
        _, known = measured(frame, objective.metric)
        given_up += int(np.count_nonzero(frame.ok & ~known & never_seen(frame)))
        old = int(np.count_nonzero(frame.cancelled & ~known & (age >= objective.threshold)))
    return late, old, given_up - old


def _count(n: int) -> str:
    return "counts" if n == 1 else "count"


def _unsure(n: int) -> str | None:
    return f"how {n} more would have ended is not known" if n else None


def _statistic(objective: Objective, ordered: Ordered, infinite: int) -> Estimate:
    """Of ascending values and so many infinite ones after them."""
    if objective.quantile is None:
        if infinite:
            return Estimate(math.inf, math.inf, math.inf, ordered.size + infinite)
        return _mean(ordered)
    if objective.quantile == 1.0:
        n = int(ordered.size) + infinite
        return _exact(_at(ordered, n) if n else None, n)
    return quantile_interval(ordered, objective.quantile, infinite)


def _at(ordered: Ordered, place: int) -> float:
    """The value at a rank, counted from 1; infinite beyond the last."""
    if place > ordered.size:
        return math.inf
    return float(ordered.at(place) if isinstance(ordered, Tally) else ordered[place - 1])


def quantile_interval(ordered: Ordered, q: float, infinite: int = 0) -> Estimate:
    """The nearest-rank quantile with its order-statistics interval (ends may be infinite), of sorted values
    and so many infinite ones after them.
    """
    n = int(ordered.size) + infinite
    if n == 0:
        return Estimate(None, None, None, 0)
    low, high = interval_ranks(n, q)
    value = _at(ordered, rank(q, n))
    below = _at(ordered, low) if low >= 1 else 0.0
    above = _at(ordered, high) if high <= n else math.inf
    return Estimate(value, below, above, n, None if high <= n else _too_few(unanimous(q), n))


def requests_needed(objective: Objective) -> float:
    """The fewest requests with which an objective can pass, if all of them are good; infinite where no number can."""
    upper = objective.op.startswith("<")
    if objective.metric in TIMES:
        if objective.quantile is None:
            return 2  # a mean of one has no interval
        if objective.quantile == 1:
            return 1
        return unanimous(objective.quantile if upper else 1 - objective.quantile)
    if objective.metric in SHARES:
        return unanimous(1 - objective.threshold if upper else objective.threshold)
    return 1


def unanimous(p: float) -> float:
    """The smallest n with p^n <= ALPHA / 2: so many of n alike show that a share is beyond p, or a quantile within.

    For a quantile it is the n of which X(n) is the interval's upper end, for a share that of Clopper and Pearson.
    """
    if p >= 1:
        return math.inf
    return max(1, math.ceil(math.log(ALPHA / 2) / math.log(p))) if p > 0 else 1


def _too_few(need: float, n: int) -> str | None:
    if n >= need:
        return None
    judged = f"{n} {'was' if n == 1 else 'were'} judged"
    if math.isinf(need):
        return f"no number of requests is enough to pass, {judged}"
    return f"at least {need:.0f} requests are needed to pass, {judged}"


def _noted(*notes: str | None) -> str | None:
    return "; ".join(filter(None, notes)) or None


def interval_ranks(n: int, q: float) -> tuple[int, int]:
    """Ranks (l, u), 0 <= l < u <= n + 1, such that X(l)..X(u) misses the q-quantile on either side with
    at most 2.5 % each; 0 and n + 1 stand for "unbounded".
    """
    from scipy.special import bdtr

    def at_most(k: int) -> float:
        return float(bdtr(k, n, q)) if k >= 0 else 0.0

    low = _first(0, n, lambda k: at_most(k) > ALPHA / 2)  # P(Bin <= low - 1) <= 2.5 %
    high = _first(0, n, lambda k: 1 - at_most(k) <= ALPHA / 2) + 1  # P(Bin >= high) <= 2.5 %
    return low, high


def _first(low: int, high: int, true: Any) -> int:
    """The smallest k of low..high for which a monotone condition holds; it holds at `high`."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if true(middle) else (middle + 1, high)
    return low


def share(bad: int, n: int) -> Estimate:
    """The share bad / n with the Clopper-Pearson interval."""
    from scipy.special import betaincinv

    if n == 0:
        return Estimate(None, None, None, 0)
    low = 0.0 if bad == 0 else float(betaincinv(bad, n - bad + 1, ALPHA / 2))
    high = 1.0 if bad == n else float(betaincinv(bad + 1, n - bad, 1 - ALPHA / 2))
    return Estimate(bad / n, low, high, n)


def _mean(ordered: Ordered) -> Estimate:
    tally = ordered if isinstance(ordered, Tally) else Tally()
    if isinstance(ordered, np.ndarray):
        tally.add(ordered)
    mean, deviation, n = tally.mean, tally.deviation, tally.size
    if mean is None:
        return Estimate(None, None, None, 0)
    half = math.inf if deviation is None else 1.96 * deviation / math.sqrt(n)
    return Estimate(mean, max(0.0, mean - half), mean + half, n)


def _exact(value: float | None, n: int, note: str | None = None) -> Estimate:
    return Estimate(value, value, value, n, note)


def _finite(value: float | None) -> float | None:
    """As JSON takes it: no infinity, and whole nanoseconds without a point."""
    if value is None or math.isinf(value):
        return None
    return int(value) if value > 1 and value == int(value) else value
