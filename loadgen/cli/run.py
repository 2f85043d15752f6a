"""`loadgen run`: send a traffic profile to a server, leave a run folder, print what it says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from loadgen.cli.connect import CaCert, Cert, Header, Insecure, Key, command, connect_options
from loadgen.cli.progress import Progress
from loadgen.cli.quick import numpy_without_threads
from loadgen.exits import ExitCode
from loadgen.records import LoadgenError
from loadgen.target import parse_target
from loadgen.units import UnitError, parse_duration


class Transport(StrEnum):
    """What moves the bytes."""

    wire = "wire"
    reference = "reference"


def run(
    profile: Annotated[Path, typer.Argument(help="A traffic profile (YAML); see `loadgen profile keys`.")],
    target: Annotated[
        str | None, typer.Option(help="http://host:8000 or grpc://host:8001; wins over the profile's.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder to make; default runs/<time>-<name>.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Another seed: other arrivals of the same law.")
    ] = None,
    wait: Annotated[
        str, typer.Option(help="Wait this long for server and models, e.g. 60s; 0s: they must be ready.")
    ] = "0s",
    header: Header = None,
    cacert: CaCert = None,
    cert: Cert = None,
    key: Key = None,
    insecure: Insecure = False,
    transport: Annotated[
        Transport, typer.Option(help="wire is ours; reference is the official clients, dear, for comparison.")
    ] = Transport.wire,
    plan: Annotated[
        Path | None,
        typer.Option(help="A saved plan (`loadgen profile show --save`): the same arrivals, bit for bit."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(help="The server's metrics page, e.g. http://host:8002: looked at along the run."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=256, help="Processes that send, each with a core to fill.")
    ] = 1,
    realtime: Annotated[
        bool,
        typer.Option("--realtime", help="Send under SCHED_FIFO, so that no other process delays a send."),
    ] = False,
    trace_server: Annotated[
        bool,
        typer.Option("--trace-server", help="Have Triton trace every request, for `loadgen explain`."),
    ] = False,
    pin: Annotated[str | None, typer.Option(help="Cores to stay on, e.g. 2,3; workers take turns.")] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(help='Instead of the profile\'s own, e.g. "latency p99 < 250ms"; may be repeated.'),
    ] = None,
    objectives: Annotated[
        Path | None, typer.Option(help="A YAML file with objectives, instead of the profile's own.")
    ] = None,
    repeat: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="So many runs, seed by seed, in one folder and judged together."),
    ] = None,
    until_sure: Annotated[
        str | None,
        typer.Option(help="Runs until every objective is decided, for at most so long, e.g. 10m."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of the text.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
) -> None:
    """Send a traffic profile to a server, leave a run folder, print what it says.

    Exit code: 0 ok, 1 an objective was missed, 2 usage (nothing was sent), 3 the measurement is not valid
    or an objective is undecided, 130 interrupted.

    With --repeat or --until-sure the same command with the --out of runs that were interrupted goes on with them.

    Example: loadgen run traffic_profiles/steady.yaml --target grpc://127.0.0.1:8001
    """
    numpy_without_threads()
    from loadgen.lab.repeat import Repeated, Repeats
    from loadgen.lab.repeat import repeat as repeat_runs
    from loadgen.lab.run import Order, measure
    from loadgen.lab.watch import known_beside
    from loadgen.traffic.profile import load_profile

    read = load_profile(profile)
    if wanted := objectives_of(objective, objectives):
        read = read.with_objectives(wanted)
    if repeat is not None and until_sure is not None:
        raise LoadgenError("--repeat and --until-sure: give one of them")
    if plan is not None and (repeat is not None or until_sure is not None):
        raise LoadgenError("--plan: a saved plan is one set of arrivals; leave out --repeat and --until-sure")
    if plan is not None and seed is not None:
        raise LoadgenError("--seed: a saved plan has its own; leave out --seed or --plan")
    where = target or read.target
    if where is None:
        raise LoadgenError(f"{profile} names no target: add --target http://host:8000 or grpc://host:8001")
    wait_ns = _duration("--wait", wait)
    at = parse_target(where)
    with Progress(quiet=quiet) as progress:
        order = Order(
            profile=read,
            target=at,
            seed=read.seed if seed is None else seed,
            out=out,
            command=command(header),
            wait_ns=wait_ns,
            say=progress.say,
            tick=progress.tick,
            plan_file=plan,
            beside=None
            if metrics is None
            else replace(known_beside(at), metrics_url=parse_target(metrics).url, asked=True),
            workers=workers,
            realtime=realtime,
            cores=parse_cores(pin),
            transport=transport,
            trace_server=trace_server,
            options=connect_options(header, cacert, cert, key, insecure),
        )
        if repeat is None and until_sure is None:
            measured = measure(order)
            done = Repeated(measured.path, measured.interrupted)
        else:
            limit = None if until_sure is None else _duration("--until-sure", until_sure)
            done = repeat_runs(order, Repeats(repeat, limit))
    conclude(done.path, interrupted=done.interrupted, as_json=as_json, error=done.error)


def objectives_of(texts: list[str] | None, path: Path | None) -> list[str]:
    """What --objective and --objectives say; empty for neither."""
    if texts and path is not None:
        raise LoadgenError("--objective and --objectives: give one of them")
    if path is None:
        return list(texts or ())
    from loadgen.traffic.objective import load_objectives

    return load_objectives(path)


def _duration(option: str, text: str) -> int:
    try:
        return parse_duration(text)
    except UnitError as why:
        raise LoadgenError(f"{option}: {why}") from None


def parse_cores(text: str | None) -> tuple[int, ...]:
    """Core numbers out of "2,3"; raises LoadgenError for anything else or a core that this machine does not lend."""
    if text is None:
        return ()
    allowed = (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )
    words = text.split(",")
    if not all(word.strip().isdigit() and int(word) in allowed for word in words):
        raise LoadgenError(
            f"--pin {text}: write core numbers with commas; allowed: {', '.join(map(str, allowed))}"
        )
    return tuple(int(word) for word in words)


def conclude(
    path: Path,
    *,
    interrupted: bool,
    as_json: bool,
    judge: Callable[[dict[str, Any]], ExitCode] | None = None,
    error: LoadgenError | None = None,
) -> None:
    """Writes the reports of a run, prints them, and exits with the code that says how it went.

    `judge` makes that code of the summary: `analysis.conclusion.exit_code` if none is given.  `error` says why it could
    not go on; it is raised after what there is was shown.
    """
    from rich.console import Console

    from loadgen.analysis.conclusion import exit_code
    from loadgen.report.text import print_summary
    from loadgen.report.write import write_reports

    failed: list[LoadgenError] = []
    summary = write_reports(path, failed=failed.append)
    code = ExitCode.INTERRUPTED if interrupted else (judge or exit_code)(summary)
    if as_json:
        typer.echo(json.dumps({"run": str(path), **summary}, indent=1))
    else:
        print_summary(summary, Console(highlight=False), None if failed else path)
    failed += [error] if error is not None else []
    if failed:
        raise failed[0]
    raise typer.Exit(code)
