"""From a profile and a seed to every due time, before the first byte is sent.

An arrival law gives points on the axis of expected arrivals: 0, 1, 2, ... for uniform; sums of random gaps
of mean 1 for poisson (exponential gaps) and gamma (shape 1/burstiness).  The inverse of the cumulative rate
carries them to time, so that any law goes with any shape of rate.  Counts vary as the law has it: nothing
is rescaled to a planned number.

The same profile and seed give the same plan: each phase and purpose has its own PCG64 stream, seeded
through SeedSequence(seed, spawn_key=(phase, purpose)), so that editing one phase leaves the others as they
were.  Drawn with Generator.standard_exponential, standard_gamma, random and integers; numpy keeps their
streams within a version and says so when one changes (a test pins ours), and due times are rounded to whole
nanoseconds, far above what mathematical libraries differ by.

It must not know clocks, payloads or servers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loadgen.records import LoadgenError, PhasePlan, Plan
from loadgen.traffic.phases import Closed, Open, Phase, Segment
from loadgen.workload.lengths import draw_lengths

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from loadgen.traffic.profile import Kind, TrafficProfile
    from loadgen.traffic.trace import Trace
    from loadgen.traffic.traces.read import TraceRows

CYCLE = 65_536  # a closed loop's draws, used round and round
_WHEN, _KIND, _DRAW, _LENGTH = range(4)  # what a random stream is for
_CHUNK = (
    2**19
)  # numbers made at a time: a plan of 10 million arrivals needs no room for all its real numbers at once
_EXACT = 1e-9  # a cumulative count this close to a whole number is that number
_Reals = npt.NDArray[np.float64]


class ScheduleError(LoadgenError):
    """A plan or a slice that cannot be made."""


@dataclass(frozen=True, slots=True)
class RateCurve:
    """A piecewise linear rate over time, its integral (the expected arrivals so far) and the inverse.

    `at_ns` and `count` hold the knots, one more than there are pieces; `start` and `end` the rates per ns at
    the two ends of each piece.
    """

    at_ns: _Reals
    count: _Reals
    start: _Reals
    end: _Reals

    @property
    def total(self) -> float:
        """The expected arrivals of the whole curve."""
        return float(self.count[-1])

    def rate_per_s(self, t_ns: npt.ArrayLike) -> _Reals:
        """The rate at these moments, each within the curve."""
        t = np.asarray(t_ns, dtype=np.float64)
        piece = np.clip(np.searchsorted(self.at_ns, t, side="right") - 1, 0, len(self.start) - 1)
        part = (t - self.at_ns[piece]) / (self.at_ns[piece + 1] - self.at_ns[piece])
        rate: _Reals = (self.start[piece] + (self.end[piece] - self.start[piece]) * part) * 1e9
        return rate

    def counted(self, t_ns: npt.ArrayLike) -> _Reals:
        """The expected arrivals before these moments: r0 u + (r1 - r0) u^2 / 2d at u ns into a piece."""
        t = np.asarray(t_ns, dtype=np.float64)
        piece = np.clip(np.searchsorted(self.at_ns, t, side="right") - 1, 0, len(self.start) - 1)
        u, d = t - self.at_ns[piece], self.at_ns[piece + 1] - self.at_ns[piece]
        r0, r1 = self.start[piece], self.end[piece]
        counted: _Reals = self.count[piece] + r0 * u + (r1 - r0) * u * u / (2 * d)
        return counted

    def inverse(self, counted: npt.ArrayLike) -> _Reals:
        """The moments (ns) at which that many arrivals are expected; after a pause where it is ambiguous.

        With y arrivals into a piece of slope a: u = 2y / (r0 + sqrt(r0^2 + 2 a y)), which loses no digits
        to cancellation and holds for rates that start or end at 0.
        """
        x = np.asarray(counted, dtype=np.float64)
        piece = np.clip(np.searchsorted(self.count, x, side="right") - 1, 0, len(self.start) - 1)
        y, d = x - self.count[piece], self.at_ns[piece + 1] - self.at_ns[piece]
        r0, a = self.start[piece], (self.end[piece] - self.start[piece]) / d
        root = r0 + np.sqrt(np.maximum(r0 * r0 + 2 * a * y, 0.0))
        u = np.divide(2 * y, root, out=np.zeros_like(y), where=root > 0)
        moments: _Reals = self.at_ns[piece] + np.clip(u, 0.0, d)
        return moments


def rate_curve(segments: Sequence[Segment]) -> RateCurve:
    """The curve of an open loop's segments."""
    lasting = np.array([segment.duration_ns for segment in segments], dtype=np.float64)
    start = np.array([segment.start_per_s for segment in segments], dtype=np.float64)
    end = np.array([segment.end_per_s for segment in segments], dtype=np.float64)
    at_ns = np.concatenate([[0.0], np.cumsum(lasting)])
    count = np.concatenate([[0.0], np.cumsum(lasting * 1e-9 * (start + end) / 2)])
    whole = np.rint(count)
    count = np.where(np.abs(count - whole) <= _EXACT * np.maximum(whole, 1.0), whole, count)
    return RateCurve(at_ns, count, start * 1e-9, end * 1e-9)


