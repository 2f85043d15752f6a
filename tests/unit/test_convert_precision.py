"""Lower precisions of a tiny encoder: what stays FP32, what is said of it, ranges, refusals."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from loadgen.convert import calibration as calibration_module
from loadgen.convert import lowering
from loadgen.convert.calibration import Calibration, CalibrationError, open_calibration, row_of
from loadgen.convert.config import FullTensor
from loadgen.convert.convert import convert
from loadgen.convert.encoder import load_encoder
from loadgen.convert.export import export_onnx
from loadgen.convert.ladder import climb
from loadgen.convert.lowering import rounded_run
from loadgen.convert.options import ConvertOptions, OptionError
from loadgen.convert.parity import ParityError, make_feeds, onnx_run
from loadgen.convert.precision import PrecisionError, choose_kept, load, lower
from loadgen.convert.profiles import Span, ranges
from loadgen.convert.quantize import Ranges
from loadgen.convert.serve_options import ServeOptions
from loadgen.convert.sources import find_source
from loadgen.convert.tensorrt import RTX, BuildOptions, TensorRTError, build, find_tensorrt
from tests.support.encoder import VOCAB, write_encoder

PROFILE = """
name: small
kinds:
  a: {model: tiny, length: {uniform: {min: 5, max: 40}}}
