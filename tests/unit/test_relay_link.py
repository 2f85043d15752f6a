"""The link's arithmetic in virtual time: what enters when, leaves when."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.lab.relay_link import Agenda, Lane, Way

MS, S = 10**6, 10**9


def half():
    return 0.5


def play(way, sent, lanes):
    """[(lane, sent_ns, size)] in order of time; returns {lane: [(sent_ns, left_ns, size)]}, each as it left."""
    agenda, left = Agenda(), {n: [] for n in range(len(lanes))}
    names = {id(lane): n for n, lane in enumerate(lanes)}

    def run(until):
        while agenda.next_ns is not None and agenda.next_ns <= until:
            now = agenda.next_ns
            for lane in agenda.due(now):
                while (head := lane.take(now)) is not None:
                    assert head[0] <= now
                    left[names[id(lane)]].append((head[1][0], now, head[1][1]))
                agenda.list(lane)

    for place, at, size in sent:
        run(at)
        agenda.enter(lanes[place], way, at, size, (at, size))
    run(2**62)
    assert all(lane.held == 0 and not lane.queue for lane in lanes)
    return left


SENT = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20 * MS), st.integers(0, 100_000)), max_size=60)


@given(
    SENT,
    st.integers(0, 100 * MS),
    st.integers(0, 100 * MS),
    st.none() | st.integers(10_000, 10**9),
    st.integers(),
)
def test_order_delay_and_bandwidth_hold_for_any_traffic(gaps, delay, jitter, per_s, seed):
    jitter = min(jitter, delay)
    at, sent = 0, []
    for place, gap, size in gaps:
        at += gap
        sent.append((place, at, size))
    lanes = [Lane() for _ in range(3)]
    left = play(Way(delay, jitter, per_s, random.Random(seed).random), sent, lanes)
    for place, rows in left.items():
        assert [(t, size) for t, _, size in rows] == [(t, size) for p, t, size in sent if p == place]
        times = [out for _, out, _ in rows]
        assert times == sorted(times)
        assert all(out >= into + delay - jitter for into, out, _ in rows)
    if per_s is None and jitter == 0:
        assert all(out == into + delay for rows in left.values() for into, out, _ in rows)
    if per_s is not None and jitter == 0:
        # of all that left between two moments, all but the first had to be sent in between
        every = sorted((out, size) for rows in left.values() for _, out, size in rows)
        for (first, _), (last, _) in itertools.combinations(every[:: max(1, len(every) // 8)], 2):
            carried = sum(size for out, size in every if first < out <= last)
            assert carried <= per_s * (last - first) / 1e9 + 1


def test_a_link_sends_one_after_the_other_then_they_travel():
    """10 MB/s: 10 kB take 1 ms; the second waits for the first; both travel 100 ms."""
    lanes = [Lane(), Lane()]
    left = play(Way(100 * MS, 0, 10**7, half), [(0, 0, 10_000), (1, 0, 10_000), (0, 50 * MS, 10_000)], lanes)
    assert left[0] == [(0, 101 * MS, 10_000), (50 * MS, 151 * MS, 10_000)]
    assert left[1] == [(0, 102 * MS, 10_000)]


def test_jitter_spreads_evenly_around_the_delay():
    chance = random.Random(1).random
    way = Way(100 * MS, 5 * MS, None, chance)
    taken = [way.leaves_ns(i * S, 100, 0) - i * S for i in range(4000)]
    assert min(taken) == pytest.approx(95 * MS, rel=0.001)
    assert max(taken) == pytest.approx(105 * MS, rel=0.001)
    assert sum(taken) / len(taken) == pytest.approx(100 * MS, rel=0.002)
    assert sum(t < 97.5 * MS for t in taken) / len(taken) == pytest.approx(0.25, abs=0.03)


def test_what_a_receiver_does_not_take_stays_and_keeps_its_order():
    agenda, lane, way = Agenda(), Lane(), Way(MS, 0, None, half)
    agenda.enter(lane, way, 0, 10, "a")
    lane.clogged = True
    assert list(agenda.due(MS)) == [lane]
    agenda.enter(lane, way, MS, 10, "b")
    assert agenda.next_ns is None
    assert lane.held == 20
    lane.clogged = False
    agenda.list(lane)
    assert agenda.next_ns == MS
    assert [lane.take(5 * MS), lane.take(5 * MS), lane.take(5 * MS)] == [(MS, "a"), (2 * MS, "b"), None]


def test_pieces_and_windows_follow_the_bandwidth():
    assert Way(0, 0, None, half).instant
    assert not Way(1, 0, None, half).instant
    wide, narrow = Way(100 * MS, 0, None, half), Way(100 * MS, 0, 10**7, half)
    assert (wide.piece, wide.window) == (65536, 4 << 20)
    assert (narrow.piece, narrow.window) == (10_000, 10**6 + (1 << 18))
