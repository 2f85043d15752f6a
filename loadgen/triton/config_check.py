"""What of a configuration the server would refuse, or would not do as it reads.

Pure: a ModelConfig in, findings out.  It must not know files, nor the load: whether a configuration is a good one
for some traffic is not asked here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from loadgen.triton.config import DynamicBatching, Input, ModelConfig, Output, QueuePolicy, Warmup
from loadgen.triton.config_enums import DataType, GroupKind, TimeoutAction

PLATFORMS = {  # of the field `platform`: (the backend it stands for, the file it loads)
    "onnxruntime_onnx": ("onnxruntime", "model.onnx"),
    "tensorrt_plan": ("tensorrt", "model.plan"),
    "pytorch_libtorch": ("pytorch", "model.pt"),
    "tensorflow_savedmodel": ("tensorflow", "model.savedmodel"),
    "tensorflow_graphdef": ("tensorflow", "model.graphdef"),
    "ensemble": ("", ""),
}
FILES = {
    "onnxruntime": "model.onnx",
    "tensorrt": "model.plan",
    "pytorch": "model.pt",
    "openvino": "model.xml",
    "python": "model.py",
    "vllm": "model.json",
    "dali": "model.dali",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """`refused`: the model would not load.  Otherwise it loads, and does not do what it seems to."""

    refused: bool
    field: str
    text: str


def backend_of(config: ModelConfig) -> str:
    """The backend that runs it, "" when the configuration leaves that to the files (or is an ensemble)."""
    return config.backend or PLATFORMS.get(config.platform, ("", ""))[0]


def model_file(config: ModelConfig) -> str:
    """The file that its backend loads from a version folder, "" when that is not known."""
    return config.default_model_filename or FILES.get(backend_of(config), "")


def check(config: ModelConfig) -> list[Finding]:
    """Everything found, in the order of the configuration."""
    return [
        *_names(config),
        *_tensors(config),
        *(_batching(config, config.dynamic_batching) if config.dynamic_batching else ()),
        *_groups(config),
        *_accelerators(config),
        *_schedulers(config),
        *(finding for warmup in config.model_warmup for finding in _warmup(config, warmup)),
    ]


def _names(config: ModelConfig) -> Iterator[Finding]:
    if config.platform and not config.backend and config.platform not in PLATFORMS:
        yield Finding(
            True, "platform", f"{config.platform!r} is none: {', '.join(PLATFORMS)}, or set backend"
        )
    if config.max_batch_size < 0:
        yield Finding(True, "max_batch_size", f"{config.max_batch_size} is below 0")
    policy = config.version_policy
    kinds = [
        k for k in ("latest", "all", "specific") if policy is not None and getattr(policy, k) is not None
    ]
    if policy is not None and len(kinds) != 1:
        yield Finding(
            False, "version_policy", "names none of latest, all, specific: the newest version is served"
        )
    if policy is not None and policy.latest is not None and policy.latest.num_versions < 1:
        yield Finding(True, "version_policy.latest", "num_versions 0 leaves no version to serve")


def _tensors(config: ModelConfig) -> Iterator[Finding]:
    for side, tensors in (("input", config.input), ("output", config.output)):
        for name, count in Counter(t.name for t in tensors).items():
            if count > 1:
                yield Finding(False, side, f"{name!r} is there {count} times")
        for tensor in tensors:
            yield from _tensor(side, tensor, config)


def _tensor(side: str, tensor: Input | Output, config: ModelConfig) -> Iterator[Finding]:
    where = f"{side} {tensor.name!r}" if tensor.name else side
    if not tensor.name:
        yield Finding(True, where, "has no name")
    if tensor.data_type is DataType.TYPE_INVALID:
        yield Finding(True, where, "has no data_type")
    if not tensor.dims:
        yield Finding(True, where, "has no dims; a number a row is dims [ 1 ] with reshape { shape: [ ] }")
    bad = [size for size in tensor.dims if size < -1 or size == 0]
    if bad:
        yield Finding(True, where, f"dims hold {bad[0]}; allowed are -1 and 1 or more")
    if tensor.reshape is not None:
        shape = tensor.reshape.shape
        if not shape and not config.max_batch_size:
            yield Finding(True, where, "reshape to [ ] is only for models that batch")
        elif _sizes(shape) != _sizes(tensor.dims):
            yield Finding(True, where, f"dims {list(tensor.dims)} and reshape {list(shape)} differ in size")
    ragged = isinstance(tensor, Input) and tensor.allow_ragged_batch
    if ragged and not config.max_batch_size:
        yield Finding(False, where, "allow_ragged_batch without max_batch_size: nothing is batched")


def _sizes(dims: Sequence[int]) -> list[int]:
    """The elements before, between and after the free dimensions, which is what a reshape has to keep."""
    sizes = [1]
    for size in dims:
        if size == -1:
            sizes.append(1)
        else:
            sizes[-1] *= size
    return sizes


def _batching(config: ModelConfig, batching: DynamicBatching) -> Iterator[Finding]:
    where, largest = "dynamic_batching", config.max_batch_size
    if largest == 0:
        yield Finding(False, where, "does nothing: max_batch_size is 0")
    too_large = [size for size in batching.preferred_batch_size if not 0 < size <= max(largest, 1)]
    if too_large:
        yield Finding(True, f"{where}.preferred_batch_size", f"{too_large[0]}: max_batch_size is {largest}")
    levels, default = batching.priority_levels, batching.default_priority_level
    if levels and not 0 < default <= levels:
        yield Finding(True, f"{where}.default_priority_level", f"{default}: the levels are 1 to {levels}")
    for level in batching.priority_queue_policy:
        if not 0 < level <= levels:
            yield Finding(True, f"{where}.priority_queue_policy", f"level {level}: there are {levels}")
    policies: list[QueuePolicy] = [*batching.priority_queue_policy.values()]
    if batching.default_queue_policy is not None:
        policies.append(batching.default_queue_policy)
    delays = any(policy.timeout_action is TimeoutAction.DELAY for policy in policies)
    if batching.preserve_ordering and (levels > 1 or delays):
        what = "timeout_action DELAY" if delays else f"{levels} priority levels"
        yield Finding(True, f"{where}.preserve_ordering", f"cannot be kept with {what}")
    if any(p.allow_timeout_override and not p.default_timeout_microseconds for p in policies):
        text = "allow_timeout_override without a default timeout: a request's own is ignored"
        yield Finding(False, f"{where}.default_queue_policy", text)


def _groups(config: ModelConfig) -> Iterator[Finding]:
    for i, group in enumerate(config.instance_group):
        where = f"instance_group[{i}]"
        if group.count < 0:
            yield Finding(False, where, f"count {group.count} is below 0")
        if group.gpus and group.kind in (GroupKind.KIND_CPU, GroupKind.KIND_MODEL):
            yield Finding(True, where, f"names GPUs {list(group.gpus)} with {group.kind}")
        if group.profile and backend_of(config) not in ("tensorrt", ""):
            yield Finding(True, where, f"profile {list(group.profile)} is for TensorRT models only")
        if group.kind is GroupKind.KIND_CPU and backend_of(config) == "tensorrt":
            yield Finding(True, where, "KIND_CPU: TensorRT runs on GPUs only")


def _accelerators(config: ModelConfig) -> Iterator[Finding]:
    given = config.optimization.execution_accelerators if config.optimization is not None else None
    kinds = {group.kind for group in config.instance_group}
    if given is None or len(kinds) != 1:  # without groups the server decides
        return
    for side, kind, has in (
        ("gpu", GroupKind.KIND_CPU, given.gpu_execution_accelerator),
        ("cpu", GroupKind.KIND_GPU, given.cpu_execution_accelerator),
    ):
        if has and kind in kinds:
            names = ", ".join(one.name for one in has)
            where = f"optimization.execution_accelerators.{side}_execution_accelerator"
            yield Finding(False, where, f"{names}: no instance runs on a {side.upper()}, all are {kind}")


def _schedulers(config: ModelConfig) -> Iterator[Finding]:
    chosen = [
        name
        for name in ("dynamic_batching", "sequence_batching", "ensemble_scheduling")
        if getattr(config, name) is not None
    ]
    if len(chosen) > 1:
        yield Finding(True, chosen[1], f"beside {chosen[0]}; one of them is allowed")
    ensemble = config.platform == "ensemble"
    if ensemble and config.ensemble_scheduling is None:
        yield Finding(True, "platform", "an ensemble needs ensemble_scheduling")
    if ensemble and config.instance_group:
        yield Finding(True, "instance_group", "an ensemble has no instances of its own")
    if config.response_cache is not None and config.response_cache.enable:
        policy = config.model_transaction_policy
        if policy is not None and policy.decoupled:
            yield Finding(True, "response_cache", "a decoupled model cannot be cached")


def _warmup(config: ModelConfig, warmup: Warmup) -> Iterator[Finding]:
    where = f"model_warmup {warmup.name!r}"
    if warmup.batch_size == 0:
        yield Finding(False, where, "batch_size 0: it is skipped")
    if warmup.batch_size > max(config.max_batch_size, 1):
        yield Finding(
            True, where, f"batch_size {warmup.batch_size}: max_batch_size is {config.max_batch_size}"
        )
    known = {tensor.name: tensor for tensor in config.input}
    if known:
        yield from _missing(where, set(warmup.inputs), known.values())
    for name, given in warmup.inputs.items():
        wanted = known[name].data_type if name in known else given.data_type
        if given.data_type is not wanted:
            yield Finding(True, where, f"{name}: {given.data_type} where the input is {wanted}")
        if -1 in given.dims:
            yield Finding(True, where, f"{name}: dims {list(given.dims)} must all be known sizes")
        if given.random_data and given.data_type.whole:
            yield Finding(False, where, f"{name}: random_data makes whole numbers that are in no vocabulary")
        sources = [given.zero_data, given.random_data, bool(given.input_data_file)]
        if sum(sources) != 1:
            yield Finding(True, where, f"{name}: one of zero_data, random_data, input_data_file is needed")


def _missing(where: str, given: set[str], inputs: Iterable[Input]) -> Iterator[Finding]:
    inputs = list(inputs)
    for name in sorted(given - {tensor.name for tensor in inputs}):
        yield Finding(False, where, f"{name!r} is no input of the model")
    for tensor in inputs:
        if not tensor.optional and tensor.name not in given:
            yield Finding(True, where, f"{tensor.name!r} is missing")
