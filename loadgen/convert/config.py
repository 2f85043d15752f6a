"""A converted model's configuration: which tensors it shows, and what serves it how, as a typed ModelConfig.

It must not know where the file goes or how the model was made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loadgen.convert.serve_options import CPU_ACCELERATOR, Flavour, Queue, ServeOptions, whole_number
from loadgen.records import TensorSpec
from loadgen.triton import config as triton
from loadgen.triton.config_enums import DataType, GroupKind, TimeoutAction
from loadgen.triton.pbtxt import ConfigError
from loadgen.triton.pbtxt import render as render_config


@dataclass(frozen=True, slots=True)
class FullTensor:
    """An input or output as a model file has it, the batch axis too; a free axis is its name or -1."""

    name: str
    datatype: str  # KServe v2
    axes: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Serving:
    """How a model is served.  Shapes are without the batch axis, which Triton adds when max_batch is above 0.

    A shape () is a number a row: Triton has no dims [], so it is shown as [1] and reshaped.  `warmup` are made by
    `warmup.plan`; `plan_profiles` is how many optimization profiles a TensorRT plan has.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch: int
    delay_ns: int
    instances: int
    ragged: bool
    parameters: Mapping[str, str]
    options: ServeOptions = field(default_factory=ServeOptions)
    warmup: tuple[triton.Warmup, ...] = ()
    plan_profiles: int = 0

    @property
    def delay_us(self) -> int:
        """Triton counts the delay in whole microseconds."""
        return round(self.delay_ns / 1000)


@dataclass(frozen=True, slots=True)
class Shown:
    """A model's tensors as a configuration names them; `why` says what kept the batch from being free."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch: int
    why: str = ""


def show(
    inputs: Sequence[FullTensor], outputs: Sequence[FullTensor], max_batch: int, *, by_name: bool = True
) -> Shown:
    """What of a file's tensors belongs into the configuration, every input and output looked at.

    With a batch axis that is free everywhere, dims leave it out; otherwise `max_batch` becomes 0, dims are the
    whole shapes and `why` names the tensor.  `by_name`: first axes of different names are no batch.  Raises ConfigError for a scalar that no configuration can name.
    """
    tensors = [*inputs, *outputs]
    why = ""
    if max_batch:
        why = next(filter(None, map(_not_batched, tensors)), "")
        why = why or (_different_axes(inputs, outputs) if by_name else "")
    batch = 0 if why else max_batch
    scalars = [t.name for t in tensors if not t.axes]
    if scalars:
        raise ConfigError(
            f"{', '.join(scalars)}: a tensor of shape [] cannot be served; give it the shape [1] in the model"
            + (", or [batch] to have it batched" if max_batch else "")
        )
    cut = 1 if batch else 0
    return Shown(tuple(_spec(t, cut) for t in inputs), tuple(_spec(t, cut) for t in outputs), batch, why)


def _not_batched(tensor: FullTensor) -> str:
    if not tensor.axes:
        return f"{tensor.name} is a scalar, without a batch axis"
    first = tensor.axes[0]
    if isinstance(first, int) and first >= 0:
        return (
            f"{tensor.name} has the fixed shape {_bracketed(tensor.axes)}: its first axis is always {first}"
        )
    return ""


def _different_axes(inputs: Sequence[FullTensor], outputs: Sequence[FullTensor]) -> str:
    """Free axes have names in ONNX: a first axis of another name than the inputs' is no batch."""
    names = [t.axes[0] for t in inputs]
    if not names or not all(isinstance(name, str) for name in names):
        return ""
    for tensor in (*inputs, *outputs):
        if isinstance(tensor.axes[0], str) and tensor.axes[0] != names[0]:
            return (
                f"{tensor.name} begins with the axis {tensor.axes[0]!r}, {inputs[0].name} with {names[0]!r}"
            )
    return ""


def _spec(tensor: FullTensor, cut: int) -> TensorSpec:
    shape = tuple(axis if isinstance(axis, int) and axis >= 0 else -1 for axis in tensor.axes[cut:])
    return TensorSpec(tensor.name, tensor.datatype, shape)


def _bracketed(axes: Sequence[str | int]) -> str:
    return f"[{', '.join(map(str, axes))}]"


def render(serving: Serving) -> str:
    """The text of config.pbtxt, read back and compared before it is returned.  Raises ConfigError."""
    return render_config(model_config(serving))


def model_config(serving: Serving) -> triton.ModelConfig:
    """The configuration.  Raises ConfigError for what cannot be served so."""
    told = serving.options
    python = told.flavour is Flavour.PYTHON
    too_large = [size for size in told.preferred if size > serving.max_batch]
    if too_large:
        raise ConfigError(f"preferred batch size {too_large[0]}: the largest batch is {serving.max_batch}")
    queued = told.priority_levels or told.preserve_ordering or told.queue != Queue()
    if queued and not serving.max_batch:
        raise ConfigError(
            "priorities, queues and order are the dynamic batcher's, and this model is not batched"
        )
    return triton.ModelConfig(
        name=serving.name,
        backend="python" if python else "",
        platform="" if python else str(told.flavour),
        max_batch_size=serving.max_batch,
        input=tuple(_input(spec, serving, python) for spec in serving.inputs),
        output=tuple(_output(spec, serving.max_batch) for spec in serving.outputs),
        instance_group=(_group(serving),),
        dynamic_batching=_batching(serving) if serving.max_batch else None,
        version_policy=_versions(told.versions),
        optimization=_optimization(told),
        parameters={key: triton.Parameter(value) for key, value in serving.parameters.items()},
        model_warmup=serving.warmup,
        response_cache=triton.ResponseCache(enable=True) if told.cache else None,
    )


