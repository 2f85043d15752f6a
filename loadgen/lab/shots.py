"""From a plan and its kinds to framed requests, and to which of them each arrival sends.

Every process that sends builds the same variants from profile and seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.engine.parts import Care, Shot
from loadgen.lab.dialogues import chat_dialogues, sequence_dialogues
from loadgen.records import LoadgenError
from loadgen.units import show_bytes
from loadgen.workload.budget import MOST_BYTES, within_memory
from loadgen.workload.demand import Demand, demand, extremes, sent_kinds, typical
from loadgen.workload.payloads import pool_rng

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from loadgen.lab.kinds import KindMaker
    from loadgen.records import Message, Plan, Request
    from loadgen.seams import Prepared, Transport
    from loadgen.target import Target
    from loadgen.traffic.profile import Kind, TrafficProfile

_OF_A_SHOT = 1024  # bytes of Python's objects around a request's own
_LOW_BITS = 8  # of a draw choose the variant, mostly; those above whether it is cancelled


@dataclass(frozen=True, slots=True)
class Shots:
    """`picks` says for each phase which of `shots` each arrival sends; `facts` are for run.json.

    `inputs` numbers what a shot sends: shots with the same bytes have the same number.
    """

    shots: list[Shot]
    picks: list[npt.NDArray[np.int32]]
    facts: dict[str, Any]
    inputs: npt.NDArray[np.int64]

    def inputs_sent(self, plan: Plan, begun: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
        """For each kind of the plan how many requests the measured phases sent, how many different inputs those were, and
        how many repeated an input that was sent earlier in the run, also in a warm-up.

        `begun`: of each phase so many arrivals of each worker's slice were sent, from the first; a closed loop goes round
        and round.
        """
        kinds = np.array([shot.kind for shot in self.shots], np.int64)
        seen = np.zeros(int(self.inputs.max(initial=-1)) + 1, np.bool_)
        rows = [{"kind": name, "requests": 0, "distinct": 0, "repeated": 0} for name in plan.kinds]
        measured = np.zeros_like(seen)
        for phase, picks, counts in zip(plan.phases, self.picks, begun, strict=True):
            slices = [picks[worker :: len(counts)] for worker in range(len(counts))]
            times = sum(map(self._times, slices, counts), np.zeros(len(self.shots), np.int64))
            sent = times > 0
            for place in np.unique(kinds[sent]).tolist() if phase.measured else ():
                mine = sent & (kinds == place)
                inputs = np.unique(self.inputs[mine])
                total = int(times[mine].sum())
                rows[place]["requests"] += total
                rows[place]["repeated"] += total - int((~seen[inputs]).sum())
                rows[place]["distinct"] += int((~measured[inputs]).sum())
                measured[inputs] = True
            seen[self.inputs[sent]] = True
        return rows

    def _times(self, picks: npt.NDArray[np.int32], n: int) -> npt.NDArray[np.int64]:
        """How often each shot was sent by the first `n` of these, which are repeated where they are fewer."""
        rounds, rest = divmod(n, max(len(picks), 1))
        times = np.bincount(picks[:rest], minlength=len(self.shots))
        return times + rounds * np.bincount(picks, minlength=len(self.shots)) if rounds else times


def make_shots(
    transport: Transport[Any],
    target: Target,
    profile: TrafficProfile,
    makers: Sequence[KindMaker],
    plan: Plan,
    entropy: int,
) -> Shots:
    """Every variant that the plan needs, framed.  `entropy` differs from run to run (see sequences.first_id).

    Raises LoadgenError for a request that cannot fit its model.
    """
    kinds = list(profile.kinds.values())
    needed, rounded = _needed(kinds, makers, plan)
    shots: list[Shot] = []
    facts: dict[str, Any] = {}
    inputs: dict[bytes, int] = {}
    numbers: list[int] = []
    for place, (kind, maker) in enumerate(zip(kinds, makers, strict=True)):
        rng = pool_rng(plan.seed, kind.name)
        messages = maker.messages(needed.wanted[place], rng)
        prepared = [transport.prepare(message.request) for message in messages]
        mine = [
            Shot(one, place, -1 if message.length is None else message.length, message.items)
            for one, message in zip(prepared, messages, strict=True)
        ]
        ours = [inputs.setdefault(_mark(place, message), len(inputs)) for message in messages]
        if kind.distinct and (n := _planned(plan, place)) is not None and len(set(ours)) < n:
            raise LoadgenError(
                f"kind {kind.name!r}: distinct: all: {n:,} requests are planned and only {len(set(ours)):,} "
                "different ones are possible (rows of its files, values of its inputs); plan fewer, or take distinct out"
            )
        numbers += ours
        if kind.sequence is not None:
            mine = sequence_dialogues(mine, kind.sequence, target, entropy)
        if kind.chat is not None and kind.chat.turns > 1:
            mine = chat_dialogues(mine, messages, kind.chat, rng, profile.folder, transport)
        facts[kind.name] = {"variants": len(mine), "distinct": len(set(ours)), **maker.facts(len(mine))}
        if rounded[place]:
            facts[kind.name]["rounded"] = rounded[place]
        shots += mine
    shots, picks = _with_cancels(shots, kinds, plan, list(needed.picks))
    marks = np.array(numbers, np.int64)
    return Shots(shots, picks, facts, np.tile(marks, len(shots) // max(len(marks), 1)))


def _mark(place: int, message: Message) -> bytes:
    """The same for requests of a kind that a cache would take for the same."""
    request = message.request
    return blake2b(f"{place} {request.path}\n".encode() + request.body, digest_size=16).digest()


def _planned(plan: Plan, place: int) -> int | None:
    """How many requests of a kind the plan sends; None where a closed loop leaves it to the server's speed.

    Raises LoadgenError when a closed loop is longer than its draws, which start over then.
    """
    total = 0
    for phase in plan.phases:
        n = int(np.count_nonzero(phase.kind == place))
        if n and phase.loop == "closed" and phase.requests is None:
            return None
        if n and phase.loop == "closed" and phase.requests is not None and phase.requests > len(phase.kind):
            raise LoadgenError(
                f"phase {phase.name!r}: distinct: all: {phase.requests:,} requests of a closed loop; allowed: "
                f"{len(phase.kind):,}, after which its draws start over, or an open loop"
            )
        total += n
    return total


def _needed(kinds: Sequence[Kind], makers: Sequence[KindMaker], plan: Plan) -> tuple[Demand, list[str]]:
    """The variants of each kind within memory, and in words which lengths were rounded for that.

    One for each request of a kind whose inputs are all to be distinct: within 1 GiB, as many as that holds where nobody
    knows how many will be sent.  Raises LoadgenError where they are known and too many.
    """
    asked, sent = extremes(plan), sent_kinds(plan)
    most = [
        maker.most(ends) if place in sent else 0
        for place, (maker, ends) in enumerate(zip(makers, asked, strict=True))
    ]
    every = [place for place, kind in enumerate(kinds) if kind.distinct and place in sent]
    budgets = [MOST_BYTES if place in every else maker.budget for place, maker in enumerate(makers)]
    in_order = [maker.in_order and place not in every for place, maker in enumerate(makers)]
    unrepeated = [maker.unrepeated or place in every for place, maker in enumerate(makers)]
    planned = {place: _planned(plan, place) for place in every}
    every = [place for place in every if most[place] > 1]  # else nothing of the kind varies
    for place in every:
        most[place] = sum(int(np.count_nonzero(phase.kind == place)) for phase in plan.phases)
    needed = demand(plan, most, in_order, unrepeated)
    for place in every:
        wanted, size_of = needed.wanted[place], makers[place].size
        sizes = {want: size_of(want) + _OF_A_SHOT for want in set(wanted)}
        total = sum(sizes[want] for want in wanted)
        if total <= MOST_BYTES:
            continue
        possible = MOST_BYTES * len(wanted) // total
        if planned[place] is not None:
            raise LoadgenError(
                f"kind {kinds[place].name!r}: distinct: all: {len(wanted):,} requests would take {show_bytes(total)} of memory; "
                f"allowed: {show_bytes(MOST_BYTES)}, about {possible:,} of them; plan fewer, or take distinct out"
            )
        most[place] = max(1, possible)
    if every:
        needed = demand(plan, most, in_order, unrepeated)
    return within_memory(needed, [maker.size for maker in makers], budgets)


@dataclass(frozen=True, slots=True)
class FirstShot:
    """One request of a kind, and as it was before it was framed."""

    request: Request
    prepared: Prepared


def first_shots(
    transport: Transport[Any],
    target: Target,
    profile: TrafficProfile,
    makers: Sequence[KindMaker],
    plan: Plan,
) -> dict[str, FirstShot]:
    """One request of each kind that the plan sends, of a length in the middle of what is asked for; of a sequence all in one.

    Its contents are its own, where they are random: none of the load's is known to the server before.
    """
    shots = {}
    for place, (kind, maker, wanted) in enumerate(
        zip(profile.kinds.values(), makers, typical(plan), strict=True)
    ):
        if wanted is None:
            continue
        [message] = maker.messages([wanted], pool_rng(plan.seed, f"the first of {kind.name}"))
        shot = Shot(transport.prepare(message.request), place, -1, message.items)
        if kind.sequence is not None:
            [shot] = sequence_dialogues([shot], kind.sequence, target, entropy=plan.seed, requests=1)
            assert shot.care is not None  # noqa: S101 - just made
            assert shot.care.begin is not None  # noqa: S101
            shot = shot.care.begin(0).first()
        shots[kind.name] = FirstShot(message.request, shot.prepared)
    return shots


def _with_cancels(
    shots: list[Shot], kinds: Sequence[Kind], plan: Plan, picks: list[npt.NDArray[np.int32]]
) -> tuple[list[Shot], list[npt.NDArray[np.int32]]]:
    """Each variant once more, to be given up by the client; the share of arrivals that asks for it sends that."""
    if not any(kind.cancel for kind in kinds):
        return shots, picks
    shares = np.array([kind.cancel.share if kind.cancel else 0.0 for kind in kinds])
    twins = []
    for shot in shots:
        cancel, care = kinds[shot.kind].cancel, shot.care or Care()
        after_ns = cancel.after_ns if cancel else 0
        twins.append(shot._replace(care=Care(after_ns, care.begin, care.think_ns)))
    moved = []
    for phase, column in zip(plan.phases, picks, strict=True):
        chance = (phase.draw >> _LOW_BITS) / 2 ** (32 - _LOW_BITS)
        given_up = chance < shares[phase.kind]
        moved.append((column + given_up * len(shots)).astype(np.int32))
    return shots + twins, moved
