"""What is legal in a profile but unwise: notes before anything is sent, where the report would have doubts after.

Each rule looks at one thing and says what it costs, with numbers and what to do about it.  This module must not
know servers, nor how notes are shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loadgen.analysis.goodput import bounds_of
from loadgen.analysis.slo import requests_needed
from loadgen.traffic.objective import STREAM_TIMES, TIMES
from loadgen.units import show_ns
from loadgen.workload.demand import VARIANTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loadgen.planstory import PhaseStory, Spread
    from loadgen.records import Plan
    from loadgen.traffic.objective import Objective
    from loadgen.traffic.profile import Kind, TrafficProfile

_OF_AN_OUTAGE = frozenset((500, 502, 503, 504, 13, 14))  # HTTP, and INTERNAL and UNAVAILABLE of gRPC
_BEYOND = 10  # requests past a percentile, below which it is a matter of luck
_OF_PIECES = ("lag", "tpot", "chunk gap")  # times that a timeout does not bound


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the rules look at."""

    profile: TrafficProfile
    plan: Plan
    stories: Sequence[PhaseStory]

    def kinds_of(self, objective: Objective) -> list[Kind]:
        return [k for k in self.profile.kinds.values() if objective.kind in (None, k.name)]

    def judged(self, objective: Objective) -> int | None:
        """How many requests (of chunk gaps: gaps) will be judged if all are answered; None: the server decides.

        Of an objective that each phase must hold, those of the phase that has the fewest.
        """
        phase = objective.figure.phase
        each = [self._planned_in(story, objective) for story in self.stories
                if story.measured and phase in (None, story.name)]  # fmt: skip
        known = [n for n in each if n is not None]
        if len(known) < len(each):
            return None
        if objective.each_phase:
            return round(min((n for n in known if n), default=0.0))
        return round(sum(known))

    def _planned_in(self, story: PhaseStory, objective: Objective) -> float | None:
        n = 0.0
        for kind in self.kinds_of(objective):
            each = _values_each(kind, story.kinds[kind.name].output, objective)
            planned = _planned(story, kind.name)
            if planned is None or each is None:
                return None
            given_up = kind.cancel.share if kind.cancel is not None else 0.0  # among the first of a dialogue
            n += planned * (each - given_up)
        return n


def unwise(profile: TrafficProfile, plan: Plan, stories: Sequence[PhaseStory]) -> list[str]:
    """Notes on a profile and its plan, one sentence each; none is an error."""
    asked = _Asked(profile, plan, stories)
    rules = (
        _few_to_decide,
        _timeout_in_front,
        _cold_slots,
        _burst_over_cap,
        _rows_left_out,
        _output_of_tensors,
        _outage_called_full,
        _inputs_repeat,
    )
    return [note for rule in rules for note in rule(asked)]


def _few_to_decide(asked: _Asked) -> Iterator[str]:
    for objective in asked.profile.objectives:
        if objective.metric == "goodput" and not _bounded(asked):
            yield (
                f'objective "{objective.text}": no other objective bounds a time of one request, so none is good or bad; '
                'add one, e.g. "latency p95 < 1s"'
            )
            continue
        needed, n = requests_needed(objective), asked.judged(objective)
        if needed == 1 or n is None:
            continue
        quantile = objective.quantile
        if math.isinf(needed):
            yield f'objective "{objective.text}": no number of requests can prove it; leave room for one that fails'
        elif n < needed:
            yield (
                f'objective "{objective.text}": about {n:,} requests will be judged, and it cannot pass with fewer than '
                f"{needed:,.0f}, however good they are; plan {needed:,.0f} or more"
            )
        elif quantile is not None and n < (plenty := round(_BEYOND / (1 - quantile))):
            yield (
                f'objective "{objective.text}": about {n:,} requests will be judged, of which {n * (1 - quantile):.1f} lie '
                f"beyond it, so chance decides; plan {plenty:,} or more"
            )


def _bounded(asked: _Asked) -> bool:
    kinds, phases = list(asked.profile.kinds), [phase.name for phase in asked.profile.phases]
    streams = [place for place, kind in enumerate(asked.profile.kinds.values()) if _streams(kind)]
    return any(
        bound.kinds for bound in bounds_of([o.text for o in asked.profile.objectives], kinds, streams, phases)
    )


def _streams(kind: Kind) -> bool:
    return kind.stream or (kind.text is not None and kind.text.stream)


