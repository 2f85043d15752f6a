"""Torch modules, TorchScript, torch.export and ONNX files through the converter: what is served, what is refused."""

import json
import re
import resource
import signal
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch

from loadgen.convert import export as export_module
from loadgen.convert.convert import convert, is_current
from loadgen.convert.encoder import load_encoder
from loadgen.convert.export import ExportError
from loadgen.convert.inputs import InputError
from loadgen.convert.options import ConvertOptions, SourceOptions
from loadgen.convert.parity import AGAIN, ALONE_ONNX, EMPTY_ROW, ParityMissedError, onnx_run
from loadgen.convert.serve_options import ServeOptions
from loadgen.convert.sources import find_source
from loadgen.records import LoadgenError, NotWrittenError
from loadgen.triton.pbtxt import parse
from tests.support import modules
from tests.support.cli import loadgen

HERE = "tests.support.modules:"
X = "x:FP32:batch,3"
IDS = ("ids:INT64:batch,length=1..40:0..49", "mask:INT64:batch,length=1..40:mask")


@pytest.fixture
def published(tmp_path):
    """Converts, and says what config.pbtxt and the sidecar say."""

    def run(source, *tensors, **asked):
        options = ConvertOptions(
            name="m", repository=tmp_path / "repo", max_batch=8, replace=True,
            source=SourceOptions(tensors=tensors, **asked),
        )  # fmt: skip
        steps = []
        result = convert(str(source), options, steps.append)
        assert is_current(options.repository, "m", options, str(source))
        config = parse((options.model_folder / "config.pbtxt").read_text())
        return config, result, steps

    return run


@pytest.fixture
def refused(tmp_path):
    """The one line with which a conversion ends; the repository is left empty."""

    def run(source, *tensors, **asked):
        repository = tmp_path / "refusals"
        options = ConvertOptions(
            name="m", repository=repository, source=SourceOptions(tensors=tensors, **asked)
        )
        with pytest.raises(LoadgenError) as why:
            convert(str(source), options)
        assert "\n" not in str(why.value)
        assert not repository.exists() or list(repository.iterdir()) == []
        return why

    return run


def dims(tensors):
    return {t.name: (list(t.dims), None if t.reshape is None else list(t.reshape.shape)) for t in tensors}


def test_a_module_with_two_inputs_and_a_free_axis(published):
    config, result, _ = published(
        HERE + "Scores", "frames:FP32:batch,frames=2..9,4", "extra:FP32:batch,4:0..5"
    )
    assert config.max_batch_size == 8
    assert dims(config.input) == {"frames": ([-1, 4], None), "extra": ([4], None)}
    assert dims(config.output) == {"output": ([3], None)}
    assert not any(tensor.allow_ragged_batch for tensor in config.input), "nothing masks the frames"
    assert result.sidecar["onnx"]["inputs"][0]["shape"] == ["batch", "frames", 4]
    assert max(p.max_abs for p in result.parity) < 1e-5
    assert {p.batch for p in result.parity} >= {1, 2, 8}


def test_a_mask_lets_lengths_share_a_batch(published):
    config, result, _ = published(HERE + "Tokens", *IDS)
    assert all(tensor.allow_ragged_batch for tensor in config.input)
    assert dims(config.output) == {"output": ([-1, 6], None)}
    assert max(p.max_abs for p in result.parity if p.check == ALONE_ONNX) < 1e-5


@pytest.mark.parametrize("batching", [True, False])
def test_scalars(published, refused, batching):
    """Field case 10: dims [] are no dims; with a batch [1] and a reshape, without one the advice."""
    if batching:
        config, _, _ = published(HERE + "Scalars", "x:FP32:batch")
        assert config.max_batch_size == 8
        assert dims(config.input) == {"x": ([1], [])}
        assert dims(config.output) == {"output": ([1], [])}
        return
    for source, tensors, name in (
        ("OneNumber", ["x:FP32:3"], "output"),
        ("OneNumber", [X], "output"),
        ("WithScale", [X, "scale:FP32:"], "scale"),
    ):
        why = refused(HERE + source, *tensors)
        assert why.type is InputError
        assert f"{name} is a scalar (shape [])" in str(why.value)
        assert "use shape [1] in the model" in str(why.value)


