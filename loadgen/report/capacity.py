"""A capacity search as text and as a page: the answer, the knee, every probe."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from loadgen.analysis.capacity import Answer
from loadgen.report import words
from loadgen.report.charts import BLUE, GREEN, GREY, ORANGE, RED, _layout, _log
from loadgen.report.page import Chart, Mood, Page, Table, render_page
from loadgen.report.table import Row, print_table
from loadgen.traffic.objective import DURATIONS, parse_objective

if TYPE_CHECKING:
    from rich.console import Console

_MOODS = {Answer.FOUND: Mood.GOOD, Answer.AT_LEAST: Mood.GOOD, Answer.BELOW: Mood.BAD}
_STEPS = 60  # of a curve


def load(value: float | None, unit: str) -> str:
    """A load with its unit: 212/s, 14 users."""
    if value is None:
        return words.NONE
    if unit == "users":
        return f"{value:.0f} user{'' if value == 1 else 's'}"
    return f"{words.rate(value)}/s"


def between(capacity: dict[str, Any]) -> str:
    """The interval of a capacity: 205 to 219."""
    low, high = (None if end is None else load(end, "") for end in (capacity["low"], capacity["high"]))
    if capacity["unit"] == "users":
        low, high = (None if end is None else f"{end:.0f}" for end in (capacity["low"], capacity["high"]))
    low, high = (None if end is None else end.removesuffix("/s") for end in (low, high))
    return f"{low or 'unbounded'} to {high or 'unbounded'}"


def headline(result: dict[str, Any]) -> str:
    """The answer in one line: 212/s (205 to 219) at latency p99 < 50ms."""
    capacity, unit = result["capacity"], result["capacity"]["unit"]
    wish = " and ".join(result["objectives"])
    answer = Answer(result["answer"])
    if answer is Answer.AT_LEAST:
        return f"at least {load(capacity['value'], unit)} at {wish}: the highest load that was tried meets it"
    if answer is Answer.BELOW:
        return f"below {load(capacity['high'], unit)} at {wish}: the lowest load that was tried misses it"
    if answer is Answer.CLIENT:
        return f"not known at {wish}: the client was the limit, not the server; use --realtime where they share cores, --workers, or another machine"
    if capacity["value"] is None:
        ends = [f"above {load(capacity['low'], unit)}"] if capacity["low"] is not None else []
        ends += [f"below {load(capacity['high'], unit)}"] if capacity["high"] is not None else []
        return f"undecided at {wish}: {' and '.join(ends) or 'nothing is known'}"
    said = f"{load(capacity['value'], unit)} ({between(capacity)}) at {wish}"
    return (
        said
        if answer is Answer.FOUND
        else f"about {said}: not yet within {100 * result['precision']:.3g} % of it"
    )


def lines(result: dict[str, Any]) -> list[str]:
    """What is said below the answer."""
    seconds, probes = result["load_seconds"], result["probes"]
    capacity = result["capacity"]
    bounded = capacity["value"] is not None and None not in (capacity["low"], capacity["high"])
    sure = "; in brackets: 95 % interval" if bounded else ""
    found = [f"{len(probes)} probe{'' if len(probes) == 1 else 's'}, {seconds:.0f} s of load{sure}"]
    if len(result["objectives"]) > 1 and result["limited_by"]:
        found.append(f"limited by {result['limited_by']}")
    if result["answer"] == Answer.UNDECIDED:
        found.append(f"loadgen capacity resume {result['path']} --within {2 * math.ceil(seconds)}s goes on")
    if result["status"] == "interrupted":
        found.append(f"interrupted; loadgen capacity resume {result['path']} goes on")
    codes = {code for probe in probes for code in probe["doubts"]}
    return found + [said for code, said in _SAID.items() if code in codes]


_SAID = {
    "failures": "requests failed in some probes: loadgen report of its folder says why",
    "client_bound": "the client was at its limit in some probes",
    "late_sends": "some probes were sent late by the client: its own delay is in the latencies",
    "outage": "the server went away in a probe",
}


def _head(result: dict[str, Any]) -> list[str]:
    return ["time", "n", *(_name(text) for text in result["objectives"]), "bad", "note"]


def _name(text: str) -> str:
    return str(parse_objective(text).figure)


def _cells(probe: dict[str, Any]) -> list[str]:
    seen = probe["observed"]
    worst = max(seen, key=lambda one: one["bad"] / max(1, one["n"]))
    bad = f"{100 * worst['bad'] / worst['n']:.2g} %" if worst["n"] else words.NONE
    return [
        f"{probe['seconds']:.0f} s",
        str(seen[0]["n"]),
        *(_figure(one) for one in seen),
        bad,
        "saturated" if probe["saturated"] else "",
    ]


def _figure(one: dict[str, Any]) -> str:
    return words.figure(one["metric"], one["value"]) if one["value"] is not None else "no answer"


def _load_of(probe: dict[str, Any]) -> float:
    return float(probe["users"] if "users" in probe else probe["rate"])


def print_capacity(result: dict[str, Any], console: Console) -> None:
    """The probes by load, then the answer."""
    unit = result["capacity"]["unit"]
    rows = [
        Row(load(_load_of(probe), unit), _cells(probe), dim=probe["saturated"])
        for probe in sorted(result["probes"], key=_load_of)
    ]
    print_table(console, Row(result["name"], _head(result)), rows, keep=2)
    console.print()
    for line in [headline(result), *lines(result)]:
        console.print(line, markup=False, highlight=False)


def knee(result: dict[str, Any], place: int) -> dict[str, Any]:
    """One objective's figure against the load, with its intervals, its limit and the capacity."""
    objective, unit = parse_objective(result["objectives"][place]), result["capacity"]["unit"]
    scale = 1e6 if objective.metric in DURATIONS else 0.01
    probes = [p for p in sorted(result["probes"], key=_load_of) if p["observed"][place]["value"] is not None]
    x, seen = [_load_of(p) for p in probes], [p["observed"][place] for p in probes]
    y = [one["value"] / scale for one in seen]
    above = [0.0 if one["high"] is None else (one["high"] - one["value"]) / scale for one in seen]
    below = [0.0 if one["low"] is None else (one["value"] - one["low"]) / scale for one in seen]
    limit = objective.threshold / scale
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter", "mode": "markers", "name": "probe", "x": x, "y": y,
            "error_y": {"type": "data", "array": above, "arrayminus": below, "color": GREY},
            "text": [f"{p['seconds']:.0f} s, n {o['n']}" for p, o in zip(probes, seen, strict=True)],
            "marker": {"color": [RED if value > limit else BLUE for value in y],
                       "size": [6 + 4 * math.log10(max(1.0, p["seconds"])) for p in probes]},
            "hovertemplate": f"%{{x:.4g}} {unit}: %{{y:.4g}}<br>%{{text}}<extra></extra>",
        }
    ]  # fmt: skip
    layout = _layout(unit, f"{objective.figure} ({'ms' if objective.metric in DURATIONS else '%'})")
    if all(value > 0 for value in y):
        layout["yaxis"] |= _log([*y, limit])
    layout["shapes"] = [_line(limit, ORANGE), *_band(result["capacity"])]
    return {"data": traces, "layout": layout | {"height": 460, "showlegend": False}}