def _planned(story: PhaseStory, kind: str) -> float | None:
    """How many requests of a kind a phase has; of a timed closed loop, how many its pauses leave room for at most."""
    told = story.kinds[kind]
    if told.planned is None and story.think_ns and story.span_ns:
        return story.users * (1 + story.span_ns // story.think_ns) * told.share
    return told.planned


def _values_each(kind: Kind, output: Spread | None, objective: Objective) -> float | None:
    """How many values of a metric an arrival brings: a dialogue has several requests, an answer several gaps."""
    requests = 1
    if kind.sequence is not None:
        requests = kind.sequence.requests
    elif kind.chat is not None:
        requests = kind.chat.turns
    if objective.metric not in STREAM_TIMES:
        return requests
    if not _streams(kind):
        return 0
    if objective.metric == "chunk gap":
        return None if output is None else requests * max(0.0, output.mean - 1)
    return requests


def _timeout_in_front(asked: _Asked) -> Iterator[str]:
    for objective in asked.profile.objectives:
        if (
            objective.metric not in TIMES
            or objective.metric in _OF_PIECES
            or not objective.op.startswith("<")
        ):
            continue
        short = [kind for kind in asked.kinds_of(objective) if kind.timeout_ns < objective.threshold]
        if short:
            said = ", ".join(f"{kind.name} {show_ns(kind.timeout_ns)}" for kind in short)
            yield (
                f'objective "{objective.text}": the timeout ends sooner ({said}), so slower answers are never seen; '
                "make the timeout longer than the bound"
            )


def _cold_slots(asked: _Asked) -> Iterator[str]:
    warm = [story for story in asked.stories if not story.measured]
    if not warm:
        yield "no phase is a warm-up, so first requests are in the figures; put one with warmup: true first"
        return
    most = max(asked.stories, key=lambda story: story.users * story.measured)
    users = max(story.users for story in warm)
    if most.measured and most.users > users and all(story.loop == "closed" for story in warm):
        yield (
            f"the warm-up has {_users(users)}, phase {most.name!r} has {_users(most.users)}, so some of the server's slots "
            "begin cold; give the warm-up as many"
        )


def _users(n: int) -> str:
    return f"{n:,} user{'' if n == 1 else 's'}"


def _burst_over_cap(asked: _Asked) -> Iterator[str]:
    cap = asked.profile.cap
    for story in asked.stories:
        if cap is not None and story.arrivals is not None and story.arrivals.largest_burst > cap.in_flight:
            burst = story.arrivals.largest_burst
            fate = "wait for the cap" if cap.when_full == "wait" else "are dropped"
            yield (
                f"phase {story.name!r}: up to {burst:,} arrivals are due at one instant, the cap is {cap.in_flight:,}: "
                f"{burst - cap.in_flight:,} of them {fate} whatever the server does"
            )


def _rows_left_out(asked: _Asked) -> Iterator[str]:
    for phase in asked.plan.phases:
        facts = phase.facts or {}
        if dropped := facts.get("dropped"):
            lost = ", ".join(f"{reason}: {n:,}" for reason, n in dropped.items())
            yield (
                f"phase {phase.name!r}: {sum(dropped.values()):,} of {facts['rows_read']:,} rows of {facts['file']} are left "
                f"out ({lost})"
            )


def _output_of_tensors(asked: _Asked) -> Iterator[str]:
    for kind in asked.profile.kinds.values():
        if kind.is_kserve and kind.output is not None:
            yield f"kind {kind.name!r}: tensors have no tokens out, so output is not used; take it out"


def _outage_called_full(asked: _Asked) -> Iterator[str]:
    for kind in asked.profile.kinds.values():
        if kind.full is None or kind.full.words:
            continue
        for status in sorted(_OF_AN_OUTAGE.intersection(kind.full.status)):
            yield (
                f"kind {kind.name!r}: full calls every status {status} a full queue, and a server or proxy that is down "
                "answers with it too; add the words that the full queue has"
            )


def _inputs_repeat(asked: _Asked) -> Iterator[str]:
    """Random inputs of a kind are about 512 in turns; lengths may ask for more, memory for fewer."""
    for kind in asked.profile.kinds.values():
        if kind.distinct is not None or kind.sequence is not None or _has_rows(kind):
            continue
        counts = [story.kinds[kind.name].planned for story in asked.stories if kind.name in story.kinds]
        n = sum(count or 0 for count in counts)
        if None in counts or n <= VARIANTS:
            continue
        yield (
            f"kind {kind.name!r}: its {n:,} requests take about {VARIANTS} inputs in turns, so {1 - VARIANTS / n:.0%} repeat "
            "one, which a response or prefix cache would know; write distinct: all where the server has such a cache"
        )


def _has_rows(kind: Kind) -> bool:
    """Whether its inputs are rows of files."""
    if kind.text is not None:
        return kind.text.prompts is not None
    return kind.data is not None or any(fill.file is not None for fill in kind.inputs.values())
