"""`loadgen coldstart` at a server that does what it is told: cold answers, loads that are none, no control at all."""

import json

from aiohttp import web

from tests.support.cli import loadgen
from tests.support.kserve_mock import Mock, Model

PROFILE = """
name: cold
seed: 1
kinds:
  k: {model: m, length: {uniform: {min: 2, max: 30}}, timeout: %s}
phases:
  - {name: p, closed: {users: 1, requests: 30}}
"""
MS = 10**6


def measure(mock, tmp_path, *options, timeout="60s"):
    path, out = tmp_path / "p.yaml", tmp_path / "out"
    path.write_text(PROFILE % timeout)
    # a margin that a busy machine does not use up: 20 ms become 80
    fixed = ("--cache", "warm", "--within", 300, "--answers", 12, "-q")
    answer = loadgen("coldstart", path, "--target", mock.target, "--out", out, *fixed, *options)
    cold = json.loads((out / "coldstart.json").read_text()) if (out / "coldstart.json").exists() else None
    return answer, cold


class TwoInstances(Model):
    """A model of two instances."""

    def config(self, model):
        return {**super().config(model), "instance_group": [{"count": 2, "kind": "KIND_CPU"}]}


def cold_on_two(n):
    return (0.3, 200, None) if n < 2 else (0.02, 200, None)


def test_every_stage_of_five_loads(tmp_path):
    """Cases 20 and 21: load call, model ready and first answer apart; 2 instances, 2 cold answers (0.3 s here)."""
    with Mock(cold_on_two, models={"m": TwoInstances()}) as mock:
        mock.control, mock.load_s = "explicit", 0.05
        answer, cold = measure(mock, tmp_path, "--warmup", "off", "--lengths", "8,16")
        assert answer.code == 0, answer
        # one look ahead, five repeats, and the model left as the repository has it
        assert [name for name, _ in mock.loads] == ["m"] * 7
        assert mock.models["m"].ready
    [condition] = cold["summary"]["conditions"]
    stages = condition["stages_ns"]
    assert (condition["repeats"], stages["load_call"]["n"]) == (5, 5)
    assert stages["load_call"]["min"] >= 50 * MS
    assert stages["load_to_ready"]["min"] >= stages["load_call"]["min"]
    assert stages["first_answer"]["min"] >= 300 * MS
    assert stages["load_to_answer"]["min"] >= 350 * MS
    first, second = condition["shapes"]
    assert (first["length"], second["length"]) == (8, 16)
    assert first["cold_answers"] == {"n": 5, "min": 2, "median": 2, "max": 2}
    assert second["first_ns"]["median"] < 200 * MS  # the instances are warm, only the shape is new
    assert cold["instances"] == 2
    for words in (
        "min",
        "median",
        "max",
        "load call",
        "load to model ready",
        "load to first answer",
        "first answer",
        "cold answers",
    ):
        assert words in answer.out
    assert not (tmp_path / "out" / "run.json").exists()


def test_cold_timeouts_are_called_so(tmp_path):
    """Case 21: a timeout shorter than the two cold answers fires on both, a longer one on none."""
    for timeout, lost in (("200ms", 10), ("5s", 0)):
        (folder := tmp_path / timeout).mkdir()
        with Mock(cold_on_two, models={"m": TwoInstances()}) as mock:
            mock.control = "explicit"
            answer, cold = measure(mock, folder, "--warmup", "off", "--lengths", "8", "--timeout", timeout)
        [shape] = cold["summary"]["conditions"][0]["shapes"]
        assert shape["cold_timeouts"] == lost, answer
        said = [d["text"] for d in cold["summary"]["doubts"] if d["code"] == "cold_timeouts"]
        assert len(said) == (lost > 0)
        assert all("cold phase" in text for text in said)
        assert shape["steady_ns"]["median"] < 200 * MS


def test_answers_beyond_the_kinds_own_timeout_are_told(tmp_path):
    with Mock(cold_on_two) as mock:
        mock.control = "explicit"
        _, cold = measure(
            mock, tmp_path, "--warmup", "off", "--lengths", "8", "--repeats", "1", timeout="200ms"
        )
    assert [d["code"] for d in cold["summary"]["doubts"]] == ["few_repeats", "beyond_timeout"]


def test_a_load_that_did_nothing_is_never_a_cold_start(tmp_path):
    """The server says that it unloads and loads, and does neither: its counters tell."""
    with Mock(models={"m": Model()}) as mock:
        mock.control, mock.ok = "lies", 7
        answer, cold = measure(mock, tmp_path, "--warmup", "off", "--lengths", "8")
    assert (answer.code, cold) == (3, None)
    assert "counts 7 inferences where a fresh one has 0" in answer.err
    assert not (tmp_path / "out").exists()


def test_a_model_that_stays_ready_is_no_cold_start(tmp_path):
    class Stubborn(Model):
        """Ready for ever."""

        def __setattr__(self, key, value):
            super().__setattr__(key, True if key == "ready" else value)

    with Mock(models={"m": Stubborn()}) as mock:
        mock.control = "explicit"
        answer, cold = measure(mock, tmp_path, "--warmup", "off", "--wait", "1s", "--repeats", "1")
    assert (answer.code, cold) == (3, None)
    assert "still READY" in answer.err


