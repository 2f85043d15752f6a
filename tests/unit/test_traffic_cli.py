import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadgen.cli.profile import app
from loadgen.planfile import load_plan
from loadgen.report.plan import WIDTH, sparkline
from tests.support.cli import loadgen

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
    ok, note = result.stdout.splitlines()
    assert ok == f"{tiny}: OK: 2 kinds, 2 phases, 400 arrivals in open loops, 1 objective"
    assert re.match(rf'{tiny}: note: objective "a: latency p99 < 5ms": about \d\d\d requests', note)


def test_lint_takes_a_trace_beside_its_profile_and_says_when_it_is_not_there(tmp_path):
    text = "kinds: {k: {model: m}}\nphases: [{name: p, trace: {file: t.csv, columns: {time: t}, unit: s}}]\n"
    path = tmp_path / "p.yaml"
    path.write_text(text)
    missing = call("lint", str(path))
    assert (missing.exit_code, missing.stdout) == (2, "")
    where = f"{path}: {tmp_path / 't.csv'}: no such trace"
    assert missing.stderr == f"{where}; a trace's file is relative to its profile's folder\n"
    (tmp_path / "t.csv").write_text("t\n0\n1\n1\n")
    assert call("lint", str(path)).stdout.startswith(f"{path}: OK: 1 kind, 1 phase, 3 arrivals in open loops")


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
    assert "\nwarm  (warm-up, not measured)\n  closed, 2 users, until 10 requests\n" in result.stdout
    assert (
        "open, uniform: 400 arrivals in 10 s, mean 40/s, busiest 500 ms 78/s from 9.5 s on" in result.stdout
    )
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if "▁" in line}
    arrivals, asked = rows["arrivals"], rows["asked"]
    assert arrivals[2:] == ["0", "to", "76.8/s,", "208", "ms", "a", "column"]
    assert asked[2:] == ["0.8333", "to", "79.17/s"]
    assert (asked[1][0], asked[1][-1], list(asked[1])) == ("▁", "█", sorted(asked[1]))
    assert "(Poisson, constant rate: 1, 1 +- 0.6 in 20 bins), largest burst 1\n" in result.stdout
    assert re.search(
        r"  a  3\d\d requests, 7\d.\d%\n    length in   \S{16}  min 1, P50 \d\d, P90 ", result.stdout
    )
    assert "kind a  75.0% by weight  KServe v2, model m, timeout 60 s\n" in result.stdout
    assert "kind b  25.0% by weight  KServe v2, model m:2, batch 4, timeout 60 s\n" in result.stdout
    assert "objective  a: latency p99 < 5ms" in result.stdout


def test_show_json_is_for_scripts(tiny):
    data = json.loads(call("show", tiny, "--json", "--seed", "9").stdout)
    assert (data["name"], data["seed"]) == ("tiny", 9)
    warm, go = data["phases"]
    assert (warm["planned"], warm["arrivals"], warm["asked_per_s"], warm["users"]) == (10, None, None, 2)
    assert (go["planned"], sum(go["column_counts"]), go["column_ns"]) == (400, 400, 10**10 / 48)
    assert go["asked_per_s"][0] == pytest.approx(80 / 96)
    assert (go["arrivals"]["largest_burst"], go["arrivals"]["bin_ns"]) == (1, 500_000_000)
    spread = go["kinds"]["a"]["length"]
    assert 40 < spread["p50"] < 60
    assert sum(spread["counts"]) == spread["n"] == go["kinds"]["a"]["planned"]
    assert go["kinds"]["b"]["length"] is None
    assert (
        data["kinds"]["b"] | {"dialect": "KServe v2", "batch": 4, "timeout_ns": 60 * 10**9}
        == data["kinds"]["b"]
    )


def test_show_saves_the_plan_and_says_how_to_send_it(tiny, tmp_path):
    out = tmp_path / "plan.arrow"
    result = call("show", tiny, "--seed", "9", "--save", str(out))
    assert result.stderr == f"wrote {out}; to send it: loadgen run {tiny} --plan {out}\n"
    saved, _ = load_plan(out, ("a", "b"))
    assert (saved.seed, len(saved.phases[1].due_ns)) == (9, 400)
    answer = loadgen("profile", "show", tiny, "--save", out)
    assert (answer.code, answer.out) == (2, "")
    assert answer.error_lines == [f"error: plan {out}: exists already; name a file that does not exist yet"]


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_profile_we_ship_shows(path):
    text = call("show", str(path))
    assert text.exit_code == 0
    assert max(map(len, text.stdout.splitlines())) <= WIDTH
    data = json.loads(call("show", str(path), "--json").stdout)
    for phase in data["phases"]:
        shares = [kind["share"] for kind in phase["kinds"].values()]
        assert (phase["name"] in text.stdout, sum(shares)) == (True, pytest.approx(1))
        assert (phase["arrivals"] is None) == (phase["loop"] == "closed")


def test_keys_prints_the_reference():
    result = call("keys")
    assert result.exit_code == 0
    for word in ("in_flight", "burstiness", "lognormal", "failure rate"):
        assert word in result.stdout


def test_a_sparkline_is_relative_to_its_top():
    assert sparkline([0, 1, 3.5, 7]) == "▁▂▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([7], 14) == "▅"
