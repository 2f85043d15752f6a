"""One run: read the server, plan, send, record, read.  The order of events of the whole package.

`measure` is what `loadgen run`, the demo and every experiment call.  It leaves a run folder behind and
returns its path; figures are read from the folder, never from live objects.  It must not know how bytes
are framed nor what a figure means.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from loadgen.clock import MONOTONIC
from loadgen.connect.options import ConnectOptions
from loadgen.engine.loop import LEAD_NS
from loadgen.engine.parts import Counts, merge_results
from loadgen.engine.process import pinned_core
from loadgen.lab.ceiling import headroom_warning, peak_per_s, read_ceilings
from loadgen.lab.facts import client_facts, cores_used
from loadgen.lab.first import First, first_answers
from loadgen.lab.limits import check_file_limit, check_workers
from loadgen.lab.loop import new_loop
from loadgen.lab.model_files import model_files
from loadgen.lab.relay import start_relay
from loadgen.lab.sender import FLUSH_S, LocalSender, Sender, Share, Watched
from loadgen.lab.server_trace import MOST_REQUESTS, find_trace
from loadgen.lab.target import (
    Counters,
    clamped,
    make_transport,
    models_of,
    planned,
    read_models,
    steps_asked,
)
from loadgen.lab.watch import Beside, Watch, known_beside
from loadgen.lab.watch_process import MetricsPage
from loadgen.lab.worker import RemoteSender
from loadgen.planstory import arrivals_of
from loadgen.records import Doubt, LoadgenError, NotMeasuredError
from loadgen.runfile import FORMAT, RECORDS, RunFolder, drop_run_folder, make_run_folder
from loadgen.sinks.live import LiveLine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from loadgen.lab.relay import Relay
    from loadgen.lab.server_trace import ServerTrace
    from loadgen.lab.target import Models
    from loadgen.records import Plan
    from loadgen.target import Target
    from loadgen.traffic.profile import TrafficProfile
    from loadgen.transport.dial import Via

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GRACE_S = 2.0  # after the first Ctrl-C, requests in flight have this long to end
_WATCHED_NS = 5 * 10**9  # of a shorter run the counters before and after tell all
_REMOTE_LEAD_NS = 50_000_000  # orders to other processes take a moment; all start at one instant


def _silent(_: str) -> None:
    """Progress that nobody asked for."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a person asked for."""

    profile: TrafficProfile
    target: Target
    seed: int
    out: Path | None
    command: list[str]  # for run.json: without secrets
    wait_ns: int = 0  # how long server and models may take to become ready
    say: Callable[[str], None] = _silent  # what happens once, as a line
    tick: Callable[[str], None] = _silent  # twice a second while the load runs
    workers: int = 1
    realtime: bool = False
    cores: tuple[int, ...] = ()
    transport: str = "wire"
    plan_file: Path | None = None  # a saved plan, instead of one made from profile and seed
    beside: Beside | None = None  # what else is known of the server; None: what `loadgen serve` knows of it
    cold_start: dict[str, Any] | None = None  # of a server that was started for this run: what was ready when
    options: ConnectOptions = field(default_factory=ConnectOptions)
    trace_server: bool = False  # have the server trace every request, for `loadgen explain`
    most_in_flight: int | None = None  # more requests without an answer end the load: the server is saturated


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
    plan = planned(order.profile, order.seed, order.plan_file)
    check_workers(order, plan)
    order.options.check(order.target)
    if order.profile.network is not None and order.transport != "wire":
        raise LoadgenError(
            f"network: the transport {order.transport!r} goes through no relay; use --transport wire"
        )
    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    path = make_run_folder(order.profile.name, order.out, started)
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(_Run(order, plan, path, started).go())
    finally:
        if not (path / RECORDS).exists():
            drop_run_folder(path)


