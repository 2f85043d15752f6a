"""Whether a run is no worse than a stored baseline run, by the interval of each figure's ratio (non-inferiority).

A row passes when the whole 95 % interval is within the margin and fails when all of it is beyond.  The intervals are
those of `analysis.compare`, paired where both sent the same plan.  Times and rates are compared by their ratio, shares
by their difference in percentage points, as a baseline without any failure has no ratio.  A figure without a phase must hold in every phase that both runs measured; its row is that of the worst.
"""

import math
import re
from dataclasses import dataclass, replace

from loadgen.analysis.comparability import Side
from loadgen.analysis.compare import Basis, Scale, effect_between
from loadgen.analysis.intervals import Estimate, Method
from loadgen.analysis.slo import Reason, Verdict, estimate
from loadgen.records import LoadgenError
from loadgen.traffic.objective import RATES, SHARES, TIMES, Figure, parse_figure

DEFAULTS = ("latency p50 5%", "latency p99 5%", "failure rate 1%")
_HIGHER_IS_BETTER = ("goodput", *RATES)
_LONGEST = 1000.0  # times the run: what needs more than that is too close to the margin to be told


@dataclass(frozen=True, slots=True)
class NoWorse:
    """How much worse than its baseline a figure may be: `margin` is a share of the baseline, of SHARES one of 1."""

    figure: Figure
    margin: float

    @property
    def scale(self) -> Scale:
        """Shares differ by points."""
        return Scale.DIFFERENCE if self.figure.metric in SHARES else Scale.RATIO

    @property
    def limit(self) -> float:
        """The worst change that is allowed."""
        worse = -self.margin if self.figure.metric in _HIGHER_IS_BETTER else self.margin
        return worse + (1 if self.scale is Scale.RATIO else 0)

    def holds(self, change: float) -> bool:
        """Whether a ratio or difference is within the margin, which itself is allowed."""
        if math.isclose(change, self.limit, rel_tol=1e-9):  # ratios come from logarithms
            return True
        return change >= self.limit if self.figure.metric in _HIGHER_IS_BETTER else change <= self.limit

    def __str__(self) -> str:
        unit = "%" if self.scale is Scale.RATIO else " point" if self.margin == 0.01 else " points"  # noqa: PLR2004 - one
        side = "below" if self.figure.metric in _HIGHER_IS_BETTER else "above"
        return f"{self.figure} at most {100 * self.margin:.10g}{unit} {side} the baseline"


def parse_no_worse(text: str) -> NoWorse:
    """Reads `latency p99 5%`.  Raises LoadgenError on anything else."""
    where = f"--no-worse {text!r}"
    whole = re.fullmatch(r"(.+?)\s+(\d+(?:\.\d+)?)\s*%", text.strip())
    if whole is None:
        raise LoadgenError(f'{where}: write a figure and how much worse it may be, e.g. "latency p99 5%"')
    figure, margin = parse_figure(whole[1]), float(whole[2]) / 100
    if figure.metric not in (*TIMES, *SHARES, *RATES) or figure.quantile == 1:
        raise LoadgenError(
            f"{where}: {figure} is one value of a run without an interval: two runs cannot be told apart by it; "
            f"allowed: {', '.join(TIMES)} as pNN or mean, {', '.join((*SHARES, *RATES))}"
        )
    if margin >= 1 and (figure.metric in _HIGHER_IS_BETTER or figure.metric in SHARES):
        raise LoadgenError(f"{where}: a margin of 100% or more allows everything; write less")
    return NoWorse(figure, margin)


@dataclass(frozen=True, slots=True)
class BaselineRow:
    """A figure of a run, of its baseline, and what became of the comparison.

    `baseline` and `run` are in ns for times, shares of 1, rates a second; null where infinite or not measured.
    `change` is their ratio or difference with its interval (an unbounded end null), `limit` the worst that is allowed.
    `phase`: which one the row is of, the worst of `phases`.  Undecided, `reason` says why and `more_s` about how many
    more seconds of each run would settle it.
    """

    text: str
    metric: str
    verdict: Verdict
    scale: Scale
    baseline: float | None
    run: float | None
    change: float | None
    interval: tuple[float | None, float | None] | None
    limit: float
    n: int
    baseline_n: int
    phase: str | None
    phases: int
    method: Method | None
    basis: Basis
    effective_n: float | None
    reason: Reason | None
    more_s: float | None


