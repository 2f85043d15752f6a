import json
import math

import numpy as np
import pytest

from loadgen.analysis.conclusion import exit_code
from loadgen.analysis.pool import pool
from loadgen.analysis.slo import estimate, measured_of
from loadgen.analysis.summary import summarise
from loadgen.records import LoadgenError, Outcome
from loadgen.runread import read_run
from loadgen.traffic.objective import parse_figure
from tests.support.runs import MS, S, beat, build, phase, row, running, statistics, steady, window


def judged(tmp_path, rows, objective, **over):
    return summarise(build(tmp_path / "run", rows, **over), [objective])["slo"][0]


@pytest.mark.parametrize("n", [999, 100_000, 120_001])
def test_the_summary_and_the_verdict_have_one_p99(tmp_path, n):
    took = np.random.default_rng(1).lognormal(17, 0.6, n).astype(np.int64).tolist()
    rows = [row(i * 10 * S // n, ns) for i, ns in enumerate(took)]
    summary = summarise(build(tmp_path / "run", rows, [phase(planned=n)]), ["latency p99 < 97.18ms"])
    true = sorted(took)[-(-n * 99 // 100) - 1]
    assert summary["total"]["latency_ns"]["p99"] == summary["slo"][0]["observed"] == true


def varied(n=5000, *, seed=1, middle=20 * MS, span=10 * S, **over):
    """`n` independent lognormal times."""
    took = (np.random.default_rng(seed).lognormal(0, 0.3, n) * middle).astype(np.int64).tolist()
    return [row(i * span // n, ns, **over) for i, ns in enumerate(took)]


@pytest.mark.parametrize(
    ("objective", "method"),
    [
        ("latency p99 < 1s", "batch means"),
        ("latency mean < 1s", "batch means"),
        ("failure rate < 5%", "exact binomial"),
        ("latency max < 1s", None),
        ("requests/s > 1", None),
    ],
)
def test_an_interval_names_its_method_and_a_fact_has_none(tmp_path, objective, method):
    found = judged(tmp_path, varied(), objective)
    assert found["method"] == method
    assert (found["interval"] is None) == (method is None)
    assert (found["effective_n"] is None) == (method is None)
    if method is not None:
        low, high = found["interval"]
        assert low <= found["observed"] <= high


def test_a_rate_of_whole_second_bursts_passes_just_below_what_was_asked(tmp_path):
    rows = [row(second * S, (5 + i * 2) * MS) for second in range(10) for i in range(20)]
    summary = summarise(build(tmp_path / "run", rows, [phase(planned=200)]), ["requests/s > 19.8"])
    assert summary["phases"][0]["offered_per_s"] == summary["phases"][0]["achieved_per_s"] == 20
    assert summary["slo"][0]["verdict"] == "pass"


@pytest.mark.parametrize(("n", "verdict"), [(1500, "pass"), (499, "inconclusive"), (10, "inconclusive")])
def test_a_p99_needs_500_requests_to_pass(tmp_path, n, verdict):
    found = judged(tmp_path, steady(n), "latency p99 < 250ms")
    assert (found["verdict"], found["observed"], found["n"]) == (verdict, 10 * MS, n)
    assert (found["reason"], found["needed"]) == (
        (None, None) if verdict == "pass" else ("more_requests", 500)
    )
    assert verdict == "pass" or found["more_s"] >= 10 * (500 / n - 1) * 0.95  # at the rate of a load of 10 s


def test_far_beyond_the_bound_fails_and_near_it_nobody_can_tell(tmp_path):
    slow = [row(i * MS, (300 if i % 20 == 0 else 10) * MS) for i in range(2000)]
    assert judged(tmp_path / "a", slow, "latency p99 < 250ms")["verdict"] == "fail"
    near = [row(i * MS, (300 if i % 110 == 0 else 10) * MS) for i in range(2000)]
    found = judged(tmp_path / "b", near, "latency p99 < 250ms")
    assert (found["verdict"], found["interval"], found["reason"]) == (
        "inconclusive",
        [10 * MS, 300 * MS],
        "more_data",
    )


def test_failures_count_as_infinitely_late(tmp_path):
    rows = steady(1000, service=MS) + steady(50, service=MS, outcome=Outcome.HTTP_5XX)
    found = judged(tmp_path, rows, "latency p99 < 250ms")
    assert (found["verdict"], found["observed"], found["n"]) == ("fail", None, 1050)
    assert found["lost"] == 50


def test_a_few_failures_shift_the_percentile_but_need_not_fail_it(tmp_path):
    rows = [*steady(5000, service=MS), row(0, None, outcome=Outcome.DROPPED)]
    assert judged(tmp_path, rows, "latency p99 < 250ms")["verdict"] == "pass"
    assert judged(tmp_path / "max", rows, "latency max < 250ms")["verdict"] == "fail"
    assert judged(tmp_path / "service", rows, "service max < 250ms")["verdict"] == "pass"


def test_failure_rate_is_of_requests(tmp_path):
    rows = steady(90) + steady(10, outcome=Outcome.TIMEOUT)
    found = judged(tmp_path, rows, "failure rate < 1%")
    assert (found["observed"], found["verdict"], found["n"]) == (0.1, "fail", 100)


def test_drops_never_dilute_a_failure_rate(tmp_path):
    """100 tried and 10 failed are 10 %, however many were dropped."""
    rows = steady(90) + steady(10, outcome=Outcome.PROTOCOL)
    rows += [row(i, None, outcome=Outcome.DROPPED) for i in range(900)]
    found = judged(tmp_path, rows, "failure rate < 4%")
    assert (found["observed"], found["n"], found["verdict"]) == (0.1, 100, "fail")


def test_what_we_gave_up_leaves_a_failure_rate_open(tmp_path):
    rows = steady(1000) + steady(50, outcome=Outcome.CANCELLED)
    found = judged(tmp_path, rows, "failure rate < 1%")
    assert (found["observed"], found["n"], found["verdict"]) == (0.0, 1000, "inconclusive")
    assert (found["unknown"], found["reason"]) == (50, "unknown_ends")
    assert judged(tmp_path / "b", rows, "failure rate < 10%")["verdict"] == "pass"


def test_a_request_cancelled_beyond_the_bound_is_late(tmp_path):
    """The server froze; an interrupt gave up 700 requests, most of them long past the bound."""
    rows = steady(593, span=6 * S, service=9 * MS)
    rows += [row(6 * S + i * 10 * MS, 7 * S - i * 10 * MS, outcome=Outcome.CANCELLED) for i in range(700)]
    path = build(tmp_path / "run", rows, [phase(planned=3000, load_end_ns=13 * S)], status="interrupted")
    summary = summarise(path, ["latency p99 < 500ms", "latency p50 < 500ms", "service p99 < 500ms"])
    p99, p50, service = summary["slo"]
    assert (p99["verdict"], p99["n"], p99["unknown"]) == ("fail", 593, 700)
    assert (
        500 * MS < p99["interval"][0] <= p99["observed"] < 7 * S
    )  # as old as they were when they were given up
    assert p99["interval"][1] is None
    assert (p50["verdict"], service["verdict"]) == ("inconclusive", "fail")  # 651 of 1293: near the half
    assert (summary["valid"], exit_code(summary)) == (False, 1)


def test_a_young_cancelled_request_can_neither_pass_nor_fail_an_objective(tmp_path):
    rows = steady(1000) + [row(9 * S + i, MS, outcome=Outcome.CANCELLED) for i in range(11)]
    found = judged(tmp_path / "a", rows, "latency p99 < 250ms", status="interrupted")
    assert (found["verdict"], found["observed"], found["interval"]) == (
        "inconclusive",
        10 * MS,
        [10 * MS, None],
    )
    assert judged(tmp_path / "b", rows, "latency p90 < 250ms", status="interrupted")["verdict"] == "pass"
    assert (
        judged(tmp_path / "c", rows, "latency max < 250ms", status="interrupted")["verdict"] == "inconclusive"
    )


def test_a_cancelled_request_that_waited_unsent_is_late_from_due_and_has_no_service(tmp_path):
    rows = steady(1500) + [row(0, None, 5 * S, outcome=Outcome.CANCELLED) for _ in range(500)]
    assert judged(tmp_path / "a", rows, "latency p99 < 250ms", status="interrupted")["verdict"] == "fail"
    assert judged(tmp_path / "b", rows, "service p99 < 250ms", status="interrupted")["verdict"] == "pass"


def test_a_killed_run_passes_nothing_that_the_lost_requests_could_miss(tmp_path):
    rows = steady(549, span=549 * 10 * MS)
    path = build(
        tmp_path / "run", rows, [running(planned=3000)], status="running", beats=[beat(12 * S, 1249, 549)]
    )
    summary = summarise(path, ["latency p99 < 500ms", "failure rate < 1%"])
    assert [(r["observed"], r["verdict"]) for r in summary["slo"]] == [
        (10 * MS, "inconclusive"),
        (0.0, "inconclusive"),
    ]
    assert (summary["valid"], exit_code(summary)) == (False, 3)


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.DROPPED, Outcome.HTTP_5XX])
def test_a_mean_over_requests_that_never_succeeded_is_missed(tmp_path, outcome):
    rows = steady(700) + [row(i * MS, 5 * S, outcome=outcome) for i in range(300)]
    found = judged(tmp_path, rows, "latency mean < 20ms")
    assert (found["verdict"], found["observed"], found["n"]) == ("fail", None, 1000)
    assert found["lost"] == 300


def test_rejections_have_a_rate_of_their_own(tmp_path):
    rows = steady(75) + [row(i, MS, outcome=Outcome.REJECTED) for i in range(25)]
    assert judged(tmp_path / "a", rows, "rejection rate < 1%")["observed"] == 0.25
    assert judged(tmp_path / "b", rows, "failure rate < 10%")["observed"] == 0.0


def test_rates_and_mean_batch_are_as_observed(tmp_path):
    server = window(statistics({1: 0}), statistics({4: 250}))
    path = build(tmp_path / "run", steady(1000, items=2), server=server)
    found = summarise(path, ["requests/s > 99", "items/s >= 200", "mean batch > 4", "requests/s > 101"])[
        "slo"
    ]
    assert [(r["observed"], r["verdict"]) for r in found] == [
        (100, "pass"),
        (200, "pass"),
        (4, "fail"),
        (100, "fail"),
    ]


def test_an_objective_of_a_kind_looks_at_that_kind_alone(tmp_path):
    base = {"model": "m", "version": "1", "batch": 1, "weight": 1.0, "timeout_ns": S, "variants": 1}
    kinds = [{"name": "fast"} | base, {"name": "slow"} | base]
    rows = steady(1500, service=MS) + steady(1500, service=400 * MS, kind=1)
    path = build(tmp_path / "run", rows, kinds=kinds)
    found = summarise(path, ["fast: latency p99 < 10ms", "slow: latency p99 < 10ms"])["slo"]
    assert [(r["verdict"], r["n"]) for r in found] == [("pass", 1500), ("fail", 1500)]
    with pytest.raises(LoadgenError, match="no kind 'other'; it has fast, slow"):
        summarise(path, ["other: latency p99 < 10ms"])


def test_what_was_not_measured_is_inconclusive(tmp_path):
    path = build(tmp_path / "run", [])
    found = summarise(path, ["latency p99 < 1s", "failure rate < 1%", "mean batch > 1", "service mean < 1s"])[
        "slo"
    ]
    assert [(r["observed"], r["verdict"], r["n"]) for r in found] == [(None, "inconclusive", 0)] * 4


def test_a_mean_has_an_interval(tmp_path):
    rows = varied(3000)
    found = judged(tmp_path, rows, "latency mean < 30ms")
    took = np.array([one["done_ns"] - one["due_ns"] for one in rows])
    assert (found["verdict"], found["observed"]) == ("pass", pytest.approx(took.mean()))
    low, high = found["interval"]
    assert high - low == pytest.approx(
        2 * 1.96 * took.std() / math.sqrt(3000), rel=0.3
    )  # they are independent


def ramp(tmp_path, *wanted, **over):
    """A first phase of 20 ms, then a peak of 400 ms, then a warm-up that counts nowhere."""
    rows = [*varied(6000, span=10 * S), *varied(2000, middle=400 * MS, seed=2, phase=1, span=10 * S)]
    rows = [one | ({"due_ns": one["due_ns"] + 20 * S, "sent_ns": one["sent_ns"] + 20 * S, "done_ns": one["done_ns"] + 20 * S}
                   if one["phase"] else {}) for one in rows]  # fmt: skip
    phases = [
        phase("low", planned=6000),
        phase("peak", planned=2000, start_ns=20 * S, load_end_ns=30 * S, end_ns=31 * S),
        phase("warm", measured=False, planned=0, start_ns=40 * S, load_end_ns=41 * S, end_ns=41 * S),
    ]
    return summarise(build(tmp_path / "run", rows, phases, **over), list(wanted))["slo"]


def test_an_objective_without_a_phase_must_hold_in_each(tmp_path):
    """P50 of all requests together is 20 ms, and that of the peak is not."""
    each, low, peak, pooled = ramp(
        tmp_path,
        "latency p50 < 100ms",
        "latency p50 in phase low < 100ms",
        "latency p50 in phase peak < 100ms",
        "latency p50 in all phases < 100ms",
    )
    assert [(one["verdict"], one["n"], one["phase"]) for one in (each, low, peak)] == [
        ("fail", 2000, "peak"),
        ("pass", 6000, "low"),
        ("fail", 2000, "peak"),
    ]
    assert (pooled["n"], pooled["phase"]) == (8000, None)
    assert low["observed"] <= pooled["observed"] < 100 * MS
    assert (each["phases"], low["phases"], each["observed"]) == (2, 1, peak["observed"])


def test_of_phases_that_all_pass_the_worst_is_shown(tmp_path):
    rows = ramp(tmp_path, "latency p50 < 10s", "requests/s > 10")
    assert [(one["verdict"], one["phase"]) for one in rows] == [("pass", "peak")] * 2
    assert rows[1]["observed"] == pytest.approx(200)


@pytest.mark.parametrize(
    ("objective", "says"),
    [
        ("latency p99 in phase late < 1s", "measured phases: low, peak"),
        ("latency p99 in phase warm < 1s", "a warm-up"),
        ("latency p99 at length 5-9 < 1s", "none has a length"),
        ("mean batch of model x > 1", "counted nothing of 'x'"),
    ],
)
def test_what_the_run_has_not_is_refused(tmp_path, objective, says):
    with pytest.raises(LoadgenError, match=says):
        ramp(tmp_path, objective)


def test_a_phase_without_a_kind_has_no_say_in_its_objectives(tmp_path):
    base = {"model": "m", "version": "1", "batch": 1, "weight": 1.0, "timeout_ns": S, "variants": 1}
    kinds = [{"name": "fast"} | base, {"name": "slow"} | base]
    rows = [*steady(1500), *(row(20 * S + i * MS, 10 * MS, phase=1, kind=1) for i in range(1500))]
    phases = [
        phase("a", planned=1500),
        phase("b", planned=1500, start_ns=20 * S, load_end_ns=30 * S, end_ns=31 * S),
    ]
    path = build(tmp_path / "run", rows, phases, kinds=kinds)
    [found] = summarise(path, ["slow: latency p99 < 100ms"])["slo"]
    assert (found["verdict"], found["n"], found["phase"], found["phases"]) == ("pass", 1500, "b", 1)


def test_a_phase_that_never_began_leaves_an_objective_open(tmp_path):
    phases = [phase("a", planned=1500), running("b", planned=100)]
    found = summarise(
        build(tmp_path / "run", steady(1500), phases, status="interrupted"), ["latency p99 < 1s"]
    )["slo"][0]
    assert (found["verdict"], found["phase"], found["n"]) == ("inconclusive", "b", 0)


def test_lengths_are_told_apart(tmp_path):
    rows = [*varied(3000, length=32), *varied(3000, middle=200 * MS, length=100)]
    path = build(tmp_path / "run", rows)
    short, long = summarise(
        path, ["latency p50 at length 17-32 < 50ms", "latency p50 at length 65-128 < 50ms"]
    )["slo"]
    assert [(one["verdict"], one["n"]) for one in (short, long)] == [("pass", 3000), ("fail", 3000)]
    with pytest.raises(LoadgenError, match="they are 32 to 100"):
        summarise(path, ["latency p50 at length 1-2 < 50ms"])


def test_the_same_phase_of_pooled_runs_is_judged_together(tmp_path):
    runs = []
    for name in "ab":
        ramp(tmp_path / name)
        runs.append(read_run(tmp_path / name / "run"))
    seen = measured_of(pool(runs))
    assert seen.phases == ["low", "peak"]
    assert estimate(parse_figure("latency p50 in phase peak"), seen).n == 4000
    assert estimate(parse_figure("latency p50"), seen).n == 16000


def test_facts_of_a_run(tmp_path):
    """Compared as they are, without an interval."""
    server = window(statistics({1: 0}), statistics({4: 250}, queue_ns=3 * MS))
    cold = {
        "live_ns": 2 * S,
        "server_ready_ns": 3 * S,
        "model_ready_ns": {"m": 4 * S},
        "load_ns": {"m": S, "k": 2 * S},
    }
    path = build(tmp_path / "run", steady(1000), server=server, cold_start=cold)
    wanted = {
        "cold start live < 3s": 2 * S,
        "cold start ready < 3s": 3 * S,
        "cold start load < 3s": 2 * S,
        "cold start model ready < 3s": 4 * S,
        "short: first request < 1s": 42 * MS,
        "server queue < 4ms": 3 * MS,
        "mean batch > 3": 4,
        "mean batch of model m > 4": 4,
        "joules a request < 1": None,
    }
    rows = summarise(path, list(wanted))["slo"]
    assert [row["observed"] for row in rows] == list(wanted.values())
    assert [row["verdict"] for row in rows] == [
        "pass",
        "fail",
        "pass",
        "fail",
        "pass",
        "pass",
        "pass",
        "fail",
        "inconclusive",
    ]
    assert {row["interval"] for row in rows} == {None}
    assert rows[-1]["reason"] == "not_reported"


def test_a_rate_that_lost_some_is_what_was_asked_for_less_the_loss(tmp_path):
    rng = np.random.default_rng(3)
    rows = [
        row(i * 2 * MS, 5 * MS, outcome=Outcome.REJECTED if bad else Outcome.OK)
        for i, bad in enumerate(rng.random(5000) < 0.1)
    ]
    found = judged(tmp_path, rows, "requests/s > 300")
    low, high = found["interval"]
    assert found["verdict"] == "pass"
    assert low < found["observed"] < high
    assert (high - low) / 2 == pytest.approx(500 * 1.96 * math.sqrt(0.1 * 0.9 / 5000), rel=0.3)


def test_a_bound_at_the_figure_itself_is_never_told(tmp_path):
    rows = varied(2000)
    observed = judged(tmp_path / "a", rows, "latency mean < 1s")["observed"]
    found = judged(tmp_path / "b", rows, f"latency mean < {observed:.0f}ns")
    assert (found["verdict"], found["reason"], found["more_s"]) == ("inconclusive", "too_close", None)


EVERY = ("latency p99 < 1s", "latency mean < 1s", "latency max < 1s", "failure rate < 1%", "goodput > 90%", "requests/s > 1",
         "items/s > 1", "good requests/s > 1", "ttft p50 < 1s", "chunk gap p99 < 1s", "output tokens/s > 1",
         "mean batch > 1", "first request < 1s", "joules a request < 1", "latency p50 in all phases < 1s")  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "over"),
    [
        ([], {}),
        ([row(0)], {}),
        ([row(0, None, outcome=Outcome.DROPPED)], {}),
        (steady(100, outcome=Outcome.HTTP_5XX), {}),
        (steady(100, outcome=Outcome.CANCELLED), {"status": "interrupted"}),
        ([row(0, 0), row(0, 0)], {"phases": [phase(duration_ns=0, load_end_ns=0, end_ns=0)]}),
        (steady(10), {"phases": [running(planned=100)], "status": "running"}),
        ([], {"phases": [running(planned=100)], "status": "running"}),
        ([], {"phases": []}),
    ],
)
def test_odd_runs_have_honest_verdicts_and_valid_json(tmp_path, rows, over):
    found = summarise(build(tmp_path / "run", rows, **over), list(EVERY))["slo"]
    json.dumps(found, allow_nan=False)
    assert len(found) == len(EVERY)
    good = [one["objective"] for one in found if one["verdict"] == "pass"]
    assert not set(good) - {
        "latency max < 1s",
        "first request < 1s",
        "requests/s > 1",
        "items/s > 1",
        "good requests/s > 1",
    }
    assert all(one["reason"] is not None for one in found if one["verdict"] == "inconclusive")


@pytest.mark.parametrize(
    ("rows", "objective", "code"),
    [
        (steady(1000), "latency p99 < 250ms", 0),
        (steady(1000, service=S), "latency p99 < 250ms", 1),
        (steady(50), "latency p99 < 250ms", 3),
        (steady(900) + steady(100, outcome=Outcome.HTTP_5XX), "failure rate < 1%", 1),
        (steady(900) + steady(100, outcome=Outcome.HTTP_5XX), "failure rate < 20%", 3),
        ([], "latency p99 < 250ms", 3),
    ],
)
def test_exit_codes(tmp_path, rows, objective, code):
    assert exit_code(summarise(build(tmp_path / "run", rows), [objective])) == code


def test_a_missed_objective_does_not_outrank_a_client_that_was_the_limit(tmp_path):
    path = build(tmp_path / "run", steady(1000, service=S), [phase(planned=1000, cpu_ns=int(9.9 * S))])
    assert exit_code(summarise(path, ["latency p99 < 250ms"])) == 3
