"""From a plan and its kinds to framed requests, and to which of them each arrival sends.

Every process that sends builds the same variants from profile and seed.  It must not know how they are sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.engine.parts import Care, Shot
from loadgen.lab.dialogues import chat_dialogues, sequence_dialogues
from loadgen.workload.budget import within_memory
from loadgen.workload.demand import demand, extremes, sent_kinds, typical
from loadgen.workload.payloads import pool_rng

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from loadgen.lab.kinds import KindMaker
    from loadgen.records import Plan, Request
    from loadgen.seams import Prepared, Transport
    from loadgen.target import Target
    from loadgen.traffic.profile import Kind, TrafficProfile

_LOW_BITS = 8  # of a draw choose the variant, mostly; those above whether it is cancelled


@dataclass(frozen=True, slots=True)
class Shots:
    """`picks` says for each phase which of `shots` each arrival sends; `facts` are for run.json."""

    shots: list[Shot]
    picks: list[npt.NDArray[np.int32]]
    facts: dict[str, Any]


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
    kinds, asked, sent = list(profile.kinds.values()), extremes(plan), sent_kinds(plan)
    most = [
        maker.most(ends) if place in sent else 0
        for place, (maker, ends) in enumerate(zip(makers, asked, strict=True))
    ]
    needed = demand(plan, most, [m.in_order for m in makers], [m.unrepeated for m in makers])
    needed, rounded = within_memory(needed, [m.size for m in makers], [m.budget for m in makers])
    shots: list[Shot] = []
    facts: dict[str, Any] = {}
    for place, (kind, maker) in enumerate(zip(kinds, makers, strict=True)):
        rng = pool_rng(plan.seed, kind.name)
        messages = maker.messages(needed.wanted[place], rng)
        prepared = [transport.prepare(message.request) for message in messages]
        mine = [
            Shot(one, place, -1 if message.length is None else message.length, message.items)
            for one, message in zip(prepared, messages, strict=True)
        ]
        if kind.sequence is not None:
            mine = sequence_dialogues(mine, kind.sequence, target, entropy)
        if kind.chat is not None and kind.chat.turns > 1:
            mine = chat_dialogues(mine, messages, kind.chat, rng, profile.folder, transport)
        facts[kind.name] = {"variants": len(mine), **maker.facts(len(mine))}
        if rounded[place]:
            facts[kind.name]["rounded"] = rounded[place]
        shots += mine
    shots, picks = _with_cancels(shots, kinds, plan, list(needed.picks))
    return Shots(shots, picks, facts)


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
