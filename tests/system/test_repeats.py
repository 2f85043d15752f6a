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
  - {name: warm, warmup: true, closed: {users: 4, requests: 8}}
  - {name: load, closed: {users: 4, duration: %s}}
objectives: ["%s"]
"""


@pytest.fixture
def profile(tmp_path):
    def write(duration="300ms", objective="failure rate < 10%"):
        path = tmp_path / "p.yaml"
        path.write_text(PROFILE % (duration, objective))
        return path

    return write


def soon(_):
    """Slow enough that the client is not what limits the run."""
    return 0.005, 200, None


def journal_of(out):
    return json.loads((out / "repeat.json").read_text())


def interrupted_in(number, out, mock, command, aside=()):
    """Runs the command until so many runs have begun and one has records, then presses Ctrl-C; (code, out, err)."""
    process = spawn(*command, "--target", mock.target, "--out", out)
    end = time.monotonic() + 30
    needed = [out / str(number) / "records.arrow", *(out / name for name in aside)]
    while not all(path.exists() for path in needed) and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    text, errors = process.communicate(timeout=30)
    return process.returncode, text, errors


def test_three_runs_are_judged_together_and_shown_each(tmp_path, profile):
    out = tmp_path / "r"
    with Mock(soon) as mock:
        answer = loadgen(
            "run", profile(), "--target", mock.target, "--repeat", 3, "--out", out, "--json", "-q"
        )
    summary = answer.json
    assert (answer.code, len(summary["runs"]), summary["run"]["id"]) == (0, 3, "r")
    folders = [out / str(number) for number in (1, 2, 3)]
    each = [json.loads((folder / "run.json").read_text()) for folder in folders]
    assert [info["seed"] for info in each] == [run["seed"] for run in summary["runs"]] == [5, 6, 7]
    assert (
        summary["slo"][0]["n"]
        == summary["total"]["counts"]["ok"]
        == sum(run["ok"] for run in summary["runs"])
    )
    assert summary["between_runs"]["p50_ns"]["mean"] == pytest.approx(
        sum(run["p50_ns"] for run in summary["runs"]) / 3
    )
    assert json.loads((out / "summary.json").read_text()) == {**summary, "run": summary["run"]}
    page = (out / "report.html").read_text()
    assert "Each run" in page
    assert 'id="distribution"' in page
    assert 'id="over-time"' not in page  # no run's clock is another's
    again = loadgen("report", out)
    assert again.code == 0
    shown = [line.split()[:2] for line in again.out.splitlines() if line.startswith("run ")]
    assert shown == [["run", "1"], ["run", "2"], ["run", "3"]]
    assert "standard deviation" in again.out
    assert f"it holds repeats: name one of them, e.g. {out / '1'}" in loadgen("explain", out).err


def test_separate_runs_are_reported_together_and_a_page_only_comes_when_asked_for(tmp_path, profile):
    folders = [tmp_path / name for name in "abc"]
    with Mock() as mock:
        for seed, folder in enumerate(folders):
            loadgen("run", profile(), "--target", mock.target, "--seed", seed, "--out", folder, "-q")
    alone = [(folder / "summary.json").read_bytes() for folder in folders]
    summary = loadgen("report", *folders, "--json").json
    assert [run["run"] for run in summary["runs"]] == ["a", "b", "c"]
    assert summary["run"]["id"] == "a, b, c"
    assert summary["total"]["counts"]["ok"] == sum(run["ok"] for run in summary["runs"])
    assert not list(tmp_path.glob("*.html"))
    assert loadgen("report", *folders, "--html", tmp_path / "all.html").code == 0
    assert "3 runs" in (tmp_path / "all.html").read_text()
    assert [(folder / "summary.json").read_bytes() for folder in folders] == alone
    twice = loadgen("report", folders[0], folders[1], folders[0])
    assert (twice.code, "given twice" in twice.err) == (2, True)


def test_an_interrupt_in_the_second_run_keeps_and_reports_the_first_and_the_same_command_goes_on(
    tmp_path, profile
):
    out, command = tmp_path / "r", ["run", profile("1s"), "--repeat", 3]
    with Mock(soon) as mock:
        code, text, errors = interrupted_in(2, out, mock, command)
        assert code == 130, errors
        assert (journal_of(out)["status"], journal_of(out)["runs"]) == ("interrupted", ["1"])
        assert json.loads((out / "cut-1" / "run.json").read_text())["status"] == "interrupted"
        assert "latency from due" in text
        kept = (out / "1" / "records.arrow").read_bytes()
        other = loadgen(*command, "--target", mock.target, "--out", out, "--seed", 9)
        assert (other.code, "another seed" in other.err) == (2, True)
        goes_on = loadgen(*command, "--target", mock.target, "--out", out, "-q", "--json")
    assert (goes_on.code, len(goes_on.json["runs"])) == (0, 3)
    assert (journal_of(out)["status"], journal_of(out)["runs"]) == ("finished", ["1", "2", "3"])
    assert (out / "1" / "records.arrow").read_bytes() == kept


def test_an_interrupt_in_the_first_run_reports_what_there_is(tmp_path, profile):
    out = tmp_path / "r"
    with Mock() as mock:
        code, text, _ = interrupted_in(1, out, mock, ["run", profile("20s"), "--repeat", 2])
    assert code == 130
    assert "(interrupted)" in text


def test_what_one_run_did_not_measure_is_not_made_good_by_others(tmp_path, profile):
    """The server refuses a part of the second run's requests: the runs together are not valid, and say which."""
    with Mock() as mock:
        for name, bad in (("a", 0), ("b", 3), ("c", 0)):
            mock.answer = lambda n, bad=bad: (0.005, 500 if bad and n % bad == 2 else 200, "no")
            mock.requests = 0
            loadgen("run", profile(), "--target", mock.target, "--out", tmp_path / name, "-q")
    summary = loadgen("report", *(tmp_path / name for name in "abc"), "--json").json
    assert [run["valid"] for run in summary["runs"]] == [True, False, True]
    assert not summary["valid"]
    [doubt] = [doubt for doubt in summary["doubts"] if doubt["code"] == "failures"]
    assert (doubt["runs"], doubt["text"][:6], doubt["invalidates"]) == ([2], "run 2:", True)


