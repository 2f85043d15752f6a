"""A sweep: one experiment over many batching configurations and loads, unattended and resumable.

`run_sweep` makes the folder, `resume_sweep` goes on with one.  The order of the blocks is data (traffic.sweep); here
is the one loop that drives: bring the model under the block's configuration, warm it until it is steady, measure.
Every block is a run folder made by `lab.run.measure`; what is finished there is never measured again, so Ctrl-C, a
crash or a dead server lose one block.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.analysis.sweep import BLOCKS, FORMAT, JOURNAL, finished, read_journal, sweep_of
from loadgen.connect.options import ConnectOptions
from loadgen.lab.model_config import READY_NS, ServerUnderTest, bring, is_alive, own_config, why_changed
from loadgen.lab.run import Order, measure
from loadgen.lab.steady import WINDOW_NS, warm
from loadgen.lab.watch import beside, known_beside
from loadgen.records import LoadgenError, NotMeasuredError, NotWrittenError
from loadgen.runfile import RUN, write_atomic
from loadgen.target import parse_target
from loadgen.traffic.profile import TrafficProfile, parse_profile
from loadgen.triton import named
from loadgen.triton.local import LocalTriton
from loadgen.triton.overlay import OverlayError, check, overlaid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loadgen.traffic.sweep import Block, Sweep

_CUT = "cut"  # where blocks go that were interrupted: their records are kept, they are in no figure


class BrokenOffError(NotMeasuredError):
    """The server went away, or its model is no longer what was loaded, while a sweep was under way."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the server is: a target with explicit model control, or a repository for one of our own; how load goes."""

    target: str | None = None
    repository: Path | None = None
    protocol: str = "grpc"  # of the load to a server of our own
    realtime: bool = False  # no other process delays a send: such a server shares the client's cores


@dataclass(frozen=True, slots=True)
class Swept:
    """Where the sweep lies and whether it was cut short."""

    path: Path
    interrupted: bool


def run_sweep(
    sweep: Sweep, place: Place, options: ConnectOptions, out: Path | None, command: list[str],
    say: Callable[[str], None], tick: Callable[[str], None],
) -> Swept:  # fmt: skip
    """Begins a sweep in a new folder.  Raises LoadgenError before anything was loaded for what cannot be."""
    traffic = sweep.traffic()
    model = sweep.subject(traffic)
    for load in sweep.loads:
        parse_profile(sweep.block_text(traffic, load), f"{sweep.profile} at {load}", traffic.folder)
    path = _make_folder(sweep.name, out)
    journal: dict[str, Any] = {
        "format": FORMAT, "status": "running", "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command, "model": model,
        "sweep": {"name": sweep.name, "text": sweep.text, "sha256": sweep.sha256, "folder": str(sweep.folder)},
        "profile": {"name": traffic.name, "text": traffic.text, "sha256": traffic.sha256, "folder": str(traffic.folder)},
        "target": place.target, "repository": place.repository and str(place.repository.absolute()),
        "protocol": place.protocol, "realtime": place.realtime, "base": None, "failed": {}, "visits": [],
    }  # fmt: skip
    drive = _Drive(path, journal, sweep, traffic, options, say, tick)
    try:
        return drive.go()
    except BaseException:
        if journal["base"] is None:  # nothing was begun
            shutil.rmtree(path, ignore_errors=True)
        raise


def resume_sweep(
    path: Path, options: ConnectOptions, say: Callable[[str], None], tick: Callable[[str], None]
) -> Swept:
    """Goes on where a sweep was cut: with its own texts, whatever became of the files."""
    journal = read_journal(path)
    sweep, told = sweep_of(journal), journal["profile"]
    traffic = parse_profile(told["text"], told["name"], Path(told["folder"]))
    with suppress(LoadgenError):  # it may be gone: what was written down is enough
        if sweep.traffic().sha256 != traffic.sha256:
            say(f"{sweep.profile} was changed since: the sweep goes on with the text it began with")
    return _Drive(path, journal, sweep, traffic, options, say, tick).go()


def _make_folder(name: str, out: Path | None) -> Path:
    safe = re.sub(r"[^\w.-]+", "-", name).strip(".-")[:60] or "sweep"
    path = out or Path("sweeps") / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{safe}"
    try:
        path.mkdir(parents=True, exist_ok=False)
    except FileExistsError:
        said = f"loadgen sweep resume {path} goes on with it" if (path / JOURNAL).exists() else "name another"
        raise LoadgenError(f"output {path}: exists already; {said}") from None
    except OSError as why:
        raise NotWrittenError(path, why, "name a writable folder with --out") from None
    return path


