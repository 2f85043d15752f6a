"""A cold start as text: how it was measured, then for each condition every stage with least, middle and greatest.

It must not know how the figures came about; they are analysis.coldstart's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loadgen.analysis.coldstart import MEMORY, STAGES, shape_name
from loadgen.report.table import Row, print_table
from loadgen.units import show_bytes, show_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rich.console import Console

_HEAD = Row("", ["min", "median", "max"])
_NONE = ["-", "-", "-"]


def print_coldstart(
    cold: Mapping[str, Any], summary: Mapping[str, Any], console: Console, path: Path
) -> None:
    """All of it; `summary` is analysis.coldstart.summarise's."""
    model, n = cold["model"], cold["instances"]
    console.print(f"cold start of {model}, {n} instance{'s' * (n != 1)}, at {cold['target']}: {_what(cold)}")
    for condition in summary["conditions"]:
        console.print()
        told = f" ({condition['told']}{_share(condition)})" if condition["told"] else ""
        repeats = condition["repeats"]
        console.print(f"{condition['name']}, {repeats} repeat{'s' * (repeats != 1)}{told}", soft_wrap=True)
        print_table(console, _HEAD, _rows(condition))
    for line in comparisons(summary):
        console.print(line, soft_wrap=True)
    for note in cold["notes"]:
        console.print(f"note: {note}", soft_wrap=True)
    for doubt in summary["doubts"]:
        console.print(f"doubt: {doubt['text']}; {doubt['hint']}", soft_wrap=True)
    console.print(f"\n{path}", soft_wrap=True)


def _what(cold: Mapping[str, Any]) -> str:
    modes = {
        "process": "a server process a repeat",
        "load": "unload and load a repeat",
        "first requests": "first requests only",
    }
    return f"{modes[cold['mode']]}; warm is {cold['within']:.0%} above steady at most"


def _share(condition: Mapping[str, Any]) -> str:
    share = condition["cached_share"]
    return f"; {share['median']:.0%} of the model's files cached at the start" if share else ""


def _rows(condition: Mapping[str, Any]) -> list[Row]:
    rows = [Row(words, _cells(condition["stages_ns"].get(key), show_ns)) for key, words in STAGES.items()
            if key in condition["stages_ns"]]  # fmt: skip
    rows += [Row(words, _cells(condition["memory_bytes"].get(key), show_bytes)) for key, words in MEMORY.items()
             if key in condition["memory_bytes"]]  # fmt: skip
    for shape in condition["shapes"]:
        name = shape_name(shape)
        rows += [
            Row(f"{name}: first", _cells(shape["first_ns"], show_ns), apart=True),
            Row("  steady", _cells(shape["steady_ns"], show_ns)),
            Row("  answers to warm", _cells(shape["answers_to_warm"], "{:.0f}".format)),
            Row("  cold answers", _cells(shape["cold_answers"], "{:.0f}".format)),
            Row("  cost of being cold", _cells(shape["cost_ns"], show_ns)),
        ]
    return rows


def _cells(spread: Mapping[str, Any] | None, show: Callable[[float], str]) -> list[str]:
    return _NONE if spread is None else [show(spread[key]) for key in ("min", "median", "max")]


def comparisons(summary: Mapping[str, Any]) -> list[str]:
    """What warm-up and a dropped cache change, by the medians: a sentence a pair of conditions."""
    lines = [""]
    for one in summary["conditions"]:
        for other in summary["conditions"]:
            if one["cache"] == other["cache"] and not one["warmup"] and other["warmup"]:
                lines.append(f"warm-up on against off, {one['cache']} cache: {_change(one, other)}")
            if one["warmup"] == other["warmup"] and (one["cache"], other["cache"]) == ("warm", "dropped"):
                on = "with" if one["warmup"] else "without"
                lines.append(f"dropped cache against warm, {on} warm-up: {_change(one, other)}")
    return lines if len(lines) > 1 else []


def _change(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    parts = []
    for key in ("model_ready", "load_to_ready", "first_answer", "load_to_answer"):
        a, b = (c["stages_ns"].get(key) for c in (one, other))
        if a and b:
            parts.append(f"{STAGES[key]} {show_ns(a['median'])} -> {show_ns(b['median'])}")
    return ", ".join(parts)
