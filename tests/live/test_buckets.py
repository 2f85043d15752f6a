"""Buckets on a real Triton whose model has a known law: S(b, L) is found, the gain is predicted and comes."""

import pytest

from tests.support.cli import loadgen

pytestmark = [pytest.mark.live, pytest.mark.slow]

PROFILE = """
name: lengths
kinds:
  k: {model: linear, length: {histogram: [{from: 4, to: 20, weight: 8}, {from: 90, to: 120, weight: 2}]}}
phases:
  - {name: p, closed: {users: 1, requests: 400}}
"""


def test_the_predicted_gain_of_buckets_is_the_measured_one(triton, tmp_path):
    """10 ms an execution and 40 us a token: padding 20 lengths to a few is worth it, as Triton merges equal ones only."""
    triton.load("linear")
    path = tmp_path / "p.yaml"
    path.write_text(PROFILE)
    answer = loadgen(
        "buckets", path, "--target", triton.grpc_target, "--confirm", "--seconds", 3, "--out", tmp_path / "runs",
        "--json", "-q",
    )  # fmt: skip
    assert answer.code == 0, answer
    told = answer.json
    fixed, _, token, square = told["service"]["coefficients"]
    # the machine adds to what the model sleeps, and never takes away
    assert 9e6 < fixed < 25e6
    assert token + square * 120 == pytest.approx(40e3, rel=0.5)
    assert told["most"] == 8
    choices = {one["name"]: one for one in told["choices"]}
    chosen = told["chosen"]
    assert 1 <= len(chosen["bounds"]) <= 3
    assert chosen["bounds"][-1] == told["longest"]
    gain = {
        name: (
            one["per_s"] / told["measured"]["as they are"]["per_s"],
            choices[name]["per_s"] / choices["as they are"]["per_s"],
        )
        for name, one in told["measured"].items()
    }
    measured, predicted = gain[chosen["name"]]
    assert predicted > 1.5
    assert measured == pytest.approx(predicted, rel=0.35)
    batch = told["measured"][chosen["name"]]["mean_batch"]
    assert batch == pytest.approx(chosen["mean_batch"], rel=0.3)
    assert told["measured"]["as they are"]["mean_batch"] < 1.5
    assert [p["max"][1] for p in told["tensorrt_profiles"]] == chosen["bounds"]
    # runs of many lengths tell no S(b, L)
    mixed = [argument for run in told["measured"]["as they are"]["runs"] for argument in ("--run", run)]
    refused = loadgen("buckets", path, *mixed, "--max-batch", 8)
    assert (refused.code, len(refused.error_lines)) == (2, 1)
    assert "one length only" in refused.err


ONE_LENGTH = """
name: one length
kinds:
  k: {model: linear, length: %d}
phases:
  - {name: alone, closed: {users: 1, requests: 12}}
  - {name: few, closed: {users: 4, requests: 40}}
  - {name: many, closed: {users: 16, requests: 120}}
"""


def test_runs_of_one_length_each_tell_the_law_without_a_server(triton, tmp_path):
    triton.load("linear")
    runs, path = [], tmp_path / "p.yaml"
    for length in (10, 120):
        path.write_text(ONE_LENGTH % length)
        out = tmp_path / f"run{length}"
        assert loadgen("run", path, "--target", triton.grpc_target, "--out", out, "-q").code in (0, 3)
        runs += ["--run", out]
    path.write_text(PROFILE)
    answer = loadgen("buckets", path, *runs, "--max-batch", 8, "--json", "-q")
    assert answer.code == 0, answer
    told = answer.json
    fixed, _, token, square = told["service"]["coefficients"]
    assert told["service"]["source"] == "runs"
    assert 9e6 < fixed < 25e6
    assert token + square * 120 == pytest.approx(40e3, rel=0.5)
    alone = loadgen("buckets", path, *runs[:2], "--max-batch", 8)
    assert (alone.code, "two lengths" in alone.err) == (2, True)


def test_the_text_says_what_to_write_where(triton, tmp_path):
    triton.load("linear")
    path = tmp_path / "p.yaml"
    path.write_text(PROFILE)
    answer = loadgen("buckets", path, "--target", triton.http_target, "-q", "--most-buckets", 4)
    assert answer.code == 0, answer
    for words in (
        "as they are",
        "1 bucket",
        "4 buckets",
        "ragged",
        "pad to: ",
        "warm up: length",
        "TensorRT profile: min 1x1, opt",
    ):
        assert words in answer.out
