"""Every figure of a run with its interval, and whether objectives on them are met.

The one place where a figure that is named (`traffic.objective.Figure`) becomes a number: quantiles, means and shares
over requests in order of their due times, one part for each phase (and run, of several that are pooled), by
`analysis.intervals`.  Maxima, server counters, cold starts and joules are facts of this run: they have no interval.

* A request that failed, was rejected, timed out or was dropped never met a latency objective: it counts as infinitely
  late.  So P99 cannot pass with more than 1 % of them, and a mean over any of them has no value.
* One that was cancelled by an interrupt took at least as long as it was old then.  The interval's low end takes it to
  have ended at that age, the high end as never answered; so do those whose end is unknown as the run was killed, which
  the low end leaves out.  One that was cancelled because the profile asks for it is in no figure.
* Times of streams are of the kinds that stream; each of their requests that failed counts as one infinite time.
* Rates of an open loop that kept pace are judged given its arrivals: they are what was asked for less what was lost,
  so the spread is that of the share that was answered, and where all was the rate is a fact.  Where the server fell
  behind, in a closed loop, and of tokens, the spread is that of the answers over time.
* An objective that names no phase must hold in every measured phase; its row is that of the worst.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum, auto
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.analysis import intervals
from loadgen.analysis.frame import Bools, Frame, frame_of, measured_phases
from loadgen.analysis.goodput import Bound, bounds_of, good
from loadgen.analysis.intervals import ALPHA, Estimate
from loadgen.analysis.measures import OF_STREAMS, lengths, measured, never_seen, tokens_in
from loadgen.analysis.pool import own_name
from loadgen.analysis.rates import GRAIN_NS, Window, per_s, window
from loadgen.analysis.server import Counted, counted, server_figures
from loadgen.analysis.streaming import gaps
from loadgen.analysis.told import completed
from loadgen.analysis.watched import metrics_page, watched
from loadgen.records import LoadgenError
from loadgen.runread import Run, read_run
from loadgen.traffic.objective import (
    OF_RUNS,
    RATES,
    SHARES,
    STREAM_TIMES,
    TIMES,
    Figure,
    Objective,
    parse_objective,
)

_LONGEST = 1000.0  # times the run: what needs more than that is too close to the bound to be told
_OF_TOKENS = ("output tokens/s", "input tokens/s", "good tokens/s")
_OF_STREAMS = (*STREAM_TIMES, *_OF_TOKENS)
_STARTS = {"cold start live": "live_ns", "cold start ready": "server_ready_ns", "cold start load": "load_ns",
           "cold start model ready": "model_ready_ns"}  # fmt: skip
_SERVER = {"mean batch": "mean_batch", "server queue": "queue_ns_mean", "server compute": "compute_ns_mean"}


class Verdict(StrEnum):
    """Worst first."""

    FAIL = auto()
    INCONCLUSIVE = auto()
    PASS = auto()


class Reason(StrEnum):
    """Why an objective is undecided."""

    MORE_DATA = auto()  # the interval reaches over the bound; `more_s` would probably settle it
    MORE_REQUESTS = auto()  # fewer than `needed` requests were judged
    TOO_CLOSE = auto()  # no run of reasonable length tells the figure from the bound
    NEVER = auto()  # no number of requests is enough
    UNKNOWN_ENDS = auto()  # it hangs on requests of whose end nobody knows
    NO_REQUESTS = auto()
    NO_STREAMS = auto()
    NO_TOKENS = auto()  # no answer told its tokens
    NO_BOUND = auto()  # goodput without an objective that bounds a request
    ENSEMBLE = auto()  # it has no batches of its own
    NOT_REPORTED = auto()  # by the server, or by this run


@dataclass(frozen=True, slots=True)
class Part:
    """One measured phase of one run.  `place`: its place among all phases; `unknown`: how many of its requests were
    on their way when the run was killed, None where not even that is known; `keeps_pace`: its rate is that of an open
    loop over the load itself.
    """

    phase: str
    run: int  # of several that are pooled
    place: int
    rows: Frame
    window: Window
    start_ns: int
    load_ns: int
    unknown: int | None
    keeps_pace: bool
    by_due: npt.NDArray[np.intp] | None  # places of the rows in order of their due times; None: they are


@dataclass(frozen=True, slots=True)
class Measured:
    """What figures are made of.  `info` is run.json, filled in where the run was cut short; `windows` and `frame` are
    of all phases, `parts` the measured ones; `bounds` are those that make a request good, `stream_kinds` the places of
    the kinds whose answers come in pieces.
    """

    run: Run
    info: dict[str, Any]
    frame: Frame
    windows: list[Window]
    parts: list[Part]
    counted: list[Counted]
    server: dict[str, Any]
    objectives: list[str]
    bounds: list[Bound]
    stream_kinds: list[int]
    alpha: float = ALPHA  # of the intervals: 0.05 for 95 %

    @property
    def kinds(self) -> list[str]:
        """Their names."""
        return [kind["name"] for kind in self.info.get("kinds", [])]

    @property
    def phases(self) -> list[str]:
        """The names of the measured phases; of pooled runs each once."""
        return list(dict.fromkeys(part.phase for part in self.parts))


@dataclass(frozen=True, slots=True)
class SloRow:
    """An objective and what became of it.

    `observed` is null where it is infinite or was not measured; `interval` holds [low, high] (an unbounded end null)
    and is null where there is none: of facts, and where nothing can be said.
    `level`: the share of such intervals that hold the truth, 0.95 unless the run was looked at several times.  `phase`: which one the row is of, the
    worst of `phases` that were judged; null where all are pooled.  `lost`: requests that never succeeded and count as
    infinitely late; `unknown`: requests whose end is not known.  Undecided, `reason` says why, `needed` how many
    requests a pass takes, `more_s` about how many more seconds like these would settle it.
    """

    objective: str
    observed: float | None
    verdict: Verdict
    n: int
    metric: str
    phase: str | None
    phases: int
    interval: tuple[float | None, float | None] | None
    level: float | None
    method: intervals.Method | None
    effective_n: float | None
    reason: Reason | None
    needed: int | None
    more_s: float | None
    lost: int
    unknown: int | None
    models: dict[str, float | None] | None = None  # of an ensemble: the mean batch of each step

    def json(self) -> dict[str, Any]:
        """As summary.json has it."""
        return asdict(self) | {"interval": None if self.interval is None else list(self.interval)}


@dataclass(frozen=True, slots=True)
class _Evidence:
    """An estimate with what its words need; `settled`: the same if all that is unknown had ended well."""

    estimate: Estimate
    reason: Reason | None = None
    lost: int = 0
    unknown: int | None = 0
    settled: Estimate | None = None
    models: dict[str, float | None] | None = field(default=None)


def measured_of(
    run: Run | Path | str,
    objectives: list[str] | None = None,
    frame: Frame | None = None,
    alpha: float = ALPHA,
) -> Measured:
    """Reads a run folder for its figures, also one cut short.

    `objectives` replaces those the profile stated; `frame` holds the run's rows when they were read already; `alpha`
    is the share of intervals that may miss the truth.
    Raises LoadgenError when the folder is no run or an objective cannot be read.
    """
    run = run if isinstance(run, Run) else read_run(Path(run))
    frame = frame_of(run) if frame is None else frame
    info = completed(run.info, run.beats, frame)
    if objectives is not None:
        info = info | {"objectives": objectives}
    wanted = info.get("objectives", [])
    phases, kinds = info["phases"], info.get("kinds", [])
    rows = [frame.of_phase(i) for i in range(len(phases))]
    windows = [window(part, phase) for part, phase in zip(rows, phases, strict=True)]
    streams = _stream_kinds(frame, kinds)
    found = counted(run, frame)
    return Measured(
        run=run,
        info=info,
        frame=frame,
        windows=windows,
        parts=[_part(i, phases[i], rows[i], windows[i]) for i in measured_phases(info)],
        counted=found,
        server=server_figures(run, found) | {"watched": watched(run, frame), "metrics": metrics_page(run)},
        objectives=wanted,
        bounds=bounds_of(wanted, [kind["name"] for kind in kinds], streams, [own_name(p) for p in phases]),
        stream_kinds=streams,
        alpha=alpha,
    )


def _stream_kinds(frame: Frame, kinds: list[dict[str, Any]]) -> list[int]:
    """The places of the kinds whose answers come in pieces: as run.json says; as seen, in a run that does not say.

    A whole answer of text has its tokens in streams.arrow too, and no first one that could be late.
    """
    seen = np.unique(frame.kind[frame.streamed]).tolist()
    return [place for place, kind in enumerate(kinds) if kind.get("stream", place in seen)]


def _part(place: int, phase: dict[str, Any], rows: Frame, span: Window) -> Part:
    start, end = phase.get("start_ns"), phase.get("load_end_ns")
    load_ns = 0 if start is None or end is None else int(end) - int(start)
    due = rows.due_ns
    in_order = bool((np.diff(due) >= 0).all())
    return Part(
        phase=own_name(phase),
        run=phase.get("run", 1),
        place=place,
        rows=rows,
        window=span,
        start_ns=int(start or 0),
        load_ns=load_ns,
        unknown=phase.get("unknown", 0),
        keeps_pace=phase["loop"] == "open" and abs((span.span_ns or 0) - load_ns) <= GRAIN_NS,
        by_due=None if in_order else np.argsort(due, kind="stable"),
    )


def estimate(figure: Figure, seen: Measured) -> Estimate:
    """A figure of a run with its interval; `method` is None for facts, which are compared as they are.

    `phase` None takes all measured phases together.  Times are in ns, shares of 1, rates a second; a value is infinite
    where requests that never succeeded reach into it.  Raises LoadgenError where the run has no such phase, kind,
    length or model.
    """
    return _evidence(figure, seen).estimate


@dataclass(frozen=True, slots=True)
class BadRequests:
    """Which requests an objective takes for bad, in order of their due times, and the share of them it allows.

    `values` are the times that are bounded, infinite for what never succeeded; None for a share.
    """

    allowed: float
    bad: Bools
    values: npt.NDArray[Any] | None


def bad_requests(objective: Objective, seen: Measured) -> BadRequests:
    """Of an upper bound on a percentile those beyond it, of a bound on a share those that it counts.

    Raises LoadgenError for any other objective: it is not a share of requests.
    """
    figure, q = objective.figure, objective.quantile
    parts = _parts(figure, seen)
    if (
        figure.metric in TIMES
        and q is not None
        and q < 1
        and objective.is_upper
        and figure.metric != "chunk gap"
    ):
        values = np.concatenate([np.zeros(0), *(_times(figure, part, seen).worst for part in parts)])
        bad = values > objective.threshold if objective.op == "<=" else values >= objective.threshold
        return BadRequests(1 - q, np.asarray(bad), values)
    if figure.metric in SHARES and (figure.metric == "goodput") != objective.is_upper:
        known = np.concatenate([_shared(figure, part, seen) for part in parts])
        if figure.metric == "goodput":
            return BadRequests(1 - objective.threshold, ~known, None)
        return BadRequests(objective.threshold, known, None)
    raise LoadgenError(
        f"objective {objective.text!r}: not a share of requests; allowed: a percentile with < (latency p99 < 250ms), "
        "failure rate < 1%, rejection rate < 1%, goodput > 95%"
    )


def _shared(figure: Figure, part: Part, seen: Measured) -> Bools:
    """What a share counts, of the requests that ended by themselves, in order of their due times."""
    rows, mine = part.rows, _mine(figure, part, seen)
    holds, counts = _holding(figure, rows, seen)
    return _in_order(holds, mine & counts, part)


def _holding(figure: Figure, rows: Frame, seen: Measured) -> tuple[Bools, Bools]:
    """(what a share counts, of which requests)."""
    if figure.metric == "goodput":
        return good(rows, seen.bounds), rows.judged
    bad = rows.rejected if figure.metric == "rejection rate" else rows.failed | rows.timeout
    return bad, rows.judged & ~rows.dropped


def after_filling(seen: Measured, share: float) -> Measured:
    """The same without the first part of each measured phase, in which queues fill from empty: a share of its load."""
    parts = []
    for part in seen.parts:
        keep = part.rows.due_ns >= part.start_ns + share * part.load_ns
        rows = part.rows.where(keep)
        in_order = part.by_due is None
        by_due = None if in_order else np.argsort(rows.due_ns, kind="stable")
        parts.append(replace(part, rows=rows, by_due=by_due))
    return replace(seen, parts=parts)


@dataclass(frozen=True, slots=True)
class IntervalRow:
    """A figure of a measured phase with its interval, which holds the truth in a share `level` of runs.

    Times are of the successes, as in the tables.  `low` and `high` are null where the run does not bound the figure on
    that side; `more_s`: about how many more seconds like these would.
    """

    phase: str
    figure: str
    metric: str
    value: float | None
    low: float | None
    high: float | None
    level: float
    method: intervals.Method | None
    n: int
    effective_n: float | None
    more_s: float | None


def interval_rows(seen: Measured) -> list[IntervalRow]:
    """P50, P99 and mean of latency, the failure rate and the rate of each measured phase, with their intervals."""
    return [row for phase in seen.phases for row in _interval_rows(phase, seen)]


def _interval_rows(phase: str, seen: Measured) -> list[IntervalRow]:
    parts = [part for part in seen.parts if part.phase == phase]
    ok = _by_run([_in_order(part.rows.latency_ns, part.rows.ok, part) for part in parts], parts)
    span_s = sum(part.load_ns for part in parts) / 1e9
    shares = [Figure(metric, phase=phase) for metric in ("failure rate", "requests/s")]
    found = [(Figure("latency", q, phase=phase), _statistic(ok, q, seen.alpha)) for q in (0.5, 0.99, None)]
    found += [(figure, estimate(figure, seen)) for figure in shares]
    return [
        IntervalRow(
            phase=phase,
            figure=str(replace(figure, phase=None)),
            metric=figure.metric,
            value=_finite(one.value),
            low=_finite(one.low),
            high=_finite(one.high),
            level=round(1 - seen.alpha, 6),
            method=one.method,
            n=one.n,
            effective_n=None if one.effective_n is None else round(one.effective_n, 1),
            more_s=_more_s(one.more, span_s),
        )
        for figure, one in found
    ]


def judge(texts: list[str], seen: Measured) -> list[SloRow]:
    """A row for each objective.

    Raises LoadgenError (ObjectiveError) on a text that is no objective or names what the run has not.
    """
    return [_judged(objective, seen) for objective in map(parse_objective, texts)]


def _judged(objective: Objective, seen: Measured) -> SloRow:
    figure = objective.figure
    _check(figure, seen)
    names = [name for name in seen.phases if _takes_part(replace(figure, phase=name), seen)] or seen.phases
    if not objective.each_phase or len(seen.phases) < 2:  # noqa: PLR2004 - one phase is all of them
        only = seen.phases[0] if len(seen.phases) == 1 and figure.metric not in OF_RUNS else figure.phase
        return _row(objective, replace(figure, phase=figure.phase or only), seen, 1)
    rows = [_row(objective, replace(figure, phase=name), seen, len(names)) for name in names]
    return min(rows, key=lambda row: _rank(objective, row))


def _rank(objective: Objective, row: SloRow) -> tuple[int, float]:
    """Smallest for the worst."""
    worst = math.inf if row.n and row.metric in TIMES else math.nan
    value = worst if row.observed is None else row.observed
    if math.isnan(value):
        return list(Verdict).index(row.verdict), -math.inf
    return list(Verdict).index(row.verdict), -value if objective.is_upper else value


def _row(objective: Objective, figure: Figure, seen: Measured, phases: int) -> SloRow:
    evidence = _evidence(figure, seen)
    found = evidence.estimate
    said = verdict(objective, found)
    reason, needed, more_s = None, None, None
    if said is Verdict.INCONCLUSIVE:
        span_s = sum(part.load_ns for part in _parts(figure, seen)) / 1e9
        reason, needed, more_s = _settling(objective, evidence, span_s)
    fact = found.low == math.inf or (found.low == found.high and (found.method is None or found.low is None))
    return SloRow(
        objective=objective.text,
        observed=_finite(found.value),
        verdict=said,
        n=found.n,
        metric=figure.metric,
        phase=figure.phase,
        phases=phases,
        interval=None if fact else (_finite(found.low), _finite(found.high)),
        level=None if fact or found.method is None else round(1 - seen.alpha, 6),
        method=None if fact else found.method,
        effective_n=None if fact or found.effective_n is None else round(found.effective_n, 1),
        reason=reason,
        needed=needed,
        more_s=more_s,
        lost=evidence.lost,
        unknown=evidence.unknown,
        models=evidence.models,
    )


def verdict(objective: Objective, found: Estimate) -> Verdict:
    """Passes when all of the interval holds and no fewer requests than a pass needs were judged, fails when none of it
    holds, else inconclusive.
    """
    if found.value is None:
        return Verdict.INCONCLUSIVE
    ends = (-math.inf if found.low is None else found.low, math.inf if found.high is None else found.high)
    holds = [objective.holds(end) for end in ends]
    if not any(holds):
        return Verdict.FAIL
    if found.high is None and _none_beyond(objective, found):
        return Verdict.PASS
    return Verdict.PASS if all(holds) and found.n >= requests_needed(objective) else Verdict.INCONCLUSIVE


def _none_beyond(objective: Objective, found: Estimate) -> bool:
    """Whether an upper bound on a percentile is met although the percentile has no upper end: no request was beyond it
    in twice as many independent stretches as a unanimous sample of this share needs.

    At most the share of stretches that hold a request beyond the bound is a share of the requests; the factor of two is
    for runs that seem more independent than they are (simulated: wrong in under 1 % of such passes).
    """
    q = objective.quantile
    if q is None or q >= 1 or not objective.is_upper or found.most is None or found.stretches is None:
        return False
    return objective.holds(found.most) and found.stretches >= max(
        2 * unanimous(q), requests_needed(objective)
    )


def _settling(
    objective: Objective, evidence: _Evidence, span_s: float
) -> tuple[Reason, int | None, float | None]:
    """Why it is undecided, how many requests a pass takes where there were fewer, and how many more seconds would do."""
    found, needed, settled = evidence.estimate, requests_needed(objective), evidence.settled
    hangs = settled is not None and verdict(objective, settled) is not Verdict.INCONCLUSIVE
    reason = evidence.reason
    if reason is None and (evidence.unknown is None or hangs):
        reason = Reason.UNKNOWN_ENDS
    elif reason is None and not found.n:
        reason = Reason.NO_REQUESTS
    elif reason is None and math.isinf(needed):
        reason = Reason.NEVER
    if reason is not None:
        return reason, None, None
    factor = _factor(objective, found)
    if found.n < needed:
        return Reason.MORE_REQUESTS, int(needed), _more_s(max(factor or 0.0, needed / found.n), span_s)
    if factor is not None and factor > _LONGEST:
        return Reason.TOO_CLOSE, None, None
    return Reason.MORE_DATA, None, _more_s(factor, span_s)


def _factor(objective: Objective, found: Estimate) -> float | None:
    """How many times as much data would settle it: an interval narrows as the root of the data grows."""
    if found.value is None or math.isinf(found.value):
        return found.more
    distance = abs(objective.threshold - found.value)
    end = found.high if objective.threshold > found.value else found.low
    if end is None or math.isinf(end):
        return found.more
    narrower = math.inf if not distance else (abs(end - found.value) / distance) ** 2
    return max(narrower, found.more or 1.0)


def _more_s(factor: float | None, span_s: float) -> float | None:
    if factor is None or not span_s or factor <= 1:
        return None
    return float(f"{(factor - 1) * span_s:.2g}")


def _parts(figure: Figure, seen: Measured) -> list[Part]:
    return [part for part in seen.parts if figure.phase in (None, part.phase)]


def _takes_part(figure: Figure, seen: Measured) -> bool:
    """Whether a phase can say something of a figure: one that never came to any request cannot be left out, one that
    had other requests only can.
    """
    parts = _parts(figure, seen)
    return not any(len(part.rows) for part in parts) or any(_mine(figure, part, seen).any() for part in parts)


def _mine(figure: Figure, part: Part, seen: Measured) -> Bools:
    """The rows that a figure is of: by kind, length, and where it is of streams by these."""
    rows = part.rows
    found = np.ones(len(rows), np.bool_)
    if figure.kind is not None:
        found &= rows.kind == seen.kinds.index(figure.kind)
    if figure.length is not None:
        length = lengths(rows, figure.metric)
        found &= (figure.length.low <= length) & (length <= figure.length.high)
    if figure.metric in STREAM_TIMES:
        found &= np.isin(rows.kind, seen.stream_kinds)
    return found


def _check(figure: Figure, seen: Measured) -> None:
    """Raises LoadgenError where the run has not what a figure names."""
    if figure.kind is not None and figure.kind not in seen.kinds:
        raise LoadgenError(f"{figure}: the run has no kind {figure.kind!r}; it has {', '.join(seen.kinds)}")
    if figure.phase is not None and figure.phase not in seen.phases:
        warm = figure.phase in map(own_name, seen.info["phases"])
        what = "is a warm-up, of which nothing is judged" if warm else "is none of the run's"
        known = ", ".join(seen.phases) or "none"
        raise LoadgenError(f"{figure}: phase {figure.phase!r} {what}; measured phases: {known}")
    if figure.length is not None and seen.parts and any(len(part.rows) for part in seen.parts):
        lone = replace(figure, phase=None)
        if not any(_mine(lone, part, seen).any() for part in seen.parts):
            held = np.concatenate([lengths(part.rows, figure.metric) for part in seen.parts])
            held = held[held >= 0]
            has = f"they are {held.min()} to {held.max()}" if held.size else "none has a length"
            raise LoadgenError(f"{figure}: no request of the run is that long; {has}")
    if figure.model is not None and figure.model not in (models := _models(seen.server, seen.info)):
        known = ", ".join(models) or "none"
        raise LoadgenError(f"{figure}: the server counted nothing of {figure.model!r}; models: {known}")


def _models(server: dict[str, Any], info: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The figures of each model that executed something."""
    asked = {kind["model"] for kind in info.get("kinds", [])}
    only = {name: server for name in asked if len(asked) == 1 and server.get("execution_count")}
    return {**(server.get("by_model") or only), **(server.get("composing") or {})}


