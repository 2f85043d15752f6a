import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis.percentiles import EXACT_BELOW, distribution, quantile


def ints(values):
    return np.array(values, dtype=np.int64)


def test_nothing_measured_is_null_with_its_n():
    assert distribution(ints([])) == {
        "n": 0, "mean": None, "p50": None, "p90": None, "p95": None, "p99": None, "p999": None, "max": None,
    }  # fmt: skip
    assert quantile(ints([]), 0.5) is None


def test_one_to_a_thousand():
    assert distribution(ints(range(1000, 0, -1))) == {
        "n": 1000, "mean": 500, "p50": 500, "p90": 900, "p95": 950, "p99": 990, "p999": 999, "max": 1000,
    }  # fmt: skip


def test_nearest_rank_never_interpolates():
    assert quantile(ints([1, 2, 2, 2, 2]), 0.25) == 2
    assert quantile(ints([1, 2]), 0.5) == 1
    assert quantile(ints([10, 20]), 0.99) == 20


@given(st.lists(st.integers(0, 10**13), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99, 0.999]))
def test_the_smallest_recorded_value_that_covers_the_share(values, q):
    got = quantile(ints(values), q)
    assert got in values
    assert sum(v <= got for v in values) >= q * len(values) - 1e-9
    assert sum(v < got for v in values) < q * len(values) + 1e-9


@given(st.lists(st.integers(0, 10**13), min_size=1, max_size=200))
def test_percentiles_ascend_and_end_at_the_maximum(values):
    found = distribution(ints(values))
    ladder = [found[key] for key in ("p50", "p90", "p95", "p99", "p999", "max")]
    assert ladder == sorted(ladder)
    assert found["max"] == max(values)


@pytest.mark.parametrize("n", [EXACT_BELOW - 1, EXACT_BELOW, EXACT_BELOW + 1])
def test_the_histogram_takes_over_without_a_step(n):
    values = np.random.default_rng(3).lognormal(16, 1, n).astype(np.int64)
    ordered = np.sort(values)
    found = distribution(values)
    true = int(ordered[int(np.ceil(0.99 * n)) - 1])
    assert found["p99"] == true if n < EXACT_BELOW else true <= found["p99"] <= true * 1.001
    assert (found["n"], found["max"], found["mean"]) == (n, ordered[-1], round(float(values.mean())))


def test_a_value_of_25_hours_among_many_is_the_maximum_not_lost():
    over = 25 * 3600 * 10**9
    values = np.full(EXACT_BELOW, 10**6, dtype=np.int64)
    values[::50] = over
    found = distribution(values)
    assert (found["n"], found["max"], found["p99"]) == (EXACT_BELOW, over, over)
    assert 10**6 <= found["p50"] <= 1.001 * 10**6
