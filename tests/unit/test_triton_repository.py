"""Repositories read from the disk: what a server would refuse is found, with its field."""

import onnx
import pytest
from onnx import TensorProto, helper

from loadgen.triton.config_check import check
from loadgen.triton.pbtxt import parse
from loadgen.triton.repository import RepositoryError, read_model, read_repository
from tests.support.cli import loadgen
from tests.support.configs import CASES, MODEL, write_repository


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return write_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="module")
def models(repository):
    return {model.name: model for model in read_repository(repository)}


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_names_its_field(models, name):
    refused = [found.field for found in models[name].findings if found.refused]
    assert refused == ([CASES[name][1]] if CASES[name][1] else [])


def test_what_loads_and_does_not_do_what_it_seems_to_is_a_note(models):
    notes = {name: [f.text for f in models[name].findings if not f.refused] for name in CASES}
    assert notes["warm-random"] == ["x: random_data makes whole numbers that are in no vocabulary"]
    assert notes["warm-skipped"] == ["batch_size 0: it is skipped"]
    assert notes["batching-of-nothing"] == ["does nothing: max_batch_size is 0"]
    assert notes["versions-some"] == ["version 3 is not there; there are 1"]
    assert notes["gpu-accelerator-on-cpu"] == ["tensorrt: no instance runs on a GPU, all are KIND_CPU"]
    assert notes["cpu-accelerator-on-cpu"] == []
    assert notes["plain"] == []


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ("instance_group { kind: KIND_GPU }", ["openvino: no instance runs on a CPU, all are KIND_GPU"]),
        (
            "instance_group [ { kind: KIND_CPU }, { kind: KIND_CPU } ]",
            ["tensorrt, cuda: no instance runs on a GPU, all are KIND_CPU"],
        ),
        ("instance_group [ { kind: KIND_CPU }, { kind: KIND_GPU } ]", []),
        ("instance_group { count: 2 }", []),
        ("", []),
    ],
)
def test_an_accelerator_without_its_device_is_a_note(groups, said):
    text = (
        'platform: "onnxruntime_onnx" input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } '
        'output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } optimization { execution_accelerators { '
        'gpu_execution_accelerator: [ { name: "tensorrt" }, { name: "cuda" } ] cpu_execution_accelerator: [ { name: "openvino" } ] } } '
    )
    assert [found.text for found in check(parse(text + groups))] == said


def onnx_file(path, *, inputs, outputs):
    kinds = {"FP32": TensorProto.FLOAT, "INT64": TensorProto.INT64}
    made = [
        [helper.make_tensor_value_info(name, kinds[kind], shape) for name, kind, shape in side]
        for side in (inputs, outputs)
    ]
    node = helper.make_node("Identity", [inputs[0][0]], [outputs[0][0]])
    graph = helper.make_graph([node], "g", *made)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def onnx_model(folder, text, **tensors):
    onnx_file(folder / "1" / "model.onnx", **tensors)
    (folder / "config.pbtxt").write_text(text)


CONFIG = """platform: "onnxruntime_onnx" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ %s ] } output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }"""

ELSEWHERE = "note: backend: onnxruntime is not in the embedded Triton, which has python alone; a full Triton is needed"


