"""Where an execution has a fixed cost, dynamic batching decides: on against off at equal load."""

import pytest

from tests.bench.batching import markdown, rows, served_config

pytestmark = [pytest.mark.live, pytest.mark.slow]


def test_batching_on_against_off_at_equal_load(triton, tmp_path):
    config = served_config(triton.grpc_target)
    try:
        found = rows(triton, config, tmp_path, 4)
    finally:
        triton.unload("slow")
        triton.load("slow")
    (_, _, *low_off), (_, _, *low_on), (_, _, *off), (_, _, *on) = found
    # what one request an execution can do is 50/s: it keeps up with 40/s, and not with 200/s
    assert low_off[3] == off[3] == 1
    assert low_on[3] > 1
    assert on[3] > 2.5
    assert off[0] < 50
    assert on[0] > 2.5 * off[0]
    assert low_on[2] < low_off[2]
    assert 5 * on[2] < off[2]
    assert "| 200/s | on |" in markdown(found)