def _evidence(figure: Figure, seen: Measured) -> _Evidence:
    _check(figure, seen)
    metric = figure.metric
    if metric in OF_RUNS:
        return _of_run(figure, seen)
    if metric in _SERVER:
        return _of_server(figure, seen)
    if metric in _OF_STREAMS and seen.frame.columns.streams is None:
        return _Evidence(Estimate(None, None, None, 0), Reason.NO_STREAMS)
    if metric in ("goodput", "good requests/s", "good tokens/s") and not seen.bounds:
        return _Evidence(Estimate(None, None, None, 0), Reason.NO_BOUND)
    parts = _parts(figure, seen)
    each = [part.unknown for part in parts]
    unknown = None if None in each else sum(n or 0 for n in each)
    if metric in RATES:
        found = _rate(figure, parts, seen)
    elif metric in SHARES:
        found = _share(figure, parts, seen)
    else:
        found = _time(figure, parts, seen)
    if unknown is None:
        return replace(found, estimate=replace(found.estimate, low=None, high=None, most=None), unknown=None)
    return found


# Facts: one value a run.


def _fact(value: float | None, n: int = 1, reason: Reason = Reason.NOT_REPORTED) -> _Evidence:
    found = Estimate(value, value, value, 0 if value is None else n)
    return _Evidence(found, reason if value is None else None)


