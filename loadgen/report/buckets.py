"""Buckets for lengths as text: the choices side by side, then what to write where, then what was measured.

It must not know how they were found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loadgen.report.table import Row, print_table
from loadgen.units import show_ns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

_GOOD_FIT = 0.25  # relative error, beyond which the prediction is doubted


def print_buckets(told: Mapping[str, Any], console: Console) -> None:
    """All of it; `told` is what `loadgen buckets --json` prints."""
    service = told["service"]
    console.print(
        f"{told['model']}: {told['distinct_lengths']} lengths, {told['shortest']} to {told['longest']}; "
        f"at most {told['most']} rows a batch; S(b, L) from {service['points']} points "
        f"({service['source']}), off by {service['error']:.0%} at most",
        soft_wrap=True,
    )
    head = Row("", ["requests/s", "mean batch", "padding", "a request"])
    rows = [Row(_name(one, told), _cells(one)) for one in told["choices"]]
    print_table(console, head, rows)
    console.print("predicted, for one instance that never idles, with requests in random order")
    chosen = told["chosen"]
    base = next(one for one in told["choices"] if one["name"] == "as they are")
    gain = chosen["per_s"] / base["per_s"] - 1
    console.print()
    if gain <= 0:
        console.print(
            f"padding does not pay here: even the best buckets lose {-gain:.0%} against the lengths as they are; "
            "what follows is for engines that need fixed shapes",
            soft_wrap=True,
        )
    console.print(f"pad to: {', '.join(map(str, chosen['bounds']))} ({gain:+.0%} predicted)", soft_wrap=True)
    grid: dict[int, list[str]] = {}
    for batch, length in told["warmup_grid"]:
        grid.setdefault(length, []).append(str(batch))
    for length, batches in grid.items():
        console.print(f"warm up: length {length} with {', '.join(batches)} rows")
    for profile in told["tensorrt_profiles"]:
        shapes = ", ".join(f"{key} {'x'.join(map(str, profile[key]))}" for key in ("min", "opt", "max"))
        console.print(f"TensorRT profile: {shapes}")
    if told["measured"]:
        _print_measured(told, console)
    if told["note"]:
        console.print(f"note: {told['note']}", soft_wrap=True)
    if service["error"] > _GOOD_FIT:
        console.print(f"doubt: the law S(b, L) misses a point by {service['error']:.0%}: take the prediction as a hint", soft_wrap=True)  # fmt: skip


def _name(one: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    words: str = one["name"]
    return f"{words} *" if one["name"] == told["chosen"]["name"] else words


def _cells(one: Mapping[str, Any]) -> list[str]:
    return [
        f"{one['per_s']:.1f}",
        f"{one['mean_batch']:.2f}",
        f"{one['padding']:.0%}",
        show_ns(one["cost_ns"]),
    ]


def _print_measured(told: Mapping[str, Any], console: Console) -> None:
    predicted = {one["name"]: one for one in told["choices"]}
    base = told["measured"]["as they are"]
    head = Row("measured", ["requests/s", "mean batch", "P50", "P99", "gain", "predicted"])
    rows = [
        Row(
            name,
            [
                f"{one['per_s']:.1f}",
                "-" if one["mean_batch"] is None else f"{one['mean_batch']:.2f}",
                show_ns(one["p50_ns"]),
                show_ns(one["p99_ns"]),
                f"{one['per_s'] / base['per_s'] - 1:+.0%}",
                f"{predicted[name]['per_s'] / predicted['as they are']['per_s'] - 1:+.0%}",
            ],
        )
        for name, one in told["measured"].items()
    ]
    print_table(console, head, rows)
