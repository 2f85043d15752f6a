"""`loadgen repository`: what lies in a model repository, and what a server would refuse of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadgen.exits import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loadgen.triton.config_check import Finding
    from loadgen.triton.repository import StoredModel

app = typer.Typer(help="Look at a Triton model repository, without a server.", no_args_is_help=True)

_Where = Annotated[Path, typer.Argument(help="A repository, a model's folder, or a config.pbtxt.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def _repository() -> None:
    """Look at a Triton model repository, without a server."""


@app.command()
def show(path: _Where = Path("model_repository"), as_json: _Json = False) -> None:
    """Show the models, their versions and how they are served.

    Example: loadgen repository show model_repository
    """
    from loadgen.triton.repository import read_repository

    models = read_repository(path)
    if as_json:
        typer.echo(json.dumps([_told(model) for model in models], indent=1))
        return
    for model in models:
        for line in _lines(model):
            typer.echo(line)


@app.command()
def check(path: _Where = Path("model_repository"), as_json: _Json = False) -> None:
    """Read every config.pbtxt and say what the server would refuse, or would not do as it reads.

    Where there is a model.onnx and the onnx package, its inputs and outputs are held against the configuration.
    A note names each model that the embedded Triton (`loadgen serve`) has no backend for.
    Exit code 1: a model would not load.

    Example: loadgen repository check model_repository
    """
    from dataclasses import replace

    from loadgen.convert.onnx_check import against_files
    from loadgen.triton.repository import read_repository

    models = [
        replace(model, findings=(*model.findings, *against_files(model), *_elsewhere(model)))
        for model in read_repository(path)
    ]
    if as_json:
        typer.echo(json.dumps([_told(model) for model in models], indent=1))
    else:
        for model in models:
            for found in model.findings:
                typer.echo(
                    f"{model.name}: {'refused' if found.refused else 'note'}: {found.field}: {found.text}"
                )
        refused = sum(model.refused for model in models)
        typer.echo(f"{len(models)} models, {refused} would not load")
    raise typer.Exit(ExitCode.MISSED if any(model.refused for model in models) else ExitCode.OK)


def _elsewhere(model: StoredModel) -> Iterator[Finding]:
    """A note on a model that the embedded Triton cannot run."""
    from loadgen.triton.config_check import Finding, backend_of
    from loadgen.triton.install import BACKENDS

    backend = "" if model.config is None else backend_of(model.config)
    if backend and backend not in BACKENDS:
        text = f"{backend} is not in the embedded Triton, which has {', '.join(BACKENDS)} alone; a full Triton is needed"
        yield Finding(False, "backend", text)


def _told(model: StoredModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "versions": model.versions,
        "config": None if model.config is None else model.config.to_json(),
        "findings": [{"refused": f.refused, "field": f.field, "text": f.text} for f in model.findings],
    }


def _lines(model: StoredModel) -> list[str]:
    versions = ", ".join(map(str, model.versions)) or "none"
    if model.config is None:
        said = model.findings[0].text if model.findings else "no configuration"
        return [f"{model.name}: versions {versions}; {said}"]
    config = model.config
    lines = [
        f"{model.name}: versions {versions}; {config.backend or config.platform or 'backend by its files'}"
    ]
    for word, tensors in (("in", config.input), ("out", config.output)):
        lines += [f"  {word:4} {t.name} {t.data_type.removeprefix('TYPE_')} {list(t.dims)}" for t in tensors]
    lines.append(f"  batch {config.max_batch_size or 'not'}{_batching(model)}")
    groups = [f"{max(g.count, 1)} {g.kind.removeprefix('KIND_')}" for g in config.instance_group]
    lines.append(f"  instances {', '.join(groups) or 'as the server decides'}")
    if config.model_warmup:
        lines.append(f"  warm-ups {len(config.model_warmup)}")
    return lines


def _batching(model: StoredModel) -> str:
    batching = model.config.dynamic_batching if model.config is not None else None
    if batching is None:
        return ""
    delay = batching.max_queue_delay_microseconds
    preferred = ", ".join(map(str, batching.preferred_batch_size))
    return f", dynamic, delay {delay} us" + (f", preferred {preferred}" if preferred else "")
