"""The runs of a folder over time: a row a run, and one figure's series with its change points.

A run is read from its summary.json where that is newer than its records, else from the records.  A series holds the
runs of one profile and target in order of their start; runs that are not valid are in it, and in no level.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.analysis import capacity_result, comparison_folder, repeats
from loadgen.analysis.changes import ChangePoint, change_points
from loadgen.analysis.slo import Verdict, estimate, measured_of
from loadgen.analysis.summary import FORMAT, summarise
from loadgen.records import LoadgenError
from loadgen.runfile import RUN, SUMMARY
from loadgen.traffic.objective import SHARES, Figure
from loadgen.units import finite_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_NEEDED = {"format", "run", "valid", "doubts", "phases", "total", "slo", "intervals"}
_JOURNALS = {
    "sweep.json": "sweep",
    comparison_folder.JOURNAL: "comparison",
    capacity_result.JOURNAL: "capacity",
}
_WORST = (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS)


class Kind(StrEnum):
    """What lies in a folder that is no run."""

    SWEEP = auto()
    COMPARISON = auto()
    CAPACITY = auto()
    DAMAGED = auto()  # a run that cannot be read
    OTHER = auto()


class State(StrEnum):
    """Of a run in a series."""

    MEASURED = auto()
    NOT_VALID = auto()
    NO_VALUE = auto()  # it has no such figure, or requests that never succeeded reach into it


class Scale(StrEnum):
    """How a shift is expressed."""

    RATIO = auto()  # new level / old level
    DIFFERENCE = auto()


@dataclass(frozen=True, slots=True)
class Value:
    """A figure of a run, in its unit, with its interval; an end that the run does not bound is None.

    `level`: the share of such intervals that hold the truth.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    level: float = 0.95


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run.  `name` is its folder below the one that was read, `profile_sha256` that of the profile's text.

    `p50` and `p99` are of the latency of successes in ns, with intervals where one phase was measured; `failed` counts
    requests that never succeeded of `tried`; `verdict` is the worst of its objectives', None without any.
    """

    name: str
    path: str
    started_at: str | None
    profile: str | None
    profile_sha256: str | None
    target: str | None
    status: str | None
    valid: bool
    doubts: tuple[str, ...]
    offered_per_s: float | None
    achieved_per_s: float | None
    p50: Value
    p99: Value
    failed: int
    tried: int
    verdict: Verdict | None

    @property
    def when(self) -> datetime:
        """Its start; of a run that does not tell, before all others."""
        return _when(self.started_at)


@dataclass(frozen=True, slots=True)
class Other:
    """A folder that is no run; `why` one is damaged."""

    name: str
    kind: Kind
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """A run in a series."""

    run: str
    started_at: str | None
    value: Value
    state: State


@dataclass(frozen=True, slots=True)
class Shift:
    """From `run` on the figure has another level: `shift` is the ratio to, or the difference from, the one before.

    `low` and `high` are its 95 % interval if the place is right; `profile_changed`: the profile's text is another than
    that of the run before.
    """

    run: str
    started_at: str | None
    place: int
    scale: Scale
    shift: float
    low: float
    high: float
    p_value: float
    profile_changed: bool


@dataclass(frozen=True, slots=True)
class Series:
    """A figure of the runs of one profile and target."""

    profile: str | None
    target: str | None
    points: tuple[Point, ...]
    shifts: tuple[Shift, ...]


@dataclass(frozen=True, slots=True)
class History:
    """The runs of a folder in order of their start, what else lies in it, and a figure over time."""

    folder: str
    figure: Figure
    runs: tuple[RunRow, ...]
    others: tuple[Other, ...]
    series: tuple[Series, ...]

    def json(self) -> dict[str, Any]:
        """For scripts."""
        document: dict[str, Any] = finite_only(asdict(self) | {"format": 1, "figure": str(self.figure)})
        return document


def read_history(
    folder: Path,
    figure: Figure,
    *,
    profile: str | None = None,
    target: str | None = None,
    last: int | None = None,
    tick: Callable[[str], None] = lambda _: None,
) -> History:
    """Reads the runs of a folder, also those of its folders of repeats; `tick` is called with what is done.

    `profile` and `target` keep the runs with that name and address, `last` the newest ones of these.
    Raises LoadgenError where there is no such folder, or it is a run itself.
    """
    if not folder.is_dir():
        raise LoadgenError(f"{folder}: there is no such folder; name one that holds runs")
    if (folder / RUN).exists():
        raise LoadgenError(
            f"{folder}: is a run itself (loadgen report {folder}); name the folder that holds runs"
        )
    rows, others, summaries = [], [], {}
    for path in _folders(folder):
        name = str(path.relative_to(folder))
        tick(f"reading {name}")
        if not (path / RUN).exists():
            kind = next((kind for file, kind in _JOURNALS.items() if (path / file).exists()), "other")
            others.append(Other(name, Kind(kind)))
            continue
        try:
            summary = _summary(path)
            rows.append(_row(name, path, summary))
        except (LoadgenError, KeyError, TypeError, ValueError, AttributeError, OSError) as why:
            message = (
                str(why) if isinstance(why, LoadgenError) else f"{path}: {RUN} lacks or has wrong: {why}"
            )
            others.append(Other(name, Kind.DAMAGED, message))
            continue
        summaries[name] = summary
    rows = [
        row
        for row in sorted(rows, key=lambda row: (row.when, row.name))
        if profile in (None, row.profile) and target in (None, row.target)
    ]
    rows = rows if last is None else rows[-last:]
    return History(str(folder), figure, tuple(rows), tuple(others), tuple(_series(rows, summaries, figure)))


def _folders(folder: Path) -> Iterator[Path]:
    for path in sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith(".")):
        try:
            journal = None if (path / RUN).exists() else repeats.read_journal(path)
            names = None if journal is None else [str(name) for name in journal["runs"]]
        except (LoadgenError, TypeError):
            names = None
        yield from [path] if names is None else [path / name for name in names]


def _summary(path: Path) -> dict[str, Any]:
    """summary.json where it is newer than what it was made of and of this version, else made anew."""
    try:
        written = (path / SUMMARY).stat().st_mtime_ns
        sources = [path / RUN, *path.glob("records*.arrow")]
        if all(file.stat().st_mtime_ns <= written for file in sources):
            summary = json.loads((path / SUMMARY).read_text(encoding="utf-8"))
            if isinstance(summary, dict) and summary.get("format") == FORMAT and summary.keys() >= _NEEDED:
                return summary
    except (OSError, ValueError):
        pass  # there is none, or it was cut
    return summarise(path)


def _row(name: str, path: Path, summary: dict[str, Any]) -> RunRow:
    run, total = summary["run"], summary["total"]
    counts = total["counts"]
    tried = counts["tried"] + counts["dropped"]
    verdicts = {Verdict(row["verdict"]) for row in summary["slo"]}
    return RunRow(
        name=name,
        path=str(path),
        started_at=run["started_at"],
        profile=run["profile"],
        profile_sha256=_sha256(path),
        target=run["target"],
        status=run["status"],
        valid=bool(summary["valid"]),
        doubts=tuple(dict.fromkeys(doubt["code"] for doubt in summary["doubts"])),
        offered_per_s=total["offered_per_s"],
        achieved_per_s=total["achieved_per_s"],
        p50=_latency(summary, 0.5),
        p99=_latency(summary, 0.99),
        failed=tried - counts["ok"],
        tried=tried,
        verdict=next((verdict for verdict in _WORST if verdict in verdicts), None),
    )


def _sha256(path: Path) -> str | None:
    try:
        sha256 = json.loads((path / RUN).read_text(encoding="utf-8"))["profile"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(sha256)


def _latency(summary: dict[str, Any], quantile: float) -> Value:
    stored = _stored(summary, Figure("latency", quantile), all_succeeded=False)
    return stored or Value(summary["total"]["latency_ns"]["p50" if quantile == 0.5 else "p99"])  # noqa: PLR2004


def _stored(summary: dict[str, Any], figure: Figure, *, all_succeeded: bool = True) -> Value | None:
    """A figure with its interval as summary.json holds it: of the one measured phase; None where it does not.

    Its latencies are of the successes: those of a figure, which counts the others as infinite, if `all_succeeded`.
    """
    measured = [phase for phase in summary["phases"] if phase["measured"]]
    if len(measured) != 1 or figure.phase not in (None, measured[0]["name"]):
        return None
    if figure not in (
        Figure(figure.metric, figure.quantile),
        Figure(figure.metric, figure.quantile, phase=figure.phase),
    ):
        return None  # of a kind, a length or a model
    counts = measured[0]["counts"]
    if figure.metric == "latency" and all_succeeded and counts["ok"] < counts["tried"] + counts["dropped"]:
        return None
    name = str(Figure(figure.metric, figure.quantile))
    for row in summary["intervals"]:
        if row["figure"] == name:
            return Value(row["value"], row["low"], row["high"], row["level"])
    return None


def _value(row: RunRow, summary: dict[str, Any], figure: Figure) -> Value:
    stored = _stored(summary, figure)
    if stored is not None:
        return stored
    try:
        result = estimate(figure, measured_of(Path(row.path)))
    except (
        LoadgenError,
        ValueError,
        OSError,
    ):  # it has no such phase, kind or model, or its records are damaged
        return Value(None)
    return Value(result.value, result.low, result.high)


def _series(rows: Sequence[RunRow], summaries: dict[str, dict[str, Any]], figure: Figure) -> Iterator[Series]:
    groups: dict[tuple[str | None, str | None], list[RunRow]] = {}
    for row in rows:
        groups.setdefault((row.profile, row.target), []).append(row)
    for (profile, target), mine in groups.items():
        points = [_point(row, _value(row, summaries[row.name], figure)) for row in mine]
        yield Series(profile, target, tuple(points), tuple(_shifts(figure, mine, points)))


def _point(row: RunRow, value: Value) -> Point:
    state = State.MEASURED if row.valid else State.NOT_VALID
    if value.value is None or not math.isfinite(value.value):
        state = State.NO_VALUE
    return Point(row.name, row.started_at, value, state)


def _shifts(figure: Figure, rows: Sequence[RunRow], points: Sequence[Point]) -> Iterator[Shift]:
    places = [place for place, point in enumerate(points) if point.state is State.MEASURED]
    known_values = [points[place].value for place in places]
    values = np.array([one.value for one in known_values], dtype=np.float64)
    scale = Scale.DIFFERENCE if figure.metric in SHARES or not (values > 0).all() else Scale.RATIO
    logs = scale is Scale.RATIO
    errors = np.array([_error(one, logs=logs) for one in known_values], dtype=np.float64)
    known = np.isfinite(errors)
    errors[~known] = np.median(errors[known]) if known.any() else 0.0
    for change in change_points(np.log(values) if logs else values, errors):
        yield _shift(change, scale, places, rows)


def _shift(change: ChangePoint, scale: Scale, places: Sequence[int], rows: Sequence[RunRow]) -> Shift:
    at, before = places[change.place], places[change.place - 1]
    shift, low, high = (
        math.exp(min(x, 700.0)) if scale is Scale.RATIO else x
        for x in (change.shift, change.low, change.high)
    )
    return Shift(
        run=rows[at].name,
        started_at=rows[at].started_at,
        place=at,
        scale=scale,
        shift=shift,
        low=low,
        high=high,
        p_value=change.p_value,
        profile_changed=rows[at].profile_sha256 != rows[before].profile_sha256,
    )


def _error(one: Value, *, logs: bool) -> float:
    """The standard error that an interval shows, of the logarithm or of the value; NaN where it has no end.

    Of an interval with one end the distance to that end.
    """
    from scipy.special import ndtri

    def scaled(x: float | None) -> float | None:
        return None if x is None or (logs and x <= 0) or not math.isfinite(x) else math.log(x) if logs else x

    value, low, high = scaled(one.value), scaled(one.low), scaled(one.high)
    if value is None:
        return math.nan
    halves = [abs(value - end) for end in (low, high) if end is not None]
    return sum(halves) / len(halves) / float(ndtri(0.5 + one.level / 2)) if halves else math.nan


def _when(started_at: str | None) -> datetime:
    try:
        start = datetime.fromisoformat(started_at or "")
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return start if start.tzinfo else start.replace(tzinfo=UTC)
