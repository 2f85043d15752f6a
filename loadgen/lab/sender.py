"""One process's share of a run: its slice of the plan, its connections, its records file.

A run has one sender in its own process, or several in processes of their own (`lab.worker`).  A sender
must not know the others, the server's statistics, or the person who watches.
"""

from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from loadgen.clock import MONOTONIC
from loadgen.engine.loop import Engine
from loadgen.engine.pacer import make_pacer
from loadgen.engine.parts import Cap, Counts, PhaseResult
from loadgen.engine.process import go_realtime, leave_realtime, pin
from loadgen.lab.kinds import make_kinds
from loadgen.lab.shots import make_shots
from loadgen.lab.target import clamped, make_transport, shared_memory_of
from loadgen.records import NotMeasuredError
from loadgen.schedule import share, slice_plan
from loadgen.sinks.live import LiveLatency

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from loadgen.connect.options import ConnectOptions
    from loadgen.lab.shots import Shots
    from loadgen.lab.target import Models
    from loadgen.records import LoadgenError, Plan
    from loadgen.runfile import RecordWriter
    from loadgen.seams import Pacer, Transport
    from loadgen.target import Target
    from loadgen.traffic.profile import TrafficProfile
    from loadgen.transport.dial import Via
    from loadgen.triton.shared_memory import SharedMemory

FLUSH_S = 0.5  # a kill loses at most this much of the records
_MOST_AHEAD = 64  # connections opened before the load; more open as they are needed


@dataclass(frozen=True, slots=True)
class Share:
    """What one of `workers` senders is to do.  All derive the same plan from profile and seed, and slice it."""

    profile: TrafficProfile
    seed: int
    target: Target
    transport: str
    options: ConnectOptions
    include_usage: bool  # whether streams ask for their usage: some servers refuse that
    plan_file: Path | None
    origin_ns: int  # the start of the run: CLOCK_MONOTONIC is one clock for all processes of a machine
    worker: int = 0
    workers: int = 1
    realtime: bool = False
    cores: tuple[int, ...] = ()
    labelled: bool = False  # requests say what a trace of the server does not
    via: Via | None = None  # the relay that makes the network's conditions

    @property
    def cap(self) -> Cap:
        """The part of the profile's cap."""
        cap = self.profile.cap
        if cap is None:
            return Cap()
        return Cap(share(cap.in_flight, self.worker, self.workers), drop=cap.when_full == "drop")

    def slice(self, whole: Plan) -> Plan:
        """The part of the plan."""
        return whole if self.workers == 1 else slice_plan(whole, self.worker, self.workers)


@dataclass(slots=True)
class Watched:
    """A sender so far, for a progress line.  Adds up over senders."""

    counts: Counts = field(default_factory=Counts)
    in_flight: int = 0
    bins: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(0, np.int64))


class Sender(Protocol):
    """What a run asks of a sender.  `error`: why it can do no more; `lost`: it ended before it was told to;
    `refused`: what the system did not grant it (real-time scheduling, cores), known once it is ready.
    """

    error: LoadgenError | None
    lost: bool
    refused: list[str]

    async def ready(self) -> None:
        """Everything framed and connected; raises LoadgenError when that cannot be."""

    async def run_phase(self, index: int, start_ns: int) -> PhaseResult | None:
        """Sends its part of a phase from an absolute time on; None when it was lost on the way."""

    def stop(self) -> None: ...

    def cancel_in_flight(self) -> None: ...

    def watched(self) -> Watched: ...

    async def close(self, begun: Sequence[Sequence[int]] = ()) -> dict[str, Any]:
        """Writes what is left and ends; facts for run.json.  `begun`: arrivals of each phase, of each sender."""


