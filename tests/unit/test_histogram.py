import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.histogram import HIGHEST_NS, Histogram, rank

durations = st.integers(min_value=0, max_value=2 * HIGHEST_NS)


def of(values):
    histogram = Histogram()
    histogram.record_many(values)
    return histogram


def seen(histogram):
    quantiles = [histogram.quantile(q / 20) for q in range(21)]
    return (histogram.n, histogram.over, histogram.min, histogram.max, histogram.mean, quantiles)


@given(st.lists(durations, max_size=60), st.lists(durations, max_size=60))
def test_merging_equals_the_histogram_of_the_union(left, right):
    merged = of(left)
    merged.merge(of(right))
    assert seen(merged) == seen(of(left + right))


@given(st.lists(durations, min_size=1, max_size=60))
def test_one_by_one_equals_many_at_once(values):
    single = Histogram()
    for value in values:
        single.record(value)
    assert seen(single) == seen(of(np.array(values, dtype=np.int64)))


@given(st.lists(durations, min_size=1, max_size=80), st.integers(0, 1000))
def test_a_quantile_is_within_a_thousandth_of_the_nearest_rank(values, thousandths):
    q = thousandths / 1000
    true = sorted(values)[rank(q, len(values)) - 1]
    got = of(values).quantile(q)
    if true > HIGHEST_NS:
        assert got == max(values)
    else:
        assert true <= got <= min(max(values), true * 1.001 + 1)


@given(st.integers(1, 500), st.integers(0, 1000))
def test_rank_is_the_first_that_covers_the_share(n, thousandths):
    wanted = rank(thousandths / 1000, n)
    assert wanted * 1000 >= thousandths * n
    assert wanted == 1 or (wanted - 1) * 1000 < thousandths * n


def test_ranks_are_not_at_the_mercy_of_floats():
    assert 0.07 * 100 > 7
    assert rank(0.07, 100) == 7


def test_bucket_edges_p25_of_one_and_four_twos_is_two():
    assert of([1, 2, 2, 2, 2]).quantile(0.25) == 2
    assert of([1, 2, 2, 2, 2]).quantile(0.2) == 1


def test_a_value_over_the_range_is_counted_ranked_last_and_shown_exactly():
    over = 25 * 3600 * 10**9
    histogram = of([1000, 2000, over])
    assert (histogram.n, histogram.over, histogram.max) == (3, 1, over)
    assert histogram.quantile(0.5) == 2000
    assert histogram.quantile(0.99) == over
    assert histogram.mean == (3000 + over) / 3


def test_the_maximum_is_exact_not_a_bucket_edge():
    histogram = of([123_456_789])
    assert histogram.quantile(1.0) == histogram.quantile(0.5) == histogram.max == 123_456_789


def test_an_empty_histogram_has_nulls_not_zeros():
    assert seen(Histogram()) == (0, 0, None, None, None, [None] * 21)


def test_sums_beyond_64_bits_stay_exact():
    values = np.full(200_000, HIGHEST_NS, dtype=np.int64)
    assert of(values).mean == HIGHEST_NS


def test_negative_values_and_quantiles_outside_0_to_1_are_refused():
    with pytest.raises(ValueError, match="-5"):
        of([3, -5])
    with pytest.raises(ValueError, match="-5"):
        Histogram().record(-5)
    with pytest.raises(ValueError, match="99"):
        of([1]).quantile(99)
