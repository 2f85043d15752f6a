"""config.pbtxt: what Triton's own message reads back is what was meant."""

from pathlib import Path

import pytest

from loadgen.convert import config as config_module
from loadgen.convert.config import ConfigError, Serving, parse, render
from loadgen.convert.options import ConvertOptions, OptionError
from loadgen.records import TensorSpec


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
    assert [(i.name, list(i.dims), i.optional, i.allow_ragged_batch) for i in got.input] == [
        ("input_ids", [-1], False, True),
        ("types", [-1], True, True),
    ]
    assert [
        i.DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_number[i.data_type].name for i in got.input
    ] == [
        "TYPE_INT64",
        "TYPE_INT64",
    ]
    assert [(o.name, list(o.dims)) for o in got.output] == [("embedding", [384])]
    assert [(g.count, g.kind) for g in got.instance_group] == [(3, 2)]  # 2 is KIND_CPU
    assert got.HasField("dynamic_batching")
    assert got.dynamic_batching.max_queue_delay_microseconds == 2500
    assert {k: v.string_value for k, v in got.parameters.items()} == {
        "vocab_size": "30522",
        "max_length": "256",
    }


def test_no_ragged_no_delay_and_per_token():
    got = parse(render(serving(ragged=False, delay_ns=0, outputs=(TensorSpec("h", "FP32", (-1, 24)),))))
    assert not any(i.allow_ragged_batch for i in got.input)
    assert got.HasField("dynamic_batching")
    assert got.dynamic_batching.max_queue_delay_microseconds == 0
    assert list(got.output[0].dims) == [-1, 24]


def test_names_are_quoted():
    assert parse(render(serving(parameters={'a"b\\c': "x\ny"}))).parameters['a"b\\c'].string_value == "x\ny"


def test_a_text_that_says_something_else_is_caught(monkeypatch):
    monkeypatch.setattr(config_module, "_parameter", lambda key, _value: f'parameters {{ key: "{key}" }}')
    with pytest.raises(ConfigError, match="parameters reads back as"):
        render(serving())


def test_a_text_that_is_no_config_is_one_line():
    with pytest.raises(ConfigError, match="not a Triton model configuration"):
        parse("max_batch: 3")


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "-x", "x" * 101, "mödel", "a\n"])
def test_model_names_stay_in_the_repository(name):
    with pytest.raises(OptionError, match="model name"):
        ConvertOptions(name=name)


def test_a_model_name_may_have_a_hundred_characters():
    assert ConvertOptions(name="x" * 100).name == "x" * 100


@pytest.mark.parametrize(
    "bad",
    [{"version": 0}, {"max_batch": 0}, {"delay_ns": -1}, {"instances": 0}, {"max_length": 0}, {"threads": 0}],
)
def test_options_out_of_range(bad):
    key, value = next(iter(bad.items()))
    with pytest.raises(OptionError, match=f"{key} {value}: must be"):
        ConvertOptions(name="m", **bad)


def test_where_a_model_goes():
    options = ConvertOptions(name="m", repository=Path("r"), version=7)
    assert options.version_folder == Path("r/m/7")
