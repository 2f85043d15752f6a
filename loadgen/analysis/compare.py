"""Whether runs differ: each figure's difference and ratio with intervals, and whether it matters.

* Two sides are compared by the estimates of their figures (analysis.slo), taken as independent.
* Where both sent the same plan in an open loop (common random numbers), bursts and long requests meet both alike: the
  covariance of the two estimates is taken off, by the correlation of the sums over PAIRED_BATCHES stretches of the same
  requests (MOVER for dependent estimates: Zou and Donner, Statistics in Medicine 27, 2008).
* Sides that were measured in rounds are compared within each round (analysis.blocks).  Their spread over rounds counts
  unless it is no more than the requests within the runs explain.
* P values are read off the intervals (Altman and Bland, BMJ 343, 2011), and exact for the spread over rounds.  A figure
  is significant by Holm's method over all figures of a pair: the chance that any of equal sides is called different is
  at most ALPHA.  The intervals themselves are of one figure each.
* Beside significance stands a practical threshold: a change by less is not worth acting on.

docs/calibration.md has how often equal sides are called different, and a shift is found.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from enum import StrEnum, auto
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loadgen.analysis import intervals
from loadgen.analysis.blocks import fit
from loadgen.analysis.comparability import Difference, Severity, Side, comparability, same_plan
from loadgen.analysis.intervals import ALPHA, Estimate, Method
from loadgen.analysis.slo import bad_requests, estimate
from loadgen.records import LoadgenError
from loadgen.traffic.objective import DURATIONS, RATES, SHARES, TIMES, Figure, Objective

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loadgen.analysis.slo import Measured

FORMAT = 1  # of the JSON
PAIRED_BATCHES = 40
WORTH = 0.03  # of a ratio
WORTH_OF_SHARES = 0.005
_LEAST_PAIRED = 400  # requests: of fewer a correlation is hardly known
_MOST_CORRELATION = 0.98
_POOLED = 0.4  # level of the test whether rounds differ by more than their requests explain, as in intervals
_NORMAL = 1.959964
_LEAST_MORE, _MOST_MORE = 1.2, 1000.0  # times as much data
_LARGER_IS_BETTER = (*RATES, "goodput")
_SMALLER_IS_BETTER = (*DURATIONS, "failure rate", "rejection rate", "joules a request")
_CURVE = (*(round(i / 20, 2) for i in range(1, 20)), 0.97, 0.98, 0.99, 0.995, 0.999)


class Change(StrEnum):
    """What became of a figure from the first side to the second."""

    WORSE = auto()  # significantly, and by more than the threshold
    BETTER = auto()
    SMALL = auto()  # significant, but within the threshold
    NO_DIFFERENCE = auto()  # the whole interval lies within the threshold
    UNDECIDED = auto()
    NOT_JUDGED = auto()  # one value a run has no interval; of a batch size neither more nor less is better


class Basis(StrEnum):
    """What the interval of a comparison rests on."""

    REQUESTS = auto()
    PAIRED_REQUESTS = auto()
    ROUNDS = auto()  # the spread over rounds
    NONE = auto()


class Scale(StrEnum):
    """What is held against the threshold."""

    RATIO = auto()
    DIFFERENCE = auto()  # of shares: there the ratio of two rare things would be called large


class Conclusion(StrEnum):
    """Of a whole comparison; the first that is true."""

    NOT_COMPARABLE = auto()
    WORSE = auto()  # in one figure at least
    UNDECIDED = auto()
    NOT_WORSE = auto()


@dataclass(frozen=True, slots=True)
class Effect:
    """b against a: `difference` is b - a in the figure's unit, `ratio` b / a; `p` is None where nothing can be told."""

    difference: Estimate
    ratio: Estimate
    basis: Basis
    correlation: float
    p_difference: float | None
    p_ratio: float | None


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of two sides.  `p` by itself, `adjusted_p` by Holm's method among all judged figures of the pair.

    `more`: how many times as much data as there is would probably decide what is undecided; None where none would.
    """

    figure: Figure
    a: Estimate
    b: Estimate
    effect: Effect
    scale: Scale
    p: float | None
    adjusted_p: float | None
    change: Change
    more: float | None = None


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The difference b - a of one quantile of latency, in ns."""

    q: float
    difference: Estimate


