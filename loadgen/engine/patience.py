"""How long a request is waited for: timeouts, and requests that the client gives up as a part of the load.

It must not know what is sent, how a phase goes on, nor records.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from loadgen.records import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loadgen.engine.parts import Shot
    from loadgen.seams import Transport

_SWEEP_S = 0.01  # how often requests are looked through for timeouts


class Patience:
    """Looks over the engine's own tables of what is in flight and what waits at the cap."""

    def __init__(
        self,
        inflight: dict[int, tuple[int, Shot, int]],
        waiting: dict[int, tuple[int, Shot]],
        timeouts_ns: Sequence[int],
        transport: Transport[Any],
        tired: Callable[[int, int, Shot, int], None],
        idle: Callable[[], None],
        now_ns: Callable[[], int],
    ) -> None:
        """`inflight` has (due, shot, sent) and `waiting` (due, shot), both in order of time; `timeouts_ns` one
        entry a kind.

        `transport` ends a request in flight, `tired(seq, due_ns, shot, now_ns)` one that waited; `idle` is called
        when there is neither.
        """
        self._inflight, self._waiting, self._timeouts = inflight, waiting, list(timeouts_ns)
        self._shortest = min(timeouts_ns)
        self._cancel, self._sent_at = transport.cancel, transport.sent_at
        self._tired, self._idle, self._now = tired, idle, now_ns
        self._giving_up: dict[int, asyncio.TimerHandle] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Ends what is past its timeout, from now on every 10 ms: the grain of a timeout."""
        self._timer = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def rest(self) -> None:
        """No more watching."""
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self) -> None:
        """Looks at the oldest first and no further than the shortest timeout goes."""
        now, inflight, waiting = self._now(), self._inflight, self._waiting
        late = [*itertools.takewhile(lambda item: item[1][2] + self._shortest <= now, inflight.items())]
        for token, (_, shot, sent_ns) in late:
            if sent_ns + self._timeouts[shot.kind] <= now and token in inflight:
                self._cancel(token, Outcome.TIMEOUT)
        # at the cap: who waited a whole timeout gives up unsent
        tired = [*itertools.takewhile(lambda item: item[1][0] + self._shortest <= now, waiting.items())]
        for seq, (due_ns, shot) in tired:
            if due_ns + self._timeouts[shot.kind] <= now and seq in waiting:
                del waiting[seq]
                self._tired(seq, due_ns, shot, now)
        if not inflight and not waiting:
            self._idle()
        self.watch()

    def give_up(self, token: int, after_ns: int) -> None:
        """The client gives this request, which is about to be handed over, up so long after it is sent."""
        self._look_again(token, after_ns, after_ns)

    def _look_again(self, token: int, after_ns: int, wait_ns: int) -> None:
        call_later = asyncio.get_running_loop().call_later
        self._giving_up[token] = call_later(wait_ns / 1e9, self._sent_long_ago, token, after_ns)

    def _sent_long_ago(self, token: int, after_ns: int) -> None:
        """Gives the request up if it was; one that waits for a connection still cannot be due sooner than that again."""
        sent_ns = self._sent_at(token)
        left_ns = sent_ns + after_ns - self._now() if sent_ns else after_ns
        if left_ns > 0:
            self._look_again(token, after_ns, left_ns)
        else:
            self._cancel(token, Outcome.PLANNED_CANCEL)

    def ended(self, token: int) -> None:
        """A request that may have been one to give up is over."""
        if token in self._giving_up:
            self._giving_up.pop(token).cancel()
