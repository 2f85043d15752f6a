"""What a sweep found: a row for each cell, the Pareto front, the best configuration and on what that rests.

Reads sweep.json and the run folders of the blocks, nothing else: the same folder gives the same result.  A cell is
a configuration under a load.  Its objectives are judged on the requests of all its blocks together, by the code that
judges a run (analysis.slo), and can be inconclusive.  The best configuration in a rate is the one with the highest over
those of its loads that pass; in a time, the one with the lowest geometric mean over all loads, which all must pass.
When none passes, those that are undecided are compared, and when there are none of these either, all of them.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.analysis.blocks import Floats
from loadgen.analysis.conclusion import OF_THE_ANSWERS
from loadgen.analysis.contest import DRAWS, Outcome, contest, effect, front
from loadgen.analysis.pool import pool
from loadgen.analysis.slo import Verdict
from loadgen.analysis.summary import summarise
from loadgen.records import LoadgenError
from loadgen.runfile import RUN
from loadgen.runread import Run, read_run
from loadgen.traffic.objective import RATES, Objective
from loadgen.traffic.sweep import Block, Sweep, parse_sweep

FORMAT = 1
JOURNAL, BLOCKS, RESULT, PAGE = "sweep.json", "blocks", "result.json", "sweep.html"
ALWAYS = ("requests/s > 0", "items/s > 0", "latency p50 < 100h", "latency p99 < 100h")
_KEYS = {"sweep", "profile", "model", "target", "protocol", "repository", "base", "command", "visits"}
RANK = {verdict: place for place, verdict in enumerate(Verdict)}  # larger is better


def read_journal(path: Path) -> dict[str, Any]:
    """sweep.json.  Raises LoadgenError when the folder is no sweep."""
    try:
        journal: dict[str, Any] = json.loads((path / JOURNAL).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise LoadgenError(f"{path}: not the folder of a sweep (no {JOURNAL} in it)") from None
    except (OSError, ValueError) as why:
        raise LoadgenError(f"{path / JOURNAL}: cannot be read: {why}") from None
    if not isinstance(journal, dict) or journal.get("format") != FORMAT or not journal.keys() >= _KEYS:
        raise LoadgenError(
            f"{path / JOURNAL}: not written by `loadgen sweep` of this version (format {FORMAT})"
        )
    return journal


def sweep_of(journal: dict[str, Any]) -> Sweep:
    """The sweep as it was written down when it began."""
    told = journal["sweep"]
    return parse_sweep(told["text"], told["name"], Path(told["folder"]))


def finished(path: Path, block: Block) -> bool:
    """Whether a block's run folder holds a whole measurement: then it is never measured again."""
    try:
        return bool(json.loads((path / BLOCKS / block.name / RUN).read_text())["status"] == "finished")
    except (OSError, ValueError, KeyError):
        return False


@dataclass(frozen=True, slots=True)
class Cell:
    """A configuration under a load, over the requests of all its blocks; None where nothing was measured.

    `best_in` is its figure in what the best is best in; `each` holds the blocks' own, in their rounds; `n` the requests
    that were judged.  `objectives` are rows as `analysis.slo.judge` makes them, with the blocks' own verdicts as
    `blocks`.  `verdict`: fail where an objective fails; pass where all pass and no block fails one; else inconclusive.
    None without objectives.
    """

    configuration: str
    load: str
    blocks: int = 0
    n: int = 0
    verdict: Verdict | None = None
    objectives: list[dict[str, Any]] = field(default_factory=list)
    best_in: float | None = None
    achieved_per_s: float | None = None
    items_per_s: float | None = None
    p50_ns: float | None = None
    p99_ns: float | None = None
    mean_batch: float | None = None
    queue_ns: float | None = None
    compute_ns: float | None = None
    each: dict[str, list[float | None]] = field(default_factory=lambda: {"achieved_per_s": [], "p99_ns": []})
    doubts: dict[str, int] = field(default_factory=dict)
    front: bool = False


@dataclass(frozen=True, slots=True)
class Best:
    """Which configuration is best.

    `configuration` meets the objectives; None where none is known to.  `leading` is the first of those that were
    compared: those whose objectives `compared` says (pass, else inconclusive, else fail).  `verdict`: clear | close |
    only (nothing to compare with) | inconclusive | none (all fail).  `probability` and `worse_by_at_most` (95 % of the draws)
    rest on `rounds` blocks a cell taken as independent, and on undecided rivals taken as if they met the objectives.
    """

    configuration: str | None
    leading: str | None
    compared: Verdict | None
    verdict: str
    probability: float | None
    worse_by_at_most: float | None
    rounds: int
    rivals: list[str]
    invalid_blocks: int


