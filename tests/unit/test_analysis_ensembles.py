"""Ensembles and what they are made of: whose batches, whose requests, whose queue."""

import json

import pytest

from loadgen.analysis.summary import summarise
from loadgen.report.words import model_lines
from loadgen.triton.facts import composing, is_ensemble, steps_of
from tests.support import runs
from tests.support.runs import MS, S

BATCHED = {"max_batch_size": 8, "dynamic_batching": {}, "instance_group": [{"count": 1}]}


def ensemble(*steps):
    return {"ensemble_scheduling": {"step": [{"model_name": name, "model_version": -1} for name in steps]}}


def own(n):
    """Triton's counters of an ensemble: each request an execution, compute times summed over the steps."""
    return runs.statistics({1: n}, model="ens", queue_ns=1000, compute_ns=26 * MS)


def moved(model, batches, before=None, requests=None, **more):
    zero = runs.statistics(before or {1: 0}, model=model)
    return runs.window(zero, runs.statistics(batches, model=model, requests=requests, **more), model=model)


def summary(tmp_path, server, configs, asked=("ens",), n=400, wanted=("mean batch > 2",)):
    kinds = [runs.info([])["kinds"][0] | {"name": f"k{i}", "model": model} for i, model in enumerate(asked)]
    rows = runs.steady(n)
    for i, row in enumerate(rows):
        row["kind"] = i % len(asked)
    facts = {"models": {name: {"config": config} for name, config in configs.items()}}
    path = runs.build(tmp_path / "run", rows, server=server, facts=facts, kinds=kinds)
    return summarise(path, list(wanted))


def codes(found):
    return {doubt["code"] for doubt in found["doubts"]}


TWO = {"ens": ensemble("pre", "post"), "pre": BATCHED, "post": BATCHED}


def test_an_ensemble_has_no_batches_and_those_of_its_models_are_told_one_by_one(tmp_path):
    """15_triton.py: "mean batch 1.00 items in 1328 executions", while its models gathered 4.8 at a time."""
    server = [
        *runs.window(own(0), own(400), model="ens"),
        *moved("pre", {4: 100}),
        *moved("post", {8: 50}, queue_ns=3 * MS),
    ]
    found = summary(tmp_path, server, TWO)
    told = found["server"]
    for key in (
        "mean_batch",
        "batch_sizes",
        "queue_ns_mean",
        "compute_ns_mean",
        "execution_count",
        "split_ns",
        "by_batch",
    ):
        assert told[key] is None, key
    assert (told["request_count"], told["inference_count"], told["fail_count"]) == (400, 400, 0)
    assert told["ensembles"] == {"ens": ["pre", "post"]}
    assert {name: one["mean_batch"] for name, one in told["composing"].items()} == {"pre": 4, "post": 8}
    assert told["composing"]["post"]["queue_ns_mean"] == 3 * MS
    assert told["composing"]["pre"]["batch_sizes"] == {"4": 100}
    busy = 100 * 5 * MS / (10 * S)  # 100 executions of 5 ms in 10 s
    assert told["composing"]["pre"]["busy"] == pytest.approx(busy, abs=1e-4)
    [row] = found["slo"]
    assert (row["verdict"], row["observed"]) == ("inconclusive", None)
    assert (row["reason"], row["models"]["pre"]) == ("ensemble", 4)
    assert codes(found).isdisjoint({"other_clients", "no_batching", "counters_reset", "other_models"})
    assert not any("mean batch 1.00" in line for line in model_lines(told))


def test_where_one_model_executes_all_of_it_the_mean_batch_is_its(tmp_path):
    configs = {"ens": ensemble("inner"), "inner": ensemble("pre"), "pre": BATCHED}
    server = [
        *runs.window(own(0), own(400), model="ens"),
        *runs.window(own(0) | {"name": "inner"}, own(400) | {"name": "inner"}, model="inner"),
        *moved("pre", {4: 100}),
    ]
    found = summary(tmp_path, server, configs)
    assert found["server"]["ensembles"] == {"ens": ["inner", "pre"]}
    assert list(found["server"]["composing"]) == ["pre"]
    assert (found["server"]["mean_batch"], found["server"]["execution_count"]) == (4, 100)
    assert found["slo"][0]["verdict"] == "pass"


