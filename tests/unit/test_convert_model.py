"""A tiny encoder through the whole converter: free sizes, parity with numbers, refusals, publication."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from loadgen.cli.app import app
from loadgen.convert import convert as convert_module
from loadgen.convert import export as export_module
from loadgen.convert.convert import convert, is_current
from loadgen.convert.encoder import EncoderError, load_encoder
from loadgen.convert.export import ExportError, check_onnx, example_sizes, export_onnx
from loadgen.convert.options import ConvertOptions
from loadgen.convert.parity import (
    AGAIN,
    ALONE_ONNX,
    ALONE_TORCH,
    EMPTY_ROW,
    ONNX_VS_TORCH,
    ParityError,
    make_feeds,
    measure,
    onnx_run,
    points,
    require,
    torch_run,
)
from loadgen.convert.publish import PublishError
from loadgen.convert.runner import model as runner
from loadgen.convert.sources import find_source
from loadgen.records import NotWrittenError
from loadgen.triton.pbtxt import parse
from tests.support.encoder import POSITIONS, VOCAB, WIDTH, write_encoder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    top = tmp_path_factory.mktemp("sources")
    return {
        "plain": write_encoder(top / "plain"),
        "sentence": write_encoder(top / "sentence", pooling="mean_tokens"),
    }


@pytest.fixture(scope="module")
def exported(folders, tmp_path_factory):
    """{kind: (encoder, model.onnx, what the file says of itself)}."""
    top = tmp_path_factory.mktemp("exported")
    made = {}
    for kind, folder in folders.items():
        encoder = load_encoder(find_source(str(folder)))
        path = top / f"{kind}.onnx"
        made[kind] = (encoder, path, export_onnx(encoder, path))
    return made


@pytest.fixture(scope="module")
def published(folders, tmp_path_factory):
    options = ConvertOptions(
        name="tiny", repository=tmp_path_factory.mktemp("repo") / "models", max_batch=8, delay_ns=3_000_000
    )
    steps = []
    return options, convert(str(folders["sentence"]), options, steps.append), steps


@pytest.mark.parametrize(
    ("kind", "output", "axes"),
    [
        ("plain", "last_hidden_state", ("batch", "length", WIDTH)),
        ("sentence", "sentence_embedding", ("batch", WIDTH)),
    ],
)
def test_batch_and_length_are_free(exported, kind, output, axes):
    encoder, path, facts = exported[kind]
    assert facts.opset == 18
    assert facts.ir_version <= 10
    assert [t.name for t in facts.inputs] == ["input_ids", "attention_mask", "token_type_ids"]
    assert {(t.datatype, t.axes) for t in facts.inputs} == {("INT64", ("batch", "length"))}
    assert (facts.output.name, facts.output.datatype, facts.output.axes) == (output, "FP32", axes)
    assert (encoder.width, encoder.vocab_size, encoder.positions) == (WIDTH, VOCAB, POSITIONS)
    assert encoder.max_length == (48 if kind == "sentence" else POSITIONS)
    assert sorted(p.name for p in path.parent.iterdir()) == ["plain.onnx", "sentence.onnx"]


@pytest.mark.parametrize("kind", ["plain", "sentence"])
def test_onnx_says_what_torch_says_at_every_size(exported, kind):
    encoder, path, _ = exported[kind]
    found = measure(encoder, onnx_run(path), points(8, encoder.max_length))
    sizes = {(p.batch, p.length) for p in found if p.check == ONNX_VS_TORCH}
    assert {(1, 1), (1, encoder.max_length), (2, encoder.max_length), (3, 17), (8, 29)} <= sizes
    assert {p.check for p in found} == {ONNX_VS_TORCH, ALONE_TORCH, ALONE_ONNX, EMPTY_ROW, AGAIN}
    assert max(p.max_abs for p in found) < 1e-5
    assert min(p.cosine for p in found) > 0.999999
    assert all(p.mean_abs <= p.max_abs for p in found)
    require(found)


def test_ids_stay_inside_the_vocabulary_and_padding_is_only_padding(exported):
    encoder = replace(exported["plain"][0], pad_token_id=40)
    feeds = make_feeds(encoder, [200, 3], np.random.default_rng(1))
    ids, mask = feeds["input_ids"], feeds["attention_mask"]
    assert set(ids[mask == 1]) <= set(range(VOCAB)) - {40}
    assert {0, VOCAB - 1, 39, 41} <= set(
        make_feeds(encoder, [5000], np.random.default_rng(1))["input_ids"].flat
    )
    assert set(ids[mask == 0]) == {40}
    assert mask.sum(1).tolist() == [200, 3]
    assert feeds["token_type_ids"].max() == 1


def test_the_runner_s_padding_changes_no_answer(exported):
    """The runner on the real file: mixed lengths in one batch against each request alone."""
    rng = np.random.default_rng(3)
    for kind in ("plain", "sentence"):
        encoder, path, _ = exported[kind]
        limits = runner.Limits(
            {"vocab_size": str(VOCAB), "max_length": str(encoder.max_length), "type_vocab_size": "2"}
        )
        session = runner.open_session(path, threads=1)
        batch = [make_feeds(encoder, [n] * rows, rng) for rows, n in ((1, 1), (2, 48), (1, 7), (3, 30))]

        def run(feeds, session=session):
            return session.run(None, feeds)[0]

        answers = runner.answer_all(run, batch, limits, encoder.per_token)
        for feeds, answer in zip(batch, answers, strict=True):
            np.testing.assert_allclose(answer, run(feeds), rtol=0, atol=1e-5)
            np.testing.assert_allclose(answer, torch_run(encoder)(feeds), rtol=0, atol=2e-5)


class Unmasked(torch.nn.Module):
    """Means over padding too: exports well, and answers wrongly as soon as a batch is padded."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, input_ids, attention_mask, token_type_ids):
        return self.inner(input_ids, attention_mask, token_type_ids).mean(1)