def _line(at: float, color: str) -> dict[str, Any]:
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": at,
        "y1": at,
        "line": {"color": color, "dash": "dash"},
    }


def _band(capacity: dict[str, Any]) -> list[dict[str, Any]]:
    if capacity["value"] is None:
        return []
    low, high = (capacity["value"] if end is None else end for end in (capacity["low"], capacity["high"]))
    shape = {"yref": "paper", "y0": 0, "y1": 1}
    return [
        {
            "type": "rect",
            **shape,
            "x0": low,
            "x1": high,
            "fillcolor": GREEN,
            "opacity": 0.15,
            "line": {"width": 0},
        },
        {"type": "line", **shape, "x0": capacity["value"], "x1": capacity["value"], "line": {"color": GREEN}},
    ]


def shares(result: dict[str, Any], place: int) -> dict[str, Any]:
    """The share of bad requests against the load, the fitted line, and the share that is allowed."""
    unit, line = result["capacity"]["unit"], result["lines"][place]
    probes = [p for p in sorted(result["probes"], key=_load_of) if p["observed"][place]["bad"]]
    x = [_load_of(p) for p in probes]
    y = [100 * p["observed"][place]["bad"] / p["observed"][place]["n"] for p in probes]
    objective = parse_objective(result["objectives"][place])
    allowed = 100 * (1 - objective.quantile) if objective.quantile is not None else 100 * objective.threshold
    if objective.metric == "goodput":
        allowed = 100 - allowed
    traces: list[dict[str, Any]] = [
        {"type": "scatter", "mode": "markers", "name": "probe", "x": x, "y": y, "marker": {"color": BLUE},
         "hovertemplate": f"%{{x:.4g}} {unit}: %{{y:.3g}} %<extra></extra>"}
    ]  # fmt: skip
    if line is not None and x:
        low, high = min(x), max(x)
        at = [low + (high - low) * i / _STEPS for i in range(_STEPS + 1)]
        fit = [allowed * math.exp(line["intercept"] + line["slope"] * (v - line["middle"])) for v in at]
        kept = [(a, f) for a, f in zip(at, fit, strict=True) if allowed / 10 <= f <= 10 * allowed]
        traces.append({"type": "scatter", "mode": "lines", "name": "fit", "x": [a for a, _ in kept],
                       "y": [f for _, f in kept], "line": {"color": GREY}, "hoverinfo": "skip"})  # fmt: skip
    layout = _layout(unit, "bad requests (%)")
    layout["yaxis"] |= _log([*(value for value in y if value > 0), allowed])
    layout["shapes"] = [_line(allowed, ORANGE), *_band(result["capacity"])]
    return {"data": traces, "layout": layout | {"height": 360, "showlegend": False}}


def render_capacity(result: dict[str, Any]) -> str:
    """The page as text; it opens offline."""
    charts = []
    for place, text in enumerate(result["objectives"]):
        charts += [
            Chart(f"knee-{place}", f"{_name(text)} against load", "Each point is a probe with its 95 % interval, larger for longer ones; dashed: the limit; green: the capacity with its interval.", knee(result, place)),
            Chart(f"share-{place}", f"Requests that miss {text}", "The line that was fitted near the limit; dashed: the share that is allowed.", shares(result, place)),
        ]  # fmt: skip
    unit = result["capacity"]["unit"]
    rows = [[load(_load_of(p), unit), *_cells(p)] for p in sorted(result["probes"], key=_load_of)]
    page = Page(
        title=f"{result['name']}: capacity of {result['target']}",
        badge=result["answer"].replace("_", " "),
        mood=_MOODS.get(Answer(result["answer"]), Mood.UNSURE),
        subtitle=f"{result['status']} · {len(rows)} probes · {result['load_seconds']:.0f} s of load",
        lines=[headline(result), *lines(result)],
        charts=charts,
        tables=[Table("Probes", [unit, *_head(result)], rows)],
    )
    return render_page(page)
