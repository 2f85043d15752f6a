"""The typed configuration: every field of Triton's own message, and texts that come back as they were meant."""

import dataclasses
import typing

import pytest

from loadgen.triton import config as typed
from loadgen.triton import forms, pbtxt
from loadgen.triton.config import DynamicBatching, Input, ModelConfig, Output, QueuePolicy, Reshape, Warmup
from loadgen.triton.config_enums import DataType, GroupKind, TimeoutAction
from loadgen.triton.pbtxt import ConfigError, parse, render


def differences(descriptor, kind, path="config"):
    """Fields and enum words that Triton's message and our class do not share."""
    ours = forms.fields(kind)
    for field in descriptor.fields:
        if field.name not in ours:
            yield f"{path}.{field.name} is missing"
            continue
        hint = forms.inner(ours[field.name][1])
        message = field.message_type
        if message is not None and message.GetOptions().map_entry:
            hint, message = typing.get_args(hint)[1], message.fields_by_name["value"].message_type
        while typing.get_origin(hint) is tuple:
            hint = typing.get_args(hint)[0]
        if message is not None:
            yield from differences(message, hint, f"{path}.{field.name}")
        elif field.enum_type is not None and {v.name for v in field.enum_type.values} != set(hint):
            yield f"{path}.{field.name}: {set(hint)}"
    for name in set(ours) - {f.name for f in descriptor.fields}:
        yield f"{path}.{name} is ours alone"


def test_every_field_of_tritons_message_and_no_other():
    from tritonclient.grpc import model_config_pb2

    assert list(differences(model_config_pb2.ModelConfig.DESCRIPTOR, ModelConfig)) == []


FULL = """
# As people write them: colons or none, lists or repeated fields, commas, comments.
name: "ocr" platform: "onnxruntime_onnx"
max_batch_size : 16
version_policy: { specific { versions: [ 1, 3 ] } }
input [
  { name: "pixels:0" data_type: TYPE_UINT8 format: FORMAT_NCHW dims: [ 3, -1, -1 ] allow_ragged_batch: true },
  { name: "count" data_type: TYPE_INT32 dims: 1 reshape { shape: [ ] } optional: True }  # a number a row
]
output { name: "text" data_type: TYPE_STRING dims: -1 label_filename: "labels.txt" }
batch_input { kind: BATCH_ITEM_SHAPE target_name: "shapes" data_type: TYPE_FP32 source_input: "pixels:0" }
dynamic_batching {
  preferred_batch_size: 4 preferred_batch_size: 8
  max_queue_delay_microseconds: 18446744073709551615
  priority_levels: 2, default_priority_level: 1
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 100 allow_timeout_override: true }
  priority_queue_policy { key: 2 value { max_queue_size: 3 } }
}
instance_group [ { kind: KIND_GPU gpus: [ 0, 1 ] count: 2 profile: "1"
    rate_limiter { resources { name: "r" global: true count: 4 } priority: 2 } } ]
optimization { graph : { level : -1 }
  cuda { graphs: true graph_spec { batch_size: 2 input { key: "pixels:0" value { dim: [ 3, 8, 8 ] } } } }
  execution_accelerators { gpu_execution_accelerator : [ { name : "tensorrt",
      parameters { key: "precision_mode" value: "FP16" } } ] } }
model_warmup { name: "w" batch_size: 4 count: 2
   inputs: { key: "count" value: { data_type: TYPE_INT32 dims: 1 input_data_file: "one" } } }
parameters: { key: "empty" value: { string_value: "" } }
parameters [ { key: "quoted" value { string_value: "a\\"b\\\\c\\n\\303\\274" } } ]
response_cache { enable: true }
model_transaction_policy { decoupled: true }
model_metrics { metric_control { metric_identifier { family: "f" } histogram_options { buckets: [ 0.5, 100 ] } } }
"""