@pytest.fixture(scope="module")
def unmasked(exported, tmp_path_factory):
    plain = exported["plain"][0]
    encoder = replace(plain, module=Unmasked(plain.module), per_token=False, output="embedding")
    path = tmp_path_factory.mktemp("unmasked") / "model.onnx"
    return encoder, path, export_onnx(encoder, path)


def test_a_model_that_ignores_its_mask_is_refused(unmasked):
    encoder, path, _ = unmasked
    found = measure(encoder, onnx_run(path), points(8, 48))
    assert max(p.max_abs for p in found if p.check == ONNX_VS_TORCH) < 1e-5
    assert max(p.max_abs for p in found if p.check == ALONE_TORCH) > 1e-2
    with pytest.raises(ParityError, match=r"worst 'alone = padded, .*max abs .*nothing was published"):
        require(found)


def test_an_output_named_like_a_value_inside_gets_another_name(unmasked):
    """A BERT has a value called "embedding" inside; onnxruntime refuses a name defined twice."""
    encoder, path, facts = unmasked
    assert facts.output.name == "embedding_out"
    assert onnx_run(path)(make_feeds(encoder, [4], np.random.default_rng(0))).shape == (1, WIDTH)


class Broken(torch.nn.Module):
    """Has its example's batch of 3 built in, or a branch on its values."""

    def __init__(self, inner, how):
        super().__init__()
        self.inner, self.how = inner, how

    def forward(self, input_ids, attention_mask, token_type_ids):
        answer = self.inner(input_ids, attention_mask, token_type_ids)
        if self.how == "frozen":
            return answer + torch.ones(3, 1, 1)
        return answer if input_ids.sum() > 5 else -answer


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (
            "frozen",
            r"has the shape \[3, 'length'\]; batch and length must be free, the export has frozen them",
        ),
        ("branch", r"cannot export this model: it branches on the values of its inputs .*torch\.where"),
    ],
)
def test_a_model_that_cannot_be_exported_is_refused(exported, tmp_path, how, says):
    plain = exported["plain"][0]
    with pytest.raises(ExportError, match=says) as why:
        export_onnx(replace(plain, module=Broken(plain.module, how)), tmp_path / "broken.onnx")
    assert "\n" not in str(why.value)


def test_a_file_with_a_frozen_axis_is_refused(exported, tmp_path):
    import onnx

    encoder, path, _ = exported["plain"]
    model = onnx.load(str(path))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3
    frozen = tmp_path / "frozen.onnx"
    onnx.save(model, str(frozen))
    with pytest.raises(ExportError, match=r"has the shape \[3, 'length'\]; batch and length must be free"):
        check_onnx(frozen, encoder)
    with pytest.raises(ParityError, match="does not run at batch 1, length 1"):
        measure(encoder, onnx_run(frozen), [(1, 1)])


def test_a_row_of_padding_alone_must_not_reach_its_neighbours(exported):
    encoder, path, _ = exported["plain"]
    real = onnx_run(path)

    def spreads(feeds):
        empty = (feeds["attention_mask"].sum(1) == 0).any()
        return real(feeds) * (np.float32("nan") if empty else np.float32(1))

    found = measure(encoder, spreads, points(4, 16))
    assert {p.check for p in found if not p.max_abs <= 1e-4} == {EMPTY_ROW}
    with pytest.raises(ParityError, match="worst 'beside a row of padding alone' at batch 1, length 16"):
        require(found)


