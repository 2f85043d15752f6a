"""Ensembles and a model that calls another, on a real Triton: whose batches, whose requests."""

import json

import pytest

from tests.support.cli import loadgen

pytestmark = pytest.mark.live

PROFILE = """
kinds: {k: {model: %s, timeout: 10s}}
phases:
  - {name: warm, warmup: true, closed: {users: 8, requests: 16}}
  - {name: a, closed: {users: 8, duration: 3s}}
objectives: ["mean batch > 2"]
"""


@pytest.fixture
def run(triton, tmp_path):
    """Calls `loadgen run` on a model: (the answer, summary.json, the folder)."""

    def go(model, *options):
        for name in ("slow", "linear", "chain_inner"):
            triton.load(name)
        triton.load(model)
        (tmp_path / "p.yaml").write_text(PROFILE % model)
        out = tmp_path / "run"
        answer = loadgen(
            "run", tmp_path / "p.yaml", "--target", triton.grpc_target, "--out", out, "-q", *options
        )
        return answer, json.loads((out / "summary.json").read_text()), out

    return go


def codes(summary):
    return {doubt["code"] for doubt in summary["doubts"]}


def test_the_models_that_an_ensemble_is_made_of_are_read_along(run):
    """`slow` gathers 4 of 8 users' requests at a time, through an ensemble within the ensemble."""
    answer, summary, _ = run("chained")
    server, ok = summary["server"], summary["total"]["counts"]["ok"]
    assert server["ensembles"] == {"chained": ["chain_inner", "linear", "slow"]}
    assert server["mean_batch"] is None
    assert server["composing"].keys() == {"slow", "linear"}
    assert server["composing"]["slow"]["mean_batch"] == pytest.approx(4, abs=0.5)
    for told in [server, *server["composing"].values()]:
        assert told["request_count"] == pytest.approx(ok, abs=8)
    assert server["composing"]["slow"]["busy"] > 0.8
    [row] = summary["slo"]
    assert (row["verdict"], row["observed"], answer.code) == ("inconclusive", None, 3)
    assert "mean batch 1.00" not in answer.out
    assert codes(summary).isdisjoint({"no_batching", "other_clients", "counters_reset", "other_models"})


def test_explain_tells_of_what_an_ensemble_is_made_of(run):
    _, _, out = run("chained", "--trace-server")
    told = loadgen("explain", out, "--json")
    stories = {story["model"]: story for story in told.json}
    assert stories.keys() == {"slow", "linear"}
    assert stories["slow"]["mean_batch"] == pytest.approx(4, abs=0.5)
    assert stories["slow"]["step_of"] == ["chain_inner", "chained"]


def test_a_model_that_calls_another_is_seen_by_the_others_counters(run):
    _, summary, _ = run("calling")
    ok = summary["total"]["counts"]["ok"]
    assert summary["server"]["other_models"].keys() == {"slow"}
    assert summary["server"]["other_models"]["slow"]["request_count"] == pytest.approx(ok, abs=8)
    assert "other_models" in codes(summary)
    assert "other_clients" not in codes(summary)


def test_lint_and_sweep_on_an_ensemble(run, triton, tmp_path):
    run("chained")
    (tmp_path / "p.yaml").write_text((PROFILE % "chained").replace("k: {", "k: {batch: 3, "))
    words = "--profile", tmp_path / "p.yaml", "--model", "chained", "--cores", 8, "--json"
    found = loadgen("lint", triton.http_target, *words).json
    assert ("slow", "requests-do-not-pair") in [(one["model"], one["code"]) for one in found]
    (tmp_path / "s.yaml").write_text("profile: p.yaml\nloads: [{users: 2}]\ngrid: {delay: [0ms, 1ms]}\n")
    refused = loadgen("sweep", tmp_path / "s.yaml", "--target", triton.http_target, "--out", tmp_path / "s")
    assert refused.code == 2
    assert "'chained' is an ensemble" in refused.err
    assert "(chain_inner, linear)" in refused.err
