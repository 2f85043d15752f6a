"""`loadgen capacity` at a server with four slots: found, at least, below, refused, interrupted and gone on with."""

import json
import signal
import subprocess
import sys
import time

import pytest

from tests.support.cli import ROOT, loadgen, spawn

PROFILE = """
name: slots
kinds: {chat: {model: slots, chat: {}, length: 8, output: 4}}
phases: [{name: not used, closed: {users: 1, requests: 1}}]
objectives: ["latency p90 < 100ms"]
"""


@pytest.fixture(scope="module")
def target():
    """A server of 4 slots that are kept for 20 ms in the mean: 200 requests/s at most."""
    command = [sys.executable, "-m", "tests.support.slots_server", "4", "20", "300"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield f"openai+http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.terminate()


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "slots.yaml"
    path.write_text(PROFILE)
    return path


def test_users_are_searched_and_a_longer_search_keeps_every_probe(profile, target, tmp_path):
    """P90 passes 100 ms between 13 and 14 users: with N the response is Erlang(N - 4, 200/s) + exponential(20 ms)."""
    out = tmp_path / "out"
    short = loadgen("capacity", profile, "--target", target, "--users", "--from", 8, "--probe", "1s",
                    "--within", "3s", "--out", out, "--json", "-q")  # fmt: skip
    first = short.json
    assert (short.code, first["answer"]) == (3, "undecided")
    assert first["objectives"] == ["latency p90 < 100ms"]
    stamps = {
        probe["folder"]: (out / probe["folder"] / "run.json").stat().st_mtime_ns for probe in first["probes"]
    }
    long = loadgen("capacity", "resume", out, "--within", "15s", "--json", "-q")
    result = long.json
    assert result["capacity"]["unit"] == "users"
    assert 10 <= result["capacity"]["value"] <= 18
    assert result["capacity"]["low"] <= result["capacity"]["value"] <= result["capacity"]["high"]
    assert result["probes"][: len(stamps)] == first["probes"]
    assert all((out / name / "run.json").stat().st_mtime_ns == at for name, at in stamps.items())
    assert len(result["probes"]) > len(stamps)
    assert json.loads((out / "result.json").read_text()) == result
    assert "Plotly.newPlot" in (out / "capacity.html").read_text()
    shown = loadgen("capacity", "show", out)
    assert shown.code == long.code
    assert f"{result['capacity']['value']:.0f} users" in shown.out


def test_a_rate_far_beyond_the_server_ends_early(profile, target, tmp_path):
    """At 2,000/s the queue grows by 1,800 a second: the probe ends long before its five seconds."""
    answer = loadgen("capacity", profile, "--target", target, "--from", "2000/s", "--probe", "5s", "--within", "1s",
                     "--out", tmp_path / "out", "--json", "-q")  # fmt: skip
    (probe,) = answer.json["probes"]
    assert (answer.code, probe["saturated"], probe["rate"]) == (3, True, 2000.0)
    assert probe["seconds"] < 4
    assert answer.json["answer"] == "undecided"
    assert answer.json["capacity"]["high"] == 2000.0


def test_an_objective_that_is_never_missed_gives_at_least(profile, target, tmp_path):
    answer = loadgen("capacity", profile, "--target", target, "--users", "--most", 2, "--objective",
                     "latency p90 < 5s", "--probe", "1s", "--out", tmp_path / "out", "-q")  # fmt: skip
    assert answer.code == 0
    assert "at least 2 users at latency p90 < 5s" in answer.out


def test_an_objective_that_one_user_misses_is_below_one_user(profile, target, tmp_path):
    answer = loadgen("capacity", profile, "--target", target, "--users", "--objective", "latency p90 < 1ms",
                     "--probe", "1s", "--out", tmp_path / "out", "--json", "-q")  # fmt: skip
    assert (answer.code, answer.json["answer"], answer.json["capacity"]["high"]) == (1, "below", 1.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--objective", "latency mean < 5ms"), "latency mean < 5ms"),
        (("--objective", "latency p99 in phase peak < 5ms"), "probes have no phases"),
        (("--users", "--from", "2/s"), "--from 2/s"),
        (("--precision", "3"), "--precision 3"),
        (("--within", "0s"), "--within 0s"),
    ],
)
def test_what_cannot_be_searched_is_refused(profile, tmp_path, words, said):
    answer = loadgen("capacity", profile, "--target", "http://127.0.0.1:1", *words, "--out", tmp_path / "out")
    assert (answer.code, len(answer.error_lines)) == (2, 1)
    assert said in answer.error_lines[0]
    assert not (tmp_path / "out").exists()


def test_an_interrupted_search_keeps_its_probes(profile, target, tmp_path):
    out = tmp_path / "out"
    process = spawn("capacity", profile, "--target", target, "--users", "--probe", "1s", "--out", out, "-q")
    end = time.monotonic() + 60
    while time.monotonic() < end and not (out / "capacity.json").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    journal = json.loads((out / "capacity.json").read_text())
    assert journal["status"] == "interrupted"
    assert journal["probes"]
    again = loadgen("capacity", "resume", out, "--within", "1s", "--json", "-q")
    assert again.json["probes"][0]["folder"] == journal["probes"][0]["folder"]


def test_a_folder_of_another_kind_is_no_search(tmp_path):
    answer = loadgen("capacity", "show", tmp_path)
    assert (answer.code, len(answer.error_lines)) == (2, 1)
    assert "not the folder of a capacity search" in answer.error_lines[0]