def test_runs_are_repeated_until_the_objective_is_decided(tmp_path, profile):
    with Mock(soon) as mock:
        answer = loadgen("run", profile(), "--target", mock.target, "--until-sure", "20s", "--out", tmp_path / "r",
                         "--json", "-q")  # fmt: skip
    until, row = answer.json["until_sure"], answer.json["slo"][0]
    assert (answer.code, until["stop"], row["verdict"]) == (0, "decided", "pass")
    assert until["looks"][-1]["verdicts"] == ["pass"]
    assert len(journal_of(tmp_path / "r")["runs"]) == 3  # the first look
    assert until["most_runs"] > 6
    assert until["alpha"] < 0.05
    assert row["level"] == pytest.approx(1 - until["alpha"], abs=1e-5)


def test_what_is_undecided_at_the_limit_says_so(tmp_path, profile):
    """Every other request takes long: the median lies on neither side of a limit between them."""
    with Mock(lambda n: (0.04 * (n % 2), 200, None)) as mock:
        answer = loadgen("run", profile(), "--target", mock.target, "--until-sure", "2s", "--out", tmp_path / "r",
                         "--objective", "latency p50 < 20ms")  # fmt: skip
    assert answer.code == 3
    journal = journal_of(tmp_path / "r")
    until, runs = journal["until_sure"], len(journal["runs"])
    assert (until["stop"], until["used_ns"] + until["longest_ns"] > 2e9) == ("time_limit", True)
    assert 1 < runs <= until["most_runs"]
    assert f"undecided after {runs} runs: no other fits within 2 s" in " ".join(answer.out.split())
    assert "wrong in at most 5 % of cases" in " ".join(answer.out.split())


def test_looks_go_on_where_they_were_interrupted(tmp_path, profile):
    out, command = tmp_path / "r", ["run", profile("1s", "latency p50 < 20ms"), "--until-sure", "9s"]
    with Mock(lambda n: (0.04 * (n % 2), 200, None)) as mock:
        assert interrupted_in(2, out, mock, command)[0] == 130
        before = journal_of(out)["until_sure"]
        assert (before["looks"], before["stop"], before["most_runs"] >= 3) == ([], None, True)
        longer = loadgen(*command[:-1], "15s", "--target", mock.target, "--out", out)
        assert (longer.code, "another limit" in longer.err) == (2, True)
        assert loadgen(*command, "--target", mock.target, "--out", out, "-q").code == 3
    after = journal_of(out)["until_sure"]
    assert [look["runs"] for look in after["looks"]] == list(range(3, len(after["looks"]) + 3))
    assert (after["alpha"], after["most_runs"]) == (before["alpha"], before["most_runs"])
    assert after["used_ns"] > before["used_ns"]


