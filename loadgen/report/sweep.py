"""A sweep's result as text and as one page: the table, throughput against latency with its front, the verdict."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from loadgen.analysis.slo import Verdict
from loadgen.report import words
from loadgen.report.charts import BLUE, GREEN, GREY, ORANGE, RED, Figure, _layout, _log
from loadgen.report.html import library, script_json
from loadgen.report.table import Row, print_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

_COLORS = (BLUE, ORANGE, GREEN, "#7c3aed", "#0891b2", "#be185d", "#65a30d", GREY)
_SAID = {
    "clear": "clear",
    "close": "close: another may be better, but hardly by more than is said",
    "only": "nothing to compare with",
    "inconclusive": "inconclusive",
    "none": "none meets the objectives",
}

ONE_BLOCK = "one block fails it although all of them together pass"
_MOST = 0.99  # as a probability in words: more than that no few blocks tell

_SEEN = {  # doubts that say why a cell is what it is
    "idle_while_pending": "the server sat idle with requests waiting (a queue policy or priorities can do that)",
    "rejected": "the server's queue was full",
    "failures": "requests failed",
}


def conclusion(result: dict[str, Any]) -> list[str]:
    """The verdict in lines of words."""
    best, blocks = result["best"], result["blocks"]
    lines = [_headline(result)] if blocks["finished"] else ["nothing was measured yet"]
    if best["leading"] is not None:
        lines += [_trust(result), *_judged(result, best["leading"])]
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


def _headline(result: dict[str, Any]) -> str:
    """What is best; where nothing is known to meet the objectives that first, and then what leads all the same."""
    best = result["best"]
    wish = f"best in {result['best_in']}" + (
        f", with {', '.join(result['objectives'])}" if result["objectives"] else ""
    )
    of = f"of {len(result['configurations'])} configurations"
    if best["configuration"] is not None:
        return f"{wish}: {best['configuration']}"
    none = "none" if result["blocks"]["finished"] == result["blocks"]["planned"] else "so far none"
    if best["leading"] is None:
        return f"{wish}: {none} {of}"
    if len(result["configurations"]) == 1:
        may = "may or may not meet" if best["compared"] == Verdict.INCONCLUSIVE else "does not meet"
        return f"{wish}: {best['leading']} {may} the objectives"
    if best["compared"] == Verdict.INCONCLUSIVE:
        return (
            f"{wish}: undecided, none {of} is known to meet the objectives; "
            f"of those that may, {best['leading']} leads"
        )
    return f"{wish}: {none} {of} meets the objectives; without them {best['leading']} leads"


def _trust(result: dict[str, Any]) -> str:
    """How far the comparison can be trusted, and on what that rests."""
    best, blocks = result["best"], result["blocks"]
    if best["probability"] is None:
        among = {
            Verdict.PASS: " that meets the objectives",
            Verdict.INCONCLUSIVE: " that may meet the objectives",
        }
        alone = len(result["configurations"]) == 1
        if best["verdict"] == "only" or alone:
            which = "the only configuration" if alone else f"the only one{among.get(best['compared'], '')}"
            return f"how sure: not compared, it is {which}"
        return "how sure: unknown; at least two rounds are needed to tell noise from difference"
    share = best["probability"]
    said = "over 99%" if share > _MOST else "under 1%" if share < 1 - _MOST else f"{share:.0%}"
    worse = (
        f"at most {best['worse_by_at_most']:.1%} worse than the true best in 95 % of what the noise allows"
    )
    verdict = f": {_SAID[best['verdict']]}; best" if best["configuration"] else " that it leads: best"
    return (
        f"how sure{verdict} of those compared with probability {said}, {worse}. This rests on "
        f"{best['rounds']} blocks of {words.duration(blocks['block_ns'])} a cell, taken as independent and equally noisy; "
        "another day or machine is not in it"
    )


def _judged(result: dict[str, Any], name: str) -> list[str]:
    """The objectives of one configuration, load by load, as judged on all requests of a cell."""
    return [
        f"{row['verdict']} at {cell['load']}: {judged_words(row)}"
        for cell in result["cells"]
        if cell["configuration"] == name
        for row in cell["objectives"]
    ]


def judged_words(row: dict[str, Any]) -> str:
    """One objective of a cell: what was observed, the interval, how many requests, what the blocks say one by one."""
    between = f" ({told})" if (told := words.interval(row)) else ""
    blocks = f", blocks {' '.join(row['blocks'])}" if len(row["blocks"]) > 1 else ""
    notes = [words.note(row), ONE_BLOCK if row.get("against") else ""]
    note = "".join(f"; {said}" for said in notes if said)
    return f"{row['objective']}: observed {words.observed(row)}{between}, n {row['n']}{blocks}{note}"


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
                + ("" if sure is None else f" (best with probability {min(sure, _MOST):.0%})")
            )
    return lines


def ranked(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells, best configuration first."""
    scores = {row["name"]: row["score"] or 0 for row in result["configurations"]}
    return sorted(result["cells"], key=lambda cell: -scores[cell["configuration"]])


