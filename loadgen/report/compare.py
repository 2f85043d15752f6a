"""A comparison as text and as a page: what changed, by how much, and what to keep in mind."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, Any

from loadgen.analysis.comparability import Aspect, Difference, Severity
from loadgen.analysis.compare import Basis, Change, Compared, Comparison, Conclusion, Pair, Scale
from loadgen.analysis.words import amount
from loadgen.report import words
from loadgen.report.charts import BLUE, GREEN, GREY, RED, _layout
from loadgen.report.page import Chart, Mood, Page, Table, render_page
from loadgen.report.table import Row, print_table
from loadgen.traffic.objective import SHARES

if TYPE_CHECKING:
    from rich.console import Console

    from loadgen.analysis.compare import SideFacts
    from loadgen.analysis.intervals import Estimate

HEAD = ["A", "B", "ratio B / A", "95 %", "difference B - A", "95 %", "change"]
_LEAST = 0.005  # percent: less is none
_LARGE = 2.0  # ratios from here on are written as such, smaller ones in percent
_SAID = {
    Change.WORSE: "worse",
    Change.BETTER: "better",
    Change.SMALL: "small: significant, but within the threshold",
    Change.NO_DIFFERENCE: "no difference",
    Change.UNDECIDED: "undecided",
    Change.NOT_JUDGED: "not judged",
}
_RESTS = {
    Basis.REQUESTS: "requests as independent of those of the other side",
    Basis.PAIRED_REQUESTS: "the same requests on both sides (one seed)",
    Basis.ROUNDS: "the spread over rounds",
}
_MOODS = {
    Conclusion.NOT_WORSE: Mood.GOOD,
    Conclusion.WORSE: Mood.BAD,
    Conclusion.UNDECIDED: Mood.UNSURE,
    Conclusion.NOT_COMPARABLE: Mood.UNSURE,
}
_LEVELS = {Severity.REFUSE: "not comparable", Severity.WARN: "warning", Severity.NOTE: "note"}
_WHAT = {
    Aspect.PROFILE: "profiles differ in",
    Aspect.SEED: "seeds differ",
    Aspect.TARGET: "targets differ",
    Aspect.MODEL: "servers differ in",
    Aspect.MACHINE: "client machines differ in",
    Aspect.CLIENT: "clients differ in",
    Aspect.CLIENT_LIMIT: "the client added to latency",
    Aspect.NOT_VALID: "not valid",
    Aspect.INTERRUPTED: "cut short",
}
_LONGEST = 100  # letters of a value
_OF_ONE_SIDE = (Aspect.CLIENT_LIMIT, Aspect.NOT_VALID)
_NAMED = (Aspect.PROFILE, Aspect.MODEL, Aspect.MACHINE, Aspect.CLIENT)


def letter(place: int) -> str:
    """Of a side: A, B, C."""
    return chr(ord("A") + place)


def ratio(value: float | None) -> str:
    """+10.2 %, -3 %, 24.5x."""
    if value is None or not math.isfinite(value):
        return words.NONE
    if value >= _LARGE or value <= 1 / _LARGE:
        return f"{value:.3g}x"
    percent = 100 * (value - 1)
    return f"{0.0 if abs(percent) < _LEAST else percent:+.3g} %"


def signed(metric: str, value: float | None) -> str:
    """A difference in the figure's unit: +1.2 ms, -0.3 points."""
    if value is None:
        return words.NONE
    sign = "-" if value < 0 else "+"
    if math.isinf(value):
        return f"{sign}infinite"
    if metric in SHARES:
        return f"{100 * value:+.2g} points"
    return f"{sign}{words.figure(metric, abs(value))}"


def _between(low: str, high: str) -> str:
    if words.NONE in (low, high):
        return "unbounded" if low == high else f"at least {low}" if high == words.NONE else f"at most {high}"
    return f"{low} to {high}"


def _value(metric: str, one: Estimate) -> str:
    if one.value is not None and math.isinf(one.value):
        return "no answer"
    return words.figure(metric, one.value)


def cells(one: Compared) -> list[str]:
    """A figure in the columns of HEAD."""
    metric, effect = one.figure.metric, one.effect
    facts = effect.basis is Basis.NONE
    by, ends = effect.ratio, effect.difference
    return [
        _value(metric, one.a),
        _value(metric, one.b),
        ratio(by.value),
        words.NONE if facts or by.value is None else _between(ratio(by.low), ratio(by.high)),
        signed(metric, ends.value),
        words.NONE
        if facts or ends.value is None
        else _between(signed(metric, ends.low), signed(metric, ends.high)),
        _SAID[one.change].partition(":")[0],
    ]


