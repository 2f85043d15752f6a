"""`loadgen check`: holds a run against objectives and says it with the exit code."""

from pathlib import Path
from typing import Annotated

import typer


def check(
    run: Annotated[Path, typer.Argument(help="A run folder, e.g. runs/20260102T030405-steady.")],
    objective: Annotated[
        list[str] | None,
        typer.Option(help='Instead of the profile\'s own, e.g. "latency p99 < 250ms"; may be repeated.'),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print verdicts and doubts as JSON.")] = False,
) -> None:
    """Hold a run against its objectives, for CI.

    Exit code 0: every objective passed.  1: one was missed.  3: not valid, or too few requests to tell.

    Example: loadgen check runs/20260102T030405-steady --objective "latency p99 < 250ms"
    """
    from loadgen.analysis.conclusion import exit_code
    from loadgen.analysis.summary import summarise
    from loadgen.records import LoadgenError

    summary = summarise(run, objective or None)
    if not summary["slo"]:
        raise LoadgenError(
            f'{run}: its profile states no objective; give one with --objective, e.g. "latency p99 < 250ms"'
        )
    if as_json:
        from loadgen.report.write import dumps

        typer.echo(dumps({key: summary[key] for key in ("valid", "doubts", "slo")}), nl=False)
    else:
        from rich.console import Console

        from loadgen.report.text import print_verdicts

        print_verdicts(summary, Console(highlight=False))
    raise typer.Exit(exit_code(summary))
