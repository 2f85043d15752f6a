"""The search for a server's capacity: probes at one load after another, as analysis.capacity asks for them.

Every probe is a run folder made by `lab.run.measure`.  What was probed is never probed again, so that Ctrl-C, a crash
or a dead server lose one probe; `resume_capacity` goes on.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.analysis.capacity import Capacity, Next, Settings, next_step
from loadgen.analysis.capacity_result import (
    FORMAT,
    JOURNAL,
    PROBES,
    ProbeRow,
    is_client_limit,
    probe_row,
    usable,
)
from loadgen.lab.run import Order, measure
from loadgen.lab.steady import WINDOW_NS, warm
from loadgen.records import LoadgenError, NotWrittenError
from loadgen.runfile import RUN, write_atomic
from loadgen.target import parse_target
from loadgen.traffic.objective import TIMES, Objective, parse_objective
from loadgen.traffic.profile import TrafficProfile, parse_profile
from loadgen.traffic.sweep import Load, with_phases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loadgen.connect.options import ConnectOptions

_READY_NS = 60 * 10**9
_WARM_NS = 30 * 10**9
_OF_MEDIAN = 0.5  # of the rate that one request at a time would make: where a search begins
_BACKLOG, _LEAST_BACKLOG = 10.0, 200  # requests in flight: of those that the limit allows at this rate
_DEFAULT_BACKLOG_S = 10.0
_LEAST_PROBE = 100  # requests that the first probe should have


@dataclass(frozen=True, slots=True)
class Asked:
    """What to search for; None: chosen by the first requests."""

    objectives: list[str]
    users: bool = False
    first: float | None = None
    most: float = 100_000.0
    precision: float = 0.04
    within_s: float = 600.0
    probe_s: float | None = None
    workers: int = 1
    realtime: bool = False


@dataclass(frozen=True, slots=True)
class Searched:
    """Where the search lies and whether it was cut short."""

    path: Path
    interrupted: bool


def run_capacity(  # noqa: PLR0913 - what a person may say
    profile: TrafficProfile,
    target: str,
    asked: Asked,
    seed: int,
    options: ConnectOptions,
    out: Path | None,
    command: list[str],
    say: Callable[[str], None],
    tick: Callable[[str], None],
) -> Searched:
    """Begins a search in a new folder.  Raises LoadgenError before anything was sent for what cannot be."""
    objectives = asked.objectives or [one.text for one in profile.objectives]
    if not objectives:
        raise LoadgenError(
            f'{profile.name}: no objective to meet; give one, e.g. --objective "latency p99 < 50ms"'
        )
    for text in objectives:
        _check(parse_objective(text))
    options.check(parse_target(target))
    path = _make_folder(profile.name, out)
    journal: dict[str, Any] = {
        "format": FORMAT,
        "status": "running",
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "target": target,
        "seed": seed,
        "objectives": objectives,
        "unit": "users" if asked.users else "requests/s",
        "profile": {
            "name": profile.name,
            "text": profile.text,
            "sha256": profile.sha256,
            "folder": str(profile.folder),
        },
        "settings": None,
        "asked": asdict(asked),
        "probes": [],
    }
    search = _Search(path, journal, profile, options, say, tick)
    try:
        return search.go()
    except BaseException:
        if not journal["probes"]:  # nothing was measured
            shutil.rmtree(path, ignore_errors=True)
        raise


def resume_capacity(
    path: Path,
    options: ConnectOptions,
    within_s: float | None,
    say: Callable[[str], None],
    tick: Callable[[str], None],
) -> Searched:
    """Goes on where a search was cut, or for longer."""
    from loadgen.analysis.capacity_result import read_journal

    journal = read_journal(path)
    told = journal["profile"]
    profile = parse_profile(told["text"], told["name"], Path(told["folder"]))
    if within_s is not None:
        journal["settings"]["within_seconds"] = within_s
    return _Search(path, journal, profile, options, say, tick).go()


def _check(objective: Objective) -> None:
    """Refuses what cannot be made a share of bad requests."""
    if objective.figure.phase is not None:
        raise LoadgenError(f"objective {objective.text!r}: probes have no phases; leave the phase out")
    shares = ("failure rate", "rejection rate", "goodput")
    quantile = (
        objective.metric in TIMES
        and objective.metric != "chunk gap"
        and objective.quantile not in (None, 1.0)
    )
    if not ((quantile and objective.is_upper) or objective.metric in shares):
        raise LoadgenError(
            f"objective {objective.text!r}: a capacity needs a percentile of a time with < (latency p99 < 50ms), or a "
            "share (failure rate < 1%, rejection rate < 1%, goodput > 95%)"
        )


def _make_folder(name: str, out: Path | None) -> Path:
    safe = re.sub(r"[^\w.-]+", "-", name).strip(".-")[:60] or "capacity"
    path = out or Path("capacity") / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{safe}"
    try:
        path.mkdir(parents=True, exist_ok=False)
    except FileExistsError:
        said = (
            f"loadgen capacity resume {path} goes on with it" if (path / JOURNAL).exists() else "name another"
        )
        raise LoadgenError(f"output {path}: exists already; {said}") from None
    except OSError as why:
        raise NotWrittenError(path, why, "name a writable folder with --out") from None
    return path


@dataclass(slots=True)
class _Search:
    path: Path
    journal: dict[str, Any]
    profile: TrafficProfile
    options: ConnectOptions
    say: Callable[[str], None]
    tick: Callable[[str], None]
    rows: list[ProbeRow] = field(default_factory=list)

    def go(self) -> Searched:
        """Probes until there is an answer.  The journal is whole at every moment."""
        try:
            return Searched(self.path, interrupted=not self._search())
        except KeyboardInterrupt:
            if not self.rows:
                raise
            self._save("interrupted")
            return Searched(self.path, interrupted=True)
        except LoadgenError:
            if self.rows:
                self._save("broken")
            raise

    def _search(self) -> bool:
        """False when it was interrupted."""
        self.rows = [
            probe_row(self.path, entry, self.journal["objectives"]) for entry in self.journal["probes"]
        ]
        settings = self._settings()
        if settings is None:
            return False
        while True:
            step = next_step(settings, usable(self.rows))
            if isinstance(step, Capacity) or is_client_limit(self.rows):
                self._save("finished")
                return True
            self.say(
                f"probe {len(self.rows) + 1}: {self._shown(step.load)} for {step.seconds:.0f} s{self._so_far(settings)}"
            )
            if not self._probe(step):
                if not self.rows:
                    raise KeyboardInterrupt
                self._save("interrupted")
                return False

    @property
    def users(self) -> bool:
        return bool(self.journal["unit"] == "users")

    def _shown(self, load: float) -> str:
        return f"{load:.0f} users" if self.users else f"{load:.4g} requests/s"

    def _so_far(self, settings: Settings) -> str:
        from loadgen.analysis.capacity import capacity_of

        probes = usable(self.rows)
        if not probes:
            return ""
        known = capacity_of(settings, probes)
        left = f"at most {max(0.0, settings.within_seconds - known.seconds):.0f} s of load to go"
        return (
            f"; so far about {self._shown(known.value)}, {left}" if known.value is not None else f"; {left}"
        )

    def _save(self, status: str = "running") -> None:
        self.journal["status"] = status
        write_atomic(self.path / JOURNAL, json.dumps(self.journal, indent=1) + "\n")

    def _settings(self) -> Settings | None:
        """As in the journal; of a new search from the time that a warm model takes.  None when interrupted."""
        if self.journal["settings"] is not None:
            return Settings(**self.journal["settings"])
        asked = Asked(**self.journal["asked"])
        self.say("warming until steady, one user")
        warmed = warm(self._window, _WARM_NS)
        if warmed is None:
            raise KeyboardInterrupt
        median_s = max(warmed["warm_p50_ns"][-1], 1000) / 1e9
        first = asked.first or (1.0 if self.users else max(0.01, _OF_MEDIAN / median_s))
        first = min(first, asked.most)
        rate = first / median_s if self.users else first
        seconds = asked.probe_s or min(60.0, max(5.0, _LEAST_PROBE / rate))
        settings = Settings(
            first_load=first,
            least_load=1.0 if self.users else first / 1000,
            most_load=asked.most,
            first_seconds=seconds,
            most_seconds=max(60.0, 4 * seconds),
            within_seconds=asked.within_s,
            precision=asked.precision,
            whole=self.users,
        )
        self.journal["settings"], self.journal["warm_up"] = asdict(settings), warmed
        return settings

    def _probe(self, step: Next) -> bool:
        name = f"{PROBES}/{len(self.rows) + 1:02d}-{step.load:.6g}"
        folder = self.path / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(exist_ok=True)
        measured = measure(self._order(step, folder))
        if measured.interrupted:
            if (folder / RUN).exists():
                folder.rename(self.path / f"cut-{len(list(self.path.iterdir()))}")  # kept, in no figure
            return False
        entry = {"folder": name, "load": step.load, "seconds": step.seconds}
        self.rows.append(probe_row(self.path, entry, self.journal["objectives"]))
        self.journal["probes"].append(entry)
        self._save()
        return True

    def _window(self, name: str) -> tuple[Path, bool]:
        folder = self.path / f"warm-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        phases = [{"name": "window", "closed": {"users": 1, "duration": f"{WINDOW_NS}ns"}}]
        measured = measure(self._order_of(with_phases(self.profile, phases), folder, 0))
        return measured.path, measured.interrupted

    def _order(self, step: Next, folder: Path) -> Order:
        duration = f"{round(step.seconds * 1e9)}ns"
        if self.users:
            phase: dict[str, Any] = {"closed": {"users": round(step.load), "duration": duration}}
        else:
            law = self._arrivals().model_dump(exclude_none=True)
            phase = {"open": {"arrivals": law, "rate": [{"duration": duration, "at": f"{step.load!r}/s"}]}}
        text = with_phases(self.profile, [{"name": "probe", **phase}], objectives=self.journal["objectives"])
        most = None if self.users else max(_LEAST_BACKLOG, round(_BACKLOG * step.load * self._limit_s()))
        return self._order_of(text, folder, len(self.rows) + 1, most)

    def _arrivals(self) -> Any:
        """The law of the profile's first open phase; Poisson where it has none."""
        for phase in self.profile.phases:
            if phase.open is not None:
                return phase.open.arrivals
        return Load.model_validate({"rate": "1/s", "arrivals": "poisson"}).arrivals

    def _limit_s(self) -> float:
        """The longest time that an objective allows: with many times more requests in flight, all are late."""
        bounds = [one.threshold / 1e9 for one in self._objectives() if one.metric in TIMES]
        return max(bounds, default=_DEFAULT_BACKLOG_S)

    def _objectives(self) -> Iterator[Objective]:
        return map(parse_objective, self.journal["objectives"])

    def _order_of(self, text: str, folder: Path, number: int, most: int | None = None) -> Order:
        profile = parse_profile(text, self.profile.name, self.profile.folder)
        seed = self.journal["seed"] + 1000 * number  # other arrivals each time
        return Order(
            profile=profile,
            target=parse_target(self.journal["target"]),
            seed=seed,
            out=folder,
            command=self.journal["command"],
            wait_ns=_READY_NS,
            tick=self.tick,
            options=self.options,
            workers=self.journal["asked"].get("workers", 1),
            realtime=self.journal["asked"].get("realtime", False),
            most_in_flight=most,
        )
