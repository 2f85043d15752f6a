"""The careful loop: waits until a request is due, sends it, stamps it, records what came of it.

The only waiting room of the package.  The hot path (`_fire`, `_send`, `on_reply`) makes no task, future or
object per request: a request is a token, its bytes were framed before, its end is a plain call.
It must not know tensors, protocols, files or figures.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from loadgen.engine.client import LoopLag
from loadgen.engine.dialogues import Dialogues
from loadgen.engine.parts import NO_CAP, Cap, Care, Counts, PhaseResult, Shot
from loadgen.records import CANCEL_WORDS, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from loadgen.records import PhasePlan, Plan, Streamed
    from loadgen.seams import Clock, Pacer, Prepared, RecordSink, Transport

    Ints = npt.NDArray[np.int32]

LEAD_NS = 5_000_000  # a phase starts this long after it was set up, so that its first arrival is not late
_BURST = 64  # a backlog is sent in bites of this many, answers are read in between
_OF_TRANSPORT = ("conn_waits", "resent", "reconnects", "cut_short")
_RETRY_NS = 100_000_000  # a closed-loop user who found no server does not knock faster than this
_SWEEP_S = 0.01  # how often requests are looked through for timeouts


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
        self._pacer, self._lag = make_pacer(), LoopLag(make_pacer(), clock)
        self._cap = cap.in_flight if cap.in_flight is not None else 2**62
        self._drop = cap.drop
        self._inflight: dict[
            int, tuple[int, Shot, int]
        ] = {}  # in order of sending: token -> due (absolute), shot, sent
        self._waiting: dict[
            int, tuple[int, Shot, Prepared | None]
        ] = {}  # at the cap, in order of due: seq -> the rest
        self._giving_up: dict[
            int, asyncio.TimerHandle
        ] = {}  # requests that the profile has the client cancel
        self._dialogues = Dialogues(make_pacer, clock, numbering, self._send_following)
        self._timeouts, self._shortest = list(timeouts_ns), min(timeouts_ns)
        self._as_asked = self._due_before = self._sent = self._failed = self._unsent = self._dropped = (
            self._cap_waits
        ) = 0
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
        self._over: tuple[int, int] | None = None
        over: asyncio.TimerHandle | None = None
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            self._start_ns = self._now() + LEAD_NS if start_ns is None else start_ns
            self._cpu_ns = time.process_time_ns()
            self._lag.start(self._start_ns)
            if phase.duration_ns is not None:
                wait_s = (self._start_ns + phase.duration_ns - self._now()) / 1e9
                over = loop.call_later(max(wait_s, 0), self._end_of_load)
            self._sweep_handle = loop.call_later(_SWEEP_S, self._sweep)
            (self._begin_open if phase.loop == "open" else self._begin_closed)(phase)
            if self._stopped_ns is not None:
                self._finish_if_idle()
            await self._done
            return self._result()
        finally:
            self._sweep_handle.cancel()
            if over is not None:
                over.cancel()
            self._lag.stop()
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

    def _end_of_load(self) -> None:
        """The load is over, what is in flight drains: the client's own figures end here."""
        if self._over is None:
            now = self._now()
            planned = self._start_ns + self._phase.duration_ns if self._phase.duration_ns is not None else now
            self._over = (max(min(now, planned), self._start_ns), time.process_time_ns() - self._cpu_ns)
            self._lag.stop()

    def _tally(self) -> dict[str, int]:
        """Counters that go up through the whole run, the transport's among them."""
        own = {"cap_waits": self._cap_waits, "followed": self._dialogues.followed}
        return own | {name: getattr(self._transport, name, 0) for name in _OF_TRANSPORT}

    def _result(self) -> PhaseResult:
        self._end_of_load()
        assert self._over is not None  # noqa: S101 - just made
        zero, (load_end_ns, cpu_ns) = self.origin_ns, self._over
        return PhaseResult(
            start_ns=self._start_ns - zero,
            load_end_ns=load_end_ns - zero,
            end_ns=max(self._now(), load_end_ns) - zero,
            max_in_flight=self._max_in_flight,
            cpu_ns=cpu_ns,
            cpu_max_ns=cpu_ns,
            loop_lag_ns=self._lag.distribution(),
            **{name: n - self._before[name] for name, n in self._tally().items()},
        )

    @property
    def counts(self) -> Counts:
        """The run so far.  Made when read: the hot path keeps as few counters as it can."""
        ok = self._sent - len(self._inflight) - self._failed - self._as_asked
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

    def _full(self, seq: int, due_ns: int, shot: Shot, prepared: Prepared | None = None) -> None:
        if self._drop:
            self._record(seq, due_ns, shot, self._now(), Outcome.DROPPED)
        else:
            self._cap_waits += 1
            self._waiting[seq] = (due_ns, shot, prepared)

    def _free_open(self, done_ns: int, outcome: Outcome) -> None:  # noqa: ARG002 - same shape as _free_closed
        if self._waiting and len(self._inflight) < self._cap:
            seq = next(iter(self._waiting))
            due_ns, shot, prepared = self._waiting.pop(seq)
            self._send(seq, due_ns, shot, done_ns, prepared)
        elif self._next >= self._count or self._stopped_ns is not None:
            self._finish_if_idle()

    # -- the closed loop ---------------------------------------------------------------------------

    def _start_users(self) -> None:
        for _ in range(self._phase.users):
            self._next_of_user(self._start_ns)
        if not self._phase.users:  # a slice that was left without work
            self._finish_if_idle()

    def _free_closed(self, done_ns: int, outcome: Outcome) -> None:
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
            if self._active == 0 or self._stopped_ns is not None:
                self._finish_if_idle()
            return
        k = self._issued
        self._issued = k + 1
        shot = self._shots[self._pick[k % self._cycle]]
        self._send(self._first + k * self._step, due_ns, shot, due_ns)
        if k + 1 == self._limit:
            self._end_of_load()

    # -- sending and ending ------------------------------------------------------------------------

    def _send(self, seq: int, due_ns: int, shot: Shot, now_ns: int, prepared: Prepared | None = None) -> None:
        """`prepared` stands in for the variant's own bytes: a later request of a dialogue."""
        inflight = self._inflight
        inflight[seq] = (due_ns, shot, now_ns)
        self._max_in_flight = max(self._max_in_flight, len(inflight))
        self._sent += 1
        if shot[4] is not None:
            prepared = self._with_care(seq, shot, shot[4], prepared)
        self._transport_send(seq, prepared or shot[0])

    def _with_care(self, seq: int, shot: Shot, care: Care, prepared: Prepared | None) -> Prepared | None:
        if care.cancel_ns:
            call_later, cancel = asyncio.get_running_loop().call_later, self._transport.cancel
            self._giving_up[seq] = call_later(care.cancel_ns / 1e9, cancel, seq, Outcome.CANCELLED)
        if prepared is None and care.begin is not None:
            return self._dialogues.begin(seq, shot)
        return prepared

    def _send_following(self, seq: int, due_ns: int, shot: Shot, prepared: Prepared) -> None:
        """A later request of a dialogue is due."""
        if len(self._inflight) < self._cap or self._phase.loop == "closed":
            self._send(seq, due_ns, shot, self._now(), prepared)
        else:
            self._full(seq, due_ns, shot, prepared)

    def on_reply(  # noqa: PLR0913 - seams.Receiver
        self,
        token: int,
        sent_ns: int,
        first_ns: int,
        done_ns: int,
        outcome: Outcome,
        status: int,
        bytes_in: int,
        detail: str | None,
    ) -> None:
        """See seams.Receiver."""
        due_ns, shot, _ = self._inflight.pop(token)
        prepared, kind, length, items, care = shot
        zero = self.origin_ns
        if outcome:
            if (
                care is not None
                and care.cancel_ns
                and outcome is Outcome.CANCELLED
                and self._stopped_ns is None
            ):
                detail = CANCEL_WORDS if detail is None else f"{CANCEL_WORDS}: {detail}"
                self._as_asked += 1
            else:
                self._failed += 1
        self._append(token, self._phase_index, kind, due_ns - zero, sent_ns - zero if sent_ns else -1,
                     first_ns - zero if first_ns else -1, done_ns - zero, length, items,
                     prepared.bytes_out if sent_ns else 0, bytes_in, outcome, status, detail)  # fmt: skip
        if care is not None and self._goes_on(token, shot, done_ns, outcome):
            return
        self._free(done_ns, outcome)

    def _goes_on(self, seq: int, shot: Shot, done_ns: int, outcome: Outcome) -> bool:
        """Whether the request was one of a dialogue that is not over yet: it keeps its user."""
        if seq in self._giving_up:
            self._giving_up.pop(seq).cancel()
        until = self._until if self._phase.loop == "closed" else self._load_end_ns or 2**62
        answered = outcome is Outcome.OK and self._stopped_ns is None
        goes_on = self._dialogues.go_on(seq, shot, done_ns, until, answered=answered)
        if goes_on and self._phase.loop == "open":
            self._free_open(done_ns, outcome)  # its place under the cap is another's meanwhile
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
        self._append(seq, self._phase_index, shot.kind, due_ns - zero, -1, -1, done_ns - zero, shot.length,
                     shot.items, 0, 0, outcome, 0, None)  # fmt: skip

    def _sweep(self) -> None:
        """Ends requests past their timeout; a timeout has the grain of the sweep (10 ms).

        Looks at the oldest first and no further than the shortest timeout goes.
        """
        now, inflight, waiting = self._now(), self._inflight, self._waiting
        late = [*itertools.takewhile(lambda item: item[1][2] + self._shortest <= now, inflight.items())]
        for token, (_, shot, sent_ns) in late:
            if sent_ns + self._timeouts[shot.kind] <= now and token in inflight:
                self._transport.cancel(token, Outcome.TIMEOUT)
        # at the cap: who waited a whole timeout gives up unsent
        tired = [*itertools.takewhile(lambda item: item[1][0] + self._shortest <= now, waiting.items())]
        for seq, (due_ns, shot, _) in tired:
            if due_ns + self._timeouts[shot.kind] <= now and seq in waiting:
                del waiting[seq]
                self._record(seq, due_ns, shot, now, Outcome.TIMEOUT)
        if not inflight and not waiting:
            self._finish_if_idle()
        self._sweep_handle = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def _finish_if_idle(self) -> None:
        """Ends the phase once all its requests have ended and, in an open loop, its planned time is over."""
        if self._inflight or self._waiting or self._done is None or self._done.done():
            return
        if self._dialogues.thinking:
            return
        more = self._next < self._count if self._phase.loop == "open" else self._active > 0
        if self._stopped_ns is None and more:
            return
        if self._stopped_ns is None and self._now() < self._load_end_ns:
            self._pacer.arm(self._load_end_ns, self._finish_if_idle)
        else:
            self._pacer.arm(2**62, _nothing)
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
        self._end_of_load()
        for seq, (due_ns, shot, _) in self._waiting.items():
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
        self._lag.close()
        self._dialogues.close()


def _nothing() -> None:
    """Armed far in the future: disarms the pacer."""
