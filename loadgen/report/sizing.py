"""A sizing in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadgen.analysis.words import amount
from loadgen.report.words import rate

if TYPE_CHECKING:
    from loadgen.analysis.sizing import Measured, Sizing, Usl


def lines(found: Sizing) -> list[str]:
    """The recommendation first, then what it rests on."""
    forecast, capacity = found.forecast, found.capacity
    wish = (
        f"{rate(forecast.low)}/s"
        if forecast.low == forecast.high
        else f"{rate(forecast.low)}/s to {rate(forecast.high)}/s"
    )
    extras = [f"{100 * found.headroom:g} % headroom"] if found.headroom else []
    extras += [f"{amount(found.spare, 'replica')} lost"] if found.spare else []
    also = f" with {' and '.join(extras)}" if extras else ""
    least = "unbounded" if found.least is None else str(found.least)
    told = [
        f"{amount(found.replicas, 'replica')} for {wish}{also} ({least} to {found.replicas}; {found.likely} at the measured capacity)",
        f"recommended from the low end: {_capacity(capacity)}" if found.usl is None else _usl(found.usl),
    ]
    if found.cost_per_million is not None and found.likely_cost_per_million is not None:
        told.append(
            f"cost: {found.cost_per_hour:.4g} an hour, {found.cost_per_million:.4g} per million requests "
            f"({found.likely_cost_per_million:.4g} at the measured capacity)"
        )
    if found.proportional:
        told.append(
            "warning: replicas are taken to add up; what they share (a proxy, a network, a GPU) was not measured: measure "
            "two or more instance counts and give them with --instances N:FOLDER"
        )
    return told


def _capacity(one: Measured) -> str:
    ends = f"{'unbounded' if one.low is None else rate(one.low)} to {'unbounded' if one.high is None else rate(one.high)}"
    of = "a replica" if one.instances == 1 else f"{one.instances} instances"
    return f"{of} carries {rate(one.value)}/s ({ends})"


def _usl(law: Usl) -> str:
    peak = "" if law.peak is None else f"; more than {law.peak:.0f} replicas carry less"
    return (
        f"fitted law: {rate(law.rate)}/s a replica ({rate(law.rate_interval[0])} to {rate(law.rate_interval[1])}), serial share "
        f"{100 * law.serial:.2g} % ({100 * law.serial_interval[0]:.2g} to {100 * law.serial_interval[1]:.2g}), agreement "
        f"{law.agreement:.2g} ({law.agreement_interval[0]:.2g} to {law.agreement_interval[1]:.2g}){peak}"
    )
