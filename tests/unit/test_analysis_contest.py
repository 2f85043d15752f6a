"""Which candidate is best: against simulated truths, with drift that would pick another winner."""

import numpy as np
import pytest

from loadgen.analysis.blocks import fit, means
from loadgen.analysis.contest import contest, effect, front


def most(figures):
    """The largest figure over the loads."""
    return figures.max(axis=-1)


def simulated(rng, true, rounds, noise, drift=()):
    """candidates x 1 load x rounds of a rate: truth x round x noise."""
    values = np.asarray(true)[:, None] * np.exp(rng.normal(0, noise, (len(true), rounds)))
    return (values * np.exp(np.resize(drift or [0.0], rounds)))[:, None, :]


def test_a_round_that_was_slow_for_all_is_no_noise():
    """Each round half as fast as the one before: the candidates' ratios are exact all the same."""
    values = np.array([[100.0, 50, 25], [110, 55, 27.5], [90, 45, 22.5]])
    found = fit(values)
    assert found.variance == pytest.approx(0, abs=1e-20)
    assert found.freedom == 4  # (3 candidates - 1) x (3 rounds - 1)
    assert np.exp(found.mean - found.mean[0]) == pytest.approx([1, 1.1, 0.9])
    outcome = contest(values[:, None, :], most)
    assert (outcome.best, outcome.verdict) == (1, "clear")
    assert outcome.probability[1] == 1


def test_a_missing_block_does_not_move_the_others():
    """The candidate that missed the slow round is not called fast for it."""
    values = np.array([[100.0, 50, 25], [110, 55, 27.5], [90, 45, np.nan]])
    assert np.exp(np.diff(fit(values).mean)) == pytest.approx([1.1, 90 / 110], rel=1e-6)


def test_the_probability_of_being_best_is_calibrated():
    """Of 400 contests between 10 candidates 3 % apart at 4 % noise, those called clear are right."""
    rng = np.random.default_rng(1)
    right, said, clear, wrong = 0, 0.0, 0, 0
    for _ in range(400):
        true = 100 * np.exp(rng.normal(0, 0.03, 10))
        outcome = contest(simulated(rng, true, 3, 0.04, (0, 0.3, -0.2)), most, seed=2)
        hit = outcome.best == int(true.argmax())
        right, said = right + hit, said + outcome.probability[outcome.best]
        if outcome.verdict == "clear":
            clear, wrong = clear + 1, wrong + (not hit)
        assert outcome.probability.sum() == pytest.approx(1)
    assert right / 400 == pytest.approx(said / 400, abs=0.07)
    assert wrong <= max(2, 0.1 * clear)


def test_equal_candidates_are_not_told_apart():
    rng = np.random.default_rng(3)
    verdicts = [contest(simulated(rng, [100] * 6, 3, 0.1), most).verdict for _ in range(50)]
    assert verdicts.count("clear") <= 4
    near = [contest(simulated(rng, [100] * 3, 4, 0.003), most).verdict for _ in range(20)]
    assert set(near) <= {"close", "clear"}
    assert near.count("close") >= 15


def test_one_round_says_nothing_about_noise():
    outcome = contest(np.array([100.0, 300.0])[:, None, None], most)
    assert (outcome.best, outcome.probability, outcome.verdict) == (1, None, "inconclusive")


def test_a_draw_beyond_any_number_is_only_a_large_one(recwarn):
    """Two rounds of two, of which one broke off: one degree of freedom and much noise."""
    values = np.array([[90.2, 89.3], [1e-9, 87.0]])[:, None, :]
    outcome = contest(values, most)
    assert np.isfinite(outcome.drawn).all()
    assert 0 <= outcome.worse <= 1
    assert outcome.best == 0
    assert not recwarn.list


def test_no_success_is_the_worst_and_no_candidate_is_none():
    values = np.array([[10.0, 11, 10], [np.inf, 5, 5]])[:, None, :]
    assert means(values)[1, 0] == np.inf
    least = contest(values, lambda figures: 1 / figures.mean(axis=-1))
    assert (least.best, least.verdict) == (0, "only")  # nothing to compare with
    assert contest(values, lambda figures: 0 * np.ones(figures.shape[:-1])).verdict == "none"


def test_the_front_is_what_nothing_beats_in_both():
    gain, cost = np.array([10.0, 20, 20, 30, np.nan]), np.array([1.0, 2, 3, np.inf, 0])
    assert front(gain, cost) == [True, True, False, False, False]


def test_a_setting_is_known_when_no_winner_is():
    """Twelve candidates, six with a setting that gives 1.3 times as much: 12 % noise hides the best, not the setting."""
    rng = np.random.default_rng(5)
    outcome = contest(simulated(rng, [130] * 6 + [100] * 6, 2, 0.12, (0, 0.4)), most)
    assert outcome.verdict == "inconclusive"
    (high, sure), (low, other) = effect(outcome, [list(range(6)), list(range(6, 12))])
    assert high == 1
    assert low == pytest.approx(100 / 130, abs=0.1)
    assert sure > 0.95
    assert sure + other == pytest.approx(1)


def test_one_contender_is_not_the_best_with_certainty():
    """Nothing was compared: alone from the beginning, or because all others have no score at all."""
    one = contest(np.array([[[100.0, 101, 99]]]), most)
    assert (one.best, one.probability, one.worse, one.verdict) == (0, None, None, "only")
    two = np.array([[100.0, 101, 99], [150.0, 151, 149]])[:, None, :]
    alone = contest(two, lambda figures: most(figures) * [1, 0])
    assert (alone.best, alone.probability, alone.verdict) == (0, None, "only")


def test_what_is_undecided_about_the_others_speaks_against_the_chosen_one():
    """The second is faster and may or may not count: the first is chosen, and is not called sure."""
    two = np.array([[100.0, 101, 99], [150.0, 151, 149]])[:, None, :]
    found = contest(two, lambda figures: most(figures) * [1, 0], rivals=most)
    assert (found.best, found.verdict) == (0, "inconclusive")
    assert found.probability[0] < 0.05
    assert found.worse == pytest.approx(1 / 3, abs=0.05)
    slower = contest(two, lambda figures: most(figures) * [0, 1], rivals=most)
    assert (slower.best, slower.verdict) == (1, "clear")
