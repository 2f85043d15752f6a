"""The result as one page that opens offline: accuracy against latency, throughput against memory.

It must not compute what the result does not hold.
"""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.report.html import library, script_json
from loadgen.units import show_bytes

_COLOURS = ("#2563eb", "#ea7317", "#15803d", "#dc2626", "#7c3aed", "#0891b2", "#a16207", "#94a3b8")
_SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "star", "x")


def page(told: Mapping[str, Any]) -> str:
    """The page's text; `told` is what result.summary gave."""
    title = html.escape(f"{told['model']['label']}: {told['asked']['mode']} on {told['device']['name']}")
    figures = {"accuracy": accuracy_latency(told["cells"]), "memory": memory_throughput(told["cells"])}
    failed = sorted({(c["runtime"], c["precision"], c["error"]) for c in told["cells"] if c["error"]})
    notes = "".join(f"<li>{html.escape(f'{r}, {p}: {why}')}</li>" for r, p, why in failed)
    notes += "".join(
        f"<li>{html.escape(_growth(one))}</li>" for one in told["memory_growth"] if one["linear"] is False
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<style>body{{font:15px system-ui,sans-serif;margin:2rem auto;max-width:70rem}}.plot{{height:30rem}}</style></head>
<body><h1>{title}</h1>
<p>{"" if told["finished"] else "Interrupted: the cells below are those that were finished. "}Medians of one call;
warm-up is in no figure.  A point is a batch and a length.</p>
<h2>Accuracy against latency</h2><div class="plot" id="accuracy"></div>
<h2>Throughput against peak memory</h2><div class="plot" id="memory"></div>
<ul>{notes}</ul>
<script>{library()}</script>
<script>const figures = {script_json(figures)};
for (const [id, figure] of Object.entries(figures)) Plotly.newPlot(id, figure.data, figure.layout, {{responsive: true}});
</script></body></html>
"""


def accuracy_latency(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """1 - cosine to FP32 against the median; what agrees to the last bit stands at the axis' foot."""
    data = [
        _trace(
            name,
            at,
            group,
            [c["median_ns"] / 1e6 for c in group],
            [max(1 - c["cosine"], 1e-9) for c in group],
        )
        for at, (name, group) in enumerate(_engines(cells, "cosine"))
    ]
    return _figure(data, "median of a call, ms", "1 - cosine to fp32 (worst row)", "log")


def memory_throughput(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    data = [
        _trace(name, at, group, [c["peak_bytes"] / 2**20 for c in group], [c["samples_per_s"] for c in group])
        for at, (name, group) in enumerate(_engines(cells, "peak_bytes"))
    ]
    return _figure(data, "peak memory, MiB", "samples/s", "log")


def _engines(cells: Sequence[Mapping[str, Any]], needs: str) -> list[tuple[str, list[Mapping[str, Any]]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells:
        if cell["median_ns"] and cell[needs] is not None:
            found.setdefault(f"{cell['runtime']} {cell['precision']}", []).append(cell)
    return list(found.items())


def _trace(
    name: str, at: int, group: Sequence[Mapping[str, Any]], x: Sequence[float], y: Sequence[float]
) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "markers", "name": name, "x": list(x), "y": list(y),
        "text": [f"batch {c['batch']}, length {c['length']}" for c in group],
        "hovertemplate": "%{text}<br>%{x:.4g}, %{y:.4g}",
        "marker": {"size": 9, "color": _COLOURS[at % len(_COLOURS)], "symbol": _SYMBOLS[at % len(_SYMBOLS)]},
    }  # fmt: skip


def _figure(data: list[dict[str, Any]], x: str, y: str, kind: str) -> dict[str, Any]:
    axes = {"xaxis": {"title": {"text": x}, "type": "log"}, "yaxis": {"title": {"text": y}, "type": kind}}
    return {"data": data, "layout": {**axes, "margin": {"t": 20}, "hovermode": "closest"}}


def _growth(one: Mapping[str, Any]) -> str:
    steps = ", ".join(show_bytes(max(0, slope)) for slope in one["bytes_per_row"])
    return (
        f"{one['runtime']}, {one['precision']}, length {one['length']}: memory grows faster than the batch from "
        f"{one['at_batch']} on (a further row costs {steps})"
    )
