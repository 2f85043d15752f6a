"""Hugging Face folders by task: what is loaded, what goes in, and tasks that are not theirs."""

import json
import sys

import numpy as np
import pytest
import torch

from loadgen.convert.convert import convert
from loadgen.convert.encoder import EncoderError, load_encoder
from loadgen.convert.options import ConvertOptions, SourceOptions
from loadgen.convert.parity import make_feeds, torch_run
from loadgen.convert.sources import SourceError, find_source
from loadgen.units import show_bytes
from tests.bench.families import table
from tests.support.encoder import write_encoder
from tests.support.families import CASES, CONFIGS, POSITIONS, VOCAB, WIDTH, Cell, write_config


def loaded(tmp_path, family, task=None, **asked):
    folder = write_config(tmp_path / family, family)
    return load_encoder(find_source(str(folder), SourceOptions(task=task, random_seed=1, **asked)))


@pytest.mark.parametrize(
    ("family", "task", "inputs", "output", "width", "per_token"),
    [
        ("bert", "features", ["input_ids", "attention_mask", "token_type_ids"], "last_hidden_state", WIDTH, True),
        ("roberta", "classification", ["input_ids", "attention_mask"], "logits", 2, False),
        ("distilbert", "token-classification", ["input_ids", "attention_mask"], "logits", 2, True),
        ("gpt2", "causal", ["input_ids", "attention_mask"], "logits", VOCAB, True),
        ("llama", "causal", ["input_ids", "attention_mask"], "logits", VOCAB, True),
        ("t5", "features", ["input_ids", "attention_mask"], "last_hidden_state", WIDTH, True),
        (
            "t5", "causal", ["input_ids", "encoder_hidden_states", "encoder_attention_mask"], "logits", VOCAB,
            True,
        ),
        ("vit", "classification", ["pixel_values"], "logits", 2, False),
    ],
)  # fmt: skip
def test_what_goes_in_and_what_comes_out(tmp_path, family, task, inputs, output, width, per_token):
    encoder = loaded(tmp_path, family, task)
    assert list(encoder.inputs) == inputs
    assert (encoder.output, encoder.width, encoder.per_token) == (output, width, per_token)


def test_positions_and_padding_of_each_family(tmp_path):
    roberta = loaded(tmp_path, "roberta", "features")
    assert (roberta.positions, roberta.pad_token_id) == (POSITIONS - 2, 1)
    assert loaded(tmp_path, "gpt2", "causal").positions == POSITIONS
    vit = loaded(tmp_path, "vit", "features")
    assert (vit.specs[0].axes, vit.padded, vit.max_length) == (("batch", 3, 16, 16), False, 1)


def test_random_weights_are_those_of_their_seed(tmp_path):
    rng = torch.get_rng_state()
    folder = write_config(tmp_path / "bert", "bert")
    one, same, other = (
        load_encoder(find_source(str(folder), SourceOptions(random_seed=seed))) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), rng), "the caller's random numbers are left alone"

    feeds = make_feeds(one, [5, 3], np.random.default_rng(0))
    answers = [torch_run(encoder)(feeds) for encoder in (one, same, other)]
    assert (answers[0] == answers[1]).all()
    assert abs(answers[0] - answers[2]).max() > 0.1


def test_a_config_alone_wants_to_be_told(tmp_path):
    folder = write_config(tmp_path / "bert", "bert")
    with pytest.raises(SourceError, match=r"has no weights: .*--random-weights SEED takes the config alone"):
        find_source(str(folder))
    found = find_source(str(folder / "config.json"), SourceOptions(random_seed=3))
    assert found.digests().keys() == {"config.json"}
    assert any("random weights of seed 3" in note for note in found.notes)


@pytest.mark.parametrize(
    ("family", "task", "says"),
    [
        ("bert", "causal", "this bert is not causal, a later token changes the answer at an earlier one"),
        ("distilbert", "causal", "a distilbert has no task causal"),
        ("t5", "classification", "a t5 has no task classification"),
        ("vit", "causal", "a vit has no task causal"),
    ],
)
def test_a_task_that_is_not_its_own(tmp_path, family, task, says):
    with pytest.raises(EncoderError, match=says):
        loaded(tmp_path, family, task)


def test_a_head_that_was_never_trained_is_refused(tmp_path):
    folder = write_encoder(tmp_path / "plain")
    with pytest.raises(EncoderError, match=r"are missing, first .*; is classification its task\?") as why:
        load_encoder(find_source(str(folder), SourceOptions(task="classification")))
    assert "\n" not in str(why.value)


