"""config.pbtxt: what a conversion is served with, and which tensors it shows."""

from pathlib import Path

import numpy as np
import pytest

from loadgen.convert import warmup
from loadgen.convert.config import ConfigError, FullTensor, Serving, model_config, render, show
from loadgen.convert.flavours import require_flavour
from loadgen.convert.options import ConvertOptions, OptionError
from loadgen.convert.serve_options import (
    Flavour,
    PlanOptions,
    Queue,
    ServeOptionError,
    ServeOptions,
)
from loadgen.convert.warmup import Fill
from loadgen.records import TensorSpec
from loadgen.triton import config as triton
from loadgen.triton.config_enums import DataType, GroupKind, TimeoutAction
from loadgen.triton.pbtxt import parse


def serving(**changes):
    what = {
        "name": "minilm",
        "inputs": (
            TensorSpec("input_ids", "INT64", (-1,)),
            TensorSpec("types", "INT64", (-1,), optional=True),
        ),
        "outputs": (TensorSpec("embedding", "FP32", (384,)),),
        "max_batch": 16,
        "delay_ns": 2_500_000,
        "instances": 3,
        "ragged": True,
        "parameters": {"vocab_size": "30522", "max_length": "256"},
    }
    return Serving(**(what | changes))


def test_reads_back_field_by_field():
    got = parse(render(serving()))
    assert (got.name, got.backend, got.max_batch_size, got.platform) == ("minilm", "python", 16, "")
    assert [(i.name, i.dims, i.optional, i.allow_ragged_batch) for i in got.input] == [
        ("input_ids", (-1,), False, True),
        ("types", (-1,), True, True),
    ]
    assert {i.data_type for i in got.input} == {DataType.TYPE_INT64}
    assert [(o.name, o.dims) for o in got.output] == [("embedding", (384,))]
    assert [(g.count, g.kind) for g in got.instance_group] == [(3, GroupKind.KIND_CPU)]
    assert got.dynamic_batching == triton.DynamicBatching(max_queue_delay_microseconds=2500)
    assert got.texts == {"vocab_size": "30522", "max_length": "256"}


def test_no_ragged_no_delay_and_per_token():
    got = parse(render(serving(ragged=False, delay_ns=0, outputs=(TensorSpec("h", "FP32", (-1, 24)),))))
    assert not any(i.allow_ragged_batch for i in got.input)
    assert got.dynamic_batching == triton.DynamicBatching()
    assert got.output[0].dims == (-1, 24)


def test_names_are_quoted():
    assert parse(render(serving(parameters={'a"b\\c': "x\ny"}))).texts == {'a"b\\c': "x\ny"}


def test_an_onnx_model_of_the_full_triton():
    options = ServeOptions(
        flavour=Flavour.ONNX, preferred=(4, 8), priority_levels=3, queue=Queue(50_000, delays=True, most=100),
        level_queues=((3, Queue(9_000, override=True)),), cache=True, gpus=(0, 1), versions="latest:2", graph_level=1, cuda_graphs=True,
        accelerators=("tensorrt:precision_mode=FP16,max_workspace_size_bytes=1", "openvino"),
    )  # fmt: skip
    got = parse(render(serving(options=options)))
    assert (got.platform, got.backend) == ("onnxruntime_onnx", "")
    assert not any(i.allow_ragged_batch or i.optional for i in got.input)  # a graph has neither
    assert got.dynamic_batching == triton.DynamicBatching(
        preferred_batch_size=(4, 8),
        max_queue_delay_microseconds=2500,
        priority_levels=3,
        default_priority_level=2,
        default_queue_policy=triton.QueuePolicy(TimeoutAction.DELAY, 50_000, max_queue_size=100),
        priority_queue_policy={
            3: triton.QueuePolicy(TimeoutAction.REJECT, 9_000, allow_timeout_override=True)
        },
    )
    assert got.instance_group == (triton.InstanceGroup(kind=GroupKind.KIND_GPU, count=3, gpus=(0, 1)),)
    assert got.version_policy.latest.num_versions == 2
    assert got.response_cache.enable
    assert got.optimization.graph.level == 1
    assert got.optimization.cuda.graphs
    accelerators = got.optimization.execution_accelerators
    assert [(a.name, dict(a.parameters)) for a in accelerators.gpu_execution_accelerator] == [
        ("tensorrt", {"precision_mode": "FP16", "max_workspace_size_bytes": "1"})
    ]
    assert [a.name for a in accelerators.cpu_execution_accelerator] == ["openvino"]


def test_a_plan_runs_on_gpus_and_lists_its_profiles():
    got = model_config(serving(options=ServeOptions(flavour=Flavour.TENSORRT), plan_profiles=3))
    assert (got.platform, got.backend) == ("tensorrt_plan", "")
    assert got.instance_group == (
        triton.InstanceGroup(kind=GroupKind.KIND_GPU, count=3, profile=("0", "1", "2")),
    )


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", None),
        ("all", triton.VersionPolicy(all=triton.All())),
        ("latest:3", triton.VersionPolicy(latest=triton.Latest(3))),
        ("1,3", triton.VersionPolicy(specific=triton.Specific((1, 3)))),
    ],
)
def test_version_policies(text, policy):
    assert parse(render(serving(options=ServeOptions(versions=text)))).version_policy == policy


