"""A served model's config.pbtxt: written as text a person can read, proven by Triton's own message.

It must not know where the file goes or how the model was made.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.records import LoadgenError, TensorSpec


class ConfigError(LoadgenError):
    """A configuration that Triton's own definition does not read back as it was meant."""


@dataclass(frozen=True, slots=True)
class Serving:
    """How a model is served.  Shapes are without the batch axis, which Triton adds."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch: int
    delay_ns: int
    instances: int
    ragged: bool
    parameters: Mapping[str, str]

    @property
    def delay_us(self) -> int:
        """Triton counts the delay in whole microseconds."""
        return round(self.delay_ns / 1000)


def render(serving: Serving) -> str:
    """The text of config.pbtxt, read back and compared before it is returned.  Raises ConfigError."""
    batching = serving.max_batch > 0
    blocks = [
        f"name: {_quote(serving.name)}",
        'backend: "python"',
        f"max_batch_size: {serving.max_batch}",
        "",
        *(_tensor("input", spec, serving.ragged) for spec in serving.inputs),
        *(_tensor("output", spec, ragged=None) for spec in serving.outputs),
        f"instance_group [ {{ count: {serving.instances} kind: KIND_CPU }} ]",
        "",
        *([f"dynamic_batching {{ max_queue_delay_microseconds: {serving.delay_us} }}", ""] * batching),
        *(_parameter(key, value) for key, value in serving.parameters.items()),
    ]
    text = "\n".join(blocks) + "\n"
    _prove(text, serving)
    return text


def _quote(text: str) -> str:
    return json.dumps(text)  # for the ASCII that names and numbers are made of, JSON's quoting is protobuf's


def _tensor(field: str, spec: TensorSpec, ragged: bool | None) -> str:
    lines = [
        f"{field} [ {{",
        f"  name: {_quote(spec.name)}",
        f"  data_type: TYPE_{spec.datatype}",
        f"  dims: [ {', '.join(str(size) for size in spec.shape or (1,))} ]",
    ]
    if not spec.shape:  # a scalar an item: Triton allows no empty dims
        lines.append("  reshape { shape: [ ] }")
    if spec.optional:
        lines.append("  optional: true")
    if ragged is not None:
        lines.append(f"  allow_ragged_batch: {str(ragged).lower()}")
    return "\n".join([*lines, "} ]", ""])


def _parameter(key: str, value: str) -> str:
    return f"parameters {{ key: {_quote(key)} value {{ string_value: {_quote(value)} }} }}"


def parse(text: str) -> Any:
    """A `ModelConfig` message of a config.pbtxt.  Raises ConfigError."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as why:
        raise ConfigError(f"config.pbtxt is not a Triton model configuration: {why}") from None


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)


def _prove(text: str, serving: Serving) -> None:
    got = parse(text)
    meant: dict[str, Any] = {
        "name": serving.name,
        "backend": "python",
        "max_batch_size": serving.max_batch,
        "input": [
            (s.name, f"TYPE_{s.datatype}", s.shape, s.optional, serving.ragged) for s in serving.inputs
        ],
        "output": [(s.name, f"TYPE_{s.datatype}", s.shape) for s in serving.outputs],
        "instance_group": [(serving.instances, "KIND_CPU")],
        "delay": serving.delay_us if serving.max_batch else 0,
        "parameters": dict(serving.parameters),
    }
    groups = type(got).DESCRIPTOR.fields_by_name["instance_group"].message_type.enum_types_by_name["Kind"]
    types = type(got).DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_number
    found: dict[str, Any] = {
        "name": got.name,
        "backend": got.backend,
        "max_batch_size": got.max_batch_size,
        "input": [
            (i.name, types[i.data_type].name, _shape(i), i.optional, i.allow_ragged_batch) for i in got.input
        ],
        "output": [(o.name, types[o.data_type].name, _shape(o)) for o in got.output],
        "instance_group": [(g.count, groups.values_by_number[g.kind].name) for g in got.instance_group],
        "delay": got.dynamic_batching.max_queue_delay_microseconds,
        "parameters": {key: value.string_value for key, value in got.parameters.items()},
    }
    wrong = [key for key in meant if meant[key] != found[key]]
    if wrong:
        key = wrong[0]
        raise ConfigError(f"config.pbtxt: {key} reads back as {found[key]!r}, meant was {meant[key]!r}")
