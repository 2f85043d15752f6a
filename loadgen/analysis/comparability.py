"""Whether two runs can be compared: what differed besides what was to be compared, and what spoils either."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto
from typing import TYPE_CHECKING, Any

import yaml

from loadgen.analysis.conclusion import OF_THE_ANSWERS
from loadgen.analysis.frame import frame_of
from loadgen.analysis.pool import pool
from loadgen.analysis.slo import Measured, measured_of
from loadgen.analysis.summary import summarise
from loadgen.records import LoadgenError
from loadgen.runfile import RUN
from loadgen.runread import read_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

_NOT_SENT = ("name", "description", "seed", "target", "objectives")  # of a profile: they change no request
_CLIENT_LIMIT = ("late_sends", "client_time", "cap_reached", "connection_waits")
_MACHINE = ("host", "cpu", "cores", "cores_allowed", "memory_bytes", "kernel")
_CLIENT = ("loadgen", "python", "workers", "transport", "realtime")


class Severity(StrEnum):
    """Worst first."""

    REFUSE = auto()  # figures side by side would mislead
    WARN = auto()  # may explain a difference
    NOTE = auto()  # may be the very thing that is compared


class Aspect(StrEnum):
    """What differs between two sides, or what is wrong with one."""

    PROFILE = auto()  # what is sent, by its top-level keys
    SEED = auto()
    TARGET = auto()
    MODEL = (
        auto()
    )  # the server's name and version; its models' versions, configurations, parameters and files
    MACHINE = auto()
    CLIENT = auto()
    CLIENT_LIMIT = auto()  # a doubt of one side: the client delayed requests
    NOT_VALID = auto()  # a doubt of one side that invalidates it
    INTERRUPTED = auto()


@dataclass(frozen=True, slots=True)
class Difference:
    """`what`: the key that differs, or the doubt's code; `a`, `b`: its values, None where the side has none."""

    aspect: Aspect
    severity: Severity
    what: str
    a: str | None
    b: str | None


@dataclass(frozen=True, slots=True)
class Side:
    """One or more runs under equal conditions.  `pooled`: all of their requests; `doubts`: as in their summaries."""

    name: str
    path: Path
    runs: tuple[Measured, ...]
    pooled: Measured
    doubts: tuple[dict[str, Any], ...]


def side_of(path: Path, name: str | None = None) -> Side:
    """Reads a run folder, or a folder of repeats: one that holds run folders.

    Raises LoadgenError where it is neither.
    """
    return side_of_runs([path] if (path / RUN).exists() else _repeats(path), path, name)


def side_of_runs(paths: Sequence[Path], path: Path, name: str | None = None) -> Side:
    """The same of run folders by their own paths."""
    runs, seen, doubts = [read_run(one) for one in paths], [], []
    for run in runs:
        frame = frame_of(run)
        seen.append(measured_of(run, frame=frame))
        doubts += summarise(run, frame=frame)["doubts"]
    pooled = seen[0] if len(seen) == 1 else measured_of(pool(runs))
    return Side(name or path.name or str(path), path, tuple(seen), pooled, tuple(doubts))


def _repeats(path: Path) -> list[Path]:
    found = sorted(one.parent for one in path.glob(f"*/{RUN}"))
    if not found:
        raise LoadgenError(f"{path}: neither a run folder (no {RUN} in it) nor a folder of repeats of one")
    return found


def comparability(a: Side, b: Side) -> tuple[Difference, ...]:
    """What should be known before two sides are compared, worst first; within a side its runs must agree as well."""
    found = [
        *_profiles(a, b),
        *_facts(a, b, Aspect.TARGET, Severity.NOTE, lambda info: {"target": info.get("target")}),
        *_facts(a, b, Aspect.MODEL, Severity.NOTE, _models),
        *_facts(a, b, Aspect.MACHINE, Severity.WARN, lambda info: _some(info.get("client"), _MACHINE)),
        *_facts(a, b, Aspect.CLIENT, Severity.WARN, lambda info: _some(info.get("client"), _CLIENT)),
    ]
    seeds = [sorted({str(run.info.get("seed")) for run in side.runs}) for side in (a, b)]
    if seeds[0] != seeds[1]:
        found.append(Difference(Aspect.SEED, Severity.NOTE, "seed", *map(", ".join, seeds)))
    found += _ends(a, b) + _doubts(a, b)
    return tuple(sorted(found, key=lambda one: list(Severity).index(one.severity)))


