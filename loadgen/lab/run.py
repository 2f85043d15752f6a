"""One run: read the server, plan, send, record, read.  The order of events of the whole package.

`measure` is what `loadgen run`, the demo and every experiment call.  It leaves a run folder behind and
returns its path; figures are read from the folder, never from live objects.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from loadgen.clock import MONOTONIC
from loadgen.engine.loop import Cap, Engine, Shot
from loadgen.engine.pacer import make_pacer
from loadgen.lab.facts import client_facts, raise_file_limit
from loadgen.lab.target import Counters, build_payloads, make_shots, models_of, read_models
from loadgen.records import Doubt, LoadgenError, NotMeasuredError, Outcome
from loadgen.runfile import FORMAT, RunWriter, check_run_path, new_run_path
from loadgen.schedule import plan as make_plan
from loadgen.sinks.live import LiveLatency, LiveLine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from loadgen.records import Plan
    from loadgen.seams import Pacer, Transport
    from loadgen.target import Target
    from loadgen.traffic.profile import TrafficProfile

_GRACE_S = 2.0  # after the first Ctrl-C, requests in flight have this long to end
_FLUSH_S = 0.5  # a kill loses at most this much of the records
_COLD_NS = 120 * 10**9  # a first request may meet a cold model
_MOST_AHEAD = 64  # connections opened before the load; more open as they are needed


def _silent(_: str) -> None:
    """Progress that nobody asked for."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a person asked for."""

    profile: TrafficProfile
    target: Target
    seed: int
    out: Path | None
    command: list[str]
    wait_ns: int = 0  # how long server and models may take to become ready
    say: Callable[[str], None] = _silent  # what happens once, as a line
    tick: Callable[[str], None] = _silent  # twice a second while the load runs


@dataclass(frozen=True, slots=True)
class Measured:
    """Where the run lies and whether it was cut short."""

    path: Path
    interrupted: bool


