"""Intervals hold the truth as often as they say, and say when they cannot know."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.analysis import intervals
from loadgen.analysis.intervals import Estimate, Method
from tests.bench.calibration import coverage, mean_coverage
from tests.bench.queues import mm1

RUNS = 200  # a share of 95 % of so many has a standard error of 1.5 %


@pytest.mark.parametrize(
    ("law", "q", "printed"),
    [
        ("independent, exponential", 0.5, 1.0),
        ("independent, exponential", 0.99, 1.0),
        ("independent, bimodal", 0.99, 1.0),
        ("AR(1), 0.9", 0.5, 1.0),
        ("M/M/1, load 0.5", 0.5, 1.0),
        ("M/M/1, load 0.5", 0.99, 0.3),
        ("M/M/1, load 0.8", 0.5, 0.9),
    ],
)
def test_an_interval_holds_the_truth_in_95_of_100_runs(law, q, printed):
    bounded, right, *_ = coverage(law, 5000, RUNS, [q])[q]
    assert bounded >= printed * RUNS
    assert 0.90 <= right / bounded <= 0.995


@pytest.mark.parametrize(
    "law", ["M/M/1, load 0.7", "M/M/1, load 0.8", "M/M/1, load 0.9", "bursts of 4, load 0.7"]
)
def test_a_run_too_short_for_its_queue_gives_no_p99_but_a_lower_bound(law):
    bounded, _, _, one_sided, beyond = coverage(law, 5000, RUNS, [0.99])[0.99]
    assert bounded <= 0.02 * RUNS
    assert one_sided >= 0.98 * RUNS
    assert beyond <= 0.05 * one_sided


def test_how_much_more_data_is_needed_is_about_what_gives_an_interval():
    rng = np.random.default_rng(3)
    more = [intervals.quantile([run], 0.99).more for run in mm1(0.7, 40, 5000, rng)]
    assert 2 < np.median([each or 1 for each in more]) < 9  # 50,000 requests print nearly always
    assert all(intervals.quantile([run], 0.99).bounded for run in mm1(0.7, 10, 100_000, rng))


def test_the_mean_of_dependent_values_is_held():
    printed, right = mean_coverage("M/M/1, load 0.5", 5000, RUNS)
    assert printed == RUNS
    assert 0.90 <= right / printed <= 0.995


def test_runs_that_differ_by_more_than_chance_widen_the_interval():
    rng = np.random.default_rng(1)
    alike = intervals.quantile([rng.exponential(1, 5000) for _ in range(4)], 0.5)
    apart = intervals.quantile([rng.exponential(level, 5000) for level in (0.8, 1.0, 1.1, 1.3)], 0.5)
    assert apart.method is Method.RUNS
    assert apart.high > 0.8
    assert apart.low is None or apart.low < 0.6
    assert alike.high - alike.low < 0.1


def test_runs_are_held_with_an_effect_of_each_run():
    rng = np.random.default_rng(2)
    right = 0
    for _ in range(RUNS):
        found = intervals.quantile(
            [rng.exponential(math.exp(rng.normal(0, 0.1)), 2000) for _ in range(5)], 0.5
        )
        right += found.bounded and found.low <= math.log(2) <= found.high
    assert 0.90 <= right / RUNS <= 0.995


def test_a_share_of_bursts_has_a_wider_interval_than_single_failures():
    single = np.zeros(10_000, bool)
    single[::100] = True
    burst = np.zeros(10_000, bool)
    burst[5000:5100] = True
    a, b = intervals.share([np.random.default_rng(0).permutation(single)]), intervals.share([burst])
    assert a.value == b.value == 0.01
    assert 0.007 < a.low < a.high < 0.0145
    assert b.low < 0.001
    assert b.high > 0.03
    assert b.effective_n < 300


def test_a_share_of_nothing_is_bounded_as_by_clopper_and_pearson():
    found = intervals.share([np.zeros(368, bool)])
    assert (found.value, found.low, found.method) == (0.0, 0.0, Method.EXACT)
    assert found.high == pytest.approx(1 - 0.025 ** (1 / 368))


def test_a_poisson_stream_has_its_rate_and_the_interval_of_its_count():
    rng = np.random.default_rng(4)
    right = 0
    for _ in range(RUNS):
        n = rng.poisson(1000)
        found = intervals.rate([np.sort(rng.random(n)) * 10e9], [10 * 10**9])
        assert found.value == pytest.approx(n / 10)
        right += found.low <= 100 <= found.high
    assert 0.91 <= right / RUNS <= 0.99


def test_the_ratio_of_equal_servers_holds_one():
    rng = np.random.default_rng(5)
    flagged = 0
    for _ in range(RUNS):
        a, b = (intervals.quantile([run], 0.5) for run in rng.exponential(1, (2, 5000)))
        found = intervals.ratio(a, b)
        flagged += not found.low <= 1 <= found.high
    assert 0.01 <= flagged / RUNS <= 0.10


def test_a_difference_with_an_open_end_is_open():
    a, b = Estimate(1.0, 0.8, None, 100, more=3.0), Estimate(2.0, 1.8, 2.2, 100)
    found = intervals.difference(a, b)
    assert (found.value, found.low, found.more) == (1.0, None, 3.0)
    assert found.high == pytest.approx(1.0 + math.hypot(0.2, 0.2))


@pytest.mark.parametrize("parts", [[], [np.zeros(0)], [np.array([3.0])], [np.full(5, np.inf)]])
def test_few_or_no_values_have_no_interval(parts):
    for found in (intervals.quantile(parts, 0.99), intervals.mean(parts)):
        assert (found.low, found.high) == (None, None)
        assert found.n == sum(part.size for part in parts)


def test_failures_are_infinitely_late():
    values = np.random.default_rng(6).exponential(1, 5000)
    values[::50] = np.inf
    assert intervals.quantile([values], 0.99).value == math.inf
    assert math.isfinite(intervals.quantile([values], 0.9).high)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1e9) | st.just(math.inf), max_size=400), st.floats(0.01, 0.99))
def test_an_interval_lies_around_its_value(values, q):
    found = intervals.quantile([np.array(values)], q)
    if found.value is not None:
        assert found.low is None or found.low <= found.value
        assert found.high is None or found.high >= found.value
    assert found.bounded or found.more is None or found.more > 1


def test_answers_as_regular_as_a_clock_have_a_rate():
    found = intervals.rate([np.arange(3000) * 1e6], [3 * 10**9])
    assert found.value == 1000
    assert 995 < found.low <= 1000 <= found.high < 1005


def test_a_run_knows_its_largest_value_and_how_many_independent_stretches_it_has():
    rng = np.random.default_rng(7)
    independent = intervals.quantile([rng.exponential(1, 5000)], 0.99)
    assert independent.stretches > 3500
    [queue] = mm1(0.8, 1, 5000, rng)
    found = intervals.quantile([queue], 0.99)
    assert found.most == queue.max()
    assert found.stretches < 1000