def plan(profile: TrafficProfile, seed: int | None = None) -> Plan:
    """Every phase of a profile, planned in full; `seed` stands in for the profile's own.

    Raises LoadgenError for a trace that cannot be read.
    """
    chosen = profile.seed if seed is None else seed
    if chosen < 0:
        raise ScheduleError(f"seed {chosen}: allowed: a whole number of 0 or more")
    return Plan(
        seed=chosen,
        kinds=tuple(profile.kinds),
        phases=tuple(_phase(phase, index, chosen, profile) for index, phase in enumerate(profile.phases)),
    )


def _stream(seed: int, *key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))


def _phase(phase: Phase, index: int, seed: int, profile: TrafficProfile) -> PhasePlan:
    rows = None if phase.trace is None else _rows(phase.trace, profile.folder)
    facts = None if rows is None else dict(rows.facts)
    due_ns, duration_ns, closed = None, None, phase.closed
    if phase.open is not None:
        due_ns, duration_ns = _due(phase.open, _stream(seed, index, _WHEN)), phase.open.duration_ns
    elif rows is not None and rows.due_ns is not None and closed is None:
        due_ns, duration_ns = rows.due_ns, rows.duration_ns
    elif closed is None:  # rows without times, and nothing else that says when
        closed = Closed.model_validate({"users": 1})
    if facts is not None and (closed is not None or phase.open is not None):
        facts["said"] = [
            *facts.get("said", ()),
            _order_only(closed, timed=rows is not None and rows.due_ns is not None),
        ]
    requests = None if closed is None else closed.requests
    if due_ns is not None:
        n = len(due_ns)
    elif rows is not None:
        n = len(rows.length)
        requests = n if requests is None and closed is not None and closed.duration_ns is None else requests
    else:
        n = min(CYCLE, requests or CYCLE)
    kinds = list(profile.kinds.values())
    kind = _kinds(kinds, n, _stream(seed, index, _KIND))
    if rows is not None:
        told = rows.kind[np.arange(n) % len(rows.kind)]
        places = np.array([list(profile.kinds).index(name) for name in rows.kinds] or [0], np.int16)
        kind = np.where(told >= 0, places[told], kind).astype(np.int16)
    length, output = _lengths(kinds, kind, seed, index)
    if rows is not None:
        length = _told(rows.length, length, n)
        asks = np.array([not k.is_kserve for k in kinds])[kind]
        output = np.where(asks, _told(rows.output, output, n), -1).astype(np.int32)
    return PhasePlan(
        name=phase.name,
        loop="open" if due_ns is not None else "closed",
        measured=not phase.warmup,
        duration_ns=duration_ns if closed is None else closed.duration_ns,
        due_ns=due_ns,
        kind=kind,
        length=length,
        output=output,
        draw=_stream(seed, index, _DRAW).integers(0, 2**32, size=n, dtype=np.uint32),
        users=0 if closed is None else closed.users,
        requests=requests,
        think_ns=0 if closed is None else closed.think_ns,
        facts=facts,
    )


def _rows(trace: Trace, folder: Path) -> TraceRows:
    from loadgen.traffic.traces.read import read_trace  # brings pyarrow along

    return read_trace(trace, folder)


def _order_only(closed: Closed | None, *, timed: bool) -> str:
    """Why a trace gives lengths and order but not times."""
    loop = (
        "the phase's open loop"
        if closed is None
        else f"a closed loop of {closed.users} user{'s' * (closed.users > 1)}"
    )
    why = "its own times are not used" if timed else "the trace has no times"
    return f"rows are sent in file order by {loop}: {why}"


def _told(rows: npt.NDArray[np.int32], drawn: npt.NDArray[np.int32] | None, n: int) -> npt.NDArray[np.int32]:
    """A trace's lengths in file order, from the start again when there are more arrivals than rows; where it
    does not tell, those drawn from the kind's law.
    """
    told = rows if len(rows) == n else rows[np.arange(n) % len(rows)]
    return told if drawn is None else np.where(told >= 0, told, drawn).astype(np.int32)


def _kinds(kinds: Sequence[Kind], n: int, rng: np.random.Generator) -> npt.NDArray[np.int16]:
    weights = np.array([kind.weight for kind in kinds], dtype=np.float64)
    edges = np.cumsum(weights) / weights.sum()
    edges[np.flatnonzero(weights)[-1] :] = 1.0  # whatever the sum's rounding, 1 is the edge of the last kind
    chosen = np.zeros(n, np.int16)
    for start in range(0, n if len(kinds) > 1 else 0, _CHUNK):
        part = chosen[start : start + _CHUNK]
        part[:] = np.searchsorted(edges, rng.random(len(part)), side="right")
    return chosen