def _of_run(figure: Figure, seen: Measured) -> _Evidence:
    if figure.metric == "first request":
        first = seen.info.get("first_request_ns") or {}
        each = [ns for kind, ns in first.items() if figure.kind in (None, kind) and ns is not None]
        return _fact(max(each, default=None), len(each))
    if figure.metric == "joules a request":
        gpu = (seen.server.get("watched") or {}).get("gpu") or {}
        return _fact(gpu.get("energy_j_per_request"), int(np.count_nonzero(seen.frame.ok)))
    told = (seen.info.get("cold_start") or {}).get(_STARTS[figure.metric])
    if isinstance(told, dict):  # by model: the slowest
        return _fact(max(told.values(), default=None), len(told))
    return _fact(told)


def _of_server(figure: Figure, seen: Measured) -> _Evidence:
    """Of an ensemble there is a value only where a single model executes all of it, or for a model that is named."""
    server = seen.server
    if figure.phase is not None and len(seen.phases) > 1:
        names = {seen.info["phases"][part.place]["name"] for part in _parts(figure, seen)}
        server = server_figures(seen.run, [one for one in seen.counted if one.phase in names])
    models = _models(server, seen.info)
    told = server if figure.model is None else models.get(figure.model, {})
    value = told.get(_SERVER[figure.metric])
    if value is None and figure.model is None and server.get("ensembles"):
        steps = {name: one[_SERVER[figure.metric]] for name, one in (server.get("composing") or {}).items()}
        return replace(_fact(None, 0, Reason.ENSEMBLE), models=steps)
    count = "execution_count" if figure.metric == "mean batch" else "request_count"
    return _fact(value, told.get(count) or 0)


