"""From an ONNX file to a servable version: the files its flavour needs, its warm-up data and its config.pbtxt.

It must not know where the model came from, and publishes nothing: it writes into a stage.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadgen.convert import publish, tensorrt, warmup
from loadgen.convert.beside import unfit_beside
from loadgen.convert.calibration import profile_lengths
from loadgen.convert.config import FullTensor, Serving, Shown, model_config, render, show
from loadgen.convert.options import ConvertOptions
from loadgen.convert.profiles import Ranges, Span, buckets, ranges, served_batch, span
from loadgen.convert.same_server import require_compute, require_loadable, require_same_gpu, require_version
from loadgen.convert.serve_options import Flavour, PlanOptions
from loadgen.environment import cuda
from loadgen.environment.probe import server_tensorrt
from loadgen.records import TensorSpec
from loadgen.triton.config_check import PLATFORMS
from loadgen.triton.install import BACKENDS, home
from loadgen.triton.pbtxt import ConfigError

ONNX, PLAN = "model.onnx", "model.plan"
_PLAN_BATCH = "--plan-batch"
RUNNER = Path(__file__).parent / "runner" / "model.py"


@dataclass(frozen=True, slots=True)
class Exported:
    """What is known of the ONNX file in a stage.

    `batched` says whether the first axes are the batch; None: they are where they are free and of one name.  `padded`: the runner may join rows of different
    lengths.  `optional` inputs are filled by the runner when a request has none.  `parameters` go into the config.
    `fills` are the values a whole-number input may take, for warm-ups.  `max_length` is the longest row served.
    """

    inputs: tuple[FullTensor, ...]
    outputs: tuple[FullTensor, ...]
    max_length: int
    batched: bool | None = None
    padded: bool = True
    optional: frozenset[str] = frozenset()
    parameters: Mapping[str, str] = field(default_factory=dict)
    fills: Mapping[str, warmup.Fill] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaidOut:
    """What was written; `recorded` is for the sidecar, `warnings` for the user."""

    serving: Serving
    recorded: dict[str, Any]
    warnings: tuple[str, ...]


def lay_out(
    stage: publish.Stage, model: Exported, options: ConvertOptions, progress: Callable[[str], None]
) -> LaidOut:
    """Completes a stage that holds `model.onnx` (and its weights' file) for the flavour that was asked for.

    Raises ConfigError, TensorRTError, BesideError or a refusal of the server's version; the stage is then worth nothing.
    """
    flavour = options.serve.flavour
    serves: dict[str, Any] = {"flavour": str(flavour)}
    told: dict[str, Any] = {"serving": serves}
    profiles = 0
    if flavour is Flavour.TENSORRT:
        shown, told["tensorrt"], profiles, warnings = _plan(stage, model, options, progress)
    else:
        largest = options.max_batch if model.batched is not False else 0
        shown = show(model.inputs, model.outputs, largest, by_name=model.batched is None)
        warnings = []
    if flavour is Flavour.PYTHON:
        (stage.version / RUNNER.name).write_bytes(RUNNER.read_bytes())
    if shown.why:
        warnings.append(f"max_batch_size is 0, nothing is batched: {shown.why}")
    if (backend := PLATFORMS.get(str(flavour), (str(flavour), ""))[0]) not in BACKENDS:
        warnings.append(
            f"{flavour} needs a Triton with the {backend} backend: the embedded one has {', '.join(BACKENDS)} alone, so "
            "nobody has asked this model yet; `loadgen parity` asks it where it is served"
        )
    grid = warmup.plan(
        shown.inputs, options.serve.warmup, model.fills, max_batch=shown.max_batch, version=options.version
    )
    serving = Serving(
        name=options.name,
        inputs=tuple(
            TensorSpec(t.name, t.datatype, t.shape, optional=t.name in model.optional) for t in shown.inputs
        ),
        outputs=shown.outputs,
        max_batch=shown.max_batch,
        delay_ns=options.delay_ns,
        instances=options.instances,
        ragged=options.ragged and model.padded,
        parameters=_parameters(model, options),
        options=options.serve,
        warmup=grid.warmup,
        plan_profiles=profiles,
    )
    if (unfit := unfit_beside(options.model_folder, options.version, model_config(serving))) is not None:
        warnings.append(unfit)
    (stage.model / publish.CONFIG).write_text(render(serving), encoding="ascii")
    if grid.files:
        folder = stage.model / publish.WARMUP
        folder.mkdir()
        for name, data in grid.files.items():
            (folder / name).write_bytes(data)
    files = {f.name: f.stat().st_size for f in sorted(stage.version.iterdir())}
    serves |= {"max_batch": shown.max_batch, "warnings": warnings, "files": files}
    return LaidOut(serving, told, tuple(warnings))


def require_flavour(options: ConvertOptions) -> None:
    """Refuses at once what would be refused after minutes: first options that are wrong wherever it is converted, as
    those of serving that no model of this largest batch can have; then a TensorRT that is missing or not the
    server's, and GPUs that the check needs and this machine lacks.
    """
    _require_servable(options)
    if options.serve.flavour is Flavour.TENSORRT:
        _require_plan(options.serve.plan)
        _fitting(options.serve.plan)
    if options.check_served and options.serve.gpus:
        _require_gpus(options.serve.gpus)


def _require_plan(asked: PlanOptions) -> None:
    """Every option of an engine that can be read without TensorRT.  Raises a LoadgenError that names it."""
    if asked.batch:
        span(asked.batch, _PLAN_BATCH)
    if asked.traffic:
        profile_lengths(Path(asked.traffic))
    if asked.server_tensorrt:
        require_version(asked.server_tensorrt)
    if asked.server_compute:
        require_compute(asked.server_compute)


def _require_gpus(gpus: tuple[int, ...]) -> None:
    """Raises ConfigError where the embedded Triton would not find them."""
    found = cuda.ask()
    missing = [gpu for gpu in gpus if gpu >= len(found.devices)]
    if missing:
        there = (
            f"none beyond GPU {len(found.devices) - 1}"
            if found.devices
            else f"no GPU ({found.why or 'the driver names none'})"
        )
        raise ConfigError(
            f"check_served asks a server on this machine for GPU {missing[0]}, and there is {there}; check with "
            "`loadgen parity` where the model is served"
        )


def _require_servable(options: ConvertOptions) -> None:
    """A configuration of those options for a tensor that stands for the model's.  Raises ConfigError."""
    some = (TensorSpec("any", "FP32", (-1,)),)
    grid = warmup.plan(some, options.serve.warmup, {}, max_batch=options.max_batch, version=options.version)
    policy = model_config(
        Serving(
            name=options.name, inputs=some, outputs=some, max_batch=options.max_batch, delay_ns=options.delay_ns,
            instances=options.instances, ragged=options.ragged, parameters={}, options=options.serve,
            warmup=grid.warmup, plan_profiles=1,
        )
    ).version_policy  # fmt: skip
    if policy and policy.specific and options.version not in policy.specific.versions:
        raise ConfigError(
            f"versions {options.serve.versions!r}: version {options.version}, which is to be published, is not "
            "among them and would not be served"
        )


def _fitting(asked: PlanOptions) -> tensorrt.TensorRT:
    found = tensorrt.find_tensorrt()
    server = asked.server_tensorrt or server_tensorrt()
    require_loadable(found.kind, found.version, server, version_compatible=asked.version_compatible)
    return found


def _parameters(model: Exported, options: ConvertOptions) -> dict[str, str]:
    threads = {} if options.threads is None else {
        Flavour.PYTHON: {"threads": str(options.threads)},
        Flavour.ONNX: {"intra_op_thread_count": str(options.threads)},
        Flavour.TENSORRT: {},
    }[options.serve.flavour]  # fmt: skip
    return {**model.parameters, **threads}


def _plan(
    stage: publish.Stage, model: Exported, options: ConvertOptions, progress: Callable[[str], None]
) -> tuple[Shown, dict[str, Any], int, list[str]]:
    """Builds the engine in place of the ONNX file; the configuration's tensors are the engine's own."""
    asked = options.serve.plan
    found = _fitting(asked)
    batch = show(model.inputs, model.outputs, options.max_batch, by_name=model.batched is None)
    if batch.why or model.batched is False:
        why = batch.why or "none of its axes is a batch"
        raise ConfigError(f"a TensorRT engine is built for batches here, and this model takes none: {why}")
    made_for = profiles_of(model, options.max_batch, asked)
    progress(f"building with {found.title}, {len(made_for)} optimization profiles")
    built = tensorrt.build(
        found,
        stage.version / ONNX,
        stage.version / PLAN,
        tensorrt.BuildOptions(
            profiles=made_for,
            workspace_bytes=asked.workspace_mib * 2**20,
            tf32=asked.tf32,
            version_compatible=asked.version_compatible,
            cache=home().parent / "tensorrt",
        ),
    )
    require_same_gpu(built, asked.server_compute or None)
    for file in stage.version.glob(f"{ONNX}*"):
        file.unlink()
    largest, warnings = served_batch(built.facts.profiles)
    shown = show(built.facts.inputs, built.facts.outputs, largest)
    return shown, built.recorded(), len(built.facts.profiles), warnings


def profiles_of(model: Exported, max_batch: int, asked: PlanOptions) -> tuple[Ranges, ...]:
    """The optimization profiles: batches as asked, lengths in buckets of the traffic's own."""
    batch = span(asked.batch, _PLAN_BATCH) if asked.batch else Span(1, max_batch, max_batch)
    lengths = profile_lengths(Path(asked.traffic)) if asked.traffic else []
    return ranges(model.inputs, batch, buckets(lengths, model.max_length, asked.buckets))
