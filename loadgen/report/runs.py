"""The runs of a folder as a table, and a figure over time as text and as a page, with its change points."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, Any

from loadgen.analysis.changes import LEAST
from loadgen.analysis.history import History, Kind, Point, RunRow, Scale, Series, Shift, State, Value
from loadgen.analysis.slo import Verdict
from loadgen.analysis.words import amount
from loadgen.report import words
from loadgen.report.charts import BLUE, GREY, RED, _layout
from loadgen.report.page import Chart, Mood, Page, Table, render_page
from loadgen.report.table import Row, print_table
from loadgen.traffic.objective import DURATIONS, SHARES

if TYPE_CHECKING:
    from rich.console import Console

HEAD = [
    "P50",
    "P99",
    "95 %",
    "offered",
    "achieved",
    "failed",
    "valid",
    "objectives",
    "profile",
    "target",
    "run",
]
_WIDTH = 40  # of a line of the plot
_VERDICTS = {Verdict.PASS: "pass", Verdict.FAIL: "FAIL", Verdict.INCONCLUSIVE: "undecided", None: words.NONE}
_KINDS = {
    Kind.SWEEP: "a sweep",
    Kind.COMPARISON: "a comparison",
    Kind.CAPACITY: "a capacity search",
    Kind.DAMAGED: "damaged",
    Kind.OTHER: "no run",
}
_TINY = 1e-4  # a p-value below is not shown


def started(text: str | None) -> str:
    """2026-01-02 03:04:05, in UTC as run.json has it."""
    return words.NONE if text is None else text[:19].replace("T", " ")


def between(metric: str, one: Value) -> str:
    """The interval of a figure: 240 ms to 260 ms."""
    if one.low is None and one.high is None:
        return words.NONE
    if one.low is None or one.high is None:
        return (
            f"at least {words.figure(metric, one.low)}"
            if one.high is None
            else f"at most {words.figure(metric, one.high)}"
        )
    return f"{words.figure(metric, one.low)} to {words.figure(metric, one.high)}"


def _rate(value: float | None) -> str:
    return words.NONE if value is None else f"{words.rate(value)}/s"


def _cells(row: RunRow) -> list[str]:
    failed = f"{100 * row.failed / row.tried:.2g} %" if row.tried else words.NONE
    valid = ("yes" if row.valid else "NO") + (f", {', '.join(row.doubts)}" if row.doubts else "")
    if row.status != "finished":
        valid = f"{row.status}; {valid}"
    return [
        words.duration(row.p50.value),
        words.duration(row.p99.value),
        between("latency", row.p99),
        _rate(row.offered_per_s),
        _rate(row.achieved_per_s),
        failed,
        valid,
        _VERDICTS[row.verdict],
        row.profile or words.NONE,
        row.target or words.NONE,
        row.name,
    ]


def shift_words(one: Shift, metric: str) -> str:
    """+21 % (+17 to +25 %), p 0.0003."""
    if one.scale is Scale.RATIO:
        shift, low, high = (100 * (x - 1) for x in (one.shift, one.low, one.high))
        text = f"{shift:+.3g} % ({low:+.3g} to {high:+.3g} %)"
    elif metric in SHARES:
        text = f"{100 * one.shift:+.3g} points ({100 * one.low:+.3g} to {100 * one.high:+.3g})"
    else:
        text = f"{one.shift:+.3g} ({one.low:+.3g} to {one.high:+.3g})"
    changed = "; the profile's text changed too" if one.profile_changed else ""
    chance = f"p {one.p_value:.2g}" if one.p_value >= _TINY else f"p < {_TINY:f}".rstrip("0")
    return f"{text}, {chance}{changed}"


def shift_lines(history: History) -> list[str]:
    """The change points of every series, oldest first; a line that there is none."""
    changes = []
    for series in history.series:
        where = f"{series.profile} at {series.target}"
        changes += [
            f"change point: {history.figure} of {where} {shift_words(one, history.figure.metric)} from {one.run} "
            f"({started(one.started_at)} UTC) on"
            for one in series.shifts
        ]
    most = max(
        (sum(one.state is State.MEASURED for one in series.points) for series in history.series), default=0
    )
    if most < LEAST:
        return [
            f"fewer than {LEAST} valid runs of one profile and target: too few to look for a change of {history.figure}"
        ]
    return changes or [f"no change point in {history.figure}"]


def other_lines(history: History) -> list[str]:
    """What lies in the folder beside runs."""
    damaged = [f"{one.name}: damaged: {one.why}" for one in history.others if one.kind is Kind.DAMAGED]
    rest = [f"{one.name} ({_KINDS[one.kind]})" for one in history.others if one.kind is not Kind.DAMAGED]
    return damaged + ([f"not runs: {', '.join(rest)}"] if rest else [])


def print_history(history: History, console: Console) -> None:
    """The table, the figure of each series, change points, and what else is in the folder."""
    if history.runs:
        rows = [Row(started(row.started_at), _cells(row), dim=not row.valid) for row in history.runs]
        print_table(console, Row("started (UTC)", HEAD), rows, keep=3)
        for series in history.series:
            if len(series.points) > 1:
                _print_series(series, history, console)
    console.print()
    notes = [] if history.runs else [f"no runs in {history.folder}"]
    notes += shift_lines(history) if any(len(one.points) > 1 for one in history.series) else []
    for line in notes + other_lines(history):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _print_series(series: Series, history: History, console: Console) -> None:
    metric = history.figure.metric
    ends = [x for point in series.points for x in (point.value.value, point.value.low, point.value.high)]
    finite = [x for x in ends if x is not None and math.isfinite(x)]
    if not finite:
        return
    left, right = min(finite), max(finite)
    console.print()
    console.print(f"{history.figure} of {series.profile} at {series.target}", markup=False, highlight=False)
    ascii_only = console.options.ascii_only
    shifts = {one.place: one for one in series.shifts}
    for place, point in enumerate(series.points):
        if place in shifts:
            console.print(
                f"{'':19}  {'-' * 8} {shift_words(shifts[place], metric)}", markup=False, highlight=False
            )
        value = words.figure(metric, point.value.value) if point.state is not State.NO_VALUE else "no value"
        note = "  not valid" if point.state is State.NOT_VALID else ""
        line = f"{started(point.started_at):19}  {value:>8} {_plot(point.value, left, right, ascii_only=ascii_only)}{note}"
        console.print(
            line.rstrip(), markup=False, highlight=False, no_wrap=True, overflow="ignore", crop=False
        )


def _plot(one: Value, left: float, right: float, *, ascii_only: bool) -> str:
    """The interval as a line and the value as a dot in it."""
    if one.value is None or not math.isfinite(one.value):
        return " " * _WIDTH

    def column(x: float) -> int:
        return round((_WIDTH - 1) * (x - left) / (right - left)) if right > left else 0

    line, dot = ("-", "o") if ascii_only else ("\u2500", "\u25cf")
    cells = [" "] * _WIDTH
    low, high = (one.value if end is None else end for end in (one.low, one.high))
    for place in range(column(low), column(high) + 1):
        cells[place] = line
    cells[column(one.value)] = dot
    return "".join(cells)


def over_time(series: Series, history: History) -> dict[str, Any]:
    """The figure of each run at its start with its interval; change points as dashed lines."""
    metric = history.figure.metric
    scale, unit = (1e6, " (ms)") if metric in DURATIONS else (0.01, " (%)") if metric in SHARES else (1.0, "")
    traces = []
    for state, name, color, symbol in (
        (State.MEASURED, "run", BLUE, "circle"),
        (State.NOT_VALID, "not valid", GREY, "circle-open"),
    ):
        points = [point for point in series.points if point.state is state]
        if points:
            traces.append(
                _trace(points, name, color, scale) | {"marker": {"color": color, "symbol": symbol, "size": 8}}
            )
    layout = _layout("start of the run (UTC)", f"{history.figure}{unit}")
    layout["xaxis"] |= {"type": "date"}
    layout["shapes"] = [
        {
            "type": "line",
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "x0": one.started_at,
            "x1": one.started_at,
            "line": {"color": RED, "dash": "dash"},
        }
        for one in series.shifts
    ]
    layout["annotations"] = [
        {
            "x": one.started_at,
            "y": 1,
            "yref": "paper",
            "yanchor": "bottom",
            "showarrow": False,
            "font": {"color": RED},
            "text": html.escape(shift_words(one, metric).partition(",")[0]),
        }
        for one in series.shifts
    ]
    return {"data": traces, "layout": layout | {"height": 420, "showlegend": len(traces) > 1}}


def _trace(points: list[Point], name: str, color: str, scale: float) -> dict[str, Any]:
    ends = [(point.value.value or 0.0, point.value.low, point.value.high) for point in points]
    return {
        "type": "scatter",
        "mode": "lines+markers" if name == "run" else "markers",
        "line": {"width": 1},
        "name": name,
        "x": [point.started_at for point in points],
        "y": [value / scale for value, _, _ in ends],
        "error_y": {
            "type": "data",
            "array": [0.0 if high is None else (high - value) / scale for value, _, high in ends],
            "arrayminus": [0.0 if low is None else (value - low) / scale for value, low, _ in ends],
            "color": color,
            "thickness": 1,
        },
        "text": [html.escape(point.run) for point in points],
        "hovertemplate": "%{text}: %{y:.4g}<extra></extra>",
    }


def render_history(history: History) -> str:
    """The page as text; it opens offline."""
    shifted = any(series.shifts for series in history.series)
    charts = [
        Chart(
            f"series-{place}",
            f"{history.figure}: {series.profile} at {series.target}",
            "Each point is a run with its 95 % interval; dashed: a change point with its shift. Hollow: not valid, and in no level.",
            over_time(series, history),
        )
        for place, series in enumerate(history.series)
    ]
    rows = [[started(row.started_at), *_cells(row)] for row in history.runs]
    page = Page(
        title=f"Runs of {history.folder}",
        badge="changed" if shifted else "no change found",
        mood=Mood.UNSURE if shifted else Mood.GOOD,
        subtitle=f"{amount(len(rows), 'run')} · {history.figure}",
        lines=[*shift_lines(history), *other_lines(history)],
        charts=charts,
        tables=[Table("Runs", ["started (UTC)", *HEAD], rows)],
    )
    return render_page(page)