# Times of requests.


@dataclass(frozen=True, slots=True)
class _Times:
    """Of one part, in order of the due times: `best` holds what is cancelled at the age it had, `worst` as infinite,
    `known` leaves it out; what failed is infinite in all.
    """

    known: npt.NDArray[Any]
    best: npt.NDArray[Any]
    worst: npt.NDArray[Any]
    lost: int
    open: int  # how many are infinite in the worst case only


def _by_run(each: list[npt.NDArray[Any]], parts: list[Part]) -> list[npt.NDArray[Any]]:
    """The values of the parts of one run after each other, as the intervals take them; without empty ones."""
    runs = dict.fromkeys(part.run for part in parts)
    found = [
        np.concatenate([one for one, part in zip(each, parts, strict=True) if part.run == run])
        for run in runs
    ]
    return [one for one in found if one.size]


def _time(figure: Figure, parts: list[Part], seen: Measured) -> _Evidence:
    each = [(_gaps if figure.metric == "chunk gap" else _times)(figure, part, seen) for part in parts]
    lost, unsure = sum(one.lost for one in each), sum(one.open for one in each)
    known = _statistic(_by_run([one.known for one in each], parts), figure.quantile, seen.alpha)
    if not unsure:
        reason = None if known.n else Reason.NO_REQUESTS
        return _Evidence(known, reason, lost, 0)
    best = _statistic(_by_run([one.best for one in each], parts), figure.quantile, seen.alpha)
    worst = _statistic(_by_run([one.worst for one in each], parts), figure.quantile, seen.alpha)
    values = [one.value for one in (known, best) if one.value is not None]
    both = replace(
        best, value=max(values, default=None), low=best.low, high=worst.high, n=known.n, most=worst.most
    )
    reason = None if known.n else Reason.UNKNOWN_ENDS
    return _Evidence(both, reason, lost, unsure, settled=known)