def test_a_configuration_as_people_write_them():
    got = parse(FULL)
    assert (got.name, got.platform, got.backend, got.max_batch_size) == ("ocr", "onnxruntime_onnx", "", 16)
    assert got.version_policy == typed.VersionPolicy(specific=typed.Specific((1, 3)))
    assert got.input[0].dims == (3, -1, -1)
    assert got.input[0].allow_ragged_batch
    assert got.input[1] == Input("count", DataType.TYPE_INT32, dims=(1,), reshape=Reshape(()), optional=True)
    assert got.output == (Output("text", DataType.TYPE_STRING, (-1,), label_filename="labels.txt"),)
    batching = got.dynamic_batching
    assert batching.preferred_batch_size == (4, 8)
    assert batching.max_queue_delay_microseconds == 2**64 - 1
    assert batching.default_queue_policy == QueuePolicy(TimeoutAction.DELAY, 100, allow_timeout_override=True)
    assert batching.priority_queue_policy == {2: QueuePolicy(max_queue_size=3)}
    group = got.instance_group[0]
    assert (group.kind, group.count, group.gpus, group.profile) == (GroupKind.KIND_GPU, 2, (0, 1), ("1",))
    assert group.rate_limiter.resources == (typed.Resource("r", global_=True, count=4),)
    assert got.optimization.graph.level == -1
    assert got.optimization.execution_accelerators.gpu_execution_accelerator[0].parameters == {
        "precision_mode": "FP16"
    }
    assert got.model_warmup[0].inputs["count"].input_data_file == "one"
    assert got.texts == {"empty": "", "quoted": 'a"b\\c\nü'}
    assert got.model_metrics.metric_control[0].histogram_options.buckets == (0.5, 100.0)
    assert got.batches


def test_what_is_written_reads_back_the_same_in_both_forms():
    got = parse(FULL)
    assert parse(render(got)) == got
    assert ModelConfig.from_json(got.to_json()) == got


def test_sequences_and_ensembles_come_back_too():
    text = """platform: "ensemble" ensemble_scheduling { step [ {
      model_name: "a" model_version: -1 input_map { key: "308" value: "x/y:0" }, output_map { key : "o" value : "t" } } ] }"""
    got = parse(text)
    assert got.ensemble_scheduling.step[0].model_version == -1
    assert got.ensemble_scheduling.step[0].input_map == {"308": "x/y:0"}
    assert parse(render(got)) == got
    text = """sequence_batching { iterative_sequence: true oldest { } max_sequence_idle_microseconds: 5
      control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } ] } ]
      state { input_name: "i" output_name: "o" data_type: TYPE_INT64 dims: [ 1 ]
              initial_state: { data_type: TYPE_INT64 dims: [ 1 ] zero_data: true name: "n" } } }"""
    got = parse(text)
    assert got.sequence_batching.oldest is not None
    assert got.sequence_batching.direct is None
    assert got.sequence_batching.control_input[0].control[0].fp32_false_true == (0.0, 1.0)
    assert got.sequence_batching.state[0].initial_state[0].zero_data
    assert parse(render(got)) == got


def test_empty_is_not_absent():
    assert parse("max_batch_size: 2").dynamic_batching is None
    assert parse("max_batch_size: 2 dynamic_batching { }").dynamic_batching == DynamicBatching()
    assert "dynamic_batching { }" in render(ModelConfig(dynamic_batching=DynamicBatching()))


def test_the_form_that_a_server_tells_with_every_default_written_out():
    told = {
        "name": "m", "platform": "", "backend": "python", "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 8, "input": [{"name": "x", "data_type": "TYPE_INT64", "format": "FORMAT_NONE",
            "dims": ["-1"], "is_shape_tensor": False, "allow_ragged_batch": False, "optional": False}],
        "output": [], "batch_input": [], "parameters": {"k": {"string_value": "v"}}, "model_warmup": [],
        "dynamic_batching": {"preferred_batch_size": [8], "max_queue_delay_microseconds": "100",
            "preserve_ordering": False, "priority_levels": 0, "default_priority_level": 0,
            "priority_queue_policy": {"2": {"max_queue_size": 4}}},
        "instance_group": [{"name": "m_0", "kind": "KIND_CPU", "count": 1, "gpus": [], "passive": False}],
    }  # fmt: skip
    got = ModelConfig.from_json(told)
    assert got.input == (Input("x", DataType.TYPE_INT64, dims=(-1,)),)
    assert got.dynamic_batching.max_queue_delay_microseconds == 100
    assert got.dynamic_batching.priority_queue_policy == {2: QueuePolicy(max_queue_size=4)}
    assert parse(render(got)) == got