def hold_against(wanted: NoWorse, baseline: Side, run: Side) -> BaselineRow:
    """One row.  Raises LoadgenError where a run has no such phase, kind, length or model."""
    shared = [name for name in run.pooled.phases if name in baseline.pooled.phases]
    if wanted.figure.phase is not None or len(shared) < 2:  # noqa: PLR2004 - one phase is all of them
        return _row(wanted, wanted.figure, baseline, run, 1)
    rows = [_row(wanted, replace(wanted.figure, phase=name), baseline, run, len(shared)) for name in shared]
    return min(rows, key=lambda row: _rank(wanted, row))


def _rank(wanted: NoWorse, row: BaselineRow) -> tuple[int, float]:
    """Smallest for the worst."""
    change = math.inf if row.change is None else row.change
    return list(Verdict).index(row.verdict), change if wanted.figure.metric in _HIGHER_IS_BETTER else -change


def _row(wanted: NoWorse, figure: Figure, baseline: Side, run: Side, phases: int) -> BaselineRow:
    a, b = estimate(figure, baseline.pooled), estimate(figure, run.pooled)
    effect = effect_between(figure, baseline, run)
    found = effect.ratio if wanted.scale is Scale.RATIO else effect.difference
    said = verdict(wanted, a, b, found)
    reason, more_s = None, None
    if said is Verdict.INCONCLUSIVE:
        span_s = sum(p.load_ns for p in run.pooled.parts if figure.phase in (None, p.phase)) / 1e9
        reason, more_s = _settling(wanted, a, b, found, span_s)
    ends = (_finite(found.low), _finite(found.high))
    return BaselineRow(
        text=str(wanted),
        metric=figure.metric,
        verdict=said,
        scale=wanted.scale,
        baseline=_finite(a.value),
        run=_finite(b.value),
        change=_finite(found.value),
        interval=None if found.value is None or (found.method is None and found.low == found.high) else ends,
        limit=wanted.limit,
        n=b.n,
        baseline_n=a.n,
        phase=figure.phase,
        phases=phases,
        method=found.method,
        basis=effect.basis,
        effective_n=None if found.effective_n is None else round(found.effective_n, 1),
        reason=reason,
        more_s=more_s,
    )


def _ends(wanted: NoWorse, a: Estimate, b: Estimate, found: Estimate) -> tuple[float, float]:
    """The interval of the change, as far as it is bounded.

    Where there is no ratio, as requests that never succeeded make a time infinite or a rate zero, its bounds are those
    of the two intervals' ends.
    """
    low, high = found.low, found.high
    if found.value is None and wanted.scale is Scale.RATIO:
        if b.low is not None and a.high is not None and 0 < a.high < math.inf:
            low = b.low / a.high
        if b.high is not None and a.low is not None and a.low > 0 and b.high < math.inf:
            high = b.high / a.low
    least = 0.0 if wanted.scale is Scale.RATIO else -1.0
    return least if low is None else low, math.inf if high is None else high


def verdict(wanted: NoWorse, a: Estimate, b: Estimate, found: Estimate) -> Verdict:
    """Of a baseline's and a run's estimate of the figure and their ratio or difference."""
    if a.value is None or b.value is None:
        return Verdict.INCONCLUSIVE
    holds = [wanted.holds(end) for end in _ends(wanted, a, b, found)]
    return Verdict.PASS if all(holds) else Verdict.INCONCLUSIVE if any(holds) else Verdict.FAIL


def _settling(
    wanted: NoWorse, a: Estimate, b: Estimate, found: Estimate, span_s: float
) -> tuple[Reason, float | None]:
    """Why it is undecided, and about how many more seconds of each run would tell."""
    if not a.n or not b.n:
        return Reason.NO_REQUESTS, None
    end = found.low if found.value is not None and not wanted.holds(found.value) else found.high
    if wanted.figure.metric in _HIGHER_IS_BETTER:
        end = found.high if found.value is not None and not wanted.holds(found.value) else found.low
    if found.value is None or end is None:
        return Reason.MORE_DATA, _more_s(found.more, span_s)
    distance = abs(found.value - wanted.limit)
    factor = max((abs(end - found.value) / distance) ** 2 if distance else math.inf, found.more or 1.0)
    return (Reason.TOO_CLOSE, None) if factor > _LONGEST else (Reason.MORE_DATA, _more_s(factor, span_s))


def _more_s(factor: float | None, span_s: float) -> float | None:
    if factor is None or not span_s or factor <= 1:
        return None
    return float(f"{(factor - 1) * span_s:.2g}")


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
