"""What is legal in a profile but unwise: notes before anything is sent, where the report would have doubts after.

Each rule looks at one thing and says what it costs, with numbers and what to do about it.  This module must not
know servers, nor how notes are shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from loadgen.traffic.objective import TIMES
from loadgen.units import show_ns
from loadgen.workload.demand import VARIANTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loadgen.planstory import PhaseStory
    from loadgen.records import Plan
    from loadgen.traffic.objective import Objective
    from loadgen.traffic.profile import Kind, TrafficProfile

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


def unwise(profile: TrafficProfile, plan: Plan, stories: Sequence[PhaseStory]) -> list[str]:
    """Notes on a profile and its plan, one sentence each; none is an error."""
    asked = _Asked(profile, plan, stories)
    rules = (
        _few_for_a_percentile,
        _timeout_in_front,
        _cold_slots,
        _burst_over_cap,
        _rows_left_out,
        _output_of_tensors,
        _inputs_repeat,
    )
    return [note for rule in rules for note in rule(asked)]


def _few_for_a_percentile(asked: _Asked) -> Iterator[str]:
    measured = [story for story in asked.stories if story.measured]
    for objective in asked.profile.objectives:
        quantile = objective.quantile
        if quantile is None or quantile == 1:
            continue
        counts = [
            (story.kinds[kind.name].planned, _requests_each(kind))
            for story in measured
            for kind in asked.kinds_of(objective)
        ]
        if any(count is None for count, _ in counts):
            continue  # a closed loop's: the server decides
        n, needed = sum((count or 0) * each for count, each in counts), round(_BEYOND / (1 - quantile))
        if n < needed:
            yield (
                f'objective "{objective.text}": about {n:,} requests will be judged, of which {n * (1 - quantile):.1f} lie '
                f"beyond it, so chance decides; plan {needed:,} or more"
            )


def _requests_each(kind: Kind) -> int:
    """How many requests an arrival brings: a dialogue has several."""
    if kind.sequence is not None:
        return kind.sequence.requests
    return 1 if kind.chat is None else kind.chat.turns


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