def same_plan(a: Side, b: Side) -> bool:
    """Whether both sides sent the same requests at the same moments, run by run: one seed, one profile, open loops."""

    def plans(side: Side) -> list[Any]:
        return [(run.info.get("seed"), run.info.get("plan_file"), _sent(run.info)) for run in side.runs]

    loops = {run.info["phases"][part.place]["loop"] for run in (*a.runs, *b.runs) for part in run.parts}
    return plans(a) == plans(b) and loops == {"open"}


def _sent(info: dict[str, Any]) -> dict[str, Any]:
    """What of a profile's text decides what is sent; the text's hash where it cannot be read."""
    told = info.get("profile") or {}
    try:
        data = yaml.safe_load(told.get("text") or "")
    except yaml.YAMLError:
        data = None
    if not isinstance(data, dict):
        return {"text": told.get("sha256")}
    return {key: value for key, value in data.items() if key not in _NOT_SENT}


def _profiles(a: Side, b: Side) -> list[Difference]:
    each = [[_sent(run.info) for run in side.runs] for side in (a, b)]
    every = [*each[0], *each[1]]
    keys = [key for key in dict.fromkeys(key for one in every for key in one)
            if any(one.get(key) != every[0].get(key) for one in every)]  # fmt: skip
    names = [", ".join(dict.fromkeys(_profile_name(run.info) for run in side.runs)) for side in (a, b)]
    return [Difference(Aspect.PROFILE, Severity.REFUSE, key, *names) for key in keys]


def _profile_name(info: dict[str, Any]) -> str:
    told = info.get("profile") or {}
    return f"{told.get('name')} ({str(told.get('sha256'))[:8]})"


def _facts(
    a: Side, b: Side, aspect: Aspect, severity: Severity, of: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[Difference]:
    """The keys of which not all runs have the same value; what is known of no run of a side is no difference."""
    each = [[of(run.info) for run in side.runs] for side in (a, b)]
    found = []
    for key in dict.fromkeys(key for side in each for one in side for key in one):
        values = [
            list(dict.fromkeys(_shown(one[key]) for one in side if one.get(key) is not None)) for side in each
        ]
        if all(values) and len({*values[0], *values[1]}) > 1:
            found.append(Difference(aspect, severity, key, *(", ".join(one) for one in values)))
    return found


def _some(told: dict[str, Any] | None, keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: (told or {}).get(key) for key in keys}


def _models(info: dict[str, Any]) -> dict[str, Any]:
    server = info.get("server") or {}
    found = {f"server {key}": server.get(key) for key in ("name", "version")}
    for name, told in (server.get("models") or {}).items():
        config = told.get("config") or {}
        found |= {f"{name} {key}": told.get(key) for key in ("version", "parameters")}
        found |= {
            f"{name} {key}": value for key, value in _leaves(config) if not key.startswith("parameters")
        }
        found |= {f"{name}/{file}": value for file, value in (told.get("files") or {}).items()}
    return found


def _leaves(told: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of nested objects."""
    for key, value in told.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _ends(a: Side, b: Side) -> list[Difference]:
    states = [sorted({str(run.info.get("status")) for run in side.runs}) for side in (a, b)]
    if states == [["finished"], ["finished"]]:
        return []
    return [Difference(Aspect.INTERRUPTED, Severity.WARN, "status", *map(", ".join, states))]


def _doubts(a: Side, b: Side) -> list[Difference]:
    """A doubt of how a server answered is no reason to refuse: it may be what the comparison is to show."""
    texts: list[dict[tuple[Aspect, Severity, str], str]] = [{}, {}]
    for side, into in zip((a, b), texts, strict=True):
        for doubt in side.doubts:
            code = doubt["code"]
            if doubt["invalidates"]:
                severity = Severity.WARN if code in OF_THE_ANSWERS else Severity.REFUSE
                into.setdefault((Aspect.NOT_VALID, severity, code), doubt["text"])
            elif code in _CLIENT_LIMIT:
                into.setdefault((Aspect.CLIENT_LIMIT, Severity.WARN, code), doubt["text"])
    return [
        Difference(*key, texts[0].get(key), texts[1].get(key))
        for key in dict.fromkeys([*texts[0], *texts[1]])
    ]