class LocalSender:
    """Sends from this process, on the running event loop."""

    def __init__(
        self, share_: Share, plan: Plan, models: Models, writer: Callable[..., RecordWriter]
    ) -> None:
        """`plan` is the whole plan; `writer(observe=...)` opens the records file."""
        self.error: LoadgenError | None = None
        self.lost = False
        self.refused: list[str] = []
        self._transport: Transport[Any] | None = None
        self._task: asyncio.Task[None] | None = None
        self._share, self._whole, self._models = share_, clamped(plan, share_.profile, models), models
        self._plan = share_.slice(self._whole)
        self._live = LiveLatency()
        self._writer = writer(observe=self._live.add)
        self._facts: dict[str, Any] = {}
        self._memory: SharedMemory | None = None
        self._running = False
        self._made: Shots | None = None

    async def ready(self) -> None:
        """See Sender."""
        share_, profile = self._share, self._share.profile
        granted = {"pinning": pin(share_.cores)} if share_.cores else {}
        if share_.realtime:
            granted["scheduling"] = go_realtime()
        self._facts |= {name: one.words for name, one in granted.items()}
        self.refused = [one.words for one in granted.values() if not one.done]
        transport = self._transport = make_transport(
            share_.target, share_.transport, share_.options, share_.via
        )
        memory = self._memory = shared_memory_of(profile, share_.target, share_.options)
        makers = make_kinds(
            profile, share_.target, self._models, memory,
            include_usage=share_.include_usage, labelled=share_.labelled,
        )  # fmt: skip
        made = self._made = make_shots(
            transport, share_.target, profile, makers, self._whole, share_.origin_ns
        )
        if memory is not None:
            await memory.open()
            self._facts["shared_memory"] = {"bytes": memory.size, "removed": memory.removed}
        self._facts["kinds"] = made.facts
        self._facts["variants"] = [told["variants"] for told in made.facts.values()]
        picks = [column[share_.worker :: share_.workers] for column in made.picks]
        timeouts = [kind.timeout_ns for kind in profile.kinds.values()]
        self._engine = Engine(
            self._plan, made.shots, picks, timeouts, transport, self._writer, MONOTONIC, self._pacer,
            share_.cap, share_.origin_ns, (share_.worker, share_.workers),
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self._engine.abort(_broken(context)))
        await transport.open(self._engine, connections_ahead(self._plan, share_))
        self._task = loop.create_task(self._flush())
        gc.collect()  # what is there by now is not looked at again: a phase starts on time, also in a large process
        gc.freeze()

    def _pacer(self) -> Pacer:
        pacer, self._facts["pacer"] = make_pacer(asyncio.get_running_loop(), MONOTONIC)
        return pacer

    async def _flush(self) -> None:
        """Records reach the disk twice a second; a disk that takes no more ends the sending."""
        while True:
            await asyncio.sleep(FLUSH_S)
            self._write()
            if self._writer.error is not None:
                self.error = self._writer.error
                self._engine.stop()
                self._engine.cancel_in_flight()

    async def run_phase(self, index: int, start_ns: int) -> PhaseResult | None:
        """See Sender."""
        self._running = True
        try:
            return await self._engine.run_phase(index, start_ns)
        except NotMeasuredError as why:
            self.error = why
            return None
        finally:
            self._write()

    def _write(self) -> None:
        self._writer.flush()
        if self._running:
            self._writer.beat(self._engine.beat())

    def stop(self) -> None:
        """See Sender."""
        self._engine.stop()

    def cancel_in_flight(self) -> None:
        """See Sender."""
        self._engine.cancel_in_flight()

    def write_now(self) -> None:
        """Puts what is recorded on disk before the process ends at once."""
        self._write()
        self._writer.close()
        if self._memory is not None:
            self._memory.unlink()

    def watched(self) -> Watched:
        """See Sender."""
        return Watched(self._engine.counts, self._engine.in_flight, self._live.bins)

    async def close(self, begun: Sequence[Sequence[int]] = ()) -> dict[str, Any]:
        """See Sender.  One of them tells of all."""
        if self._task is not None:
            self._task.cancel()
            self._engine.close()
        if self._transport is not None:
            await self._transport.close()
            self._facts["connections_opened"] = self._transport.connections_opened
        if self._memory is not None:
            await self._memory.close()
        self._writer.close()
        self._facts["records"] = self._writer.rows
        if self._share.worker == 0 and self._made is not None and begun:
            rows = self._made.inputs_sent(self._whole, begun)
            told = self._made.facts
            self._facts["inputs"] = [
                row | {"shared_prefix": told[row["kind"]].get("shared_prefix")}
                for row in rows
                if row["requests"]
            ]
        self.error = self.error or self._writer.error
        if self._share.realtime:
            leave_realtime()
        return self._facts


def connections_ahead(plan: Plan, share_: Share) -> int:
    """Connections to open before the load; more open when they are needed.

    HTTP/1.1 needs one a request in flight: the users of a closed loop, a modest guess for an open one.
    gRPC carries its calls side by side on one connection until the server says that it is full.
    """
    if share_.target.protocol == "grpc":
        return 1
    users = max((p.users for p in plan.phases), default=0)
    guess = max(users, 8 if any(p.loop == "open" for p in plan.phases) else 1)
    cap = share_.cap.in_flight
    return min(guess, _MOST_AHEAD, guess if cap is None else cap)


def _broken(context: dict[str, Any]) -> NotMeasuredError:
    """What an event loop says of a callback that raised, as an error that ends the run instead of hanging it."""
    why = context.get("exception")
    words = f"{type(why).__name__}: {why}" if why is not None else context.get("message", "unknown")
    return NotMeasuredError(f"a fault in loadgen itself ended the run ({words}); what was recorded is kept")
