"""What a real Triton's batcher does with one request and then 20 more, and that `explain` names the rule.

The surprising batches of the dynamic batcher, one configuration a test: a sleep of 250 ms an execution, one request at
0 and 20 from 20 ms on, 5 ms apart, so that all 20 wait for the first.
"""

import pytest

from tests.support.cli import loadgen

pytestmark = [pytest.mark.live, pytest.mark.slow]

QUEUED = [20 + 5 * i for i in range(20)]
PROFILE = """
name: lab
kinds: {k: {model: lab, batch: %d, timeout: 20s}}
phases: [{name: rows, trace: {file: rows.csv, kind: k, columns: {time: t, input: n}, unit: ms}}]
"""


@pytest.fixture
def lab(triton, tmp_path):
    """`lab(changes, arrivals, lengths, batch)` reloads the model, sends, and gives back the story of its batches."""

    def go(changes=None, arrivals=(0, *QUEUED), lengths=(3,), batch=1, grpc=False):
        configure(triton, **(changes or {}))
        rows = [f"{at},{lengths[i % len(lengths)]}" for i, at in enumerate(arrivals)]
        (tmp_path / "rows.csv").write_text("t,n\n" + "\n".join(rows) + "\n")
        (tmp_path / "p.yaml").write_text(PROFILE % batch)
        out = tmp_path / "run"
        target = triton.grpc_target if grpc else triton.http_target
        answer = loadgen("run", tmp_path / "p.yaml", "--target", target, "--out", out, "--trace-server", "-q")
        assert "rows" in answer.out, answer
        told = loadgen("explain", out, "--json")
        assert told.code == 0, told
        [story] = told.json
        return story

    return go


def configure(triton, sleep_ms=250, batcher=None, ragged=False, **changes):
    """Unloads first: a reload keeps the old copy at work for another second."""
    tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
    config = {
        "name": "lab", "backend": "python", "max_batch_size": 8, "dynamic_batching": batcher or {},
        "input": [{"name": "INPUT", "allow_ragged_batch": ragged, **tensor}],
        "output": [{"name": "OUTPUT", **tensor}],
        "instance_group": [{"kind": "KIND_CPU", "count": 1}],
        "parameters": {"sleep_ms": {"string_value": str(sleep_ms)}},
    }  # fmt: skip
    triton.unload("lab")
    triton.load("lab", config | changes)


def told(story):
    """{rule: (batches, rows in all)}."""
    return {
        rule: (one["batches"], round(one["batches"] * one["mean_rows"]))
        for rule, one in story["rules"].items()
    }


@pytest.mark.parametrize("grpc", [False, True])
def test_default(lab, grpc):
    story = lab(grpc=grpc)
    assert told(story) == {"full": (2, 16), "all waiting": (2, 5)}
    assert story["sizes"] == {"1": 1, "4": 1, "8": 2}
    assert story["requests"] == 21
    assert story["rules"]["full"]["mean_left"] == 8  # 12 behind the first, 4 behind the second
    assert story["unknown_shapes"] == 0


def test_a_preferred_size_is_a_cap(lab):
    story = lab({"batcher": {"preferred_batch_size": [4]}})
    assert story["sizes"] == {"1": 1, "4": 5}
    assert told(story) == {"preferred size": (4, 16), "all waiting": (2, 5)}
    assert "cap, not a wish" in " ".join(story["advice"])


def test_the_smallest_preferred_size_seals_the_first(lab):
    story = lab({"batcher": {"preferred_batch_size": [4, 8]}})
    assert told(story) == {"preferred size": (1, 4), "full": (2, 16), "all waiting": (1, 1)}


def test_a_queue_policy_binds_late(lab):
    policy = {"default_timeout_microseconds": 10_000_000}
    story = lab({"batcher": {"preferred_batch_size": [4, 8], "default_queue_policy": policy}})
    assert story["sizes"] == {"1": 1, "4": 1, "8": 2}
    assert told(story)["full"] == (2, 16)
    assert not story["prefetch"]


def test_sizes_above_the_preferred_with_a_delay(lab):
    story = lab({"batcher": {"preferred_batch_size": [4], "max_queue_delay_microseconds": 50_000}})
    assert story["rules"]["preferred size"]["mean_rows"] == 4
    assert max(map(int, story["sizes"])) > 4


def test_an_idle_instance_does_not_cut_the_delay_short(lab):
    story = lab({"batcher": {"max_queue_delay_microseconds": 200_000}}, arrivals=(0, 5, 10))
    assert told(story) == {"delay expired": (1, 3)}
    assert 190e6 < story["rules"]["delay expired"]["company_ns_mean"] < 400e6


def test_alternating_lengths_go_alone(lab):
    story = lab({"sleep_ms": 150}, arrivals=(0, *QUEUED[:7]), lengths=(3, 5))
    assert story["sizes"] == {"1": 8}
    assert told(story) == {"shape mismatch": (6, 6), "all waiting": (2, 2)}


def test_grouped_lengths_make_two_batches(lab):
    story = lab(arrivals=(0, *QUEUED[:12]), lengths=[3] * 7 + [5] * 6)
    assert told(story) == {"shape mismatch": (1, 6), "all waiting": (2, 7)}


def test_ragged_input_ignores_lengths_and_pads(lab):
    story = lab({"ragged": True}, arrivals=(0, *QUEUED[:12]), lengths=(3, 5))
    assert told(story) == {"full": (1, 8), "all waiting": (2, 5)}
    assert story["padding"]["tokens"] == 7 * 3 + 6 * 5
    assert story["padding"]["padded"] == 3 + 12 * 5


def test_a_request_is_never_split(lab):
    story = lab(arrivals=(0, *QUEUED[:3]), batch=5)
    assert story["sizes"] == {"5": 4}
    assert told(story) == {"client batch": (2, 10), "all waiting": (2, 10)}


def test_two_instances_share_a_burst(lab):
    """A small batch goes to the first as soon as it is there, what came meanwhile lumps together: 1 + 5, 2 + 4, 3 + 3,
    1 + 1 + 4 and 1 + 2 + 3 have been seen.
    """
    story = lab({"instance_group": [{"kind": "KIND_CPU", "count": 2}]}, arrivals=[0] * 6)
    assert story["instances"] == 2
    sizes = [int(size) for size, count in story["sizes"].items() for _ in range(count)]
    assert sum(sizes) == 6
    assert min(sizes) <= 3 <= max(sizes) < 6  # nobody takes all
    assert set(told(story)) == {"all waiting"}
