"""The Universal Scalability Law: recovered from noise, its intervals, and the number of servers it asks for."""

import numpy as np
import pytest

from loadgen.analysis.scaling import Point, fit, needed, throughput
from loadgen.records import LoadgenError

LAW = np.array([200.0, 0.04, 0.002])  # rate, contention, coherency
COUNTS = np.array([1, 2, 4, 8, 16, 24])
ERROR = 0.015


def points(values, error=ERROR):
    return [
        Point(int(n), v, v * (1 - 1.96 * error), v * (1 + 1.96 * error))
        for n, v in zip(COUNTS, values, strict=True)
    ]


def test_exact_capacities_give_the_law_back():
    found = fit(points(throughput(COUNTS, LAW), 1e-6))
    assert [found.rate.value, found.contention.value, found.coherency.value] == pytest.approx(
        list(LAW), rel=1e-4
    )
    assert found.fits
    assert found.best == 22  # sqrt((1 - 0.04) / 0.002) = 21.9


def test_the_law_by_hand():
    # 200 * 4 / (1 + 0.04 * 3 + 0.002 * 4 * 3) = 800 / 1.144
    assert throughput(4, LAW)[0] == pytest.approx(699.3, abs=0.01)


def test_intervals_hold_the_parameters_in_95_percent_of_fits():
    rng, held, n = np.random.default_rng(11), np.zeros(4), 120
    for seed in range(n):
        found = fit(points(throughput(COUNTS, LAW) * (1 + ERROR * rng.standard_normal(COUNTS.size))), seed)
        parameters = (found.rate, found.contention, found.coherency)
        held[:3] += [p.low <= truth <= p.high for p, truth in zip(parameters, LAW, strict=True)]
        low, high = np.quantile(throughput(20, found.draws), [0.025, 0.975])
        held[3] += low <= throughput(20, LAW)[0] <= high
    assert (held / n >= 0.90).all(), held / n  # 95 % of 120, less two and a half standard errors


def test_servers_that_only_add_up_have_neither_contention_nor_coherency():
    found = fit(points(100.0 * COUNTS, 0.001))
    assert (found.contention.value, found.coherency.value) == pytest.approx((0, 0), abs=1e-9)
    assert found.best is None
    assert needed(950, np.array([[100.0, 0.0, 0.0]])).tolist() == [10]


@pytest.mark.parametrize(
    "law", [[200.0, 0.04, 0.002], [200.0, 0.04, 0.0], [50.0, 0.0, 0.01], [10.0, 0.0, 0.0]]
)
def test_the_number_needed_is_the_first_that_carries_the_load(law):
    held = np.array([law])
    n = np.arange(1, 2000)
    capacity = throughput(n, held)
    for load in (5.0, 90.0, 201.0, 640.0, 5000.0, 1e7):
        enough = n[capacity >= load]
        expected = float(enough[0]) if enough.size else np.inf
        found = needed(load, held)[0]
        assert found == expected or (expected == np.inf and found > 1999)


def test_capacities_that_do_not_follow_the_law_are_found_out():
    found = fit(points(np.array([200, 100, 800, 300, 3000, 900.0])))
    assert not found.fits
    sure = fit(points(throughput(COUNTS, LAW)))
    assert found.rate.high - found.rate.low > 3 * (sure.rate.high - sure.rate.low)


def test_three_counts_are_too_few():
    with pytest.raises(LoadgenError, match="4 different numbers of servers, not 3"):
        fit(points(throughput(COUNTS, LAW))[:3])
