"""The story of a run's batches: shares, costs and advice by values, from a run folder with a trace."""

import pytest

from loadgen.analysis.batches import Batch
from loadgen.analysis.explain import cost_of, explain
from loadgen.runread import read_run
from loadgen.triton.trace import Timeline
from loadgen.triton.tracefile import write_timelines
from tests.support import runs
from tests.support.cli import loadgen

MS = 10**6
CONFIG = {
    "name": "m",
    "max_batch_size": 8,
    "dynamic_batching": {"preferred_batch_size": [4]},
    "input": [{"name": "X"}],
}


def batch(rows, ms, **over):
    base = {"start_ns": 0, "end_ns": ms * MS, "requests": rows, "rows": rows, "rule": "full", "left": 0, "idle_ns": 0,
            "company_ns": 0, "queued_ns": 0}  # fmt: skip
    return Batch(**(base | over))


def make(path, groups, config=CONFIG, origin=7 * MS, **over):
    """A run folder whose trace has `groups`: (start, end, arrivals) in ms of the run."""
    rows = [
        Timeline(
            "m",
            "1",
            origin + round(at * MS),
            origin + start * MS,
            origin + end * MS,
            origin + end * MS,
            1,
            n,
            {"X": (3,)},
        )
        for start, end, arrivals in groups
        for n, at in enumerate(arrivals, 1)
    ]
    facts = {"models": {"m": {"config": config}}}
    build = runs.build(path, runs.steady(20), facts=facts, **over)
    write_timelines(build, sorted(rows, key=lambda one: one.queue_ns), origin)
    return build


GROUPS = [
    (100, 120, [99.9]),
    (121, 149, [101, 102, 103, 104]),
    (150, 178, [105, 106, 107, 108]),
    (179, 199, [109]),
]


def test_shares_costs_and_advice(tmp_path):
    [story] = explain(read_run(make(tmp_path / "run", GROUPS)))
    assert (story["batches"], story["requests"], story["mean_batch"]) == (4, 10, 2.5)
    assert story["sizes"] == {"1": 2, "4": 2}
    cut = story["rules"]["preferred size"]
    assert (cut["batches"], cut["share"], cut["mean_rows"], cut["mean_left"]) == (2, 0.5, 4, 3)
    assert cut["queued_ns_mean"] == round((18.5 + 43.5) / 2 * MS)
    assert cut["company_ns_mean"] == MS
    assert cut["busy_share"] == pytest.approx(56 / 96)
    # 20 ms for one row and 28 ms for four
    assert story["cost"]["row_ns"] == pytest.approx(8 / 3 * MS, abs=1)
    assert story["cost"]["fixed_ns"] == pytest.approx((20 - 8 / 3) * MS, abs=1)
    assert story["padding"] == {
        "tokens": 2 + 2 * 10,
        "padded": 2 + 2 * 16,
        "waste": pytest.approx(1 - 22 / 34),
    }
    advice = "\n".join(story["advice"])
    assert "50 % of the batches (2) ended at a preferred size (4) with 3.0 rows left waiting" in advice
    assert "take preferred_batch_size out" in advice
    assert "7 ms a row now, 5.14 ms in batches of 7" in advice
    assert "35 % padding" in advice


def test_the_fit_needs_two_sizes():
    assert cost_of([batch(8, 10)] * 3) is None
    cost = cost_of([batch(1, 10), batch(1, 10), batch(3, 14)])
    assert (round(cost.fixed_ns), round(cost.row_ns)) == (8 * MS, 2 * MS)


def test_only_measured_phases_count(tmp_path):
    warm = runs.phase("warm", measured=False, start_ns=0, load_end_ns=110 * MS, end_ns=110 * MS)
    main = runs.phase("main", start_ns=120 * MS, load_end_ns=10 * runs.S, end_ns=10 * runs.S)
    [story] = explain(read_run(make(tmp_path / "run", GROUPS, phases=[warm, main])))
    assert story["batches"] == 3


def test_stalls_are_told_with_their_stamps(tmp_path):
    config = CONFIG | {"dynamic_batching": {"default_queue_policy": {"max_queue_size": 9}}}
    path = make(tmp_path / "run", [(100, 120, [99]), (520, 540, [110, 111])], config)
    [story] = explain(read_run(path))
    assert story["stalls"] == [{"start_ns": 120 * MS, "end_ns": 520 * MS, "idle_ns": 400 * MS, "rows": 2}]
    assert "switch prefetch off" in "\n".join(story["advice"])
    text = loadgen("explain", path).out
    assert "idle while 2 rows were pending: 0.120 s to 0.520 s of the run" in text


def test_of_many_stalls_the_longest_are_listed_and_all_are_counted(tmp_path):
    config = CONFIG | {"dynamic_batching": {"default_queue_policy": {"max_queue_size": 9}}}
    groups = [(1000 * n + 300 + n, 1000 * n + 310 + n, [1000 * n]) for n in range(1, 31)]
    phases = [runs.phase(start_ns=0, load_end_ns=60 * runs.S, end_ns=60 * runs.S)]
    path = make(tmp_path / "run", groups, config, phases=phases)
    [story] = explain(read_run(path))
    assert story["stall_count"] == 30
    assert [one["idle_ns"] for one in story["stalls"]] == [(300 + n) * MS for n in range(11, 31)]
    text = loadgen("explain", path).out
    assert "30 times requests waited while an instance was free, for up to 330 ms" in text
    assert "and 10 shorter ones" in text


def test_a_sequence_batcher_has_other_rules_and_gets_no_advice(tmp_path):
    config = {"name": "m", "max_batch_size": 8, "sequence_batching": {"direct": {}}, "input": [{"name": "X"}]}
    [story] = explain(read_run(make(tmp_path / "run", GROUPS, config)))
    assert list(story["rules"]) == ["unbatched"]
    advice = "\n".join(story["advice"])
    assert "made by the sequence batcher" in advice
    assert "add dynamic_batching" not in advice


def test_the_command_prints_a_table(tmp_path):
    answer = loadgen("explain", make(tmp_path / "run", GROUPS))
    assert answer.code == 0
    assert "model m version 1: 10 requests, 10 rows in 4 batches, 2.50 rows each" in answer.out
    assert "sizes     2 of 1, 2 of 4" in answer.out
    line = next(line for line in answer.out.splitlines() if line.strip().startswith("preferred size"))
    assert line.split()[2:] == ["2", "50.0", "%", "4.00", "3.0", "1", "ms", "31", "ms", "58", "%"]


def test_a_run_without_a_trace_says_how_to_make_one(tmp_path):
    answer = loadgen("explain", runs.build(tmp_path / "run", runs.steady(20)))
    assert answer.code == 2
    assert "make the run with `loadgen run --trace-server`" in answer.err
    empty = loadgen("explain", make(tmp_path / "other", []))
    assert "no execution in a measured phase" in empty.err
    [doubt] = [make(tmp_path / "third", GROUPS, {})]
    assert loadgen("explain", doubt).code == 0  # an empty configuration: no batcher
