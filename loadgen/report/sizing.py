"""A sizing as text: how many servers, what that rests on, and what to keep in mind."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from loadgen.analysis import scaling
from loadgen.analysis.forecast import Source, Unit, window_words
from loadgen.analysis.sizing import Between, Capacity, Caveat, Counted, Law, Sizing
from loadgen.analysis.words import amount
from loadgen.report import words
from loadgen.report.table import Row, print_table

if TYPE_CHECKING:
    from rich.console import Console

_SAID = {
    Caveat.UNREACHABLE: "no number is sure to be enough: by the fitted law more servers stop helping before",
    Caveat.PROPORTIONAL: "capacities are taken to add up, but load balancing loses something: measure {least} different "
    "counts (1:FOLDER 2:FOLDER ...), or the recommended number itself",
    Caveat.FAR_BEYOND: "that is more than twice as many as were measured: the law is drawn far beyond its points",
    Caveat.MISFIT: "the capacities do not follow the law (p {p:.2g}): the intervals were widened; the law knows no servers "
    "that together carry more than their sum",
    Caveat.NO_UNCERTAINTY: "a capacity without an interval is taken for exact: half of all measurements are too high",
    Caveat.LOWER_BOUND: "the capacity is at least what was found, so fewer may do: search on with a higher --most",
    Caveat.UNDECIDED: "a search was not finished: its low end may rest on few probes; loadgen capacity resume narrows it",
    Caveat.SHORT_FORECAST: "the forecast is no longer than the stretch of its peak: the peak is its mean",
    Caveat.FEW_AT_PEAK: "the fullest stretch has {at_peak} requests: chance moves that by {chance:.0f} % either way; "
    "a longer --peak-over evens it out",
    Caveat.OTHER_OBJECTIVES: "the capacities are of different objectives",
}


def load(value: float | None, unit: Unit) -> str:
    """900/s, 14 users, 14.3 users."""
    if value is None:
        return words.NONE
    return f"{value:.4g} users" if unit is Unit.USERS else f"{words.rate(value)}/s"


def _noun(counted: Counted, n: float | None) -> str:
    noun = counted.value.removesuffix("s")
    return "no number" if n is None else amount(int(n), noun)


def _interval(one: Between, show: str = ".0f") -> str:
    if one.low is None or one.high is None:
        ends = [
            f"{side} {end:{show}}"
            for side, end in (("at least", one.low), ("at most", one.high))
            if end is not None
        ]
        return " and ".join(ends) or "unbounded"
    low, high = format(one.low, show), format(one.high, show)
    return low if low == high else f"{low} to {high}"


def headline(sizing: Sizing) -> str:
    """6 replicas for 900/s with 1 of them lost and 20 % headroom."""
    forecast = sizing.forecast
    peak = load(forecast.high, forecast.unit)
    if forecast.low < forecast.high:
        peak = f"{load(forecast.low, forecast.unit)} to {peak}"
    if forecast.source is not Source.NUMBER:
        peak = f"the peak of {forecast.text}, {peak} over {window_words(forecast)}"
    wants = [f"{sizing.spare} of them lost"] if sizing.spare else []
    wants += [f"{100 * sizing.headroom:.3g} % headroom"] if sizing.headroom else []
    with_ = f" with {' and '.join(wants)}" if wants else ""
    if sizing.recommended is None:
        return f"{_noun(sizing.counted, None)} of {sizing.counted} is sure to be enough for {peak}{with_}"
    return f"{_noun(sizing.counted, sizing.recommended)} for {peak}{with_}"


def lines(sizing: Sizing) -> list[str]:
    """What is said below."""
    unit, servers = sizing.forecast.unit, sizing.servers
    best = "none" if servers.value is None else f"{servers.value:.0f}"
    ends = "the low end of the capacity's interval"
    if sizing.forecast.low < sizing.forecast.high:
        ends += " and the high end of the forecast"
    result = [f"needed: {best} ({_interval(servers)}); recommended is the upper end: enough at {ends}"]
    one = sizing.each
    result.append(f"capacity of one: {load(one.value, unit)} ({_interval(one, '.4g')})")
    if sizing.used_at_peak is not None:
        lost = f" with {sizing.spare} lost" if sizing.spare else ""
        result.append(
            f"at the peak{lost} at most {100 * sizing.used_at_peak:.0f} % of the capacity's low end is used"
        )
    if sizing.usl is not None:
        law, best_count = sizing.usl, sizing.usl.best
        result.append(
            f"{Law.USL}: contention {_percent(law.contention)}, coherency {_percent(law.coherency)}"
            + ("" if best_count is None else f"; largest capacity with {_noun(sizing.counted, best_count)}")
        )
    if sizing.cost is not None:
        result += _cost(sizing)
    return result


def caveats(sizing: Sizing) -> list[str]:
    """What to keep in mind, in words."""
    at_peak = sizing.forecast.at_peak or 1
    facts = {
        "least": scaling.LEAST_COUNTS,
        "p": 0.0 if sizing.usl is None else sizing.usl.p_value,
        "at_peak": at_peak,
        "chance": 200 / math.sqrt(at_peak),
    }
    return [_SAID[one].format(**facts) for one in sizing.caveats]


def _percent(one: scaling.Parameter) -> str:
    return f"{100 * one.value:.3g} % ({100 * one.low:.3g} to {100 * one.high:.3g})"


def _cost(sizing: Sizing) -> list[str]:
    cost = sizing.cost
    if cost is None:
        return []
    unit = f" {cost.currency}" if cost.currency else ""
    result = [f"cost: {cost.per_hour:.4g}{unit} an hour"]
    if cost.per_million is not None:
        result[0] += f", {_money(cost.per_million)}{unit} per million requests at the forecast's mean rate"
    if cost.per_million_at_peak is not None and cost.per_million_at_peak != cost.per_million:
        result[0] += f", {_money(cost.per_million_at_peak)}{unit} at its peak"
    return result


def _money(one: Between) -> str:
    middle = f"{one.value:.3g}"
    return middle if one.low == one.high else f"{middle} ({one.low:.3g} to {one.high:.3g})"


def _measured(one: Capacity) -> str:
    return f"{load(one.value, one.unit)} ({_interval(Between(one.value, one.low, one.high), '.4g')})"


def _rows(sizing: Sizing) -> list[Row]:
    rows = []
    for one in sorted(sizing.capacities, key=lambda c: c.count):
        cells = [_measured(one)]
        if sizing.usl is not None:
            law = np.array([[sizing.usl.rate.value, sizing.usl.contention.value, sizing.usl.coherency.value]])
            cells.append(load(float(scaling.throughput(one.count, law)[0]), one.unit))
        rows.append(Row(_noun(sizing.counted, one.count), [*cells, ", ".join(one.objectives) or words.NONE]))
    return rows


def print_sizing(sizing: Sizing, console: Console) -> None:
    """The capacities, then the answer."""
    head = ["measured (95 %)", *(["by the law"] if sizing.usl is not None else []), "objectives"]
    print_table(console, Row("capacity of", head), _rows(sizing))
    console.print()
    for line in [headline(sizing), *lines(sizing), *(f"note: {one}" for one in caveats(sizing))]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
