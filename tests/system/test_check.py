"""`loadgen check` of runs that a process made against a server: to the end, interrupted, and killed."""

import signal
import time

import pytest

from tests.support.cli import loadgen, spawn
from tests.support.junit import read_junit
from tests.support.kserve_mock import Mock

PROFILE = """
name: t
kinds: {k: {model: m, length: 4, timeout: 2s}}
phases:
  - {name: warm-up, warmup: true, closed: {users: 4, requests: 8}}
  - {name: load, open: {arrivals: uniform, rate: [{duration: DURATION, at: 200/s}]}}
objectives: ["latency p50 < 1s"]
"""


def cut_short(tmp_path, name, how):
    """A run of 30 s that a signal ends after 100 requests."""
    profile = tmp_path / f"{name}.yaml"
    profile.write_text(PROFILE.replace("DURATION", "30s"))
    with Mock(lambda _: (0.001, 200, None)) as mock:
        process = spawn("run", profile, "--target", mock.target, "--out", tmp_path / name, "-q")
        end = time.monotonic() + 20
        while mock.requests < 300:
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(how)
        process.communicate(timeout=20)
    return tmp_path / name


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_was_cut_short_is_told_as_it_is(tmp_path, how):
    path = cut_short(tmp_path, "r", how)
    found = loadgen("check", path, "--json", "--junit", tmp_path / "j.xml")
    read = read_junit(tmp_path / "j.xml")
    (run,) = found.json["runs"]
    assert run["status"] == ("interrupted" if how == signal.SIGINT else "killed")
    assert 0.5 < float(read.root.get("time")) < 20
    assert bool(read.red) == (found.code != 0)
    assert (read.of("measurement is valid") == "pass") == run["valid"]
    assert {doubt["code"] for doubt in run["doubts"]} & {"interrupted", "unfinished"}


def test_two_runs_of_one_server_compare(tmp_path):
    profile = tmp_path / "p.yaml"
    profile.write_text(PROFILE.replace("DURATION", "2s"))
    with Mock(lambda _: (0.005, 200, None)) as mock:
        for name in ("old", "new"):
            assert spawn("run", profile, "--target", mock.target, "--out", tmp_path / name, "-q").wait(
                60
            ) in (0, 3)
    found = loadgen("check", tmp_path / "new", "--baseline", tmp_path / "old", "--no-worse", "latency p50 400%",
                    "--junit", tmp_path / "j.xml", "--json")  # fmt: skip
    read = read_junit(tmp_path / "j.xml")
    (row,) = found.json["baseline"]["comparisons"]
    busy = not (
        found.json["valid"] and found.json["baseline"]["comparable"]
    )  # this machine: then it is no verdict
    assert (found.code, read.of("latency p50 at most 400% above the baseline")) == (
        (3, "error") if busy else (0, "pass")
    )
    assert 0.2 < row["change"] < 5