@dataclass(frozen=True, slots=True)
class Pair:
    """A side against the first one.  `refused`: they are not comparable, and nothing was compared."""

    a: str
    b: str
    differences: tuple[Difference, ...]
    refused: bool
    figures: tuple[Compared, ...]
    curve: tuple[CurvePoint, ...]

    @property
    def judged(self) -> int:
        """Of how many figures a change was looked for."""
        return sum(one.change is not Change.NOT_JUDGED for one in self.figures)


@dataclass(frozen=True, slots=True)
class SideFacts:
    """A side as it is shown: how many runs and requests."""

    name: str
    path: str
    runs: int
    requests: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """`worth` is the threshold of ratios, `worth_of_shares` that of shares of 1; `rounds` is None for plain runs."""

    sides: tuple[SideFacts, ...]
    pairs: tuple[Pair, ...]
    worth: float
    worth_of_shares: float
    rounds: int | None

    @property
    def conclusion(self) -> Conclusion:
        """Of all pairs together."""
        if any(pair.refused for pair in self.pairs):
            return Conclusion.NOT_COMPARABLE
        changes = [one.change for pair in self.pairs for one in pair.figures]
        if Change.WORSE in changes:
            return Conclusion.WORSE
        decided = any(change not in (Change.UNDECIDED, Change.NOT_JUDGED) for change in changes)
        return Conclusion.NOT_WORSE if decided and Change.UNDECIDED not in changes else Conclusion.UNDECIDED

    def json(self) -> dict[str, Any]:
        """As scripts read it: infinite numbers are null, figures their text."""
        cleaned: dict[str, Any] = {"format": FORMAT, "conclusion": self.conclusion, **_plain(asdict(self))}
        for pair, told in zip(self.pairs, cleaned["pairs"], strict=True):
            for one, row in zip(pair.figures, told["figures"], strict=True):
                row["figure"] = str(one.figure)
                row["metric"] = one.figure.metric
        return cleaned


def compare(
    sides: Sequence[Side],
    figures: Sequence[Figure] = (),
    worth: float = WORTH,
    worth_of_shares: float = WORTH_OF_SHARES,
    *,
    force: bool = False,
    in_rounds: bool = False,
    expected: frozenset[str] = frozenset(),
) -> Comparison:
    """Each side against the first.

    `in_rounds`: the n-th runs of all sides were made in the n-th round.  `force` compares what is not comparable.
    `expected` are the aspects that differ on purpose.  Without `figures`: those that every run of this kind has.
    """
    rounds = len(sides[0].runs) if in_rounds else None
    pairs = tuple(
        _pair(sides[0], side, figures, worth, worth_of_shares, force, in_rounds, expected)
        for side in sides[1:]
    )
    facts = tuple(
        SideFacts(
            side.name, str(side.path), len(side.runs), sum(len(part.rows) for part in side.pooled.parts)
        )
        for side in sides
    )
    return Comparison(facts, pairs, worth, worth_of_shares, rounds)


def _pair(  # noqa: PLR0913 - what a comparison is made of
    a: Side,
    b: Side,
    figures: Sequence[Figure],
    worth: float,
    worth_of_shares: float,
    force: bool,
    in_rounds: bool,
    expected: frozenset[str],
) -> Pair:
    found = tuple(
        replace(one, severity=Severity.NOTE) if one.aspect in expected else one for one in comparability(a, b)
    )
    if any(one.severity is Severity.REFUSE for one in found) and not force:
        return Pair(a.name, b.name, found, refused=True, figures=(), curve=())
    paired = same_plan(a, b)
    rows = [_compared(one, a, b, paired, in_rounds) for one in figures or default_figures(a, b)]
    adjusted = iter(holm([row.p for row in rows if row.p is not None]))
    judged = []
    for row in rows:
        p = None if row.p is None else next(adjusted)
        limit = worth if row.scale is Scale.RATIO else worth_of_shares
        change = _change(row, p, limit)
        more = _more(row, limit) if change is Change.UNDECIDED else None
        judged.append(replace(row, adjusted_p=p, change=change, more=more))
    curve = []
    for q in _CURVE:
        one = _effect(Figure("latency", q), a, b, paired, in_rounds).difference
        if one.value is not None:
            curve.append(CurvePoint(q, one))
    return Pair(a.name, b.name, found, refused=False, figures=tuple(judged), curve=tuple(curve))


