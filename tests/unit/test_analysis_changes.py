"""Change points: by hand, rarely where there is none, soon where there is one, and by each run's own interval."""

import numpy as np
import pytest

from loadgen.analysis.changes import change_points

NOISE = 0.03  # between runs, of the logarithm


def places(y, errors=None, **over):
    return [one.place for one in change_points(y, np.zeros(len(y)) if errors is None else errors, **over)]


def test_two_levels_without_noise_are_parted_where_they_differ():
    (found,) = change_points([10.0] * 6 + [12.0] * 4, [0.1] * 10)
    assert (found.place, found.shift) == (6, pytest.approx(2))
    # two levels of 6 and 4 runs, each known to 0.1: 2.31 (t, 8 degrees) times 0.1 sqrt(1 / 6 + 1 / 4)
    assert (found.low, found.high) == (
        pytest.approx(2 - 0.1489, abs=1e-3),
        pytest.approx(2 + 0.1489, abs=1e-3),
    )


def test_up_and_down_again_are_two():
    y = np.concatenate([np.full(8, 5.0), np.full(6, 7.0), np.full(7, 5.0)]) + 0.1 * np.resize([1, -1, 0], 21)
    assert places(y) == [8, 14]


def test_one_run_that_is_off_is_no_change():
    y = 0.01 * np.resize([1, -1, 0.5, -0.3], 21)
    y[12] += 0.5
    assert places(y) == []


def test_too_few_runs_and_runs_that_are_all_the_same():
    assert places([1.0, 1.0, 9.0, 9.0]) == []
    assert places([3.0] * 9) == []
    assert places([]) == []


@pytest.mark.parametrize("n", [5, 12, 50])
def test_false_alarms_in_stable_series(n):
    rng, series = np.random.default_rng(n), 150
    alarms = sum(bool(places(NOISE * rng.standard_normal(n))) for _ in range(series))
    assert alarms <= 0.05 * series


@pytest.mark.parametrize("before", [5, 20])
def test_a_shift_of_20_percent_is_found_within_three_runs(before):
    rng, series, soon = np.random.default_rng(before), 40, 0
    for _ in range(series):
        y = NOISE * rng.standard_normal(before + 3)
        y[before:] += np.log(1.2)
        soon += any(before in places(y[: before + runs]) for runs in (2, 3))
    assert soon >= 0.9 * series


def test_a_run_with_a_wide_interval_weighs_little():
    y = np.concatenate([np.zeros(8), np.full(4, 0.3)]) + 0.01 * np.resize([1, -1, 1, 0, -1], 12)
    assert places(y, np.full(12, 0.01)) == [8]
    assert places(y, np.concatenate([np.full(8, 0.01), np.full(4, 0.3)])) == []  # the four may be anything


def test_the_spread_is_never_less_than_the_runs_own_intervals():
    y = np.array([0.0, 0.001, 0.0, 0.001, 0.05, 0.051, 0.05, 0.051])  # closer together than they can know
    assert places(y, np.full(8, 0.05)) == []
    assert places(y, np.full(8, 0.001)) == [4]


def test_changes_are_in_order_apart_and_significant_whatever_the_series():
    rng = np.random.default_rng(8)
    for _ in range(150):
        levels = np.repeat(rng.normal(0, 0.3, 8), rng.integers(1, 7, 8))
        found = change_points(
            levels + 0.05 * rng.standard_t(3, levels.size), rng.choice([0, 0.02, 0.1], levels.size)
        )
        edges = [0, *(one.place for one in found), levels.size]
        assert (np.diff(edges) >= 2).all()
        assert all(one.p_value <= 0.01 for one in found)
