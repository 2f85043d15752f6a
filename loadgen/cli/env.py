"""`loadgen env`: the machine and the software that would measure, and what differs between two runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from loadgen.records import LoadgenError

app = typer.Typer(help="The machine and the software that measure.", invoke_without_command=True)


@app.callback()
def env(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Shows the machine and the versions that a result needs to be reproduced, and what of them does not fit.

    Every run and conversion writes them down (but for what takes seconds: which libraries load, the GPU's clocks).

    Example: loadgen env --json
    """
    if context.invoked_subcommand is not None:
        return
    from loadgen.environment.checks import mismatches

    facts, faults = _here()
    found = [*faults, *mismatches(facts["environment"])]
    if as_json:
        typer.echo(json.dumps({**facts, "mismatches": found}, indent=1))
        return
    for name, value in {**facts, **facts["environment"]}.items():
        if name != "environment":
            typer.echo(f"{name:16} {_shown(value)}")
    for line in found:
        typer.echo(f"mismatch: {line}")
    typer.echo("no known mismatch" if not found else f"{len(found)} known mismatches")


@app.command()
def diff(
    a: Annotated[str, typer.Argument(help="A run, a conversion, a file of `loadgen env --json`, or: here.")],
    b: Annotated[str, typer.Argument(help="The other.")],
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Shows what differs between the environments of two runs, conversions or machines.

    Example: loadgen env diff runs/20260102T030405-steady here
    """
    from loadgen.environment.checks import differences

    found = differences(_of(a), _of(b))
    if as_json:
        typer.echo(json.dumps([{"key": key, "a": left, "b": right} for key, left, right in found], indent=1))
        return
    for key, left, right in found:
        typer.echo(f"{key:36} {_shown(left)}  ->  {_shown(right)}")
    typer.echo(f"{len(found)} differences" if found else "the same")


def _here() -> tuple[dict[str, Any], list[str]]:
    """All that is to be seen, and what of the embedded Triton's own settings is refused."""
    from loadgen.environment.probe import full
    from loadgen.lab.facts import client_facts
    from loadgen.triton.install import home, installed, packages

    triton, faults = None, []
    try:
        triton = list(packages()) if installed() is not None else None
    except LoadgenError as why:  # every other verb refuses it, this one is asked why
        faults = [str(why)]
    told = {**client_facts(), "triton": triton, "triton_home": str(home()), "environment": full()}
    return told, faults


def _of(text: str) -> dict[str, Any]:
    from loadgen.environment.stored import stored

    if text != "here":
        return stored(Path(text))
    from loadgen.lab.facts import client_facts

    return client_facts()


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_shown(v)}" for k, v in value.items() if v not in (None, [], {})) or "-"
    if isinstance(value, list):
        return "; ".join(map(_shown, value)) or "-"
    return "-" if value is None else str(value)