@pytest.mark.parametrize(
    "text", ["latest", "latest:0", "latest:4294967296", "1,x", "1,9223372036854775808", "newest"]
)
def test_version_policies_that_are_none(text):
    with pytest.raises(ConfigError, match="allowed are latest:N, all, or numbers"):
        render(serving(options=ServeOptions(versions=text)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"priority_levels": 2, "default_priority": 3}, "default_priority 3: the levels are 1 to 2"),
        ({"preserve_ordering": True, "priority_levels": 2}, "preserve_ordering: not with more than one"),
        ({"priority_levels": 65_536}, "priority_levels 65536: must be 0 or more, at most 65535"),
        ({"graph_level": 2**31}, "graph_level 2147483648: allowed are"),
        ({"preferred": (0,)}, "preferred"),
        ({"gpus": (2**31,)}, "a GPU's number is 0 or more, at most 2147483647"),
        ({"warmup": ((0, 4),)}, "warmup"),
        ({"gpus": (-1,)}, "gpus"),
        (
            {"level_queues": ((3, Queue(5)),), "priority_levels": 2},
            "a queue of level 3: the priority levels are 1 to 2",
        ),
        (
            {
                "level_queues": ((1, Queue(5, delays=True)),),
                "priority_levels": 1,
                "preserve_ordering": True,
            },
            "preserve_ordering: not with",
        ),
        ({"level_queues": ((1, Queue(5)),)}, "a queue of level 1: the priority levels are none"),
        ({"plan": PlanOptions(traffic="p.yaml", buckets=2)}, "^traffic, buckets: of a TensorRT engine only"),
        ({"gpus": (0, 1, 0)}, r"gpus \[0, 1, 0\]: GPU 0 is given twice"),
        (
            {"flavour": Flavour.ONNX, "accelerators": ("openvino", "foo", "tensorrt:bogus=1")},
            "accelerator foo: it is a GPU's, and no GPU runs this model; say which do, e.g. --gpus 0",
        ),
        ({"flavour": Flavour.ONNX, "gpus": (0,), "accelerators": (":a=b",)}, "an accelerator without a name"),
        ({"accelerators": ("tensorrt",)}, "accelerators are onnxruntime's own; the flavour is python"),
    ],
)
def test_options_that_triton_would_not_take(options, said):
    with pytest.raises(ServeOptionError, match=said):
        ServeOptions(**options)


def test_a_preferred_size_beyond_the_largest_batch():
    with pytest.raises(ConfigError, match="preferred batch size 32: the largest batch is 16"):
        render(serving(options=ServeOptions(preferred=(8, 32))))


@pytest.mark.parametrize(
    "asked",
    [{"priority_levels": 2}, {"preserve_ordering": True}, {"queue": Queue(5_000)}, {"queue": Queue(most=3)}],
)
def test_queues_of_a_model_that_is_not_batched_are_refused(asked):
    """They would be left out of its configuration without a word."""
    with pytest.raises(ConfigError, match=r"the dynamic batcher's, and this model is not batched"):
        model_config(serving(max_batch=0, options=ServeOptions(**asked)))


@pytest.mark.parametrize(
    ("serve", "said"),
    [
        ({"preferred": (4, 99)}, "preferred batch size 99: the largest batch is 16"),
        ({"warmup": ((99, 8),)}, "warm-up batch 99: the largest batch is 16"),
        ({"versions": "latest:0"}, "versions 'latest:0': allowed are"),
        ({"versions": "1,3"}, "version 2, which is to be published, is not among them"),
    ],
)
def test_what_could_not_be_served_is_refused_before_a_model_is_loaded(serve, said):
    with pytest.raises(ConfigError, match=said):
        require_flavour(ConvertOptions(name="m", version=2, serve=ServeOptions(**serve)))
    require_flavour(ConvertOptions(name="m", version=3, serve=ServeOptions(versions="1,3")))


def test_a_warm_up_longer_than_the_model_is_refused():
    warmup.require_lengths([(1, 64)], 64)
    with pytest.raises(ConfigError, match=r"warm-up 1x65: the model takes lengths 1\.\.64"):
        warmup.require_lengths([(1, 64), (1, 65)], 64)


def tensor(name, *axes, kind="FP32"):
    return FullTensor(name, kind, axes)


def test_the_batch_axis_is_never_in_dims_when_batching():
    """Field case 29: dims that repeat the batch axis make a model that does not load."""
    shown = show([tensor("ids", "batch", "length", kind="INT64")], [tensor("out", "batch", 384)], 8)
    assert (shown.max_batch, shown.why) == (8, "")
    assert [(t.name, t.datatype, t.shape) for t in (*shown.inputs, *shown.outputs)] == [
        ("ids", "INT64", (-1,)),
        ("out", "FP32", (384,)),
    ]