def _statistic(parts: Sequence[npt.NDArray[Any]], quantile: float | None, alpha: float) -> Estimate:
    """A quantile, the maximum (1.0) or the mean (None) of values of which some may be infinite."""
    n = sum(part.size for part in parts)
    if not n:
        return Estimate(None, None, None, 0)
    if quantile is not None and quantile < 1:
        return intervals.quantile(parts, quantile, alpha)
    most = max(float(part.max()) for part in parts)
    if quantile is not None or math.isinf(most):
        return Estimate(most, most, most, n)
    found = intervals.mean(parts, alpha)
    return found if found.low is None else replace(found, low=max(0.0, found.low))


def _times(figure: Figure, part: Part, seen: Measured) -> _Times:
    rows, metric = part.rows, figure.metric
    values, known = measured(rows, metric)
    mine = _mine(figure, part, seen)
    ended = rows.ok & known & mine
    unknown = part.unknown or 0
    if metric == "lag":  # the client's own doing, whatever came of the request
        late = cancelled = np.zeros(len(rows), np.bool_)
        unknown = 0
    else:
        if metric == "service":  # a drop, and what was cancelled unsent, has no service time
            mine = mine & (rows.sent | ~(rows.dropped | rows.cancelled))
        late = mine & ~rows.ok & rows.judged
        cancelled = mine & rows.cancelled
    best: npt.NDArray[Any] = np.where(late, math.inf, values) if late.any() else values.copy()
    if metric in OF_STREAMS and cancelled.any():
        best[cancelled & ~known] = 0.0
        if metric.startswith("ttft"):
            age = rows.service_ns if metric.endswith("from sent") else rows.latency_ns
            best = np.where(cancelled & ~known, age, best)
    if metric.startswith("ttft"):
        unseen = mine & rows.ok & ~known & never_seen(rows)  # when its first token came is not known
        best = np.where(unseen, 0.0, best)
        cancelled = cancelled | unseen
    sure, every = ended | late, ended | late | cancelled
    worst = np.where(cancelled, math.inf, best) if cancelled.any() or unknown else best
    return _Times(
        known=_in_order(best, sure, part),
        best=_in_order(best, every, part),
        worst=_then_infinite([_in_order(worst, every, part)], unknown),
        lost=int(np.count_nonzero(late)),
        open=int(np.count_nonzero(cancelled)) + unknown,
    )


