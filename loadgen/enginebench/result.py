"""What the cells say together: growth of memory, the best batch, what to choose; JSON and CSV.

It must not know how anything was measured.
"""

import csv
import io
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loadgen.enginebench.cells import Asked, BenchError, Cell
from loadgen.enginebench.memory import growth
from loadgen.units import finite_only, show_bytes, show_ns

FORMAT = 1
FLOOR = 0.98


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a choice must keep to: least agreement with FP32 (embedding ranks, else cosine), most peak bytes,
    most median nanoseconds a call.
    """

    floor: float = FLOOR
    ceiling_bytes: int | None = None
    most_ns: int | None = None

    def __post_init__(self) -> None:
        if not -1 <= self.floor <= 1:
            raise BenchError(f"floor {self.floor}: an agreement is -1 to 1")

    def fault(self, cell: Cell) -> str | None:
        """Why a cell is out of the question; None if it is not."""
        if cell.error is not None:
            return cell.error
        agreement = cell.agreement
        if agreement is None or not agreement >= self.floor:  # what is not a number is below every floor
            return f"agreement {'unknown' if agreement is None else f'{agreement:.4f}'} below {self.floor}"
        if self.ceiling_bytes is not None:
            if cell.peak_bytes is None:
                return "peak memory unknown"
            if cell.peak_bytes > self.ceiling_bytes:
                return f"peak {show_bytes(cell.peak_bytes)} over {show_bytes(self.ceiling_bytes)}"
        if self.most_ns is not None and (cell.median_ns or math.inf) > self.most_ns:
            return f"median {show_ns(cell.median_ns or 0)} over {show_ns(self.most_ns)}"
        return None


def summary(
    asked: Asked,
    cells: Sequence[Cell],
    facts: Mapping[str, Any],
    *,
    finished: bool,
    wanted: Wanted | None = None,
) -> dict[str, Any]:
    """The whole result; a figure that could not be measured is null."""
    told: dict[str, Any] = {
        "format": FORMAT, "finished": finished, "asked": asdict(asked), **facts,
        "cells": [cell.as_json() for cell in cells],
        "memory_growth": memory_growth(cells),
        "best_batch": best_batches(cells),
    }  # fmt: skip
    if wanted is not None:
        told["choice"] = choose(cells, wanted)
    return dict(finite_only(told))


def memory_growth(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Of each runtime, precision and length, how its peak grows with the batch."""
    return [
        {"runtime": runtime, "precision": precision, "length": length}
        | growth({cell.batch: cell.peak_bytes for cell in group if cell.peak_bytes is not None})
        for (runtime, precision, length), group in _grouped(cells, _line).items()
    ]


def best_batches(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Of each runtime, precision and length, the batch with the most samples a second."""
    return [
        {"runtime": runtime, "precision": precision, "length": length}
        | {
            key: _fastest(group).as_json()[key]
            for key in ("batch", "samples_per_s", "tokens_per_s", "median_ns")
        }
        for (runtime, precision, length), group in _grouped(cells, _line).items()
    ]


def choose(cells: Sequence[Cell], wanted: Wanted) -> dict[str, Any]:
    """One runtime and precision, and a batch for each length: the most samples a second in the geometric mean over
    lengths, among those that keep to `wanted` at every length.  None with the reasons when there is none.
    """
    faults = {id(cell): wanted.fault(cell) for cell in cells}
    lengths = {cell.length for cell in cells}
    options: dict[tuple[str, str], dict[int, Cell]] = {}
    for engine, group in _grouped(cells, lambda cell: (cell.runtime, cell.precision), failed=True).items():
        good = _grouped([cell for cell in group if faults[id(cell)] is None], lambda cell: cell.length)
        if set(good) == lengths:
            options[engine] = {length: _fastest(found) for length, found in good.items()}
    refused = [
        {
            "runtime": cell.runtime,
            "precision": cell.precision,
            "batch": cell.batch,
            "length": cell.length,
            "why": why,
        }
        for cell in cells
        if (why := faults[id(cell)]) is not None
    ]
    told: dict[str, Any] = {"wanted": asdict(wanted), "refused": refused, "runtime": None}
    if options:
        engine = max(options, key=lambda one: _mean_log(options[one]))
        told |= {"runtime": engine[0], "precision": engine[1]}
        told["batches"] = {
            str(length): {
                "batch": cell.batch,
                "agreement": cell.agreement,
                "samples_per_s": cell.samples_per_s,
                "tokens_per_s": cell.tokens_per_s,
                "median_ns": cell.median_ns,
            }
            for length, cell in sorted(options[engine].items())
        }
    return told


def slowest(cells: Sequence[Cell]) -> Cell | None:
    """The measured cell with the most time a call."""
    return max((c for c in cells if c.median_ns), key=lambda cell: cell.median_ns or 0, default=None)


def as_csv(cells: Sequence[Cell]) -> str:
    """A row a cell; parts and memory have a column each."""
    rows = []
    for cell in cells:
        row = cell.as_json()
        parts, memory = row.pop("parts"), row.pop("memory")
        row |= {f"{key}_ns": value for key, value in parts.items()}
        row |= {f"{key}_bytes": value for key, value in memory.items()}
        rows.append(row)
    names = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _line(cell: Cell) -> tuple[str, str, int]:
    return cell.runtime, cell.precision, cell.length


def _grouped(
    cells: Sequence[Cell], key: Callable[[Cell], Any], *, failed: bool = False
) -> dict[Any, list[Cell]]:
    found: defaultdict[Any, list[Cell]] = defaultdict(list)
    for cell in cells:
        if failed or cell.median_ns:
            found[key(cell)].append(cell)
    return dict(found)


def _fastest(group: Sequence[Cell]) -> Cell:
    return max(group, key=lambda cell: cell.samples_per_s or 0)


def _mean_log(by_length: Mapping[int, Cell]) -> float:
    return sum(math.log(cell.samples_per_s or 1e-9) for cell in by_length.values()) / len(by_length)
