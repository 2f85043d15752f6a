"""Which payload variants a plan needs, and which of them each arrival sends."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.records import PhasePlan, Plan, Wanted
from loadgen.workload import demand as module
from loadgen.workload.demand import demand, extremes


def phase(kinds, lengths=None):
    draw = np.random.default_rng(1).integers(0, 2**32, len(kinds), np.uint32)
    length = None if lengths is None else np.array(lengths, np.int32)
    return PhasePlan("p", "open", True, 1, np.arange(len(kinds)), np.array(kinds, np.int16), draw, length)


def plan(*phases, kinds=2):
    return Plan(1, tuple("abcdef"[:kinds]), phases)


def test_variants_in_order_are_sent_one_after_the_other_from_the_first_in_each_phase():
    needed = demand(plan(phase([0, 1, 0, 0, 1, 0]), phase([0, 0])), [3, 100], [True, False])
    assert needed.wanted == ((Wanted(None),) * 3, (Wanted(None),) * 2)
    assert [pick for pick in needed.picks[0].tolist() if pick < 3] == [0, 1, 2, 0]
    assert needed.picks[1].tolist() == [0, 1]


def test_variants_that_are_not_to_be_repeated_go_on_from_phase_to_phase():
    whole = plan(phase([0, 1, 0, 0, 1, 0]), phase([0, 0, 1]), phase([0, 0]))
    needed = demand(whole, [100, 2], [False, True], [True, False])
    assert [len(wants) for wants in needed.wanted] == [8, 2]
    assert [picks.tolist() for picks in needed.picks] == [[0, 8, 1, 2, 9, 3], [4, 5, 8], [6, 7]]


def test_the_shortest_and_the_longest_of_each_kind():
    whole = plan(phase([0, 1, 0], [5, -1, 9]), phase([0, 1], [3, -1]), phase([1]), kinds=3)
    assert extremes(whole) == [(Wanted(3), Wanted(9)), (), ()]


@pytest.mark.parametrize("chunk", [1, 3, 2**19])
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3)), min_size=1, max_size=40))
def test_each_length_has_its_own_turns_however_the_plan_is_cut(monkeypatch_chunk, chunk, rows):
    monkeypatch_chunk(chunk)
    whole = plan(phase([kind for kind, _ in rows], [length for _, length in rows]))
    needed = demand(whole, [4, 4], [True, True])
    flat = [(kind, want) for kind, wants in enumerate(needed.wanted) for want in wants]
    sent = {}
    for (kind, length), pick in zip(rows, needed.picks[0].tolist(), strict=True):
        assert flat[pick] == (kind, Wanted(length))
        sent.setdefault((kind, length), []).append(pick)
    for picks in sent.values():
        n = len({pick for pick in range(len(flat)) if flat[pick] == flat[picks[0]]})
        assert picks == [min(picks) + turn % n for turn in range(len(picks))]


@pytest.fixture(scope="module")
def monkeypatch_chunk():
    kept = module._CHUNK
    yield lambda chunk: setattr(module, "_CHUNK", chunk)
    module._CHUNK = kept