def default_figures(a: Side, b: Side) -> list[Figure]:
    """Latency, service, rate and failures; of streams and bounded requests theirs; the mean batch."""
    sides = (a.pooled, b.pooled)
    found = [Figure("latency", 0.5), Figure("latency", 0.9), Figure("latency", 0.99), Figure("latency")]
    found += [Figure("service", 0.5), Figure("requests/s"), Figure("failure rate")]
    if all(seen.bounds for seen in sides) and sides[0].bounds == sides[1].bounds:
        found.append(Figure("goodput"))
    if all(seen.stream_kinds and seen.frame.columns.streams is not None for seen in sides):
        found += [Figure("ttft", 0.5), Figure("ttft", 0.99), Figure("tpot", 0.5), Figure("output tokens/s")]
    if all(seen.server.get("mean_batch") is not None for seen in sides):
        found.append(Figure("mean batch"))
    return found


def _compared(figure: Figure, a: Side, b: Side, paired: bool, in_rounds: bool) -> Compared:
    if (
        figure.metric in ("goodput", "good requests/s", "good tokens/s")
        and a.pooled.bounds != b.pooled.bounds
    ):
        raise LoadgenError(
            f"{figure}: {a.name} and {b.name} have different objectives on a time of one request"
        )
    effect = _effect(figure, a, b, paired, in_rounds)
    scale = Scale.DIFFERENCE if figure.metric in SHARES or effect.ratio.value is None else Scale.RATIO
    p = effect.p_ratio if scale is Scale.RATIO else effect.p_difference
    if figure.metric not in (*_LARGER_IS_BETTER, *_SMALLER_IS_BETTER):
        p = None
    first, second = estimate(figure, a.pooled), estimate(figure, b.pooled)
    return Compared(figure, first, second, effect, scale, p, None, Change.NOT_JUDGED)


def effect_between(figure: Figure, a: Side, b: Side) -> Effect:
    """One figure of two sides, all runs of each pooled, paired where both sent the same plan."""
    return _effect(figure, a, b, same_plan(a, b), in_rounds=False)


def _effect(figure: Figure, a: Side, b: Side, paired: bool, in_rounds: bool) -> Effect:
    if in_rounds and len(a.runs) > 1:
        each = [[estimate(figure, run) for run in side.runs] for side in (a, b)]
        rounds = [
            effect_of(x, y, _correlation(figure, first, second, x, y) if paired else 0.0)
            for x, y, first, second in zip(*each, a.runs, b.runs, strict=True)
        ]
        found = effect_in_rounds(each[0], each[1], rounds)
        if found is not None:
            return found
    x, y = estimate(figure, a.pooled), estimate(figure, b.pooled)
    return effect_of(x, y, _correlation(figure, a.pooled, b.pooled, x, y) if paired else 0.0)


def _correlation(figure: Figure, a: Measured, b: Measured, first: Estimate, second: Estimate) -> float:
    """Of two sides that sent the same requests; 0 where they cannot be laid side by side."""
    if (
        figure.metric not in TIMES
        or figure.metric == "chunk gap"
        or first.value is None
        or second.value is None
    ):
        return 0.0
    whole = figure.quantile is None
    each = []
    for seen, value in ((a, first.value), (b, second.value)):
        bound = Objective("", replace(figure, quantile=0.5) if whole else figure, "<=", value)
        try:
            found = bad_requests(bound, seen)
        except LoadgenError:  # a maximum
            return 0.0
        each.append(found.values if whole and found.values is not None else found.bad)
    return correlation(each[0], each[1])


# On numbers alone: what the simulations of tests/bench use too.


