"""A second version under one config.pbtxt: what no longer fits the first is said, and refused where it is served."""

from dataclasses import replace

import pytest

from loadgen.convert.beside import BesideError, unfit_beside
from loadgen.convert.convert import convert
from loadgen.convert.options import ConvertOptions
from loadgen.convert.serve_options import Flavour, ServeOptions
from loadgen.triton.config import All, InstanceGroup, Latest, ModelConfig, Parameter, Specific, VersionPolicy
from loadgen.triton.pbtxt import parse, render
from tests.support.encoder import write_encoder

TEXT = """
name: "m" backend: "python" max_batch_size: 8
input { name: "x" data_type: TYPE_INT64 dims: [ -1 ] } output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
parameters { key: "pad_token_id" value: { string_value: "0" } }
"""
OLD = parse(TEXT)
ALL = VersionPolicy(all=All())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text(TEXT)
    return tmp_path / "m"


@pytest.mark.parametrize(
    "changed", [{}, {"max_batch_size": 16}, {"parameters": {**OLD.parameters, "threads": Parameter("2"), "max_length": Parameter("9")}}]
)  # fmt: skip
def test_what_does_not_touch_a_version(folder, changed):
    assert unfit_beside(folder, 2, replace(OLD, version_policy=ALL, **changed)) is None


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"backend": "", "platform": "onnxruntime_onnx"}, "backend 'python', not ''"),
        ({"max_batch_size": 0}, "max_batch_size 8, not 0"),
        ({"output": (replace(OLD.output[0], dims=(5,)),)}, "output 'y' is another"),
        ({"input": (*OLD.input, replace(OLD.input[0], name="z"))}, "input 'z' is another"),
        ({"parameters": {"pad_token_id": Parameter("1")}}, "pad_token_id 0, not 1"),
    ],
)
def test_what_does(folder, changed, says):
    new = replace(OLD, **changed)
    told = f"version 1 of m was made for another configuration: {says}"
    assert unfit_beside(folder, 2, new).startswith(told)
    assert unfit_beside(folder, 1, new) is None, "it is replaced"
    assert unfit_beside(folder.parent / "new", 1, new) is None
    for policy in (ALL, VersionPolicy(latest=Latest(2)), VersionPolicy(specific=Specific((1, 2)))):
        with pytest.raises(BesideError, match="publish under another --name"):
            unfit_beside(folder, 2, replace(new, version_policy=policy))
    for policy in (VersionPolicy(latest=Latest(1)), VersionPolicy(specific=Specific((2,)))):
        assert unfit_beside(folder, 2, replace(new, version_policy=policy)).startswith(told)


def test_an_engine_has_its_own_batch_and_profiles(folder):
    plan = ModelConfig(
        name="m", platform="tensorrt_plan", max_batch_size=8, instance_group=(InstanceGroup(),)
    )
    (folder / "config.pbtxt").write_text(render(plan))
    assert "max_batch_size 8, not 16" in unfit_beside(folder, 2, replace(plan, max_batch_size=16))
    more = replace(plan, instance_group=(InstanceGroup(profile=("0", "1")),))
    assert "another number of optimization profiles" in unfit_beside(folder, 2, more)


def test_a_conversion_never_takes_a_served_versions_configuration_away(tmp_path):
    source = str(write_encoder(tmp_path / "source"))
    serve = ServeOptions(versions="all")
    options = ConvertOptions(
        name="m", repository=tmp_path / "repository", max_batch=4, max_length=24, serve=serve
    )
    convert(source, options)
    before = (options.model_folder / "config.pbtxt").read_bytes()
    with pytest.raises(
        BesideError, match="version 1 of m was made for another configuration: backend 'python'"
    ):
        convert(source, replace(options, version=2, serve=replace(serve, flavour=Flavour.ONNX)))
    assert (options.model_folder / "config.pbtxt").read_bytes() == before
    assert sorted(p.name for p in options.repository.rglob("*") if p.name in ("1", "2")) == ["1"]
