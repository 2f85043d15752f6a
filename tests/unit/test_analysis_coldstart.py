"""What a cold start was, from stamps and answers: stages, answers until warm, loads that were none."""

import io
import os

from rich.console import Console

from loadgen.analysis.coldstart import load_fault, spread, summarise, warmth
from loadgen.environment.nvml import Gpu
from loadgen.lab.cold_repeat import Site, _remember
from loadgen.report.coldstart import print_coldstart

MS, S = 10**6, 10**9


def ok(n):
    return ["ok"] * n


def test_two_instances_give_two_cold_answers_of_20_s():
    """Case 21: the first request on each of 2 instances takes 20 s, later ones 10 ms, though warm-up was configured."""
    latency = [20 * S, 10 * MS, 20 * S, *[10 * MS] * 17]
    found = warmth(latency, ok(20), instances=2)
    assert (found.first_ns, found.steady_ns) == (20 * S, 10 * MS)
    assert (found.cold, found.timeouts, found.answers_to_warm) == (2, 0, 3)
    assert found.cost_ns == 2 * (20 * S - 10 * MS)


def test_an_instance_that_is_reached_late_is_still_seen():
    """Case 21: with 2 instances the row of warm answers that is asked for is longer than one instance's luck."""
    latency = [20 * S, 10 * MS, 10 * MS, 10 * MS, 20 * S, *[10 * MS] * 15]
    assert warmth(latency, ok(20), instances=1).cold == 1
    assert warmth(latency, ok(20), instances=2).cold == 2


def test_timeouts_of_the_cold_phase_are_told_apart():
    """Case 21: with a timeout of 5 s the two cold answers never come; they are cold timeouts and in no steady figure."""
    outcomes = ["timeout", "timeout", *ok(18)]
    found = warmth([5 * S, 5 * S, *[10 * MS] * 18], outcomes, instances=2)
    assert (found.first_ns, found.cold, found.timeouts, found.errors) == (None, 2, 2, 0)
    assert (found.steady_ns, found.answers_to_warm, found.slowest_after_ns) == (10 * MS, 2, 10 * MS)


def test_warm_from_the_first_costs_nothing():
    found = warmth([10, 11, 9, 10, 12, 10, 10, 10], ok(8))
    assert (found.answers_to_warm, found.cold, found.cost_ns, found.slowest_after_ns) == (0, 0, 0, 12)


def test_the_margin_decides():
    latency = [15, 13, 12, *[10] * 9]
    assert warmth(latency, ok(12), within=0.25).answers_to_warm == 2
    assert warmth(latency, ok(12), within=0.5).answers_to_warm == 0
    assert warmth(latency, ok(12), within=0.1).answers_to_warm == 3


def test_nothing_is_said_where_nothing_came():
    found = warmth([S] * 6, ["timeout"] * 4 + ["connect"] * 2)
    assert (found.steady_ns, found.answers_to_warm, found.cost_ns) == (None, None, None)
    assert (found.cold, found.timeouts, found.errors) == (6, 4, 2)


def test_answers_that_never_settle_are_not_called_warm():
    latency = [10, 100] * 10
    assert warmth(latency, ok(20)).answers_to_warm is None


def test_a_load_of_a_loaded_model_is_none():
    assert load_fault(ready_before=False, counted=0, warmup_rows=0) is None
    assert load_fault(ready_before=False, counted=None, warmup_rows=0) is None
    assert load_fault(ready_before=False, counted=8, warmup_rows=8) is None
    assert "still ready" in load_fault(ready_before=True, counted=0, warmup_rows=0)
    assert "counts 61 inferences where a fresh one has 8" in load_fault(
        ready_before=False, counted=61, warmup_rows=8
    )


def test_the_middle_is_one_of_the_figures():
    assert spread([5, 1, None, 3, 9, 7]) == {"n": 5, "min": 1, "median": 5, "max": 9}
    assert spread([4, 2]) == {"n": 2, "min": 2, "median": 2, "max": 4}
    assert spread([None]) is None


def cold(repeats, **more):
    return {
        "conditions": [{"name": "c", "cache": "dropped", "warmup": False, "told": ""}], "within": 0.25, "instances": 2,
        "mode": "load", "no_control": None, "rejected": [], "repeats": repeats, **more,
    }  # fmt: skip


def repeat(n, *, latency=None, outcomes=None, cached=0.0, timeout=60 * S):
    latency = latency or [20 * S, 20 * S, *[10 * MS] * 18]
    shape = {"kind": "k", "length": 8, "batch": 1, "timeout_ns": timeout, "latency_ns": latency,
             "outcomes": outcomes or ok(len(latency))}  # fmt: skip
    return {"condition": "c", "repeat": n, "stages_ns": {"load_to_ready": n * S}, "memory_bytes": {"warm": n},
            "shapes": [shape], "cached_share": cached}  # fmt: skip


def codes(summary):
    return [doubt["code"] for doubt in summary["doubts"]]


def test_five_repeats_have_a_least_a_middle_and_a_greatest_and_no_p99():
    told = summarise(cold([repeat(n) for n in (3, 1, 5, 2, 4)]))
    [condition] = told["conditions"]
    assert condition["stages_ns"]["load_to_ready"] == {"n": 5, "min": S, "median": 3 * S, "max": 5 * S}
    [shape] = condition["shapes"]
    assert shape["cold_answers"] == {"n": 5, "min": 2, "median": 2, "max": 2}
    assert shape["first_ns"]["max"] == 20 * S
    assert "p99" not in str(told).lower()
    assert told["doubts"] == []


def test_what_is_doubtful_is_said():
    rejected = [{"condition": "c", "repeat": 2, "why": "the model was still ready"}]
    one = repeat(1, latency=[20 * S, *[10 * MS] * 19], cached=0.8, timeout=10 * S)
    told = summarise(cold([one], rejected=rejected))
    assert codes(told) == ["noop_load", "few_repeats", "still_cached", "beyond_timeout", "instances_missed"]
    lost = repeat(1, latency=[5 * S] * 2 + [10 * MS] * 18, outcomes=["timeout"] * 2 + ok(18))
    assert codes(summarise(cold([lost] * 5))) == ["cold_timeouts"]
    alone = cold([repeat(1)], mode="first requests", no_control="load / unload is not allowed")
    assert codes(summarise(alone)) == ["no_control"]


class Gpus:
    """Two of them, of which one does not tell its memory."""

    def read(self):
        return [Gpu("a", 0.1, 5_000_000, 70.0, None), Gpu("b", None, None, None, None)]


def test_memory_of_gpus_is_remembered_beside_the_processes_and_shown():
    site = Site(None, None, "m", (), 1, 4, S, S, S, pid=os.getpid(), nvml=Gpus())
    row = {"memory_bytes": {}}
    _remember(site, row, "loaded")
    assert row["memory_bytes"]["gpu_loaded"] == 5_000_000
    assert row["memory_bytes"]["loaded"] > 10**7
    one = repeat(1) | row
    [condition] = summarise(cold([one] * 5))["conditions"]
    assert condition["memory_bytes"]["gpu_loaded"]["median"] == 5_000_000
    console = Console(file=io.StringIO(), width=120)
    print_coldstart(
        cold([one] * 5, model="m", target="t", notes=[]), summarise(cold([one] * 5)), console, "x"
    )
    assert "GPU memory, model ready" in console.file.getvalue()
