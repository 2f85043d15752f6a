"""A live comparison: targets, profiles or configurations of a model, measured in turns, A B B A.

Every run is a run folder made by `lab.run.measure`.  The sides of a round have the same seed, so they send the same
arrivals; no two rounds do.  What is finished is never measured again: Ctrl-C, a crash or a dead server lose one run.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.analysis.comparison_folder import FORMAT, JOURNAL, ROUNDS, read_journal, run_name
from loadgen.lab.model_config import ServerUnderTest, bring, own_config, why_changed
from loadgen.lab.run import Order, measure
from loadgen.lab.steady import WINDOW_NS, warm
from loadgen.lab.watch import known_beside
from loadgen.records import LoadgenError, NotMeasuredError, NotWrittenError
from loadgen.runfile import RUN, write_atomic
from loadgen.target import parse_target
from loadgen.traffic.profile import TrafficProfile, parse_profile
from loadgen.traffic.sweep import parse_changes, with_phases
from loadgen.triton.overlay import OverlayError, check, overlaid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loadgen.connect.options import ConnectOptions

_CUT = "cut"  # where runs go that were interrupted: their records are kept, they are in no figure
_WARM_NS, _WARM_USERS = 30 * 10**9, 8
_SEEDS_APART = 1000


@dataclass(frozen=True, slots=True)
class LiveSide:
    """What is measured as one side.  `config`: changes of the model's own configuration (YAML), None to leave it."""

    name: str
    target: str
    profile: TrafficProfile
    config: str | None = None


@dataclass(frozen=True, slots=True)
class LiveComparison:
    """Where it lies and whether it was cut short."""

    path: Path
    interrupted: bool


def run_comparison(  # noqa: PLR0913 - what a person may say
    sides: list[LiveSide],
    rounds: int,
    seed: int,
    options: ConnectOptions,
    out: Path | None,
    command: list[str],
    say: Callable[[str], None],
    tick: Callable[[str], None],
) -> LiveComparison:
    """Begins a comparison in a new folder.  Raises LoadgenError before anything was sent for what cannot be."""
    for side in sides:
        options.check(parse_target(side.target))
        if side.config is not None:
            parse_changes(side.config)
            subject(side.profile)
    path = _make_folder(out)
    journal: dict[str, Any] = {
        "format": FORMAT,
        "status": "running",
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "seed": seed,
        "rounds": rounds,
        "sides": [
            {
                "name": one.name,
                "target": one.target,
                "config": one.config,
                "profile": {
                    "name": one.profile.name,
                    "text": one.profile.text,
                    "sha256": one.profile.sha256,
                    "folder": str(one.profile.folder),
                },
            }
            for one in sides
        ],
        "finished": [],
        "visits": [],
    }
    try:
        return _Live(path, journal, options, say, tick).go()
    except BaseException:
        if not journal["finished"]:  # nothing was measured
            shutil.rmtree(path, ignore_errors=True)
        raise


def resume_comparison(
    path: Path, options: ConnectOptions, say: Callable[[str], None], tick: Callable[[str], None]
) -> LiveComparison:
    """Goes on where a comparison was cut, with the texts of its profiles as they were."""
    return _Live(path, read_journal(path), options, say, tick).go()


def subject(profile: TrafficProfile) -> str:
    """The one model of a profile, whose configuration changes.  Raises LoadgenError where there are more, or none."""
    models = sorted({kind.model for kind in profile.kinds.values() if kind.is_kserve})
    if len(models) != 1:
        said = ", ".join(models) or "none"
        raise LoadgenError(
            f"{profile.name}: --config changes the one KServe model of a profile; it sends to: {said}"
        )
    return models[0]


def _make_folder(out: Path | None) -> Path:
    path = out or Path("comparisons") / f"{datetime.now(UTC):%Y%m%dT%H%M%S}"
    try:
        path.mkdir(parents=True, exist_ok=False)
    except FileExistsError:
        resume = f"loadgen compare {path} --resume goes on with it"
        raise LoadgenError(
            f"output {path}: exists already; {resume if (path / JOURNAL).exists() else 'name another'}"
        ) from None
    except OSError as why:
        raise NotWrittenError(path, why, "name a writable folder with --out") from None
    return path


