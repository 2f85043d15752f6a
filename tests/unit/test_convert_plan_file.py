"""The optimization profiles in a plan's own bytes, of engines that TensorRT for RTX really built."""

import re
import struct

import onnx
import pytest
from onnx import TensorProto, helper

from loadgen.convert import tensorrt
from loadgen.convert.plan_file import read_profiles
from loadgen.convert.profiles import Ranges
from loadgen.convert.tensorrt import BuildOptions, TensorRTError, build, find_tensorrt

SHORT = Ranges({"a": ((2, 3), (4, 5), (6, 7)), "b": ((2,), (4,), (6,)), "fixed": ((3, 1, 2),) * 3})
LONG = Ranges({"a": ((8, 9), (8, 10), (11, 12)), "b": ((8,), (8,), (11,)), "fixed": ((3, 1, 2),) * 3})


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Inputs of three ranks, one of them fixed: y = a * b[:, None] + max(fixed)."""
    path = tmp_path_factory.mktemp("onnx") / "m.onnx"
    nodes = [
        helper.make_node("Unsqueeze", ["b", "one"], ["column"]),
        helper.make_node("Mul", ["a", "column"], ["product"]),
        helper.make_node("ReduceMax", ["fixed"], ["most"], keepdims=0),
        helper.make_node("Add", ["product", "most"], ["y"]),
    ]
    axes = {"a": ["n", "m"], "b": ["n"], "fixed": [3, 1, 2], "y": ["n", "m"]}
    values = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, a) for n, a in axes.items()}
    graph = helper.make_graph(
        nodes, "g", [values["a"], values["b"], values["fixed"]], [values["y"]],
        [helper.make_tensor("one", TensorProto.INT64, [1], [1])],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def built(model, plan, *profiles):
    return build(find_tensorrt("tensorrt_rtx"), model, plan, BuildOptions(profiles, target="8.9")).facts


@pytest.mark.parametrize("profiles", [(SHORT,), (LONG,), (SHORT, LONG), (LONG, SHORT), (LONG, LONG, SHORT)])
def test_each_engine_has_its_own(model, tmp_path, profiles):
    facts = built(model, tmp_path / "m.plan", *profiles)
    assert read_profiles(tmp_path / "m.plan", ["a", "b", "fixed"]) == profiles
    assert (facts.profiles, facts.profiles_from) == (profiles, "plan")


def test_they_come_from_the_file_not_from_the_request(model, tmp_path):
    plan = tmp_path / "m.plan"
    built(model, plan, SHORT)
    held = plan.read_bytes()
    largest = struct.pack("<2q", 6, 7)
    assert largest in held
    plan.write_bytes(held.replace(largest, struct.pack("<2q", 60, 70)))
    [read] = read_profiles(plan, ["a", "b", "fixed"])
    assert read.shapes["a"] == ((2, 3), (4, 5), (60, 70))
    assert read.shapes["b"] == SHORT.shapes["b"]


@pytest.mark.parametrize(
    "change",
    [
        lambda held: held.replace(b"\x01\x80\x09\x80\x01\x00", b"\x01\x80\x08\x80\x01\x00"),  # another type of sizes
        lambda held: held[: held.index(struct.pack("<2q", 6, 7))],  # cut short
        lambda held: re.sub(rb"(\x01\x80.\x80\x01\x00)\x01\0{7}(?=\x01\x80.\x80\x01\x00\x04\0{7})", rb"\1" + bytes(8), held),  # none
        lambda held: held + held,  # which of the two?
        lambda _: b"no plan",
    ],
)  # fmt: skip
def test_another_layout_is_not_guessed_at(model, tmp_path, change):
    plan = tmp_path / "m.plan"
    built(model, plan, SHORT)
    plan.write_bytes(change(plan.read_bytes()))
    assert read_profiles(plan, ["a", "b", "fixed"]) is None
    assert read_profiles(plan, ["a", "b", "fixed", "y", "z"]) is None


def test_what_is_recorded_says_where_they_are_from(model, tmp_path, monkeypatch):
    """Profiles that cannot be read are those of the request, and that is said; other ones than asked for end it."""
    monkeypatch.setattr(tensorrt, "read_profiles", lambda *_: None)
    found = find_tensorrt("tensorrt_rtx")
    asked = BuildOptions((SHORT,), target="8.9")
    told = build(found, model, tmp_path / "m.plan", asked)
    assert told.recorded()["profiles_from"] == "request"
    assert told.warnings[-1].endswith("writes plans whose optimization profiles cannot be read without a GPU")
    monkeypatch.setattr(tensorrt, "read_profiles", lambda *_: (LONG,))
    with pytest.raises(
        TensorRTError,
        match="built other optimization profiles than were asked for: a 8x9:8x10:11x12, b 8:8:11, fixed 3x1x2:",
    ):
        build(found, model, tmp_path / "other.plan", asked)
    assert not (tmp_path / "other.plan").exists()
