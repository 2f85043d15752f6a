"""The first requests before the load: does the server take each kind, and how long does it take cold?

One request of each kind, or as many at once as its model has instances: each of them may be cold, and the second
one's first answer would otherwise be among the load's (or be a timeout there).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from loadgen.lab.ask import STAGGER_S, Answer, Asker
from loadgen.lab.kinds import make_kinds
from loadgen.lab.shots import first_shots
from loadgen.lab.target import shared_memory_of
from loadgen.records import NotMeasuredError, Outcome
from loadgen.triton.facts import instance_count
from loadgen.units import show_ns
from loadgen.wire.openai import may_refuse_usage, without_usage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loadgen.lab.run import Order
    from loadgen.lab.target import Models
    from loadgen.records import Plan
    from loadgen.seams import Transport
    from loadgen.traffic.profile import Kind


@dataclass(slots=True)
class First:
    """Nanoseconds from sent to done, by kind: of the first request; of each that was sent at once with it, in the order
    of sending, where there were several.  `include_usage`: whether streams may be asked for their usage.
    """

    ns: dict[str, int] = field(default_factory=dict)
    each_ns: dict[str, list[int]] = field(default_factory=dict)
    include_usage: bool = True


async def first_answers(transport: Transport[Any], order: Order, plan: Plan, models: Models) -> First:
    """Asks, kind after kind, each within its own timeout as in the load; closes the transport.

    Raises NotMeasuredError with the server's words when a kind is refused; FitError when it cannot fit.
    """
    profile = order.profile
    memory = shared_memory_of(profile, order.target, order.options)
    asker, found = Asker(), First()
    try:
        makers = make_kinds(profile, order.target, models, memory)
        for remark in (remark for maker in makers for remark in maker.remarks):
            order.say(f"note: {remark}")
        shots = first_shots(transport, order.target, profile, makers, plan)
        if memory is not None:
            await memory.open()
            if memory.removed:
                order.say(f"removed {len(memory.removed)} shared memory regions that ended runs had left")
        at_once = {name: _at_once(profile.kinds[name], models) for name in shots}
        await transport.open(asker, max((n for n, _ in at_once.values()), default=1))
        for name, shot in shots.items():
            kind, (n, stagger_s) = profile.kinds[name], at_once[name]
            limit_s = kind.timeout_ns / 1e9
            order.say(_waiting(kind, n))
            answers = await asker.ask(
                transport, [shot.prepared] * n, in_flight=n, timeout_s=limit_s, stagger_s=stagger_s
            )
            if answers[0].outcome is not Outcome.OK and may_refuse_usage(answers[0].status, shot.request):
                order.say("the server refused that; once more without stream_options")
                found.include_usage = False
                again = transport.prepare(without_usage(shot.request))
                answers = await asker.ask(transport, [again], in_flight=1, timeout_s=limit_s)
            told = answers[0]
            if told.outcome is not Outcome.OK:
                raise NotMeasuredError(_unanswered(kind, told))
            found.ns[name] = told.latency_ns
            if n > 1:
                found.each_ns[name] = [one.latency_ns for one in answers if one.outcome is Outcome.OK]
                if lost := n - len(found.each_ns[name]):
                    order.say(f"note: {lost} of {n} first requests of kind {name} were not answered")
    finally:
        await transport.close()
        if memory is not None:
            await memory.close()
    return found


def _waiting(kind: Kind, n: int) -> str:
    until = datetime.now().astimezone() + timedelta(microseconds=kind.timeout_ns / 1000)
    places = f" on {n} instances" if n > 1 else ""
    return (
        f"first request of kind {kind.name}{places}: waiting for {kind.subject!r} for up to {show_ns(kind.timeout_ns)}, "
        f"its timeout, until {until:%H:%M:%S}"
    )


def _unanswered(kind: Kind, told: Answer) -> str:
    words = f": {told.detail}" if told.detail else ""
    if told.outcome is Outcome.TIMEOUT:
        words = (
            f": no whole answer within {show_ns(kind.timeout_ns)}, its timeout; if the model is cold and only needs longer, "
            "raise the timeout or warm it up"
        )
    return (
        f"kind {kind.name!r}: the server did not answer the first request to {kind.subject!r}"
        f" ({told.outcome.name.lower()}, status {told.status}){words}"
    )


def _at_once(kind: Kind, models: Models) -> tuple[int, float]:
    """How many first requests to send, and how far apart in seconds: so far that the batcher does not merge them.

    One of a sequence, whose requests belong together, and of shared memory, which the next one would overwrite.
    """
    facts = models.get((kind.model, kind.version))
    config: Mapping[str, Any] = (facts.config if facts is not None else None) or {}
    if not kind.is_kserve or kind.sequence is not None or kind.shared_memory:
        return 1, 0.0
    delay_us = int((config.get("dynamic_batching") or {}).get("max_queue_delay_microseconds") or 0)
    return instance_count(config) or 1, STAGGER_S + delay_us / 1e6