@dataclass(slots=True)
class _Drive:
    """The loop and what it writes down."""

    path: Path
    journal: dict[str, Any]
    sweep: Sweep
    traffic: TrafficProfile
    options: ConnectOptions  # to a target
    say: Callable[[str], None]
    tick: Callable[[str], None]
    configs: list[dict[str, Any]] = field(default_factory=list)

    def go(self) -> Swept:
        """Every block that is not finished, in its order.  The journal is whole at every moment."""
        blocks = self.sweep.blocks()
        todo = [block for block in blocks if not finished(self.path, block)]
        if not todo:
            self._save("finished")
            return Swept(self.path, interrupted=False)
        begun = False
        try:
            with self._server() as server:
                self._prepare(server)
                begun = True
                for block in todo:
                    done = len(blocks) - len(todo) + todo.index(block)
                    if not self._block(server, block, f"block {done + 1} of {len(blocks)}"):
                        self._save("interrupted")
                        return Swept(self.path, interrupted=True)
        except KeyboardInterrupt:
            if self.journal["base"] is None:  # nothing was begun
                raise
            self._save("interrupted")
            return Swept(self.path, interrupted=True)
        except LoadgenError as why:
            self._save("broken")
            if not begun:
                raise
            raise BrokenOffError(f"{why}; loadgen sweep resume {self.path} goes on") from None
        self._save("finished" if not self.journal["failed"] else "failed in part")
        return Swept(self.path, interrupted=False)

    def _save(self, status: str = "running") -> None:
        self.journal["status"] = status
        if self.journal["base"] is not None:
            write_atomic(self.path / JOURNAL, json.dumps(self.journal, indent=1) + "\n")

    @contextmanager
    def _server(self) -> Iterator[ServerUnderTest]:
        if self.journal["target"] is not None:
            target = parse_target(self.journal["target"])
            self.options.check(target)
            name = named.name_at(target)  # of `loadgen serve`: then its log is here, and its process
            log = named.folder_of(name) / "server.log" if name else None
            server = ServerUnderTest(
                target, target, log, self.options, beside=known_beside(target) if name else None
            )
            try:
                yield server
            finally:
                try:
                    if server.touched:
                        asyncio.run(own_config(server, self.journal["model"]))
                except LoadgenError as why:
                    self.say(f"{self.journal['model']!r} is not as it was found: {why}")
            return
        with LocalTriton(self.journal["repository"], say=self.say) as own:
            load = own.grpc_target if self.journal["protocol"] == "grpc" else own.http_target
            yield ServerUnderTest(
                parse_target(own.http_target),
                parse_target(load),
                own.log_path,
                ConnectOptions(),
                beside=beside(own.facts),
            )

    def _prepare(self, server: ServerUnderTest) -> None:
        """Reads the model's own configuration and checks all that will be made of it.  Raises LoadgenError."""
        model = self.journal["model"]
        self.say(f"reading the configuration of {model}")
        base = asyncio.run(own_config(server, model))
        if self.journal["base"] not in (None, base):
            raise LoadgenError(f"{self.path}: the configuration of {model!r} is no longer what the sweep began with; "
                               "begin a new sweep")  # fmt: skip
        faults = []
        for one in self.sweep.candidates:
            try:
                self.configs.append(overlaid(base, one.changes))
                check(self.configs[-1])
            except OverlayError as why:
                faults.append(f"configuration {one.name!r}: {why}")
        if faults:
            raise LoadgenError("\n".join(faults))
        self.journal["base"], self.journal["failed"] = base, {}
        self._save()

    def _block(self, server: ServerUnderTest, block: Block, which: str) -> bool:
        """One block; False when it was interrupted.  A configuration that cannot be loaded is left out, with the
        server's reason: the others go on.
        """
        one, load = self.sweep.candidates[block.configuration], self.sweep.loads[block.load]
        if one.name in self.journal["failed"]:
            return True
        self.say(f"{which}: {one.name} at {load}")
        try:
            return self._bring(server, block) and self._measure(server, block)
        except BrokenOffError:
            raise
        except LoadgenError as why:
            if not asyncio.run(is_alive(server)):
                raise BrokenOffError(f"{one.name} at {load}: {why}") from None
            self.journal["failed"][one.name] = str(why)
            self.say(f"{one.name} is left out: {why}")
            self._save()
            return True

    def _bring(self, server: ServerUnderTest, block: Block) -> bool:
        """The block's configuration, loaded and warm; False when interrupted."""
        how = asyncio.run(bring(server, self.journal["model"], self.configs[block.configuration]))
        if how["how"] == "kept" and server.warm:
            return True
        server.warm = False
        warmed = warm(lambda name: self._window(server, name), self.sweep.warm_up_ns)
        if warmed is None:
            return False
        server.warm = True
        visit = {"block": block.name, "configuration": self.sweep.candidates[block.configuration].name}
        self.journal["visits"].append({**visit, **how, **warmed})
        self._save()
        return True

    def _measure(self, server: ServerUnderTest, block: Block) -> bool:
        text = self.sweep.block_text(self.traffic, self.sweep.loads[block.load])
        folder = self.path / BLOCKS / block.name
        self._set_aside(folder)
        measured = measure(self._order(server, text, folder, block.seed))
        why = None if measured.interrupted else asyncio.run(why_changed(server, self.journal["model"]))
        if measured.interrupted or why:
            self._set_aside(folder)
        if why:
            one, load = self.sweep.candidates[block.configuration], self.sweep.loads[block.load]
            raise BrokenOffError(f"{one.name} at {load} is not counted: {why}")
        return not measured.interrupted

    def _window(self, server: ServerUnderTest, name: str) -> tuple[Path, bool]:
        """One window of warming, as a run of its own that is thrown away when it was read."""
        folder = self.path / f"warm-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        measured = measure(
            self._order(server, self.sweep.warm_text(self.traffic, WINDOW_NS), folder, self.sweep.warm_seed)
        )
        return measured.path, measured.interrupted

    def _order(self, server: ServerUnderTest, text: str, folder: Path, seed: int) -> Order:
        profile = parse_profile(text, self.traffic.name, self.traffic.folder)
        return Order(profile=profile, target=server.load, seed=seed, out=folder, command=self.journal["command"],
                     wait_ns=READY_NS, tick=self.tick, beside=server.beside, options=server.options,
                     realtime=self.journal.get("realtime", False))  # fmt: skip

    def _set_aside(self, folder: Path) -> None:
        """What was cut is kept apart: it is in no figure."""
        if (folder / RUN).exists():
            aside = self.path / _CUT
            try:
                aside.mkdir(exist_ok=True)
                folder.rename(aside / f"{folder.name}-{len(list(aside.iterdir())) + 1}")
            except OSError as why:
                raise NotWrittenError(aside, why) from None
