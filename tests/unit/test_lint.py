"""`loadgen lint`: each finding with a configuration that has it, and silence where there is nothing."""

import json

import pytest

from tests.support.cli import loadgen

CLEAN = """
max_batch_size: 8
input [ { name: "ids", data_type: TYPE_INT64, dims: [ -1 ] } ]
output [ { name: "out", data_type: TYPE_FP32, dims: [ -1 ] } ]
dynamic_batching { %s }
%s
"""
PROFILE = """
kinds:
  k: {model: m, length: %s, %s}
phases: [{name: a, closed: {users: 4, requests: 40}}]
objectives: ["latency p99 < 50ms", "failure rate < 1%%"]
"""


@pytest.fixture
def lint(tmp_path):
    def go(text, length="8", more="timeout: 5s", *options):
        folder = tmp_path / "m"
        folder.mkdir(exist_ok=True)
        (folder / "config.pbtxt").write_text(text)
        (tmp_path / "p.yaml").write_text(PROFILE % (length, more))
        return loadgen("lint", folder, "--profile", tmp_path / "p.yaml", "--json", "--cores", 2, *options)

    return go


def codes(answer):
    return [one["code"] for one in answer.json]


def test_nothing_to_find(lint):
    answer = lint(CLEAN % ("", ""))
    assert (answer.code, answer.json) == (0, [])


@pytest.mark.parametrize(
    ("batcher", "more", "length", "kind", "found"),
    [
        ("preferred_batch_size: [ 4 ]", "", "8", "batch: 1", ["preferred-is-a-cap"]),
        ("preferred_batch_size: [ 4, 8 ]", "", "8", "batch: 1", ["preferred-is-a-cap"]),
        ("preferred_batch_size: [ 8 ]", "", "8", "batch: 1", []),
        ("preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 100", "", "8", "batch: 1", []),
        ("max_queue_delay_microseconds: 30000", "", "8", "batch: 1", ["delay-over-budget"]),
        ("max_queue_delay_microseconds: 5000", "", "8", "batch: 1", []),
        ("default_queue_policy { allow_timeout_override: true }", "", "8", "batch: 1", ["override-ignored", "prefetch-off"]),
        ("default_queue_policy { max_queue_size: 10 }", "", "8", "batch: 1", ["prefetch-off"]),
        ("priority_levels: 2 default_priority_level: 1", "", "8", "batch: 1", ["prefetch-off"]),
        ("", "", "8", "server_timeout: 1ms", ["override-ignored"]),
        ("", "", "8", "priority: 1", ["override-ignored"]),
        ("", "", "{uniform: {min: 4, max: 64}}", "batch: 1", ["lengths-apart"]),
        ("", "instance_group [ { kind: KIND_CPU, count: 3 } ]", "8", "batch: 1", ["more-instances-than-cores"]),
        ("", "instance_group [ { kind: KIND_CPU, count: 2 } ]", "8", "batch: 1", []),
        ("", 'model_warmup { name: "w" batch_size: 1 inputs { key: "ids" value { data_type: TYPE_INT64 dims: [ 8 ] random_data: true } } }',
         "8", "batch: 1", ["warm-up-ids"]),
        ("", 'model_warmup { name: "w" inputs { key: "ids" value { data_type: TYPE_INT64 dims: [ 8 ] zero_data: true } } }',
         "8", "batch: 1", ["warm-up-skipped"]),
        ("", "", "8", "batch: 5", ["requests-do-not-pair"]),
        ("", "", "8", "batch: 9", ["request-too-large"]),
    ],
)  # fmt: skip
def test_each_finding(lint, batcher, more, length, kind, found):
    answer = lint(CLEAN % (batcher, more), length, kind)
    assert codes(answer) == found
    assert answer.code == (1 if found else 0)
    for one in answer.json:
        assert one["show"].startswith("loadgen ")


def test_a_model_without_a_batcher(lint):
    text = CLEAN % ("", "")
    assert codes(lint(text.replace("dynamic_batching {  }", ""))) == ["no-dynamic-batching"]
    assert codes(lint(text.replace("max_batch_size: 8", "max_batch_size: 0"))) == ["batcher-without-batches"]


def test_an_engine_smaller_than_its_configuration(lint, tmp_path):
    """Field case 30: the configuration says more than the engine's optimization profile."""
    text = CLEAN % ("", 'platform: "tensorrt_plan"')
    assert codes(lint(text, "8", "timeout: 5s", "--engine", "1:4")) == ["engine-smaller"]
    assert codes(lint(text, "8", "timeout: 5s", "--engine", "4:8")) == ["engine-begins-above"]
    assert codes(lint(text, "8", "timeout: 5s", "--engine", "1:8")) == []
    assert "write fewest:most" in lint(text, "8", "timeout: 5s", "--engine", "8").err
    profiles = [{"ids": [[1, 1], [2, 8], [4, 64]]}, {"ids": [[2, 64], [2, 64], [3, 512]]}]
    (tmp_path / "m" / "1").mkdir()
    (tmp_path / "m" / "1" / "convert.json").write_text(json.dumps({"tensorrt": {"profiles": profiles}}))
    [one] = lint(text).json
    assert one["code"] == "engine-smaller"
    assert "end at 4 rows" in one["text"]