def _gaps(figure: Figure, part: Part, seen: Measured) -> _Times:
    """Between the chunks of the successes, as they came; each request without success is one at the end."""
    mine = _mine(figure, part, seen)
    rows = part.rows.where(mine)
    held = gaps(rows).parts
    lost = int(np.count_nonzero(~rows.ok & rows.judged))
    unsure = int(np.count_nonzero(rows.cancelled)) + (part.unknown or 0)
    known = _then_infinite(held, lost)
    return _Times(known, known, _then_infinite([known], unsure), lost, unsure)


def _then_infinite(parts: Sequence[npt.NDArray[Any]], n: int) -> npt.NDArray[Any]:
    """Values and so many infinite ones; whole numbers, which take half the memory, where there are none."""
    ends = [np.full(n, math.inf)] if n else []
    return np.concatenate([*parts, *ends]) if parts or n else np.zeros(0)


def _in_order(values: npt.NDArray[Any], keep: Bools, part: Part) -> npt.NDArray[Any]:
    """Those that are kept, in order of their due times."""
    if part.by_due is None:
        return values if keep.all() else values[keep]
    return values[part.by_due[keep[part.by_due]]]


# Shares and rates.


def _share(figure: Figure, parts: list[Part], seen: Measured) -> _Evidence:
    """Of the requests that ended by themselves (of goodput: that were judged), with those whose end is not known as
    bad ones and as good ones.
    """
    known: list[Bools] = []
    best: list[Bools] = []
    worst: list[Bools] = []
    unsure = 0
    for part in parts:
        rows, mine = part.rows, _mine(figure, part, seen)
        holds, counts = _holding(figure, rows, seen)
        counts = mine & counts
        cancelled, unknown = mine & rows.cancelled, part.unknown or 0
        unsure += int(np.count_nonzero(cancelled)) + unknown
        known.append(_in_order(holds, counts, part))
        for all_hold, into in ((False, best), (True, worst)):
            every = _in_order(np.where(cancelled, all_hold, holds), counts | cancelled, part)
            into.append(np.concatenate([every, np.full(unknown, all_hold)]))
    found = intervals.share(_by_run(known, parts), seen.alpha)
    if not unsure:
        return _Evidence(found, None if found.n else Reason.NO_REQUESTS)
    low, high = (intervals.share(_by_run(each, parts), seen.alpha) for each in (best, worst))
    both = replace(found, low=low.low, high=high.high, effective_n=low.effective_n, method=low.method)
    return _Evidence(both, None if found.n else Reason.UNKNOWN_ENDS, 0, unsure, settled=found)