def _brief(one: Compared) -> str:
    """Latency p50 +10 % (+8.1 % to +12 %)."""
    effect = one.effect
    if one.scale is Scale.RATIO:
        return f"{one.figure} {ratio(effect.ratio.value)} ({_between(ratio(effect.ratio.low), ratio(effect.ratio.high))})"
    metric, found = one.figure.metric, effect.difference
    return f"{one.figure} {signed(metric, found.value)} ({_between(signed(metric, found.low), signed(metric, found.high))})"


def headline(pair: Pair, name: str) -> str:
    """What became of the figures, worst first."""
    if pair.refused:
        return f"{name} is not compared with A: --force compares all the same"
    parts = []
    for change in (Change.WORSE, Change.BETTER, Change.SMALL):
        mine = [_brief(one) for one in pair.figures if one.change is change]
        if mine:
            parts.append(f"{_SAID[change].partition(':')[0]}: {'; '.join(mine)}")
    if not parts:
        parts.append("no figure differs" if pair.judged else "nothing could be judged")
    rest = {change: sum(one.change is change for one in pair.figures) for change in Change}
    parts += [f"{rest[change]} {said}" for change, said in ((Change.NO_DIFFERENCE, "without a difference"),
              (Change.UNDECIDED, "undecided"), (Change.NOT_JUDGED, "not judged")) if rest[change]]  # fmt: skip
    return f"{name} against A: {'; '.join(parts)}"


def undecided_lines(pair: Pair) -> list[str]:
    """What would decide the undecided figures."""
    rows = [one for one in pair.figures if one.change is Change.UNDECIDED]
    times = [f"{one.figure} {one.more:.2g}" for one in rows if one.more is not None]
    never = [str(one.figure) for one in rows if one.more is None]
    found = (
        [f"undecided; with so many times as much data probably decided: {', '.join(times)}"] if times else []
    )
    return found + (
        [f"undecided, and no run of reasonable length decides: {', '.join(never)}"] if never else []
    )


def difference_line(one: Difference, name: str) -> str:
    """A difference in conditions in words; of a doubt only which one: the run's own report has its text."""
    level, what = _LEVELS[one.severity], _WHAT[one.aspect]
    if one.aspect in _OF_ONE_SIDE:
        who = " and ".join(side for side, text in (("A", one.a), (name, one.b)) if text is not None)
        return f"{level}: {who}: {what} ({one.what.replace('_', ' ')}); loadgen report tells more"
    key = f" {one.what}" if one.aspect in _NAMED else ""
    values = "; ".join(f"{side}: {_short(value)}" for side, value in (("A", one.a), (name, one.b)))
    return f"{level}: {what}{key} ({values})"


def _short(value: str | None) -> str:
    text = value or words.NONE
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def lines(comparison: Comparison) -> list[str]:
    """The verdict of each pair, what speaks against comparing it, and what the words rest on."""
    found = []
    for place, pair in enumerate(comparison.pairs, 1):
        found.append(headline(pair, letter(place)))
        found += undecided_lines(pair)
        found += [difference_line(one, letter(place)) for one in pair.differences]
    judged = sum(pair.judged for pair in comparison.pairs)
    if not judged:
        return found
    bases = dict.fromkeys(one.effect.basis for pair in comparison.pairs for one in pair.figures)
    rests = [said for basis, said in _RESTS.items() if basis in bases]
    rounds = f" of {comparison.rounds}" if comparison.rounds and Basis.ROUNDS in bases else ""
    found.append(
        f"{amount(judged, 'figure')} judged: a change counts when it is significant among all of a pair (Holm, 5 %) and more "
        f"than {100 * comparison.worth:g} % (of shares {100 * comparison.worth_of_shares:g} points); each interval alone is "
        f"95 %, from {', '.join(rests)}{rounds}"
    )
    return found


def print_comparison(comparison: Comparison, console: Console) -> None:
    """The sides, a table of each pair, the verdict."""
    for place, side in enumerate(comparison.sides):
        console.print(side_line(place, side), markup=False, highlight=False)
    for place, pair in enumerate(comparison.pairs, 1):
        if pair.figures:
            rows = [Row(str(one.figure), _ordered(cells(one))) for one in pair.figures]
            head = [letter(place) if name == "B" else name.replace("B", letter(place)) for name in HEAD]
            print_table(console, Row("", _ordered(head)), rows, keep=3)
    console.print()
    for line in lines(comparison):
        console.print(line, markup=False, highlight=False)


def _ordered(row: list[str]) -> list[str]:
    """The change first: a narrow terminal drops columns from the right."""
    return [row[-1], *row[2:4], *row[:2], *row[4:6]]


