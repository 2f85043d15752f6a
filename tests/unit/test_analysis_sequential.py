"""A group sequential design: the chance that any look is wrong is what is stated."""

import numpy as np
import pytest

from loadgen.analysis.sequential import crossing, design, level, looks_of
from loadgen.analysis.slo import Verdict
from tests.bench.sequential_calibration import errors, mean_runs, trial


@pytest.mark.parametrize(
    ("looks", "alpha"), [(1, 0.05), (2, 0.0294), (3, 0.0221), (4, 0.0182), (5, 0.0158), (10, 0.0106)]
)
def test_the_level_of_each_look_is_pococks(looks, alpha):
    """Table 1 of Pocock (1977)."""
    assert level(tuple(range(1, looks + 1)), 0.05) == pytest.approx(alpha, abs=6e-5)


def test_later_looks_are_further_apart_and_never_beyond_the_limit():
    assert looks_of(10) == tuple(range(3, 11))
    assert looks_of(30) == (*range(3, 11), 11, 13, 15, 17, 19, 21, 24, 27, 30)
    assert [looks_of(n) for n in (1, 2, 3, 4)] == [(1,), (2,), (3,), (3, 4)]
    assert looks_of(29)[-1] == 27
    assert len(looks_of(1000)) < 60


def test_means_of_normal_values_cross_the_bound_as_often_as_is_stated():
    plan, rng = design(30), np.random.default_rng(3)
    sums = np.cumsum(rng.standard_normal((20_000, 30)), axis=1)[:, np.array(plan.looks) - 1]
    beyond = (np.abs(sums) / np.sqrt(plan.looks) > 2.5).any(axis=1).mean()
    assert crossing(plan.looks, 2.5) == pytest.approx(beyond, abs=0.008)
    assert crossing(plan.looks, 6.0) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("law", ["independent, exponential", "M/M/1, load 0.5"])
def test_a_quantile_at_its_limit_is_seldom_decided_wrongly(law):
    """`make calibration` has more laws and trials: there at most 5 %."""
    passes, fails, runs = errors(law, 0.5, n=400, most=5, count=150)
    assert max(passes, fails) <= 0.08  # a share of 5 % of 150 has a standard error of 1.8 %
    assert runs > 4


def test_runs_that_differ_are_not_taken_for_one_long_run():
    """Medians differ by 10 % from run to run, within a run they are known to 4 %."""
    rng, wrong = np.random.default_rng(8), 0
    for _ in range(150):
        runs = rng.exponential(1, (8, 400)) * np.exp(rng.normal(0, 0.1, (8, 1)))
        wrong += trial(runs, 0.5, np.log(2)).verdict is Verdict.PASS
    assert wrong / 150 <= 0.08


def test_a_clear_pass_takes_few_runs_and_a_clear_fail_too():
    for away in (0.3, -0.3):
        right, runs = mean_runs("independent, exponential", 0.5, n=400, most=10, count=50, away=away)
        assert right == 1
        assert runs < 3.5
    assert trial(np.full((3, 400), 2.0), 0.5, 1.0).verdict is Verdict.FAIL
