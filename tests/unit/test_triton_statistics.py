"""Windows of server counters."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.triton.statistics import ServerWindow, Tally, merge, window


def reading(*, success=0, fail=0, queue_ns=0, compute_ns=0, batches=None, hits=0):
    """A server that only ever ran whole batches; each request is one row and is charged its whole batch."""
    batches = batches or {}
    return {
        "name": "m",
        "version": "1",
        "inference_count": sum(size * count for size, (count, _) in batches.items()),
        "execution_count": sum(count for count, _ in batches.values()),
        "inference_stats": {
            "success": {"count": success, "ns": queue_ns + compute_ns},
            "fail": {"count": fail, "ns": 0},
            "queue": {"count": success, "ns": queue_ns},
            "compute_input": {"count": success - hits, "ns": compute_ns // 4},
            "compute_infer": {"count": success - hits, "ns": compute_ns - compute_ns // 4 - compute_ns // 5},
            "compute_output": {"count": success - hits, "ns": compute_ns // 5},
            "cache_hit": {"count": hits, "ns": 0},
            "cache_miss": {"count": 0, "ns": 0},
        },
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": {"count": count, "ns": ns // 2},
                "compute_infer": {"count": count, "ns": ns - ns // 2},
                "compute_output": {"count": count, "ns": 0},
            }
            for size, (count, ns) in batches.items()
        ],
    }


def test_figures_are_differences_not_totals():
    before = reading(success=10, queue_ns=1000, compute_ns=5000, batches={1: (10, 5000)})
    after = reading(
        success=30,
        fail=2,
        queue_ns=5000,
        compute_ns=45_000,
        batches={1: (14, 7000), 4: (2, 1600), 8: (1, 900)},
    )
    done = window(before, after)
    assert done.batch_sizes == {1: 4, 4: 2, 8: 1}
    assert (done.inferences, done.executions, done.success.count, done.failed.count) == (20, 7, 20, 2)
    assert done.mean_batch == pytest.approx(20 / 7)
    assert done.queue_ns_mean == 200
    assert done.compute_ns_mean == 2000
    assert done.batches == {1: Tally(4, 2000), 4: Tally(2, 1600), 8: Tally(1, 900)}
    assert not done.went_back


def test_eight_hundred_rows_in_a_hundred_batches_is_a_mean_of_eight():
    done = window(reading(), reading(success=800, batches={8: (100, 1)}))
    assert done.mean_batch == 8.0


def test_nothing_measured_is_none_never_zero():
    same = reading(success=7, queue_ns=70, compute_ns=700, batches={1: (7, 700)})
    done = window(same, same)
    assert (done.mean_batch, done.queue_ns_mean, done.compute_ns_mean) == (None,) * 3
    assert done.batch_sizes == {}
    assert done.success.count == 0


@pytest.mark.parametrize(
    "after",
    [
        reading(success=3, batches={1: (3, 30)}),
        reading(success=50, batches={2: (25, 250)}),  # size 1 vanished: reloaded, then busier than before
        None,  # unloaded
    ],
)
def test_counters_that_fell_tell_nothing(after):
    done = window(reading(success=10, batches={1: (10, 100)}), after)
    assert done == ServerWindow(went_back=True)


def test_a_version_loaded_within_the_window_counts_whole():
    assert window(None, reading(success=6, batches={2: (3, 30)})).batch_sizes == {2: 3}
    assert window(None, None) == ServerWindow()


def test_cache_hits_are_requests_but_no_batches():
    done = window(reading(), reading(success=10, hits=4, batches={2: (3, 30)}, queue_ns=100, compute_ns=60))
    assert (done.cache_hits, done.success.count, done.inferences) == (4, 10, 6)
    assert done.compute_ns_mean == 10  # over the six that were computed


def test_fields_a_server_leaves_out_are_nothing():
    assert (
        window({"name": "m"}, {"name": "m", "inference_count": "5", "execution_count": "5"}).mean_batch == 1.0
    )


tallies = st.dictionaries(
    st.integers(1, 16), st.tuples(st.integers(0, 1000), st.integers(0, 10**9)), max_size=5
)
steps = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 10**9), st.integers(0, 10**9), tallies),
    min_size=2,
    max_size=6,
)


@given(steps)
def test_windows_one_after_another_add_up_to_the_whole(increments):
    readings, batches, success, queue_ns, compute_ns = [reading()], {}, 0, 0, 0
    for more, q, c, sizes in increments:
        success, queue_ns, compute_ns = success + more, queue_ns + q, compute_ns + c
        for size, (count, ns) in sizes.items():
            old = batches.get(size, (0, 0))
            batches[size] = (old[0] + count, old[1] + ns)
        readings.append(
            reading(success=success, queue_ns=queue_ns, compute_ns=compute_ns, batches=dict(batches))
        )
    parts = [window(a, b) for a, b in pairwise(readings)]
    whole = window(readings[0], readings[-1])
    merged = merge(parts)
    assert merged.batch_sizes == whole.batch_sizes
    assert {s: t for s, t in merged.batches.items() if t != Tally()} == dict(whole.batches)
    for figure in ("inferences", "executions", "success", "queue", "compute", "mean_batch"):
        assert getattr(merged, figure) == getattr(whole, figure), figure
    assert sum(size * count for size, count in whole.batch_sizes.items()) == whole.inferences


def test_one_that_went_back_taints_the_merged():
    good = window(reading(), reading(success=4, batches={4: (1, 10)}))
    assert merge([good, ServerWindow(went_back=True), good]) == ServerWindow(went_back=True)
    assert merge([]) == ServerWindow()


def test_counters_that_are_no_numbers_tell_nothing():
    for odd in (
        {"inference_count": "x"},
        {"inference_stats": 5},
        {"batch_stats": [{}]},
        {"batch_stats": "x"},
    ):
        assert window({}, odd).went_back
        assert window(odd, {}).went_back