@pytest.mark.parametrize(
    ("inputs", "outputs", "why"),
    [
        (
            [tensor("a", 1, 4)],
            [tensor("o", 1, 2)],
            "a has the fixed shape [1, 4]: its first axis is always 1",
        ),
        (
            [tensor("a", "batch", 4), tensor("b", 3, 4)],
            [tensor("o", "batch", 2)],
            "b has the fixed shape [3, 4]: its first axis is always 3",
        ),
        (
            [tensor("a", "batch", 4)],
            [tensor("o", 1, 2)],
            "o has the fixed shape [1, 2]: its first axis is always 1",
        ),
        (
            [tensor("a", "batch", 4)],
            [tensor("o", "length", 2)],
            "o begins with the axis 'length', a with 'batch'",
        ),
    ],
)
def test_one_tensor_without_a_free_batch_is_enough_for_max_batch_size_0(inputs, outputs, why):
    """Field case 29: every input and output is looked at; the whole shapes are then the dims."""
    shown = show(inputs, outputs, 8)
    assert (shown.max_batch, shown.why) == (0, why)
    assert [len(t.shape) for t in shown.inputs] == [len(t.axes) for t in inputs]
    assert (
        parse(render(serving(inputs=shown.inputs, outputs=shown.outputs, max_batch=0))).dynamic_batching
        is None
    )


def test_a_number_a_row_is_reshaped_when_batching_and_a_scalar_is_refused():
    """Field case 10: Triton has no dims [ ], and an empty reshape only when batching."""
    shown = show([tensor("n", "batch", kind="INT32")], [tensor("o", "batch")], 8)
    got = parse(render(serving(inputs=shown.inputs, outputs=shown.outputs, max_batch=shown.max_batch)))
    assert [(t.dims, t.reshape) for t in (*got.input, *got.output)] == [((1,), triton.Reshape(()))] * 2
    for largest in (0, 8):
        with pytest.raises(
            ConfigError, match=r"n: a tensor of shape \[\] cannot be served; give it the shape \[1\]"
        ):
            show([tensor("n")], [tensor("o", "batch")], largest)


def test_warm_up_ids_are_in_the_vocabulary_and_files_name_their_version():
    inputs = (
        TensorSpec("ids", "INT64", (-1,)),
        TensorSpec("mask/0", "INT32", (-1,)),
        TensorSpec("x", "FP32", (2, -1)),
    )
    plan = warmup.plan(
        inputs, ((1, 5), (8, 300)), {"ids": Fill(1, 99), "mask/0": Fill(1, 1)}, max_batch=8, version=3
    )
    assert [(w.name, w.batch_size) for w in plan.warmup] == [
        ("batch 1, length 5", 1),
        ("batch 8, length 300", 8),
    ]
    first, second = plan.warmup
    assert first.inputs["x"] == triton.WarmupInput(DataType.TYPE_FP32, (2, 5), zero_data=True)
    assert not any(given.random_data for w in plan.warmup for given in w.inputs.values())
    assert sorted(plan.files) == ["3-0-ids-5", "3-1-mask_0-5", "3-2-ids-300", "3-3-mask_0-300"]
    ids = np.frombuffer(plan.files[second.inputs["ids"].input_data_file], np.int64)
    assert (len(ids), ids.min() >= 1, ids.max() <= 99, len(set(ids)) > 50) == (300, True, True, True)
    mask = np.frombuffer(plan.files[second.inputs["mask/0"].input_data_file], np.int32)
    assert mask.tolist() == [1] * 300
    text = render(serving(inputs=inputs, warmup=plan.warmup))
    assert parse(text).model_warmup == plan.warmup
    with pytest.raises(ConfigError, match="warm-up batch 9: the largest batch is 8"):
        warmup.plan(inputs, ((9, 5),), {}, max_batch=8, version=1)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "-x", "x" * 101, "mödel", "a\n"])
def test_model_names_stay_in_the_repository(name):
    with pytest.raises(OptionError, match="model name"):
        ConvertOptions(name=name)


def test_a_model_name_may_have_a_hundred_characters():
    assert ConvertOptions(name="x" * 100).name == "x" * 100


@pytest.mark.parametrize(
    "bad",
    [
        {"version": 0}, {"max_batch": 0}, {"delay_ns": -1}, {"instances": 0}, {"max_length": 0}, {"threads": 0},
        {"version": 2**63}, {"max_batch": 2**31}, {"delay_ns": 2**63}, {"instances": 2**31},
    ],
)  # fmt: skip
def test_options_out_of_range(bad):
    key, value = next(iter(bad.items()))
    with pytest.raises(OptionError, match=f"{key} {value}: must be"):
        ConvertOptions(name="m", **bad)


def test_where_a_model_goes():
    options = ConvertOptions(name="m", repository=Path("r"), version=7)
    assert options.version_folder == Path("r/m/7")
