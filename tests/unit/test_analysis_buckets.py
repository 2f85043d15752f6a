"""Padding buckets: the cost of a bucket against a simulation, the search against every possible choice."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.analysis.buckets import (
    Service,
    _told,
    best_buckets,
    choose,
    fit_service,
    ragged,
    run_cost,
    tensorrt_profiles,
    unpadded,
    warmup_grid,
)

FIXED = Service((5e6, 1e5, 1e4, 0.0), 0.0, 4)  # 5 ms an execution, 0.1 ms a row, 10 us a token
PER_TOKEN = Service((0.0, 0.0, 1e4, 0.0), 0.0, 4)  # no fixed cost: batching gains nothing


def simulated(lengths, counts, bounds, service, most, n=200_000):
    """Requests in the order they came, cut at the first other bucket or when full: ns a request, mean batch."""
    rng = np.random.default_rng(1)
    drawn = rng.choice(lengths, n, p=counts / counts.sum())
    which = np.searchsorted(bounds, drawn)
    cuts = np.flatnonzero(np.diff(which)) + 1
    ns = batches = 0
    for start, end in itertools.pairwise([0, *cuts.tolist(), n]):
        full, rest = divmod(end - start, most)
        at = float(bounds[which[start]])
        ns += full * service(np.float64(most), at) + (service(np.float64(rest), at) if rest else 0)
        batches += full + (rest > 0)
    return ns / n, n / batches


@pytest.mark.parametrize("bounds", [[10, 20, 30, 40], [20, 40], [40], [30, 40]])
def test_the_cost_of_buckets_is_what_a_simulation_of_the_batcher_gives(bounds):
    lengths, counts = np.array([10, 20, 30, 40]), np.array([40, 30, 20, 10])
    ns, batch = simulated(lengths, counts, np.array(bounds), FIXED, 8)
    ends = [lengths.tolist().index(b) for b in bounds]
    told = _told(lengths, counts, ends, FIXED, 8)
    assert told.cost_ns == pytest.approx(ns, rel=0.01)
    assert told.mean_batch == pytest.approx(batch, rel=0.01)
    assert told.per_s == pytest.approx(1e9 / ns, rel=0.01)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(1, 500), st.integers(1, 50)), min_size=2, max_size=7, unique_by=lambda p: p[0]
    ),
    st.integers(1, 16),
    st.tuples(st.floats(0, 1e7), st.floats(0, 1e6), st.floats(1, 1e5), st.floats(0, 100)),
)
def test_no_choice_is_cheaper(pairs, most, coefficients):
    lengths, counts = np.array(sorted(pairs)).T
    service = Service(coefficients, 0.0, 4)
    found = best_buckets(lengths, counts, service, most, 7)
    assert len(found) == len(lengths)
    for k, told in enumerate(found, 1):
        inner = itertools.combinations(range(len(lengths) - 1), k - 1)
        least = min(
            _told(lengths, counts, [*ends, len(lengths) - 1], service, most).cost_ns for ends in inner
        )
        assert len(told.bounds) == k
        assert told.bounds[-1] == lengths[-1]
        assert told.cost_ns == pytest.approx(least, rel=1e-6)
        assert sum(told.shares) == pytest.approx(1)


def test_a_fixed_cost_asks_for_few_buckets_and_none_for_all():
    lengths = np.arange(10, 130, 10)
    counts = np.full(12, 10)
    few = choose(best_buckets(lengths, counts, FIXED, 16, 12))
    all_of_them = choose(best_buckets(lengths, counts, PER_TOKEN, 16, 12), worth=0.0)
    assert len(few.bounds) < 3
    assert all_of_them.bounds == tuple(lengths)
    assert all_of_them.padding == pytest.approx(0)
    assert unpadded(lengths, counts, PER_TOKEN, 16).cost_ns == pytest.approx(all_of_them.cost_ns)


def test_one_bucket_is_full_batches_of_the_longest():
    lengths, counts = np.array([16, 128]), np.array([9, 1])
    [one] = best_buckets(lengths, counts, FIXED, 8, 1)
    assert one.mean_batch == pytest.approx(8, rel=1e-6)
    assert one.cost_ns == pytest.approx(float(FIXED(np.float64(8), np.float64(128))) / 8, rel=1e-6)
    assert one.padding == pytest.approx(1 - 27.2 / 128)


def test_ragged_pads_to_the_longest_of_each_batch():
    lengths, counts = np.array([16, 128]), np.array([1, 1])
    told = ragged(lengths, counts, PER_TOKEN, 2)  # a batch of 2 is short only when both are: 1 in 4
    assert told.cost_ns == pytest.approx(1e4 * (0.25 * 16 + 0.75 * 128))
    assert told.padding == pytest.approx(1 - 72 / 100)


def test_many_lengths_are_thinned_and_the_longest_stays():
    lengths = np.arange(1, 2001)
    found = best_buckets(lengths, np.ones(2000, np.int64), FIXED, 4, 3)
    assert [len(one.bounds) for one in found] == [1, 2, 3]
    assert found[-1].bounds[-1] == 2000


def test_the_fit_finds_the_law_again_and_says_how_far_off_it_is():
    law = Service((3e6, 2e5, 5e3, 20.0), 0.0, 0)
    points = [
        (b, n, float(law(np.float64(b), np.float64(n)))) for b in (1, 2, 4, 8) for n in (8, 32, 128, 256)
    ]
    fitted = fit_service(points)
    assert fitted.coefficients == pytest.approx(law.coefficients, rel=1e-6)
    assert (fitted.error < 1e-6, fitted.points) == (True, 16)
    points[0] = (1, 8, points[0][2] * 1.5)
    assert 0.2 < fit_service(points).error < 0.5


def test_a_share_of_one_and_of_nearly_nothing_are_numbers():
    ns, executions = run_cost(FIXED, np.array([1.0, 1e-9]), np.array([10.0, 10.0]), 8)
    assert executions == pytest.approx([1 / 8, 1e-9], rel=1e-6)
    assert np.isfinite(ns).all()


def test_grid_and_profiles_cover_every_bucket():
    told = best_buckets(np.array([8, 64, 128]), np.array([80, 10, 10]), FIXED, 12, 2)[-1]
    grid = warmup_grid(told, 12)
    assert {length for _, length in grid} == set(told.bounds)
    assert sorted({batch for batch, _ in grid}) == [1, 2, 4, 8, 12]
    profiles = tensorrt_profiles(told, 12)
    assert [p["max"] for p in profiles] == [[12, bound] for bound in told.bounds]
    assert profiles[1]["min"] == [1, told.bounds[0] + 1]
    assert all(p["min"][i] <= p["opt"][i] <= p["max"][i] for p in profiles for i in (0, 1))