phases:
  - {name: warm-up, warmup: true, closed: {users: 1, requests: 9}}
  - {name: load, open: {rate: [{duration: 20s, at: 20/s}]}}
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(source, encoder, its FP32 ONNX file)."""
    top = tmp_path_factory.mktemp("tiny")
    folder = write_encoder(top / "model", pooling="mean_tokens")
    (folder / "tokenizer.json").unlink()
    source = find_source(str(folder))
    encoder = load_encoder(source)
    file = top / "fp32.onnx"
    export_onnx(encoder, file)
    return source, encoder, file


def rows_of(encoder, n=16, seed=3):
    rng = np.random.default_rng(seed)

    def rows():
        for length in range(4, 4 + n):
            yield make_feeds(encoder, [length], rng)

    return Calibration(rows, {"source": "made up", "rows": n})


def types_of(file):
    model = onnx.load(str(file))
    weights = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    return model, weights


@pytest.mark.parametrize(
    ("precision", "kind"), [("fp16", TensorProto.FLOAT16), ("bf16", TensorProto.BFLOAT16)]
)
def test_products_are_cast_and_norms_softmax_and_masks_are_not(tiny, tmp_path, precision, kind):
    _, _, file = tiny
    done = lower(file, tmp_path / "low.onnx", precision)
    kept = {one.node: one for one in done.kept}
    assert {one.op for one in done.kept if one.reason == "norm"} == {"LayerNormalization"}
    assert {one.op for one in done.kept if one.reason == "softmax"} == {"Softmax"}
    assert {"Where", "Add"} <= {one.op for one in done.kept if one.reason == "mask"}
    assert done.lowered["MatMul"] == 8
    model, weights = types_of(tmp_path / "low.onnx")
    onnx.checker.check_model(model, full_check=True)
    produced = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if node.op_type == "MatMul":
            for name in node.input:
                known = weights.get(name) == kind or name.endswith(f"__{precision}")
                assert known, name
        if node.name in kept:  # casts stand between, so each of its inputs is FP32
            assert not any(name.endswith(f"__{precision}") for name in node.input)
    assert [v.type.tensor_type.elem_type for v in model.graph.output] == [TensorProto.FLOAT]
    assert {v.type.tensor_type.elem_type for v in model.graph.input} == {TensorProto.INT64}
    assert produced[model.graph.output[0].name].op_type in ("Cast", "Div")
    halves = sum(t == kind for t in weights.values())
    assert halves > sum(t == TensorProto.FLOAT for t in weights.values()) / 2
    told = json.loads(json.dumps(done.as_json()))
    assert told["kept_fp32"]["softmax"] == {
        "Softmax": [kept_name for kept_name in kept if kept[kept_name].op == "Softmax"]
    }


def test_fp16_says_nearly_what_torch_says(tiny, tmp_path):
    _, encoder, file = tiny
    lower(file, tmp_path / "low.onnx", "fp16")
    climbed = climb(encoder, {"onnx fp16": onnx_run(tmp_path / "low.onnx")}, "fp16")
    assert climbed.passed, climbed.faults
    gaps = [step.max_abs for step in climbed.steps]
    assert 1e-6 < max(gaps) < 1e-2, "rounded to 11 bits, and no more than that"


def test_bf16_does_not_run_here_and_its_rounding_does(tiny, tmp_path):
    _, encoder, file = tiny
    lower(file, tmp_path / "low.onnx", "bf16")
    with pytest.raises(ParityError, match=r"onnxruntime does not load low\.onnx"):
        onnx_run(tmp_path / "low.onnx")
    runs = {
        "bf16": rounded_run(file, tmp_path / "low.onnx", "bf16", ()),
        "fp16": rounded_run(file, tmp_path / "low.onnx", "fp16", ()),
    }
    assert [p.name for p in tmp_path.iterdir()] == ["low.onnx"]
    steps = {name: climb(encoder, {name: run}, "bf16").steps for name, run in runs.items()}
    gap = {name: np.mean([step.mean_abs for step in found]) for name, found in steps.items()}
    assert 4 < gap["bf16"] / gap["fp16"] < 16, "eight bits of fraction against eleven"


def test_the_rounded_run_is_close_to_the_real_fp16_file(tiny, tmp_path):
    _, encoder, file = tiny
    lower(file, tmp_path / "low.onnx", "fp16")
    feeds = make_feeds(encoder, [20] * 4, np.random.default_rng(0))
    real, rounded = (
        onnx_run(tmp_path / "low.onnx")(feeds),
        rounded_run(file, tmp_path / "low.onnx", "fp16", ())(feeds),
    )
    exact = onnx_run(file)(feeds)
    assert np.abs(real - exact).max() > 1e-6
    assert np.abs(real - rounded).max() < 4 * np.abs(real - exact).max()


def constants(values, *nodes, outputs=("y",)):
    """A graph on x [2, 4] with float constants."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])
    ys = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in outputs]
    inits = [numpy_helper.from_array(np.asarray(v, np.float32), k) for k, v in values.items()]
    graph = helper.make_graph(list(nodes), "g", [x], ys, inits)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize(
    ("value", "fp16", "bf16"),
    [
        (1e5, "constant out of range", None),
        (1e-7, "constant out of range", None),
        (-np.inf, "constant out of range", "constant out of range"),
        (2.0, None, None),
    ],
)
def test_constants_that_a_type_cannot_hold_keep_their_node(value, fp16, bf16):
    model = constants({"c": value}, helper.make_node("Mul", ["x", "c"], ["y"], name="mul"))
    for precision, want in (("fp16", fp16), ("bf16", bf16)):
        assert choose_kept(model, precision).get("mul") == want


def test_names_to_keep_are_kept_and_unknown_ones_refused(tiny, tmp_path):
    _, _, file = tiny
    model = load(file)
    first = next(node.name for node in model.graph.node if node.op_type == "MatMul")
    assert choose_kept(model, "fp16", [first])[first] == "asked for"
    done = lower(file, tmp_path / "low.onnx", "fp16", keep=["Erf"])
    assert "Erf" not in done.lowered
    with pytest.raises(
        PrecisionError, match="--keep nothing: the model has no node or operator of that name"
    ):
        lower(file, tmp_path / "low.onnx", "fp16", keep=["nothing"])


