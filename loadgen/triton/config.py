"""Triton's model configuration as typed values, one class a message, fields named as in model_config.proto.

Read from and written to its JSON form, which is what a server tells and what a load with an override takes;
`pbtxt` has the text form.  Pure: it must not know files, servers or protobuf, nor whether a configuration is wise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from loadgen.triton import forms
from loadgen.triton.config_enums import (
    BatchInputKind,
    BatchOutputKind,
    DataType,
    Format,
    GroupKind,
    Priority,
    SecondaryDeviceKind,
    TimeoutAction,
)
from loadgen.triton.config_sequences import SequenceBatching


def _no_map() -> Any:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Reshape:
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Input:
    """`dims` are without the batch axis when max_batch_size is above 0; -1 is a free size."""

    name: str = ""
    data_type: DataType = DataType.TYPE_INVALID
    format: Format = Format.FORMAT_NONE
    dims: tuple[int, ...] = ()
    reshape: Reshape | None = None
    is_shape_tensor: bool = False
    allow_ragged_batch: bool = False
    optional: bool = False
    is_non_linear_format_io: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    name: str = ""
    data_type: DataType = DataType.TYPE_INVALID
    dims: tuple[int, ...] = ()
    reshape: Reshape | None = None
    label_filename: str = ""
    is_shape_tensor: bool = False
    is_non_linear_format_io: bool = False


@dataclass(frozen=True, slots=True)
class BatchInput:
    kind: BatchInputKind = BatchInputKind.BATCH_ELEMENT_COUNT
    target_name: tuple[str, ...] = ()
    data_type: DataType = DataType.TYPE_INVALID
    source_input: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchOutput:
    target_name: tuple[str, ...] = ()
    kind: BatchOutputKind = BatchOutputKind.BATCH_SCATTER_WITH_INPUT_SHAPE
    source_input: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Latest:
    num_versions: int = 0


@dataclass(frozen=True, slots=True)
class All:
    pass


@dataclass(frozen=True, slots=True)
class Specific:
    versions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """One of the three; left out, the server takes the newest version."""

    latest: Latest | None = None
    all: All | None = None
    specific: Specific | None = None


@dataclass(frozen=True, slots=True)
class Resource:
    name: str = ""
    global_: bool = False
    count: int = 0


@dataclass(frozen=True, slots=True)
class RateLimiter:
    resources: tuple[Resource, ...] = ()
    priority: int = 0


@dataclass(frozen=True, slots=True)
class SecondaryDevice:
    kind: SecondaryDeviceKind = SecondaryDeviceKind.KIND_NVDLA
    device_id: int = 0


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """`count` is a device's own: 2 on gpus [0, 1] makes 4 instances.  0 stands for 1."""

    name: str = ""
    kind: GroupKind = GroupKind.KIND_AUTO
    count: int = 0
    rate_limiter: RateLimiter | None = None
    gpus: tuple[int, ...] = ()
    secondary_devices: tuple[SecondaryDevice, ...] = ()
    profile: tuple[str, ...] = ()
    passive: bool = False
    host_policy: str = ""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """Present but empty is not absent: it switches batching on, with no delay."""

    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy | None = None
    priority_queue_policy: Mapping[int, QueuePolicy] = field(default_factory=_no_map)


@dataclass(frozen=True, slots=True)
class Step:
    model_name: str = ""
    model_version: int = 0
    input_map: Mapping[str, str] = field(default_factory=_no_map)
    output_map: Mapping[str, str] = field(default_factory=_no_map)
    model_namespace: str = ""


@dataclass(frozen=True, slots=True)
class Ensemble:
    step: tuple[Step, ...] = ()
    max_inflight_requests: int = 0


@dataclass(frozen=True, slots=True)
class Graph:
    level: int = 0


@dataclass(frozen=True, slots=True)
class GraphShape:
    dim: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LowerBound:
    batch_size: int = 0
    input: Mapping[str, GraphShape] = field(default_factory=_no_map)


@dataclass(frozen=True, slots=True)
class GraphSpec:
    batch_size: int = 0
    input: Mapping[str, GraphShape] = field(default_factory=_no_map)
    graph_lower_bound: LowerBound | None = None


@dataclass(frozen=True, slots=True)
class Cuda:
    graphs: bool = False
    busy_wait_events: bool = False
    graph_spec: tuple[GraphSpec, ...] = ()
    output_copy_stream: bool = False


