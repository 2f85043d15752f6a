"""A plan in figures: how many arrivals, how bursty, of which kinds and lengths; for `profile show` and run.json.

Everything is read from the plan's own columns, so that it holds for laws, traces and saved plans alike.  Ten
million arrivals are looked at by the stretch; lengths are sorted once, 8 bytes an arrival.  It must not know
profiles, how a plan is made, nor how a figure is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from loadgen.histogram import nearest_rank

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loadgen.records import PhasePlan, Plan

COLUMNS = 48  # of the arrivals over time
_BARS = 16  # of a histogram of lengths
_WIDE = 8  # a longest length of so many medians: bars that widen, each by the same factor
_STRETCH = 2**16  # arrivals looked at together: temporaries that stay in the processor's cache
_LENGTH_BITS = 32
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How bursty due times are.

    `gap_cv` is the standard deviation of gaps over their mean: 0 even, 1 Poisson.  `dispersion` is the variance
    over the mean of the counts in `bins` whole bins of `bin_ns` (a second, or a twentieth of a shorter phase): 0 even,
    1 Poisson at a constant rate; a rate that changes adds its own to both.  `peak_per_s` is the fullest bin's,
    which begins at `peak_at_ns`.  `largest_burst` are the most arrivals due at one instant, and
    `share_an_instant` how many are not alone at theirs.  None: too few arrivals to tell.
    """

    gap_cv: float | None
    dispersion: float | None
    bin_ns: int
    bins: int
    peak_per_s: float
    peak_at_ns: int
    largest_burst: int
    share_an_instant: int


