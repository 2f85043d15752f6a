"""`loadgen sweep`: batching configurations times loads, measured as one experiment.

Parses, calls `loadgen.lab.sweep`, prints.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from loadgen.cli.connect import CaCert, Cert, Header, Insecure, Key, command, connect_options
from loadgen.cli.progress import Progress
from loadgen.cli.quick import numpy_without_threads
from loadgen.exits import ExitCode

EXITS = {
    "clear": ExitCode.OK,
    "close": ExitCode.OK,
    "only": ExitCode.OK,
    "none": ExitCode.MISSED,
    "inconclusive": ExitCode.NOT_VALID,
}


class Begins(TyperGroup):
    """`loadgen sweep FILE` is `loadgen sweep begin FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["begin", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=Begins,
    no_args_is_help=True,
    help="Measure batching configurations times loads as one experiment: loadgen sweep SWEEP.yaml",
)
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
Folder = Annotated[Path, typer.Argument(help="The folder of a sweep, e.g. sweeps/20260102T030405-batching.")]


class Protocol(StrEnum):
    """The two doors of a KServe v2 server."""

    grpc = "grpc"
    http = "http"


@app.command()
def begin(
    sweep: Annotated[
        Path, typer.Argument(help="A sweep (YAML), e.g. traffic_profiles/sweeps/batching.yaml.")
    ],
    target: Annotated[
        str | None,
        typer.Option(help="A server with explicit model control; else an embedded one is started."),
    ] = None,
    repository: Annotated[Path, typer.Option(help="What the embedded server serves.")] = Path(
        "model_repository"
    ),
    protocol: Annotated[
        Protocol, typer.Option(help="Over which protocol the load goes to it.")
    ] = Protocol.grpc,
    realtime: Annotated[
        bool,
        typer.Option("--realtime", help="Send under SCHED_FIFO: for a server that fills the client's cores."),
    ] = False,
    header: Header = None,
    cacert: CaCert = None,
    cert: Cert = None,
    key: Key = None,
    insecure: Insecure = False,
    out: Annotated[
        Path | None, typer.Option(help="The folder to make; default sweeps/<time>-<name>.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Another order of the blocks, other arrivals.")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only show the blocks in their order; nothing is sent.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run a sweep in a new folder, unattended; Ctrl-C stops it, `loadgen sweep resume` goes on.

    Exit code: 0 there is a best configuration that meets the objectives, 1 none meets them, 2 usage, 3 undecided
    (which is best, or whether the objectives are met), 130 interrupted.

    Example: loadgen sweep begin traffic_profiles/sweeps/batching.yaml --out sweeps/batching
    """
    numpy_without_threads()
    from loadgen.lab.sweep import Place, run_sweep
    from loadgen.traffic.sweep import load_sweep

    read = load_sweep(sweep).with_seed(seed)
    if plan:
        for number, block in enumerate(read.blocks(), 1):
            one, load = read.candidates[block.configuration], read.loads[block.load]
            typer.echo(f"{number} {block.name} {one.name} at {load}")
        return
    place = Place(target, None if target else repository, protocol.value, realtime)
    options = connect_options(header, cacert, cert, key, insecure, embedded=target is None)
    _go(lambda progress: run_sweep(read, place, options, out, command(header), progress.say, progress.tick),
        as_json, quiet)  # fmt: skip


@app.command()
def resume(
    folder: Folder,
    header: Header = None,
    cacert: CaCert = None,
    cert: Cert = None,
    key: Key = None,
    insecure: Insecure = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a sweep that was cut short; no finished block is measured again.

    Headers and TLS are given again: they are nowhere written down.

    Example: loadgen sweep resume sweeps/batching
    """
    numpy_without_threads()
    from loadgen.lab.sweep import resume_sweep

    options = connect_options(header, cacert, cert, key, insecure)
    _go(lambda progress: resume_sweep(folder, options, progress.say, progress.tick), as_json, quiet)


@app.command()
def show(folder: Folder, as_json: AsJson = False) -> None:
    """Show what a sweep found so far; writes its result.json and sweep.html anew.

    Example: loadgen sweep show sweeps/batching
    """
    raise typer.Exit(EXITS[_told(folder, as_json)["best"]["verdict"]])


def _go(drive: Callable[[Progress], Any], as_json: bool, quiet: bool) -> None:
    with Progress(quiet=quiet) as progress:
        swept = drive(progress)
    result = _told(swept.path, as_json)
    raise typer.Exit(ExitCode.INTERRUPTED if swept.interrupted else EXITS[result["best"]["verdict"]])


def _told(folder: Path, as_json: bool) -> dict[str, Any]:
    from loadgen.analysis.sweep import PAGE, RESULT, read_sweep
    from loadgen.report.sweep import print_sweep, render_sweep
    from loadgen.report.write import dumps
    from loadgen.runfile import write_atomic

    result = read_sweep(folder)
    # shown before it is written: a full disk or an archive's folder hides no result
    if as_json:
        typer.echo(json.dumps(result, indent=1))
    else:
        from rich.console import Console

        print_sweep(result, Console(highlight=False))
    write_atomic(folder / RESULT, dumps(result))
    write_atomic(folder / PAGE, render_sweep(result))
    if not as_json:
        typer.echo(f"\n{folder / PAGE}")
    return result
