"""The story of a model's batches as text.  It must not compute figures."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadgen.units import show_ns

_HEAD = ("closed by", "batches", "share", "rows", "left waiting", "for company", "in queue", "busy")


def batch_lines(stories: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines for a terminal, a model after the other."""
    return [line for seen in stories for line in _lines(seen)]


def _lines(seen: Mapping[str, Any]) -> Iterator[str]:
    mean = "-" if seen["mean_batch"] is None else f"{seen['mean_batch']:.2f}"
    of = f" (a step of {', '.join(seen['step_of'])})" if seen.get("step_of") else ""
    yield (
        f"model {seen['model']} version {seen['version']}{of}: {seen['requests']:,} requests, {seen['rows']:,} rows in "
        f"{seen['batches']:,} batches, {mean} rows each"
    )
    if seen["sizes"]:
        yield "  sizes     " + ", ".join(f"{count:,} of {size}" for size, count in seen["sizes"].items())
    if seen["cost"] is not None:
        fixed, row = (show_ns(seen["cost"][key]) for key in ("fixed_ns", "row_ns"))
        yield f"  service   {fixed} an execution and {row} a row"
    yield ""
    table = [_HEAD, *(_row(rule, told) for rule, told in seen["rules"].items())]
    widths = [max(len(cells[place]) for cells in table) for place in range(len(_HEAD))]
    for cells in table:
        padded = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        yield "  " + "  ".join([cells[0].ljust(widths[0]), *padded])
    yield ""
    for line in seen["advice"]:
        yield f"  - {line}"
    for stall in seen["stalls"]:
        yield (
            f"  idle while {stall['rows']} rows were pending: {stall['start_ns'] / 1e9:.3f} s to "
            f"{stall['end_ns'] / 1e9:.3f} s of the run"
        )
    if more := seen["stall_count"] - len(seen["stalls"]):
        yield f"  and {more:,} shorter ones"


def _row(rule: str, told: Mapping[str, Any]) -> tuple[str, ...]:
    busy = told["busy_share"]
    return (
        rule,
        f"{told['batches']:,}",
        f"{told['share'] * 100:.1f} %",
        f"{told['mean_rows']:.2f}",
        f"{told['mean_left']:.1f}",
        show_ns(told["company_ns_mean"]),
        show_ns(told["queued_ns_mean"]),
        "-" if busy is None else f"{busy * 100:.0f} %",
    )
