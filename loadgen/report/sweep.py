"""A sweep's result as text and as one page: the table, throughput against latency with its front, the verdict.

This module must not know how a sweep is run nor compute figures.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from loadgen.report import words
from loadgen.report.charts import BLUE, GREEN, GREY, ORANGE, RED, Figure, _layout, _log
from loadgen.report.html import library, script_json
from loadgen.report.table import Row, print_table

if TYPE_CHECKING:
    from rich.console import Console

HEAD = ["requests/s", "P99", "P50", "mean batch", "queue", "compute", "blocks", "meets", "front"]
_COLORS = (BLUE, ORANGE, GREEN, "#7c3aed", "#0891b2", "#be185d", "#65a30d", GREY)
_SAID = {
    "clear": "clear",
    "close": "close: another may be better, but hardly by more than is said",
    "inconclusive": "inconclusive",
    "none": "none meets the objectives",
}

_SEEN = {  # doubts that say why a cell is what it is
    "idle_while_pending": "the server sat idle with requests waiting (a queue policy or priorities can do that)",
    "rejected": "the server's queue was full",
    "failures": "requests failed",
}


def conclusion(result: dict[str, Any]) -> list[str]:
    """The verdict in lines of words."""
    best, blocks = result["best"], result["blocks"]
    wish = f"best in {result['best_in']}" + (
        f", with {', '.join(result['objectives'])}" if result["objectives"] else ""
    )
    lines = []
    if best["configuration"] is None:
        sure = "none" if best["verdict"] == "none" else "so far none"
        lines.append(f"{wish}: {sure} of {len(result['configurations'])} configurations"
                     if blocks["finished"] else "nothing was measured yet")  # fmt: skip
    else:
        lines.append(f"{wish}: {best['configuration']}")
        if best["probability"] is None:
            lines.append("how sure: unknown; at least two rounds are needed to tell noise from difference")
        else:
            worse = f"; it is worse than the true best by at most {best['worse_by_at_most']:.1%} (95 %)"
            lines.append(
                f"how sure: {_SAID[best['verdict']]}, best with probability {best['probability']:.0%}{worse}"
            )
        if best["rivals"]:
            lines.append(f"may be as good: {'; '.join(best['rivals'])}")
    if best["invalid_blocks"]:
        first = f"{result['path']}/blocks/{result['invalid'][0]}"
        lines.append(f"not valid: {', '.join(result['invalid'])} of {blocks['finished']} blocks: the verdict cannot be "
                     f"trusted; loadgen report {first} tells why")  # fmt: skip
    if blocks["finished"] < blocks["planned"]:
        lines.append(f"{blocks['finished']} of {blocks['planned']} blocks are measured; "
                     f"loadgen sweep resume {result['path']} goes on")  # fmt: skip
    lines += [
        f"left out: {row['name']}: {row['failed']}" for row in result["configurations"] if row["failed"]
    ]
    for code, said in _SEEN.items():
        where = [f"{c['configuration']} at {c['load']}" for c in result["cells"] if c["doubts"].get(code)]
        if where:
            lines.append(f"{said}: {'; '.join(where)}")
    unsteady = [visit["configuration"] for visit in result["visits"] if not visit.get("steady", True)]
    if unsteady:
        lines.append(
            f"{len(unsteady)} of {len(result['visits'])} times a loaded model was not steady when its warm-up was over"
        )
    return lines


def effects(result: dict[str, Any]) -> list[str]:
    """A line for each setting of the grid: its values, best first, as shares of the best."""
    lines = []
    for setting in dict.fromkeys(row["setting"] for row in result["effects"]):
        rows = [row for row in result["effects"] if row["setting"] == setting and row["ratio"] is not None]
        rows.sort(key=lambda row: -row["ratio"])
        told = [f"{row['value']} {row['ratio']:.0%}" for row in rows]
        sure = rows[0]["probability_best"] if rows else None
        if told:
            lines.append(
                f"{setting}: {', '.join(told)}"
                + ("" if sure is None else f" (best with probability {sure:.0%})")
            )
    return lines


def ranked(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells, best configuration first."""
    scores = {row["name"]: row["score"] or 0 for row in result["configurations"]}
    return sorted(result["cells"], key=lambda cell: -scores[cell["configuration"]])


