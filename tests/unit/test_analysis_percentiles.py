import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis.percentiles import Tally, distribution, quantile, quantiles
from loadgen.histogram import nearest_rank, rank


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


@pytest.mark.parametrize("n", [99_999, 100_000, 250_000, 1_000_000])
def test_every_percentile_is_one_of_the_values_whatever_their_number(n):
    values = np.random.default_rng(3).lognormal(16, 1, n).astype(np.int64)
    ordered = np.sort(values)
    found, tally = distribution(values), Tally()
    for part in np.array_split(values, 7):
        tally.add(part)
    for key, per_mille in (("p50", 500), ("p90", 900), ("p95", 950), ("p99", 990), ("p999", 999)):
        true = int(ordered[-(-n * per_mille // 1000) - 1])
        assert found[key] == true
        assert quantile(values, per_mille / 1000) == true
    assert (found["n"], found["max"], found["mean"]) == (n, ordered[-1], round(float(values.mean())))
    assert tally.distribution() == found


def test_values_above_any_width_are_kept():
    over = 25 * 3600 * 10**9
    values = np.full(100_000, 10**6, dtype=np.int64)
    values[::50] = over
    found, tally = distribution(values), Tally()
    tally.add(values[:50_001])
    tally.add(values[50_001:])
    assert (found["n"], found["p50"], found["p99"], found["max"]) == (100_000, 10**6, over, over)
    assert tally.distribution() == found


@given(
    st.lists(st.integers(0, 2**33), min_size=1, max_size=80),
    st.lists(st.floats(0, 1), min_size=1, max_size=6),
)
def test_all_ways_to_a_quantile_agree(values, shares):
    shares, array, tally = sorted(shares), ints(values), Tally()
    tally.add(array)
    expected = [int(nearest_rank(sorted(values), q)) for q in shares]
    assert quantiles(array, shares) == expected
    assert [quantile(array, q) for q in shares] == expected
    assert [tally.at(rank(q, len(values))) for q in shares] == expected
    assert array.tolist() == values
