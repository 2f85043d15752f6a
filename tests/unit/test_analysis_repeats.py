"""Several runs of one profile: their spread, their doubts, and what a look at all of them says."""

import json

import numpy as np
import pytest

from loadgen.analysis.pool import pool
from loadgen.analysis.repeats import is_measured, look, runs_in, summarise_folders, summarise_runs
from loadgen.analysis.slo import Verdict, measured_of
from loadgen.records import LoadgenError, Outcome
from loadgen.runread import read_run
from tests.support import runs
from tests.support.runs import MS, S


@pytest.fixture
def made(tmp_path):
    """Builds a finished run of 10 s with exponential service times."""

    def go(name, mean_ms=10, n=500, bad=0, **over):
        rng = np.random.default_rng(sum(map(ord, name)))
        service = rng.exponential(mean_ms * MS, n).astype(np.int64).tolist()
        rows = [
            runs.row(i * 10 * S // n, ns, outcome=Outcome.HTTP_5XX if i < bad else Outcome.OK)
            for i, ns in enumerate(service)
        ]
        return read_run(runs.build(tmp_path / name, rows, id=name, **over))

    return go


def test_each_run_has_a_row_and_the_spread_is_that_of_the_rows(made):
    summary = summarise_runs([made("a", 10, seed=1), made("b", 20, seed=2), made("c", 30, seed=3)])
    p50 = [row["p50_ns"] for row in summary["runs"]]
    assert [(row["run"], row["seed"], row["ok"]) for row in summary["runs"]] == [
        ("a", 1, 500),
        ("b", 2, 500),
        ("c", 3, 500),
    ]
    spread = summary["between_runs"]["p50_ns"]
    assert spread["mean"] == pytest.approx(np.mean(p50))
    assert spread["standard_deviation"] == pytest.approx(np.std(p50, ddof=1))
    json.dumps(summary, allow_nan=False)


def test_one_run_has_no_rows(made):
    assert summarise_runs([made("a")]).keys().isdisjoint({"runs", "between_runs"})


def test_a_run_that_is_not_valid_makes_all_of_them_so_and_its_doubt_says_which(made):
    summary = summarise_runs([made("a"), made("b", bad=50), made("c", bad=50)])
    assert not summary["valid"]
    [doubt] = [one for one in summary["doubts"] if one["code"] == "failures"]
    assert doubt["runs"] == [2, 3]
    assert doubt["text"].startswith("run 2: 50 of 500 requests")
    assert doubt["text"].endswith("(also in run 3)")
    assert is_measured(summary)  # it is the server that failed


def test_few_requests_of_a_run_are_no_doubt_when_all_have_enough(made):
    few = [made(name, n=60) for name in "ab"]
    assert ["few_samples" in row["doubts"] for row in summarise_runs(few)["runs"]] == [True, True]
    assert "few_samples" not in {doubt["code"] for doubt in summarise_runs(few)["doubts"]}
    [doubt] = [
        one
        for one in summarise_runs([made("c", n=20), made("d", n=20)])["doubts"]
        if one["code"] == "few_samples"
    ]
    assert "40 successes" in doubt["text"]


def test_runs_of_other_profiles_and_targets_are_told_apart(made):
    other = made("b", target="http://127.0.0.1:9000", profile={"name": "x", "text": "", "sha256": "1" * 64})
    codes = {doubt["code"]: doubt["runs"] for doubt in summarise_runs([made("a"), other])["doubts"]}
    assert (codes["other_profile"], codes["other_target"]) == ([2], [2])


def test_a_killed_run_is_judged_by_itself_only(made):
    killed = made("b", status="killed")
    with pytest.raises(LoadgenError, match="its status is killed"):
        pool([made("a"), killed])
    assert summarise_runs([killed])["run"]["status"] == "killed"


def test_the_slowest_first_request_is_that_of_the_pool(made):
    both = pool(
        [made("a", first_request_ns={"short": 5 * MS}), made("b", first_request_ns={"short": 90 * MS})]
    )
    assert summarise_runs([both], ["first request < 50ms"])["slo"][0]["verdict"] == "fail"


def test_a_look_says_what_is_decided_and_how_many_more_runs_would_tell(made):
    seen = measured_of(pool([made(name, n=2000) for name in "abcd"]), ["latency p50 < 1s"], alpha=0.01)
    clear = look(["latency p50 < 1s", "latency p50 < 1ms"], seen)
    assert (clear.runs, clear.verdicts, clear.is_decided) == (4, (Verdict.PASS, Verdict.FAIL), True)
    p50 = np.median(np.concatenate([part.rows.latency_ns for part in seen.parts]))
    close = look([f"latency p50 < {1.01 * p50:.0f}ns"], seen)
    assert (close.is_decided, close.undecidable) == (False, False)
    assert close.more_runs >= 1
    never = look(["latency p50 < 1s", "ttft p50 < 1s"], seen)
    assert (never.is_decided, never.undecidable, never.more_runs) == (False, True, None)


def test_a_stricter_alpha_makes_wider_intervals(made):
    run = made("a", n=2000)
    rows = [summarise_runs([run], ["latency p50 < 1s"], alpha=alpha)["slo"][0] for alpha in (0.05, 0.01)]
    assert [row["level"] for row in rows] == [0.95, 0.99]
    assert rows[1]["interval"][0] < rows[0]["interval"][0]
    assert rows[0]["interval"][1] < rows[1]["interval"][1]


def test_a_folder_whose_journal_is_damaged_or_empty_is_refused(tmp_path):
    for text, said in (
        ("{", "cannot be read"),
        ('{"format": 9}', "not written by"),
        ('{"format": 1, "runs": []}', "none of its runs"),
    ):
        (tmp_path / "repeat.json").write_text(text)
        with pytest.raises(LoadgenError, match=said):
            runs_in([tmp_path])
    with pytest.raises(LoadgenError, match="not a run folder"):
        summarise_folders([tmp_path / "nothing"])
