"""`loadgen runs`: the runs of a folder as a table and a figure over time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from loadgen.cli.progress import Progress
from loadgen.cli.quick import numpy_without_threads


def runs(
    folder: Annotated[Path, typer.Argument(help="A folder that holds run folders.")] = Path("runs"),
    figure: Annotated[
        str,
        typer.Option(help='The figure that is followed over time, e.g. "chat: ttft p95" or "requests/s".'),
    ] = "latency p99",
    profile: Annotated[str | None, typer.Option(help="Only runs of the profile with this name.")] = None,
    target: Annotated[str | None, typer.Option(help="Only runs against this target.")] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Only the newest so many.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with the charts here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
) -> None:
    """The runs of a folder, newest last, and where a figure's level changed; docs/runs.md says how that is decided.

    Exit code: 0 shown, 2 usage, 3 the page could not be written.

    Example: loadgen runs runs --profile steady --figure "latency p99" --html history.html
    """
    numpy_without_threads()
    from loadgen.analysis.history import read_history
    from loadgen.report.write import write_file
    from loadgen.traffic.objective import parse_figure

    wanted = parse_figure(figure)
    with Progress(quiet=quiet) as progress:
        history = read_history(folder, wanted, profile=profile, target=target, last=last, tick=progress.tick)
    if as_json:
        typer.echo(json.dumps(history.json(), indent=1))
    else:
        from rich.console import Console

        from loadgen.report.runs import print_history

        print_history(history, Console(highlight=False))
    if html is not None:
        from loadgen.report.runs import render_history

        write_file(html, render_history(history), "--html")
        if not as_json:
            typer.echo(f"\n{html}")