def test_the_batch_axis_is_held_against_the_onnx_file_for_every_tensor(tmp_path):
    """Field case 29: a fixed batch, and dims that repeat the batch axis."""
    fixed = {"inputs": [("x", "FP32", [1, 4])], "outputs": [("y", "FP32", ["batch", 4])]}
    onnx_model(tmp_path / "fixed", CONFIG % "4", **fixed)
    free = {"inputs": [("x", "FP32", ["batch", 4])], "outputs": [("y", "FP32", ["batch", 4])]}
    onnx_model(tmp_path / "repeated", CONFIG % "-1, 4", **free)
    onnx_model(tmp_path / "right", CONFIG % "4", **free)
    onnx_model(tmp_path / "other", CONFIG % "5", **free)
    onnx_model(
        tmp_path / "typed",
        (CONFIG % "4").replace("TYPE_FP32 dims: [ 4 ] }", "TYPE_FP16 dims: [ 4 ] }"),
        **free,
    )
    answer = loadgen("repository", "check", tmp_path)
    assert answer.code == 1
    assert answer.out.splitlines() == [
        "fixed: refused: version 1, input 'x': the model's [1, 4] has no free batch axis; max_batch_size must be 0, not 8",
        f"fixed: {ELSEWHERE}",
        "other: refused: version 1, input 'x': dims [5] where the model has [batch, 4]",
        f"other: {ELSEWHERE}",
        "repeated: refused: version 1, input 'x': dims [-1, 4] repeat the batch axis of the model's [batch, 4]; leave it out",
        f"repeated: {ELSEWHERE}",
        f"right: {ELSEWHERE}",
        "typed: refused: version 1, input 'x': TYPE_FP16 where the model has FP32",
        "typed: refused: version 1, output 'y': TYPE_FP16 where the model has FP32",
        f"typed: {ELSEWHERE}",
        "5 models, 4 would not load",
    ]


def test_files_that_are_missing(tmp_path):
    text = 'backend: "python" max_batch_size: 2 '
    for name in ("no-version", "no-file", "named", "no-config"):
        (tmp_path / name).mkdir()
    (tmp_path / "no-version" / "config.pbtxt").write_text(text)
    for name in ("no-file", "named", "no-config"):
        (tmp_path / name / "1").mkdir()
        (tmp_path / name / "config.pbtxt").write_text(text)
    (tmp_path / "named" / "config.pbtxt").write_text(text + 'default_model_filename: "other.py"')
    (tmp_path / "named" / "1" / "other.py").write_text(MODEL)
    (tmp_path / "no-config" / "config.pbtxt").unlink()
    found = {m.name: [(f.refused, f.field, f.text) for f in m.findings] for m in read_repository(tmp_path)}
    assert found == {
        "no-version": [(True, "versions", "no folder named 1 or another whole number")],
        "no-file": [(True, "version 1", "model.py is missing, which python loads")],
        "named": [],
        "no-config": [
            (False, "config.pbtxt", "is not there: the server makes up its own, batching off or on")
        ],
    }


def test_versions_are_whole_numbers_that_the_server_takes(tmp_path):
    for name in ("1", "12", "3", "03", "0", "x1", "²"):
        (tmp_path / "m" / name).mkdir(parents=True)
    assert read_model(tmp_path / "m").versions == (1, 3, 12)


def test_a_model_folder_a_file_and_what_is_neither(repository, tmp_path):
    assert [m.name for m in read_repository(repository / "plain")] == ["plain"]
    assert [m.name for m in read_repository(repository / "plain" / "config.pbtxt")] == ["plain"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(RepositoryError, match="holds no model"):
        read_repository(tmp_path / "empty")
    with pytest.raises(RepositoryError, match="no such file or folder"):
        read_repository(tmp_path / "nowhere")


def test_a_text_that_is_no_utf8_is_a_finding(tmp_path):
    (tmp_path / "config.pbtxt").write_bytes(b'name: "\xff"')
    [model] = read_repository(tmp_path / "config.pbtxt")
    assert [f.text for f in model.findings] == ["config.pbtxt is no UTF-8 text: byte 7"]


def test_show_and_json(repository):
    answer = loadgen("repository", "show", repository / "batching")
    assert answer.out.splitlines() == [
        "batching: versions 1; python",
        "  in   x FP32 [-1]",
        "  out  y FP32 [-1]",
        "  batch 8, dynamic, delay 0 us",
        "  instances 1 CPU",
    ]
    [told] = loadgen("repository", "check", repository / "wrong-name", "--json").json
    assert told["config"]["name"] == "other"
    assert told["findings"] == [
        {"refused": True, "field": "name", "text": "'other' in a folder called 'wrong-name'"}
    ]
    assert loadgen("repository", "check", repository / "wrong-name").code == 1
    assert loadgen("repository", "check", repository / "plain").code == 0
    assert loadgen("repository", "show", repository / "nowhere").code == 2
