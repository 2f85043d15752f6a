"""The command line, assembled: one verb a file."""

from __future__ import annotations

import typer

from loadgen import __version__
from loadgen.cli import (
    bench,
    buckets,
    capacity,
    check,
    coldstart,
    compare,
    convert,
    demo,
    env,
    explain,
    lint,
    parity,
    profile,
    report,
    repository,
    run,
    runs,
    serve,
    size,
    sweep,
)  # fmt: skip

app = typer.Typer(
    name="loadgen",
    help="Measures inference servers: realistic traffic, latency from the due time, batch sizes.\n\n"
    "Start with: loadgen demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(demo.demo)
app.add_typer(serve.app, name="serve")
app.command()(convert.convert)
app.command()(parity.parity)
app.command()(run.run)
app.add_typer(sweep.app, name="sweep")
app.add_typer(capacity.app, name="capacity")
app.command()(size.size)
app.command()(report.report)
app.command()(runs.runs)
app.command()(check.check)
app.command()(compare.compare)
app.command()(explain.explain)
app.command()(lint.lint)
app.command()(coldstart.coldstart)
app.command()(buckets.buckets)
app.add_typer(profile.app, name="profile")
app.add_typer(repository.app, name="repository")
app.add_typer(bench.app, name="bench")
app.add_typer(env.app, name="env")


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"loadgen {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show it."),
) -> None:
    """Measures inference servers."""
