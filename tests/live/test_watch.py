"""The server along a run, on a real Triton: what was looked at on the way agrees with what is known of the model."""

import pytest

from loadgen.analysis.summary import summarise
from loadgen.lab.run import Order, measure
from loadgen.lab.watch import beside
from loadgen.target import parse_target
from loadgen.traffic.profile import parse_profile

pytestmark = pytest.mark.live

PROFILE = """
name: watched
kinds: {k: {model: slow, timeout: 10s}}
phases: [{name: eight, closed: {users: 8, duration: 6s}}]
"""


def test_a_run_tells_how_busy_the_server_was(triton, tmp_path):
    """`slow` takes 50 ms for up to 4: eight users keep it busy with fours, and four of them wait."""
    order = Order(
        profile=parse_profile(PROFILE, "p.yaml"),
        target=parse_target(triton.grpc_target),
        seed=1,
        out=tmp_path / "run",
        command=[],
        beside=beside(triton.server.facts),
    )
    server = summarise(measure(order).path)["server"]
    assert server["busy"] > 0.8
    assert server["by_batch"]["4"]["mean_ns"] == pytest.approx(51e6, rel=0.2)
    split = server["split_ns"]
    assert split["infer"] == pytest.approx(50e6, rel=0.2)
    assert split["queue"] == pytest.approx(50e6, rel=0.3)
    little = server["in_flight"]
    assert little["client"] == pytest.approx(8, rel=0.1)
    assert little["server"] == pytest.approx(little["client"], rel=0.1)
    seen = server["watched"]
    assert seen["looks"] >= 2
    assert (seen["failed_looks"], seen["resets"]) == (0, [])
    assert seen["pending"]["max"] <= 8
    assert 0 < seen["cpu_cores"] < 2
    assert seen["memory_bytes"] > 50e6
    assert seen["timeline"][-1]["mean_batch"] == pytest.approx(4, abs=0.3)
    assert seen["timeline"][-1]["ok_per_s"] == pytest.approx(78, rel=0.25)
