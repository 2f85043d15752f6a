"""`loadgen env`: the machine and the software that would measure."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def env(as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False) -> None:
    """Shows the machine and the versions that every run writes down.

    Example: loadgen env --json
    """
    from loadgen.lab.facts import client_facts
    from loadgen.triton.install import home

    facts = {**client_facts(), "triton_home": str(home())}
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    for name, value in facts.items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        typer.echo(f"{name:16} {shown}")