def _rate(figure: Figure, parts: list[Part], seen: Measured) -> _Evidence:
    """The rate by analysis.rates, with the spread of the same over time around it."""
    weigh = _weights(figure.metric, seen)
    total, asked, n, span_ns = 0.0, 0.0, 0, sum(part.window.span_ns or 0 for part in parts)
    answers, moments, weights, spans = [], [], [], []
    for part in parts:
        rows, mine = part.rows, _mine(figure, part, seen)
        each, counts = weigh(rows)
        counts = counts & mine
        weight = part.window.share * counts * each
        total += float(weight.sum())
        n += int(np.count_nonzero(counts))
        if part.window.span_ns:
            moments.append(rows.done_ns[counts] - part.start_ns)
            weights.append(weight[counts].astype(np.float64))
            spans.append(part.window.span_ns)
        due = mine & ~rows.planned_cancel
        asked += float(each[due].sum())
        answers.append(_in_order(counts, due, part))
    if figure.metric in _OF_STREAMS and not n:
        return _Evidence(Estimate(None, None, None, 0), Reason.NO_TOKENS)
    value, offered = per_s(total, span_ns), per_s(asked, span_ns)
    if value is None or offered is None:
        return _Evidence(Estimate(None, None, None, n), Reason.NO_REQUESTS)
    if all(part.keeps_pace for part in parts) and figure.metric not in _OF_TOKENS:
        if all(part.all() for part in answers):
            return _fact(value, n)
        found, scale = intervals.share(_by_run(answers, parts), seen.alpha), offered
    else:
        found, scale = intervals.weighted_rate(moments, weights, spans, seen.alpha), 1.0
    low, high = (
        None if end is None or found.value is None else max(0.0, value + scale * (end - found.value))
        for end in (found.low, found.high)
    )
    return _Evidence(replace(found, value=value, low=low, high=high, n=n))


