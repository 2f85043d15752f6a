"""An ONNX file to a TensorRT engine, through whichever TensorRT is installed: 10.12 to 11.x, or TensorRT for RTX.

Strongly typed always: the types are the graph's own, so one way builds with every version.  What an engine takes
and gives is read back from the engine; where no GPU can load it, types and axes from what the builder lists of the
engine that it finished, and its optimization profiles from the plan's bytes (`EngineFacts`).  It must not know Triton's configuration or where the plan is published.
"""

import contextlib
import gc
import importlib
import re
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from loadgen.convert import timing_cache
from loadgen.convert.config import FullTensor
from loadgen.convert.plan_file import read_profiles
from loadgen.convert.profiles import Ranges
from loadgen.convert.tensorrt_log import Log, logger_of, parser_line, said
from loadgen.environment.cuda import Device, cuda_device
from loadgen.records import LoadgenError

RTX = "tensorrt_rtx"
_MODULES = (("tensorrt", "tensorrt"), (RTX, "tensorrt_rtx"), (RTX, "tensorrt_rtx_bindings"))
_OLDEST = (10, 12)
_GIB = 2**30
_TYPES = {  # trt.DataType to KServe v2
    "FLOAT": "FP32", "HALF": "FP16", "BF16": "BF16", "INT64": "INT64", "INT32": "INT32",
    "INT8": "INT8", "UINT8": "UINT8", "BOOL": "BOOL",
}  # fmt: skip
_LOGGED = {  # the same as the builder's log has them
    "Float": "FP32", "Half": "FP16", "BFloat16": "BF16", "Int64": "INT64", "Int32": "INT32",
    "Int8": "INT8", "UInt8": "UINT8", "Bool": "BOOL",
}  # fmt: skip


class TensorRTError(LoadgenError):
    """A TensorRT that is missing or unfit, or a model that it does not build."""