def print_sweep(result: dict[str, Any], console: Console) -> None:
    """The table and the verdict."""
    rows, last = [], None
    for cell in ranked(result):
        name = f"{cell['configuration']} · {cell['load']}"
        rows.append(
            Row(
                name,
                _cells(cell),
                dim=cell["meets"] is False,
                apart=last not in (None, cell["configuration"]),
            )
        )
        last = cell["configuration"]
    print_table(console, Row(f"{result['name']} (seed {result['seed']})", HEAD), rows)
    console.print()
    for line in [*conclusion(result), *(f"effect of {line}" for line in effects(result))]:
        console.print(line, markup=False, highlight=False)


def _cells(cell: dict[str, Any]) -> list[str]:
    meets = words.NONE if cell["meets"] is None else "yes" if cell["meets"] else "no"
    return [
        words.rate(cell["achieved_per_s"]), words.duration(cell["p99_ns"]), words.duration(cell["p50_ns"]),
        words.rate(cell["mean_batch"]), words.duration(cell["queue_ns"]), words.duration(cell["compute_ns"]),
        str(cell["blocks"]), meets, "front" if cell["front"] else "",
    ]  # fmt: skip


def plane(result: dict[str, Any]) -> Figure:
    """Throughput against P99, a series a load; the front is a line, each block's own figures hover."""
    traces: list[dict[str, Any]] = []
    loads = list(dict.fromkeys(cell["load"] for cell in result["cells"]))
    shown = [cell for cell in result["cells"] if cell["achieved_per_s"] and cell["p99_ns"]]
    front = sorted((c for c in shown if c["front"]), key=lambda cell: float(cell["achieved_per_s"]))
    traces.append({"type": "scatter", "mode": "lines", "name": "front", "x": [c["achieved_per_s"] for c in front],
                   "y": [c["p99_ns"] / 1e6 for c in front], "line": {"color": GREY, "width": 2, "dash": "dot"},
                   "hoverinfo": "skip"})  # fmt: skip
    best = result["best"]["configuration"]
    for place, load in enumerate(loads):
        cells = [cell for cell in shown if cell["load"] == load]
        traces.append({
            "type": "scatter", "mode": "markers", "name": load,
            "x": [c["achieved_per_s"] for c in cells], "y": [c["p99_ns"] / 1e6 for c in cells],
            "text": [html.escape(c["configuration"]) + _blocks(c) for c in cells],
            "marker": {"color": _COLORS[place % len(_COLORS)],
                       "size": [14 if c["configuration"] == best else 8 for c in cells],
                       "symbol": ["star" if c["configuration"] == best else "circle" for c in cells],
                       "opacity": [1 if c["meets"] else 0.45 for c in cells],
                       "line": {"color": RED, "width": [1.5 if c["front"] else 0 for c in cells]}},
            "hovertemplate": "%{text}<br>%{x:.4g} requests/s, P99 %{y:.4g} ms<extra>%{fullData.name}</extra>",
        })  # fmt: skip
    layout = _layout("achieved (requests/s)", "P99 latency from due (ms)")
    layout["yaxis"] |= _log([c["p99_ns"] / 1e6 for c in shown])
    return {"data": traces, "layout": layout | {"height": 560}}


def _blocks(cell: dict[str, Any]) -> str:
    each = [words.rate(value) for value in cell["each"]["achieved_per_s"] if value is not None]
    return f"<br>blocks: {', '.join(each)} requests/s"


def render_sweep(result: dict[str, Any]) -> str:
    """The page as text; it opens offline."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("loadgen.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template("sweep.html.j2").render(
        result=result, lines=conclusion(result), effects=effects(result), head=HEAD, library=library(),
        rows=[{"cell": cell, "figures": _cells(cell)} for cell in ranked(result)],
        figures=script_json({"plane": plane(result)}),
    )  # fmt: skip
