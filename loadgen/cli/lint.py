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
    from collections.abc import Callable

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

    Of an ensemble the models it is made of are looked at, each with the requests that the ensemble gets.

    Example: loadgen lint model_repository/minilm --profile traffic_profiles/mixed-lengths.yaml
    """
    from loadgen.analysis.unfit import unfit
    from loadgen.planstory import describe_plan
    from loadgen.schedule import plan
    from loadgen.traffic.profile import load_profile

    asked = load_profile(profile)
    served, *steps = _configs_of(config, model)
    names = {kind.model for kind in asked.kinds.values() if kind.is_kserve}
    if served.name not in names:
        raise LoadgenError(
            f"{profile} sends nothing to model {served.name!r}; it asks: {', '.join(sorted(names)) or 'no tensors'}"
        )
    stories = describe_plan(plan(asked))
    allowed = cores or len(
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    if engine is not None and steps:
        raise LoadgenError(
            f"--engine {engine}: {served.name} is an ensemble and has no engine; lint its steps one by one"
        )
    rows = _rows(engine, config)
    found = unfit(served, asked, stories, cores=allowed, where=str(profile), engine_rows=rows)
    for step in steps:
        rows = _rows(None, config if "://" in config else str(_repository(config) / step.name))
        found += unfit(
            step, asked, stories, cores=allowed, where=str(profile), engine_rows=rows, step_of=served.name
        )
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=1))
    else:
        for one in found:
            whose = f"{one.model}: " if steps else ""
            typer.echo(f"{whose}{one.code}: {one.text}\n    see it: {one.show}")
        if not found:
            made_of = f", made of {', '.join(step.name for step in steps)}" if steps else ""
            typer.echo(f"{served.name}{made_of}: nothing found against {profile}")
    raise typer.Exit(ExitCode.MISSED if found else ExitCode.OK)


def _rows(engine: str | None, config: str) -> tuple[int, int] | None:
    from loadgen.convert.sidecar import engine_rows

    if engine is None:
        return None if "://" in config else engine_rows(Path(config))
    low, _, high = engine.partition(":")
    if not (low.isdecimal() and high.isdecimal() and 0 < int(low) <= int(high)):
        raise LoadgenError(f"--engine {engine}: write fewest:most, e.g. 1:8")
    return int(low), int(high)


def _configs_of(text: str, model: str | None) -> list[ModelConfig]:
    """The model's own configuration, then, of an ensemble, those of the models it is made of, through all its levels.

    Raises LoadgenError where one of them cannot be read: what is not looked at is not called good.
    """
    import asyncio

    from loadgen.triton.config import ModelConfig
    from loadgen.triton.repository import read_config

    if "://" not in text:
        first = read_config(Path(text))
        return _with_steps(first, lambda name: read_config(_repository(text) / name))
    if model is None:
        raise LoadgenError(f"{text}: which of its models? add --model NAME")

    def ask(name: str) -> ModelConfig:
        return ModelConfig.from_json(asyncio.run(_ask(text, name)), unknown=[])

    return _with_steps(ask(model), ask)


def _repository(model: str) -> Path:
    """Where the model's neighbours lie; `model` is its folder or its config.pbtxt."""
    path = Path(model)
    return (path if path.is_dir() else path.parent).resolve().parent


def _with_steps(first: ModelConfig, read: Callable[[str], ModelConfig]) -> list[ModelConfig]:
    found = {first.name: first}
    waiting = [first]
    while waiting:
        one = waiting.pop(0)
        for step in one.ensemble_scheduling.step if one.ensemble_scheduling else ():
            if step.model_name not in found:
                try:
                    found[step.model_name] = read(step.model_name)
                except LoadgenError as why:
                    raise LoadgenError(
                        f"{one.name} is an ensemble; its step {step.model_name!r}: {why}"
                    ) from None
                waiting.append(found[step.model_name])
    return list(found.values())


async def _ask(target: str, model: str) -> dict[str, Any]:
    from loadgen.target import parse_target
    from loadgen.triton.control import Control

    async with Control(parse_target(target)) as control:
        facts = await control.model_facts(model)
    if facts.config is None:
        raise LoadgenError(f"{target} does not tell its models' configurations")
    return dict(facts.config)
