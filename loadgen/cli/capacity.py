"""`loadgen capacity`: the highest load at which a server meets its objectives."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from loadgen.cli.connect import CaCert, Cert, Header, Insecure, Key, command, connect_options
from loadgen.cli.progress import Progress
from loadgen.cli.quick import numpy_without_threads
from loadgen.cli.sweep import Begins
from loadgen.exits import ExitCode
from loadgen.records import LoadgenError
from loadgen.units import UnitError, parse_duration, parse_rate

EXITS = {
    "found": ExitCode.OK,
    "at_least": ExitCode.OK,
    "below": ExitCode.MISSED,
    "undecided": ExitCode.NOT_VALID,
    "client": ExitCode.NOT_VALID,
}
app = typer.Typer(
    cls=Begins,
    no_args_is_help=True,
    help="The highest rate (or number of users) that meets the objectives: loadgen capacity PROFILE",
)
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
Folder = Annotated[Path, typer.Argument(help="The folder of a search, e.g. capacity/20260102T030405-steady.")]


@app.command()
def begin(
    profile: Annotated[
        Path,
        typer.Argument(help="A traffic profile (YAML): its kinds of request are sent, its phases are not."),
    ],
    target: Annotated[
        str | None, typer.Option(help="http://host:8000 or grpc://host:8001; wins over the profile's.")
    ] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(
            help='What must be met, e.g. "latency p99 < 50ms"; may be repeated; default: the profile\'s.'
        ),
    ] = None,
    users: Annotated[
        bool, typer.Option("--users", help="Search the number of users (closed loop), not the rate.")
    ] = False,
    first: Annotated[
        str | None, typer.Option("--from", help="The first load, e.g. 50/s, or 4 with --users.")
    ] = None,
    most: Annotated[
        str | None, typer.Option("--most", help="The highest load that is tried, e.g. 2000/s.")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="Half the interval over the capacity at which the search ends.")
    ] = "4%",
    within: Annotated[str, typer.Option(help="The longest time of load, all probes together.")] = "10m",
    probe: Annotated[
        str | None,
        typer.Option(help="How long the first probes last; default 5s, longer if requests are slow."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=256, help="Processes that send, each with a core to fill.")
    ] = 1,
    realtime: Annotated[
        bool,
        typer.Option(
            "--realtime", help="Send under SCHED_FIFO: for a server that shares the client's cores."
        ),
    ] = False,
    header: Header = None,
    cacert: CaCert = None,
    cert: Cert = None,
    key: Key = None,
    insecure: Insecure = False,
    out: Annotated[
        Path | None, typer.Option(help="The folder to make; default capacity/<time>-<name>.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Another seed: other arrivals of the same law.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Search for the highest load that meets the objectives; Ctrl-C keeps every probe, `loadgen capacity resume` goes on.

    Exit code: 0 found (or nothing up to --most misses an objective), 1 even the lowest load misses one, 2 usage,
    3 undecided when the time was over or the client was the limit, 130 interrupted.

    Example: loadgen capacity begin traffic_profiles/steady.yaml --target grpc://127.0.0.1:8001 --objective "latency p99 < 50ms"
    """
    numpy_without_threads()
    from loadgen.lab.capacity import Asked, run_capacity
    from loadgen.traffic.profile import load_profile

    read = load_profile(profile)
    where = target or read.target
    if where is None:
        raise LoadgenError(f"{profile} names no target: add --target http://host:8000 or grpc://host:8001")
    asked = Asked(
        objectives=objective or [],
        users=users,
        first=_load("--from", first, users),
        most=_load("--most", most, users) or 100_000.0,
        precision=_share(precision),
        within_s=_seconds("--within", within),
        probe_s=None if probe is None else _seconds("--probe", probe),
        workers=workers,
        realtime=realtime,
    )
    options = connect_options(header, cacert, cert, key, insecure)
    number = read.seed if seed is None else seed
    _go(
        lambda shown: run_capacity(
            read, where, asked, number, options, out, command(header), shown.say, shown.tick
        ),
        as_json,
        quiet,
    )


@app.command()
def resume(
    folder: Folder,
    within: Annotated[
        str | None, typer.Option(help="The longest time of load, those before included.")
    ] = None,
    header: Header = None,
    cacert: CaCert = None,
    cert: Cert = None,
    key: Key = None,
    insecure: Insecure = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a search that was cut short, or for longer; headers and TLS are given again.

    Example: loadgen capacity resume capacity/20260102T030405-steady --within 20m
    """
    numpy_without_threads()
    from loadgen.lab.capacity import resume_capacity

    options = connect_options(header, cacert, cert, key, insecure)
    limit = None if within is None else _seconds("--within", within)
    _go(lambda shown: resume_capacity(folder, options, limit, shown.say, shown.tick), as_json, quiet)


@app.command()
def show(folder: Folder, as_json: AsJson = False) -> None:
    """Show what a search found so far; writes its result.json and capacity.html anew.

    Example: loadgen capacity show capacity/20260102T030405-steady
    """
    raise typer.Exit(EXITS[_shown(folder, as_json)["answer"]])


def _load(option: str, text: str | None, users: bool) -> float | None:
    if text is None:
        return None
    if users:
        if not re.fullmatch(r"\d+", text.strip()) or int(text) < 1:
            raise LoadgenError(
                f"{option} {text}: not a number of users; allowed: a whole number from 1, e.g. 8"
            )
        return float(text)
    try:
        found = parse_rate(text)
    except UnitError as why:
        raise LoadgenError(f"{option}: {why}") from None
    if found <= 0:
        raise LoadgenError(f"{option} {text}: not a rate to send at; allowed: above 0, e.g. 50/s")
    return found


def _share(text: str) -> float:
    number = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if number is None or not 0.1 <= float(number[1]) <= 50:  # noqa: PLR2004 - percent
        raise LoadgenError(f"--precision {text}: allowed: 0.1% to 50%, e.g. 3%")
    return float(number[1]) / 100


def _seconds(option: str, text: str) -> float:
    try:
        found = parse_duration(text) / 1e9
    except UnitError as why:
        raise LoadgenError(f"{option}: {why}") from None
    if found < 1:
        raise LoadgenError(f"{option} {text}: too short; allowed: 1s or longer")
    return found


def _go(drive: Callable[[Progress], Any], as_json: bool, quiet: bool) -> None:
    with Progress(quiet=quiet) as progress:
        searched = drive(progress)
    result = _shown(searched.path, as_json)
    raise typer.Exit(ExitCode.INTERRUPTED if searched.interrupted else EXITS[result["answer"]])


def _shown(folder: Path, as_json: bool) -> dict[str, Any]:
    from loadgen.analysis.capacity_result import PAGE, RESULT, read_capacity
    from loadgen.report.capacity import print_capacity, render_capacity
    from loadgen.report.write import dumps
    from loadgen.runfile import write_atomic

    result = read_capacity(folder)
    if as_json:
        typer.echo(json.dumps(result, indent=1))
    else:
        from rich.console import Console

        print_capacity(result, Console(highlight=False))
    write_atomic(folder / RESULT, dumps(result))
    write_atomic(folder / PAGE, render_capacity(result))
    if not as_json:
        typer.echo(f"\n{folder / PAGE}")
    return result
