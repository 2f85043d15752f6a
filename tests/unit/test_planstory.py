"""A plan in figures, against the same figures made the plain way."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from loadgen import planstory
from loadgen.planstory import COLUMNS, arrivals_of, describe_plan
from loadgen.records import PhasePlan, Plan
from loadgen.schedule import plan, slice_plan
from loadgen.traffic.profile import parse_profile

S = 10**9


def opened(due, span, kind=None, length=None):
    n = len(due)
    return PhasePlan(
        "p", "open", True, span, np.asarray(due, np.int64), np.zeros(n, np.int16) if kind is None else kind,
        np.zeros(n, np.uint32), length,
    )  # fmt: skip


def planned(law, rate, seed=1):
    text = f"kinds: {{k: {{model: m}}}}\nphases: [{{name: p, open: {{arrivals: {law}, rate: {rate}}}}}]"
    return plan(parse_profile(text, "t.yaml"), seed)


def test_bursts_are_counted():
    told = arrivals_of(opened([0, 0, 0, 5, 6, 6, 19], 20))
    gaps = np.array([0, 0, 5, 1, 0, 13])
    assert told.gap_cv == pytest.approx(gaps.std() / gaps.mean())
    assert (told.largest_burst, told.share_an_instant) == (3, 5)
    assert (told.bin_ns, told.peak_per_s, told.peak_at_ns) == (1, 3 * S, 0)


@pytest.mark.parametrize(
    ("due", "cv", "largest"), [([], None, 0), ([7], None, 1), ([7, 7, 7], None, 3), ([0, 9], None, 1)]
)
def test_too_few_to_tell(due, cv, largest):
    told = arrivals_of(opened(due, 100))
    assert (told.gap_cv, told.largest_burst) == (cv, largest)
    assert (told.dispersion is None) == (not due)


def test_a_closed_loop_has_no_bursts():
    text = "kinds: {k: {model: m}}\nphases: [{name: p, closed: {users: 3, requests: 9, think: 2ms}}]"
    [story] = describe_plan(plan(parse_profile(text, "t.yaml")))
    assert (story.arrivals, story.column_counts, story.planned, story.think_ns) == (None, None, 9, 2_000_000)
    assert story.kinds["k"].planned == 9


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=60), st.integers(0, 400), st.integers(1, 9))
def test_by_the_stretch_is_as_at_once(due, more, stretch):
    due, span = np.sort(np.array(due, np.int64)), 301 + more
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planstory, "_STRETCH", stretch)
        told = arrivals_of(opened(due, span))
    bins = np.bincount(due // told.bin_ns, minlength=-(-span // told.bin_ns))
    assert told.peak_per_s == pytest.approx(bins.max() / told.bin_ns * 1e9)
    assert bins[told.peak_at_ns // told.bin_ns] == bins.max()
    full = bins[: span // told.bin_ns]
    assert told.dispersion == (pytest.approx(full.var(ddof=1) / full.mean()) if full.any() else None)
    _, instants = np.unique(due, return_counts=True)
    assert (told.largest_burst, told.share_an_instant) == (
        instants.max(initial=0),
        instants[instants > 1].sum(),
    )
    if len(due) > 2 and due[0] != due[-1]:
        assert told.gap_cv == pytest.approx(np.diff(due).std() / np.diff(due).mean())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 5000)), min_size=1, max_size=80))
def test_lengths_are_told_kind_by_kind(rows):
    kind, length = np.array([k for k, _ in rows], np.int16), np.array([n for _, n in rows], np.int32)
    [story] = describe_plan(Plan(1, ("a", "b", "c"), (opened(np.arange(len(rows)), 100, kind, length),)))
    for place, name in enumerate("abc"):
        mine, spread = np.sort(length[(kind == place) & (length >= 0)]), story.kinds[name].length
        assert story.kinds[name].planned == np.count_nonzero(kind == place)
        assert story.kinds[name].output is None
        if not len(mine):
            assert spread is None
            continue
        ranks = [mine[max(-(-len(mine) * q // 100) - 1, 0)] for q in (50, 90, 99)]
        assert [spread.p50, spread.p90, spread.p99] == ranks
        assert (spread.n, spread.min, spread.max) == (len(mine), mine[0], mine[-1])
        assert spread.mean == pytest.approx(mine.mean())
        assert (spread.edges[0], spread.edges[-1]) == (mine[0], mine[-1] + 1)
        assert all(a < b for a, b in zip(spread.edges, spread.edges[1:], strict=False))
        assert list(spread.counts) == [
            np.count_nonzero((mine >= a) & (mine < b))
            for a, b in zip(spread.edges, spread.edges[1:], strict=False)
        ]


def test_columns_add_up_to_the_plan():
    [story] = describe_plan(planned("poisson", "[{duration: 12s, at: 50/s}]"))
    assert len(story.column_counts) == COLUMNS
    assert sum(story.column_counts) == story.planned
    assert story.column_ns == 250_000_000


@given(st.integers(1, 5000), st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_even_arrivals_have_gaps_without_variation(per_s, seconds):
    """But for the rounding to whole ns: each gap is off by less than one."""
    told = arrivals_of(planned("uniform", f"[{{duration: {seconds}s, at: {per_s}/s}}]").phases[0])
    if told.gap_cv is not None:
        assert told.gap_cv <= per_s * 1e-9
    assert told.largest_burst == 1


def within(dispersion, bins):
    """Of Poisson counts, variance / mean times bins - 1 is chi-square with so many degrees of freedom."""
    low, high = chi2.ppf([0.0005, 0.9995], bins - 1) / (bins - 1)
    return low < dispersion < high


@pytest.mark.parametrize("seed", range(8))
def test_poisson_has_dispersion_1_for_one_worker_and_for_eight(seed):
    whole = planned("poisson", "[{duration: 600s, at: 100/s}]", seed)
    parts = [slice_plan(whole, k, 8).phases[0] for k in range(8)]
    merged = np.sort(np.concatenate([part.due_ns for part in parts]))
    one, eight = arrivals_of(whole.phases[0]), arrivals_of(opened(merged, 600 * S))
    assert one == eight
    assert within(one.dispersion, 600)
    assert one.gap_cv == pytest.approx(1, abs=5 * np.sqrt(2 / 60_000))
    # a worker's own are every eighth of them, hence more even: sums of eight gaps
    assert arrivals_of(parts[0]).gap_cv == pytest.approx(8**-0.5, rel=0.05)


def test_clumps_are_seen():
    told = arrivals_of(planned("{gamma: {burstiness: 9}}", "[{duration: 600s, at: 100/s}]").phases[0])
    assert told.gap_cv == pytest.approx(3, rel=0.05)
    assert told.dispersion > 6
    assert not within(told.dispersion, 600)


def test_a_large_plan_is_looked_at_in_little_room():
    """8 bytes an arrival for its length; next to nothing for its time."""
    n = 2_000_000
    due = np.arange(n, dtype=np.int64) * 1000 // 5000 * 5000  # by fives
    phase = opened(due, n * 1000, length=np.arange(n, dtype=np.int32) % 999)
    tracemalloc.start()
    told = arrivals_of(phase)
    small = tracemalloc.get_traced_memory()[1]
    describe_plan(Plan(1, ("k",), (phase,)))
    large = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (told.largest_burst, told.share_an_instant) == (5, n)
    assert small < 8e6
    assert large < 8 * n + 8e6