@dataclass(slots=True)
class _Live:
    path: Path
    journal: dict[str, Any]
    options: ConnectOptions
    say: Callable[[str], None]
    tick: Callable[[str], None]
    profiles: list[TrafficProfile] = field(default_factory=list)
    servers: dict[str, ServerUnderTest] = field(default_factory=dict)  # by target
    bases: dict[str, dict[str, Any]] = field(default_factory=dict)  # the model's own configuration, by target

    def go(self) -> LiveComparison:
        """Every run that is not finished, in its order.  The journal is whole at every moment."""
        for one in self.journal["sides"]:
            told = one["profile"]
            self.profiles.append(parse_profile(told["text"], told["name"], Path(told["folder"])))
        todo = [(n, side) for n, side in self._order() if run_name(n, side) not in self.journal["finished"]]
        try:
            for number, side in todo:
                self.say(
                    f"round {number + 1} of {self.journal['rounds']}: {self.journal['sides'][side]['name']}"
                )
                if not (self._bring(number, side) and self._measure(number, side)):
                    return self._interrupted()
        except KeyboardInterrupt:
            return self._interrupted()
        except LoadgenError as why:
            if not self.journal["finished"]:
                raise
            self._save("broken")
            raise NotMeasuredError(f"{why}; loadgen compare {self.path} --resume goes on") from None
        finally:
            self._give_back()
        self._save("finished")
        return LiveComparison(self.path, interrupted=False)

    def _order(self) -> Iterator[tuple[int, int]]:
        """(round, side): every other round backwards, so that what drifts meets all sides alike."""
        sides = range(len(self.journal["sides"]))
        for number in range(self.journal["rounds"]):
            for side in sides if number % 2 == 0 else reversed(sides):
                yield number, side

    def _interrupted(self) -> LiveComparison:
        if not self.journal["finished"]:
            raise KeyboardInterrupt
        self._save("interrupted")
        return LiveComparison(self.path, interrupted=True)

    def _save(self, status: str = "running") -> None:
        self.journal["status"] = status
        write_atomic(self.path / JOURNAL, json.dumps(self.journal, indent=1) + "\n")

    def _measure(self, number: int, side: int) -> bool:
        """One run; False when it was interrupted."""
        name = run_name(number, side)
        folder = self.path / ROUNDS / name
        self._set_aside(folder)
        folder.parent.mkdir(exist_ok=True)
        seed = self.journal["seed"] + _SEEDS_APART * number
        measured = measure(self._order_of(side, self.profiles[side], folder, seed))
        if measured.interrupted:
            self._set_aside(folder)
            return False
        one = self.journal["sides"][side]
        if one["config"] is not None:
            why = asyncio.run(why_changed(self.servers[one["target"]], subject(self.profiles[side])))
            if why:
                self._set_aside(folder)
                raise NotMeasuredError(f"{one['name']} in round {number + 1} is not counted: {why}")
        self.journal["finished"].append(name)
        self._save()
        return True

    def _set_aside(self, folder: Path) -> None:
        if (folder / RUN).exists():
            aside = self.path / _CUT
            try:
                aside.mkdir(exist_ok=True)
                folder.rename(aside / f"{folder.name}-{len(list(aside.iterdir())) + 1}")
            except OSError as why:
                raise NotWrittenError(aside, why) from None

    def _order_of(self, side: int, profile: TrafficProfile, folder: Path, seed: int) -> Order:
        return Order(
            profile=profile,
            target=parse_target(self.journal["sides"][side]["target"]),
            seed=seed,
            out=folder,
            command=self.journal["command"],
            say=self.say,
            tick=self.tick,
            options=self.options,
        )

    # A model under the configuration of a side.

    def _bring(self, number: int, side: int) -> bool:
        """The side's configuration, loaded and warm; False when interrupted."""
        one, profile = self.journal["sides"][side], self.profiles[side]
        if one["config"] is None:
            return True
        model, changes = subject(profile), parse_changes(one["config"])
        server = self.servers.get(one["target"])
        if server is None:
            target = parse_target(one["target"])
            server = ServerUnderTest(target, target, None, self.options, beside=known_beside(target))
            self.servers[one["target"]] = server
            self.bases[one["target"]] = asyncio.run(own_config(server, model))
        config = overlaid(self.bases[one["target"]], changes)
        try:
            check(config)
        except OverlayError as why:
            raise LoadgenError(f"--config {one['config']!r}: {why}") from None
        how = asyncio.run(bring(server, model, config))
        if how["how"] == "kept" and server.warm:
            return True
        server.warm = False
        warmed = warm(lambda name: self._window(side, name), _WARM_NS)
        if warmed is None:
            return False
        server.warm = True
        self.journal["visits"].append({"run": run_name(number, side), **how, **warmed})
        return True

    def _window(self, side: int, name: str) -> tuple[Path, bool]:
        """One window of warming, as a run of its own that is thrown away when it was read."""
        folder = self.path / f"warm-{re.sub(r'[^0-9]', '', name)}"
        shutil.rmtree(folder, ignore_errors=True)
        closed = {"users": _WARM_USERS, "duration": f"{WINDOW_NS}ns"}
        text = with_phases(self.profiles[side], [{"name": "window", "closed": closed}])
        profile = parse_profile(text, self.profiles[side].name, self.profiles[side].folder)
        measured = measure(self._order_of(side, profile, folder, self.journal["seed"] + 1))
        return measured.path, measured.interrupted

    def _give_back(self) -> None:
        for target, server in self.servers.items():
            side = next(i for i, one in enumerate(self.journal["sides"]) if one["target"] == target)
            model = subject(self.profiles[side])
            try:
                if server.touched:
                    asyncio.run(own_config(server, model))
            except LoadgenError as why:
                self.say(f"{model!r} at {target} is not as it was found: {why}")
