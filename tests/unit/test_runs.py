"""`loadgen runs`: the table, the figure over time, change points, what is no run, and where figures are read from."""

import json
import os
import re

import numpy as np
import pytest

from loadgen.analysis.history import Kind, Scale, State, read_history
from loadgen.records import Outcome
from loadgen.report.runs import over_time
from loadgen.report.write import write_reports
from loadgen.traffic.objective import parse_figure
from tests.support.cli import loadgen
from tests.support.runs import MS, S, build, read_json, row

P50 = parse_figure("latency p50")


def run(
    folder,
    day,
    service_ms=10.0,
    *,
    n=400,
    name="steady",
    target="http://a:8000",
    written=True,
    failed=0,
    **over,
):
    """A run of 10 s on a day of January; its summary is written unless told otherwise."""
    rng = np.random.default_rng(day)
    times = rng.lognormal(np.log(service_ms), 0.2, n) * MS
    rows = [
        row(i * 10 * S // n, int(t), **({"outcome": Outcome.TIMEOUT} if i < failed else {}))
        for i, t in enumerate(times)
    ]
    build(
        folder,
        rows,
        id=folder.name,
        started_at=f"2026-01-{day:02}T03:04:05+00:00",
        target=target,
        profile={"name": name, "text": f"name: {name}\n", "sha256": over.pop("sha256", "0" * 64)},
        **over,
    )
    if written:
        write_reports(folder)
    return folder


def test_a_row_a_run_newest_last_with_intervals_and_verdict(tmp_path):
    run(tmp_path / "b", 2, objectives=["latency p50 < 1s"])
    run(tmp_path / "a", 3, objectives=["latency p50 < 1ms"], failed=4)
    run(tmp_path / "c", 1)
    found = read_history(tmp_path, P50)
    assert [row.name for row in found.runs] == ["c", "b", "a"]
    assert [row.verdict for row in found.runs] == [None, "pass", "fail"]
    first, _, newest = found.runs
    assert first.p50.low < 10 * MS < first.p50.high
    assert first.p50.low < first.p50.value < first.p50.high
    assert (newest.failed, newest.tried) == (4, 400)
    assert first.achieved_per_s == pytest.approx(40)


def test_a_shift_is_found_and_its_size_told(tmp_path):
    for day in range(1, 9):
        run(tmp_path / f"r{day}", day, 10.0 if day < 6 else 13.0)
    (series,) = read_history(tmp_path, P50).series
    (shift,) = series.shifts
    assert (shift.run, shift.place, shift.scale, shift.profile_changed) == ("r6", 5, Scale.RATIO, False)
    assert shift.low < 1.3 < shift.high
    assert shift.high - shift.low < 0.2


def test_the_chart_has_each_run_with_its_interval_and_the_shift(tmp_path):
    from plotly.graph_objects import Figure

    for day in range(1, 9):
        run(tmp_path / f"r{day}", day, 10.0 if day < 6 else 13.0, failed=80 if day == 2 else 0)
    history = read_history(tmp_path, P50)
    (series,) = history.series
    drawn = Figure(over_time(series, history))  # refuses what plotly does not know
    valid, other = drawn.data
    assert (len(valid.x), valid.x[0], other.x) == (
        7,
        "2026-01-01T03:04:05+00:00",
        ("2026-01-02T03:04:05+00:00",),
    )
    first = series.points[0].value
    assert (valid.y[0], valid.error_y.array[0]) == (first.value / MS, (first.high - first.value) / MS)
    assert valid.error_y.arrayminus[0] == (first.value - first.low) / MS
    assert [line.x0 for line in drawn.layout.shapes] == ["2026-01-06T03:04:05+00:00"]


def test_runs_of_other_profiles_and_targets_are_other_series(tmp_path):
    for day in range(1, 9):
        run(
            tmp_path / f"r{day}",
            day,
            10.0 if day % 2 else 30.0,
            target=f"http://{'a' if day % 2 else 'b'}:8000",
            n=60,
        )
    found = read_history(tmp_path, P50)
    assert [(one.target, len(one.points), one.shifts) for one in found.series] == [
        ("http://a:8000", 4, ()),
        ("http://b:8000", 4, ()),
    ]
    only = read_history(tmp_path, P50, target="http://b:8000", last=3)
    assert [row.name for row in only.runs] == ["r4", "r6", "r8"]
    assert read_history(tmp_path, P50, profile="other").runs == ()


def test_a_changed_profile_is_told_with_the_shift(tmp_path):
    for day in range(1, 9):
        run(tmp_path / f"r{day}", day, 10.0 if day < 5 else 15.0, sha256=("0" if day < 5 else "1") * 64)
    assert read_history(tmp_path, P50).series[0].shifts[0].profile_changed


def test_a_run_that_is_not_valid_is_in_no_level(tmp_path):
    for day in range(1, 9):
        run(
            tmp_path / f"r{day}",
            day,
            10.0 if day < 7 else 15.0,
            failed=0 if day < 7 else 80,
        )
    (series,) = read_history(tmp_path, P50).series
    assert [one.state for one in series.points[-2:]] == [State.NOT_VALID] * 2
    assert series.shifts == ()


def test_a_failure_counts_as_infinitely_late_as_in_an_objective(tmp_path):
    run(tmp_path / "r", 1, n=400, failed=8)
    stored = read_json(tmp_path / "r" / "summary.json")["intervals"]
    p99 = next(one for one in stored if one["figure"] == "latency p99")
    assert p99["value"] is not None  # of the successes
    (series,) = read_history(tmp_path, parse_figure("latency p99")).series
    assert series.points[0].state is State.NO_VALUE  # 2 % never succeeded


def test_the_summary_is_read_where_it_is_current_and_the_records_where_not(tmp_path):
    folder = run(tmp_path / "r", 1)
    summary = read_json(folder / "summary.json")
    for one in summary["intervals"]:
        one["value"] = 77 * MS if one["figure"] == "latency p50" else one["value"]
    (folder / "summary.json").write_text(json.dumps(summary))
    assert read_history(tmp_path, P50).runs[0].p50.value == 77 * MS
    old = (folder / "records.arrow").stat().st_mtime_ns - 10**9
    os.utime(folder / "summary.json", ns=(old, old))
    assert read_history(tmp_path, P50).runs[0].p50.value == pytest.approx(10 * MS, rel=0.05)
    (folder / "summary.json").write_text("{cut")
    assert read_history(tmp_path, P50).runs[0].p50.value == pytest.approx(10 * MS, rel=0.05)


def test_repeats_are_their_runs_and_other_folders_are_named(tmp_path):
    for number in (1, 2):
        run(tmp_path / "many" / str(number), number)
    (tmp_path / "many" / "repeat.json").write_text('{"format": 1, "runs": ["1", "2"]}')
    for name, file in (("s", "sweep.json"), ("c", "capacity.json"), ("x", "notes.txt")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("{}")
    for name, text in (("bad", "{"), ("worse", '{"format": 1}'), ("new", '{"format": 99}'), ("list", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    (tmp_path / "file").write_text("")
    found = read_history(tmp_path, P50)
    assert [row.name for row in found.runs] == ["many/1", "many/2"]
    kinds = {one.name: one.kind for one in found.others}
    assert kinds == {
        "s": Kind.SWEEP,
        "c": Kind.CAPACITY,
        "x": Kind.OTHER,
        "bad": Kind.DAMAGED,
        "worse": Kind.DAMAGED,
        "new": Kind.DAMAGED,
        "list": Kind.DAMAGED,
    }
    assert all(one.why for one in found.others if one.kind is Kind.DAMAGED)


def test_empty_and_killed_runs(tmp_path):
    run(tmp_path / "none", 1, n=0 + 1)
    build(tmp_path / "empty", [], started_at="2026-01-02T00:00:00Z", status="running")
    answer = loadgen("runs", tmp_path, "--json", "-q")
    assert answer.code == 0
    assert [one["name"] for one in answer.json["runs"]] == ["none", "empty"]
    assert answer.json["runs"][1]["p99"] == {"value": None, "low": None, "high": None, "level": 0.95}


def test_the_command_line(tmp_path):
    for day in range(1, 9):
        run(tmp_path / "runs" / f"r{day}", day, 10.0 if day < 6 else 13.0)
    page = tmp_path / "h.html"
    answer = loadgen("runs", tmp_path / "runs", "--figure", "latency p50", "--html", page, "-q")
    assert answer.code == 0
    (shift,) = re.findall(r"change point: latency p50 of steady at http://a:8000 \+(\d+)", answer.out)
    assert 25 <= int(shift) <= 35
    assert "from r6 (2026-01-06 03:04:05 UTC) on" in answer.out
    assert answer.out.count("2026-01-0") >= 16  # in the table and in the figure
    assert "change point" in page.read_text()
    told = loadgen("runs", tmp_path / "runs", "--figure", "latency p50", "--json", "-q").json
    assert told["series"][0]["shifts"][0]["run"] == "r6"
    assert told["figure"] == "latency p50"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["nowhere"], "there is no such folder"),
        (["--figure", "speed"], "figure 'speed'"),
    ],
)
def test_refusals_are_one_line(options, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    answer = loadgen("runs", *options)
    assert answer.code == 2
    assert said in answer.err
    assert len(answer.error_lines) == 1


def test_a_run_is_not_a_folder_of_runs(tmp_path):
    answer = loadgen("runs", run(tmp_path / "r", 1, n=30))
    assert answer.code == 2
    assert "is a run itself" in answer.err


def test_a_folder_without_runs(tmp_path):
    answer = loadgen("runs", tmp_path)
    assert answer.code == 0
    assert "no runs in" in answer.out
