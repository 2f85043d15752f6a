"""The cold start experiment: repeats of every condition in turn, on a server of our own or at a target.

    cold = coldstart(order)      # {"repeats", "conditions", "rejected", ...}: what coldstart.json holds

The embedded server is started anew for each repeat.  At a target the model is unloaded and loaded; where the
server lets nobody do that, only its first requests are measured.  It must not know what the figures mean.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from loadgen import schedule
from loadgen.connect.options import ConnectOptions
from loadgen.environment.nvml import open_nvml
from loadgen.lab import page_cache
from loadgen.lab.cold_repeat import Condition, NotColdError, Site, cold_repeat, first_requests
from loadgen.lab.cold_shapes import (
    Shape,
    cold_kinds,
    make_shapes,
    with_warmup,
    without_warmup,
)
from loadgen.lab.facts import client_facts
from loadgen.lab.loop import new_loop
from loadgen.records import LoadgenError, ModelFacts, NotMeasuredError
from loadgen.target import Target, parse_target
from loadgen.triton import named
from loadgen.triton.control import Control
from loadgen.triton.facts import instance_count
from loadgen.triton.local import LocalTriton

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from loadgen.traffic.profile import TrafficProfile
    from loadgen.triton.launch import Running

Row = TypeVar("Row")
FORMAT = 1
WARM, DROPPED, AS_FOUND = "warm", "dropped", "as found"


def _silent(_: Any) -> None:
    """Nobody asked."""


@dataclass(frozen=True, slots=True)
class ColdOrder:
    """What a person asked for.  `target` None: the embedded server on `repository`."""

    profile: TrafficProfile
    command: list[str]
    target: Target | None = None
    repository: Path = Path("model_repository")
    protocol: str = "grpc"  # of the embedded server
    model: str | None = None
    repeats: int = 5
    answers: int = 20  # of each shape, in each repeat
    buckets: int = 3  # lengths of a kind
    lengths: Sequence[int] = ()  # instead of them
    within: float = 0.25
    caches: Sequence[str] = (WARM, DROPPED)
    warmups: Sequence[bool] = (False, True)
    drop_machine: bool = True  # the whole machine's cache where that is permitted, else the files known
    timeout_ns: int = 120 * 10**9
    wait_ns: int = 600 * 10**9
    unload_ns: int = 60 * 10**9
    options: ConnectOptions = field(default_factory=ConnectOptions)
    say: Callable[[str], None] = _silent
    tick: Callable[[str], None] = _silent
    save: Callable[[dict[str, Any]], None] = _silent  # after each repeat: all that there is so far


def coldstart(order: ColdOrder) -> dict[str, Any]:
    """Measures; an interrupt keeps what was finished (status "interrupted").

    Raises LoadgenError before anything was measured, NotMeasuredError when no repeat was a cold start.
    """
    order.options.check(order.target) if order.target is not None else None
    lab = _Lab(order)
    try:
        lab.read()
        lab.repeat_all()
        lab.cold["status"] = "finished"
    except KeyboardInterrupt:
        if not lab.cold["repeats"]:
            raise
        lab.cold["status"] = "interrupted"
    finally:
        lab.restore()
    lab.cold["ended_at"] = _now()
    order.save(lab.cold)
    if not lab.cold["repeats"]:
        raise NotMeasuredError(f"no cold start was measured: {lab.cold['rejected'][0]['why']}")
    return lab.cold


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class _Lab:
    """The state of one experiment between its steps."""

    def __init__(self, order: ColdOrder) -> None:
        self.order = order
        self.plan = schedule.plan(order.profile, order.profile.seed)
        self.kinds, self.model = cold_kinds(order.profile, order.model)
        self.facts: ModelFacts | None = None
        self.shapes: list[Shape] = []
        self.conditions: list[Condition] = []
        self.local = order.target is None or order.target.is_local
        self.nvml = open_nvml() if self.local else None
        self.changed = False  # a target's model, from the first unload on
        self.cold: dict[str, Any] = {
            "format": FORMAT, "started_at": _now(), "ended_at": None, "status": "running", "command": order.command,
            "profile": {"name": order.profile.name, "text": order.profile.text, "sha256": order.profile.sha256},
            "target": order.target.url if order.target else "embedded", "model": self.model, "mode": "", "no_control": None,
            "within": order.within, "answers": order.answers, "instances": 1, "timeout_ns": order.timeout_ns,
            "conditions": [], "repeats": [], "rejected": [], "notes": [], "client": client_facts(),
        }  # fmt: skip

    # One look ahead

    def read(self) -> None:
        """What the model is, which shapes and conditions there will be.  In no figure."""
        order = self.order
        if order.target is None:
            order.say(f"reading {self.model}: one start of the server ahead, in no figure")
            with self._server() as server:
                _run(self._read(self._target(server)))
            self.cold["mode"] = "process"
        else:
            order.say(f"reading {self.model} at {order.target.url}")
            _run(self._read(order.target))
        assert self.facts is not None  # noqa: S101 - just read
        self.cold["instances"] = instance_count(self.facts.config) or 1
        self.conditions = self._make_conditions()
        self.cold["conditions"] = [
            {"name": c.name, "cache": c.cache, "warmup": c.warmup, "told": c.told} for c in self.conditions
        ]
        self.cold["config"] = self.facts.config

    async def _read(self, target: Target) -> None:
        order = self.order
        async with Control(target, options=order.options) as control:
            why = await _no_control(control, self.model)
            self.cold["mode"], self.cold["no_control"] = ("load" if why is None else "first requests"), why
            if why is not None:
                order.say(f"no explicit model control ({why}): only first requests can be measured")
            await control.wait_model_ready(self.model, "", order.wait_ns)
            by_version = {
                v: await control.model_facts(self.model, v) for v in {kind.version for kind in self.kinds}
            }
            self.facts = by_version.get("") or next(iter(by_version.values()))
            self.shapes = make_shapes(
                self.kinds, by_version, target, order.profile, self.plan,
                buckets=order.buckets, lengths=order.lengths,
            )  # fmt: skip

    def _make_conditions(self) -> list[Condition]:
        order, facts = self.order, self.facts
        assert facts is not None  # noqa: S101 - read before
        if self.cold["mode"] == "first requests":
            return [Condition("as found", AS_FOUND, warmup=False, told="the server as it was")]
        caches = {WARM: "the files were read beforehand"}
        if DROPPED in order.caches:
            if how := self._how_to_drop():
                caches[DROPPED] = how
            else:
                self._note(
                    "page cache: not dropped, the server's files are not known here (run as root on its machine, or embedded)"
                )
        if order.target is not None and not self._folders():
            caches[WARM] = "the page cache as it was"
        made = []
        for warmup in order.warmups:
            if warmup and facts.config is None:
                self._note("warm-up: not compared, the server tells no configuration")
                continue
            config = with_warmup(facts, self.shapes) if warmup else without_warmup(facts)
            for cache in [c for c in (WARM, DROPPED) if c in caches and c in order.caches]:
                name = f"{cache} cache, {'warm-up' if warmup else 'no warm-up'}"
                copied = cache == DROPPED and order.target is None and not self._drops_machine
                made.append(Condition(name, cache, warmup, config, caches[cache], copied))
        if not made:
            raise LoadgenError("coldstart: no condition is left to measure: " + "; ".join(self.cold["notes"]))
        return made

    def _note(self, text: str) -> None:
        self.order.say(text)
        self.cold["notes"].append(text)

    # Files

    def _folders(self) -> list[Path]:
        """The folders whose files a cold start reads, as far as they are known here."""
        order = self.order
        if order.target is None:
            from loadgen.triton.install import ensure_installed

            return [order.repository / self.model, ensure_installed(order.say).folder]
        running = self._running()
        return [Path(running.repository) / self.model] if running is not None else []

    def _running(self) -> Running | None:
        """The target's process and repository, if `loadgen serve` started it here."""
        name = named.name_at(self.order.target) if self.order.target is not None else None
        return named.find(name) if name is not None else None

    @property
    def _drops_machine(self) -> bool:
        return self.order.drop_machine and self.local and page_cache.may_drop_all()

    def _how_to_drop(self) -> str | None:
        if self._drops_machine:
            return "drop_caches: the whole machine's"
        if self.order.target is None:
            return "a fresh copy of the model's files, the server's own taken out of the cache, the rest as it was"
        return "the model's files taken out, the rest as it was" if self._folders() else None

    def _make_cache(self, cache: str) -> None:
        folders = self._folders()
        if cache == DROPPED:
            if not (self.order.drop_machine and page_cache.drop_all()):
                page_cache.drop(folders)
        elif cache == WARM:
            page_cache.fill(folders)

    # Repeats

    def repeat_all(self) -> None:
        """Conditions take turns, each round from another one on, so that no drift favours one."""
        order, conditions = self.order, self.conditions
        if self.cold["mode"] == "first requests":
            self._one(conditions[0], 1)
            return
        for repeat in range(order.repeats):
            for place in range(len(conditions)):
                self._one(conditions[(place + repeat) % len(conditions)], repeat + 1)

    def _one(self, condition: Condition, repeat: int) -> None:
        order = self.order
        order.say(f"{condition.name}: repeat {repeat} of {order.repeats}")
        measure = self._embedded if order.target is None else self._at_target
        try:
            self.cold["repeats"].append(measure(condition, repeat))
        except NotColdError as why:
            order.say(f"not a cold start, in no figure: {why}")
            self.cold["rejected"].append({"condition": condition.name, "repeat": repeat, "why": str(why)})
        order.save(self.cold)

    def _embedded(self, condition: Condition, repeat: int) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="loadgen-cold-") as scratch:
            repository = self.order.repository
            if condition.copied:
                page_cache.fresh_copy(repository / self.model, Path(scratch))
                repository = Path(scratch)
            self._make_cache(condition.cache)
            share = page_cache.cached_share([repository / self.model])
            with self._server(repository) as server:
                work = partial(cold_repeat, condition=condition, repeat=repeat, unload=False, again=True)
                row = _run(
                    self._with_site(self._target(server), work, server.log_path, server.pid, server.began_ns)
                )
                ready = server.readiness
        before = {"live": ready.live_ns, "server_ready": ready.server_ready_ns}
        row["stages_ns"] = {**{k: v for k, v in before.items() if v is not None}, **row["stages_ns"]}
        return {**row, "cached_share": share}

    def _at_target(self, condition: Condition, repeat: int) -> dict[str, Any]:
        target = self.order.target
        assert target is not None  # noqa: S101 - by the caller
        running = self._running()
        pid = running.server_pid if running else None
        if condition.cache == AS_FOUND:
            return _run(self._with_site(target, partial(first_requests, condition=condition), pid=pid))
        self.changed = True
        self._make_cache(condition.cache)
        share = page_cache.cached_share(self._folders()) if running else None
        work = partial(cold_repeat, condition=condition, repeat=repeat, unload=True, again=False)
        return {**_run(self._with_site(target, work, pid=pid)), "cached_share": share}

    def restore(self) -> None:
        """A target's model as its repository has it: an overridden configuration would stay until an unload."""
        if self.order.target is not None and self.changed:
            try:
                _run(self._reload(self.order.target))
            except LoadgenError as why:
                self._note(f"{self.model!r} is not as it was found: {why}")

    async def _reload(self, target: Target) -> None:
        async with Control(target, options=self.order.options) as control:
            await control.unload(self.model, self.order.unload_ns)
            await control.load(self.model)

    def _server(self, repository: Path | None = None) -> LocalTriton:
        return LocalTriton(repository or self.order.repository, timeout_ns=self.order.wait_ns)

    def _target(self, server: LocalTriton) -> Target:
        return parse_target(server.grpc_target if self.order.protocol == "grpc" else server.http_target)

    async def _with_site(
        self,
        target: Target,
        work: Callable[[Site], Coroutine[Any, Any, dict[str, Any]]],
        log: Path | None = None,
        pid: int | None = None,
        began_ns: int | None = None,
    ) -> dict[str, Any]:
        order = self.order
        async with Control(target, options=order.options, log=log) as control:
            return await work(
                Site(
                    control=control,
                    options=order.options,
                    model=self.model,
                    shapes=self.shapes,
                    instances=self.cold["instances"],
                    answers=order.answers,
                    timeout_ns=order.timeout_ns,
                    wait_ns=order.wait_ns,
                    unload_ns=order.unload_ns,
                    pid=pid,
                    began_ns=began_ns,
                    nvml=self.nvml,
                    tick=order.tick,
                )
            )


async def _no_control(control: Control, model: str) -> str | None:
    """Why models cannot be loaded here; None when they can.  Loads the model if it is not, and does not unload it."""
    try:
        await control.load(model)
    except LoadgenError as why:
        with suppress(LoadgenError):
            if await control.model_ready(model):
                return str(why)
        raise
    return None


def _run(work: Coroutine[Any, Any, Row]) -> Row:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(work)