@pytest.mark.parametrize(
    ("source", "tensors", "inputs", "output", "says"),
    [
        ("FixedFour", ["x:FP32:4,3"], {"x": [4, 3]}, [4, 3], "x [4, 3] does not begin with batch"),
        (
            "Mixed", [X, "weights:FP32:3,2"], {"x": [-1, 3], "weights": [3, 2]}, [-1, 2],
            "weights [3, 2] does not begin with batch",
        ),
        ("Loops", [X], {"x": [1, 3]}, [1, 3], "batch must be free, the export has frozen them"),
    ],
)  # fmt: skip
def test_a_batch_that_cannot_be_free(published, source, tensors, inputs, output, says):
    """Field case 29: a fixed batch, or one input with a batch and one without: max_batch_size 0, whole dims."""
    config, result, steps = published(HERE + source, *tensors)
    assert config.max_batch_size == 0
    assert config.dynamic_batching is None
    assert {t.name: list(t.dims) for t in config.input} == inputs
    assert list(config.output[0].dims) == output
    (note,) = [step for step in steps if "max_batch_size is 0" in step]
    assert says in note
    assert result.sidecar["notes"] == [note]


def test_a_batch_of_one_size_only_is_refused_with_advice(refused):
    """Field case 29: declared free, and not: what to write instead is said."""
    why = refused(HERE + "FixedFour", X)
    assert "does not run at batch 3" in str(why.value)
    assert "an axis that has one size is written as it" in str(why.value)


def test_a_branch_on_values_is_refused_with_its_line(refused, capfd):
    why = refused(HERE + "Branches", X)
    assert why.type is ExportError
    assert "branches on the values of its inputs at modules.py:" in str(why.value)
    assert "`return x + 1 if x.sum() > 0 else x - 1`" in str(why.value)
    assert "torch.where" in str(why.value)
    out, err = capfd.readouterr()
    assert "GraphModule" not in out + err, "PyTorch's own pages stay off the screen"


def test_one_of_several_outputs(published, refused):
    assert "gives 2 outputs; choose with --output one of double, half" in str(
        refused(HERE + "Several", X).value
    )
    config, result, _ = published(HERE + "Several", X, output="half")
    assert dims(config.output) == {"half": ([3], None)}
    onnx_file = result.folder / "model.onnx"
    assert onnx_run(onnx_file)({"x": np.full((2, 3), 8, np.float32)}).tolist() == [[4.0] * 3] * 2


@pytest.mark.parametrize(
    ("source", "tensors", "says"),
    [
        (HERE + "no_module", [X], "gave a str; a torch.nn.Module is needed"),
        (HERE + "breaks", [X], "cannot be made: RuntimeError: no weights"),
        (HERE + "nothing", [X], "has no function or class nothing"),
        (HERE + "Scores", [X], "forward(frames, extra) takes no x"),
        (HERE + "Mixed", [X], "forward(x, weights) takes weights too, which is not described"),
        (HERE + "Scores", [], "describe its inputs with --inputs FILE"),
        ("no.such:thing", [X], "there is no module no.such"),
        ("none.py:thing", [X], "there is no file none.py"),
        (HERE + "not a name", [X], "is no name of a function"),
    ],
)
def test_a_module_that_is_none(refused, source, tensors, says):
    assert says in str(refused(source, *tensors).value)


def test_a_factory_in_a_file_of_its_own(published, tmp_path):
    file = tmp_path / "own.py"
    file.write_text("import torch\ndef make():\n    return torch.nn.Linear(3, 2)\n")
    spec = tmp_path / "spec.yaml"
    spec.write_text('output: y\ninputs:\n  - {name: input, dtype: FP32, dims: [batch, 3], range: "0..1"}\n')
    config, result, _ = published(f"{file}:make", inputs=spec, random_seed=5)
    assert dims(config.output) == {"y": ([2], None)}
    assert sorted(result.sidecar["source"]["sha256"]) == ["own.py", "spec.yaml"]
    again = load_encoder(find_source(f"{file}:make", SourceOptions(inputs=spec, random_seed=5)))
    feeds = {"input": np.ones((1, 3), np.float32)}
    want = again.module(input=torch.ones(1, 3)).detach().numpy()
    np.testing.assert_allclose(onnx_run(result.folder / "model.onnx")(feeds), want, rtol=0, atol=1e-6)


