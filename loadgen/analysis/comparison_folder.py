"""The folder of a live comparison: its journal, and its finished rounds as sides."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from loadgen.analysis.comparability import Aspect, Side, side_of_runs
from loadgen.records import LoadgenError

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = 1
JOURNAL, ROUNDS, RESULT, PAGE = "comparison.json", "rounds", "result.json", "compare.html"
_KEYS = {"format", "status", "seed", "rounds", "sides", "finished", "command"}


def read_journal(path: Path) -> dict[str, Any]:
    """comparison.json.  Raises LoadgenError when the folder is no live comparison."""
    try:
        journal: Any = json.loads((path / JOURNAL).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise LoadgenError(f"{path}: not the folder of a live comparison (no {JOURNAL} in it)") from None
    except (OSError, ValueError) as why:
        raise LoadgenError(f"{path / JOURNAL}: cannot be read: {why}") from None
    if not isinstance(journal, dict) or journal.get("format") != FORMAT or not journal.keys() >= _KEYS:
        raise LoadgenError(f"{path / JOURNAL}: not written by this version of loadgen (format {FORMAT})")
    return journal


def run_name(number: int, side: int) -> str:
    """Of the run folder of a side in a round, both from 0."""
    return f"{number + 1:02d}-{side + 1}"


def finished_rounds(journal: dict[str, Any]) -> list[int]:
    """The rounds that every side has finished, from 0."""
    sides = range(len(journal["sides"]))
    done = set(journal["finished"])
    return [n for n in range(journal["rounds"]) if all(run_name(n, side) in done for side in sides)]


def live_sides(path: Path, journal: dict[str, Any]) -> list[Side]:
    """One side each, of the finished rounds.  Raises LoadgenError where there is none."""
    rounds = finished_rounds(journal)
    if not rounds:
        raise LoadgenError(f"{path}: no round is finished; loadgen compare {path} --resume goes on")
    return [
        side_of_runs([path / ROUNDS / run_name(n, place) for n in rounds], path, one["name"])
        for place, one in enumerate(journal["sides"])
    ]


def expected_of(journal: dict[str, Any]) -> frozenset[str]:
    """The aspects that differ on purpose."""
    profiles = {one["profile"]["sha256"] for one in journal["sides"]}
    return frozenset({Aspect.PROFILE} if len(profiles) > 1 else ())