def test_one_load_that_others_spoilt_is_left_out(tmp_path):
    with Mock(cold_on_two) as mock:
        mock.control = "explicit"
        real = mock._control

        async def spoilt(request, name, verb):
            answer = await real(request, name, verb)
            if len(mock.loads) == 3 and verb == "load":
                mock.ok = 5
            return answer

        mock._control = spoilt
        answer, cold = measure(mock, tmp_path, "--warmup", "off", "--lengths", "8")
    assert answer.code == 0
    assert [(r["condition"], r["repeat"]) for r in cold["rejected"]] == [("warm cache, no warm-up", 2)]
    assert [r["repeat"] for r in cold["repeats"]] == [1, 3, 4, 5]
    assert "1 loads were no cold start" in answer.out


def test_a_target_is_left_as_it_was_found_though_nothing_was_measured(tmp_path):
    """The first repeat's load fails after its unload: the model is loaded again all the same."""
    for again in (True, False):
        (folder := tmp_path / str(again)).mkdir()
        with Mock() as mock:
            mock.control = "explicit"
            real, calls = mock._control, []

            async def failing(request, name, verb, *, real=real, calls=calls, again=again):
                calls.append(verb)
                if verb == "load" and (calls.count("load") == 2 or (not again and calls.count("load") > 2)):
                    return web.json_response({"error": "out of memory"}, status=400)
                return await real(request, name, verb)

            mock._control = failing
            answer, cold = measure(mock, folder, "--warmup", "off", "--lengths", "8")
            assert (answer.code, cold) == (2, None)
            assert "out of memory" in answer.err
            assert calls == ["load", "unload", "load", "unload", "load"]
            assert mock.models["m"].ready is again


def test_warm_up_is_laid_over_the_configuration_and_taken_off(tmp_path):
    with Mock(models={"m": Model(max_batch_size=8)}) as mock:
        mock.control = "explicit"
        answer, cold = measure(mock, tmp_path, "--lengths", "8,16", "--repeats", "2")
        loads = [config for _, config in mock.loads]
    assert answer.code == 0, answer
    assert {c["name"] for c in cold["conditions"]} == {"warm cache, no warm-up", "warm cache, warm-up"}
    # look ahead; off, on; the next round begins with the other; left as the repository has it
    assert [config is not None for config in loads] == [False, False, True, True, False, False]
    rows = loads[2]["model_warmup"]
    assert [(r["batch_size"], r["inputs"]["INPUT"]["dims"]) for r in rows] == [
        (1, [8]),
        (8, [8]),
        (1, [16]),
        (8, [16]),
    ]
    assert all(
        r["inputs"]["INPUT"]
        == {"data_type": "TYPE_FP32", "dims": r["inputs"]["INPUT"]["dims"], "zero_data": True}
        for r in rows
    )
    assert "warm-up on against off" in answer.out


def test_without_control_only_first_requests_are_measured_and_it_says_so(tmp_path):
    with Mock(cold_on_two) as mock:
        answer, cold = measure(mock, tmp_path, "--lengths", "8")
    assert answer.code == 0, answer
    assert (cold["mode"], len(cold["repeats"])) == ("first requests", 1)
    assert list(cold["summary"]["conditions"][0]["stages_ns"]) == ["first_answer"]
    assert [d["code"] for d in cold["summary"]["doubts"]] == ["no_control"]
    assert "first requests only" in answer.out


def test_the_models_own_ready_counts_not_the_servers(tmp_path):
    """Case 20: the server says "not ready" while others load; the model is, and answers.  Both are written down."""
    with Mock(server_ready=False) as mock:
        mock.control = "explicit"
        answer, cold = measure(mock, tmp_path, "--warmup", "off", "--lengths", "8", "--repeats", "1")
    assert answer.code == 0
    assert cold["repeats"][0]["server_ready_at_model_ready"] is False
    with Mock(models={"m": Model(ready=False)}) as mock:  # and the other way round: the model never is
        (tmp_path / "2").mkdir()
        answer, cold = measure(mock, tmp_path / "2", "--wait", "1s")
    assert (answer.code, len(answer.error_lines), cold) == (2, 1, None)


def test_what_cannot_be_asked_is_refused(tmp_path):
    with Mock() as mock:
        assert "--lengths 0,x" in measure(mock, tmp_path, "--lengths", "0,x")[0].err
        assert "no kind of the profile sends to model 'q'" in measure(mock, tmp_path, "--model", "q")[0].err
        assert "a header is written" in measure(mock, tmp_path, "-H", "nocolon")[0].err
        assert "--timeout 0s: " in measure(mock, tmp_path, "--timeout", "0s")[0].err
    assert not (tmp_path / "out").exists()


def test_nothing_answered_is_no_measurement(tmp_path):
    with Mock(lambda n: (0.0, 500, "out of memory")) as mock:
        mock.control = "explicit"
        answer, cold = measure(mock, tmp_path, "--warmup", "off", "--lengths", "8", "--repeats", "1")
    assert answer.code == 3, answer
    codes = {doubt["code"]: doubt["text"] for doubt in cold["summary"]["doubts"]}
    assert "12 answers were errors" in codes["cold_errors"]
