"""`loadgen report`: makes summary.json and report.html of a run anew from its records, and prints it."""

from pathlib import Path
from typing import Annotated

import typer

from loadgen.records import LoadgenError


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="A run folder, one of `run --repeat`, or several of one profile: shown together."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of the text.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write the page here instead of report.html in the run folder.")
    ] = None,
) -> None:
    """Shows a run, also one that was interrupted or killed; writes its summary.json and report.html anew.

    Several runs of one profile are judged together, with the spread between them; their page is written with --html.

    Example: loadgen report runs/20260102T030405-steady
    """
    from loadgen.report.write import dumps, write_reports

    failed: list[LoadgenError] = []
    summary = write_reports(runs, html, failed.append)
    if as_json:
        typer.echo(dumps(summary), nl=False)
    else:
        from rich.console import Console

        from loadgen.report.text import print_summary

        print_summary(
            summary,
            Console(highlight=False),
            None if failed else html or (runs[0] if len(runs) == 1 else None),
        )
    if failed:
        raise failed[0]