def _lengths(
    kinds: Sequence[Kind], kind: npt.NDArray[np.int16], seed: int, index: int
) -> tuple[npt.NDArray[np.int32] | None, npt.NDArray[np.int32] | None]:
    """Tokens in and out of each arrival, from its kind's laws; None where no kind has any.  Tensors have no
    tokens out, whatever the profile says of them.

    Each kind and direction has its own stream: a new law of one kind leaves the others as they were.
    """
    length = output = None
    if any(k.length or k.lengths for k in kinds):
        length = np.full(len(kind), -1, np.int32)
    if any((k.output or k.lengths) and not k.is_kserve for k in kinds):
        output = np.full(len(kind), -1, np.int32)
    for at, told in enumerate(kinds):
        mine = np.flatnonzero(kind == at) if len(kinds) > 1 else slice(None)
        n = len(kind[mine])
        if told.lengths is not None:
            weights = np.array([pair.weight for pair in told.lengths])
            which = _stream(seed, index, _LENGTH, at).choice(len(weights), n, p=weights / weights.sum())
            length[mine] = np.array([pair.in_ for pair in told.lengths], np.int32)[which]  # type: ignore[index]
            if output is not None and not told.is_kserve:
                output[mine] = np.array([pair.out for pair in told.lengths], np.int32)[which]
            continue
        for law, column, way in ((told.length, length, 0), (told.output, output, 1)):
            if law is not None and column is not None and not (way and told.is_kserve):
                column[mine] = draw_lengths(law.law, _stream(seed, index, _LENGTH, at, way), n)
    return length, output


def _due(loop: Open, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Due times in ns from the phase's start, ascending, each before its end.

    Uniform: the k-th arrival (from 0) is due when k are expected: the first at the start, constant gaps at a
    constant rate, and as many as the rounded-up expectation (rate x time where that is whole).
    """
    curve = rate_curve(loop.rate)
    points = _points(curve.total, loop.arrivals.burstiness, rng)
    parts = [np.rint(curve.inverse(part)).astype(np.int64) for part in points]
    if not parts:
        return np.empty(0, np.int64)
    due = np.concatenate(parts)
    del parts
    np.maximum.accumulate(due, out=due)
    return np.minimum(due, loop.duration_ns - 1, out=due)


def _points(total: float, burstiness: float, rng: np.random.Generator) -> Iterator[_Reals]:
    """Points on the axis of expected arrivals below `total`, ascending, some at a time.

    Uniform: 0, 1, 2, ...; else sums of gaps of mean 1 and variance `burstiness`, the first gap counting from 0.
    """
    if burstiness == 0:
        count = int(np.ceil(total))
        for start in range(0, count, _CHUNK):
            yield np.arange(start, min(start + _CHUNK, count), dtype=np.float64)
        return
    reached = 0.0
    while reached < total:
        left = total - reached
        n = min(_CHUNK, int(left + 6 * np.sqrt(left * burstiness) + 16))
        gaps = (
            rng.standard_exponential(n)
            if burstiness == 1
            else rng.standard_gamma(1 / burstiness, n) * burstiness
        )
        points = reached + np.cumsum(gaps)
        reached = float(points[-1])
        if reached >= total:
            points = points[: np.searchsorted(points, total, side="left")]
        yield points


def share(total: int, k: int, n: int) -> int:
    """The k-th of n parts of a whole number, as even as can be; the parts add up to it."""
    return total // n + (k < total % n)


def slice_plan(whole: Plan, k: int, n: int) -> Plan:
    """The k-th of n slices: every n-th arrival of an open loop, a share of a closed loop's users.

    The slices together are the plan, nothing twice.  Arrival i of a slice is arrival `k + i * n` of its
    phase.  A closed loop's requests are shared among the slices that have users; a slice that is left
    without either has `users` and `requests` of 0 and sends nothing.
    """
    if not 0 <= k < n <= CYCLE:
        raise ScheduleError(f"slice {k} of {n}: allowed: 0 to n - 1, of 1 to {CYCLE}")
    return replace(whole, phases=tuple(_slice(phase, k, n) for phase in whole.phases))


def _slice(phase: PhasePlan, k: int, n: int) -> PhasePlan:
    mine: dict[str, Any] = {
        name: None if column is None else column[k::n]
        for name, column in ((name, getattr(phase, name)) for name in ("kind", "draw", "length", "output"))
    }
    if phase.due_ns is not None:
        return replace(phase, due_ns=phase.due_ns[k::n], **mine)
    users, requests = share(phase.users, k, n), phase.requests
    if requests is not None:
        requests = share(requests, k, min(n, phase.users)) if users else 0
        users = users if requests else 0
    return replace(phase, **mine, users=users, requests=requests)
