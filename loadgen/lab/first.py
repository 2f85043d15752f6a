"""One request of each kind, alone, before the load: does the server take it, and how long does it take cold?"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from loadgen.lab.kinds import make_kinds
from loadgen.lab.shots import first_shots
from loadgen.lab.target import shared_memory_of
from loadgen.records import NotMeasuredError, Outcome
from loadgen.wire.openai import may_refuse_usage, without_usage

if TYPE_CHECKING:
    from loadgen.lab.run import Order
    from loadgen.lab.target import Models
    from loadgen.records import Plan, Streamed
    from loadgen.seams import Prepared, Transport

_COLD_S = 120.0  # a first request may meet a cold model


async def first_answers(
    transport: Transport[Any], order: Order, plan: Plan, models: Models
) -> tuple[dict[str, int], bool]:
    """Nanoseconds from sent to done of each kind's first request, and whether streams may be asked for their
    usage; closes the transport.

    Raises NotMeasuredError with the server's words when a kind is refused; FitError when it cannot fit.
    """
    profile = order.profile
    memory = shared_memory_of(profile, order.target, order.options)
    probe = _Probe()
    took, include_usage = {}, True
    try:
        makers = make_kinds(profile, order.target, models, memory)
        for remark in (remark for maker in makers for remark in maker.remarks):
            order.say(f"note: {remark}")
        shots = first_shots(transport, order.target, profile, makers, plan)
        if memory is not None:
            await memory.open()
            if memory.removed:
                order.say(f"removed {len(memory.removed)} shared memory regions that ended runs had left")
        await transport.open(probe, 1)
        for at, (name, shot) in enumerate(shots.items()):
            kind = profile.kinds[name]
            order.say(f"first request of kind {name}")
            sent, done, outcome, status, detail = await probe.ask(transport, at, shot.prepared)
            if outcome is not Outcome.OK and may_refuse_usage(status, shot.request):
                order.say("the server refused that; once more without stream_options")
                include_usage = False
                again = transport.prepare(without_usage(shot.request))
                sent, done, outcome, status, detail = await probe.ask(transport, at, again)
            if outcome is not Outcome.OK:
                words = f": {detail}" if detail else ""
                raise NotMeasuredError(
                    f"kind {name!r}: the server did not answer the first request to {kind.subject!r}"
                    f" ({outcome.name.lower()}, status {status}){words}"
                )
            took[name] = done - sent
    finally:
        await transport.close()
        if memory is not None:
            await memory.close()
    return took, include_usage


class _Probe:
    """A receiver for one request at a time, outside the load."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[tuple[int, int, Outcome, int, str | None]] | None = None

    async def ask(
        self, transport: Transport[Any], token: int, prepared: Prepared
    ) -> tuple[int, int, Outcome, int, str | None]:
        """(sent, done, outcome, status, detail) of one request; TIMEOUT after two minutes."""
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        timer = loop.call_later(_COLD_S, transport.cancel, token, Outcome.TIMEOUT)
        transport.send(token, prepared)
        try:
            return await self._answer
        finally:
            timer.cancel()

    def on_reply(  # noqa: PLR0913 - seams.Receiver
        self,
        token: int,  # noqa: ARG002
        sent_ns: int,
        first_ns: int,  # noqa: ARG002
        done_ns: int,
        outcome: Outcome,
        status: int,
        bytes_in: int,  # noqa: ARG002
        detail: str | None,
    ) -> None:
        """See seams.Receiver."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((sent_ns or done_ns, done_ns, outcome, status, detail))

    def on_streamed(self, token: int, sent_ns: int, outcome: Outcome, streamed: Streamed) -> None:
        """See seams.Receiver; only that and when it ended matters here."""