def measure(order: Order) -> Measured:
    """Runs `order` on an event loop of its own.

    Raises LoadgenError before anything was sent (exit code 2), NotMeasuredError when the run had to be
    given up (3); what was recorded stays in the folder.
    """
    if order.out is not None:
        check_run_path(order.out)
    plan = make_plan(order.profile, order.seed)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_Run(order, plan).go())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # no wheel for this platform: slower, and run.json says so
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class _Run:
    """The state of one run between its steps."""

    def __init__(self, order: Order, plan: Plan) -> None:
        self.order, self.plan = order, plan
        self.latency = LiveLatency()
        self.interrupts = 0
        self.pacer_kind = ""

    async def go(self) -> Measured:
        from loadgen.triton.control import Control

        order, profile = self.order, self.order.profile
        raise_file_limit()
        control = Control(order.target)
        try:
            self.order.say(f"reading {', '.join(m for m, _ in models_of(profile))} at {order.target.url}")
            models, server = await read_models(control, profile, order.wait_ns)
            transport = make_transport(order.target)
            try:
                shots = make_shots(
                    transport, order.target, profile, build_payloads(profile, models, order.seed)
                )
                first = await self._first_answers(transport, shots)
                writer = self._open_folder(server, shots, first)
                counters = Counters(control, models_of(profile), writer)
                return await self._send_all(transport, shots, writer, counters)
            finally:
                await transport.close()
        finally:
            await control.close()

    async def _first_answers(self, transport: Transport[Any], shots: list[list[Shot]]) -> dict[str, int]:
        """One request of each kind, alone: proves that the server takes it; its time is kept apart.

        Raises NotMeasuredError with the server's words when a kind is refused.
        """
        took = {}
        probe = _Probe()
        await transport.open(probe, connections_ahead(self.plan, self.order))
        for at, kind in enumerate(self.order.profile.kinds.values()):
            self.order.say(f"first request of kind {kind.name}")
            sent, done, outcome, status, detail = await probe.ask(transport, at, shots[at][0])
            if outcome is not Outcome.OK:
                words = f": {detail}" if detail else ""
                raise NotMeasuredError(
                    f"kind {kind.name!r}: the server did not answer the first request to {kind.model!r}"
                    f" ({outcome.name.lower()}, status {status}){words}"
                )
            took[kind.name] = done - sent
        return took

    def _open_folder(
        self, server: dict[str, Any], shots: list[list[Shot]], first: dict[str, int]
    ) -> RunWriter:
        order, profile, cap = self.order, self.order.profile, cap_of(self.order.profile)
        started = datetime.now(UTC).isoformat(timespec="milliseconds")
        path = new_run_path(profile.name, order.out, started)
        info: dict[str, Any] = {
            "format": FORMAT, "id": path.name, "started_at": started, "status": "running",
            "seed": order.seed, "target": order.target.url, "command": redact(order.command),
            "profile": {"name": profile.name, "text": profile.text, "sha256": profile.sha256},
            "kinds": [{"name": k.name, "model": k.model, "version": k.version, "batch": k.batch,
                       "weight": k.weight, "timeout_ns": k.timeout_ns, "variants": len(pool)}
                      for k, pool in zip(profile.kinds.values(), shots, strict=True)],
            "cap": {"in_flight": cap.in_flight, "when_full": "drop" if cap.drop else "wait"},
            "objectives": [o.text for o in profile.objectives],
            "phases": [{"name": p.name, "loop": p.loop, "measured": p.measured, "duration_ns": p.duration_ns,
                        "users": p.users, "planned": None if p.due_ns is None else len(p.due_ns),
                        "start_ns": None, "load_end_ns": None, "end_ns": None, "max_in_flight": 0,
                        "cap_waits": 0, "cpu_ns": 0, "loop_lag_ns": None} for p in self.plan.phases],
            "server": server, "client": client_facts(), "first_request_ns": first, "doubts": [],
        }  # fmt: skip
        info["client"]["loop"] = type(asyncio.get_running_loop()).__module__.partition(".")[0]
        return RunWriter(path, info, self.latency.add)

    async def _send_all(
        self, transport: Transport[Any], shots: list[list[Shot]], writer: RunWriter, counters: Counters
    ) -> Measured:
        profile, info = self.order.profile, writer.info
        timeouts = [kind.timeout_ns for kind in profile.kinds.values()]
        engine = Engine(
            self.plan, shots, timeouts, transport, writer, MONOTONIC, self._pacer, cap_of(profile)
        )
        info["client"]["pacer"] = self.pacer_kind
        await transport.open(engine, 0)
        self._watch_signals(engine, writer)
        asyncio.get_running_loop().set_exception_handler(lambda _, context: engine.abort(_broken(context)))
        watch = asyncio.get_running_loop().create_task(self._watch(engine, writer))
        try:
            for index, phase in enumerate(self.plan.phases):
                if engine.stopped:
                    break
                await counters.snapshot(MONOTONIC.now_ns() - engine.origin_ns, phase.name, "before")
                self.phase = index
                result = await engine.run_phase(index)
                info["phases"][index] |= asdict(result)
                writer.flush()
                await counters.snapshot(MONOTONIC.now_ns() - engine.origin_ns, phase.name, "after")
                writer.save()
        except NotMeasuredError:
            info["status"] = "failed"
            writer.save()
            raise
        finally:
            watch.cancel()
            engine.close()
            writer.close()
        if counters.missing is not None:
            info["doubts"].append(asdict(Doubt("no_server_statistics", f"batch sizes and queue times are missing: {counters.missing}",
                                               "use a server with the KServe statistics extension, or check that it still runs")))  # fmt: skip
        info["client"]["connections"] = getattr(transport, "connections_opened", None)
        info["client"]["reconnects"] = getattr(transport, "reconnects", None)
        info["status"] = "failed" if writer.error else "interrupted" if self.interrupts else "finished"
        info["ended_at"] = datetime.now(UTC).isoformat(timespec="milliseconds")
        if writer.error:
            with contextlib.suppress(LoadgenError):  # the disk is full: the first error is the one to show
                writer.save()
            raise writer.error
        writer.save()
        return Measured(writer.path, interrupted=self.interrupts > 0)

    def _pacer(self) -> Pacer:
        pacer, self.pacer_kind = make_pacer(asyncio.get_running_loop(), MONOTONIC)
        return pacer

    def _watch_signals(self, engine: Engine, writer: RunWriter) -> None:
        """First signal: stop sending, a short grace, write everything.  Second: quit at once."""
        loop = asyncio.get_running_loop()

        def interrupt() -> None:
            self.interrupts += 1
            if self.interrupts > 1:
                writer.flush()
                writer.close()
                sys.stderr.write("\ninterrupted twice: quit; records so far are kept\n")
                os._exit(130)
            self.order.say(
                f"interrupted: waiting up to {_GRACE_S:.0f} s for requests in flight (again to quit at once)"
            )
            engine.stop()
            loop.call_later(_GRACE_S, engine.cancel_in_flight)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupt)

    async def _watch(self, engine: Engine, writer: RunWriter) -> None:
        """Flushes records twice a second, shows progress, stops the run when the disk fails."""
        line = LiveLine(MONOTONIC, self.latency)
        self.phase = 0
        while True:
            await asyncio.sleep(_FLUSH_S)
            writer.flush()
            if writer.error is not None and not engine.stopped:
                engine.stop()
                engine.cancel_in_flight()
            phase = self.plan.phases[self.phase]
            elapsed = MONOTONIC.now_ns() - engine.phase_start_ns
            self.order.tick(
                line.text(phase.name, elapsed, phase.duration_ns, engine.counts, engine.in_flight)
            )


