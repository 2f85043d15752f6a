import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.records import Wanted
from loadgen.workload.budget import affordable, round_lengths, within_memory
from loadgen.workload.demand import Demand


def size(want):
    return 10 * want.length


def test_lengths_that_fit_stay():
    wanted = [Wanted(n) for n in range(1, 11)]
    rounded = round_lengths(wanted, [1] * 10, 550, size)
    assert rounded.mapping == {want: want for want in wanted}
    assert rounded.text == ""


def test_lengths_that_do_not_fit_are_rounded_and_it_is_said():
    wanted = [Wanted(n) for n in range(1, 5001)]
    counts = [5001 - n for n in range(1, 5001)]
    rounded = round_lengths(wanted, counts, 2**20, size)
    kept = set(rounded.mapping.values())
    assert sum(map(size, kept)) <= 2**20
    assert set(rounded.mapping) == set(wanted)
    assert (
        max(abs(ours.length / want.length - 1) for want, ours in rounded.mapping.items() if want.length > 50)
        < 0.03
    )
    before = sum(want.length * n for want, n in zip(wanted, counts, strict=True))
    after = sum(rounded.mapping[want].length * n for want, n in zip(wanted, counts, strict=True))
    assert after == pytest.approx(before, rel=1e-3)
    assert rounded.text == (
        f"lengths rounded to within about 2.5%: 5,000 different ones became {len(kept)}, "
        "so that their requests fit 1 MiB of memory"
    )


def test_outputs_are_rounded_with_them_and_none_stays_none():
    wanted = [Wanted(n, out) for n in range(100, 200) for out in range(100, 200)]
    wanted += [Wanted(None, 150), Wanted(150, None)]
    rounded = round_lengths(wanted, [1] * len(wanted), 100_000, lambda want: 10 * (want.length or 1))
    assert rounded.mapping[wanted[-2]].length is None
    assert rounded.mapping[wanted[-1]].output is None
    assert all(abs(ours.output - want.output) <= 20 for want, ours in rounded.mapping.items() if want.output)
    assert len(set(rounded.mapping.values())) < 100


@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=60, unique=True), st.integers(1, 10**9))
def test_whatever_is_wanted_few_variants_remain_or_the_budget_is_kept(lengths, budget):
    wanted = [Wanted(n) for n in lengths]
    kept = set(round_lengths(wanted, [1] * len(wanted), budget, size).mapping.values())
    assert sum(map(size, kept)) <= budget * 1.001 + 10 * len(kept) or len(kept) <= 8
    assert all(min(lengths) <= want.length <= max(lengths) for want in kept)


def test_a_million_lengths_are_rounded_in_a_moment():
    lengths = np.unique(np.random.default_rng(1).lognormal(8, 2, 10**6).astype(int).clip(1, 10**6))
    wanted = [Wanted(n) for n in lengths.tolist()]
    kept = set(round_lengths(wanted, [1] * len(wanted), 2**26, size).mapping.values())
    assert sum(map(size, kept)) <= 2**26


def test_affordable():
    assert [affordable(n) for n in (0, 1, 2**17, 2**20, 2**24, 2**28, 2**31)] == [512, 512, 512, 64, 8, 4, 1]


def demand_of(*kinds):
    """Every variant sent three times, each phase a third."""
    n = sum(map(len, kinds))
    return Demand(kinds, tuple(np.arange(n, dtype=np.int32) for _ in range(3)))


def test_a_demand_that_fits_stays():
    needed = demand_of((Wanted(1),) * 3, (Wanted(2), Wanted(3)))
    kept, texts = within_memory(needed, [size, size], [30, 50])
    assert kept.wanted == needed.wanted
    assert [picks.tolist() for picks in kept.picks] == [[0, 1, 2, 3, 4]] * 3
    assert texts == ["", ""]


def test_first_fewer_variants_of_one_length_in_the_same_turns():
    needed = demand_of((Wanted(1),), (Wanted(100),) * 40)
    kept, texts = within_memory(needed, [size, size], [10**9, 10_000])
    assert kept.wanted == ((Wanted(1),), (Wanted(100),) * 10)
    assert kept.picks[2].tolist() == [0, *(1 + turn % 10 for turn in range(40))]
    assert texts == ["", ""]


def test_then_fewer_lengths_and_every_arrival_keeps_nearly_its_own():
    wants = tuple(Wanted(n) for n in range(1000, 2000) for _ in range(2))
    needed = demand_of((Wanted(7),), wants)
    kept, texts = within_memory(needed, [size, size], [10**9, 2**20])
    assert sum(map(size, kept.wanted[1])) <= 2**20
    flat = [want for of_kind in kept.wanted for want in of_kind]
    assert flat[kept.picks[0][0]] == Wanted(7)
    for old, pick in zip(wants, kept.picks[1][1:], strict=True):
        assert abs(flat[pick].length / old.length - 1) < 0.02
    assert texts[0] == ""
    assert texts[1].startswith("lengths rounded to within about 0.5%: 1,000 different ones became ")
