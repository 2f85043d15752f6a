"""Several runs of one profile: the folder they lie in, and the summary of all of them together.

A folder of repeats holds repeat.json and the run folders 1, 2, 3, ...; `loadgen run --repeat` and `--until-sure` make it.
A pool is valid only if each of its runs is: what one run did not measure is not made good by others.
"""

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum, auto
from pathlib import Path
from typing import Any

from loadgen.analysis.conclusion import OF_THE_ANSWERS
from loadgen.analysis.frame import Frame
from loadgen.analysis.intervals import ALPHA
from loadgen.analysis.pool import pool
from loadgen.analysis.slo import Measured, Reason, SloRow, Verdict, judge
from loadgen.analysis.summary import summarise
from loadgen.records import LoadgenError
from loadgen.runread import Run, read_run

JOURNAL = "repeat.json"
FORMAT = 1
_HOPELESS = {Reason.NEVER, Reason.NO_STREAMS, Reason.NO_TOKENS, Reason.NO_BOUND, Reason.ENSEMBLE, Reason.NOT_REPORTED}  # fmt: skip
_OF_SIZE = "few_samples"  # the one warning that more runs take away


class Status(StrEnum):
    """Of a folder of repeats."""

    RUNNING = auto()  # also of one that was killed
    FINISHED = auto()
    INTERRUPTED = auto()
    FAILED = auto()  # a run had to be given up


class Stop(StrEnum):
    """Why `--until-sure` made no more runs."""

    DECIDED = auto()
    TIME_LIMIT = auto()
    NOT_VALID = auto()  # the last run is not: neither is anything that is pooled with it
    UNDECIDABLE = auto()  # no number of runs decides what is left


@dataclass(frozen=True, slots=True)
class Look:
    """The verdicts on the first `runs` runs together, in the order of the objectives.

    `more_runs`: about so many more would decide what is undecided; None where nobody can say.  `undecidable`: no number
    of runs would.
    """

    runs: int
    verdicts: tuple[Verdict, ...]
    more_runs: int | None
    undecidable: bool

    @property
    def decided(self) -> int:
        """How many objectives passed or failed."""
        return sum(verdict is not Verdict.INCONCLUSIVE for verdict in self.verdicts)

    @property
    def is_decided(self) -> bool:
        return self.decided == len(self.verdicts)


@dataclass(frozen=True, slots=True)
class RepeatRow:
    """One of several runs by itself, over its measured phases; `doubts` are codes."""

    run: str
    path: str
    seed: int | None
    status: str
    valid: bool
    ok: int
    achieved_per_s: float | None
    p50_ns: int | None
    p99_ns: int | None
    doubts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """Of a figure between the runs that have it: mean and sample standard deviation, in the figure's unit."""

    mean: float
    standard_deviation: float


def look(objectives: list[str], seen: Measured) -> Look:
    """Judges runs that were pooled, with the intervals that `seen.alpha` says."""
    rows = judge(objectives, seen)
    runs = len({part.run for part in seen.parts}) or 1
    run_s = sum(part.load_ns for part in seen.parts) / 1e9 / runs
    open_ = [row for row in rows if row.verdict is Verdict.INCONCLUSIVE]
    return Look(
        runs=runs,
        verdicts=tuple(row.verdict for row in rows),
        more_runs=_more_runs(open_, run_s),
        undecidable=bool(open_) and all(row.reason in _HOPELESS for row in open_),
    )


def _more_runs(rows: list[SloRow], run_s: float) -> int | None:
    each = [row.more_s for row in rows]
    known = [seconds for seconds in each if seconds is not None]
    if not rows or len(known) < len(each) or not run_s:
        return None
    return max(1, round(max(known) / run_s))


def is_measured(summary: dict[str, Any]) -> bool:
    """Whether a run measured the server it asked: it is valid, or not only for how that answered."""
    return all(d["code"] in OF_THE_ANSWERS for d in summary["doubts"] if d["invalidates"])


def runs_in(paths: Sequence[Path]) -> list[Run]:
    """The runs of some folders, each a run or a folder of repeats.

    Raises LoadgenError where one is neither, has no finished run, or comes twice.
    """
    folders: list[Path] = []
    for path in paths:
        journal = read_journal(path)
        folders += [path] if journal is None else [path / name for name in journal["runs"]]
        if journal is not None and not journal["runs"]:
            raise LoadgenError(f"{path}: none of its runs was finished")
    places = [folder.resolve() for folder in folders]
    for folder, place in zip(folders, places, strict=True):
        if places.count(place) > 1:
            raise LoadgenError(f"{folder}: given twice; a run counts once")
    return [read_run(folder) for folder in folders]


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