@dataclass(frozen=True, slots=True)
class Spread:
    """How lengths are spread: percentiles by nearest rank, and how many lie in [edges[i], edges[i + 1])."""

    n: int
    min: int
    mean: float
    p50: int
    p90: int
    p99: int
    max: int
    edges: tuple[int, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KindStory:
    """One kind's part of a phase: how many arrivals (None: the server's speed decides), their share of 1, and
    their tokens in and out; None where the plan has none.
    """

    planned: int | None
    share: float
    length: Spread | None
    output: Spread | None


@dataclass(frozen=True, slots=True)
class PhaseStory:
    """A planned phase in figures; None where a closed loop leaves it to the server's speed.

    `column_counts` are the arrivals in equal parts of the span, `column_ns` each.
    """

    name: str
    loop: str
    measured: bool
    span_ns: int | None
    planned: int | None
    users: int
    think_ns: int
    mean_per_s: float | None
    arrivals: Arrivals | None
    column_ns: float | None
    column_counts: tuple[int, ...] | None
    kinds: dict[str, KindStory]


def describe_plan(whole: Plan) -> list[PhaseStory]:
    """What a plan will send, phase by phase."""
    return [_story(phase, whole.kinds) for phase in whole.phases]


def _story(phase: PhasePlan, names: tuple[str, ...]) -> PhaseStory:
    due, span = phase.due_ns, phase.duration_ns
    planned = phase.requests if due is None else len(due)
    columns = None
    if due is not None and span:
        edges = np.linspace(0, span, COLUMNS + 1)
        columns = tuple(np.diff(np.searchsorted(due, edges)).tolist())
    shares = np.bincount(phase.kind, minlength=len(names)) / max(len(phase.kind), 1)
    lengths, outputs = (_spreads(column, phase.kind, len(names)) for column in (phase.length, phase.output))
    return PhaseStory(
        name=phase.name,
        loop=phase.loop,
        measured=phase.measured,
        span_ns=span,
        planned=planned,
        users=phase.users,
        think_ns=phase.think_ns,
        mean_per_s=None if due is None or not span else len(due) / (span * 1e-9),
        arrivals=arrivals_of(phase),
        column_ns=None if columns is None or not span else span / COLUMNS,
        column_counts=columns,
        kinds={
            name: KindStory(
                planned=None if planned is None else round(planned * share),
                share=float(share),
                length=length,
                output=output,
            )
            for name, share, length, output in zip(names, shares, lengths, outputs, strict=True)
        },
    )


def arrivals_of(phase: PhasePlan) -> Arrivals | None:
    """How bursty an open phase is; None for a closed one."""
    due, span = phase.due_ns, phase.duration_ns
    if due is None or not span:
        return None
    bin_ns = min(10**9, -(-span // 20))
    whole = span // bin_ns
    peak = peak_at = total = squares = 0
    for places, counts in _runs(due, bin_ns):
        top = int(counts.argmax())
        if counts[top] > peak:
            peak, peak_at = int(counts[top]), int(places[top]) * bin_ns
        full = counts[: np.searchsorted(places, whole)]
        total, squares = total + int(full.sum()), squares + int(np.dot(full, full))
    largest = shared = 0
    for _, counts in _runs(due, 1):
        largest = max(largest, int(counts.max()))
        shared += int(counts[counts > 1].sum())
    return Arrivals(
        gap_cv=_gap_cv(due),
        # whole numbers throughout: even arrivals have exactly 0
        dispersion=(squares * whole - total**2) / ((whole - 1) * total) if whole > 1 and total else None,
        bin_ns=bin_ns,
        bins=whole,
        peak_per_s=peak / (bin_ns * 1e-9),
        peak_at_ns=peak_at,
        largest_burst=largest,
        share_an_instant=shared,
    )


def fullest_per_s(whole: Plan, width_ns: int) -> float:
    """The rate of the fullest window of any phase with planned arrivals; 0 where there is none.  Shorter phases are one
    window.
    """
    peak = 0.0
    for phase in whole.phases:
        if phase.due_ns is not None and len(phase.due_ns):
            width = max(1, min(width_ns, phase.duration_ns or int(phase.due_ns[-1]) + 1))
            counts = np.bincount(phase.due_ns // width)
            peak = max(peak, float(counts.max()) * 1e9 / width)
    return peak


def _gap_cv(due: _Ints) -> float | None:
    """None for fewer than two gaps, or where all are due at once."""
    n = len(due) - 1
    if n < 2 or due[0] == due[-1]:  # noqa: PLR2004 - two gaps
        return None
    mean, squares = int(due[-1] - due[0]) / n, 0.0
    for at in range(0, n, _STRETCH):
        off = np.diff(due[at : at + _STRETCH + 1]) - mean
        squares += float(np.dot(off, off))
    return float(np.sqrt(squares / n)) / mean


def _runs(due: _Ints, width_ns: int) -> Iterator[tuple[_Ints, _Ints]]:
    """Which bins of this width have arrivals, ascending, and how many; some at a time, never none."""
    place = count = 0
    for at in range(0, len(due), _STRETCH):
        part = due[at : at + _STRETCH]
        bins = part if width_ns == 1 else part // width_ns
        edges = np.concatenate(([0], np.flatnonzero(bins[1:] != bins[:-1]) + 1, [len(bins)]))
        places, counts = bins[edges[:-1]], np.diff(edges)
        if count and places[0] != place:
            places, counts = np.append(place, places), np.append(count, counts)
        else:
            counts[0] += count
        place, count = int(places[-1]), int(counts[-1])  # it may go on in the next stretch
        if len(places) > 1:
            yield places[:-1], counts[:-1]
    if count:
        yield np.array([place]), np.array([count])


def _spreads(
    column: npt.NDArray[np.int32] | None, kind: npt.NDArray[np.int16], kinds: int
) -> list[Spread | None]:
    """One a kind, None where it has no such length: all kinds at once, by one sort of (kind, length + 1)."""
    if column is None:
        return [None] * kinds
    keys = kind.astype(np.int64)
    keys <<= _LENGTH_BITS
    keys += column
    keys += 1
    keys.sort()
    starts = np.arange(kinds + 1, dtype=np.int64) << _LENGTH_BITS
    lows, highs = np.searchsorted(keys, starts[:-1] + 1), np.searchsorted(keys, starts[1:])
    return [
        _spread(keys[low:high], int(start) + 1) if high > low else None
        for low, high, start in zip(lows, highs, starts, strict=False)
    ]


def _spread(keys: _Ints, zero: int) -> Spread:
    """Of ascending lengths, each with `zero` added."""
    n = len(keys)
    low, p50, p90, p99, high = (int(nearest_rank(keys, q)) - zero for q in (0, 0.5, 0.9, 0.99, 1))
    edges = _edges(low, p50, high)
    below = np.searchsorted(keys, edges + zero)
    total = sum(int((keys[at : at + _STRETCH] - zero).sum()) for at in range(0, n, _STRETCH))
    return Spread(
        n, low, total / n, p50, p90, p99, high, tuple(edges.tolist()), tuple(np.diff(below).tolist())
    )


def _edges(low: int, middle: int, high: int) -> _Ints:
    """Where bars begin, and after the last of them the end: as wide as one another, or ever wider."""
    if high >= _WIDE * max(middle, 1):
        edges = np.rint(np.geomspace(max(low, 1), high + 1, _BARS + 1)).astype(np.int64)
        return np.unique(np.append(low, edges))
    bars = min(_BARS, high - low + 1)
    return low + np.arange(bars + 1, dtype=np.int64) * (high - low + 1) // bars