@pytest.mark.parametrize(
    ("saved", "task"),
    [
        ("BertForSequenceClassification", "classification"),
        ("GPT2LMHeadModel", "causal"),
        ("RobertaForTokenClassification", "token-classification"),
        ("ViTForImageClassification", "classification"),
        ("BertForMaskedLM", "features"),
    ],
)
def test_the_task_is_that_of_the_class_that_was_saved(tmp_path, saved, task):
    config = {"model_type": "bert", "architectures": [saved]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert find_source(str(tmp_path), SourceOptions(random_seed=0)).task == task


def test_tasks_and_pooling_that_do_not_go_together(tmp_path):
    folder = str(write_config(tmp_path / "bert", "bert"))

    def refused(**asked):
        with pytest.raises(SourceError) as why:
            find_source(folder, SourceOptions(random_seed=0, **asked))
        return str(why.value)

    assert "task 'summary'; allowed: features, embedding" in refused(task="summary")
    assert "pooling 'max'; allowed: mean, cls, last" in refused(pooling="max")
    assert "an embedding needs --pooling mean|cls|last" in refused(task="embedding")
    assert "--pooling is for the task embedding, not for causal" in refused(task="causal", pooling="cls")
    assert "inputs and output are known of a Hugging Face folder" in refused(tensors=("x:FP32:batch",))


def test_last_pooling_takes_the_last_real_token(tmp_path):

    features = loaded(tmp_path, "gpt2", "features")
    encoder = loaded(tmp_path, "gpt2", "embedding", pooling="last")
    feeds = make_feeds(encoder, [6, 2], np.random.default_rng(0))
    hidden, rows = torch_run(features)(feeds), torch_run(encoder)(feeds)
    assert (rows == np.stack([hidden[0, 5], hidden[1, 1]])).all()


def test_a_folder_s_own_code_runs_only_when_asked_for(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "own_model.py").write_text(
        "from transformers import BertConfig, BertModel\n"
        "class OwnConfig(BertConfig):\n    model_type = 'own'\n"
        "class OwnModel(BertModel):\n    config_class = OwnConfig\n"
    )
    auto = {"AutoConfig": "own_model.OwnConfig", "AutoModel": "own_model.OwnModel"}
    (folder / "config.json").write_text(json.dumps(CONFIGS["bert"] | {"model_type": "own", "auto_map": auto}))
    with pytest.raises(
        EncoderError, match=r"never run unless you ask: read it, then give --trust-remote-code"
    ):
        load_encoder(find_source(str(folder), SourceOptions(random_seed=0)))
    found = find_source(str(folder), SourceOptions(random_seed=0, trust_remote_code=True))
    assert any("WARNING: Python code in" in note for note in found.notes)
    assert "own_model.py" in found.digests()
    assert load_encoder(found).width == WIDTH
    assert any(name.endswith("own_model") for name in sys.modules)


def test_a_missing_tokenizer_is_said_and_not_refused(tmp_path):
    folder = write_encoder(tmp_path / "plain")
    steps = []
    options = ConvertOptions(name="m", repository=tmp_path / "repo", max_batch=4)
    result = convert(str(folder), options, steps.append)
    assert any("no tokenizer.json" in step and "only token ids" in step for step in steps)
    assert result.sidecar["notes"] == [
        f"no tokenizer.json in {folder}: texts cannot be sent to this model, only token ids"
    ]
    assert "1/tokenizer.json" not in result.files


def test_the_table_has_every_family_that_was_promised():
    assert {case.family for case in CASES} == set(CONFIGS)


def test_a_model_beyond_the_memory_is_refused_before_it_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr("loadgen.convert.families.available_memory", lambda: 1000)
    with pytest.raises(
        EncoderError, match=r"the weights alone take .* KiB of memory, and 1000 B are available"
    ):
        loaded(tmp_path, "bert")
    with pytest.raises(EncoderError, match="the weights alone take"):
        load_encoder(find_source(str(write_encoder(tmp_path / "real"))))


def test_weights_of_another_size_than_the_config_are_one_line(tmp_path):
    folder = write_encoder(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"intermediate_size": config["intermediate_size"] * 2})
    )
    with pytest.raises(EncoderError, match=r"the weights have other shapes than config\.json says"):
        load_encoder(find_source(str(folder)))


def test_the_table_gives_each_runtime_a_figure_or_a_reason():
    """Verdicts can fail: beyond the limits, not converted, not built; a reason that comes twice stands once."""
    ok = {"onnx": 1e-6, "alone": {"http": 1e-6}, "batched": {"http": 2e-6}, "cosine": 1.0, "torch": 0.0}
    built = "built, 1.0 MB, takes INT64"
    good = Cell(CASES[1], "fp32", **ok, engine=built)
    far = Cell(CASES[2], "fp32", **{**ok, "batched": {"http": 0.5}}, engine="failed: a node of the parser")
    int8 = Cell(CASES[3], "int8", **{**ok, "cosine": 0.8}, engine=built)
    none = Cell(CASES[4], "fp32", why="no such operator")
    assert [cell.passed for cell in (good, far, int8, none)] == [True, False, False, False]
    text = table([good, far, int8, none])
    one, two, three, four = (
        line.split(" | ")
        for line in text.partition("## By runtime")[2].splitlines()
        if line.startswith("| ") and "family" not in line
    )
    assert one[4:7] == ["0.0e+00", "1.0e-06", "2.0e-06"]
    assert one[8] == f"{built} (2)"
    assert two[6] == "5.0e-01, beyond what is allowed"
    assert three[6] == "2.0e-06, beyond what is allowed"
    assert (one[7], two[7], three[7]) == ("(1)", "(1)", "(1)")
    assert len(set(four[4:])) <= 2, "one reason in every column"
    assert "\n(1) The embedded Triton has python alone" in text
    assert "failed: a node of the parser" in text
    assert text.count("no such operator") == 2
    assert "failed: beyond what is allowed | 0.80000 |" in text


def test_memory_that_may_not_do_is_warned_of(tmp_path, monkeypatch):
    """The kernel ends what takes more than there is without a word: the word is said before."""
    folder = write_encoder(tmp_path / "real")
    weights = sum(4 * p.numel() for p in load_encoder(find_source(str(folder))).module.parameters())
    for times, precision, warned in ((3, "fp32", False), (3, "fp16", True), (5, "fp16", False)):
        monkeypatch.setattr("loadgen.convert.convert.available_memory", lambda times=times: times * weights)
        steps = []
        options = ConvertOptions(name="m", repository=tmp_path, precision=precision, replace=True)
        convert(str(folder), options, steps.append)
        assert (
            any(
                f"of weights may take {show_bytes(4 * weights)} more memory on the way to fp16" in s
                for s in steps
            )
            is warned
        )