def _weights(metric: str, seen: Measured) -> Callable[[Frame], tuple[npt.NDArray[Any], Bools]]:
    """What each row counts for, and which rows count."""

    def of(rows: Frame) -> tuple[npt.NDArray[Any], Bools]:
        one: npt.NDArray[Any] = np.ones(len(rows))
        if metric == "items/s":
            return rows.items, rows.ok
        if metric == "good requests/s":
            return one, good(rows, seen.bounds)
        if metric == "requests/s":
            return one, rows.ok
        tokens = tokens_in(rows) if metric == "input tokens/s" else rows.stream("tokens_out")
        counts = good(rows, seen.bounds) if metric == "good tokens/s" else rows.ok & rows.streamed
        return np.maximum(tokens, 0), counts & (tokens >= 0)

    return of


# How many requests a verdict takes.


def requests_needed(objective: Objective) -> float:
    """The fewest requests with which an objective can pass, if all of them are good and independent; infinite where no
    number can.
    """
    if objective.metric in TIMES:
        if objective.quantile is None:
            return intervals.LEAST_OF_MEAN
        if objective.quantile == 1:
            return 1
        below = objective.quantile if objective.is_upper else 1 - objective.quantile  # on the good side
        few = math.ceil(round(intervals.LEAST_EXPECTED / (1 - below), 6)) if below >= 0.5 else 1  # noqa: PLR2004 - the median
        return max(intervals.LEAST, few, unanimous(below))
    if objective.metric in SHARES:
        return unanimous(1 - objective.threshold if objective.is_upper else objective.threshold)
    return 1


def unanimous(p: float) -> float:
    """The smallest n with p^n <= ALPHA / 2: with fewer, chance alone would show so many alike."""
    if p >= 1:
        return math.inf
    return max(1, math.ceil(math.log(ALPHA / 2) / math.log(p))) if p > 0 else 1


def _finite(value: float | None) -> float | None:
    """As JSON takes it: no infinity, and whole nanoseconds without a point."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value > 1 and value == int(value) else float(value)
