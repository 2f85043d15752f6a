"""What a sweep found: a row for each cell, the Pareto front, the best configuration and how sure that is.

Reads sweep.json and the run folders of the blocks, nothing else: the same folder gives the same result.  A cell is
a configuration under a load.  The best configuration in a rate is the one with the highest over those of its loads
at which every objective holds; in a time, the one with the lowest geometric mean over all loads.  This module must
not know how blocks are made nor how the result is shown.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.analysis.conclusion import OF_THE_ANSWERS
from loadgen.analysis.contest import Floats, Outcome, contest, effect, front, means
from loadgen.analysis.summary import summarise
from loadgen.records import LoadgenError
from loadgen.runfile import RUN
from loadgen.runread import read_run
from loadgen.traffic.objective import RATES, Objective, parse_objective
from loadgen.traffic.sweep import Block, Sweep, parse_sweep

FORMAT = 1
JOURNAL, BLOCKS, RESULT, PAGE = "sweep.json", "blocks", "result.json", "sweep.html"
ALWAYS = ("requests/s > 0", "items/s > 0", "latency p50 < 100h", "latency p99 < 100h")
_KEYS = {"sweep", "profile", "model", "target", "protocol", "repository", "base", "command", "visits"}
_TOLD = ("achieved_per_s", "items_per_s", "p50_ns", "p99_ns", "mean_batch", "queue_ns", "compute_ns")


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
class _Figures:
    """Of all blocks: candidates x loads x rounds, NaN where nothing was measured."""

    score: Floats
    bounds: list[Floats]
    told: dict[str, Floats]  # by the names of _TOLD
    doubts: dict[tuple[int, int], Counter[str]]
    valid: Floats  # 1 or 0


def read_sweep(path: Path) -> dict[str, Any]:
    """The result, as result.json holds it.  Raises LoadgenError when the folder is no sweep or a block is damaged."""
    journal = read_journal(path)
    sweep = sweep_of(journal)
    blocks = sweep.blocks()
    done = [block for block in blocks if finished(path, block)]
    bounds = [parse_objective(text) for text in sweep.objectives]
    figures = _figures(path, sweep, done)
    for i, one in enumerate(sweep.candidates):
        if one.name in journal.get("failed", {}):
            figures.score[i] = np.nan  # it was left out, and cannot win by the blocks before
    outcome = contest(
        [figures.score, *figures.bounds], lambda shown: _score(sweep.contest, bounds, shown), sweep.seed
    )
    names = [one.name for one in sweep.candidates]
    cells = _cells(sweep, figures, bounds)
    failed = journal.get("failed", {})
    waited_for = [one.name not in failed for one in sweep.candidates]
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
        "best": _best(names, outcome, figures, settled=_settled(outcome, waited_for)),
        "configurations": [
            {"name": name, "changes": str(one.changes), "score": _number(outcome.scores[i]),
             "probability_best": None if outcome.probability is None else round(float(outcome.probability[i]), 4),
             "failed": failed.get(name)}
            for i, (name, one) in enumerate(zip(names, sweep.candidates, strict=True))
        ],
        "effects": _effects(sweep, outcome),
        "cells": cells,
        "invalid": [b.name for b in done if figures.valid[b.configuration, b.load, b.round] == 0],
        "visits": journal.get("visits", []),
    }  # fmt: skip


def _figures(path: Path, sweep: Sweep, done: list[Block]) -> _Figures:
    shape = (len(sweep.candidates), len(sweep.loads), sweep.repeats)

    def empty() -> Floats:
        return np.full(shape, np.nan)

    found = _Figures(
        empty(), [empty() for _ in sweep.objectives], {key: empty() for key in _TOLD}, {}, empty()
    )
    wanted = [sweep.contest.text, *sweep.objectives, *ALWAYS]
    for block in done:
        summary = summarise(read_run(path / BLOCKS / block.name), wanted)
        place = block.configuration, block.load, block.round
        observed = [_observed(row) for row in summary["slo"]]
        found.score[place] = observed[0]
        for array, value in zip(found.bounds, observed[1:], strict=False):
            array[place] = value
        rate, items, p50, p99 = observed[-len(ALWAYS) :]
        server = summary["server"]
        told = (
            rate,
            items,
            p50,
            p99,
            server["mean_batch"],
            server["queue_ns_mean"],
            server["compute_ns_mean"],
        )
        for key, value in zip(_TOLD, told, strict=True):
            found.told[key][place] = np.nan if value is None else value
        codes = Counter(doubt["code"] for doubt in summary["doubts"])
        found.doubts.setdefault(place[:2], Counter()).update(codes)
        found.valid[place] = all(d["code"] in OF_THE_ANSWERS for d in summary["doubts"] if d["invalidates"])
    return found


def _observed(row: dict[str, Any]) -> float:
    """A time that requests without success reach into has no figure: it is endless."""
    if row["observed"] is not None:
        return float(row["observed"])
    return np.nan if row["metric"] in RATES or not row["n"] else np.inf


def _score(best: Objective, bounds: list[Objective], shown: list[Floats]) -> Floats:
    """Larger is better; 0 where the objectives are not met; NaN where a load has not been measured.  `shown` holds
    what is best and then each bound, with loads as the last axis.
    """
    first, rest = shown[0], shown[1:]
    meets = np.ones(first.shape, np.bool_)
    for bound, values in zip(bounds, rest, strict=True):
        meets &= _holds(bound, values)
    with np.errstate(divide="ignore"):
        if best.metric in RATES:
            scores = np.where(meets, first, 0.0).max(axis=-1)
        else:
            scores = np.where(meets.all(axis=-1), 1e9 / np.exp(np.log(first).mean(axis=-1)), 0.0)
    return np.where(np.isnan(first).any(axis=-1), np.nan, scores)


def _holds(bound: Objective, values: Floats) -> Any:
    holds = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}[bound.op]
    return holds(values, bound.threshold)


def _cells(sweep: Sweep, figures: _Figures, bounds: list[Objective]) -> list[dict[str, Any]]:
    told = {key: means(values) for key, values in figures.told.items()}
    limits = [means(values) for values in figures.bounds]
    meets = np.ones(figures.score.shape[:2], np.bool_)
    for bound, values in zip(bounds, limits, strict=True):
        meets &= _holds(bound, values)
    best = front(told["achieved_per_s"].ravel(), told["p99_ns"].ravel())
    cells = []
    for i, one in enumerate(sweep.candidates):
        for j, load in enumerate(sweep.loads):
            blocks = int(np.isfinite(figures.valid[i, j]).sum())
            cells.append(
                {"configuration": one.name, "load": str(load), "blocks": blocks,
                 **{key: _number(values[i, j]) for key, values in told.items()},
                 "each": {key: [_number(v) for v in figures.told[key][i, j]] for key in ("achieved_per_s", "p99_ns")},
                 "bounds": [_number(values[i, j]) for values in limits],
                 "meets": bool(meets[i, j]) if blocks else None,
                 "front": best[i * len(sweep.loads) + j],
                 "doubts": dict(figures.doubts.get((i, j), {}))}
            )  # fmt: skip
    return cells


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


def _settled(outcome: Outcome, waited_for: list[bool]) -> bool:
    """Whether every configuration that could be loaded has a score, and there is one at all."""
    missing = np.isnan(outcome.scores)
    return not missing[waited_for].any() and not missing.all()


def _best(names: list[str], outcome: Outcome, figures: _Figures, *, settled: bool) -> dict[str, Any]:
    """The winner with its probability, and in words why it is not surer.  That none meets the objectives can only
    be said when all have been measured (`settled`).
    """
    shares = outcome.probability
    rivals = [] if shares is None or outcome.best is None else [
        names[i] for i in np.argsort(-shares).tolist() if i != outcome.best and shares[i] >= 0.05  # noqa: PLR2004
    ]  # fmt: skip
    invalid = int((figures.valid == 0).sum())
    verdict = outcome.verdict
    doubtful = {"clear", "close", "none"} if invalid else set() if settled else {"none"}
    return {
        "configuration": None if outcome.best is None else names[outcome.best],
        "verdict": "inconclusive" if verdict in doubtful else verdict,
        "probability": None
        if shares is None or outcome.best is None
        else round(float(shares[outcome.best]), 4),
        "worse_by_at_most": None if outcome.worse is None else round(outcome.worse, 4),
        "rivals": rivals,
        "invalid_blocks": invalid,
    }


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if np.isfinite(value) else None