class _Probe:
    """A receiver for one request at a time, outside the load."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[tuple[int, int, Outcome, int, str | None]] | None = None

    async def ask(
        self, transport: Transport[Any], token: int, shot: Shot
    ) -> tuple[int, int, Outcome, int, str | None]:
        """(sent, done, outcome, status, detail) of one request; TIMEOUT after two minutes."""
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        timer = loop.call_later(_COLD_NS / 1e9, transport.cancel, token, Outcome.TIMEOUT)
        transport.send(token, shot.prepared)
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


def _broken(context: dict[str, Any]) -> NotMeasuredError:
    """What an event loop says of a callback that raised, as an error that ends the run instead of hanging it."""
    why = context.get("exception")
    words = f"{type(why).__name__}: {why}" if why is not None else context.get("message", "unknown")
    return NotMeasuredError(f"a fault in loadgen itself ended the run ({words}); what was recorded is kept")


def make_transport(target: Target) -> Transport[Any]:
    """The wire transport of the target's protocol."""
    if target.protocol == "grpc":
        from loadgen.transport.grpc import GrpcTransport

        return GrpcTransport(target, MONOTONIC)
    from loadgen.transport.http import HttpTransport

    return HttpTransport(target, MONOTONIC)


def cap_of(profile: TrafficProfile) -> Cap:
    """The profile's cap in the engine's words."""
    cap = profile.cap
    return Cap() if cap is None else Cap(cap.in_flight, drop=cap.when_full == "drop")


def connections_ahead(plan: Plan, order: Order) -> int:
    """Connections to open before the load; more open when they are needed.

    HTTP/1.1 needs one a request in flight: the users of a closed loop, a modest guess for an open one.
    gRPC carries its calls side by side on one connection until the server says that it is full.
    """
    if order.target.protocol == "grpc":
        return 1
    users = max((p.users for p in plan.phases), default=0)
    guess = max(users, 8 if any(p.loop == "open" for p in plan.phases) else 1)
    cap = cap_of(order.profile).in_flight
    return min(guess, _MOST_AHEAD, guess if cap is None else cap)


def redact(command: list[str]) -> list[str]:
    """A command line without the values of headers, tokens, keys and passwords."""
    secret = ("header", "token", "key", "password", "secret", "auth")
    out, hide = [], False
    for word in command:
        name, given, _ = word.partition("=")
        is_secret = word == "-H" or (word.startswith("--") and any(s in name for s in secret))
        out.append("[redacted]" if hide else f"{name}=[redacted]" if is_secret and given else word)
        hide = is_secret and not given and not hide
    return out