def test_torchscript(published, refused, tmp_path):
    file = tmp_path / "tokens.pt"
    torch.jit.script(modules.Tokens().eval()).save(file)
    assert "TorchScript does not say what shapes it takes" in str(refused(file).value)
    assert "takes ids, mask; described are x" in str(refused(file, X).value)
    config, result, _ = published(file, *IDS)
    assert dims(config.output) == {"output": ([-1, 6], None)}
    assert result.sidecar["onnx"]["exporter"] == "torch.onnx.export(dynamo=False) of a TorchScript module"
    assert max(p.max_abs for p in result.parity) < 1e-5
    torch.save(modules.Tokens().state_dict(), file)
    assert "weights alone (a state_dict) have no code" in str(refused(file, *IDS).value)


def test_torch_export_archives_name_their_own_axes(published, refused, tmp_path):
    file = tmp_path / "scores.pt2"
    batch, frames = torch.export.Dim("b", min=1, max=64), torch.export.Dim("f", min=2, max=30)
    example = (torch.rand(3, 5, 4), torch.rand(3, 4))
    program = torch.export.export(
        modules.Scores().eval(), example, dynamic_shapes=({0: batch, 1: frames}, {0: batch})
    )
    torch.export.save(program, file)
    config, result, _ = published(file)
    assert config.max_batch_size == 8
    assert dims(config.input) == {"frames": ([-1, 4], None), "extra": ([4], None)}
    assert result.sidecar["onnx"]["outputs"][0]["shape"] == ["batch", 3]

    torch.export.save(torch.export.export(modules.Several().eval(), (), {"x": torch.rand(3, 3)}), file)
    config, _, steps = published(file, output="half")
    assert (config.max_batch_size, list(config.input[0].dims)) == (0, [3, 3])
    assert any("max_batch_size is 0: x [3, 3]" in step for step in steps)
    file.write_bytes(b"nothing")
    assert "is no torch.export archive" in str(refused(file).value)


def test_an_onnx_file_is_taken_as_it_is(published, refused, tmp_path, monkeypatch):
    made = published(HERE + "Tokens", *IDS)[1].folder / "model.onnx"
    model = onnx.load(made)
    for value in (*model.graph.input, *model.graph.output):
        for dim, name in zip(value.type.tensor_type.shape.dim, ("N", "seq_len"), strict=False):
            dim.dim_param = name
    file = tmp_path / "theirs.onnx"
    onnx.save_model(model, file, save_as_external_data=True, location="weights.bin", size_threshold=1000)
    assert "nothing tells the range of mask" in str(refused(file).value)
    monkeypatch.setattr(export_module, "_ONE_FILE_BYTES", 100)
    config, result, steps = published(file, IDS[1])
    checks = {"onnx = source", "alone = padded, source", ALONE_ONNX, EMPTY_ROW, AGAIN}
    assert {point.check for point in result.parity} == checks
    assert not [step for step in steps if "PyTorch" in step], "there is none to compare with"
    assert dims(config.input) == {"ids": ([-1], None), "mask": ([-1], None)}
    assert result.sidecar["onnx"]["inputs"][0]["shape"] == ["batch", "length"], "their names become ours"
    assert sorted(result.sidecar["onnx"]["files"]) == ["model.onnx", "model.onnx.data"]
    assert result.sidecar["onnx"]["exporter"] == "none: an ONNX file as it was"
    (tmp_path / "weights.bin").unlink()
    assert "is no ONNX file that runs" in str(refused(file, IDS[1]).value)


def test_files_that_are_no_models(refused, tmp_path):
    for name, content, says in (
        ("empty.onnx", b"", "is empty"),
        ("junk.onnx", b"junk", "is no ONNX file that runs"),
        ("model.bin", b"junk", "is a file of no known kind"),
    ):
        (tmp_path / name).write_bytes(content)
        assert says in str(refused(tmp_path / name).value)
    with (tmp_path / "large.onnx").open("wb") as stream:
        stream.truncate(2**31 + 5)  # sparse: it takes no room
    assert "ONNX ends at 2 GiB, save its weights as external data" in str(
        refused(tmp_path / "large.onnx").value
    )
    assert refused(HERE + "Scalars", "x:FP32:batch", task="causal").match(
        "--task is for Hugging Face folders"
    )