def side_line(place: int, side: SideFacts) -> str:
    """A: its name, and of how many runs and requests."""
    return f"{letter(place)}: {side.name} ({amount(side.runs, 'run')}, {amount(side.requests, 'request')})"


def quantile_chart(pair: Pair) -> dict[str, Any]:
    """The difference of latency at every quantile, with its interval."""
    x = [100 * (1 - point.q) for point in pair.curve]
    value, low, high = (
        [
            None if (end := getattr(p.difference, key)) is None or math.isinf(end) else end / 1e6
            for p in pair.curve
        ]
        for key in ("value", "low", "high")
    )
    hidden = {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    text = [f"P{100 * point.q:g}" for point in pair.curve]
    traces: list[dict[str, Any]] = [
        {**hidden, "y": low},
        {**hidden, "y": high, "fill": "tonexty", "fillcolor": "rgba(37,99,235,0.15)"},
        {"type": "scatter", "mode": "lines+markers", "name": "difference", "x": x, "y": value, "text": text,
         "line": {"color": BLUE}, "hovertemplate": "%{text}: %{y:.4g} ms<extra></extra>"},
    ]  # fmt: skip
    layout = _layout("share of requests that are slower (%)", "difference of latency (ms)")
    marks = {90: "90 (P10)", 50: "50 (P50)", 10: "10 (P90)", 1: "1 (P99)", 0.1: "0.1 (P99.9)"}
    layout["xaxis"] |= {
        "type": "log",
        "autorange": "reversed",
        "tickvals": list(marks),
        "ticktext": list(marks.values()),
    }
    layout["yaxis"] |= {"zeroline": True, "zerolinecolor": GREY}
    return {"data": traces, "layout": layout | {"height": 420, "showlegend": False}}


def ratio_chart(pair: Pair, worth: float) -> dict[str, Any]:
    """The ratio of each figure with its interval, and the threshold around 1."""
    shown = [one for one in pair.figures if one.scale is Scale.RATIO and one.effect.ratio.value][::-1]
    colors = {Change.WORSE: RED, Change.BETTER: GREEN}
    found = [one.effect.ratio for one in shown]
    values = [one.value or 1.0 for one in found]
    above = [(one.high or value) - value for one, value in zip(found, values, strict=True)]
    below = [value - (one.low or value) for one, value in zip(found, values, strict=True)]
    trace = {
        "type": "scatter", "mode": "markers", "x": values, "y": [html.escape(str(one.figure)) for one in shown],
        "error_x": {"type": "data", "array": above, "arrayminus": below, "color": GREY},
        "marker": {"size": 9, "color": [colors.get(one.change, BLUE) for one in shown]},
        "hovertemplate": "%{y}: %{x:.4g}<extra></extra>",
    }  # fmt: skip
    layout = _layout("ratio (1: no difference)", "")
    layout["yaxis"]["type"] = "category"
    layout["shapes"] = [
        {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "x0": 1 / (1 + worth), "x1": 1 + worth, "fillcolor": GREY,
         "opacity": 0.2, "line": {"width": 0}},
        {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": 1, "x1": 1, "line": {"color": GREY, "dash": "dash"}},
    ]  # fmt: skip
    return {"data": [trace], "layout": layout | {"height": 120 + 34 * len(shown), "showlegend": False}}


def render_comparison(comparison: Comparison) -> str:
    """The page as text; it opens offline."""
    charts, tables = [], []
    for place, pair in enumerate(comparison.pairs, 1):
        name = letter(place)
        title = f"{name} against A"
        if pair.figures:
            tables.append(
                Table(title, ["figure", *(text.replace("B", name) for text in HEAD)], [[str(one.figure), *cells(one)] for one in pair.figures])
            )  # fmt: skip
            charts.append(Chart(f"ratios-{place}", f"Ratios, {title}", "Each figure with its 95 % interval; grey: the threshold; red: worse; green: better.", ratio_chart(pair, comparison.worth)))  # fmt: skip
        if pair.curve:
            charts.append(Chart(f"quantiles-{place}", f"Latency by quantile, {title}", f"Above 0, {name} is slower; the band is the 95 % interval of each quantile by itself.", quantile_chart(pair)))  # fmt: skip
    page = Page(
        title="Comparison: "
        + ", ".join(f"{letter(i)} {side.name}" for i, side in enumerate(comparison.sides)),
        badge=comparison.conclusion.replace("_", " "),
        mood=_MOODS[comparison.conclusion],
        subtitle=" · ".join(side_line(i, side) for i, side in enumerate(comparison.sides)),
        lines=lines(comparison),
        charts=charts,
        tables=tables,
    )
    return render_page(page)
