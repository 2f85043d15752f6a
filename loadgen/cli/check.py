"""`loadgen check`: holds runs against objectives and a baseline, and says it with the exit code and in files for CI."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def check(
    run: Annotated[
        list[Path],
        typer.Argument(help="A run folder, e.g. runs/20260102T030405-steady; several are judged together."),
    ],
    objective: Annotated[
        list[str] | None,
        typer.Option(help='Instead of the profile\'s own, e.g. "latency p99 < 250ms"; may be repeated.'),
    ] = None,
    objectives: Annotated[
        Path | None, typer.Option(help="A YAML file with objectives, instead of the profile's own.")
    ] = None,
    baseline: Annotated[
        list[Path] | None,
        typer.Option(help="A stored run that this one must be no worse than; may be repeated."),
    ] = None,
    no_worse: Annotated[
        list[str] | None,
        typer.Option(
            help='How much worse than the baseline a figure may be, e.g. "latency p99 5%" (of shares: percentage '
            "points); may be repeated.  Without it: latency p50 5%, latency p99 5%, failure rate 1%."
        ),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write JUnit XML to this file.", metavar="FILE")
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            allow_dash=True,
            help="Write Markdown to this file; - prints it instead of the text.",
            metavar="FILE",
        ),
    ] = None,
    annotations: Annotated[
        bool, typer.Option("--annotations", help="Print GitHub's workflow commands on stderr.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print verdicts and doubts as JSON.")] = False,
) -> None:
    """Hold runs against their objectives, and a baseline, for CI.

    Exit code 0: every objective passed.  1: one was missed.  2: usage.  3: not valid, too few requests to tell, not
    comparable with the baseline, or a file could not be written.

    Example: loadgen check runs/20260102T030405-steady --objective "latency p99 < 250ms" --junit check.xml
    """
    from loadgen.analysis.baseline import DEFAULTS, parse_no_worse
    from loadgen.analysis.check import check as find
    from loadgen.records import LoadgenError
    from loadgen.report.write import write_file
    from loadgen.traffic.objective import load_objectives

    to_stdout = markdown == Path("-")
    if to_stdout and as_json:
        raise LoadgenError("--markdown - and --json: both would be on standard output; name a file for one")
    if no_worse and not baseline:
        raise LoadgenError("--no-worse: than what?  Name a stored run with --baseline")
    if objective and objectives:
        raise LoadgenError("--objective and --objectives: give one of them")
    texts = load_objectives(objectives) if objectives else objective or None
    margins = [parse_no_worse(text) for text in no_worse or DEFAULTS]
    result = find(run, texts, baseline or (), margins)
    if as_json:
        from loadgen.report.write import dumps

        typer.echo(dumps(result.json()), nl=False)
    elif to_stdout:
        from loadgen.report.markdown import markdown as as_markdown

        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        typer.echo(as_markdown(result).encode(encoding, "replace").decode(encoding), nl=False)
    else:
        from rich.console import Console

        from loadgen.report.check import print_check

        print_check(result, Console(highlight=False))
    if annotations:
        from loadgen.report.check import annotations as commands

        for line in commands(result):
            typer.echo(line, err=True)
    if junit is not None:
        from loadgen.report.junit import junit as as_junit

        write_file(junit, as_junit(result), "--junit")
    if markdown is not None and not to_stdout:
        from loadgen.report.markdown import markdown as as_markdown

        write_file(markdown, as_markdown(result), "--markdown")
    raise typer.Exit(result.exit_code)