def _input(spec: TensorSpec, serving: Serving, python: bool) -> triton.Input:
    dims, reshape = _dims(spec, serving.max_batch)
    return triton.Input(
        name=spec.name,
        data_type=_data_type(spec),
        dims=dims,
        reshape=reshape,
        # The two only go where our runner pads and fills; a graph has no such inputs.
        allow_ragged_batch=python and serving.ragged and bool(serving.max_batch),
        optional=python and spec.optional,
    )


def _output(spec: TensorSpec, max_batch: int) -> triton.Output:
    dims, reshape = _dims(spec, max_batch)
    return triton.Output(name=spec.name, data_type=_data_type(spec), dims=dims, reshape=reshape)


def _dims(spec: TensorSpec, max_batch: int) -> tuple[tuple[int, ...], triton.Reshape | None]:
    if spec.shape:
        return spec.shape, None
    if not max_batch:
        raise ConfigError(
            f"{spec.name}: a tensor of shape [] cannot be served; give it the shape [1] in the model"
        )
    return (1,), triton.Reshape(())


def _data_type(spec: TensorSpec) -> DataType:
    try:
        return DataType("TYPE_STRING" if spec.datatype == "BYTES" else f"TYPE_{spec.datatype}")
    except ValueError:
        raise ConfigError(f"{spec.name}: Triton has no data type {spec.datatype}") from None


def _group(serving: Serving) -> triton.InstanceGroup:
    told = serving.options
    gpu = bool(told.gpus) or told.flavour is Flavour.TENSORRT
    profiles = tuple(map(str, range(serving.plan_profiles))) if serving.plan_profiles > 1 else ()
    return triton.InstanceGroup(
        count=serving.instances,
        kind=GroupKind.KIND_GPU if gpu else GroupKind.KIND_CPU,
        gpus=told.gpus,
        profile=profiles,
    )


def _batching(serving: Serving) -> triton.DynamicBatching:
    told = serving.options
    policy = _policy(told.queue)
    return triton.DynamicBatching(
        preferred_batch_size=told.preferred,
        max_queue_delay_microseconds=serving.delay_us,
        preserve_ordering=told.preserve_ordering,
        priority_levels=told.priority_levels,
        # With levels Triton wants a default; the middle leaves room on both sides.
        default_priority_level=told.default_priority or (told.priority_levels + 1) // 2,
        default_queue_policy=None if policy == triton.QueuePolicy() else policy,
        priority_queue_policy={level: _policy(queue) for level, queue in told.level_queues},
    )


def _policy(queue: Queue) -> triton.QueuePolicy:
    return triton.QueuePolicy(
        timeout_action=TimeoutAction.DELAY if queue.delays else TimeoutAction.REJECT,
        default_timeout_microseconds=queue.timeout_us,
        allow_timeout_override=queue.override,
        max_queue_size=queue.most,
    )


def _versions(text: str) -> triton.VersionPolicy | None:
    kind, _, count = text.partition(":")
    if not text:
        return None
    if text == "all":
        return triton.VersionPolicy(all=triton.All())
    if kind == "latest" and (newest := whole_number(count, 2**32 - 1)):
        return triton.VersionPolicy(latest=triton.Latest(newest))
    numbers = [whole_number(number.strip(), 2**63 - 1) for number in text.split(",")]
    if None not in numbers:
        return triton.VersionPolicy(specific=triton.Specific(tuple(n for n in numbers if n is not None)))
    raise ConfigError(f"versions {text!r}: allowed are latest:N, all, or numbers with commas, e.g. 1,3")


def _optimization(told: ServeOptions) -> triton.Optimization | None:
    accelerators = [
        (name, dict(_pairs(rest))) for name, _, rest in (a.partition(":") for a in told.accelerators)
    ]
    on_gpu = tuple(triton.Accelerator(n, p) for n, p in accelerators if n != CPU_ACCELERATOR)
    on_cpu = tuple(triton.Accelerator(n, p) for n, p in accelerators if n == CPU_ACCELERATOR)
    made = triton.Optimization(
        graph=triton.Graph(told.graph_level) if told.graph_level else None,
        cuda=triton.Cuda(graphs=True) if told.cuda_graphs else None,
        execution_accelerators=triton.Accelerators(on_gpu, on_cpu) if accelerators else None,
        eager_batching=told.eager_batching,
    )
    return None if made == triton.Optimization() else made


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = [(key, value) for key, _, value in (part.partition("=") for part in text.split(",") if part)]
    if any(not key or not value for key, value in pairs):
        raise ConfigError(f"accelerator parameters {text!r}: allowed are key=value with commas")
    return pairs
