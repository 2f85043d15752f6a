"""Whether objectives are met: pass, fail, or inconclusive when the sample cannot say.

A percentile is judged by a distribution-free 95 % confidence interval from order statistics: with n
independent samples the number of them below the true q-quantile is Binomial(n, q), so X(l) and X(u)
enclose it for ranks l, u taken from that distribution's tails (Conover, "Practical Nonparametric
Statistics", section 3.2).  It passes when the whole interval is within the bound, fails when the whole
interval is beyond, and is inconclusive otherwise; P99 needs 368 requests before it can pass at all.
Shares use the exact interval of Clopper and Pearson (1934), a mean the normal one.  Rates, the mean batch
and the maximum are compared as observed: they are facts of this run, not samples of something else.

A request that failed, was rejected, timed out or was dropped never met a latency objective: it counts
as infinitely late.  So P99 cannot pass with more than 1 % of them, whatever the successes look like.

The limit of all this: requests of one run are autocorrelated (a queue that is long now is long a moment
later), so the true intervals are wider, and another run on another day differs by more than that.  This
module must not know how verdicts are shown or which exit code they lead to.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.analysis import figures
from loadgen.analysis.frame import Frame
from loadgen.histogram import rank
from loadgen.records import LoadgenError
from loadgen.traffic.objective import RATES, SHARES, TIMES, Objective, parse_objective

ALPHA = 0.05
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval; infinite where requests that never succeeded reach into it."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    note: str | None = None


def judge(
    texts: list[str], frame: Frame, total: dict[str, Any], server: dict[str, Any], kinds: list[str]
) -> list[dict[str, Any]]:
    """A row for each objective.  `frame` holds the requests of the measured phases, `total` their figures.

    Raises LoadgenError (ObjectiveError) on a text that is no objective or names a kind that the run has not.
    """
    rows = []
    for objective in map(parse_objective, texts):
        if objective.kind is not None and objective.kind not in kinds:
            raise LoadgenError(
                f"objective {objective.text!r}: the run has no kind {objective.kind!r}; it has {', '.join(kinds)}"
            )
        part = frame if objective.kind is None else frame.where(frame.kind == kinds.index(objective.kind))
        found = _estimate(objective, part, total, server)
        interval = None if found.low is None else [_finite(found.low), _finite(found.high)]
        rows.append(
            {
                "objective": objective.text,
                "observed": _finite(found.value),
                "verdict": verdict(objective, found),
                "n": found.n,
                "metric": objective.metric,
                "interval": interval,
                "note": found.note,
            }
        )
    return rows


def verdict(objective: Objective, found: Estimate) -> str:
    """Passes when all of the interval holds, fails when none of it does, else inconclusive."""
    if found.value is None or found.low is None or found.high is None:
        return "inconclusive"
    holds = [objective.holds(bound) for bound in (found.low, found.high)]
    return "pass" if all(holds) else "inconclusive" if any(holds) else "fail"


def _estimate(objective: Objective, frame: Frame, total: dict[str, Any], server: dict[str, Any]) -> Estimate:
    if objective.metric in TIMES:
        return _time(objective, frame)
    found = figures.counts(frame)
    if objective.metric in SHARES:
        bad = (
            found["rejected"] if objective.metric == "rejection rate" else found["failed"] + found["timeout"]
        )
        return share(bad, figures.judged(found))
    if objective.metric in RATES:
        span = total["span_ns"]
        amount = found["ok"] if objective.metric == "requests/s" else int(frame.items[frame.ok].sum())
        return _exact(amount * 1e9 / span if span else None, found["ok"])
    return _exact(server.get("mean_batch"), server.get("execution_count") or 0)


def _time(objective: Objective, frame: Frame) -> Estimate:
    ok = frame.where(frame.ok & (frame.sent | (objective.metric == "latency")))
    values = np.sort(getattr(ok, f"{objective.metric}_ns").astype(np.float64))
    if objective.quantile is None:
        return _mean(values)
    # lag is the client's own doing whatever came of the request; a drop has no service time
    lost = frame.judged & ~frame.ok if objective.metric != "lag" else np.zeros(len(frame), dtype=np.bool_)
    lost &= ~frame.dropped if objective.metric == "service" else True
    never = int(lost.sum())
    values = np.concatenate([values, np.full(never, math.inf)])
    if objective.quantile == 1.0:
        found = _exact(float(values[-1]) if values.size else None, int(values.size))
    else:
        found = quantile_interval(values, objective.quantile)
    if never:
        note = f"{never} of {values.size} requests never succeeded and count as infinitely late"
        return Estimate(found.value, found.low, found.high, found.n, note)
    return found


def quantile_interval(ordered: Floats, q: float) -> Estimate:
    """The nearest-rank quantile of sorted values with its order-statistics interval (ends may be infinite)."""
    n = int(ordered.size)
    if n == 0:
        return Estimate(None, None, None, 0)
    low, high = interval_ranks(n, q)
    value = float(ordered[rank(q, n) - 1])
    below = float(ordered[low - 1]) if low >= 1 else 0.0
    above = float(ordered[high - 1]) if high <= n else math.inf
    need = math.ceil(math.log(ALPHA / 2) / math.log(q))
    note = None if high <= n else f"at least {need} requests are needed to pass, {n} were judged"
    return Estimate(value, below, above, n, note)


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


def _mean(values: Floats) -> Estimate:
    if values.size == 0:
        return Estimate(None, None, None, 0)
    mean, n = float(values.mean()), int(values.size)
    half = 1.96 * float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    return Estimate(mean, max(0.0, mean - half), mean + half, n, "of successes")


def _exact(value: float | None, n: int) -> Estimate:
    return Estimate(value, value, value, n)


def _finite(value: float | None) -> float | None:
    """As JSON takes it: no infinity, and whole nanoseconds without a point."""
    if value is None or math.isinf(value):
        return None
    return int(value) if value > 1 and value == int(value) else value
