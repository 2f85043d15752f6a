"""Idle while pending on a real Triton: prefetch switched off makes the batcher sleep with requests waiting.

Over gRPC: the HTTP front end of Triton 2.51 has died of signal 11 here under this load while it traced.
"""

import json

import pytest

from tests.live.test_explain import configure
from tests.support.cli import loadgen

pytestmark = [pytest.mark.live, pytest.mark.slow]

PROFILE = """
name: stalls
kinds: {k: {model: lab, length: 3, timeout: 20s}}
phases: [{name: users, closed: {users: 32, duration: 6s}}]
"""


def measure(triton, tmp_path, **batcher):
    configure(triton, sleep_ms=20, batcher=batcher)
    (tmp_path / "p.yaml").write_text(PROFILE)
    out = tmp_path / "run"
    answer = loadgen("run", tmp_path / "p.yaml", "--target", triton.grpc_target, "--out", out, "--trace-server",
                     "--json", "-q")  # fmt: skip
    summary = answer.json
    [story] = loadgen("explain", out, "--json").json
    return summary, story


def test_a_queue_policy_makes_the_server_sleep_and_it_is_found(triton, tmp_path):
    summary, story = measure(triton, tmp_path, default_queue_policy={"max_queue_size": 1000})
    [doubt] = [d for d in summary["doubts"] if d["code"] == "idle_while_pending"]
    assert "no request succeeded although some were in flight" in doubt["text"]
    # the server's own stamps say the same: an instance was free, requests were queued
    assert story["stalls"]
    assert not story["prefetch"]
    for stall in summary["stalls"]:
        assert stall["in_flight"] > 0
        inside = [
            s for s in story["stalls"] if s["start_ns"] < stall["end_ns"] and s["end_ns"] > stall["start_ns"]
        ]
        assert inside, (stall, story["stalls"])
    assert "prefetch off" in json.dumps(story["advice"])


def test_the_default_configuration_does_not(triton, tmp_path):
    summary, story = measure(triton, tmp_path)
    assert "stalls" not in summary, summary["stalls"]
    assert story["stalls"] == []
    assert story["prefetch"]
    assert set(story["rules"]) <= {"full", "all waiting", "bound early"}
