import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis.conclusion import exit_code

from loadgen.analysis.summary import summarise
from loadgen.records import LoadgenError, Outcome
from tests.support.runs import MS, S, beat, build, phase, row, running, statistics, steady, window


def judged(tmp_path, rows, objective, **over):
    return summarise(build(tmp_path / "run", rows, **over), [objective])["slo"][0]


@given(st.integers(1, 3000), st.sampled_from([0.5, 0.9, 0.99, 0.999]))
def test_the_ranks_leave_at_most_two_and_a_half_percent_on_either_side(n, q):
    low, high = interval_ranks(n, q)
    assert binom.cdf(low - 1, n, q) <= 0.025 < binom.cdf(low, n, q)
    assert 1 - binom.cdf(high - 1, n, q) <= 0.025 or high == n + 1
    assert 1 - binom.cdf(high - 2, n, q) > 0.025


def test_the_interval_covers_the_true_quantile_as_often_as_it_says():
    rng, n, q = np.random.default_rng(5), 500, 0.9
    low, high = interval_ranks(n, q)
    samples = np.sort(rng.random((4000, n)), axis=1)
    covered = ((samples[:, low - 1] <= q) & (q <= samples[:, high - 1])).mean()
    assert 0.94 <= covered <= 0.975


@pytest.mark.parametrize("n", [999, 100_000, 120_001])
def test_the_summary_and_the_verdict_have_one_p99(tmp_path, n):
    took = np.random.default_rng(1).lognormal(17, 0.6, n).astype(np.int64).tolist()
    rows = [row(i * 10 * S // n, ns) for i, ns in enumerate(took)]
    summary = summarise(build(tmp_path / "run", rows, [phase(planned=n)]), ["latency p99 < 97.18ms"])
    true = sorted(took)[-(-n * 99 // 100) - 1]
    assert summary["total"]["latency_ns"]["p99"] == summary["slo"][0]["observed"] == true


@pytest.mark.parametrize(
    ("objective", "assumes"),
    [
        ("latency p99 < 1s", "independent requests"),
        ("latency mean < 1s", "independent requests"),
        ("failure rate < 5%", "independent requests"),
        ("latency max < 1s", None),
        ("requests/s > 1", None),
    ],
)
def test_an_interval_says_what_it_assumes(tmp_path, objective, assumes):
    assert judged(tmp_path, steady(500), objective)["assumes"] == assumes


def test_a_rate_of_whole_second_bursts_passes_just_below_what_was_asked(tmp_path):
    rows = [row(second * S, (5 + i * 2) * MS) for second in range(10) for i in range(20)]
    summary = summarise(build(tmp_path / "run", rows, [phase(planned=200)]), ["requests/s > 19.8"])
    assert summary["phases"][0]["offered_per_s"] == summary["phases"][0]["achieved_per_s"] == 20
    assert summary["slo"][0]["verdict"] == "pass"


@pytest.mark.parametrize(("n", "verdict"), [(368, "pass"), (367, "inconclusive"), (10, "inconclusive")])
def test_a_p99_needs_368_requests_to_pass(tmp_path, n, verdict):
    found = judged(tmp_path, steady(n), "latency p99 < 250ms")
    assert (found["verdict"], found["observed"], found["n"]) == (verdict, 10 * MS, n)
    assert (found["note"] is None) == (verdict == "pass")


def test_far_beyond_the_bound_fails_and_near_it_nobody_can_tell(tmp_path):
    slow = [row(i * MS, (300 if i % 20 == 0 else 10) * MS) for i in range(2000)]
    assert judged(tmp_path / "a", slow, "latency p99 < 250ms")["verdict"] == "fail"
    near = [row(i * MS, (300 if i % 110 == 0 else 10) * MS) for i in range(2000)]
    found = judged(tmp_path / "b", near, "latency p99 < 250ms")
    assert (found["verdict"], found["interval"]) == ("inconclusive", [10 * MS, 300 * MS])


def test_failures_count_as_infinitely_late(tmp_path):
    rows = steady(1000, service=MS) + [row(i, MS, outcome=Outcome.HTTP_5XX) for i in range(50)]
    found = judged(tmp_path, rows, "latency p99 < 250ms")
    assert (found["verdict"], found["observed"], found["n"]) == ("fail", None, 1050)
    assert "50 of 1050 requests never succeeded" in found["note"]


def test_a_few_failures_shift_the_percentile_but_need_not_fail_it(tmp_path):
    rows = [*steady(5000, service=MS), row(0, None, outcome=Outcome.DROPPED)]
    assert judged(tmp_path, rows, "latency p99 < 250ms")["verdict"] == "pass"
    assert judged(tmp_path / "max", rows, "latency max < 250ms")["verdict"] == "fail"
    assert judged(tmp_path / "service", rows, "service max < 250ms")["verdict"] == "pass"


def test_failure_rate_is_of_requests(tmp_path):
    rows = steady(90) + [row(i, MS, outcome=Outcome.TIMEOUT) for i in range(10)]
    found = judged(tmp_path, rows, "failure rate < 1%")
    assert (found["observed"], found["verdict"], found["n"]) == (0.1, "fail", 100)


def test_drops_never_dilute_a_failure_rate(tmp_path):
    """100 tried and 10 failed are 10 %, however many were dropped."""
    rows = steady(90) + [row(i, MS, outcome=Outcome.PROTOCOL) for i in range(10)]
    rows += [row(i, None, outcome=Outcome.DROPPED) for i in range(900)]
    found = judged(tmp_path, rows, "failure rate < 4%")
    assert (found["observed"], found["n"], found["verdict"]) == (0.1, 100, "fail")


def test_what_we_gave_up_leaves_a_failure_rate_open(tmp_path):
    rows = steady(1000) + [row(i, MS, outcome=Outcome.CANCELLED) for i in range(50)]
    found = judged(tmp_path, rows, "failure rate < 1%")
    assert (found["observed"], found["n"], found["verdict"]) == (0.0, 1000, "inconclusive")
    assert found["note"] == "how 50 more would have ended is not known"
    assert judged(tmp_path / "b", rows, "failure rate < 10%")["verdict"] == "pass"


def test_a_request_cancelled_beyond_the_bound_is_late(tmp_path):
    """The server froze; an interrupt gave up 700 requests, most of them long past the bound."""
    rows = steady(593, span=6 * S, service=9 * MS)
    rows += [row(6 * S + i * 10 * MS, 7 * S - i * 10 * MS, outcome=Outcome.CANCELLED) for i in range(700)]
    path = build(tmp_path / "run", rows, [phase(planned=3000, load_end_ns=13 * S)], status="interrupted")
    summary = summarise(path, ["latency p99 < 500ms", "latency p50 < 500ms", "service p99 < 500ms"])
    p99, p50, service = summary["slo"]
    assert (p99["verdict"], p99["observed"], p99["n"]) == ("fail", None, 593 + 651)
    assert "651 of 1244 were cancelled when later than that" in p99["note"]
    assert "how 49 more would have ended is not known" in p99["note"]
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
    rows = steady(500) + [row(0, None, 5 * S, outcome=Outcome.CANCELLED) for _ in range(500)]
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
    assert "300 of 1000 requests never succeeded" in found["note"]


def test_rejections_have_a_rate_of_their_own(tmp_path):
    rows = steady(75) + [row(i, MS, outcome=Outcome.REJECTED) for i in range(25)]
    assert judged(tmp_path / "a", rows, "rejection rate < 1%")["observed"] == 0.25
    assert judged(tmp_path / "b", rows, "failure rate < 10%")["observed"] == 0.0


def test_clopper_pearson_against_a_known_value():
    """10 of 100: 0.0490 to 0.1762 in every table."""
    found = share(10, 100)
    assert (found.low, found.high) == (pytest.approx(0.0490047, abs=1e-6), pytest.approx(0.1762226, abs=1e-6))
    assert share(0, 0).value is None


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
    rows = steady(500, service=MS) + steady(500, service=400 * MS, kind=1)
    path = build(tmp_path / "run", rows, kinds=kinds)
    found = summarise(path, ["fast: latency p99 < 10ms", "slow: latency p99 < 10ms"])["slo"]
    assert [(r["verdict"], r["n"]) for r in found] == [("pass", 500), ("fail", 500)]
    with pytest.raises(LoadgenError, match="no kind 'other'; it has fast, slow"):
        summarise(path, ["other: latency p99 < 10ms"])


def test_what_was_not_measured_is_inconclusive(tmp_path):
    path = build(tmp_path / "run", [])
    found = summarise(path, ["latency p99 < 1s", "failure rate < 1%", "mean batch > 1", "service mean < 1s"])[
        "slo"
    ]
    assert [(r["observed"], r["verdict"], r["n"]) for r in found] == [(None, "inconclusive", 0)] * 4


def test_a_mean_has_an_interval(tmp_path):
    rows = [row(i * MS, (10 + i % 3) * MS) for i in range(3000)]
    found = judged(tmp_path, rows, "latency mean < 20ms")
    assert (found["verdict"], found["observed"]) == ("pass", 11 * MS)
    low, high = found["interval"]
    assert high - low == pytest.approx(2 * 1.96 * MS * math.sqrt(2 / 3) / math.sqrt(3000), rel=0.01)


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