def correlation(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    """Of the sums over stretches of the same requests, in the same order; at least 0."""
    if a.size != b.size or a.size < _LEAST_PAIRED:
        return 0.0
    edges = np.linspace(0, a.size, PAIRED_BATCHES + 1).astype(np.int64)[:-1]
    sums = [np.add.reduceat(one, edges, dtype=np.float64) for one in (a, b)]
    if not all(np.isfinite(one).all() and one.std() > 0 for one in sums):
        return 0.0
    return min(_MOST_CORRELATION, max(0.0, float(np.corrcoef(sums[0], sums[1])[0, 1])))


def effect_of(a: Estimate, b: Estimate, correlation: float = 0.0) -> Effect:
    """The second against the first, whose estimates have this correlation."""
    if a.value is not None and b.value is not None and math.inf in (a.value, b.value):
        return _endless(a, b)
    difference, ratio = intervals.difference(a, b), intervals.ratio(a, b)
    if correlation:
        difference = _less_covariance(difference, a, b, correlation)
        logs = _less_covariance(_log(ratio), _log(a), _log(b), correlation)
        ratio = replace(ratio, low=_exp(logs.low), high=_exp(logs.high))
    if a.method is None and b.method is None and not (a.more or b.more):  # facts, not too few values
        same = 1.0 if a.value is not None and a.value == b.value else None
        return Effect(difference, ratio, Basis.NONE, 0.0, same, same)
    basis = Basis.PAIRED_REQUESTS if correlation else Basis.REQUESTS
    return Effect(difference, ratio, basis, correlation, p_value(difference), p_value(_log(ratio)))


def _endless(a: Estimate, b: Estimate) -> Effect:
    """Where requests that never succeeded reach into a figure: it differs if all of one side's interval is there."""
    none = Estimate(None, None, None, min(a.n, b.n))
    bounded = [one.value is not None and math.isfinite(one.value) for one in (a, b)]
    lost = [one.low == math.inf for one in (a, b)]
    sure = (bounded[0] and lost[1]) or (bounded[1] and lost[0])
    value = math.inf if bounded[0] else -math.inf if bounded[1] else None
    return Effect(replace(none, value=value), none, Basis.REQUESTS, 0.0, 0.0 if sure else 1.0, None)


def effect_in_rounds(a: Sequence[Estimate], b: Sequence[Estimate], rounds: Sequence[Effect]) -> Effect | None:
    """The mean over rounds; None where a round lacks the figure.  `rounds`: the effect within each."""
    values = np.array([[_number(one) for one in side] for side in (a, b)])
    if not np.isfinite(values).all():
        return None
    n = sum(min(x.n, y.n) for x, y in zip(a, b, strict=True))
    difference, p_difference, by_rounds = _over_rounds(
        values, [one.difference for one in rounds], n, ratios=False
    )
    if not (values > 0).all():
        none = Estimate(None, None, None, n)
        basis = Basis.ROUNDS if by_rounds else rounds[0].basis
        return Effect(difference, none, basis, 0.0, p_difference, None)
    logs, p_ratio, by_rounds = _over_rounds(values, [_log(one.ratio) for one in rounds], n, ratios=True)
    ratio = replace(logs, value=_exp(logs.value), low=_exp(logs.low), high=_exp(logs.high))
    basis = Basis.ROUNDS if by_rounds else rounds[0].basis
    shared = float(np.mean([one.correlation for one in rounds]))
    return Effect(difference, ratio, basis, shared, p_difference, p_ratio)


def _over_rounds(
    values: npt.NDArray[np.float64], within: Sequence[Estimate], n: int, *, ratios: bool
) -> tuple[Estimate, float, bool]:
    """(mean with its interval, P value, whether that is of the spread over rounds) of 2 sides x rounds."""
    from scipy.special import chdtri, stdtr, stdtrit

    fitted = fit(values, ratios=ratios)
    value, error = fitted.contrast(0, 1)
    rounding = 1e-12 * max(1.0, float(np.abs(values).max()))
    value, error = (0.0 if abs(x) < rounding else x for x in (value, error))
    halves = [(one.high - one.low) / 2 for one in within if one.low is not None and one.high is not None]
    if (
        fitted.freedom > 1 and len(halves) == len(within) and all(halves)
    ):  # two rounds would not be seen to differ
        expected = math.sqrt(sum(half * half for half in halves)) / len(halves) / _NORMAL
        most = float(chdtri(fitted.freedom, _POOLED)) / fitted.freedom
        if error * error <= expected * expected * most:
            half = _NORMAL * expected
            found = Estimate(value, value - half, value + half, n, None, Method.BATCHES)
            return found, p_value(found), False
    half = float(stdtrit(fitted.freedom, 1 - ALPHA / 2)) * error
    p = 2 * float(stdtr(fitted.freedom, -abs(value) / error)) if error else float(value == 0)
    return Estimate(value, value - half, value + half, n, None, Method.RUNS), p, True


def p_value(found: Estimate) -> float:
    """Of a difference from 0, from its 95 % interval; 1 where the end towards 0 is not known."""
    from scipy.special import ndtr

    if found.value is None:
        return 1.0
    end = found.low if found.value > 0 else found.high
    if end is None or found.value == 0:
        return 1.0
    margin = abs(found.value - end)
    return 2 * float(ndtr(-_NORMAL * abs(found.value) / margin)) if margin else 0.0


def holm(values: Sequence[float]) -> list[float]:
    """P values adjusted for their number (Holm, Scandinavian Journal of Statistics 6, 1979)."""
    adjusted, largest = [1.0] * len(values), 0.0
    for place, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, values[index] * (len(values) - place)))
        adjusted[index] = largest
    return adjusted


