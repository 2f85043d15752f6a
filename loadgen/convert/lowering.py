"""The step from a proven FP32 file to a proven file in another precision, and the served rung.

It puts precision, calibration and ladder together and knows none of their insides.
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadgen.convert import publish
from loadgen.convert.calibration import open_calibration, text_samples
from loadgen.convert.encoder import Encoder
from loadgen.convert.engine import engine_run, why_not_here
from loadgen.convert.flavours import PLAN
from loadgen.convert.ladder import Climb, climb, require
from loadgen.convert.options import ConvertOptions
from loadgen.convert.parity import ParityError, Run, onnx_run
from loadgen.convert.precision import Lowered, PrecisionError, choose_kept, load, lower, save
from loadgen.convert.serve_options import Flavour
from loadgen.convert.served import served_rungs
from loadgen.convert.session import CUDA
from loadgen.convert.sources import Source
from loadgen.convert.tensorrt import find_tensorrt
from loadgen.target import parse_target

Progress = Callable[[str], None]
ROUNDED = "rounded in fp32"  # ends the name of a rung that only computes as if
UNPROVEN = (
    "what will run on GPUs was not asked as served there: --check-served does, where the server's GPUs are"
)


def lower_onnx(
    found: Source, encoder: Encoder, source: Path, to: Path, options: ConvertOptions, progress: Progress
) -> tuple[Lowered, str | None]:
    """Writes `to` in the precision asked for.  Also why onnxruntime cannot run it on a CPU; None when it can.

    Raises a LoadgenError.  A file that no CPU runs is one, unless it becomes a TensorRT engine, or is for GPUs and
    one here can prove it; with `force` it need not.
    """
    calibration = None
    if options.calibration is not None:
        calibration = open_calibration(options.calibration, encoder, found.folder)
        progress(f"calibrating with {calibration.facts['rows']} rows of {options.calibration.name}")
    else:
        progress(f"casting to {options.precision}")
    done = lower(
        source, to, options.precision, calibration=calibration, skip_quant=options.skip_quant, keep=options.keep,
        tensorrt=options.serve.flavour is Flavour.TENSORRT,
    )  # fmt: skip
    try:
        onnx_run(to)
    except ParityError as why:
        if options.serve.flavour is not Flavour.TENSORRT:  # which has its own arithmetic
            _require_gpu(to, options, f"{options.precision} does not run on a CPU: {why}")
        return done, str(why)
    return done, None


def _require_gpu(file: Path, options: ConvertOptions, why: str) -> None:
    if not options.serve.gpus:
        raise PrecisionError(f"{why}; say which GPUs will run it, e.g. --gpus 0")
    if options.force:
        return
    try:
        onnx_run(file, CUDA)
    except ParityError as no_cuda:
        raise PrecisionError(
            f"{why}; nor on a GPU here: {no_cuda}; convert it where one is, or publish it unproven with --force"
        ) from None


def climb_onnx(
    found: Source, encoder: Encoder, source: Path, to: Path, options: ConvertOptions, no_cpu: str | None
) -> Climb:
    """The lowered file against PyTorch: on the CPU if one runs it, on a GPU if it is for GPUs and there is one; where
    there is neither, FP32 arithmetic rounded the same way.

    `source` is the FP32 file.  Raises ParityError unless `force`.
    """
    precision = options.precision
    rungs = {f"onnx {precision}": onnx_run(to)} if no_cpu is None else {}
    if options.serve.gpus:
        with contextlib.suppress(ParityError):  # there may be none here
            rungs[f"onnx {precision}, {CUDA}"] = onnx_run(to, CUDA)
    if not rungs:
        rungs[f"onnx {precision}, {ROUNDED}"] = rounded_run(source, to, precision, options.keep)
    climbed = climb(
        encoder, rungs, precision, samples=text_samples(encoder, found.folder), max_batch=options.max_batch
    )
    return settle(climbed, options)


def climb_engine(
    found: Source, encoder: Encoder, stage: publish.Stage, options: ConvertOptions
) -> dict[str, Any]:
    """The staged engine against PyTorch, for the sidecar; {"not_run": why} where torch has no GPU to run it on.

    TF32 is held to FP16's limits, whose digits it has.  Raises ParityError unless `force`.
    """
    if (why := why_not_here()) is not None:
        return {"not_run": why}
    rungs = {"engine": engine_run(find_tensorrt(), stage.version / PLAN)}
    precision = "fp16" if options.precision == "fp32" and options.serve.plan.tf32 else options.precision
    climbed = climb(
        encoder, rungs, precision, samples=text_samples(encoder, found.folder), max_batch=options.max_batch
    )
    return settle(climbed, options).as_json()


def climb_served(found: Source, encoder: Encoder, stage: publish.Stage, options: ConvertOptions) -> Climb:
    """Serves what is staged by the embedded Triton and asks it over HTTP and gRPC.  Raises ParityError unless `force`."""
    from loadgen.triton.local import LocalTriton

    rungs: dict[str, Run] = {}
    samples = text_samples(encoder, found.folder)
    with LocalTriton(stage.model.parent, models=[options.name]) as server:
        steps: list[Any] = []
        faults: list[str] = []
        for url in (server.http_target, server.grpc_target):
            with served_rungs(parse_target(url), options.name) as rungs:
                one = climb(encoder, rungs, options.precision, samples=samples, max_batch=options.max_batch)
            steps += one.steps
            faults += one.faults
    return settle(Climb(options.precision, tuple(steps), tuple(faults)), options)


def climb_last(
    found: Source, encoder: Encoder, stage: publish.Stage, options: ConvertOptions, progress: Progress
) -> tuple[dict[str, Any], list[str]]:
    """The rungs above a file: the engine where there is one, a server where asked for.

    Gives what the sidecar holds of them, and warnings.
    """
    told: dict[str, Any] = {}
    warnings = []
    if options.serve.flavour is Flavour.TENSORRT:
        progress("comparing the engine with PyTorch")
        told["engine"] = climb_engine(found, encoder, stage, options)
        if "not_run" in told["engine"]:
            warnings.append(f"the engine was not run: {told['engine']['not_run']}")
    elif options.serve.gpus and not options.check_served:
        warnings.append(UNPROVEN)
    if options.check_served:
        progress("asking the embedded Triton over HTTP and gRPC")
        told["served"] = climb_served(found, encoder, stage, options).as_json()
    return told, warnings


def settle(climbed: Climb, options: ConvertOptions) -> Climb:
    """Raises ParityError for a failed climb; with `force`, marks it instead."""
    if options.force:
        return replace(climbed, forced=True)
    require(climbed)
    return climbed


def rounded_run(source: Path, to: Path, precision: str, keep: tuple[str, ...]) -> Run:
    """The FP32 file computing on values rounded to the precision, as a run."""
    from loadgen.convert.mixed import rounded

    model = load(source)
    rounded(model, precision, choose_kept(model, precision, keep))
    file = to.with_name(f"{to.name}.rounded")
    try:
        save(model, file)
        return onnx_run(file)
    finally:
        for left in to.parent.glob(f"{file.name}*"):
            left.unlink()