def test_ragged_input_takes_all_lengths(lint):
    text = (CLEAN % ("", "")).replace(
        "dims: [ -1 ] } ]\noutput", "dims: [ -1 ], allow_ragged_batch: true } ]\noutput"
    )
    assert codes(lint(text, "{uniform: {min: 4, max: 64}}")) == []


def test_numbers_are_in_the_words(lint):
    [one] = lint(CLEAN % ("max_queue_delay_microseconds: 60000", "")).json
    assert "60000 (60 ms) leaves nothing" in one["text"]
    [one] = lint(CLEAN % ("", ""), "{uniform: {min: 4, max: 64}}").json
    assert "lengths vary (" in one["text"]


@pytest.mark.parametrize("text", ["max_batch_size: x", "nonsense: 1"])
def test_a_configuration_that_cannot_be_read_is_one_line(lint, text):
    answer = lint(text)
    assert answer.code == 2
    assert len(answer.error_lines) == 1
    assert "config.pbtxt, line 1, column " in answer.err


def test_what_cannot_be_held_together_is_refused(lint, tmp_path):
    answer = lint('name: "other"\n' + CLEAN % ("", ""))
    assert answer.code == 2
    assert "sends nothing to model 'other'; it asks: m" in answer.err
    gone = loadgen("lint", tmp_path / "none", "--profile", tmp_path / "p.yaml")
    assert (gone.code, "no such file" in gone.err) == (2, True)
    served = loadgen("lint", "http://127.0.0.1:1", "--profile", tmp_path / "p.yaml")
    assert (served.code, "add --model NAME" in served.err) == (2, True)


def test_text(lint, tmp_path):
    lint(CLEAN % ("preferred_batch_size: [ 4 ]", ""))
    answer = loadgen("lint", tmp_path / "m" / "config.pbtxt", "--profile", tmp_path / "p.yaml")
    assert "preferred-is-a-cap: preferred_batch_size [4] at max_queue_delay_microseconds 0" in answer.out
    assert "4 is a hard cap although max_batch_size is 8" in answer.out
    assert f"see it: loadgen run {tmp_path / 'p.yaml'} --trace-server" in answer.out
    lint(CLEAN % ("", ""))
    assert "m: nothing found against" in loadgen("lint", tmp_path / "m", "--profile", tmp_path / "p.yaml").out
    assert json.loads(lint(CLEAN % ("", "")).out) == []


STEPS = 'platform: "ensemble" max_batch_size: 8 ensemble_scheduling { step [ { model_name: "%s" model_version: -1 } ] }'


def repository(tmp_path, **texts):
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(text)
    (tmp_path / "p.yaml").write_text(PROFILE % ("8", "batch: 1"))
    return "lint", tmp_path / "m", "--profile", tmp_path / "p.yaml", "--cores", 2


def test_of_an_ensemble_the_models_it_is_made_of_are_looked_at(tmp_path):
    """Through an ensemble within it; the ensemble itself batches nothing and has nothing to find."""
    capped = CLEAN % ("preferred_batch_size: [ 4 ]", "")
    words = repository(tmp_path, m=STEPS % "inner", inner=STEPS % "pre", pre=capped)
    answer = loadgen(*words, "--json")
    assert (answer.code, [(one["model"], one["code"]) for one in answer.json]) == (
        1,
        [("pre", "preferred-is-a-cap")],
    )
    assert "pre: preferred-is-a-cap: " in loadgen(*words).out


def test_an_ensemble_with_nothing_to_find_says_what_was_looked_at(tmp_path):
    answer = loadgen(*repository(tmp_path, m=STEPS % "pre", pre=CLEAN % ("", "")))
    assert (answer.code, answer.out.startswith("m, made of pre: nothing found")) == (0, True)


def test_a_step_gets_the_rows_of_the_ensembles_requests(tmp_path):
    small = (CLEAN % ("", "")).replace("max_batch_size: 8", "max_batch_size: 2")
    words = repository(tmp_path, m=STEPS % "pre", pre=small)
    (tmp_path / "p.yaml").write_text(PROFILE % ("8", "batch: 3"))
    assert ("pre", "request-too-large") in [
        (one["model"], one["code"]) for one in loadgen(*words, "--json").json
    ]


def test_a_step_that_cannot_be_read_is_not_called_good(tmp_path):
    answer = loadgen(*repository(tmp_path, m=STEPS % "pre"))
    assert (answer.code, len(answer.error_lines)) == (2, 1)
    assert "m is an ensemble; its step 'pre': " in answer.err