class _Run:
    """The state of one run between its steps."""

    def __init__(self, order: Order, plan: Plan, path: Path, started: str) -> None:
        self.order, self.plan, self.path, self.started = order, plan, path, started
        self.interrupts = 0
        self.phase, self.start_ns, self.sending = 0, 0, False
        self.senders: list[Sender] = []
        self.begun = [[0] * order.workers for _ in plan.phases]  # arrivals of each phase, of each sender
        self.include_usage = True
        self.relay: Relay | None = None
        self.trace: ServerTrace | None = None
        self.beside = order.beside or known_beside(order.target)
        self.metrics: dict[str, Any] | None = (
            None  # for run.json: the metrics page, and why it could not be read
        )
        self.network: dict[str, Any] | None = None  # for run.json: the conditions, and what making them cost

    async def go(self) -> Measured:
        from loadgen.triton.control import Control
        from loadgen.triton.links import ANSWER_S

        order, profile = self.order, self.order.profile
        check_file_limit(self.plan, order)
        warning = headroom_warning(
            peak_per_s(self.plan), order.target.protocol, order.workers, read_ceilings()
        )
        if warning:
            order.say(f"note: {warning}")
        control = Control(order.target, options=order.options)
        try:
            for phase in self.plan.phases:
                for said in (phase.facts or {}).get("said", ()):
                    order.say(f"{phase.name}: {said}")
            subjects = dict.fromkeys(kind.subject for kind in profile.kinds.values())
            order.say(f"reading {', '.join(subjects)} at {order.target.url}, within {ANSWER_S:g} s an answer")
            models, server = await read_models(control, profile, order.wait_ns, order.options)
            if self.beside.repository is not None:
                for name, told in server.get("models", {}).items():
                    told["files"] = model_files(self.beside.repository / name)
            self.plan = clamped(self.plan, profile, models)
            steps = steps_asked(server, profile)
            if order.trace_server:
                traced = [model for model, _ in [*models_of(profile), *steps]]
                self.trace = await find_trace(control, traced)
            if profile.network is not None:
                order.say(f"network: {profile.network.words}")
                self.relay, self.network = await start_relay(
                    profile.network, order.target, order.seed, self._relay_died
                )
            self.metrics = await self._look_at_metrics()
            transport = make_transport(order.target, order.transport, order.options, self._via)
            first = await first_answers(transport, order, self.plan, models)
            self.include_usage = first.include_usage
            folder = self._open_folder(server, first)
            await self._send_all(folder, models, Counters(control, models_of(profile), folder, steps))
            return Measured(folder.path, interrupted=self.interrupts > 0)
        finally:
            if self.relay is not None:
                await self.relay.close()
            await control.close()

    @property
    def _via(self) -> Via | None:
        return None if self.relay is None else self.relay.via

    def _relay_died(self) -> None:
        """What is sent from now on would meet another network: nothing is."""
        for sender in self.senders:
            sender.stop()
            sender.cancel_in_flight()

    def _open_folder(self, server: dict[str, Any], first: First) -> RunFolder:
        order, profile, cap = self.order, self.order.profile, self.order.profile.cap
        # [at its start, at its end] of each segment; a saved plan may be of other rates
        rates = {} if order.plan_file else {
            p.name: [[one.start_per_s, one.end_per_s] for one in p.open.rate] for p in profile.phases if p.open
        }  # fmt: skip
        info: dict[str, Any] = {
            "format": FORMAT, "id": self.path.name, "started_at": self.started, "origin_ns": None, "status": "running",
            "seed": self.plan.seed, "plan_file": order.plan_file and str(order.plan_file), "target": order.target.url, "command": order.command,
            "profile": {"name": profile.name, "text": profile.text, "sha256": profile.sha256},
            "kinds": [{"name": k.name, "model": k.model, "version": k.version, "batch": k.batch,
                       "weight": k.weight, "timeout_ns": k.timeout_ns,
                       "stream": k.stream or (k.text is not None and k.text.stream),
                       "status_only": k.http is not None and not k.http.success.json_} for k in profile.kinds.values()],
            "cap": {"in_flight": cap and cap.in_flight, "when_full": cap.when_full if cap else "wait"},
            "objectives": [o.text for o in profile.objectives],
            "phases": [{"name": p.name, "loop": p.loop, "measured": p.measured, "duration_ns": p.duration_ns,
                        "users": p.users, "requests": p.requests, "think_ns": p.think_ns, "planned": None if p.due_ns is None else len(p.due_ns),
                        "plan": p.facts, "rates": rates.get(p.name), "arrivals": (told := arrivals_of(p)) and asdict(told), "start_ns": None, "load_end_ns": None, "end_ns": None, "max_in_flight": 0, "followed": 0,
                        "cap_waits": 0, "cpu_ns": 0, "cpu_max_ns": 0, "loop_lag_ns": None} for p in self.plan.phases],
            "server": server, "client": client_facts(), "first_request_ns": first.ns, "first_each_ns": first.each_ns, "cold_start": order.cold_start, "network": self.network, "metrics": self.metrics, "doubts": [],
        }  # fmt: skip
        info["client"] |= {
            "pid": os.getpid(), "loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
            "workers": order.workers, "realtime": order.realtime, "transport": order.transport,
        }  # fmt: skip
        return RunFolder(self.path, info)

    async def _send_all(self, folder: RunFolder, models: Models, counters: Counters) -> None:
        info = folder.info
        origin_ns = info["origin_ns"] = MONOTONIC.now_ns()  # to lay other logs of this machine beside the run
        self.senders = self._make_senders(folder, models, origin_ns)
        handlers = self._watch_signals(folder)
        watch: asyncio.Task[None] | None = None
        watcher = self._start_watch(folder, origin_ns)
        try:
            await asyncio.gather(*(sender.ready() for sender in self.senders))
            self._tell_refused(info)
            watch = asyncio.get_running_loop().create_task(self._watch())
            if self.trace is not None:
                await self.trace.begin()
            for index, phase in enumerate(self.plan.phases):
                if self._interrupted() or self._fault():
                    break
                await counters.snapshot(MONOTONIC.now_ns() - origin_ns, phase.name, "before")
                await self._send_phase(index, info)
                if self._interrupted():
                    self.order.say("reading the server's statistics")
                self.sending = False
                limit_s = _GRACE_S if self._interrupted() else None
                await counters.snapshot(MONOTONIC.now_ns() - origin_ns, phase.name, "after", limit_s)
                folder.save()
        finally:
            if watch is not None:
                watch.cancel()
            if watcher is not None:
                await asyncio.to_thread(watcher.close)
            facts = await asyncio.gather(*(sender.close(self.begun) for sender in self.senders))
            if self.relay is not None and self.network is not None:
                self.network["relay"] = await self.relay.close() or None
            await self._end_trace(folder, origin_ns)
            self._conclude(folder, facts, counters)
            self._unwatch_signals(handlers)
        if fault := self._fault():
            raise fault

    def _tell_refused(self, info: dict[str, Any]) -> None:
        """What the person asked for and the system did not grant: at once on stderr, and among the doubts."""
        for words in dict.fromkeys(words for sender in self.senders for words in sender.refused):
            self.order.say(f"note: {words}")
            hint = "other processes can delay sends: see P99 of lag; grant it, or leave the option out"
            info["doubts"].append(asdict(Doubt("not_granted", f"the client is {words}", hint)))

    def _start_watch(self, folder: RunFolder, origin_ns: int) -> Watch | None:
        """Another process reads the server's counters along the run; none for what has no counters, or is short."""
        order, models = self.order, models_of(self.order.profile)
        short = sum(phase.duration_ns or 0 for phase in self.plan.phases) < _WATCHED_NS
        if (short or not models) and not self.beside.asked:
            return None
        return Watch(order.target, order.options, models, self.beside, folder.path, origin_ns)

    async def _look_at_metrics(self) -> dict[str, Any] | None:
        """Once before the load, so that a page that cannot be read is known when it can still be put right."""
        if self.beside.metrics_url is None:
            return None
        page = MetricsPage(self.beside.metrics_url)
        try:
            await page.read()
        except LoadgenError as why:
            self.order.say(
                f"warning: the metrics page {page.url} cannot be read: {why}; its figures will be missing"
            )
            return {"url": page.url, "why": str(why)}
        finally:
            await page.close()
        return {"url": page.url, "why": None}

    async def _end_trace(self, folder: RunFolder, origin_ns: int) -> None:
        """A trace that does not come is told of, and never fails a run."""
        if self.trace is None:
            return
        try:
            told = folder.info["trace"] = await self.trace.end(folder.path, origin_ns)
        except LoadgenError as why:
            hint = "repeat the run; `loadgen explain` has nothing to read of this one"
            folder.info["doubts"].append(
                asdict(Doubt("no_trace", f"the server's trace is missing: {why}", hint))
            )
            return
        if told["full"]:
            text = f"the server's trace of {', '.join(told['full'])} ends at {MOST_REQUESTS:,} requests"
            hint = "`loadgen explain` sees the run up to there"
            folder.info["doubts"].append(asdict(Doubt("trace_full", text, hint)))

    def _make_senders(self, folder: RunFolder, models: Models, origin_ns: int) -> list[Sender]:
        order = self.order
        shares = [
            Share(order.profile, order.seed, order.target, order.transport, order.options, self.include_usage, order.plan_file, origin_ns, k, order.workers,
                  order.realtime, pinned_core(order.cores, k) if order.workers > 1 else order.cores, order.trace_server, self._via)
            for k in range(order.workers)
        ]  # fmt: skip
        if order.workers == 1:
            return [LocalSender(shares[0], self.plan, models, folder.writer)]
        return [RemoteSender(share, models, folder.path) for share in shares]

    async def _send_phase(self, index: int, info: dict[str, Any]) -> None:
        """All senders start at one instant; those that were lost on the way are left out of the result."""
        self.phase, self.sending = index, True
        self.start_ns = MONOTONIC.now_ns() + (LEAD_NS if len(self.senders) == 1 else _REMOTE_LEAD_NS)
        before = cores_used()
        results = await asyncio.gather(*(sender.run_phase(index, self.start_ns) for sender in self.senders))
        used = _share_used(before, cores_used())
        self.begun[index] = [0 if result is None else result.begun for result in results]
        parts = [result for result in results if result is not None]
        if parts:
            told, result = info["phases"][index], merge_results(parts)
            told |= asdict(result) | {"machine_busy": used}
            if told["planned"] is not None:  # later requests of dialogues were due besides those planned
                told["planned"] += result.followed

    def _fault(self) -> LoadgenError | None:
        """Why the run cannot go on: the first sender's error; lost workers only when all are lost."""
        if self.relay is not None and self.relay.error is not None:
            return self.relay.error
        errors = [sender.error for sender in self.senders if sender.error is not None]
        if not errors and self._lost() == len(self.senders):
            return NotMeasuredError("every worker ended before the run did; what was recorded is kept")
        return errors[0] if errors else None

    def _interrupted(self) -> bool:
        return self.interrupts > 0

    def _lost(self) -> int:
        return sum(sender.lost for sender in self.senders)

    def _conclude(self, folder: RunFolder, facts: list[dict[str, Any]], counters: Counters) -> None:
        """Writes into run.json what is known only at the end."""
        info, doubts = folder.info, []
        if counters.missing is not None:
            doubts.append(Doubt("no_server_statistics", f"batch sizes and queue times are missing: {counters.missing}",
                                "use a server with the KServe statistics extension, or check that it still runs"))  # fmt: skip
        told = [said for phase in self.plan.phases if (said := (phase.facts or {}).get("other_profile"))]
        hint = "run the profile that the plan was made from, or save its plan anew"
        doubts += [Doubt("other_profile", said, hint) for said in told]
        if lost := self._lost():
            doubts.append(Doubt("worker_lost", f"{lost} of {len(self.senders)} workers ended before the run did: what they had "
                                "planned counts as never sent", "see what killed them (memory?), and repeat the run"))  # fmt: skip
        info["doubts"] += [asdict(doubt) for doubt in doubts]
        info["client"]["senders"] = facts
        info["inputs"] = next((row["inputs"] for row in facts if "inputs" in row), None)
        counted = [row.get("records") for row in facts]  # None: unknown, a worker was lost
        info["records"] = sum(counted) if None not in counted else None
        info["status"] = "failed" if self._fault() else "interrupted" if self.interrupts else "finished"
        info["ended_at"] = datetime.now(UTC).isoformat(timespec="milliseconds")
        # on a full disk the first error is the one to show
        with contextlib.suppress(LoadgenError) if self._fault() else contextlib.nullcontext():
            folder.save()

    def _watch_signals(self, folder: RunFolder) -> dict[signal.Signals, Any]:
        """First signal: stop sending, a short grace, write everything.  Second: quit at once.  The handlers before."""
        loop = asyncio.get_running_loop()
        handlers = {number: signal.getsignal(number) for number in _SIGNALS}

        def interrupt() -> None:
            self.interrupts += 1
            if self.interrupts > 1:
                for sender in self.senders:
                    if isinstance(sender, LocalSender):
                        sender.write_now()
                folder.info["status"] = "interrupted"
                with contextlib.suppress(LoadgenError):
                    folder.save()
                with contextlib.suppress(OSError):
                    sys.stderr.write("\ninterrupted twice: quit; records so far are kept\n")
                os._exit(130)
            self.order.say(
                f"interrupted: waiting up to {_GRACE_S:.0f} s for requests in flight (again to quit at once)"
            )
            for sender in self.senders:
                sender.stop()
                loop.call_later(_GRACE_S, sender.cancel_in_flight)

        for number, handler in handlers.items():
            if not (
                number is signal.SIGHUP and handler is signal.SIG_IGN
            ):  # nohup: who ran us wants it ignored
                loop.add_signal_handler(number, interrupt)
        return handlers

    def _unwatch_signals(self, handlers: dict[signal.Signals, Any]) -> None:
        """What the caller had is in force again: a sweep is many runs."""
        for number, handler in handlers.items():
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, handler)

    async def _watch(self) -> None:
        """Shows progress twice a second."""
        line = LiveLine(MONOTONIC)
        while True:
            await asyncio.sleep(FLUSH_S)
            if not self.sending:
                continue
            phase = self.plan.phases[self.phase]
            watched = reduce(_add, (sender.watched() for sender in self.senders))
            most = self.order.most_in_flight
            if most is not None and watched.in_flight > most:
                for sender in self.senders:
                    sender.stop()
                    sender.cancel_in_flight()
            elapsed = MONOTONIC.now_ns() - self.start_ns
            self.order.tick(line.text(phase.name, elapsed, phase.duration_ns, watched))


def _share_used(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """Of the machine's cores between two readings, 0 to 1; None where they do not tell."""
    if before is None or after is None or after[1] <= before[1]:
        return None
    return round((after[0] - before[0]) / (after[1] - before[1]), 3)


def _add(a: Watched, b: Watched) -> Watched:
    counts = Counts(
        *(x + y for x, y in zip(asdict(a.counts).values(), asdict(b.counts).values(), strict=True))
    )
    bins = a.bins + b.bins if len(a.bins) == len(b.bins) else max(a.bins, b.bins, key=len)
    return Watched(counts, a.in_flight + b.in_flight, bins)


def redact(command: list[str], headers: list[str]) -> list[str]:
    """A command line without the values of the headers in it, however they were written into it."""
    out = []
    for word in command:
        for header in headers:
            word = word.replace(header, f"{header.partition(':')[0]}: [redacted]")  # noqa: PLW2901
        out.append(word)
    return out
