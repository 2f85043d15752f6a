"""`loadgen lint`: a model's configuration held against a traffic profile, before anything is sent."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadgen.exits import ExitCode
from loadgen.records import LoadgenError

if TYPE_CHECKING:
    from loadgen.triton.config import ModelConfig


def lint(
    config: Annotated[
        str,
        typer.Argument(
            help="A config.pbtxt, a model's folder, or a server (http://, grpc://) with --model.",
            show_default=False,
        ),
    ],
    profile: Annotated[Path, typer.Option(help="The traffic profile it is to serve.", show_default=False)],
    model: Annotated[str | None, typer.Option(help="Which model of the server.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="Fewest and most rows of a TensorRT engine, e.g. 1:8.")
    ] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Of the server; default: this machine's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what in a model's configuration does not go with a profile, why, and what would show it (exit 1).

    Example: loadgen lint model_repository/minilm --profile traffic_profiles/mixed-lengths.yaml
    """
    from loadgen.analysis.unfit import unfit
    from loadgen.planstory import describe_plan
    from loadgen.schedule import plan
    from loadgen.traffic.profile import load_profile

    asked = load_profile(profile)
    served = _config_of(config, model)
    names = {kind.model for kind in asked.kinds.values() if kind.is_kserve}
    if served.name not in names:
        raise LoadgenError(
            f"{profile} sends nothing to model {served.name!r}; it asks: {', '.join(sorted(names)) or 'no tensors'}"
        )
    stories = describe_plan(plan(asked))
    allowed = cores or len(
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    found = unfit(
        served, asked, stories, cores=allowed, where=str(profile), engine_rows=_rows(engine, config)
    )
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=1))
    else:
        for one in found:
            typer.echo(f"{one.code}: {one.text}\n    see it: {one.show}")
        if not found:
            typer.echo(f"{served.name}: nothing found against {profile}")
    raise typer.Exit(ExitCode.MISSED if found else ExitCode.OK)


def _rows(engine: str | None, config: str) -> tuple[int, int] | None:
    from loadgen.convert.sidecar import engine_rows

    if engine is None:
        return None if "://" in config else engine_rows(Path(config))
    low, _, high = engine.partition(":")
    if not (low.isdecimal() and high.isdecimal() and 0 < int(low) <= int(high)):
        raise LoadgenError(f"--engine {engine}: write fewest:most, e.g. 1:8")
    return int(low), int(high)


def _config_of(text: str, model: str | None) -> ModelConfig:
    from loadgen.triton.config import ModelConfig
    from loadgen.triton.repository import read_config

    if "://" not in text:
        return read_config(Path(text))
    if model is None:
        raise LoadgenError(f"{text}: which of its models? add --model NAME")
    import asyncio

    return ModelConfig.from_json(asyncio.run(_ask(text, model)), unknown=[])


async def _ask(target: str, model: str) -> dict[str, Any]:
    from loadgen.target import parse_target
    from loadgen.triton.control import Control

    async with Control(parse_target(target)) as control:
        facts = await control.model_facts(model)
    if facts.config is None:
        raise LoadgenError(f"{target} does not tell its models' configurations")
    return dict(facts.config)
