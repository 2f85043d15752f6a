"""`loadgen bench engine`: one model in several runtimes, offline: speed, memory, accuracy."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadgen import interrupts
from loadgen.cli import sources
from loadgen.cli.progress import Progress
from loadgen.exits import ExitCode
from loadgen.records import LoadgenError, NotMeasuredError
from loadgen.units import UnitError, parse_bytes, parse_duration, show_bytes, show_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = ("engine", "batch", "length", "median", "p99", "samples/s", "tokens/s", "peak", "cosine")
_ROW = "{:18} {:>5} {:>6} {:>8} {:>8} {:>9} {:>10} {:>9} {:>7}"


def engine(
    source: Annotated[
        str, typer.Argument(help="minilm, or a folder, module:factory or file as `loadgen convert` takes.")
    ],
    batches: Annotated[str, typer.Option(help="Batch sizes.")] = "1,4,16",
    lengths: Annotated[
        str, typer.Option(help="Lengths in tokens; left out, those of 16, 64 and 128 that it takes.")
    ] = "",
    precisions: Annotated[str, typer.Option(help="Of fp32, fp16, bf16, int8, fp8.")] = "fp32",
    runtimes: Annotated[
        str, typer.Option(help="Of torch, torch-compile, onnxruntime, tensorrt.")
    ] = "torch,onnxruntime",
    mode: Annotated[str, typer.Option(help="infer, or train: forward, backward and optimizer.")] = "infer",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    seconds: Annotated[float, typer.Option(min=0, help="Time for each cell, beyond its warm-up.")] = 1.0,
    rounds: Annotated[int, typer.Option(min=1, help="Calls measured of each cell at least.")] = 10,
    warmup: Annotated[int, typer.Option(min=1, help="Calls before, in no figure.")] = 3,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads; the runtime's own choice else.")
    ] = None,
    task: sources.Task = None,
    pooling: sources.Pooling = None,
    random_weights: sources.RandomWeights = None,
    trust_remote_code: sources.TrustRemoteCode = False,
    inputs: sources.Inputs = None,
    tensor: sources.Tensor = None,
    output: sources.Output = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Rows for int8 and fp8: a profile, a text or an .npz file.")
    ] = None,
    autotune: Annotated[
        bool, typer.Option("--autotune", help="Choose runtime, precision and batch within the limits below.")
    ] = False,
    floor: Annotated[
        float | None,
        typer.Option(help="Least agreement with fp32: embedding ranks, else cosine; 0.98 when left out."),
    ] = None,
    ceiling: Annotated[str | None, typer.Option(help='Most peak memory, e.g. "2GiB".')] = None,
    max_latency: Annotated[str | None, typer.Option(help='Longest median call, e.g. "50ms".')] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Profile the slowest cell into trace.json.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for engine.json, cells.csv, engine.html.")] = Path(
        "engine-bench"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a model in several runtimes without a server: latency, throughput, memory, accuracy.

    Ctrl-C keeps the cells that are finished.
    Exit code: 0 measured, 1 --autotune finds nothing within its limits, 2 usage, 3 no cell was measured or the results
    could not be written, 130 interrupted.

    Example: loadgen bench engine minilm --precisions fp32,int8 --autotune
    """
    with _nothing_kept():
        from loadgen.convert.options import SourceOptions
        from loadgen.enginebench.cells import Asked
        from loadgen.enginebench.job import RESULT, Job, bench_engine
        from loadgen.enginebench.result import FLOOR, Wanted
        from loadgen.enginebench.run import find_device

        asked = Asked(
            batches=_numbers("--batches", batches), lengths=_numbers("--lengths", lengths),
            precisions=_names(precisions), runtimes=_names(runtimes), mode=mode, device=find_device(device),
            seconds=seconds, rounds=rounds, warmup=warmup, threads=threads,
        )  # fmt: skip
        if autotune and mode != "infer":
            raise LoadgenError("--autotune chooses among --mode infer; training has no accuracy to hold")
        wanted = Wanted(
            FLOOR if floor is None else floor,
            None if ceiling is None else _read("--ceiling", parse_bytes, ceiling),
            None if max_latency is None else _read("--max-latency", parse_duration, max_latency),
        )
        limits = {"--floor": floor, "--ceiling": ceiling, "--max-latency": max_latency}
        if not autotune and (given := [option for option, value in limits.items() if value is not None]):
            raise LoadgenError(f"{', '.join(given)}: a limit of the choice, which --autotune asks for")
        meant = SourceOptions(
            task=task, pooling=pooling, random_seed=random_weights, trust_remote_code=trust_remote_code, inputs=inputs,
            tensors=tuple(tensor or ()), output=output,
        )  # fmt: skip
        job = Job(source, asked, calibration, wanted if autotune else None, trace, out, meant)
        with Progress() as progress:
            told = bench_engine(job, progress.tick, interrupts.settle)
    if as_json:
        typer.echo(json.dumps(told, indent=1))
    else:
        _show(told, out)
    _end(told, out / RESULT)