@dataclass(frozen=True, slots=True)
class TensorRT:
    """An installed TensorRT.  `kind` is "tensorrt", which Triton loads engines of, or "tensorrt_rtx"."""

    module: ModuleType
    kind: str
    version: str

    @property
    def title(self) -> str:
        return f"TensorRT{' for RTX' if self.kind == RTX else ''} {self.version}"


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """`target` is a compute capability such as "8.9", only for RTX; None builds for the GPU that is there.

    `cache` is the folder of timing caches, None for none; each version, GPU and capability has its own file.
    """

    profiles: tuple[Ranges, ...]
    workspace_bytes: int = 4 * _GIB
    target: str | None = None
    tf32: bool = False
    version_compatible: bool = False
    cache: Path | None = None


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine takes and gives, and the shapes it is made for."""

    inputs: tuple[FullTensor, ...]
    outputs: tuple[FullTensor, ...]
    profiles: tuple[Ranges, ...]
    read_from: str  # "engine"; where no GPU loads it, "builder" (its log of the finished engine) or "network"
    profiles_from: str  # "engine"; where no GPU loads it, "plan" (the file's bytes) or "request"


@dataclass(frozen=True, slots=True)
class Built:
    """An engine on the disk and how it came about; `recorded` is for the sidecar."""

    facts: EngineFacts
    kind: str
    version: str
    compute: str | None  # the capability it was built for
    gpu: str | None
    seconds: float
    plan_bytes: int
    timing_cache: str  # "used", "new", "none" (RTX has none)
    warnings: tuple[str, ...] = ()

    def recorded(self) -> dict[str, Any]:
        tensors = {
            side: [{"name": t.name, "datatype": t.datatype, "shape": list(t.axes)} for t in values]
            for side, values in (("inputs", self.facts.inputs), ("outputs", self.facts.outputs))
        }
        return {
            "module": self.kind, "version": self.version, "compute": self.compute, "gpu": self.gpu,
            "seconds": round(self.seconds, 3), "bytes": self.plan_bytes, "timing_cache": self.timing_cache,
            "read_from": self.facts.read_from, "profiles_from": self.facts.profiles_from, **tensors,
            "warnings": list(self.warnings),
            "profiles": [
                {n: [list(shape) for shape in three] for n, three in p.shapes.items()} for p in self.facts.profiles
            ],
        }  # fmt: skip


def find_tensorrt(kind: str | None = None) -> TensorRT:
    """The TensorRT to build with: the full one before that for RTX, unless `kind` asks for one.

    Raises TensorRTError: none is installed, one does not load (and why), or it is older than 10.12.
    """
    broken = []
    for name, module in _MODULES:
        if kind not in (None, name):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = importlib.import_module(module)
            version = str(found.__version__)
        except ModuleNotFoundError as why:
            if why.name is not None and why.name.partition(".")[0] not in (module, "tensorrt_libs"):
                broken.append(f"{module} needs {why.name}")
            continue
        except Exception as why:  # noqa: BLE001 - a library that does not load says so in many ways
            broken.append(f"{module} does not load: {' '.join(str(why).split())}")
            continue
        if name != RTX and numbers(version)[:2] < _OLDEST:
            raise TensorRTError(
                f"TensorRT {version} is too old; 10.12 or newer builds strongly typed as is done here"
            )
        return TensorRT(found, name, version)
    if broken:
        raise TensorRTError("; ".join(broken))
    raise TensorRTError(
        f"{'TensorRT' if kind is None else kind} is not installed; the server's own comes with its image, and "
        "pip install 'loadgen[rtx]' brings TensorRT for RTX, whose engines Triton does not load"
    )


def numbers(version: str) -> tuple[int, ...]:
    """10.13.2.6 as (10, 13, 2, 6); what follows a "+" or is no number is left out."""
    return tuple(int(part) for part in version.partition("+")[0].split(".") if part.isdecimal())


def build(found: TensorRT, onnx: Path, plan: Path, options: BuildOptions) -> Built:
    """Builds `plan` from `onnx` and reads it back.  Takes seconds to minutes.

    Raises TensorRTError with the parser's or the builder's own lines; then no plan is written.
    """
    trt, log = found.module, Log()
    if not options.profiles:
        raise TensorRTError("no optimization profile: an engine with free axes needs at least one")
    device = cuda_device()
    if found.kind != RTX and device is None:
        raise TensorRTError(f"{found.title} builds on the GPU it is for, and there is none here")
    start = time.monotonic()
    with _undisturbed():
        logger = logger_of(trt, log)
        builder = trt.Builder(logger)
        network = builder.create_network(_typed(trt, found))
        _parse(trt, network, logger, onnx, log)
        config = builder.create_builder_config()
        compute = _configure(found, config, options, device)
        for ranges in options.profiles:
            config.add_optimization_profile(_profile(builder, network, ranges))
        cache = None  # RTX has timing caches in name only
        if options.cache is not None and found.kind != RTX and device is not None:
            cache = timing_cache.file_of(options.cache, found.version, device)
        state = timing_cache.load(config, cache)
        engine = builder.build_serialized_network(network, config)
        if engine is None:
            raise TensorRTError(f"{found.title} cannot build {onnx.name}: {said(log.errors)}")
        if cache is not None:
            timing_cache.store(cache, config.get_timing_cache().serialize())
        try:
            plan.write_bytes(memoryview(engine))
            loads = device is not None and device.compute == compute
            read = read_engine(found, plan) if loads else None
            facts = read or _unloaded(found, plan, network, options, log)
        except BaseException:
            plan.unlink(missing_ok=True)
            raise
    return Built(
        facts=facts,
        kind=found.kind,
        version=found.version,
        compute=compute,
        gpu=None if device is None else device.name,
        seconds=time.monotonic() - start,
        plan_bytes=plan.stat().st_size,
        timing_cache=state,
        warnings=tuple(dict.fromkeys(log.warnings)),
    )


def _typed(trt: Any, found: TensorRT) -> int:
    """Strongly typed: a flag of 10.x; later ones and RTX know nothing else."""
    if found.kind == RTX or numbers(found.version)[0] >= 11:  # noqa: PLR2004
        return 0
    return 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)


def _parse(trt: Any, network: Any, logger: Any, onnx: Path, log: Log) -> None:
    parser = trt.OnnxParser(network, logger)
    if parser.parse_from_file(str(onnx)) and network.num_outputs:
        return
    if not parser.num_errors:
        raise TensorRTError(f"{onnx.name} is no ONNX model: there is no output in it")
    lines = [parser_line(parser.get_error(i)) for i in range(parser.num_errors)]
    raise TensorRTError(f"TensorRT cannot read {onnx.name}: {said(lines or log.errors)}")


def _configure(found: TensorRT, config: Any, options: BuildOptions, device: Device | None) -> str | None:
    """Sets flags and limits; returns the compute capability that is built for, "8.9"."""
    trt = found.module
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_bytes)
    if not options.tf32:
        config.clear_flag(trt.BuilderFlag.TF32)
    if options.version_compatible:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    here = None if device is None else device.compute
    if options.target is None:
        if found.kind == RTX and here is None:
            raise TensorRTError("no GPU here to build for; say which with a compute capability, e.g. 8.9")
        return str(here)
    if found.kind != RTX:
        if options.target != here:
            raise TensorRTError(
                f"{found.title} builds for the GPU that is here ({here}), not for compute capability {options.target}"
            )
        return here
    name = f"SM{options.target.replace('.', '')}"
    known = [n for n in dir(trt.ComputeCapability) if n.startswith("SM")]
    if name not in known:
        allowed = ", ".join(f"{n[2:-1]}.{n[-1]}" for n in known)
        raise TensorRTError(
            f"{found.title} does not build for compute capability {options.target}; allowed: {allowed}"
        )
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, name), 0)
    return options.target


def _profile(builder: Any, network: Any, ranges: Ranges) -> Any:
    profile = builder.create_optimization_profile()
    names = [network.get_input(i).name for i in range(network.num_inputs)]
    missing = [name for name in names if name not in ranges.shapes]
    if missing:
        raise TensorRTError(
            f"no shapes for the input {missing[0]!r}; an optimization profile names every input"
        )
    for name in names:
        low, typical, high = ranges.shapes[name]
        try:
            profile.set_shape(name, low, typical, high)
        except (ValueError, RuntimeError, TypeError) as why:
            raise TensorRTError(f"{name}: {low}, {typical}, {high} are no shapes for it: {why}") from None
    return profile


def _unloaded(found: TensorRT, plan: Path, network: Any, options: BuildOptions, log: Log) -> EngineFacts:
    """What an engine is where no GPU loads it: there is none, or it is of another kind than the engine is for."""
    takes = [network.get_input(i) for i in range(network.num_inputs)]
    gives = [network.get_output(i) for i in range(network.num_outputs)]
    inputs, outputs = (tuple(_logged(log.engine, t) or _declared(t) for t in side) for side in (takes, gives))
    profiles = read_profiles(plan, [tensor.name for tensor in inputs])
    if profiles is None:
        log.warnings.append(
            f"{found.title} writes plans whose optimization profiles cannot be read without a GPU"
        )
    elif profiles != options.profiles:
        raise TensorRTError(
            f"{found.title} built other optimization profiles than were asked for: {'; '.join(map(str, profiles))}"
        )
    return EngineFacts(
        inputs,
        outputs,
        profiles or options.profiles,
        "builder" if log.engine else "network",
        "plan" if profiles else "request",
    )


def _logged(engine: str, tensor: Any) -> FullTensor | None:
    """A tensor as the builder lists it for the engine that it finished: `name [profile 1] (Int64[-1,-1])`."""
    found = re.search(
        rf"(?<![^ ]){re.escape(tensor.name)}(?: \[profile \d+\])? \((\w+)\[([-\d,]*)\]\)", engine
    )
    if found is None or found[1] not in _LOGGED:
        return None
    return FullTensor(tensor.name, _LOGGED[found[1]], tuple(int(n) for n in found[2].split(",") if n))


def _declared(tensor: Any) -> FullTensor:
    return FullTensor(tensor.name, _datatype(tensor.name, tensor.dtype), tuple(tensor.shape))


def _datatype(name: str, dtype: Any) -> str:
    kind = str(dtype).rpartition(".")[2]
    if kind not in _TYPES:
        raise TensorRTError(f"{name} is {kind}, a type that Triton has no name for")
    return _TYPES[kind]


def read_engine(found: TensorRT, plan: Path) -> EngineFacts | None:
    """What a plan says of itself; None when there is no GPU to load it on.

    Raises TensorRTError with TensorRT's own words for a plan it does not load: of another version, for another
    GPU, cut short.
    """
    if cuda_device() is None:
        return None
    trt, log = found.module, Log()
    with _undisturbed():
        engine = trt.Runtime(logger_of(trt, log)).deserialize_cuda_engine(plan.read_bytes())
    if engine is None:
        raise TensorRTError(f"{found.title} does not load {plan.name}: {said(log.errors)}")
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    tensors = {
        n: FullTensor(n, _datatype(n, engine.get_tensor_dtype(n)), tuple(engine.get_tensor_shape(n)))
        for n in names
    }
    takes = [n for n in names if engine.get_tensor_mode(n) == trt.TensorIOMode.INPUT]
    return EngineFacts(
        tuple(tensors[n] for n in takes),
        tuple(tensors[n] for n in names if n not in takes),
        ranges_of(engine, takes),
        "engine",
        "engine",
    )


def ranges_of(engine: Any, inputs: Sequence[str]) -> tuple[Ranges, ...]:
    """The optimization profiles that a loaded engine has."""
    return tuple(
        Ranges({n: _shapes(engine.get_tensor_profile_shape(n, i)) for n in inputs})
        for i in range(engine.num_optimization_profiles)
    )


def _shapes(three: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    low, typical, high = (tuple(shape) for shape in three)
    return low, typical, high


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Without deprecation warnings, and without garbage collection: TensorRT logs under a lock of its own, and a
    collection within `Logger.log` that frees another of its objects waits for that lock for ever.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        if collects:
            gc.enable()