def test_a_disk_that_ends_midway_leaves_nothing(refused, tmp_path):
    """A real failure of the write: the file may not grow beyond 4 KiB."""
    file = tmp_path / "wide.py"
    file.write_text("import torch\ndef make():\n    return torch.nn.Linear(64, 64)\n")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        why = refused(f"{file}:make", "input:FP32:batch,64")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert why.type is NotWrittenError
    assert "cannot write" in str(why.value)
    assert "nothing was published" in str(why.value)


def test_the_sidecar_keeps_what_was_asked(published):
    _, result, _ = published(HERE + "Scalars", "x:FP32:batch")
    told = json.loads((result.folder / "convert.json").read_text())
    assert told["options"]["source"] == {"tensors": ["x:FP32:batch"]}
    assert (told["model"]["kind"], told["onnx"]["opset"]) == ("module", 18)


@pytest.mark.parametrize(
    ("factory", "asked", "says"),
    [
        (
            "Found",
            {},
            "how much it answers depends on the values of its inputs, and batch must be the inputs' own",
        ),
        ("Says", {}, "Says answers with a str; a tensor is needed"),
        ("Complex", {}, "Complex answers in complex64, which NumPy or servers do not have"),
        ("Empty", {}, "Empty answers without a number: its answer has the shape [3, 0]"),
        ("Same", {}, "the answer is the input x as it is: there is nothing to serve"),
        ("Brief", {}, "Brief answers in bfloat16, which NumPy or servers do not have"),
        ("One", {"output": "nope"}, "One gives 1 output; choose with --output one of double"),
    ],
)
def test_answers_that_cannot_be_served(refused, factory, asked, says):
    wide = X if factory in ("Found", "Says", "One", "Same") else "x:FP32:batch,64"
    assert says in str(refused(HERE + factory, wide, **asked).value)


def test_ctrl_c_is_130_and_a_line(tmp_path):
    asked = ("convert", HERE + "Stopped", "--input", X, "--name", "m", "--repository", tmp_path / "stopped")
    answer = loadgen(*asked)
    assert (answer.code, answer.out) == (130, "")
    assert answer.err.endswith("interrupted: nothing was published\n")
    assert list((tmp_path / "stopped").iterdir()) == []


def test_force_says_what_it_publishes_and_the_sidecar_is_json(tmp_path):
    options = ConvertOptions(name="m", repository=tmp_path, force=True, source=SourceOptions(tensors=(X,)))
    with pytest.raises(ParityMissedError) as missed:
        convert(HERE + "Lost", replace(options, force=False))
    assert missed.value.exit_code == 1
    steps = []
    convert(HERE + "Lost", options, steps.append)
    (line,) = [step for step in steps if step.startswith("WARNING")]
    assert "parity failed at 14 of 14 points" in line
    assert re.search(
        r"allowed is max abs [\d.e-]+, 0.0001 of the largest magnitude; .*not numbers; published because of --force$",
        line,
    )

    def constant(name):
        raise AssertionError(f"{name} is no JSON")

    told = json.loads((tmp_path / "m" / "1" / "convert.json").read_text(), parse_constant=constant)
    assert told["parity"]["passed"] is False
    assert told["parity"]["points"][0]["max_abs"] is None


def test_a_model_that_exits_or_prints_neither_ends_the_program_nor_spoils_the_answer(refused, tmp_path):
    assert "the model's code ended the program: exit(0)" in str(refused(HERE + "Leaves", X).value)
    answer = loadgen(
        "convert", HERE + "Talks", "--input", X, "--name", "m", "--repository", tmp_path / "talks", "--json"
    )
    assert answer.code == 0
    assert answer.json["name"] == "m"  # nothing else is on stdout
    assert "said by the model" in answer.err


def test_a_warm_up_keeps_to_the_ranges_and_masks_of_the_inputs(tmp_path):
    """Names do not matter: the inputs said what they hold."""
    tensors = ("ids:INT64:batch,length=1..40:7..49", IDS[1])
    options = ConvertOptions(
        name="m", repository=tmp_path, source=SourceOptions(tensors=tensors),
        serve=ServeOptions(warmup=((1, 40),)),
    )  # fmt: skip
    convert(HERE + "Tokens", options)
    files = {file.name.split("-")[2]: file.read_bytes() for file in (tmp_path / "m" / "warmup").iterdir()}
    held = {name: np.frombuffer(data, np.int64) for name, data in files.items()}
    assert held["mask"].tolist() == [1] * 40
    assert 7 <= held["ids"].min() < held["ids"].max() <= 49
