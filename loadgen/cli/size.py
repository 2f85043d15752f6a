"""`loadgen size`: how many servers a forecast needs, from measured capacities."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadgen.cli.quick import numpy_without_threads
from loadgen.exits import ExitCode
from loadgen.records import LoadgenError
from loadgen.units import UnitError, parse_duration

if TYPE_CHECKING:
    from loadgen.analysis.sizing import Capacity, Counted, Price


def size(
    forecast: Annotated[
        str,
        typer.Option(
            help='The load to come: "900/s", "800/s to 1000/s", "40 users", a profile, a file with rate:, or a trace.'
        ),
    ],
    searches: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[N:]CAPACITY ...",
            help="Folders (or result.json) of loadgen capacity, each with the replicas it was measured with, e.g. 2:FOLDER. "
            "Several without N: the instances that the model's configuration had.",
            show_default=False,
        ),
    ] = None,
    capacity: Annotated[
        list[str] | None,
        typer.Option(
            help='Instead of a folder: "212/s (205 to 219)", or "2: 400/s (390 to 410)" of two replicas.'
        ),
    ] = None,
    peak_over: Annotated[
        str, typer.Option(help="Of a profile or a trace: the peak is the largest mean over so long.")
    ] = "1m",
    trace_keys: Annotated[
        str,
        typer.Option(
            help="Of a trace: its keys as a profile has them, e.g. '{columns: {time: t}, unit: ms}'."
        ),
    ] = "{}",
    headroom: Annotated[
        str, typer.Option(help="The share of the capacity that stays free at the peak.")
    ] = "0%",
    spare: Annotated[int, typer.Option(min=0, help="So many may be lost and the rest is enough.")] = 0,
    price: Annotated[
        str | None, typer.Option(help='Of one an hour, e.g. "1.20 USD": adds the cost per million requests.')
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """How many replicas a forecast needs, with the interval of the capacity carried through; docs/sizing.md has the rules.

    Exit code: 0 a number is recommended, 2 usage, 3 none is sure to be enough, or a search knows no capacity.

    Example: loadgen size capacity/20260102T030405-steady --forecast 900/s --spare 1 --headroom 20% --price "1.20 USD"
    """
    numpy_without_threads()
    from loadgen.analysis.forecast import read_forecast
    from loadgen.analysis.sizing import size as size_of

    capacities, counted = _capacities(searches or [], capacity or [])
    try:
        window_ns = parse_duration(peak_over)
    except UnitError as why:
        raise LoadgenError(f"--peak-over: {why}") from None
    if window_ns <= 0:
        raise LoadgenError(f"--peak-over {peak_over}: allowed: above 0, e.g. 1m")
    sizing = size_of(
        capacities,
        read_forecast(forecast, window_ns, trace_keys),
        headroom=_percent(headroom),
        spare=spare,
        price=None if price is None else _price(price),
        counted=counted,
    )
    if as_json:
        typer.echo(json.dumps(sizing.json(), indent=1))
    else:
        from rich.console import Console

        from loadgen.report.sizing import print_sizing

        print_sizing(sizing, Console(highlight=False))
    if sizing.recommended is None:
        raise typer.Exit(ExitCode.NOT_VALID)


def _capacities(searches: list[str], stated: list[str]) -> tuple[list[Capacity], Counted]:
    from loadgen.analysis.sizing import Counted, parse_capacity, read_capacity_file

    split = [_split(text) for text in searches]
    unnumbered = len(searches) + len(stated) > 1 and any(count is None for count, _ in split)
    if unnumbered and (stated or any(count is not None for count, _ in split)):
        raise LoadgenError(
            "some capacities have a count in front and some have none; allowed: all or none, e.g. 2:FOLDER"
        )
    capacities = [
        read_capacity_file(Path(path), count or (None if unnumbered else 1)) for count, path in split
    ]
    for text in stated:
        count, rest = _split(text)
        capacities.append(parse_capacity(rest, count or 1))
    return capacities, Counted.INSTANCES if unnumbered else Counted.REPLICAS


def _split(text: str) -> tuple[int | None, str]:
    """(2, "FOLDER") of "2:FOLDER"."""
    numbered = re.fullmatch(r"\s*([1-9]\d{0,6})\s*:\s*(.+)", text)
    return (None, text) if numbered is None else (int(numbered[1]), numbered[2])


def _percent(text: str) -> float:
    number = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if number is None or float(number[1]) >= 100:  # noqa: PLR2004 - percent
        raise LoadgenError(f"--headroom {text}: allowed: 0% to less than 100%, e.g. 20%")
    return float(number[1]) / 100


def _price(text: str) -> Price:
    from loadgen.analysis.sizing import Price

    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([^\W\d]{1,8}|[$€£])?\s*", text)
    if parts is None:
        raise LoadgenError(f'--price {text}: allowed: a number and, if you like, a currency, e.g. "1.20 USD"')
    return Price(float(parts[1]), parts[2] or "")
