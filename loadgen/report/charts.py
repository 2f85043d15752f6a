"""The charts of a report as plain plotly figures (dicts), thinned so that a tail is never hidden.

Latency against time is drawn from at most a few thousand requests: of each narrow time slice the slowest
is always kept, then as many others as fit.  Lines and rates are computed from all requests.  Names are
escaped here, because plotly reads a small HTML of its own in texts.  This module must not know the page.
"""

import html
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.analysis.columns import Ints
from loadgen.analysis.frame import Frame
from loadgen.analysis.measures import measured
from loadgen.analysis.percentiles import Tally, quantile
from loadgen.analysis.streaming import gaps
from loadgen.records import Outcome
from loadgen.units import show_ns

MS, S = 1e6, 1e9
MOST_POINTS = 4000
SLICES = 1000
BINS = 100
LEAST = 20  # requests: a percentile or a rate of fewer is noise
FEW_DECADES = 200
_LEGIBLE = 0.1  # of the width
BLUE, ORANGE, RED, GREEN, GREY = "#2563eb", "#ea7317", "#dc2626", "#15803d", "#94a3b8"
Figure = dict[str, Any]


def charts(frame: Frame, summary: dict[str, Any], info: dict[str, Any]) -> dict[str, Figure]:
    """Figures by name; one that has nothing to show is left out, and of several runs those over time: each has its own."""
    found: dict[str, Figure] = {}
    tried = frame.where(frame.tried)
    if len(tried) and "runs" not in summary:
        found["over-time"] = latency_over_time(tried, info)
        if tried.sent.any():
            found["lag"] = lag_over_time(tried.where(tried.sent), info)
        found["rate"] = rates(frame, info)
    phases = [i for i, phase in enumerate(info["phases"]) if phase["measured"]]
    ok = frame.where(frame.ok & frame.sent & np.isin(frame.phase, phases))
    if len(ok):
        found["distribution"] = distribution(ok)
    if ok.streamed.any() and "runs" not in summary:
        found |= stream_charts(frame.where(frame.ok & frame.streamed), frame.of_phases(phases), info)
    if summary["server"]["batch_sizes"]:
        found["batches"] = batch_sizes(summary["server"]["batch_sizes"])
    return found