@dataclass(frozen=True, slots=True)
class _Measured:
    """Of all blocks: `score` candidates x loads x rounds, NaN where nothing was measured; `meets` (RANK) candidates x
    loads.
    """

    score: Floats
    meets: Floats
    cells: list[Cell]
    invalid: list[str]  # names of blocks


def read_sweep(path: Path) -> dict[str, Any]:
    """The result, as result.json holds it.  Raises LoadgenError when the folder is no sweep or a block is damaged."""
    journal = read_journal(path)
    sweep = sweep_of(journal)
    blocks = sweep.blocks()
    done = [block for block in blocks if finished(path, block)]
    seen = _measured(path, sweep, done)
    failed = journal.get("failed", {})
    for i, one in enumerate(sweep.candidates):
        if one.name in failed:
            seen.score[i] = np.nan  # it was left out, and cannot win by the blocks before
    level, outcome = _compared(sweep, seen)
    return {
        "format": FORMAT,
        "name": sweep.name,
        "path": str(path),
        "status": "finished" if len(done) == len(blocks) else journal.get("status", "unfinished"),
        "seed": sweep.seed,
        "target": journal.get("target"),
        "model": journal.get("model"),
        "blocks": {"planned": len(blocks), "finished": len(done), "block_ns": sweep.block_ns, "repeats": sweep.repeats},
        "best_in": sweep.best,
        "objectives": list(sweep.objectives),
        "best": asdict(_best(sweep, outcome, level, seen, [one.name not in failed for one in sweep.candidates])),
        "configurations": [
            {"name": one.name, "changes": str(one.changes), "score": _number(outcome.scores[i]),
             "probability_best": _probability(outcome, i), "failed": failed.get(one.name)}
            for i, one in enumerate(sweep.candidates)
        ],
        "effects": _effects(sweep, outcome),
        "cells": [asdict(cell) for cell in _with_front(seen.cells)],
        "invalid": seen.invalid,
        "visits": journal.get("visits", []),
    }  # fmt: skip


def _measured(path: Path, sweep: Sweep, done: list[Block]) -> _Measured:
    shape = (len(sweep.candidates), len(sweep.loads))
    found = _Measured(np.full((*shape, sweep.repeats), np.nan), np.full(shape, np.nan), [], [])
    for i in range(shape[0]):
        for j in range(shape[1]):
            mine = sorted((b for b in done if (b.configuration, b.load) == (i, j)), key=lambda b: b.round)
            cell = _cell(path, sweep, (i, j), mine, found)
            if cell.blocks:
                found.meets[i, j] = RANK[cell.verdict or Verdict.PASS]
            found.cells.append(cell)
    return found


def _cell(path: Path, sweep: Sweep, place: tuple[int, int], blocks: list[Block], found: _Measured) -> Cell:
    """One cell; its blocks' scores go into `found`."""
    cell = Cell(sweep.candidates[place[0]].name, str(sweep.loads[place[1]]))
    if not blocks:
        return cell
    wanted = [sweep.contest.text, *sweep.objectives, *ALWAYS]
    runs: list[Run] = []
    verdicts: list[list[Verdict]] = [[] for _ in sweep.objectives]
    doubts: Counter[str] = Counter()
    for block in blocks:
        runs.append(read_run(path / BLOCKS / block.name))
        summary = summarise(runs[-1], wanted)
        found.score[(*place, block.round)] = _observed(summary["slo"][0])
        for mine, row in zip(verdicts, summary["slo"][1:], strict=False):
            mine.append(row["verdict"])
        rate, _, _, p99 = _always(summary)
        cell.each["achieved_per_s"].append(rate)
        cell.each["p99_ns"].append(p99)
        doubts.update(doubt["code"] for doubt in summary["doubts"])
        if any(d["invalidates"] and d["code"] not in OF_THE_ANSWERS for d in summary["doubts"]):
            found.invalid.append(block.name)
    summary = summarise(pool(runs), wanted)
    rate, items, p50, p99 = _always(summary)
    server = summary["server"]
    objectives = [_objective(*each) for each in zip(summary["slo"][1:], verdicts, strict=False)]
    return replace(
        cell,
        blocks=len(runs),
        n=summary["slo"][-1]["n"],
        verdict=_verdict(objectives),
        objectives=objectives,
        best_in=_number(_observed(summary["slo"][0])),
        achieved_per_s=rate,
        items_per_s=items,
        p50_ns=p50,
        p99_ns=p99,
        mean_batch=server["mean_batch"],
        queue_ns=server["queue_ns_mean"],
        compute_ns=server["compute_ns_mean"],
        doubts=dict(doubts),
    )


def _always(summary: dict[str, Any]) -> list[float | None]:
    """What is observed of ALWAYS."""
    return [_number(_observed(row)) for row in summary["slo"][-len(ALWAYS) :]]


