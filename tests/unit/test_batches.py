"""Batches out of stamps, and the rule that closed each: the behaviours of Triton's batcher, by values."""

import pytest

from loadgen.analysis.batches import Scheduling, rebuild, scheduling
from loadgen.triton.facts import instance_count
from loadgen.triton.trace import Timeline

MS = 10**6
S100 = 100 * MS


def batches(groups, config, service=S100):
    """`groups`: (start in ms, arrivals in ms, over) of each batch; rules and batches as they were rebuilt."""
    rows = [
        Timeline("m", "1", round(at * MS), start * MS, start * MS + service, start * MS + service, **told)
        for start, arrivals, *over in groups
        for told in [over[0] if over else {}]
        for at in arrivals
    ]
    return rebuild(rows[::-1], config)


def rules(found):
    return [(one.rows, one.rule) for one in found]


FIRST = (0, [-0.1])
EVERY = [1 + i for i in range(20)]  # 20 requests, a ms apart, behind one at 0


def spread(sizes, gap=101):
    """One at 0, then the 20 of EVERY in batches of these sizes, one execution after the other."""
    groups, at = [FIRST], 0
    for place, size in enumerate(sizes, 1):
        groups.append((place * gap, EVERY[at : at + size]))
        at += size
    return groups


def test_default_batches_are_full_and_then_all_that_waited():
    found = batches(spread([8, 8, 4]), Scheduling(8, dynamic=True))
    assert rules(found) == [(1, "all waiting"), (8, "full"), (8, "full"), (4, "all waiting")]
    assert [one.left for one in found] == [0, 12, 4, 0]
    assert found[1].requests == 8
    assert found[1].queued_ns == sum(101 - at for at in EVERY[:8]) * MS
    assert found[1].company_ns == 8 * MS  # free since 100, begun at 101
    assert found[1].idle_ns == MS


def test_a_preferred_size_cuts_while_others_wait():
    found = batches(spread([4, 4, 4, 4, 4]), Scheduling(8, dynamic=True, preferred=(4,)))
    assert rules(found)[1:] == [(4, "preferred size")] * 4 + [(4, "all waiting")]


def test_the_smallest_preferred_size_seals_the_first_waiting_batch():
    found = batches(spread([4, 8, 8]), Scheduling(8, dynamic=True, preferred=(4,)))
    assert rules(found)[1:] == [(4, "preferred size"), (8, "full"), (8, "full")]


def test_the_delay_is_named_where_an_instance_was_free():
    config = Scheduling(8, dynamic=True, delay_ns=30 * MS)
    found = batches([(31, [0, 5, 10])], config)
    assert rules(found) == [(3, "delay expired")]
    assert found[0].company_ns == (31 + 26 + 21) * MS
    # the instance was busy until after the delay: nobody waited for company
    busy = batches([(0, [-0.1]), (101, [1, 2])], Scheduling(8, dynamic=True, delay_ns=30 * MS))
    assert busy[1].rule == "all waiting"
    # a preferred size ends the wait
    early = batches([(10, [0, 3, 6, 9])], Scheduling(8, dynamic=True, delay_ns=30 * MS, preferred=(4,)))
    assert early[0].rule == "preferred size"


def test_shapes_that_differ_close_a_batch_unless_ragged():
    three, five = {"rows": 1, "shapes": {"X": (3,)}}, {"rows": 1, "shapes": {"X": (5,)}}
    groups = [(0, [-0.1], three)] + [(101 * (i + 1), [1 + i], five if i % 2 else three) for i in range(4)]
    config = Scheduling(8, dynamic=True)
    assert rules(batches(groups, config))[1:] == [(1, "shape mismatch")] * 3 + [(1, "all waiting")]
    ragged = Scheduling(8, dynamic=True, ragged=frozenset({"X"}))
    assert {rule for _, rule in rules(batches(groups, ragged))[1:4]} == {"bound early"}
    # unknown shapes are not guessed
    silent = [(start, at) for start, at, _ in groups]
    assert "shape mismatch" not in {one.rule for one in batches(silent, config)}


def test_requests_are_never_split():
    five = {"rows": 5}
    found = batches([(0, [-0.1], five), (101, [1], five), (202, [2], five)], Scheduling(8, dynamic=True))
    assert rules(found) == [(5, "all waiting"), (5, "client batch"), (5, "all waiting")]
    assert found[1].left == 5


def test_an_instance_that_sleeps_while_requests_wait_is_a_stall():
    config = Scheduling(8, dynamic=True, prefetch=False)
    found = batches([(0, [-0.1]), (500, [1, 2])], config)
    assert found[1].rule == "stalled"
    assert found[1].idle_ns == 400 * MS
    # with two instances the second was free all along
    two = batches([(0, [-0.1]), (400, [1, 2])], Scheduling(8, dynamic=True, instances=2))
    assert two[1].idle_ns == 399 * MS


def test_padding_is_counted_by_the_longest_row():
    rows = [Timeline("m", "1", i, 10, 20, 20, 1, length, {}) for i, length in enumerate((10, 40, 30))]
    [batch] = rebuild(rows, Scheduling(8, dynamic=True))
    assert (batch.tokens, batch.padded) == (80, 120)


def test_rejected_requests_leave_the_queue_when_they_end():
    rows = [
        Timeline("m", "1", 0, 10, 110, 110),
        Timeline("m", "1", 5, None, None, 50),
        Timeline("m", "1", 6, 120, 220, 220),
    ]
    found = rebuild(rows, Scheduling(8, dynamic=True))
    assert [(one.rows, one.left) for one in found] == [(1, 2), (1, 0)]


def test_a_configuration_says_how_batches_are_made():
    config = {
        "max_batch_size": 8,
        "input": [{"name": "A", "allow_ragged_batch": True}, {"name": "B"}],
        "instance_group": [{"count": 2, "gpus": [0, 1]}, {"count": 1}],
        "dynamic_batching": {"preferred_batch_size": [8, 4], "max_queue_delay_microseconds": 100},
    }
    assert scheduling(config) == Scheduling(8, True, (4,), 100_000, 5, True, frozenset({"A"}))
    assert instance_count({}) is None
    assert instance_count(None) is None
    assert not scheduling({"max_batch_size": 8}).dynamic
    for policy in (
        {"priority_levels": 2},
        {"default_queue_policy": {"max_queue_size": 10}},
        {"default_queue_policy": {"default_timeout_microseconds": "10"}},
        {"priority_queue_policy": {"1": {"allow_timeout_override": True}}},
    ):
        assert not scheduling({"max_batch_size": 8, "dynamic_batching": policy}).prefetch


@pytest.mark.parametrize("count", [0, 1])
def test_few_requests(count):
    assert len(rebuild([Timeline("m", "1", 0, 1, 2, 3)] * count, Scheduling(1, dynamic=False))) == count