def test_not_a_number_fails_parity(exported):
    encoder, path, _ = exported["sentence"]
    found = measure(encoder, lambda feeds: onnx_run(path)(feeds) * np.float32("nan"), [(2, 5)])
    with pytest.raises(ParityError, match="max abs nan"):
        require(found)


def test_example_sizes_are_no_constant_of_the_model():
    batch, length = example_sizes(64, frozenset({3, 5, 11, 13, 24}))
    assert (batch, length) == (7, 17)
    assert example_sizes(4, frozenset()) == (5, 3)
    with pytest.raises(ExportError, match="too short"):
        example_sizes(1, frozenset())


def test_what_is_published(published):
    options, result, steps = published
    assert sorted(result.files) == [
        "1/convert.json",
        "1/model.onnx",
        "1/model.py",
        "1/tokenizer.json",
        "config.pbtxt",
    ]
    assert (options.version_folder / "tokenizer.json").read_text() == "{}"  # the source's own
    assert result.files == {
        p.relative_to(options.model_folder).as_posix(): p.stat().st_size
        for p in options.model_folder.rglob("*")
        if p.is_file()
    }
    assert [p.name for p in options.repository.iterdir()] == ["tiny"]
    assert [step.split()[0] for step in steps] == ["loading", "exporting", "comparing", "publishing"]
    config = parse((options.model_folder / "config.pbtxt").read_text())
    assert [(i.name, i.optional, i.allow_ragged_batch) for i in config.input] == [
        ("input_ids", False, True),
        ("attention_mask", False, True),
        ("token_type_ids", True, True),
    ]
    assert [(o.name, list(o.dims)) for o in config.output] == [("sentence_embedding", [WIDTH])]
    assert (config.max_batch_size, config.dynamic_batching.max_queue_delay_microseconds) == (8, 3000)
    assert {k: v.string_value for k, v in config.parameters.items()} == {
        "vocab_size": str(VOCAB),
        "max_length": "48",
        "pad_token_id": "0",
        "type_vocab_size": "2",
    }


def test_the_sidecar_tells_where_it_came_from(published, folders):
    options, result, _ = published
    told = json.loads((options.version_folder / "convert.json").read_text())
    assert told == result.sidecar
    assert told["source"]["sha256"] == find_source(str(folders["sentence"])).digests()
    file = options.version_folder / "model.onnx"
    assert told["onnx"]["files"] == {
        "model.onnx": {"bytes": file.stat().st_size, "sha256": convert_module.sha256(file)}
    }
    assert (told["onnx"]["opset"], told["onnx"]["inputs"][0]["shape"]) == (18, ["batch", "length"])
    assert told["versions"]["torch"] == torch.__version__
    assert told["model"]["positions"] == POSITIONS
    assert len(told["parity"]["points"]) == len(result.parity) > 10
    assert all(p["max_abs"] < 1e-4 for p in told["parity"]["points"])


def test_current_until_something_that_matters_changes(published, folders, tmp_path):
    options, _, _ = published
    source = str(folders["sentence"])

    def current(options=options, source=source):
        return is_current(options.repository, options.name, options, source)

    assert current()
    assert current(replace(options, replace=True))
    assert not current(source=str(folders["plain"]))
    for change in ({"delay_ns": 0}, {"max_batch": 4}, {"ragged": False}, {"version": 2}, {"name": "other"}):
        assert not current(replace(options, **change)), change
    there = replace(options, repository=tmp_path / "copy")
    for file, text in (
        ("config.pbtxt", "x"),
        ("1/model.py", "x"),
        ("1/model.onnx", "x"),
        ("1/convert.json", "{}"),
    ):
        shutil.rmtree(there.repository, ignore_errors=True)
        shutil.copytree(options.repository, there.repository)
        assert current(there)
        (there.model_folder / file).write_text(text)
        assert not current(there), file
        (there.model_folder / file).unlink()
        assert not current(there), file