def _change(row: Compared, p: float | None, worth: float) -> Change:
    """`p` is the adjusted one; `worth` a share: 3 % more and 3 % less than one another are alike."""
    if p is None:
        return Change.NOT_JUDGED
    logs = row.scale is Scale.RATIO
    found = _log(row.effect.ratio) if logs else row.effect.difference
    limit = math.log1p(worth) if logs else worth
    if found.value is None:
        return Change.UNDECIDED
    if p < ALPHA:
        if (row.figure.metric in SHARES or logs) and abs(found.value) <= limit:
            return Change.SMALL
        larger_is_better = row.figure.metric in _LARGER_IS_BETTER
        return Change.BETTER if (found.value > 0) == larger_is_better else Change.WORSE
    if found.low is None or found.high is None or not math.isfinite(found.value):
        return Change.UNDECIDED
    return Change.NO_DIFFERENCE if -limit <= found.low and found.high <= limit else Change.UNDECIDED


def _more(row: Compared, worth: float) -> float | None:
    """An interval narrows as the root of the data grows, until it leaves out no difference or what is worth acting on."""
    logs = row.scale is Scale.RATIO
    found = _log(row.effect.ratio) if logs else row.effect.difference
    if found.value is None or found.low is None or found.high is None or not math.isfinite(found.value):
        return found.more
    distance = max(abs(found.value), (math.log1p(worth) if logs else worth) - abs(found.value))
    times = ((found.high - found.low) / 2 / distance) ** 2 if distance > 0 else math.inf
    return max(_LEAST_MORE, times) if times <= _MOST_MORE else None


def _less_covariance(found: Estimate, a: Estimate, b: Estimate, correlation: float) -> Estimate:
    """The difference of two estimates that are not independent."""

    def end(way: int, distance: float | None, x: float | None, y: float | None) -> float | None:
        if distance is None or x is None or y is None or found.value is None:
            return distance
        if a.value is None or b.value is None:
            return distance
        square = (distance - found.value) ** 2 - 2 * correlation * abs(b.value - y) * abs(a.value - x)
        return found.value + way * math.sqrt(max(0.0, square))

    return replace(found, low=end(-1, found.low, a.high, b.low), high=end(1, found.high, a.low, b.high))


def _number(one: Estimate) -> float:
    return math.nan if one.value is None else one.value


def _log(one: Estimate) -> Estimate:
    low, value, high = (None if x is None or x <= 0 else math.log(x) for x in (one.low, one.value, one.high))
    return replace(one, value=value, low=low, high=high)


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(min(value, 700.0))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