def test_branches_stay_fp32_and_still_find_their_values(tmp_path):
    """An If reads the graph's values by name from within: those are there in FP32."""
    inner = [helper.make_node("Identity", ["h"], ["then"])]
    other = [helper.make_node("Neg", ["h"], ["else"])]
    one = helper.make_tensor_value_info("then", TensorProto.FLOAT, [2, 4])
    two = helper.make_tensor_value_info("else", TensorProto.FLOAT, [2, 4])
    model = constants(
        {"w": np.eye(4) * 3},
        helper.make_node("MatMul", ["x", "w"], ["h"], name="mm"),
        helper.make_node("ReduceMax", ["h"], ["m"], name="max", keepdims=0),
        helper.make_node("Cast", ["m"], ["b"], name="flag", to=TensorProto.BOOL),
        helper.make_node("If", ["b"], ["y"], name="if", then_branch=helper.make_graph(inner, "t", [], [one]),
                         else_branch=helper.make_graph(other, "e", [], [two])),
    )  # fmt: skip
    onnx.save(model, tmp_path / "if.onnx")
    done = lower(tmp_path / "if.onnx", tmp_path / "low.onnx", "fp16")
    assert {one.node: one.reason for one in done.kept}["if"] == "control flow"
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(onnx_run(tmp_path / "low.onnx")({"x": x}), x * 3)


def test_int8_pairs_are_symmetric_and_per_channel(tiny, tmp_path):
    _, encoder, file = tiny
    done = lower(file, tmp_path / "q.onnx", "int8", calibration=rows_of(encoder))
    assert done.lowered == {"MatMul": 6}, "six products with weights; the tables are small here"
    reasons = {one.reason for one in done.kept}
    assert {"norm", "softmax", "product of two activations (attention)", "small table"} <= reasons
    model, _ = types_of(tmp_path / "q.onnx")
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    pairs = [n for n in model.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert len(pairs) == 6 * 3
    for node in pairs:
        assert not values[node.input[2]].any(), "symmetric: every zero point is 0"
        assert values[node.input[2]].dtype == np.int8
    stored = [v for k, v in values.items() if v.dtype == np.int8 and v.ndim == 2]
    for node in pairs:
        if node.input[0] in values:
            assert values[node.input[1]].shape == (values[node.input[0]].shape[1],), "a scale a channel"
    assert {int(np.abs(v).max()) for v in stored} == {127}
    scales = [float(values[n.input[1]]) for n in pairs if n.op_type == "QuantizeLinear"]
    assert len(set(scales)) == 6, "no two pairs are equal, so none are joined"


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_quantised_answers_stay_within_their_limits(tiny, tmp_path, precision):
    _, encoder, file = tiny
    lower(file, tmp_path / "q.onnx", precision, calibration=rows_of(encoder))
    climbed = climb(encoder, {precision: onnx_run(tmp_path / "q.onnx")}, precision)
    assert climbed.passed, climbed.faults
    assert min(step.cosine for step in climbed.steps) < 0.99999, "something was quantised"
    assert all(step.ranks > 0.9 for step in climbed.steps if step.ranks is not None)


def test_large_tables_are_looked_up_in_8_bits(tiny, tmp_path, monkeypatch):
    from loadgen.convert import quantize

    monkeypatch.setattr(quantize, "_TABLE", 1000)
    _, encoder, file = tiny
    for precision in ("int8", "fp8"):
        done = lower(file, tmp_path / f"{precision}.onnx", precision, calibration=rows_of(encoder))
        assert done.lowered == {"MatMul": 6, "Gather": 2}, "words and positions; token types are few"
        assert climb(encoder, {"q": onnx_run(tmp_path / f"{precision}.onnx")}, precision).passed
    sizes = [(tmp_path / f"{p}.onnx").stat().st_size for p in ("int8", "fp8")]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)


def test_an_engines_tables_are_dequantised_before_the_lookup(tiny, tmp_path, monkeypatch):
    """TensorRT refuses 8-bit constants that anything but a dequantisation reads; the form it takes is really built."""
    from loadgen.convert import quantize

    monkeypatch.setattr(quantize, "_TABLE", 1000)
    _, encoder, file = tiny
    tensors = [FullTensor(one.name, "INT64", ("batch", "length")) for one in encoder.specs]
    options = BuildOptions(ranges(tensors, Span(1, 2, 4), [Span(1, 8, 16)]), target="8.9")
    for engine in (False, True):
        lower(file, tmp_path / "low.onnx", "int8", calibration=rows_of(encoder), tensorrt=engine)
        read = {name for node in onnx.load(tmp_path / "low.onnx").graph.node for name in node.input[:1]
                if node.op_type == "Gather"}  # fmt: skip
        assert any(name.endswith("__table") for name in read) == engine
        if engine:
            build(find_tensorrt(RTX), tmp_path / "low.onnx", tmp_path / "m.plan", options)
            climbed = climb(encoder, {"file": onnx_run(tmp_path / "low.onnx")}, "int8", max_batch=2)
            assert climbed.passed, climbed.faults
        else:
            with pytest.raises(TensorRTError, match="Quantized constant"):
                build(find_tensorrt(RTX), tmp_path / "low.onnx", tmp_path / "m.plan", options)