def test_what_no_number_of_runs_decides_ends_at_once(tmp_path, profile):
    with Mock() as mock:
        answer = loadgen("run", profile(), "--target", mock.target, "--until-sure", "1h", "--out", tmp_path / "r", "--objective",
                         "ttft p50 < 1s", "-q")  # fmt: skip
    assert answer.code == 3
    assert "no number of runs decides the rest" in " ".join(answer.out.split())
    assert journal_of(tmp_path / "r")["runs"] == ["1"]


def test_a_run_that_is_not_valid_ends_it(tmp_path, profile):
    """Nothing succeeds after the first request and the warm-up: no later run could make them valid together."""
    with Mock(lambda n: (0.005, 500 if n >= 9 else 200, "no")) as mock:
        answer = loadgen("run", profile(objective="latency p50 < 1s"), "--target", mock.target, "--until-sure", "1h", "--out",
                         tmp_path / "r", "-q")  # fmt: skip
    assert (answer.code, journal_of(tmp_path / "r")["until_sure"]["stop"]) == (3, "not_valid")
    assert "ended with run 1, which is not valid" in " ".join(answer.out.split())


def test_repeats_that_were_killed_go_on(tmp_path, profile):
    out, command = tmp_path / "r", ["run", profile("20s"), "--repeat", 2]
    with Mock(soon) as mock:
        process = spawn(*command, "--target", mock.target, "--out", out)
        end = time.monotonic() + 30
        while not (out / "1" / "records.arrow").exists() and time.monotonic() < end:
            time.sleep(0.02)
        process.kill()
        process.communicate(timeout=30)
        assert loadgen("report", out).error_lines == [f"error: {out}: none of its runs was finished"]
        code, text, errors = interrupted_in(1, out, mock, command, aside=["cut-1"])
    assert (code, "latency from due" in text) == (130, True), errors
    assert (out / "cut-1" / "records.arrow").exists()


def test_a_server_that_is_gone_ends_the_repeats_and_what_was_finished_is_reported(tmp_path, profile):
    """It answers as if it did not know the model after the first run: the second cannot begin."""
    with Mock(soon) as mock:
        first = loadgen(
            "run", profile(), "--target", mock.target, "--repeat", 1, "--out", tmp_path / "r", "-q"
        )
        mock.models = {}
        answer = loadgen(
            "run", profile(), "--target", mock.target, "--repeat", 2, "--out", tmp_path / "r", "-q"
        )
    assert (first.code, answer.code) == (0, 2)
    assert "latency from due" in answer.out
    assert "'m'" in answer.err
    assert journal_of(tmp_path / "r")["status"] == "failed"


def test_objectives_of_a_file_replace_the_profiles(tmp_path, profile):
    (tmp_path / "o.yaml").write_text('objectives: ["latency p50 < 1us", "failure rate < 50%"]')
    with Mock(soon) as mock:
        answer = loadgen("run", profile(), "--target", mock.target, "--objectives", tmp_path / "o.yaml", "--out", tmp_path / "r",
                         "-q", "--json")  # fmt: skip
    assert (answer.code, [row["verdict"] for row in answer.json["slo"]]) == (1, ["fail", "pass"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--repeat", "2", "--until-sure", "1s"], "give one of them"),
        (["--until-sure", "soon"], "--until-sure"),
        (["--objective", "latency p99", "--repeat", "2"], "cannot be read"),
        (["--objective", "x: latency p99 < 1s"], "there is no kind 'x'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(tmp_path, profile, options, said):
    with Mock() as mock:
        answer = loadgen("run", profile(), "--target", mock.target, "--out", tmp_path / "r", *options)
        assert (answer.code, mock.requests) == (2, 0)
    assert said in answer.err
    assert not (tmp_path / "r").exists()


def test_until_sure_needs_an_objective(tmp_path, profile):
    path = profile()
    path.write_text(path.read_text().rpartition("objectives:")[0])
    with Mock() as mock:
        answer = loadgen("run", path, "--target", mock.target, "--until-sure", "5s", "--out", tmp_path / "r")
    assert (answer.code, "needs an objective" in answer.err) == (2, True)


def test_runs_of_other_kinds_are_not_judged_together(tmp_path, profile):
    with Mock() as mock:
        for number in range(2):
            path = profile("200ms")
            path.write_text(path.read_text().replace("{k:", "{k:" if number else "{other:"))
            loadgen("run", path, "--target", mock.target, "--out", tmp_path / str(number), "-q")
    answer = loadgen("report", tmp_path / "0", tmp_path / "1")
    assert answer.code == 2
    assert "kinds are not those of" in answer.err