def test_weights_too_large_for_one_file_get_a_second(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(export_module, "_ONE_FILE_BYTES", 1000)
    options = ConvertOptions(name="large", repository=tmp_path)
    result = convert(str(folders["sentence"]), options)
    assert sorted(result.files) == [
        "1/convert.json", "1/model.onnx", "1/model.onnx.data", "1/model.py", "1/tokenizer.json", "config.pbtxt",
    ]  # fmt: skip
    assert sorted(result.sidecar["onnx"]["files"]) == ["model.onnx", "model.onnx.data"]
    feeds = make_feeds(load_encoder(find_source(str(folders["sentence"]))), [4], np.random.default_rng(0))
    assert onnx_run(options.version_folder / "model.onnx")(feeds).shape == (1, WIDTH)
    assert is_current(tmp_path, "large", options, str(folders["sentence"]))
    (options.version_folder / "model.onnx.data").unlink()
    assert not is_current(tmp_path, "large", options, str(folders["sentence"]))


def test_an_existing_version_is_refused_before_any_work(published, folders):
    options, _, _ = published
    with pytest.raises(PublishError, match="--version 2"):
        convert(str(folders["sentence"]), options, pytest.fail)


def test_failed_parity_publishes_nothing(exported, folders, tmp_path, monkeypatch):
    _, path, facts = exported["sentence"]
    monkeypatch.setattr(
        convert_module, "export_any", lambda e, to, **_: (shutil.copy(path, to), (e, facts))[1]
    )
    monkeypatch.setattr(
        convert_module, "onnx_run", lambda path: lambda feeds: onnx_run(path)(feeds) + np.float32(2e-4)
    )
    options = ConvertOptions(name="tiny", repository=tmp_path / "repo")
    with pytest.raises(ParityError, match=r"parity failed .*max abs 0\.0002"):
        convert(str(folders["sentence"]), options)
    assert list(options.repository.iterdir()) == []


def test_a_full_disk_during_the_export_is_one_line(folders, tmp_path, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(convert_module, "export_any", full)
    options = ConvertOptions(name="tiny", repository=tmp_path / "repo")
    with pytest.raises(NotWrittenError, match="No space left on device; free some space"):
        convert(str(folders["sentence"]), options)
    assert list(options.repository.iterdir()) == []


def test_max_length_is_held_to_the_positions(folders):
    source = find_source(str(folders["sentence"]))
    assert load_encoder(source, max_length=POSITIONS).max_length == POSITIONS
    with pytest.raises(EncoderError, match=r"max length 65: .*allowed is 1\.\.64"):
        load_encoder(source, max_length=65)


def test_weights_that_do_not_fill_the_model_are_refused(folders, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(folders["plain"], tmp_path / "holes")
    weights = load_file(folder / "model.safetensors")
    del weights["embeddings.LayerNorm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EncoderError, match=r"1 are missing, first embeddings\.LayerNorm\.weight"):
        load_encoder(find_source(str(folder)))
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(EncoderError, match="cannot be loaded") as why:
        load_encoder(find_source(str(folder)))
    assert "\n" not in str(why.value)


def test_code_that_comes_with_a_model_is_never_run(folders, tmp_path):
    folder = shutil.copytree(folders["plain"], tmp_path / "own")
    (folder / "own.py").write_text("raise SystemExit('run')")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModel": "own.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(EncoderError, match="needs code of its own, which is never run unless"):
        load_encoder(find_source(str(folder)))


def test_a_positions_table_that_starts_behind_the_padding(tmp_path):
    from transformers import RobertaConfig, RobertaModel

    config = RobertaConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=36, max_position_embeddings=34, type_vocab_size=1, pad_token_id=1,
    )  # fmt: skip
    RobertaModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "roberta")
    encoder = load_encoder(find_source(str(tmp_path / "roberta")))
    assert (encoder.positions, encoder.max_length, encoder.pad_token_id) == (32, 32, 1)
    assert encoder.inputs == ("input_ids", "attention_mask")
    path = tmp_path / "model.onnx"
    export_onnx(encoder, path)
    require(measure(encoder, onnx_run(path), points(4, 32)))


def test_the_verb(folders, tmp_path):
    arguments = [
        "convert",
        str(folders["sentence"]),
        "--name",
        "verb",
        "--repository",
        str(tmp_path),
        "--json",
    ]
    options = ["--max-batch", "4", "--delay", "5ms", "--instances", "2", "--no-ragged", "--max-length", "30"]
    done = CliRunner().invoke(app, [*arguments, *options, "--threads", "1"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["folder"] == str(tmp_path / "verb" / "1")
    assert told["options"] == {
        "max_batch": 4, "delay_ns": 5_000_000, "instances": 2, "ragged": False, "max_length": 30, "threads": 1,
    }  # fmt: skip
    assert "exporting to ONNX" in done.stderr
    config = parse((tmp_path / "verb" / "config.pbtxt").read_text())
    assert (config.instance_group[0].count, config.input[0].allow_ragged_batch) == (2, False)
    assert config.parameters["threads"].string_value == "1"
    bad = CliRunner().invoke(app, [*arguments, "--delay", "5"])
    assert "--delay: '5' is not a duration" in str(bad.exception)