def test_without_data_int8_is_refused_or_says_what_was_skipped(tiny, tmp_path):
    _, _, file = tiny
    with pytest.raises(PrecisionError, match="int8 needs calibration data: give --calibration"):
        lower(file, tmp_path / "q.onnx", "int8")
    assert not (tmp_path / "q.onnx").exists()
    done = lower(file, tmp_path / "q.onnx", "int8", skip_quant=True)
    assert done.skipped == "no calibration data: 6 weights are int8, no arithmetic is"
    assert not any(n.op_type == "QuantizeLinear" for n in onnx.load(str(tmp_path / "q.onnx")).graph.node)
    with pytest.raises(OptionError, match="int8 needs calibration data"):
        ConvertOptions(name="a", precision="int8")
    for wrong in ({"precision": "int4"}, {"calibration": file}, {"skip_quant": True}, {"keep": ("MatMul",)}):
        with pytest.raises(OptionError):
            ConvertOptions(name="a", **wrong)


def test_ranges_grow_with_what_they_see_and_cut_outliers():
    ranges = Ranges(["a", "zero"])
    rng = np.random.default_rng(0)
    for _ in range(20):
        ranges.add("a", rng.normal(0, 1, 5000).astype(np.float32))
    whole = ranges.limit("a", 127)
    assert 3.0 < whole < 5.0
    ranges.add("a", np.array([1000.0], np.float32))
    assert ranges._counts["a"].sum() == 100_001
    assert ranges._top["a"] >= 1000
    few = Ranges(["b"])
    values = np.concatenate([rng.normal(0, 1, 100_000), [40.0]]).astype(np.float32)
    few.add("b", values)
    assert few.limit("b", 127) < 30, "one outlier does not cost everybody their steps"
    assert few.limit("b", 1e9) == pytest.approx(40, rel=0.01)
    ranges.add("zero", np.zeros(5, np.float32))
    assert ranges.limit("zero", 127) == 1.0
    with pytest.raises(PrecisionError, match="calibration: a holds infinities"):
        ranges.add("a", np.array([np.nan], np.float32))


def test_a_profile_s_own_lengths_and_one_row_at_a_time(tiny, tmp_path):
    source, encoder, _ = tiny
    (tmp_path / "p.yaml").write_text(PROFILE)
    found = open_calibration(tmp_path / "p.yaml", encoder, source.folder, rows=40)
    assert found.facts["lengths"]["min"] in (5, 6)
    assert found.facts["lengths"]["max"] in (39, 40)
    assert 18 <= found.facts["lengths"]["median"] <= 27
    assert found.facts["made_of"].startswith("random values")
    rows = list(found.rows())
    assert len(rows) == 40
    assert all(row["input_ids"].shape[0] == 1 and row["attention_mask"].all() for row in rows)
    assert max(int(row["input_ids"].max()) for row in rows) < VOCAB
    assert [r["input_ids"].tolist() for r in found.rows()] == [r["input_ids"].tolist() for r in rows]


def test_an_npz_is_read_row_by_row_and_loses_its_padding(tiny, tmp_path, monkeypatch):
    source, encoder, _ = tiny
    feeds = make_feeds(encoder, [9, 4, 7], np.random.default_rng(0))
    np.savez(tmp_path / "rows.npz", **feeds)
    found = open_calibration(tmp_path / "rows.npz", encoder, source.folder)
    assert [row["input_ids"].shape for row in found.rows()] == [(1, 9), (1, 4), (1, 7)]
    assert next(iter(found.rows()))["input_ids"].tolist() == feeds["input_ids"][:1, :9].tolist()
    monkeypatch.setattr(np, "load", lambda *_: pytest.fail("the whole file was read"))
    assert next(iter(found.rows()))["input_ids"].shape == (1, 9)
    np.savez(tmp_path / "few.npz", input_ids=feeds["input_ids"])
    with pytest.raises(CalibrationError, match="lacks attention_mask, token_type_ids; it has input_ids"):
        open_calibration(tmp_path / "few.npz", encoder, source.folder)
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    with pytest.raises(CalibrationError, match=r"not an \.npz file"):
        open_calibration(tmp_path / "bad.npz", encoder, source.folder)


