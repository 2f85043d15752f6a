"""`loadgen size`: replicas and cost for a forecast, from a measured capacity."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadgen.records import LoadgenError
from loadgen.units import UnitError, parse_duration, parse_rate

if TYPE_CHECKING:
    from loadgen.analysis.sizing import Forecast, Measured


def size(
    result: Annotated[
        Path | None, typer.Argument(help="The folder of `loadgen capacity`, or its result.json.")
    ] = None,
    forecast: Annotated[
        str | None,
        typer.Option(
            "--for",
            help='The peak: "900/s", a range "800/s to 1000/s", or a profile (YAML): its plan\'s peak.',
        ),
    ] = None,
    capacity: Annotated[
        str | None, typer.Option(help='Instead of a folder: what a replica carries, "212/s (205 to 219)".')
    ] = None,
    instances: Annotated[
        list[str] | None,
        typer.Option(help="N:FOLDER, a capacity measured with N instances; three or more counts are fitted."),
    ] = None,
    headroom: Annotated[str, typer.Option(help="Kept free above the forecast.")] = "0%",
    spare: Annotated[int, typer.Option(min=0, help="Replicas that may be lost.")] = 0,
    price: Annotated[float | None, typer.Option(min=0, help="Of a replica an hour, in any currency.")] = None,
    peak_over: Annotated[
        str, typer.Option(help="A profile's peak is its fullest window of this length.")
    ] = "1m",
    as_json: Annotated[bool, typer.Option("--json", help="Print the sizing as JSON.")] = False,
) -> None:
    """How many replicas carry a forecast, and what they cost, with the capacity's uncertainty carried through.

    Exit code: 0 sized, 2 usage (also: nothing carries it), 3 the capacity is not known.

    Example: loadgen size capacity/20260102T030405-steady --for 900/s --headroom 20% --spare 1 --price 1.20
    """
    from loadgen.analysis.sizing import size as size_for
    from loadgen.report.sizing import lines

    if forecast is None:
        raise LoadgenError(
            '--for is needed: the peak that is expected, e.g. --for 900/s or --for "800/s to 1000/s"'
        )
    measured = [_read(Path(folder), int(n)) for n, folder in map(_count, instances or ())]
    if capacity is not None:
        measured.append(_parse_capacity(capacity))
    if result is not None:
        measured.append(_read(result, 1))
    if not measured:
        raise LoadgenError(
            'no capacity: name the folder of `loadgen capacity`, or --capacity "212/s (205 to 219)"'
        )
    found = size_for(measured, _forecast(forecast, peak_over), _share(headroom), spare, price)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=1))
        return
    for line in lines(found):
        typer.echo(line)


def _count(text: str) -> tuple[str, str]:
    number, colon, folder = text.partition(":")
    if not (colon and number.isdigit() and int(number) > 0 and folder):
        raise LoadgenError(f"--instances {text}: write N:FOLDER, e.g. 2:capacity/two-instances")
    return number, folder


def _read(path: Path, instances: int) -> Measured:
    from loadgen.analysis.capacity_result import RESULT, read_capacity
    from loadgen.analysis.sizing import Measured
    from loadgen.exits import ExitCode

    if path.is_dir():
        found: dict[str, Any] = read_capacity(path)
    else:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as why:
            raise LoadgenError(f"{path}: cannot be read as a {RESULT} of `loadgen capacity`: {why}") from None
    try:
        told = found["capacity"]
        value, low, high, unit = told["value"], told["low"], told["high"], told["unit"]
    except (KeyError, TypeError):
        raise LoadgenError(f"{path}: not a {RESULT} of `loadgen capacity`") from None
    if unit != "requests/s":
        raise LoadgenError(
            f"{path}: its capacity is in {unit}; sizing needs requests/s: search without --users"
        )
    if value is None:
        typer.echo(f"error: {path}: its capacity is not known ({found.get('answer')})", err=True)
        raise typer.Exit(ExitCode.NOT_VALID)
    return Measured(float(value), low, high, instances)


def _parse_capacity(text: str) -> Measured:
    """Reads "212/s (205 to 219)"; without an interval it is taken as exact."""
    from loadgen.analysis.sizing import Measured

    whole = re.fullmatch(r"\s*([^()]+?)\s*(?:\(\s*([\d.]+)\s*to\s*([\d.]+)\s*\))?\s*", text)
    try:
        value = parse_rate(whole[1] if whole else text)
        low, high = (float(whole[2]), float(whole[3])) if whole and whole[2] else (value, value)
    except (UnitError, ValueError):
        raise LoadgenError(
            f'--capacity {text}: cannot be read; allowed: "212/s" or "212/s (205 to 219)"'
        ) from None
    if not 0 < low <= value <= high:
        raise LoadgenError(f"--capacity {text}: the interval must hold the value, and be above 0")
    return Measured(value, low, high)


def _forecast(text: str, window: str) -> Forecast:
    from loadgen.analysis.sizing import Forecast

    if Path(text).suffix in (".yaml", ".yml", ".json"):
        peak = _peak(Path(text), window)
        return Forecast(peak, peak)
    low, to, high = (part.strip() for part in text.partition(" to "))
    try:
        ends = [parse_rate(low), parse_rate(high if to else low)]
    except UnitError as why:
        raise LoadgenError(f"--for {text}: {why}; or name a profile (YAML)") from None
    if not 0 < ends[0] <= ends[1]:
        raise LoadgenError(f"--for {text}: a rate above 0, or a range from low to high, e.g. 800/s to 1000/s")
    return Forecast(*ends)


def _peak(path: Path, window: str) -> float:
    from loadgen import schedule
    from loadgen.planstory import fullest_per_s
    from loadgen.traffic.profile import load_profile

    try:
        width_ns = parse_duration(window)
    except UnitError as why:
        raise LoadgenError(f"--peak-over: {why}") from None
    found = fullest_per_s(schedule.plan(load_profile(path)), width_ns)
    if not found:
        raise LoadgenError(
            f"{path}: has no phase with planned arrivals, so no peak; give a rate, e.g. --for 900/s"
        )
    return found


def _share(text: str) -> float:
    number = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if number is None or float(number[1]) > 1000:  # noqa: PLR2004 - percent
        raise LoadgenError(f"--headroom {text}: allowed: 0% to 1000%, e.g. 20%")
    return float(number[1]) / 100
