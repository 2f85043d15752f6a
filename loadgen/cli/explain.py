"""`loadgen explain`: why a run's batches had the size they had."""

import json
from pathlib import Path
from typing import Annotated

import typer


def explain(
    run: Annotated[
        Path, typer.Argument(help="A run folder made with `loadgen run --trace-server`.", show_default=False)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures instead of the text.")] = False,
) -> None:
    """Say which rule of Triton's batcher closed each batch of a run, what that cost, and what to change.

    Example: loadgen explain runs/20260102T030405-steady
    """
    from loadgen.analysis.explain import explain as explained
    from loadgen.report.batches import batch_lines
    from loadgen.runread import read_run

    stories = explained(read_run(run))
    typer.echo(json.dumps(stories, indent=1) if as_json else "\n".join(batch_lines(stories)))
