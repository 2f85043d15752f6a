import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from loadgen.traffic.lengths import Length
from loadgen.workload.lengths import draw_lengths, lengths_at, max_length, min_length, quantile_lengths


def law(**given):
    return Length.model_validate(given).law


def test_fixed():
    assert quantile_lengths(law(fixed=64), 3).tolist() == [64, 64, 64]
    assert (min_length(64), max_length(64)) == (64, 64)


def test_uniform_gives_every_length_equally_often():
    lengths = quantile_lengths(law(uniform={"min": 3, "max": 10}), 80)
    assert np.bincount(lengths).tolist() == [0, 0, 0] + [10] * 8


@pytest.mark.parametrize(
    ("given", "frozen"),
    [
        ({"normal": {"mean": 20, "sd": 8, "min": 12, "max": 60}}, stats.norm(20, 8)),
        ({"normal": {"mean": 4, "sd": 1, "min": 4, "max": 9}}, stats.norm(4, 1)),
        ({"lognormal": {"median": 32, "sigma": 0.6, "min": 4, "max": 64}}, stats.lognorm(0.6, scale=32)),
        ({"lognormal": {"median": 32, "sigma": 2, "min": 20, "max": 40}}, stats.lognorm(2, scale=32)),
    ],
)
def test_cut_laws_are_scaled_up_not_clamped(given, frozen):
    ours, n = law(**given), 20_000
    share = np.bincount(quantile_lengths(ours, n), minlength=ours.max + 1) / n
    whole = np.arange(ours.min, ours.max + 1)
    inside = frozen.cdf(ours.max + 0.5) - frozen.cdf(ours.min - 0.5)
    wanted = (frozen.cdf(whole + 0.5) - frozen.cdf(whole - 0.5)) / inside
    assert np.abs(share[ours.min :] - wanted).max() <= 1.01 / n
    assert share[: ours.min].sum() == 0


def test_a_small_pool_carries_the_law():
    ours = law(lognormal={"median": 32, "sigma": 0.6, "min": 1, "max": 2000})
    lengths = quantile_lengths(ours, 512)
    for quantile in (0.1, 0.5, 0.9, 0.99):
        assert np.quantile(lengths, quantile) == pytest.approx(
            stats.lognorm(0.6, scale=32).ppf(quantile), rel=0.03
        )


def test_histogram():
    bars = [
        {"at": 32, "weight": 2},
        {"from": 1, "to": 4, "weight": 6},
        {"from": 100, "to": 101, "weight": 0},
        {"at": 50, "weight": 2},
    ]
    ours = law(histogram=bars)
    counts = np.bincount(quantile_lengths(ours, 1000))
    assert {i: int(n) for i, n in enumerate(counts) if n} == {
        1: 150,
        2: 150,
        3: 150,
        4: 150,
        32: 200,
        50: 200,
    }
    assert (min_length(ours), max_length(ours)) == (1, 50)  # a bar without weight is no length


laws = st.one_of(
    st.builds(lambda a, b: law(uniform={"min": min(a, b), "max": max(a, b)}), st.integers(1, 999), st.integers(1, 999)),
    st.builds(
        lambda a, b, share, sd: law(normal={"min": min(a, b), "max": max(a, b), "mean": min(a, b) + share * abs(a - b), "sd": sd}),
        st.integers(1, 999), st.integers(1, 999), st.floats(0, 1), st.floats(0.01, 1e5),
    ),
    st.builds(
        lambda a, b, share, s: law(lognormal={"min": min(a, b), "max": max(a, b), "median": min(a, b) + share * abs(a - b), "sigma": s}),
        st.integers(1, 999), st.integers(1, 999), st.floats(0, 1), st.floats(0.001, 50),
    ),
)  # fmt: skip


@given(laws, st.integers(1, 300))
def test_ascending_and_inside(ours, n):
    lengths = quantile_lengths(ours, n)
    assert (len(lengths), lengths.dtype) == (n, np.int64)
    assert (np.diff(lengths) >= 0).all()
    assert min_length(ours) <= lengths[0]
    assert lengths[-1] <= max_length(ours)


@given(laws, st.integers(0, 2**32))
def test_drawn_lengths_are_the_same_quantiles_at_random_shares(ours, seed):
    drawn = draw_lengths(ours, np.random.default_rng(seed), 300)
    assert drawn.dtype == np.int32
    assert drawn.tolist() == lengths_at(ours, np.random.default_rng(seed).random(300)).tolist()
    assert min_length(ours) <= drawn.min()
    assert drawn.max() <= max_length(ours)


@pytest.mark.parametrize(
    "given",
    [
        {"uniform": {"min": 3, "max": 10}},
        {"normal": {"mean": 20, "sd": 8, "min": 12, "max": 60}},
        {"lognormal": {"median": 32, "sigma": 0.6, "min": 4, "max": 64}},
        {"histogram": [{"at": 5, "weight": 1}, {"from": 7, "to": 9, "weight": 0}, {"from": 20, "to": 40, "weight": 3}]},
    ],
)  # fmt: skip
def test_drawn_lengths_have_the_law(given):
    """Past one chunk; each length's share within 5 standard errors of what the quantiles say."""
    ours, n = law(**given), 400_000
    drawn = np.bincount(draw_lengths(ours, np.random.default_rng(1), n), minlength=100) / n
    wanted = np.bincount(quantile_lengths(ours, n), minlength=100) / n
    assert (np.abs(drawn - wanted) <= 5 * np.sqrt(wanted / n) + 1 / n).all()


def test_drawn_fixed_lengths_take_nothing_from_the_stream():
    rng = np.random.default_rng(1)
    assert draw_lengths(64, rng, 3).tolist() == [64, 64, 64]
    assert rng.random() == np.random.default_rng(1).random()


def test_a_law_spread_beyond_all_floats_still_draws_inside():
    ours = law(lognormal={"median": 32, "sigma": 1e9, "min": 4, "max": 64})
    assert set(draw_lengths(ours, np.random.default_rng(1), 1000).tolist()) <= set(range(4, 65))
