"""Processes that may open few files, or begin without standard streams: told or counted, never the end of a run."""

import json
import subprocess
import sys

import pytest

from tests.support.kserve_mock import Mock

PROFILE = """
name: t
kinds: {k: {model: m, length: 4, timeout: 10s}}
%s
phases:
  - {name: load, open: {arrivals: uniform, rate: [{duration: 1500ms, at: 200/s}]}}
"""


def shell(prefix, *args, redirect=""):
    """`loadgen args` by a shell that says `prefix` first."""
    command = ["bash", "-c", f'{prefix}exec "$@" {redirect}', "-", sys.executable, "-m", "loadgen"]
    return subprocess.run([*command, *map(str, args)], capture_output=True, text=True, check=False)


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(PROFILE % "")
    return path


def test_requests_that_find_no_descriptor_are_counted_and_the_run_ends(profile, tmp_path):
    out = tmp_path / "run"
    with Mock(lambda n: (1.5 if n else 0, 200, None)) as mock:
        done = shell("ulimit -n 150; ", "run", profile, "--target", mock.target, "--out", out, "-q")
    assert "error:" not in done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert json.loads((out / "run.json").read_text())["status"] == "finished"
    counts = summary["total"]["counts"]
    assert counts["planned"] == counts["tried"] == 300
    assert counts["ok"] > 60
    assert "too many open files" in summary["total"]["errors"]["client"]["text"]
    assert summary["total"]["errors"]["client"]["n"] > 100
    assert done.returncode == 3  # that many failures are no result
    assert (out / "report.html").exists()


@pytest.mark.parametrize(
    ("limit", "cap", "words"),
    [
        (300, "cap: {in_flight: 500}", "a cap of 500 requests in flight over HTTP needs 564 open files"),
        (20, "", "a run needs 64 open files in a process, this system allows 20"),
    ],
)
def test_more_than_the_limit_allows_is_refused_with_the_number(tmp_path, limit, cap, words):
    path = tmp_path / "p.yaml"
    path.write_text(PROFILE % cap)
    done = shell(
        f"ulimit -n {limit}; ", "run", path, "--target", "http://127.0.0.1:9", "--out", tmp_path / "r"
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("redirect", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_do_not_stop_a_run(profile, tmp_path, redirect):
    out = tmp_path / "run"
    with Mock() as mock:
        done = shell("", "run", profile, "--target", mock.target, "--out", out, redirect=redirect)
    assert done.returncode == 0, done.stderr
    assert json.loads((out / "summary.json").read_text())["total"]["counts"]["ok"] == 300


@pytest.mark.parametrize("args", [["--help"], ["run", "nosuch.yaml"]])
def test_the_exit_code_is_the_same_without_standard_streams(args):
    assert shell("", *args, redirect="<&- >&- 2>&-").returncode == (2 if len(args) > 1 else 0)
