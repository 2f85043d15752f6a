"""Several runs of one profile: the folder they lie in, and the summary of all of them together.

A folder of repeats holds repeat.json and the run folders 1, 2, 3, ...; it is made by `loadgen run --repeat`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from loadgen.analysis.intervals import ALPHA
from loadgen.analysis.pool import pool
from loadgen.analysis.summary import summarise
from loadgen.records import LoadgenError
from loadgen.runread import Run, read_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from loadgen.analysis.frame import Frame

JOURNAL = "repeat.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class RepeatRow:
    """One of several runs by itself, over its measured phases; `doubts` are codes."""

    run: str
    path: str
    status: str
    valid: bool
    ok: int
    achieved_per_s: float | None
    p50_ns: int | None
    p99_ns: int | None
    doubts: tuple[str, ...]


def runs_in(paths: Sequence[Path]) -> list[Run]:
    """The runs of some folders, each a run or a folder of repeats, of which only finished ones are taken.

    Raises LoadgenError where one is neither, or has no finished run.
    """
    found: list[Run] = []
    for path in paths:
        journal = read_journal(path)
        if journal is None:
            found.append(read_run(path))
            continue
        done = [path / name for name in journal["runs"]]
        if not done:
            raise LoadgenError(f"{path}: none of its runs was finished")
        found += [read_run(one) for one in done]
    return found


def read_journal(path: Path) -> dict[str, Any] | None:
    """repeat.json; None where the folder has none.  Raises LoadgenError when it is damaged."""
    try:
        journal = json.loads((path / JOURNAL).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as why:
        raise LoadgenError(f"{path / JOURNAL}: cannot be read: {why}") from None
    if not isinstance(journal, dict) or journal.get("format") != FORMAT or "runs" not in journal:
        raise LoadgenError(
            f"{path / JOURNAL}: not written by `loadgen run --repeat` of this version (format {FORMAT})"
        )
    return journal


def looked_at(path: Path) -> dict[str, Any] | None:
    """How runs that were repeated until every objective was decided were judged: method, looks, the error that the last
    look was allowed; None for other folders.
    """
    until = (read_journal(path) or {}).get("until_sure") or None
    if until is None or not until["looks"]:
        return None
    last = until["looks"][-1]
    decided = "inconclusive" not in last["verdicts"]
    return {
        "method": until["method"],
        "error_rate": ALPHA,
        "limit_s": until["limit_s"],
        "looks": len(until["looks"]),
        "runs": last["runs"],
        "alpha": last["alpha"],
        "decided": decided,
    }


def summarise_folders(
    paths: Sequence[Path], objectives: list[str] | None = None, frame: Frame | None = None
) -> dict[str, Any]:
    """The summary of some folders together, each a run or repeats; `until_sure` says how repeats were stopped."""
    looked = looked_at(paths[0]) if len(paths) == 1 else None
    alpha = ALPHA if looked is None else looked["alpha"]
    summary = summarise_runs(runs_in(paths), objectives, frame, alpha)
    return summary if looked is None else summary | {"until_sure": looked}


def summarise_runs(
    runs: Sequence[Run],
    objectives: list[str] | None = None,
    frame: Frame | None = None,
    alpha: float = ALPHA,
) -> dict[str, Any]:
    """The summary of one run, or of several judged together: then `runs` holds each by itself, the doubts name their
    run, and all of it is valid only if each of them is.
    """
    whole = summarise(pool(runs), objectives, frame, alpha)
    if len(runs) == 1:
        return whole
    rows, doubts = [], []
    for number, run in enumerate(runs, 1):
        one = summarise(run, objectives)
        doubts += [doubt | {"text": f"run {number}: {doubt['text']}"} for doubt in one["doubts"]]
        total = one["total"]
        rows.append(
            RepeatRow(
                run=str(one["run"]["id"]),
                path=str(run.path),
                status=str(one["run"]["status"]),
                valid=one["valid"],
                ok=total["counts"]["ok"],
                achieved_per_s=total["achieved_per_s"],
                p50_ns=total["latency_ns"]["p50"],
                p99_ns=total["latency_ns"]["p99"],
                doubts=tuple(dict.fromkeys(doubt["code"] for doubt in one["doubts"])),
            )
        )
    return whole | {
        "valid": all(row.valid for row in rows),
        "run": whole["run"] | {"status": _status([row.status for row in rows])},
        "doubts": doubts,
        "runs": [asdict(row) for row in rows],
    }


def _status(each: list[str]) -> str:
    """Finished where all are; else that of the first that is not."""
    return next((status for status in each if status != "finished"), "finished")