def test_text_that_cannot_calibrate_is_one_line(tiny, tmp_path):
    source, encoder, _ = tiny
    (tmp_path / "t.txt").write_text("a text\n")
    with pytest.raises(CalibrationError, match=r"a text needs the model's tokenizer\.json"):
        open_calibration(tmp_path / "t.txt", encoder, source.folder)
    with pytest.raises(CalibrationError, match="there is no such file"):
        open_calibration(tmp_path / "none.txt", encoder, source.folder)


@pytest.mark.parametrize("content", ["", "\n  \n\n"])
def test_an_empty_text_is_one_line(tiny, tmp_path, content, words):
    _, encoder, _ = tiny
    (tmp_path / "t.txt").write_text(content)
    with pytest.raises(CalibrationError, match=r"t\.txt: it holds no rows; one sample a line is expected"):
        open_calibration(tmp_path / "t.txt", encoder, words)


def test_a_text_of_another_encoding_is_one_line(tiny, tmp_path, words):
    (tmp_path / "t.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(CalibrationError, match=r"t\.txt: it is no UTF-8 text"):
        open_calibration(tmp_path / "t.txt", tiny[1], words)
    for raw, said in (("bana\nbolo\n".encode("utf-16"), "is UTF-16"), (b"bana\rbolo\r", "end with CR alone")):
        (tmp_path / "t.txt").write_bytes(raw)
        with pytest.raises(CalibrationError, match=rf"t\.txt: .*{said}"):
            open_calibration(tmp_path / "t.txt", tiny[1], words)
    (tmp_path / "t.txt").write_bytes("\ufeffbana bolo\r\n".encode())
    (row,) = open_calibration(tmp_path / "t.txt", tiny[1], words).rows()
    assert row["input_ids"].tolist() == [[1, 4, 5, 2]]


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A folder with a tokenizer of whole words whose ids fit the tiny model."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    folder = tmp_path_factory.mktemp("words")
    names = [
        "[PAD]",
        "[CLS]",
        "[SEP]",
        "[UNK]",
        *(f"{a}{b}" for a in "bcdfgh" for b in ("ana", "olo", "ivi")),
    ]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_texts_become_rows_by_the_tokenizer(tiny, tmp_path, words):
    _, encoder, _ = tiny
    (tmp_path / "t.txt").write_text("bana bolo\n\n" + "civi " * 300 + "\nbana\n")
    found = open_calibration(tmp_path / "t.txt", encoder, words)
    assert [row["input_ids"].shape[1] for row in found.rows()] == [4, encoder.max_length, 3]
    assert next(iter(found.rows()))["input_ids"].tolist() == [[1, 4, 5, 2]]
    assert found.facts["rows"] == 3
    assert len(found.facts["sha256"]) == 64
    samples = calibration_module.text_samples(encoder, words)
    for length in (1, 2, 5, 30):
        made = samples(3, length)
        assert made["input_ids"].shape == (3, length)
        assert made["attention_mask"].all()
    assert made["input_ids"][:, 0].tolist() == [1, 1, 1]
    assert made["input_ids"][:, -1].tolist() == [2, 2, 2]
    assert len({tuple(row) for row in made["input_ids"].tolist()}) == 3


def test_inputs_that_are_no_text_ask_for_an_npz(tiny):
    _, encoder, _ = tiny
    with pytest.raises(CalibrationError, match=r"the input pixel_values is no text; give an \.npz file"):
        row_of(replace(encoder, inputs=("pixel_values",)), [1])


def test_an_int8_conversion_publishes_its_record(tiny, tmp_path):
    source, _, file = tiny
    (tmp_path / "p.yaml").write_text(PROFILE)
    options = ConvertOptions(
        name="q", repository=tmp_path / "repo", precision="int8", calibration=tmp_path / "p.yaml", max_batch=4
    )
    steps = []
    result = convert(str(source.folder), options, steps.append)
    told = json.loads((options.version_folder / "convert.json").read_text())
    assert told["options"]["precision"] == "int8"
    assert told["lowering"]["calibration"]["source"] == "p.yaml"
    assert told["lowering"]["lowered"] == {"MatMul": 6}
    assert (told["ladder"]["passed"], told["ladder"]["limits"]["largest"]) == (True, None)
    assert {step["how"] for step in told["ladder"]["steps"]} == {"batched", "alone", "padded"}
    assert result.files["1/model.onnx"] < file.stat().st_size
    assert any(
        node.op_type == "QuantizeLinear"
        for node in onnx.load(options.version_folder / "model.onnx").graph.node
    )
    assert [p.name for p in options.repository.iterdir()] == ["q"], "nothing of the way is left"
    assert "calibrating with 128 rows of p.yaml" in steps


def test_a_failed_rung_publishes_nothing_unless_forced(tiny, tmp_path, monkeypatch):

    source, _, _ = tiny
    options = ConvertOptions(name="q", repository=tmp_path / "repo", precision="fp16")
    monkeypatch.setattr(lowering, "onnx_run", lambda path, *_: lambda feeds: -onnx_run(path)(feeds))
    with pytest.raises(
        ParityError,
        match=r"parity failed for fp16 at \d+ of \d+ steps, first onnx fp16, batched, length 1: max abs",
    ):
        convert(str(source.folder), options)
    assert list(options.repository.iterdir()) == []
    result = convert(str(source.folder), replace(options, force=True))
    told = result.sidecar["ladder"]
    assert (told["passed"], told["forced"]) == (False, True)
    assert told["faults"][0].startswith("onnx fp16, batched, length 1: max abs")


def test_what_is_for_gpus_is_proven_on_one_where_there_is_one(tiny, tmp_path, monkeypatch):
    """And that it was not asked as served there is said."""
    source, _, _ = tiny
    options = ConvertOptions(name="g", repository=tmp_path, precision="fp16", serve=ServeOptions(gpus=(0,)))

    def rungs(options):
        told = convert(str(source.folder), replace(options, replace=True)).sidecar
        return {step["rung"] for step in told["ladder"]["steps"]}, told["serving"]["warnings"]

    assert rungs(options) == ({"onnx fp16"}, [lowering.UNPROVEN])
    monkeypatch.setattr(lowering, "onnx_run", lambda path, _device="cpu": onnx_run(path))  # as with a GPU
    assert rungs(options) == ({"onnx fp16", "onnx fp16, cuda"}, [lowering.UNPROVEN])
    assert rungs(replace(options, serve=ServeOptions())) == ({"onnx fp16"}, [])


def test_bf16_is_for_gpus_and_published_unproven_only_by_force(tiny, tmp_path, monkeypatch):
    source, _, _ = tiny
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    options = ConvertOptions(name="b", repository=tmp_path / "repo", precision="bf16")
    for force in (False, True):
        with pytest.raises(
            PrecisionError, match=r"bf16 does not run on a CPU: .*; say which GPUs will run it, e.g. --gpus 0"
        ):
            convert(str(source.folder), replace(options, force=force))
    options = replace(options, serve=ServeOptions(gpus=(0,)))
    with pytest.raises(
        PrecisionError,
        match=r"nor on a GPU here: this onnxruntime has no CUDA: .*publish it unproven with --force",
    ):
        convert(str(source.folder), options)
    assert list(options.repository.iterdir()) == []
    told = convert(str(source.folder), replace(options, force=True)).sidecar
    assert "NOT_IMPLEMENTED" in told["lowering"]["no_cpu"] or "implementation" in told["lowering"]["no_cpu"]
    assert told["ladder"]["passed"]
    assert told["ladder"]["steps"][0]["rung"] == "onnx bf16, rounded in fp32"
