"""What a search for the capacity found: result.json, read from its journal and the run folders of its probes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.analysis.capacity import (
    Answer,
    Bad,
    Capacity,
    Line,
    Probe,
    Settings,
    batched,
    capacity_of,
    filling_seconds,
    lines,
)
from loadgen.analysis.slo import Measured, after_filling, bad_requests, estimate, measured_of
from loadgen.analysis.summary import summarise
from loadgen.records import LoadgenError
from loadgen.runread import read_run
from loadgen.traffic.objective import TIMES, parse_objective

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FORMAT = 1
JOURNAL, PROBES, RESULT, PAGE = "capacity.json", "probes", "result.json", "capacity.html"
CLIENT = frozenset({"client_bound"})
_KEYS = {
    "format",
    "status",
    "target",
    "seed",
    "objectives",
    "unit",
    "profile",
    "settings",
    "probes",
    "command",
}


@dataclass(frozen=True, slots=True)
class Observed:
    """An objective in a probe: its figure with the interval (an open end None), and how many requests were bad."""

    objective: str
    metric: str
    value: float | None
    low: float | None
    high: float | None
    bad: int
    n: int


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """A probe as it is shown; `doubts` are the codes of its run."""

    probe: Probe
    folder: str
    observed: tuple[Observed, ...]
    achieved_per_s: float | None
    doubts: tuple[str, ...]

    @property
    def client_bound(self) -> bool:
        """Whether an objective was missed while the client was at its limit: that says nothing of the server."""
        return bool(CLIENT & set(self.doubts)) and self.probe.distance > 0 and not self.probe.is_saturated


def usable(rows: Sequence[ProbeRow]) -> list[Probe]:
    """The probes that say something of the server."""
    return [row.probe for row in rows if not row.client_bound]


def is_client_limit(rows: Sequence[ProbeRow]) -> bool:
    """Whether two probes in a row were the client's: one may be an accident."""
    return len(rows) >= 2 and all(row.client_bound for row in rows[-2:])  # noqa: PLR2004 - in a row


def read_journal(path: Path) -> dict[str, Any]:
    """capacity.json.  Raises LoadgenError when the folder is no search."""
    try:
        journal: dict[str, Any] = json.loads((path / JOURNAL).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise LoadgenError(f"{path}: not the folder of a capacity search (no {JOURNAL} in it)") from None
    except (OSError, ValueError) as why:
        raise LoadgenError(f"{path / JOURNAL}: cannot be read: {why}") from None
    if not isinstance(journal, dict) or journal.get("format") != FORMAT or not journal.keys() >= _KEYS:
        raise LoadgenError(
            f"{path / JOURNAL}: not written by `loadgen capacity` of this version (format {FORMAT})"
        )
    return journal


def probe_row(path: Path, entry: dict[str, Any], objectives: list[str]) -> ProbeRow:
    """Reads the run folder of a probe, an entry of the journal.  Raises LoadgenError when it is damaged."""
    run = read_run(path / entry["folder"])
    whole = measured_of(run, objectives)
    summary = summarise(run, objectives, frame=whole.frame)
    seconds = sum(part.load_ns for part in whole.parts) / 1e9  # less than was planned where it was cut
    limits = [one.threshold / 1e9 for one in map(parse_objective, objectives) if one.metric in TIMES]
    limit_s = max(limits) if len(limits) == len(objectives) else None
    seen = after_filling(whole, filling_seconds(seconds, limit_s) / seconds if seconds else 0.0)
    bad, observed = [], []
    for text in objectives:
        one, found = _bad(text, seen), estimate(parse_objective(text).figure, seen)
        bad.append(one)
        value, low, high = (
            None if x is None or not np.isfinite(x) else x for x in (found.value, found.low, found.high)
        )
        observed.append(Observed(text, parse_objective(text).metric, value, low, high, one.count, one.n))
    codes = tuple(dict.fromkeys(doubt["code"] for doubt in summary["doubts"]))
    probe = Probe(entry["load"], min(entry["seconds"], seconds), tuple(bad))
    return ProbeRow(probe, entry["folder"], tuple(observed), summary["total"]["achieved_per_s"], codes)


def _bad(text: str, seen: Measured) -> Bad:
    objective = parse_objective(text)
    found = bad_requests(objective, seen)
    return batched(found.allowed, found.bad)


def read_capacity(path: Path) -> dict[str, Any]:
    """The result, as result.json holds it.  Raises LoadgenError when the folder is no search or a probe is damaged."""
    journal = read_journal(path)
    users = journal["unit"] == "users"
    rows = [probe_row(path, entry, journal["objectives"]) for entry in journal["probes"]]
    if journal["settings"] is None or not rows:
        raise LoadgenError(f"{path}: no probe was finished; begin a new search")
    settings = Settings(**journal["settings"])
    probes = usable(rows)
    known = capacity_of(settings, probes) if probes else Capacity(Answer.UNDECIDED, None, None, None)
    if is_client_limit(rows) and known.answer is not Answer.FOUND:
        known = Capacity(Answer.CLIENT, None, known.low, None, None, known.seconds)
    fitted = lines(probes)
    limiting = None if known.objective is None else journal["objectives"][known.objective]
    return {
        "format": FORMAT,
        "path": str(path),
        "name": journal["profile"]["name"],
        "status": journal["status"],
        "target": journal["target"],
        "answer": known.answer,
        "capacity": {
            "value": _number(known.value),
            "low": _number(known.low),
            "high": _number(known.high),
            "unit": journal["unit"],
        },
        "objectives": journal["objectives"],
        "limited_by": limiting,
        "precision": settings.precision,
        "load_seconds": round(known.seconds, 3),
        "lines": [None if line is None else _line(line) for line in fitted],
        "probes": [_probe_json(row, users) for row in rows],
        "warm_up": journal.get("warm_up"),
    }


def _line(line: Line) -> dict[str, Any]:
    """log(share of bad requests / allowed share) = intercept + slope (load - middle)."""
    return {"middle": line.middle, "intercept": line.intercept, "slope": line.slope, "probes": line.points}


def _probe_json(row: ProbeRow, users: bool) -> dict[str, Any]:
    return {
        "users" if users else "rate": row.probe.load,
        "seconds": round(row.probe.seconds, 3),
        "folder": row.folder,
        "achieved_per_s": row.achieved_per_s,
        "saturated": row.probe.is_saturated,
        "observed": [asdict(one) for one in row.observed],
        "doubts": list(row.doubts),
    }


def _number(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(f"{value:.6g}")
