"""A run under network conditions: what its figures gain, and what becomes of it when the relay does not last."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.cli import loadgen, spawn
from tests.support.kserve_mock import Mock

PROFILE = """
name: t
kinds: {k: {model: m, length: 4, timeout: 10s}}
%s
phases: [{name: load, open: {arrivals: uniform, rate: [{duration: %s, at: 50/s}]}}]
"""


def ran(tmp_path, name, network, *options, duration="2s"):
    path = tmp_path / f"{name}.yaml"
    path.write_text(PROFILE % (network, duration))
    with Mock() as mock:
        return loadgen("run", path, "--target", mock.target, "--out", tmp_path / name, "--json", *options)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_median_rises_by_the_round_trip_within_5_percent(tmp_path, workers):
    """delay 100 ms each way: 200 ms more; and the relay's own cost is in run.json."""
    options = ("--workers", str(workers))
    plain = ran(tmp_path, "plain", "", *options)
    slow = ran(tmp_path, "slow", "network: {delay: 100ms}", *options)
    p50 = [run.json["total"]["latency_ns"]["p50"] for run in (plain, slow)]
    assert 190e6 <= p50[1] - p50[0] <= 210e6
    assert slow.json["total"]["counts"]["ok"] == 100
    network = slow.json["network"]
    assert (network["by"], network["delay_ns"], network["round_trip_ns"]) == (
        "relay",
        100_000_000,
        200_000_000,
    )
    assert network["calibration"]["n"] == 400
    assert network["relay"]["connections"] >= 1
    assert network["relay"]["late_ns"]["n"] >= 200
    assert slow.json["first_request_ns"]["k"] >= 200e6
    assert "100 ms each way (a round trip takes 200 ms more)" in slow.err


def relay_of(pid):
    """The relay among a process's children."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                if b"relay_process" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        time.sleep(0.02)
    raise AssertionError("no relay")


def started(tmp_path, mock):
    """A run under way, and its relay."""
    path, out = tmp_path / "p.yaml", tmp_path / "run"
    path.write_text(PROFILE % ("network: {delay: 20ms}", "30s"))
    process = spawn("run", path, "--target", mock.target, "--out", out, "--json", "-q")
    deadline = time.monotonic() + 30
    while not (out / "progress.jsonl").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    return process, relay_of(process.pid)


def gone(pid):
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return True


def test_a_relay_that_dies_ends_the_run_with_a_clear_error(tmp_path):
    with Mock() as mock:
        process, relay = started(tmp_path, mock)
        os.kill(relay, signal.SIGKILL)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 3
    assert (
        "the relay that makes the network's conditions ended before the run did (killed by signal 9)" in err
    )
    assert "Traceback" not in err


def test_the_relay_ends_with_an_interrupted_run_and_its_facts_are_kept(tmp_path):
    with Mock() as mock:
        process, relay = started(tmp_path, mock)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert gone(relay)
    assert '"late_ns"' in out


def test_loss_and_other_transports_are_refused_before_anything_is_sent(tmp_path):
    answer = ran(tmp_path, "loss", "network: {delay: 1ms, loss: 1%}")
    assert answer.code == 2
    assert "network.loss: only the kernel's netem can lose packets" in answer.error_lines[0]
    answer = ran(tmp_path, "reference", "network: {delay: 1ms}", "--transport", "reference")
    assert answer.code == 2
    assert "goes through no relay; use --transport wire" in answer.error_lines[0]
