"""What a model takes, as a person writes it, and random tensors that keep to it."""

import json

import numpy as np
import pytest

from loadgen.convert.inputs import Input, InputError, make_feeds, one_row, pick_sizes, read_inputs, spans_of


def test_a_text_names_type_axes_and_range():
    (x, ids, mask), output = read_inputs(
        [
            "x:fp32:batch,3,height=32..64:-1..2.5",
            "ids:INT64:batch,length:0..99",
            "mask:INT64:batch,length:mask",
        ]
    )
    assert x == Input("x", "FP32", ("batch", 3, "height"), -1, 2.5, spans={"height": (32, 64)})
    assert ids == Input("ids", "INT64", ("batch", "length"), 0, 99)
    assert (mask.mask, mask.high, output) == (True, 1, None)


def test_a_file_says_the_same_in_yaml_or_json(tmp_path):
    told = {
        "output": "scores",
        "inputs": [
            {"name": "ids", "dtype": "INT64", "dims": ["batch", "length=1..40"], "range": "0..49", "pad": 3},
            "x:FP32:batch,4",
        ],
    }
    file = tmp_path / "inputs.json"
    file.write_text(json.dumps(told))
    (ids, x), output = read_inputs(["y:BOOL:batch"], file)[0][:2], read_inputs([], file)[1]
    assert ids == Input("ids", "INT64", ("batch", "length"), 0, 49, 3, tokens=True, spans={"length": (1, 40)})
    assert (x.axes, x.low, x.high, output) == (("batch", 4), -1, 1, "scores")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x", "write name:dtype:dims"),
        ("x:FP99:batch", "dtype 'FP99'; allowed: FP32, FP16"),
        ("1x:FP32:batch", "a name is letters"),
        ("x:FP32:batch,0", "size 0 of an axis; allowed is 1 or more"),
        ("x:FP32:batch,n=0..4", "sizes are 1 or more"),
        ("x:FP32:batch,n=4..4", "the least first"),
        ("x:FP32:3,batch", "batch must be the first axis"),
        ("x:FP32:batch,-1", "write a size, a name"),
        ("x:INT64:batch", "whole numbers need a range"),
        ("x:INT64:batch:9..0", "range '9..0'; write low..high"),
    ],
)
def test_what_cannot_be_kept_to_is_refused(text, says):
    with pytest.raises(InputError, match=says) as why:
        read_inputs([text])
    assert "\n" not in str(why.value)


def test_a_file_that_is_none_is_refused(tmp_path):
    file = tmp_path / "inputs.yaml"
    for text, says in (
        ("{", "not YAML"),
        ("inputs: []\noutput: a\noutput: b", "the key 'output' is given twice"),
        ("[]", "a list under 'inputs' is expected"),
        ("inputs: []\noutputs: [a]", "unknown key 'outputs'"),
        ("inputs: [{name: x}]", "name, dtype and dims are needed"),
        ("inputs: [{name: x, dtype: FP32, dims: [2], shape: 3}]", "unknown key 'shape'"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=says) as why:
            read_inputs([], file)
        assert "\n" not in str(why.value)
    with pytest.raises(InputError, match="no such file"):
        read_inputs([], tmp_path / "none.yaml")
    with pytest.raises(InputError, match="described twice"):
        read_inputs(["x:FP32:batch", "x:FP32:batch"])


def test_inputs_that_share_an_axis_share_its_bounds():
    inputs, _ = read_inputs(["a:FP32:batch,n=2..9", "b:FP32:batch,n=4..20"])
    assert spans_of(inputs) == {"batch": (1, 65536), "n": (4, 9)}
    with pytest.raises(InputError, match="no size of n suits"):
        read_inputs(["a:FP32:batch,n=2..3", "b:FP32:batch,n=4..20"])


def test_example_sizes_are_unequal_and_not_special():
    sizes = pick_sizes({"batch": (1, 99), "length": (1, 64), "n": (2, 3), "m": (32, 40)}, frozenset({11, 33}))
    assert sizes == {"batch": 3, "length": 13, "n": 2, "m": 34}
    with pytest.raises(InputError, match="too short to convert; 2 is the least"):
        pick_sizes({"length": (1, 1)}, frozenset())


def test_feeds_keep_to_ranges_masks_and_shared_sizes():
    spans = {"other": (2, 6)}
    inputs = (
        Input("ids", "INT64", ("batch", "length"), 0, 9, 4, tokens=True),
        Input("mask", "INT64", ("batch", "length"), mask=True),
        Input("states", "FP32", ("batch", "other", 3), -2, 2, spans=spans),
        Input("other_mask", "INT64", ("batch", "other"), mask=True, spans=spans),
    )
    rng = np.random.default_rng(1)
    seen = set()
    for _ in range(30):
        feeds = make_feeds(inputs, [5, 2, 1], rng)
        assert feeds["mask"].sum(1).tolist() == [5, 2, 1]
        assert set(feeds["ids"][feeds["mask"] == 0]) == {4}
        assert set(feeds["ids"][feeds["mask"] == 1]) <= set(range(10)) - {4}
        lengths = feeds["other_mask"].sum(1)
        assert lengths[0] == feeds["states"].shape[1] == feeds["other_mask"].shape[1]
        assert lengths.min() >= 2
        assert np.abs(feeds["states"]).max() <= 2
        assert not feeds["states"][feeds["other_mask"] == 0].any()
        row = one_row(inputs, feeds, 1, 2)
        assert row["ids"].shape == row["mask"].shape == (1, 2)
        assert row["states"].shape == (1, lengths[1], 3)
        assert row["other_mask"].all()
        seen.add(feeds["states"].shape[1])
    assert {2, 6} <= seen <= set(range(2, 7)), "the bounds are among the sizes"
