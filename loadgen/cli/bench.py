"""`loadgen bench`: what this machine's client can do, and a model's runtimes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from loadgen.cli import bench_engine
from loadgen.cli.progress import Progress
from loadgen.records import LoadgenError

app = typer.Typer(help="Measure the client itself, or a model's runtimes.", no_args_is_help=True)


@app.callback()
def _bench() -> None:
    """Measure the client itself, or a model's runtimes."""


app.command()(bench_engine.engine)


@app.command()
def client(
    seconds: Annotated[
        float, typer.Option(min=0.2, max=600, help="How long to send, over each protocol.")
    ] = 3.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure how fast one worker can send over HTTP and gRPC, and store it for later runs.

    The target is a null server in a process of its own.  Runs that ask for more than 70 % of this say so.

    Example: loadgen bench client --seconds 5
    """
    from loadgen.lab.ceiling import measure_ceiling, store_ceilings

    with Progress() as progress:
        found = []
        for protocol in ("http", "grpc"):
            progress.say(f"sending over {protocol} for {seconds:g} s")
            found.append(measure_ceiling(protocol, seconds))
    path, failed = None, None
    try:
        path = store_ceilings(found)
    except LoadgenError as why:  # the figures are told all the same
        failed = why
    if as_json:
        stored = path and str(path)
        typer.echo(json.dumps({"stored": stored, "ceilings": [asdict(c) for c in found]}, indent=1))
    for c in () if as_json else found:
        typer.echo(
            f"{c.protocol:5} {c.per_s:9,.0f} requests/s  {c.cpu_ns_per_request / 1e3:6.1f} us CPU a request"
            f"  ({c.requests:,} requests, 32 users, one worker)"
        )
    if failed is not None:
        raise failed
    if not as_json:
        typer.echo(f"stored in {path}")