def print_sweep(result: dict[str, Any], console: Console) -> None:
    """The table and the verdict."""
    rows, last = [], None
    names, deciding = columns(result)
    for cell in ranked(result):
        name = f"{cell['configuration']} \u00b7 {cell['load']}"
        rows.append(
            Row(
                name,
                figures(cell, names),
                dim=cell["verdict"] == Verdict.FAIL,
                apart=last not in (None, cell["configuration"]),
            )
        )
        last = cell["configuration"]
    print_table(console, Row(f"{result['name']} (seed {result['seed']})", names), rows, keep=deciding)
    console.print()
    for line in [*conclusion(result), *(f"effect of {line}" for line in effects(result))]:
        console.print(line, markup=False, highlight=False)


_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "verdict": lambda cell: cell["verdict"] or words.NONE,
    "requests/s": lambda cell: words.rate(cell["achieved_per_s"]),
    "P99": lambda cell: words.duration(cell["p99_ns"]),
    "P50": lambda cell: words.duration(cell["p50_ns"]),
    "n": lambda cell: str(cell["n"]),
    "blocks": lambda cell: str(cell["blocks"]),
    "mean batch": lambda cell: words.rate(cell["mean_batch"]),
    "queue": lambda cell: words.duration(cell["queue_ns"]),
    "compute": lambda cell: words.duration(cell["compute_ns"]),
    "front": lambda cell: "front" if cell["front"] else "",
}


def columns(result: dict[str, Any]) -> tuple[list[str], int]:
    """The names of the columns, and how many of them decide: the verdict, and what the best is best in."""
    best = {"latency p99": "P99", "latency p50": "P50"}.get(result["best_in"], result["best_in"])
    first = ["verdict", best]
    return [*first, *(name for name in _COLUMNS if name not in first)], len(first)


def figures(cell: dict[str, Any], names: list[str]) -> list[str]:
    """A cell's figures in these columns."""
    return [_COLUMNS[name](cell) if name in _COLUMNS else _best_in(cell, name) for name in names]


def _best_in(cell: dict[str, Any], name: str) -> str:
    return words.rate(cell["best_in"]) if name.endswith("/s") else words.duration(cell["best_in"])


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
                       "symbol": ["star" if c["configuration"] == best else "circle-open" if c["verdict"] == Verdict.INCONCLUSIVE
                                  else "circle" for c in cells],
                       "opacity": [0.45 if c["verdict"] == Verdict.FAIL else 1 for c in cells],
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
    names, _ = columns(result)
    return environment.get_template("sweep.html.j2").render(
        result=result, lines=conclusion(result), effects=effects(result), head=names, library=library(),
        rows=[{"cell": cell, "figures": figures(cell, names), "judged": [judged_words(row) for row in cell["objectives"]]}
              for cell in ranked(result)],
        figures=script_json({"plane": plane(result)}),
    )  # fmt: skip