def _objective(row: dict[str, Any], blocks: list[Verdict]) -> dict[str, Any]:
    """A row of `judge` on all requests of a cell, with its blocks' verdicts; `against`: it passes, and a block fails."""
    return row | {"blocks": blocks, "against": row["verdict"] is Verdict.PASS and Verdict.FAIL in blocks}


def _verdict(objectives: list[dict[str, Any]]) -> Verdict | None:
    """Of a cell.  An interval from all requests takes them as independent: that a block of them fails shows that they
    are not, and then the cell does not pass.
    """
    if not objectives:
        return None
    verdicts = {row["verdict"] for row in objectives}
    if Verdict.FAIL in verdicts:
        return Verdict.FAIL
    unsure = Verdict.INCONCLUSIVE in verdicts or any(Verdict.FAIL in row["blocks"] for row in objectives)
    return Verdict.INCONCLUSIVE if unsure else Verdict.PASS


def _observed(row: dict[str, Any]) -> float:
    """A time that requests without success reach into has no figure: it is endless."""
    if row["observed"] is not None:
        return float(row["observed"])
    return np.nan if row["metric"] in RATES or not row["n"] else np.inf


def _compared(sweep: Sweep, seen: _Measured) -> tuple[Verdict, Outcome]:
    """The contest among the best there are: those that pass, else those that may, else all."""
    for level in reversed(Verdict):
        rivals = _score(sweep.contest, seen.meets, min(level, Verdict.INCONCLUSIVE, key=RANK.__getitem__))
        outcome = contest(seen.score, _score(sweep.contest, seen.meets, level), sweep.seed, rivals=rivals)
        if outcome.best is not None:
            break
    return level, outcome


def _score(best: Objective, meets: Floats, level: Verdict) -> Callable[[Floats], Floats]:
    """What makes a number a candidate of figures with candidates x loads as last axes: larger is better; 0 where the
    objectives do not hold to that level; NaN where a load has not been measured.
    """
    there = meets >= RANK[level]

    def score(shown: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            if best.metric in RATES:
                scores = np.where(there, shown, 0.0).max(axis=-1)
            else:
                scores = np.where(there.all(axis=-1), 1e9 / np.exp(np.log(shown).mean(axis=-1)), 0.0)
        return np.where(np.isnan(shown).any(axis=-1), np.nan, scores)

    return score


def _with_front(cells: list[Cell]) -> list[Cell]:
    """The same, told which no other beats in both requests/s and P99."""
    gain, cost = (
        np.array([np.nan if value is None else value for value in values], np.float64)
        for values in ([c.achieved_per_s for c in cells], [c.p99_ns for c in cells])
    )
    return [replace(cell, front=there) for cell, there in zip(cells, front(gain, cost), strict=True)]


def _effects(sweep: Sweep, outcome: Outcome) -> list[dict[str, Any]]:
    """Of each setting of the grid, each value: its score over the best value's, and how sure it is the best."""
    rows = []
    for setting, values in sweep.axes():
        found = effect(outcome, [places for _, places in values])
        rows += [
            {"setting": setting, "value": value, "ratio": None if ratio is None else round(ratio, 4),
             "probability_best": None if share is None else round(share, 4)}
            for (value, _), (ratio, share) in zip(values, found, strict=True)
        ]  # fmt: skip
    return rows


def _best(sweep: Sweep, outcome: Outcome, level: Verdict, seen: _Measured, waited_for: list[bool]) -> Best:
    """The winner, and how far it can be trusted.  Nothing is settled until every configuration that could be loaded
    (`waited_for`) has been measured.
    """
    names = [one.name for one in sweep.candidates]
    shares = outcome.probability
    rivals = [] if shares is None else [
        names[i] for i in np.argsort(-shares).tolist() if i != outcome.best and shares[i] >= 0.05  # noqa: PLR2004
    ]  # fmt: skip
    leading = None if outcome.best is None else names[outcome.best]
    verdict = {Verdict.PASS: outcome.verdict, Verdict.INCONCLUSIVE: "inconclusive", Verdict.FAIL: "none"}[
        level
    ]
    settled = not np.isnan(outcome.scores[waited_for]).any() and any(waited_for)
    return Best(
        configuration=leading if level is Verdict.PASS else None,
        leading=leading,
        compared=None if leading is None or not sweep.objectives else level,
        verdict="inconclusive" if seen.invalid or not settled else verdict,
        probability=None if outcome.best is None else _probability(outcome, outcome.best),
        worse_by_at_most=None if outcome.worse is None else round(outcome.worse, 4),
        rounds=sweep.repeats,
        rivals=rivals,
        invalid_blocks=len(seen.invalid),
    )


def _probability(outcome: Outcome, place: int) -> float | None:
    """Never 1: so many draws cannot tell more."""
    if outcome.probability is None:
        return None
    return round(min(float(outcome.probability[place]), 1 - 1 / DRAWS), 4)


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if np.isfinite(value) else None
