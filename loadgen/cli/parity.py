"""`loadgen parity`: does a running server say what PyTorch says?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from loadgen.cli.progress import Progress
from loadgen.exits import ExitCode


def parity(
    folder: Annotated[
        Path, typer.Argument(help="A converted model's version folder, e.g. model_repository/minilm/1.")
    ],
    targets: Annotated[list[str], typer.Argument(help="Servers: http://host:8000, grpc://host:8001.")],
    model: Annotated[
        str | None, typer.Option(help="Its name on the server; that of convert.json else.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows compared at each length.")] = 24,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare what a server answers with PyTorch, by the limits of the precision it was converted to.

    Each length is asked batched, alone and, so that the server forms batches itself, at once.

    Example: loadgen parity model_repository/minilm/1 http://127.0.0.1:8000 grpc://127.0.0.1:8001
    """
    from loadgen.convert.recheck import recheck

    with Progress() as progress:
        climbed = recheck(folder, targets, model=model, rows=rows, progress=progress.say)
    if as_json:
        typer.echo(json.dumps(climbed.as_json(), indent=1))
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table("rung", "how", "length", "cosine", "max abs", "mean abs", "ranks", "top 1")
        for step in climbed.steps:
            table.add_row(
                step.rung, step.how, str(step.length), f"{step.cosine:.6f}", f"{step.max_abs:.1e}",
                f"{step.mean_abs:.1e}", *("-" if v is None else f"{v:.3f}" for v in (step.ranks, step.top1)),
            )  # fmt: skip
        Console().print(table)
        for fault in climbed.faults:
            typer.echo(f"beyond the limits: {fault}")
        typer.echo("passed" if climbed.passed else "failed")
    if not climbed.passed:
        raise typer.Exit(ExitCode.MISSED)