@dataclass(frozen=True, slots=True)
class Accelerator:
    name: str = ""
    parameters: Mapping[str, str] = field(default_factory=_no_map)


@dataclass(frozen=True, slots=True)
class Accelerators:
    gpu_execution_accelerator: tuple[Accelerator, ...] = ()
    cpu_execution_accelerator: tuple[Accelerator, ...] = ()


@dataclass(frozen=True, slots=True)
class PinnedMemory:
    enable: bool = False


@dataclass(frozen=True, slots=True)
class Optimization:
    graph: Graph | None = None
    priority: Priority = Priority.PRIORITY_DEFAULT
    cuda: Cuda | None = None
    execution_accelerators: Accelerators | None = None
    input_pinned_memory: PinnedMemory | None = None
    output_pinned_memory: PinnedMemory | None = None
    gather_kernel_buffer_threshold: int = 0
    eager_batching: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    string_value: str = ""


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """One of the last three fills it: zeros, the raw bytes of rand(), or a file of the model's warmup folder."""

    data_type: DataType = DataType.TYPE_INVALID
    dims: tuple[int, ...] = ()
    zero_data: bool = False
    random_data: bool = False
    input_data_file: str = ""


@dataclass(frozen=True, slots=True)
class Warmup:
    """`batch_size` requests of one row each, gathered; `count` times over (0 stands for 1)."""

    name: str = ""
    batch_size: int = 0
    inputs: Mapping[str, WarmupInput] = field(default_factory=_no_map)
    count: int = 0


@dataclass(frozen=True, slots=True)
class Operations:
    op_library_filename: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionPolicy:
    decoupled: bool = False


@dataclass(frozen=True, slots=True)
class Agent:
    name: str = ""
    parameters: Mapping[str, str] = field(default_factory=_no_map)


@dataclass(frozen=True, slots=True)
class Agents:
    agents: tuple[Agent, ...] = ()


@dataclass(frozen=True, slots=True)
class ResponseCache:
    enable: bool = False


@dataclass(frozen=True, slots=True)
class MetricIdentifier:
    family: str = ""


@dataclass(frozen=True, slots=True)
class HistogramOptions:
    buckets: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricControl:
    metric_identifier: MetricIdentifier | None = None
    histogram_options: HistogramOptions | None = None


@dataclass(frozen=True, slots=True)
class Metrics:
    metric_control: tuple[MetricControl, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A whole configuration.  A field left at its default is not written, a message left None is absent."""

    name: str = ""
    platform: str = ""
    backend: str = ""
    runtime: str = ""
    version_policy: VersionPolicy | None = None
    max_batch_size: int = 0
    input: tuple[Input, ...] = ()
    output: tuple[Output, ...] = ()
    batch_input: tuple[BatchInput, ...] = ()
    batch_output: tuple[BatchOutput, ...] = ()
    optimization: Optimization | None = None
    dynamic_batching: DynamicBatching | None = None
    sequence_batching: SequenceBatching | None = None
    ensemble_scheduling: Ensemble | None = None
    instance_group: tuple[InstanceGroup, ...] = ()
    default_model_filename: str = ""
    cc_model_filenames: Mapping[str, str] = field(default_factory=_no_map)
    metric_tags: Mapping[str, str] = field(default_factory=_no_map)
    parameters: Mapping[str, Parameter] = field(default_factory=_no_map)
    model_warmup: tuple[Warmup, ...] = ()
    model_operations: Operations | None = None
    model_transaction_policy: TransactionPolicy | None = None
    model_repository_agents: Agents | None = None
    response_cache: ResponseCache | None = None
    model_metrics: Metrics | None = None

    @staticmethod
    def from_json(value: Mapping[str, Any], unknown: list[str] | None = None) -> "ModelConfig":
        """Of the JSON form with proto names, whole numbers as numbers or digits.

        Fields that this version does not know are added to `unknown` by their path, or, when that is None,
        refused.  Raises forms.FormError naming the field.
        """
        return forms.read(ModelConfig, value, unknown)

    def to_json(self) -> dict[str, Any]:
        """The JSON form, without what stands at its default."""
        return forms.write(self)

    @property
    def batches(self) -> bool:
        """Whether the server gathers requests of different senders."""
        return self.dynamic_batching is not None and self.max_batch_size > 1

    @property
    def texts(self) -> dict[str, str]:
        """The string parameters by name."""
        return {key: value.string_value for key, value in self.parameters.items()}
