"""The careful loop: waits until a request is due, sends it, stamps it, records what came of it.

The only waiting room of the package.  The hot path (`_fire`, `_send`, `on_reply`) makes no task, future or
object per request: a request is a token, its bytes were framed before, its end is a plain call.
It must not know tensors, protocols, files or figures.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from loadgen.engine.client import Load
from loadgen.engine.dialogues import Dialogues
from loadgen.engine.parts import NO_CAP, Cap, Care, Counts, PhaseResult, Shot
from loadgen.engine.patience import Patience
from loadgen.records import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from loadgen.records import PhasePlan, Plan, Streamed
    from loadgen.seams import Clock, Pacer, RecordSink, Transport

    Ints = npt.NDArray[np.int32]

LEAD_NS = 5_000_000  # a phase starts this long after it was set up, so that its first arrival is not late
_BURST = 64  # a backlog is sent in bites of this many, answers are read in between
_OF_TRANSPORT = ("conn_waits", "resent", "reconnects", "cut_short")
_RETRY_NS = 100_000_000  # a closed-loop user who found no server does not knock faster than this


class Engine:
    """Sends the phases of one plan, one after the other, through one transport."""

    def __init__(  # noqa: PLR0913 - the parts of a run, each chosen in the lab
        self,
        plan: Plan,
        shots: Sequence[Shot],
        picks: Sequence[Ints],
        timeouts_ns: Sequence[int],
        transport: Transport[Any],
        sink: RecordSink,
        clock: Clock,
        make_pacer: Callable[[], Pacer],
        cap: Cap = NO_CAP,
        origin_ns: int | None = None,
        numbering: tuple[int, int] = (0, 1),
    ) -> None:
        """`picks` says for each phase which of `shots` each arrival sends (cycled in a closed loop);
        `timeouts_ns` has one entry a kind; `origin_ns` is the start of the run.

        `numbering` (first, step): what the i-th request of a phase is called, `first + i * step`, so that
        slices of one plan call an arrival what the whole plan calls it.
        """
        self._first, self._step = numbering
        self.origin_ns = clock.now_ns() if origin_ns is None else origin_ns
        self._plan, self._shots, self._picks, self._transport = plan, shots, picks, transport
        self._transport_send = transport.send
        self._now = clock.now_ns
        self._append, self._append_streamed = sink.append, sink.append_streamed
        self._pacer, self._load = make_pacer(), Load(make_pacer(), clock)
        self._cap = cap.in_flight if cap.in_flight is not None else 2**62
        self._drop = cap.drop
        # in order of sending: token -> due (absolute), shot, sent
        self._inflight: dict[int, tuple[int, Shot, int]] = {}
        # at the cap, in order of due: seq -> due, shot
        self._waiting: dict[int, tuple[int, Shot]] = {}
        self._dialogues = Dialogues(make_pacer, clock, numbering, self._send_following)
        self._patience = Patience(
            self._inflight, self._waiting, timeouts_ns, transport, self._tired,
            self._finish_if_idle, self._now,
        )  # fmt: skip
        self._planned_cancels = self._due_before = self._sent = self._failed = self._unsent = (
            self._dropped
        ) = self._cap_waits = 0
        self._start_ns, self._next, self._issued = self.origin_ns, 0, 0
        self._stopped_ns: int | None = None
        self._phase_index, self._max_in_flight = -1, 0
        self._done: asyncio.Future[None] | None = None

    # -- one phase ---------------------------------------------------------------------------------

    async def run_phase(self, index: int, start_ns: int | None = None) -> PhaseResult:
        """Sends phase `index` from the absolute `start_ns` on; returns when each of its requests has ended."""
        phase = self._plan.phases[index]
        loop = asyncio.get_running_loop()
        self._phase, self._phase_index, self._max_in_flight = phase, index, 0
        picks = self._picks[index]
        self._pick, self._cycle = picks.data, len(picks)  # ints without numpy's cost
        self._due_before += self._next + self._issued
        self._next = self._issued = 0
        self._done = loop.create_future()
        self._before, self._begun = self._tally(), self._ends()
        over: asyncio.TimerHandle | None = None
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            self._start_ns = self._now() + LEAD_NS if start_ns is None else start_ns
            self._load.start(self._start_ns, phase.duration_ns)
            if phase.duration_ns is not None:
                wait_s = (self._start_ns + phase.duration_ns - self._now()) / 1e9
                over = loop.call_later(max(wait_s, 0), self._load.end)
            self._patience.watch()
            (self._begin_open if phase.loop == "open" else self._begin_closed)(phase)
            if self._stopped_ns is not None:
                self._finish_if_idle()
            await self._done
            return self._result()
        finally:
            self._patience.rest()
            if over is not None:
                over.cancel()
            self._load.end()
            gc.enable()

    def _begin_open(self, phase: PhasePlan) -> None:
        assert phase.due_ns is not None  # noqa: S101 - by construction of the plan
        self._dues, self._count = phase.due_ns.data, len(phase.due_ns)
        self._free = self._free_open
        self._load_end_ns = self._start_ns + (phase.duration_ns or 0)
        self._fire()

    def _begin_closed(self, phase: PhasePlan) -> None:
        self._ready: list[int] = []  # a heap of when thinking users come back
        self._limit = phase.requests if phase.requests is not None else 2**62
        self._until = self._start_ns + phase.duration_ns if phase.duration_ns is not None else 2**62
        self._active, self._load_end_ns = phase.users, 0
        self._free = self._free_closed
        self._pacer.arm(self._start_ns, self._start_users)

    def _tally(self) -> dict[str, int]:
        """Counters that go up through the whole run, the transport's among them."""
        own = {"cap_waits": self._cap_waits, "followed": self._dialogues.followed}
        return own | {name: getattr(self._transport, name, 0) for name in _OF_TRANSPORT}

    def _result(self) -> PhaseResult:
        counted = {name: n - self._before[name] for name, n in self._tally().items()}
        figures: dict[str, Any] = self._load.figures(self.origin_ns) | counted
        begun = self._next + self._issued
        return PhaseResult(max_in_flight=self._max_in_flight, begun=begun, **figures)

    @property
    def counts(self) -> Counts:
        """The run so far.  Made when read: the hot path keeps as few counters as it can."""
        ok = self._sent - len(self._inflight) - self._failed - self._planned_cancels
        due = self._due_before + self._next + self._issued + self._dialogues.followed
        return Counts(due, self._sent, ok, self._failed + self._unsent,
                      self._dropped, self._cap_waits)  # fmt: skip

    def beat(self) -> dict[str, int | None]:
        """Where the running phase is: what a reader has when the process is killed.  Times from the run's start."""
        dues = [flying[0] for flying in itertools.islice(self._inflight.values(), 1)]
        dues += [waiting[0] for waiting in itertools.islice(self._waiting.values(), 1)]
        sent, ended, due = (n - self._begun[i] for i, n in enumerate(self._ends()))
        return {
            "t_ns": self._now() - self.origin_ns, "phase": self._phase_index, "start_ns": self._start_ns - self.origin_ns,
            "due": due, "sent": sent, "ended": ended, "in_flight": len(self._inflight), "waiting": len(self._waiting),
            "oldest_due_ns": min(dues) - self.origin_ns if dues else None,
            "cap_waits": self._cap_waits - self._before["cap_waits"], "max_in_flight": self._max_in_flight,
        }  # fmt: skip

    def _ends(self) -> tuple[int, int, int]:
        counts = self.counts
        return counts.sent, counts.ok + counts.failed, counts.due

    # -- the open loop -----------------------------------------------------------------------------

    def _fire(self) -> None:
        """Sends what is due, arms the pacer for what is next."""
        dues, start, i = self._dues, self._start_ns, self._next
        last = min(self._count, i + _BURST)
        picks, shots, first, step = self._pick, self._shots, self._first, self._step
        now = self._now() - start
        while i < last and self._stopped_ns is None:
            due = dues[i]
            if due > now:
                now = self._now() - start
                if due > now:
                    break
            shot, seq = shots[picks[i]], first + i * step
            i += 1
            self._next = i  # before the send: what follows may look at it
            if len(self._inflight) < self._cap:
                self._send(seq, start + due, shot, start + now)
            else:
                self._full(seq, start + due, shot)
        if i >= self._count or self._stopped_ns is not None:
            self._finish_if_idle()
        else:  # a backlog left by the bite is in the past: fires on the next turn
            self._pacer.arm(start + dues[i], self._fire)

    def _full(self, seq: int, due_ns: int, shot: Shot) -> None:
        """There is no place under the cap."""
        if self._drop and self._phase.loop == "open":
            self._record(seq, due_ns, shot, self._now(), Outcome.DROPPED)
        else:  # a user of a closed loop has nothing better to do than to wait
            self._cap_waits += 1
            self._waiting[seq] = (due_ns, shot)

    def _admit(self, now_ns: int) -> bool:
        """Sends who waits longest at the cap, if anybody does and there is a place."""
        if not self._waiting or len(self._inflight) >= self._cap:
            return False
        seq = next(iter(self._waiting))
        self._send(seq, *self._waiting.pop(seq), now_ns)
        return True

    def _free_open(self, done_ns: int, outcome: Outcome) -> None:  # noqa: ARG002 - same shape as _free_closed
        if not self._admit(done_ns) and (self._next >= self._count or self._stopped_ns is not None):
            self._finish_if_idle()

    # -- the closed loop ---------------------------------------------------------------------------

    def _start_users(self) -> None:
        for _ in range(self._phase.users):
            self._next_of_user(self._start_ns)
        if not self._phase.users:  # a slice that was left without work
            self._finish_if_idle()

    def _free_closed(self, done_ns: int, outcome: Outcome) -> None:
        if self._waiting:
            self._admit(done_ns)
        think = self._phase.think_ns
        if outcome is Outcome.CONNECT:
            think = max(think, _RETRY_NS)
        if not think or self._leaves(done_ns + think):
            self._next_of_user(done_ns + think)
            return
        heappush(self._ready, done_ns + think)
        self._pacer.arm(self._ready[0], self._fire_thinkers)

    def _leaves(self, due_ns: int) -> bool:
        """Whether a user who is free at `due_ns` has no request to send any more."""
        return self._issued >= self._limit or due_ns >= self._until or self._stopped_ns is not None

    def _fire_thinkers(self) -> None:
        while self._ready and (self._ready[0] <= self._now() or self._stopped_ns is not None):
            self._next_of_user(heappop(self._ready))
        if self._ready:
            self._pacer.arm(self._ready[0], self._fire_thinkers)

    def _next_of_user(self, due_ns: int) -> None:
        """A user who is free at `due_ns` sends the next request of the cycle, or leaves."""
        if self._leaves(due_ns):
            self._active -= 1
            if self._issued >= self._limit and not self._waiting:
                self._load.end()
            if self._active == 0 or self._stopped_ns is not None:
                self._finish_if_idle()
            return
        k = self._issued
        self._issued = k + 1
        shot = self._shots[self._pick[k % self._cycle]]
        if len(self._inflight) < self._cap:
            self._send(self._first + k * self._step, due_ns, shot, due_ns)
        else:
            self._full(self._first + k * self._step, due_ns, shot)
        if k + 1 == self._limit and not self._waiting:
            self._load.end()

    # -- sending and ending ------------------------------------------------------------------------

    def _send(self, seq: int, due_ns: int, shot: Shot, now_ns: int) -> None:
        inflight = self._inflight
        if shot[4] is not None:
            shot = self._with_care(seq, shot, shot[4])
        inflight[seq] = (due_ns, shot, now_ns)
        self._max_in_flight = max(self._max_in_flight, len(inflight))
        self._sent += 1
        self._transport_send(seq, shot[0])

    def _with_care(self, seq: int, shot: Shot, care: Care) -> Shot:
        """What is sent in truth: a variant that opens a dialogue stands for the first request of a new one."""
        if care.cancel_ns:
            self._patience.give_up(seq, care.cancel_ns)
        return shot if care.begin is None else self._dialogues.begin(seq, care)

    def _send_following(self, seq: int, due_ns: int, shot: Shot) -> None:
        """A later request of a dialogue is due.  Others may be due for longer."""
        if not self._waiting and len(self._inflight) < self._cap:
            self._send(seq, due_ns, shot, self._now())
        else:
            self._full(seq, due_ns, shot)

    def on_reply(  # noqa: PLR0913 - seams.Receiver
        self, token: int, sent_ns: int, first_ns: int, done_ns: int, outcome: Outcome, status: int, bytes_in: int, detail: str | None
    ) -> None:  # fmt: skip
        """See seams.Receiver."""
        due_ns, shot, _ = self._inflight.pop(token)
        prepared, kind, length, items, care = shot
        zero = self.origin_ns
        if outcome:
            if outcome is Outcome.PLANNED_CANCEL:
                self._planned_cancels += 1
            else:
                self._failed += 1
        self._append(token, self._phase_index, kind, due_ns - zero, sent_ns - zero if sent_ns else -1,
                     first_ns - zero if first_ns else -1, done_ns - zero, length, items,
                     prepared.bytes_out if sent_ns else 0, bytes_in, outcome, status, detail)  # fmt: skip
        if care is not None and self._goes_on(token, care, done_ns, outcome):
            return
        self._free(done_ns, outcome)

    def _goes_on(self, seq: int, care: Care, done_ns: int, outcome: Outcome) -> bool:
        """Whether the request was one of a dialogue that is not over yet: it keeps its user."""
        self._patience.ended(seq)
        until = self._until if self._phase.loop == "closed" else self._load_end_ns or 2**62
        answered = outcome is Outcome.OK and self._stopped_ns is None
        goes_on = self._dialogues.go_on(seq, care, done_ns, until, answered=answered)
        if goes_on and not self._admit(done_ns):
            self._finish_if_idle()
        return goes_on

    def on_streamed(self, token: int, sent_ns: int, outcome: Outcome, streamed: Streamed) -> None:
        """See seams.Receiver."""
        due_ns, shot, _ = self._inflight[token]
        zero = self.origin_ns
        if shot.care is not None:
            self._dialogues.heard(token, streamed)
        self._append_streamed(token, self._phase_index, shot.kind, due_ns - zero, sent_ns - zero if sent_ns else -1,
                              outcome, zero, streamed)  # fmt: skip

    def _record(self, seq: int, due_ns: int, shot: Shot, done_ns: int, outcome: Outcome) -> None:
        """A request that never reached the transport."""
        zero = self.origin_ns
        if outcome is Outcome.DROPPED:
            self._dropped += 1
        else:
            self._unsent += 1
        self._dialogues.forget(seq)
        self._append(seq, self._phase_index, shot.kind, due_ns - zero, -1, -1, done_ns - zero, shot.length,
                     shot.items, 0, 0, outcome, 0, None)  # fmt: skip

    def _tired(self, seq: int, due_ns: int, shot: Shot, now_ns: int) -> None:
        """It waited at the cap for its whole timeout; so its user is free."""
        self._record(seq, due_ns, shot, now_ns, Outcome.TIMEOUT)
        if self._phase.loop == "closed":
            self._free_closed(now_ns, Outcome.TIMEOUT)

    def _finish_if_idle(self) -> None:
        """Ends the phase once all its requests have ended and, in an open loop, its planned time is over."""
        busy = self._inflight or self._waiting or self._dialogues.thinking
        if busy or self._done is None or self._done.done():
            return
        more = self._next < self._count if self._phase.loop == "open" else self._active > 0
        if self._stopped_ns is None and more:
            return
        if self._stopped_ns is None and self._now() < self._load_end_ns:
            self._pacer.arm(self._load_end_ns, self._finish_if_idle)
        else:
            self._pacer.arm(2**62, lambda: None)  # disarmed
            self._done.set_result(None)

    # -- stopping ----------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Requests sent (or handed to the transport) and not yet ended."""
        return len(self._inflight)

    def stop(self) -> None:
        """Nothing more is sent; arrivals that wait at the cap end as cancelled.  In-flight ones may finish."""
        if self._stopped_ns is not None:
            return
        self._stopped_ns = now = self._now()
        self._load.end()
        for seq, (due_ns, shot) in self._waiting.items():
            self._record(seq, due_ns, shot, now, Outcome.CANCELLED)
        self._waiting.clear()
        self._dialogues.drop()
        self._finish_if_idle()

    def cancel_in_flight(self) -> None:
        """Ends what is still in flight as cancelled."""
        for token in list(self._inflight):
            self._transport.cancel(token, Outcome.CANCELLED)

    def abort(self, why: BaseException) -> None:
        """Ends the phase at once with this error: a callback of ours broke, waiting on would be for ever."""
        self._stopped_ns = self._stopped_ns or self._now()
        if self._done is not None and not self._done.done():
            self._done.set_exception(why)

    def close(self) -> None:
        """Frees the pacers."""
        self._pacer.close()
        self._load.close()
        self._dialogues.close()
