"""Looking often: the error of all looks together stays at what is stated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis.sequential import alpha_at
from tests.bench.sequential_calibration import errors


@given(st.lists(st.floats(0, 2), min_size=1, max_size=50))
def test_all_looks_together_spend_at_most_the_error(times):
    before, total = 0.0, 0.0
    for at in sorted(times):
        total += alpha_at(at, before)
        before = at
    assert total <= 0.05 + 1e-12


def test_at_the_limit_all_of_it_is_spent():
    assert sum(alpha_at(b, a) for a, b in [(0, 0.1), (0.1, 0.7), (0.7, 1)]) == pytest.approx(0.05)


@pytest.mark.parametrize("law", ["independent, exponential", "M/M/1, load 0.5"])
def test_a_figure_at_its_limit_is_seldom_decided_wrongly(law):
    """At the worst place: the true P50 is the limit, so that any decision is on the wrong side by a hair."""
    wrong, looks = errors(law, 0.5, runs=150, looks=6, n=1000, rng=np.random.default_rng(1))
    assert wrong <= 0.08  # a share of 5 % of 150 has a standard error of 1.8 %
    assert looks > 5
