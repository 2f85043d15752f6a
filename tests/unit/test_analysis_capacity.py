"""The search for a capacity, on simulated servers whose capacity is known and on probes written by hand."""

import numpy as np
import pytest

from loadgen.analysis.capacity import (
    Answer,
    Bad,
    Capacity,
    Next,
    Probe,
    Settings,
    batched,
    capacity_of,
    filling_seconds,
    next_step,
)
from tests.bench.capacity_calibration import trial

SETTINGS = Settings(first_load=100.0, least_load=1.0, most_load=1000.0)


def bad(share, n=1000, allowed=0.01):
    """An objective in a probe of n requests: its bad ones lie evenly over ten batches."""
    return Bad(
        allowed, tuple(np.diff(np.round(np.linspace(0, share * n, 11))).astype(int).tolist()), (n // 10,) * 10
    )


def probe(load, *shares, seconds=20.0, n=1000, allowed=0.01):
    return Probe(load, seconds, tuple(bad(share, n, allowed) for share in shares))


def searched(settings, shares_at, most=60):
    """A search among servers without chance: `shares_at` gives the share of each objective at a load."""
    probes = []
    while not isinstance(step := next_step(settings, probes), Capacity):
        assert len(probes) < most
        probes.append(probe(step.load, *shares_at(step.load), seconds=step.seconds, n=100_000))
    return step, probes


@pytest.mark.parametrize("kind", ["batch server, 8 rows", "4 slots, users"])
def test_searches_come_near_the_truth_and_their_intervals_hold_it(kind):
    near = held = 0
    for seed in range(6):
        answer, true, seconds = trial(kind, seed)
        near += abs(answer.value - true) <= max(0.05 * true, 1.0)
        held += answer.low <= true <= answer.high
        assert seconds < 610
    assert near >= 5
    assert held >= 5


def test_the_first_probe_is_the_one_that_was_asked_for():
    assert next_step(SETTINGS, []) == Next(100.0, 5.0)


def test_the_load_doubles_while_nothing_is_missed_and_is_halved_while_all_is():
    assert next_step(SETTINGS, [probe(100.0, 0.0, seconds=5.0)]).load == 200.0
    assert next_step(SETTINGS, [probe(100.0, 1.0, seconds=5.0)]).load == 50.0


def test_a_wide_gap_is_halved_by_short_probes():
    step = next_step(SETTINGS, [probe(100.0, 0.0, seconds=5.0), probe(400.0, 1.0, seconds=5.0)])
    assert step == Next(200.0, 5.0)


def test_a_capacity_is_found_where_the_share_crosses_the_allowed_one():
    answer, probes = searched(SETTINGS, lambda load: [min(1.0, 0.01 * np.exp((load - 300) / 30))])
    assert answer.answer is Answer.FOUND
    assert answer.value == pytest.approx(300, rel=0.03)
    assert answer.low < 300 < answer.high
    assert len(probes) < 15


def test_the_smallest_capacity_over_the_objectives_is_the_answer():
    answer, _ = searched(
        SETTINGS, lambda load: [min(1.0, 0.01 * np.exp((load - m) / 30)) for m in (500, 300)]
    )
    assert (answer.answer, answer.objective) == (Answer.FOUND, 1)
    assert answer.value == pytest.approx(300, rel=0.04)


def test_an_objective_that_is_missed_all_at_once_is_bracketed():
    """Requests are refused from 250/s on: no line leads there, and that of the latency crosses later."""
    shares = lambda load: [min(1.0, 0.01 * np.exp((load - 400) / 30)), 0.9 if load > 250 else 0.0]  # noqa: E731
    answer, _ = searched(SETTINGS, shares)
    assert (answer.answer, answer.objective) == (Answer.FOUND, 1)
    assert answer.low <= 250 <= answer.high
    assert answer.high - answer.low <= 2 * SETTINGS.precision * answer.value


def test_a_server_that_never_misses_has_at_least_the_highest_load():
    answer, probes = searched(SETTINGS, lambda _: [0.0])
    assert (answer.answer, answer.value, answer.high) == (Answer.AT_LEAST, 1000.0, None)
    assert [one.load for one in probes] == [100.0, 200.0, 400.0, 800.0, 1000.0]


def test_a_server_that_always_misses_is_below_the_lowest_load():
    answer, _ = searched(SETTINGS, lambda _: [1.0])
    assert (answer.answer, answer.value, answer.high) == (Answer.BELOW, None, 1.0)


def test_too_little_time_leaves_it_undecided():
    settings = Settings(first_load=100.0, least_load=1.0, most_load=1000.0, within_seconds=12.0)
    answer, probes = searched(settings, lambda load: [min(1.0, 0.01 * np.exp((load - 300) / 30))])
    assert answer.answer is Answer.UNDECIDED
    assert sum(one.seconds for one in probes) <= 17


def test_users_are_whole_numbers_and_the_answer_still_meets_the_objectives():
    settings = Settings(first_load=1.0, least_load=1.0, most_load=1000.0, whole=True)
    answer, probes = searched(settings, lambda load: [min(1.0, 0.01 * np.exp((load - 14.4) / 2))])
    assert (answer.answer, answer.value) == (Answer.FOUND, 14.0)
    assert all(one.load == int(one.load) for one in probes)


def test_one_user_too_many_is_below_one_user():
    settings = Settings(first_load=1.0, least_load=1.0, most_load=1000.0, whole=True)
    answer, _ = searched(settings, lambda _: [0.5])
    assert (answer.answer, answer.high) == (Answer.BELOW, 1.0)


def test_requests_that_come_in_clusters_widen_the_interval():
    def of(load, share, clustered):
        each = round(1000 * share)
        counts = [2 * each, 0] * 5 if clustered else [each] * 10
        return Probe(load, 20.0, (Bad(0.01, tuple(counts), (1000,) * 10),))

    even, clusters = (
        capacity_of(SETTINGS, [of(280, 0.005, c), of(290, 0.007, c), of(310, 0.014, c), of(320, 0.02, c)])
        for c in (False, True)
    )
    assert even.value == pytest.approx(clusters.value, rel=0.01)
    assert clusters.high - clusters.low > 2 * (even.high - even.low)


def test_batches_hold_every_request_once():
    late = np.zeros(1005, np.bool_)
    late[:30] = True
    found = batched(0.01, late)
    assert (found.n, found.count, found.bad[0], len(found.sizes)) == (1005, 30, 30, 10)
    assert found.inflation > 10
    assert batched(0.01, np.zeros(0, np.bool_)).n == 0


def test_filling_is_a_fifth_of_short_probes_and_some_limits_of_long_ones():
    assert filling_seconds(5, 0.3) == 1.0
    assert filling_seconds(60, 0.3) == 4.0
    assert filling_seconds(60, 10) == 12.0
    assert filling_seconds(60, None) == 12.0


def test_a_saturated_load_is_above_the_capacity_whatever_a_short_probe_above_it_saw():
    """A queue that had no time to fill looks better at 100/s than a longer probe at 93/s."""
    probes = [
        probe(70.0, 0.0, seconds=8.0),
        probe(93.0, 0.7, seconds=30.0),
        probe(100.0, 0.03, seconds=8.0),
    ]
    known = capacity_of(SETTINGS, probes)
    assert (known.answer, known.value, known.high) == (Answer.UNDECIDED, None, 93.0)
    assert 70 < next_step(SETTINGS, probes).load < 93
