"""Virtual time: an event loop whose clock jumps, and a server that exists only in it."""

from __future__ import annotations

import asyncio
import selectors
from dataclasses import dataclass, field

import numpy as np

from loadgen.engine.loop import Engine
from loadgen.engine.pacer import LoopPacer
from loadgen.engine.parts import Cap, Shot
from loadgen.records import Outcome, PhasePlan, Plan

S = 1_000_000_000
MS = 1_000_000


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self):
        super().__init__()
        self.loop = None

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("virtual time: everybody waits and nothing is scheduled")
            self.loop.virtual_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only when every callback has run; a 30 s run takes milliseconds."""

    def __init__(self):
        selector = _JumpingSelector()
        super().__init__(selector)
        selector.loop = self
        self.virtual_s = 1000.0
        self._clock_resolution = 1e-9

    def time(self):
        return self.virtual_s

    def now_ns(self):
        return round(self.virtual_s * 1e9)


def run_virtual(main):
    """Runs `await main(loop)` in virtual time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.close()


@dataclass(frozen=True)
class Bytes:
    bytes_out: int = 100


@dataclass
class VirtualServer:
    """A transport and server in one: `service_ns(seq, sent_ns)` long, frozen in the given spans (run time)."""

    loop: VirtualLoop
    service_ns: object = 5 * MS
    frozen: list[tuple[int, int]] = field(default_factory=list)
    outcome: object = Outcome.OK
    receiver: object = None
    in_flight: dict = field(default_factory=dict)
    most: int = 0
    sent: list = field(default_factory=list)

    def send(self, token, prepared):
        now = self.loop.now_ns()
        self.sent.append((token, now))
        service = self.service_ns(token, now) if callable(self.service_ns) else self.service_ns
        done = now + service
        for start, end in self.frozen:
            if now < end + self.origin_ns and done > start + self.origin_ns:
                done = end + self.origin_ns + service
        outcome = self.outcome(token) if callable(self.outcome) else self.outcome
        handle = self.loop.call_later((done - now) / 1e9, self._end, token, outcome)
        self.in_flight[token] = (now, handle)
        self.most = max(self.most, len(self.in_flight))

    def _end(self, token, outcome):
        sent, handle = self.in_flight.pop(token)
        handle.cancel()
        now = self.loop.now_ns()
        self.receiver.on_reply(token, sent, now, now, outcome, 200, 50, None)

    def sent_at(self, token):
        return self.in_flight[token][0] if token in self.in_flight else 0

    def cancel(self, token, outcome):
        if token in self.in_flight:
            self._end(token, outcome)


class Rows:
    """A record sink that keeps its rows as dicts."""

    NAMES = ("seq", "phase", "kind", "due_ns", "sent_ns", "first_ns", "done_ns", "length", "items",
             "bytes_out", "bytes_in", "outcome", "status", "detail")  # fmt: skip

    def __init__(self):
        self.rows, self.streams = [], []

    def append(self, *row):
        self.rows.append(dict(zip(self.NAMES, row, strict=True)))

    def append_streamed(self, *row):
        self.streams.append(row)

    def column(self, name):
        return np.array([row[name] for row in self.rows], dtype=np.int64)


def open_phase(due_s, duration_s, name="open"):
    due = np.round(np.asarray(due_s, dtype=float) * 1e9).astype(np.int64)
    return PhasePlan(name=name, loop="open", measured=True, duration_ns=round(duration_s * 1e9), due_ns=due,
                     kind=np.zeros(len(due), np.int16), draw=np.arange(len(due), dtype=np.uint32))  # fmt: skip


def closed_phase(users, *, duration_s=None, requests=None, think_ns=0, name="closed"):
    return PhasePlan(name=name, loop="closed", measured=True,
                     duration_ns=None if duration_s is None else round(duration_s * 1e9), due_ns=None,
                     kind=np.zeros(16, np.int16), draw=np.arange(16, dtype=np.uint32),
                     users=users, requests=requests, think_ns=think_ns)  # fmt: skip


async def play(loop, server, phases, *, cap=None, drop=False, timeout_ns=60 * S, meddle=None, care=None):
    """Runs the phases against a VirtualServer; returns (rows, phase results, engine).

    `timeout_ns` and `care` may be lists, one entry a kind.
    """
    rows = Rows()
    timeouts = timeout_ns if isinstance(timeout_ns, list) else [timeout_ns]
    plan = Plan(seed=0, kinds=tuple("kl"[: len(timeouts)]), phases=tuple(phases))
    cares = care if isinstance(care, list) else [care] * len(timeouts)
    shots = [Shot(Bytes(), kind, 8, 1, cares[kind]) for kind in range(len(timeouts)) for _ in range(4)]
    picks = [(4 * phase.kind + phase.draw % 4).astype(np.int32) for phase in phases]
    engine = Engine(
        plan, shots, picks, timeouts, server, rows, loop, lambda: LoopPacer(loop, loop), Cap(cap, drop)
    )
    server.receiver, server.origin_ns = engine, engine.origin_ns
    if meddle is not None:
        meddle(engine)
    results = [await engine.run_phase(i) for i in range(len(phases))]
    engine.close()
    return rows, results, engine