def test_fields_of_a_newer_server_are_named_or_refused():
    told = {"name": "m", "input": [{"name": "x", "sparkle": 1}], "glow": {}}
    unknown = []
    assert ModelConfig.from_json(told, unknown).input[0].name == "x"
    assert unknown == ["input[0].sparkle", "glow"]
    with pytest.raises(
        forms.FormError, match=r"^input\[0\].sparkle is no field; input\[0\] are name, data_type"
    ):
        ModelConfig.from_json(told)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"max_batch_size": "many"}, "max_batch_size: 'many' is not allowed; int is wanted"),
        ({"max_batch_size": True}, "max_batch_size: True is not allowed; int is wanted"),
        ({"input": {}}, "input: {} is no list"),
        ({"input": [3]}, "input[0]: 3 is no object"),
        (
            {"instance_group": [{"kind": "KIND_TPU"}]},
            "instance_group[0].kind: 'KIND_TPU' is not allowed; allowed: KIND_AUTO",
        ),
        ({"parameters": []}, "parameters: [] is no object"),
        ({"response_cache": {"enable": 1}}, "response_cache.enable: 1 is not allowed; bool is wanted"),
    ],
)
def test_a_form_that_does_not_fit_names_the_field(told, said):
    with pytest.raises(forms.FormError) as why:
        ModelConfig.from_json(told)
    assert str(why.value).startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_batch_size: 4\nmax_batch: 3", 'c.pbtxt, line 2, column 1: Message type "inference.ModelConfig" has no field named "max_batch"'),
        ("a: 1", "c.pbtxt, line 1, column 1: "),
        ('input {\n  name: "x"\n  data_type: TYPE_INT65 }', "c.pbtxt, line 3, column 14: "),
        ('name: "a"\nname: "b"', "c.pbtxt, line 2, column 7: "),
        ('\n\nname: "open', "c.pbtxt, line 3, column 7: "),
        ('input {\n name: "x"\n', "c.pbtxt, line "),
        ("dynamic_batching { }\nsequence_batching { }", 'c.pbtxt, line 2, column 1: Field "sequence_batching" is specified along with field "dynamic_batching"'),
    ],
)  # fmt: skip
def test_what_cannot_be_read_has_its_line(text, said):
    with pytest.raises(ConfigError) as why:
        parse(text, "c.pbtxt")
    assert str(why.value).startswith(said)
    assert "\n" not in str(why.value)


@pytest.mark.parametrize(
    ("line", "blank"),
    [
        ("max_batch_size: ${triton_max_batch_size}", "${triton_max_batch_size}"),
        ('input { name: "x" data_type: TYPE_#DTYPE dims: [ 1 ] }', "#DTYPE"),
        ("max_batch_size: {{ batch }}", "{{ batch }}"),
    ],
)
def test_a_template_is_called_one(line, blank):
    with pytest.raises(ConfigError) as why:
        parse(f'name: "t"\n{line}\n')
    assert str(why.value).startswith("config.pbtxt, line 2, column ")
    assert str(why.value).endswith(f"; {blank} is a template's blank: fill it in first")


def test_a_text_that_says_something_else_is_caught(monkeypatch):
    monkeypatch.setattr(pbtxt, "_scalar", lambda value: "7" if isinstance(value, int) else f'"{value}"')
    with pytest.raises(ConfigError, match="max_batch_size reads back as 7, meant was 3"):
        render(ModelConfig(name="m", max_batch_size=3))


def test_numbers_that_do_not_fit_are_caught_before_a_server_sees_them():
    with pytest.raises(ConfigError, match=r"out of range|Couldn't parse"):
        render(ModelConfig(max_batch_size=2**40))


def test_short_messages_take_one_line_and_long_ones_more():
    text = render(
        ModelConfig(
            input=(Input("x", DataType.TYPE_INT64, dims=(-1,)),),
            model_warmup=(
                Warmup("w" * 90, 2, {"x": typed.WarmupInput(DataType.TYPE_INT64, (4,), zero_data=True)}),
            ),
        )
    )
    assert 'input { name: "x" data_type: TYPE_INT64 dims: [ -1 ] }\n' in text
    assert 'model_warmup {\n  name: "www' in text
    assert max(map(len, text.splitlines())) <= 110


def test_values_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ModelConfig().name = "x"
