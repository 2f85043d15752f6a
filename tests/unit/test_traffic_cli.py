import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadgen.cli.profile import app, sparkline

PROFILES = sorted((Path(__file__).parents[2] / "traffic_profiles").glob("*.yaml"))
TEXT = """\
name: tiny
kinds:
  a: {model: m, weight: 3, length: {uniform: {min: 1, max: 100}}}
  b: {model: m, version: "2", batch: 4}
phases:
  - {name: warm, warmup: true, closed: {users: 2, requests: 10}}
  - {name: go, open: {arrivals: uniform, rate: [{duration: 10s, from: 0/s, to: 80/s}]}}
objectives: ["a: latency p99 < 5ms"]
"""


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(TEXT)
    return str(path)


def call(*words):
    return CliRunner().invoke(app, list(words))


def test_lint_says_ok_with_counts(tiny):
    result = call("lint", tiny)
    assert result.exit_code == 0
    assert result.stdout == f"{tiny}: OK: 2 kinds, 2 phases, 400 arrivals in open loops, 1 objective\n"


def test_lint_takes_all_that_we_ship():
    result = call("lint", *map(str, PROFILES))
    assert result.exit_code == 0
    assert result.stdout.count(": OK: ") == len(PROFILES) >= 6


def test_lint_names_every_fault_and_goes_on(tiny, tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text(TEXT.replace("weight: 3", "wieght: 3").replace("users: 2", "users: 0"))
    result = call("lint", str(bad), tiny, str(tmp_path / "none.yaml"))
    assert result.exit_code == 2
    assert result.stdout.startswith(f"{tiny}: OK")
    lines = result.stderr.splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"{bad}:3", f"{bad}:6", str(tmp_path / "none.yaml")]
    assert "kinds.a.wieght: unknown key (did you mean 'weight'?)" in lines[0]


def test_show_tells_phases_rates_and_kinds(tiny):
    result = call("show", tiny)
    assert result.exit_code == 0
    assert "warm  (warm-up, not measured)\n  closed, 2 users, until 10 requests\n" in result.stdout
    assert "open, uniform: 400 arrivals in 10 s, mean 40/s, busiest 500 ms 78/s" in result.stdout
    spark = next(line for line in result.stdout.splitlines() if "▁" in line).split()
    assert spark[1:] == ["0.8333", "to", "79.17/s"]
    assert (spark[0][0], spark[0][-1], list(spark[0])) == ("▁", "█", sorted(spark[0]))
    assert (
        "kind a  75.0%  model m  batch 1  lengths min 1 p5 6 p25 26 p50 51 p75 76 p95 96 max 100"
        in result.stdout
    )
    assert "kind b  25.0%  model m:2  batch 4  lengths none  timeout 60 s" in result.stdout
    assert "objective  a: latency p99 < 5ms" in result.stdout


def test_show_json_is_for_scripts(tiny):
    data = json.loads(call("show", tiny, "--json", "--seed", "9").stdout)
    assert (data["name"], data["seed"]) == ("tiny", 9)
    assert [phase["planned"] for phase in data["phases"]] == [10, 400]
    assert data["kinds"]["a"]["lengths"]["p50"] == 51
    assert data["kinds"]["b"]["lengths"] is None


def test_keys_prints_the_reference():
    result = call("keys")
    assert result.exit_code == 0
    for word in ("in_flight", "burstiness", "lognormal", "failure rate"):
        assert word in result.stdout


def test_a_sparkline_is_relative_to_its_top():
    assert sparkline([0, 1, 3.5, 7]) == "▁▂▅█"
    assert sparkline([0, 0]) == "▁▁"
