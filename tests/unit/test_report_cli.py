import json

import pytest
import typer
from typer.testing import CliRunner

from loadgen.cli.check import check
from loadgen.cli.report import report
from loadgen.records import LoadgenError
from loadgen.runfile import REPORT, RUN, SUMMARY
from tests.support.runs import S, build, read_json, running, steady

app = typer.Typer()
app.command("report")(report)
app.command("check")(check)


def call(*args):
    return CliRunner().invoke(app, list(map(str, args)))


def test_report_writes_both_files_anew_and_prints_the_text(tmp_path):
    path = build(tmp_path / "run", steady(1000))
    found = call("report", path)
    assert (found.exit_code, found.stdout.startswith("valid")) == (0, True)
    assert read_json(path / SUMMARY)["total"]["counts"]["ok"] == 1000
    assert "Latency over time" in (path / REPORT).read_text(encoding="utf-8")


def test_report_json_is_summary_json_and_html_goes_where_asked(tmp_path):
    path = build(tmp_path / "run", steady(1000))
    found = call("report", path, "--json", "--html", tmp_path / "page.html")
    assert json.loads(found.stdout) == read_json(path / SUMMARY)
    assert (tmp_path / "page.html").exists()
    assert not (path / REPORT).exists()


@pytest.mark.parametrize(
    ("rows", "code", "verdict"),
    [(steady(1000), 0, "pass"), (steady(1000, service=S), 1, "fail"), (steady(20), 3, "inconclusive")],
)
def test_check_says_it_with_the_exit_code(tmp_path, rows, code, verdict):
    path = build(tmp_path / "run", rows, objectives=["latency p99 < 250ms"])
    found = call("check", path, "--json")
    assert (found.exit_code, json.loads(found.stdout)["slo"][0]["verdict"]) == (code, verdict)
    assert call("check", path).stdout.count(verdict) >= 1


def test_objectives_given_replace_the_profiles(tmp_path):
    path = build(tmp_path / "run", steady(1000), objectives=["latency p99 < 1ms"])
    found = call(
        "check", path, "--objective", "latency p99 < 250ms", "--objective", "failure rate < 1%", "--json"
    )
    assert found.exit_code == 0
    assert [row["objective"] for row in json.loads(found.stdout)["slo"]] == [
        "latency p99 < 250ms",
        "failure rate < 1%",
    ]


def wrong(*args, code=2):
    error = call(*args).exception
    assert isinstance(error, LoadgenError)
    assert (error.exit_code, "\n" in str(error)) == (code, False)
    return str(error)


def test_wrong_input_is_one_line_and_exit_code_2(tmp_path):
    path = build(tmp_path / "run", steady(10))
    assert "not a run folder" in wrong("check", tmp_path / "missing")
    assert "not a run folder" in wrong("report", tmp_path)
    assert "states no objective" in wrong("check", path)
    assert "objective 'p99'" in wrong("check", path, "--objective", "p99")
    info = read_json(path / RUN)
    (path / RUN).write_text(json.dumps(info | {"format": 2}))
    assert "format 2 is newer" in wrong("report", path)


@pytest.mark.parametrize(
    ("page", "says"),
    [("no/x.html", "No such file or directory; name a file"), ("", "Is a directory; name a file")],
)
def test_a_page_that_has_no_place_is_refused_before_the_work(tmp_path, page, says):
    path = build(tmp_path / "run", steady(10))
    assert says in wrong("report", path, "--html", tmp_path / page, code=3)
    assert not (path / SUMMARY).exists()


def test_check_of_a_killed_run_of_unknown_end_is_no_verdict(tmp_path):
    """Every answer was late, and yet: nobody knows how many others there were, nor how they ended."""
    told = [running(planned=1000)]
    path = build(tmp_path / "run", steady(500, span=5 * S, service=S), told, status="running",
                 objectives=["latency p50 < 250ms", "failure rate > 5%"])  # fmt: skip
    found = call("check", path, "--json")
    assert found.exit_code == 3
    rows = json.loads(found.stdout)["slo"]
    assert {row["verdict"] for row in rows} == {"inconclusive"}
    assert [(row["reason"], row["unknown"]) for row in rows] == [("unknown_ends", None)] * 2
