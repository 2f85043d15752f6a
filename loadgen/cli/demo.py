"""`loadgen demo`: a real model on a real Triton, measured, in one command."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from loadgen.cli.progress import Progress
from loadgen.cli.run import conclude
from loadgen.exits import ExitCode


class Protocol(StrEnum):
    """The two doors of a KServe v2 server."""

    grpc = "grpc"
    http = "http"


def demo(
    repository: Annotated[Path, typer.Option(help="Where the converted model is kept.")] = Path(
        "model_repository"
    ),
    protocol: Annotated[Protocol, typer.Option(help="Over which protocol the load goes.")] = Protocol.grpc,
    out: Annotated[
        Path | None, typer.Option(help="The run folder to make; default runs/<time>-demo.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of the text.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
) -> None:
    """Converts MiniLM (once), serves it on an embedded Triton, replays mixed lengths, shows the summary.

    Exits 0 when every request was answered, whatever the doubts: on a busy machine there may be some.

    Example: loadgen demo --protocol http --out runs/first
    """
    from loadgen.convert.options import ConvertOptions
    from loadgen.lab.demo import MODEL
    from loadgen.lab.demo import demo as play

    options = ConvertOptions(name=MODEL, repository=repository, replace=True)
    with Progress(quiet=quiet) as progress:
        measured = play(
            options, protocol=protocol, out=out, command=sys.argv, say=progress.say, tick=progress.tick
        )
    conclude(measured.path, interrupted=measured.interrupted, as_json=as_json, judge=unanswered)


def unanswered(summary: dict[str, Any]) -> ExitCode:
    """OK when every request of the demo was answered."""
    counts = summary["total"]["counts"]
    return ExitCode.OK if 0 < counts["ok"] == counts["planned"] else ExitCode.NOT_VALID