def summarise_folders(
    paths: Sequence[Path], objectives: list[str] | None = None, frame: Frame | None = None
) -> dict[str, Any]:
    """The summary of some folders together, each a run or repeats; `until_sure` says how repeats were stopped.

    Objectives that a sequential design watched are judged with its intervals; others, given later, with those of 95 %.
    """
    journal = read_journal(paths[0]) if len(paths) == 1 else None
    until = (journal or {}).get("until_sure")
    if until is not None and (until["alpha"] is None or objectives is not None):
        until = None
    summary = summarise_runs(runs_in(paths), objectives, frame, ALPHA if until is None else until["alpha"])
    if journal is not None:
        summary["run"] |= {"id": paths[0].resolve().name}
    return summary if until is None else summary | {"until_sure": until}


def summarise_runs(
    runs: Sequence[Run], objectives: list[str] | None = None, frame: Frame | None = None, alpha: float = ALPHA
) -> dict[str, Any]:
    """The summary of one run, or of several judged together.

    Of several, `runs` holds each by itself and `between_runs` the spread of their figures; a doubt has its `runs`.
    """
    whole = summarise(pool(runs), objectives, frame, alpha)
    if len(runs) == 1:
        return whole
    each = [summarise(run, objectives) for run in runs]
    rows = [_row(run, one) for run, one in zip(runs, each, strict=True)]
    of_size = [doubt for doubt in whole["doubts"] if doubt["code"] == _OF_SIZE]
    return whole | {
        "valid": all(row.valid for row in rows),
        "run": whole["run"] | {
            "id": ", ".join(row.run for row in rows),
            "status": next((row.status for row in rows if row.status != "finished"), "finished"),
        },
        "doubts": [*_doubts_of([one["doubts"] for one in each]), *_unlike(runs), *of_size],
        "runs": [asdict(row) for row in rows],
        "between_runs": {
            key: None if spread is None else asdict(spread)
            for key in ("achieved_per_s", "p50_ns", "p99_ns")
            for spread in [_spread([getattr(row, key) for row in rows])]
        },
    }  # fmt: skip


def _row(run: Run, summary: dict[str, Any]) -> RepeatRow:
    total = summary["total"]
    return RepeatRow(
        run=str(summary["run"]["id"]),
        path=str(run.path),
        seed=summary["run"]["seed"],
        status=str(summary["run"]["status"]),
        valid=summary["valid"],
        ok=total["counts"]["ok"],
        achieved_per_s=total["achieved_per_s"],
        p50_ns=total["latency_ns"]["p50"],
        p99_ns=total["latency_ns"]["p99"],
        doubts=tuple(dict.fromkeys(doubt["code"] for doubt in summary["doubts"])),
    )


def _spread(values: list[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    if len(known) < 2:  # noqa: PLR2004 - of one value there is no spread
        return None
    return Spread(statistics.fmean(known), statistics.stdev(known))


def _doubts_of(each: list[list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """One doubt a code, in the words of the first run that is not valid for it, or else the first that has it."""
    by_code: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for number, doubts in enumerate(each, 1):
        for doubt in doubts:
            by_code.setdefault(doubt["code"], []).append((number, doubt))
    for code, held in by_code.items():
        if code == _OF_SIZE:
            continue
        worst, doubt = next((one for one in held if one[1]["invalidates"]), held[0])
        runs = sorted({number for number, _ in held})
        others = ", ".join(str(number) for number in runs if number != worst)
        also = f" (also in {'run' if len(runs) == 2 else 'runs'} {others})" if others else ""  # noqa: PLR2004 - one other
        yield doubt | {"text": f"run {worst}: {doubt['text']}{also}", "runs": runs}


def _unlike(runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """What several runs do not have in common, and should."""
    each = {
        "profile": [run.info.get("profile", {}).get("sha256") for run in runs],
        "target": [run.info.get("target") for run in runs],
    }
    for what, values in each.items():
        other = [number for number, value in enumerate(values, 1) if value != values[0]]
        if other:
            yield {
                "code": f"other_{what}",
                "text": f"run {other[0]}: its {what} is not that of run 1",
                "hint": "runs are judged together as if they were repeats of one: pool what is alike, compare what is not",
                "invalidates": False,
                "runs": other,
            }