def thin(at: Ints, value: Ints, most: int = MOST_POINTS) -> npt.NDArray[np.intp]:
    """Places of at most about `most` points, in order of time: the largest of each slice, and an even rest."""
    if at.size <= most:
        return np.argsort(at, kind="stable")
    start = int(at.min())
    slices = np.minimum((at - start) * SLICES // max(1, int(at.max()) - start), SLICES - 1).astype(np.int16)
    largest = np.full(SLICES, np.iinfo(np.int64).min)
    np.maximum.at(largest, slices, value)
    these = np.flatnonzero(value == largest[slices])
    _, first = np.unique(slices[these], return_index=True)
    step = -(-at.size // (most - SLICES))
    keep = np.union1d(these[first], np.arange(0, at.size, step))
    return keep[np.argsort(at[keep], kind="stable")]


def bin_width_ns(span_ns: int, most: int = BINS) -> int:
    """1, 2 or 5 times a power of ten, such that at most `most` of them (1 to BINS) cover the span."""
    least = max(1, -(-span_ns // min(max(most, 1), BINS)))
    power = 10 ** (len(str(least)) - 1)
    return int(next(step * power for step in (1, 2, 5, 10) if step * power >= least))


def latency_over_time(tried: Frame, info: dict[str, Any]) -> Figure:
    """Each request at its due time, with P50 and P99 of the requests due in each bin."""
    ok, bad = tried.where(tried.ok), tried.where(~tried.ok)
    due, latency = ok.due_ns, ok.latency_ns
    keep = thin(due, latency)
    traces = [_dots(f"request ({keep.size} of {due.size} drawn)", due[keep], latency[keep], BLUE, 0.35)]
    if len(bad):
        at, after = bad.due_ns, bad.latency_ns
        kept = thin(at, after)
        names = [Outcome(number).name.lower() for number in bad.outcome[kept].tolist()]
        trace = _dots(f"not ok ({at.size})", at[kept], after[kept], RED, 0.9)
        trace |= {
            "text": names,
            "hovertemplate": "%{text} after %{y:.3g} ms, due at %{x:.3f} s<extra></extra>",
        }
        trace["marker"] |= {"symbol": "x", "size": 6}
        traces.append(trace)
    return _over_time(traces + _lines(due, latency), "latency from due (ms)", info)


def lag_over_time(sent: Frame, info: dict[str, Any]) -> Figure:
    """Due to sent, of every request that was sent, whatever came of it."""
    due, lag = sent.due_ns, sent.lag_ns
    keep = thin(due, lag)
    # a log axis has no place for zero or less: those are drawn at a microsecond
    shown = np.maximum(lag, 1000)
    traces = [_dots(f"request ({keep.size} of {due.size} drawn)", due[keep], shown[keep], BLUE, 0.35)]
    return _over_time(traces + _lines(due, shown), "lag, due to sent (ms)", info)


def _over_time(traces: list[dict[str, Any]], what: str, info: dict[str, Any]) -> Figure:
    layout = _layout("due, seconds since the start of the run (s)", what)
    layout["yaxis"] |= _log([value for trace in traces for value in trace["y"]])
    # from the start of the run on, as the chart of rates: a few dots would else be spread over nanoseconds
    end = max([0.0, *(end for _, _, end in _bounds(info)), *(at for trace in traces for at in trace["x"])])
    layout["xaxis"]["range"] = [-0.02 * end, 1.02 * end]
    return {"data": traces, "layout": layout | {"shapes": _shades(info), "annotations": _names(info)}}


def _lines(due: Ints, values: Ints) -> list[dict[str, Any]]:
    """P50 and P99 of the requests due in each bin of time; none where there are not even LEAST requests."""
    if due.size < LEAST:
        return []
    start = int(due.min())
    width = bin_width_ns(int(due.max()) - start, due.size // LEAST)
    bins = ((due - start) // width).astype(np.int16)
    groups = joined(np.bincount(bins))
    of_bin = np.repeat(np.arange(len(groups)), np.diff([0, *(last + 1 for _, last in groups)])).astype(
        np.int16
    )
    of_row = of_bin[bins]
    ordered = values[np.argsort(of_row, kind="stable")]  # 16 bits wide: numpy's sort is linear in the rows
    parts = np.split(ordered, np.cumsum(np.bincount(of_row))[:-1])
    middles = _numbers([((first + last + 1) / 2 * width + start) / S for first, last in groups])
    per = show_ns(width) + (" or longer" if any(first < last for first, last in groups) else "")
    return [
        {"type": "scatter", "mode": "lines+markers" if len(groups) == 1 else "lines", "name": f"{name} per {per}",
         "x": middles, "y": [round((quantile(part, q) or 0) / MS, 4) for part in parts],
         "line": {"color": color, "width": 2},
         "hovertemplate": f"{name} %{{y:.4g}} ms at %{{x:.2f}} s<extra></extra>"}
        for name, q, color in (("P50", 0.5, GREEN), ("P99", 0.99, ORANGE))
    ]  # fmt: skip


def joined(counts: npt.NDArray[np.intp]) -> list[tuple[int, int]]:
    """(first, last) of runs of neighbouring bins that hold at least LEAST requests together, none of them empty
    at its ends.  The counts of all bins must come to that much.
    """
    groups: list[tuple[int, int]] = []
    first, held = None, 0
    for place, count in enumerate(counts.tolist()):
        if count and first is None:
            first = place
        held += count
        if first is not None and held >= LEAST:
            groups.append((first, place))
            first, held = None, 0
    if held:
        groups[-1] = (groups[-1][0], counts.size - 1)
    return groups


def rates(frame: Frame, info: dict[str, Any]) -> Figure:
    """Requests due, and answered ok, in each bin of time, as rates."""
    due, done, ok = frame.due_ns, frame.done_ns, frame.ok
    end = int(max(due.max(), done[ok].max(initial=0)))
    width = bin_width_ns(max(end, 1), due.size // LEAST)
    bins = end // width + 2  # the last one empty: a line that comes down
    shown = [("asked (by due time)", due, GREY), ("achieved (ok, by done time)", done[ok], BLUE)]
    if not ok.all():
        shown.append(("not ok (by done time)", done[~ok], RED))
    traces = []
    for name, times, color in shown:
        per_s = np.bincount(np.clip(times // width, 0, bins), minlength=bins + 1)[:bins] * S / width
        traces.append(
            {"type": "scatter", "mode": "lines", "name": name, "x": _numbers(np.arange(bins) * width / S),
             "y": _numbers(per_s), "line": {"color": color, "width": 2, "shape": "hv"},
             "hovertemplate": "%{y:.4g} requests/s from %{x:.2f} s<extra></extra>"}
        )  # fmt: skip
    layout = _layout(
        f"seconds since the start of the run (s), in steps of {show_ns(width)}", "rate (requests/s)"
    )
    layout["yaxis"]["rangemode"] = "tozero"
    return {"data": traces, "layout": layout | {"shapes": _shades(info)}}


def distribution(ok: Frame) -> Figure:
    """Share of requests slower than x: log-log, so that P50, P99 and P99.9 are as far apart as they matter."""
    return slower([("latency from due", ok.latency_ns, BLUE), ("service", ok.service_ns, ORANGE)])


def stream_charts(ok: Frame, of_measured: Frame, info: dict[str, Any]) -> dict[str, Figure]:
    """`ok`: successes that were streamed, of all phases; `of_measured`: all rows of the measured phases."""
    first, known = measured(ok, "ttft")
    due, first = ok.due_ns[known], first[known]
    keep = thin(due, first)
    dots = _dots(f"stream ({keep.size} of {due.size} drawn)", due[keep], first[keep], BLUE, 0.35)
    good = of_measured.where(of_measured.ok & of_measured.streamed)
    shown: list[tuple[str, Ints | Tally, str]] = [
        (name, values[there], color)
        for name, metric, color in (
            ("first token from due", "ttft", BLUE),
            ("first token from sent", "ttft from sent", ORANGE),
            ("time per output token", "tpot", GREEN),
        )
        for values, there in [measured(good, metric)]
    ]
    shown = [one for one in [*shown, ("chunk gap", gaps(of_measured), GREY)] if one[1].size]
    found = {"first-token": _over_time([dots, *_lines(due, first)], "first token from due (ms)", info)}
    return found | ({"tokens": slower(shown)} if shown else {})


def slower(series: list[tuple[str, Ints | Tally, str]]) -> Figure:
    """Share that took x or longer, of each (name, times in ns, color)."""
    traces: list[dict[str, Any]] = []
    for name, values, color in series:
        n = values.size
        # nearest rank: the value at rank r is the quantile r / n; shares slower are (n - r + 1) / n downwards
        ranks = np.unique(
            np.concatenate([np.linspace(1, n, 400), n + 1 - np.geomspace(1, n, 400)]).astype(np.int64)
        )
        ordered = values.at(ranks) if isinstance(values, Tally) else np.sort(values)[ranks - 1]
        traces.append(
            {"type": "scatter", "mode": "lines" if n > LEAST else "lines+markers", "name": name,
             "x": _numbers(ordered / MS), "y": _numbers((n - ranks + 1) / n * 100),
             "line": {"color": color, "width": 2, "shape": "vh"},
             "hovertemplate": "%{y:.3g} % took %{x:.4g} ms or longer<extra></extra>"}
        )  # fmt: skip
    layout = _layout("time (ms)", "took this long or longer (%)")
    layout["xaxis"] |= _log([at for trace in traces for at in trace["x"]])
    marks = {
        100: "100",
        50: "50 (P50)",
        10: "10 (P90)",
        1: "1 (P99)",
        0.1: "0.1 (P99.9)",
        0.01: "0.01 (P99.99)",
    }
    layout["yaxis"] |= {"type": "log", "tickvals": list(marks), "ticktext": list(marks.values())}
    return {"data": traces, "layout": layout}


def batch_sizes(sizes: dict[str, int]) -> Figure:
    """Executions of each batch size, as the server counted them."""
    bars = {"type": "bar", "x": list(sizes), "y": list(sizes.values()), "marker": {"color": BLUE},
            "hovertemplate": "%{y} executions with a batch of %{x} items<extra></extra>"}  # fmt: skip
    layout = _layout("batch size (items an execution)", "executions (count)")
    layout["xaxis"]["type"] = "category"
    return {"data": [bars], "layout": layout | {"showlegend": False, "bargap": 0.25}}


def _log(values: list[float]) -> dict[str, Any]:
    """A log axis with a number at each decade, or at 1, 2 and 5 of each when there are few."""
    axis = {"type": "log", "minor": {"ticks": "outside", "ticklen": 3}}
    above = [value for value in values if value > 0]
    if not above or max(above) > FEW_DECADES * min(above):
        return axis | {"dtick": 1}
    powers = range(math.floor(math.log10(min(above))) - 1, math.ceil(math.log10(max(above))) + 2)
    marks = [float(f"{step}e{power}") for power in powers for step in (1, 2, 5)]
    return axis | {"tickvals": marks, "ticktext": [f"{mark:.12g}" for mark in marks]}


def _dots(name: str, due: Ints, latency: Ints, color: str, opacity: float) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "markers", "name": name, "x": _numbers(due / S), "y": _numbers(latency / MS),
        "marker": {"size": 4, "color": color, "opacity": opacity} if due.size > LEAST
        else {"size": 8, "color": color, "opacity": 0.9},
        "hovertemplate": "%{y:.4g} ms, due at %{x:.3f} s<extra></extra>",
    }  # fmt: skip


def _bounds(info: dict[str, Any]) -> list[tuple[dict[str, Any], float, float]]:
    """(phase, start, end) in seconds, of those that started."""
    found = []
    for phase in info["phases"]:
        start = phase.get("start_ns")
        if start is not None:
            end = phase.get("end_ns") or phase.get("load_end_ns") or start
            found.append((phase, start / S, end / S))
    return found


def _shades(info: dict[str, Any]) -> list[dict[str, Any]]:
    """Grey behind the phases that are in no figure."""
    return [
        {"type": "rect", "xref": "x", "yref": "paper", "x0": start, "x1": end, "y0": 0, "y1": 1,
         "fillcolor": GREY, "opacity": 0.15, "line": {"width": 0}, "layer": "below"}
        for phase, start, end in _bounds(info)
        if not phase["measured"]
    ]  # fmt: skip


def _names(info: dict[str, Any]) -> list[dict[str, Any]]:
    """A name over each phase that is wide enough for one."""
    bounds = _bounds(info)
    whole = max((end for _, _, end in bounds), default=0.0) or 1.0
    return [
        {"x": start, "y": 1.0, "xref": "x", "yref": "paper", "showarrow": False, "xanchor": "left",
         "yanchor": "bottom", "font": {"size": 11, "color": "#64748b"},
         "text": html.escape(phase["name"]) + ("" if phase["measured"] else " (warm-up)")}
        for phase, start, end in bounds
        if (end - start) / whole > _LEGIBLE
    ]  # fmt: skip


def _layout(x: str, y: str) -> dict[str, Any]:
    axis = {
        "gridcolor": "#e2e8f0",
        "zeroline": False,
        "linecolor": "#94a3b8",
        "ticks": "outside",
        "automargin": True,
    }
    return {
        "xaxis": {"title": {"text": x, "standoff": 6}, **axis}, "yaxis": {"title": {"text": y, "standoff": 6}, **axis},
        "margin": {"l": 60, "r": 20, "t": 24, "b": 48}, "height": 360, "hovermode": "closest",
        "paper_bgcolor": "#fff", "plot_bgcolor": "#fff", "font": {"family": "system-ui, sans-serif", "size": 13},
        "legend": {"orientation": "h", "y": -0.26, "yanchor": "top"},
    }  # fmt: skip


def _numbers(values: Any) -> list[float]:
    """Five digits are more than a screen shows, and a third of the bytes."""
    return [float(f"{value:.6g}") for value in np.asarray(values, dtype=np.float64).tolist()]