@contextmanager
def _nothing_kept() -> Iterator[None]:
    """An interrupt that comes this far has found no finished cell."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("interrupted: nothing was measured", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _end(told: dict[str, Any], file: Path) -> None:
    """The exit code: 130 interrupted, 3 nothing measured or not written, 1 nothing keeps to the limits."""
    if not told["finished"]:
        asked = math.prod(len(told["asked"][key]) for key in ("runtimes", "precisions", "batches", "lengths"))
        kept = "" if told.get("not_written") else f": {file}"
        typer.echo(f"interrupted after {len(told['cells'])} of {asked} cells{kept}", err=True)
    if told.get("not_written"):
        raise NotMeasuredError(told["not_written"])
    if not told["finished"]:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if not any(cell["median_ns"] for cell in told["cells"]):
        raise NotMeasuredError("no cell was measured")
    if told.get("choice") is not None and told["choice"]["runtime"] is None:
        raise typer.Exit(ExitCode.MISSED)


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",") if part.strip()))
    except ValueError:
        raise LoadgenError(f'{option} {text!r}: whole numbers are expected, e.g. "1,4,16"') from None


def _read(option: str, parse: Any, text: str) -> int:
    try:
        return int(parse(text))
    except UnitError as why:
        raise LoadgenError(f"{option}: {why}") from None


def _show(told: dict[str, Any], out: Path) -> None:
    failed: dict[tuple[str, str, str], int] = {}
    typer.echo(f"{told['model']['label']}, {told['asked']['mode']}, {told['device']['name']}")
    typer.echo(_ROW.format(*_HEAD))
    for cell in told["cells"]:
        if cell["error"]:
            key = cell["runtime"], cell["precision"], cell["error"]
            failed[key] = failed.get(key, 0) + 1
            continue
        typer.echo(
            _ROW.format(
                f"{cell['runtime']} {cell['precision']}", cell["batch"], cell["length"], show_ns(cell["median_ns"]),
                show_ns(cell["p99_ns"]), f"{cell['samples_per_s']:,.0f}",
                "-" if cell["tokens_per_s"] is None else f"{cell['tokens_per_s']:,.0f}",
                "-" if cell["peak_bytes"] is None else show_bytes(cell["peak_bytes"]),
                "-" if cell["cosine"] is None else f"{cell['cosine']:.4f}",
            )
        )  # fmt: skip
    for (runtime, precision, why), cells in failed.items():
        typer.echo(f"{runtime}, {precision}: {cells} cells not measured: {why}")
    for one in told["memory_growth"]:
        if one["linear"] is False:
            typer.echo(
                f"{one['runtime']}, {one['precision']}, length {one['length']}: memory grows faster than the batch "
                f"from {one['at_batch']} on"
            )
    for one in told["best_batch"]:
        typer.echo(
            f"{one['runtime']}, {one['precision']}, length {one['length']}: best batch {one['batch']}, "
            f"{one['samples_per_s']:,.1f} samples/s"
        )
    _show_choice(told.get("choice"))
    if (rows := told.get("calibration")) is not None:
        typer.echo(f"calibrated with {rows['rows']} rows: {rows['source']}, {rows['made_of']}")
    if not told.get("not_written"):
        typer.echo(f"written to {out}")


def _show_choice(choice: dict[str, Any] | None) -> None:
    if choice is None:
        return
    if choice["runtime"] is None:
        first = {(one["runtime"], one["precision"]): one for one in reversed(choice["refused"])}
        reasons = "; ".join(
            f"{runtime} {precision}, batch {one['batch']}, length {one['length']}: {one['why']}"
            for (runtime, precision), one in sorted(first.items())
        )
        typer.echo(f"nothing keeps to the limits: {reasons or 'nothing was measured'}")
        return
    batches = ", ".join(f"{one['batch']} at length {length}" for length, one in choice["batches"].items())
    least = min(one["agreement"] for one in choice["batches"].values())
    typer.echo(
        f"choose {choice['runtime']} in {choice['precision']}, batch {batches}; agreement with fp32 {least:.4f}"
    )
