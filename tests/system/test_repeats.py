"""Several runs judged together: --repeat, --until-sure, reports of several folders."""

import json
import signal
import time

import pytest

from tests.support.cli import loadgen, spawn
from tests.support.kserve_mock import Mock

PROFILE = """
name: p
seed: 5
kinds: {k: {model: m, length: 4, timeout: 5s}}
phases:
  - {name: load, closed: {users: 4, duration: %s}}
objectives: ["latency p50 < %s"]
"""


def write(tmp_path, duration="300ms", limit="5s"):
    path = tmp_path / "p.yaml"
    path.write_text(PROFILE % (duration, limit))
    return path


def test_three_runs_are_judged_together_and_shown_each(tmp_path):
    out = tmp_path / "r"
    with Mock() as mock:
        answer = loadgen(
            "run", write(tmp_path), "--target", mock.target, "--repeat", 3, "--out", out, "--json", "-q"
        )
    summary = answer.json
    assert (answer.code, len(summary["runs"])) == (0, 3)
    folders = [out / str(number) for number in (1, 2, 3)]
    each = [json.loads((folder / "run.json").read_text()) for folder in folders]
    assert [info["seed"] for info in each] == [5, 6, 7]
    assert summary["slo"][0]["n"] == sum(run["ok"] for run in summary["runs"])
    assert summary["total"]["counts"]["ok"] == summary["slo"][0]["n"]
    assert summary == {"run": summary["run"], **json.loads((out / "summary.json").read_text())} | {
        "run": summary["run"]
    }
    assert "Each run" in (out / "report.html").read_text()
    again = loadgen("report", out)
    assert again.code == 0
    assert [line.split()[:2] for line in again.out.splitlines() if line.startswith("run ")] == [
        ["run", "1"], ["run", "2"], ["run", "3"],
    ]  # fmt: skip
    by_hand = loadgen("report", *folders, "--json")
    assert by_hand.json["slo"] == summary["slo"]
    checked = loadgen("check", *folders, "--objective", "latency p50 < 1us", "--json")
    assert (checked.code, checked.json["slo"][0]["verdict"]) == (1, "fail")


def test_an_interrupt_in_the_second_run_keeps_and_reports_the_first(tmp_path):
    out = tmp_path / "r"
    with Mock() as mock:
        process = spawn("run", write(tmp_path, "2s"), "--target", mock.target, "--repeat", 3, "--out", out)
        end = time.monotonic() + 30
        while not (out / "2" / "records.arrow").exists() and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        text, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    journal = json.loads((out / "repeat.json").read_text())
    assert (journal["status"], journal["runs"]) == ("interrupted", ["1"])
    assert (out / "cut-2" / "run.json").exists()
    assert "latency from due" in text
    assert loadgen("report", out).code == 0


def test_runs_are_repeated_until_the_objective_is_decided(tmp_path):
    with Mock() as mock:
        answer = loadgen("run", write(tmp_path), "--target", mock.target, "--until-sure", "20s", "--out", tmp_path / "r",
                         "--json", "-q")  # fmt: skip
    looked, row = answer.json["until_sure"], answer.json["slo"][0]
    assert (answer.code, looked["decided"], row["verdict"]) == (0, True, "pass")
    assert looked["runs"] <= 12
    assert looked["alpha"] < 0.05
    assert row["level"] == pytest.approx(1 - looked["alpha"], abs=1e-5)


def test_what_is_undecided_at_the_limit_says_so(tmp_path):
    """Every other request takes long: the median lies on neither side of a limit between them."""
    profile = write(tmp_path, limit="20ms")
    with Mock(lambda n: (0.04 * (n % 2), 200, None)) as mock:
        answer = loadgen(
            "run", profile, "--target", mock.target, "--until-sure", "3s", "--out", tmp_path / "r"
        )
    assert answer.code == 3
    assert "undecided within 3 seconds" in answer.out
    journal = json.loads((tmp_path / "r" / "repeat.json").read_text())
    spent = sum(look["alpha"] for look in journal["until_sure"]["looks"])
    assert spent == pytest.approx(0.05) or spent < 0.05
    assert len(journal["runs"]) > 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--repeat", "2", "--until-sure", "1s"], "give one of them"),
        (["--until-sure", "soon"], "--until-sure"),
        (["--objective", "latency p99", "--repeat", "2"], "cannot be read"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(tmp_path, options, said):
    with Mock() as mock:
        answer = loadgen("run", write(tmp_path), "--target", mock.target, "--out", tmp_path / "r", *options)
        assert (answer.code, mock.requests) == (2, 0)
    assert said in answer.err
    assert not (tmp_path / "r").exists()


def test_runs_of_other_kinds_are_not_judged_together(tmp_path):
    other = tmp_path / "q.yaml"
    other.write_text((PROFILE % ("200ms", "5s")).replace("k:", "other:"))
    with Mock() as mock:
        for number, profile in enumerate((write(tmp_path, "200ms"), other)):
            loadgen("run", profile, "--target", mock.target, "--out", tmp_path / str(number), "-q")
    answer = loadgen("report", tmp_path / "0", tmp_path / "1")
    assert answer.code == 2
    assert "kinds are not those of" in answer.err