def test_the_only_model_that_was_read_is_not_the_only_one(tmp_path):
    found = summary(tmp_path, [*runs.window(own(0), own(400), model="ens"), *moved("pre", {4: 100})], TWO)
    assert found["server"]["mean_batch"] is None


def test_an_ensemble_whose_models_tell_nothing_says_so(tmp_path):
    configs = {"ens": ensemble("pre", "post"), "pre": None, "post": None}
    found = summary(tmp_path, runs.window(own(0), own(400), model="ens"), configs)
    assert (found["server"]["mean_batch"], found["server"]["composing"]) == (None, {})
    assert "the server tells no statistics of them" in model_lines(found["server"])[0]
    assert found["slo"][0]["verdict"] == "inconclusive"


def test_a_step_that_was_asked_too_counts_for_clients_once(tmp_path):
    """200 requests to the ensemble and 200 to a step of it: 600 at the step's counters, 400 of them a client's."""
    configs = {"ens": ensemble("pre", "pre"), "pre": BATCHED}
    server = [*runs.window(own(0), own(200), model="ens"), *moved("pre", {4: 150})]
    found = summary(tmp_path, server, configs, asked=("ens", "pre"))
    assert found["server"]["request_count"] == 400
    assert "other_clients" not in codes(found)
    more = [*runs.window(own(0), own(260), model="ens"), *moved("pre", {4: 180})]
    again = summary(tmp_path / "more", more, configs, asked=("ens", "pre"))
    assert again["server"]["request_count"] == 260 + 720 - 520
    assert "other_clients" in codes(again)


def test_a_step_that_did_not_batch_is_doubted_by_name(tmp_path):
    server = [*runs.window(own(0), own(400), model="ens"), *moved("pre", {1: 400}), *moved("post", {8: 50})]
    found = summary(tmp_path, server, TWO)
    [doubt] = [one for one in found["doubts"] if one["code"] == "no_batching"]
    assert "of pre was 1.00" in doubt["text"]


def test_a_step_that_was_loaded_anew_is_a_reset_and_in_no_figure(tmp_path):
    server = [
        *runs.window(own(0), own(400), model="ens"),
        *moved("pre", {4: 20}, before={4: 90}),
        *moved("post", {8: 50}),
    ]
    found = summary(tmp_path, server, TWO)
    assert found["server"]["resets"] == ["pre"]
    assert list(found["server"]["composing"]) == ["post"]
    assert found["server"]["mean_batch"] is None
    assert "counters_reset" in codes(found)


def test_steps_answered_from_a_cache_are_no_reset_and_are_told(tmp_path):
    server = [
        *runs.window(own(0), own(400), model="ens"),
        *moved("pre", {4: 10}, requests=40),
        *moved("post", {4: 10}, requests=400, hits=360),
    ]
    found = summary(tmp_path, server, TWO)
    assert found["server"]["resets"] == []
    [doubt] = [one for one in found["doubts"] if one["code"] == "cache_hits"]
    assert "not by post" in doubt["text"]


def test_models_that_nobody_asked_for_are_named(tmp_path):
    """A model that calls others (BLS): no configuration tells, their counters do."""
    server = [*moved("m", {1: 400}), *moved("called", {4: 200})]
    found = summary(tmp_path, server, {"m": {"max_batch_size": 8}}, asked=("m",))
    assert found["server"]["mean_batch"] == 1
    assert found["server"]["request_count"] == 400
    assert found["server"]["other_models"]["called"]["mean_batch"] == 4
    [doubt] = [one for one in found["doubts"] if one["code"] == "other_models"]
    assert "called 800 requests" in doubt["text"]
    assert not doubt["invalidates"]
    assert "other_clients" not in codes(found)
    assert json.dumps(found["server"]["ensembles"]) == "{}"


def test_what_a_configuration_tells_of_its_steps():
    config = ensemble("a", "b", "a")
    config["ensemble_scheduling"]["step"][1]["model_version"] = 3
    assert steps_of(config) == {("a", ""): 2, ("b", "3"): 1}
    assert is_ensemble(config)
    assert not is_ensemble(BATCHED)
    assert not is_ensemble(None)
    loop = {"x": ensemble("y", "z"), "y": ensemble("x"), "z": None}
    assert composing(["x"], loop) == ["y", "z", "x"]
