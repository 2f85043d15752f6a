"""`loadgen compare --live` on a real Triton: a configuration with itself, and a batching delay that is known."""

import pytest

from tests.support.cli import loadgen

pytestmark = [pytest.mark.live, pytest.mark.slow]

PROFILE = """
kinds: {k: {model: slow, timeout: 10s}}
phases:
  - {name: warm-up, warmup: true, closed: {users: 1, requests: 5}}
  - {name: load, open: {arrivals: uniform, rate: [{duration: 4s, at: 5/s}]}}
"""
SMALL = """
kinds: {k: {model: identity, length: 16}}
phases:
  - {name: warm-up, warmup: true, closed: {users: 1, requests: 50}}
  - {name: load, open: {arrivals: poisson, rate: [{duration: 3s, at: 100/s}]}}
"""


@pytest.mark.parametrize("seed", range(5))
def test_a_server_does_not_differ_from_itself(tmp_path, triton, seed):
    (tmp_path / "p.yaml").write_text(SMALL)
    said = loadgen("compare", "--live", tmp_path / "p.yaml", "--target", triton.grpc_target, "--target", triton.grpc_target,
                   "--seed", seed, "--out", tmp_path / "out", "--json", "-q")  # fmt: skip
    assert said.code in (0, 3), said.err
    (pair,) = said.json["pairs"]
    assert {one["change"] for one in pair["figures"]} <= {"undecided", "no_difference", "not_judged", "small"}


def test_a_delay_of_20_ms_is_seen(tmp_path, triton):
    """At one request at a time every one waits for the whole delay."""
    (tmp_path / "p.yaml").write_text(PROFILE)
    said = loadgen("compare", "--live", tmp_path / "p.yaml", "--target", triton.http_target, "--config", "{delay: 0ms}",
                   "--config", "{delay: 20ms}", "--out", tmp_path / "out", "--figure", "latency p50", "--figure",
                   "service mean", "--json", "-q")  # fmt: skip
    assert said.code == 1, said.err
    (pair,) = said.json["pairs"]
    for one in pair["figures"]:
        assert one["change"] == "worse"
        assert one["effect"]["difference"]["value"] == pytest.approx(20e6, rel=0.15)
    assert any(one["aspect"] == "model" for one in pair["differences"])
