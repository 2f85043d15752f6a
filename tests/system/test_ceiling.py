"""The client's own ceiling: measured, stored, and held against what a run asks for before it starts."""

import json
import os

import numpy as np
import pytest

from loadgen.lab.ceiling import headroom_warning, peak_per_s
from loadgen.schedule import plan
from loadgen.traffic.profile import parse_profile
from tests.support.cli import loadgen
from tests.support.kserve_mock import Mock


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "loadgen" / "ceiling.json"


def test_bench_client_measures_both_protocols_and_stores_them(cache):
    answer = loadgen("bench", "client", "--seconds", "0.5", "--json")
    assert answer.code == 0
    rows = {row["protocol"]: row for row in answer.json["ceilings"]}
    assert set(rows) == {"http", "grpc"}
    for row in rows.values():
        assert row["requests"] > 500
        assert row["per_s"] == pytest.approx(row["requests"] / 0.5, rel=0.2)
        assert 500 < row["cpu_ns_per_request"] < 200_000
    assert json.loads(cache.read_text())["host"] == os.uname().nodename


def test_figures_that_cannot_be_stored_are_printed_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    answer = loadgen("bench", "client", "--seconds", "0.2")
    assert [line.split()[0] for line in answer.out.splitlines()] == ["http", "grpc"]
    assert (answer.code, len(answer.error_lines)) == (3, 1)
    assert "not stored" in answer.err


def store(cache, per_s, host=None):
    cache.parent.mkdir(parents=True)
    rows = [{"protocol": "http", "per_s": per_s}]
    cache.write_text(json.dumps({"host": host or os.uname().nodename, "ceilings": rows}))


PROFILE = """
name: t
kinds: {k: {model: m, length: 4}}
phases:
  - {name: load, open: {arrivals: uniform, rate: [{duration: 500ms, at: 100/s}]}}
"""


@pytest.mark.parametrize(
    ("per_s", "options", "said"), [(140, [], True), (150, [], False), (80, ["--workers", "2"], False)]
)
def test_a_run_near_the_ceiling_says_so_before_it_starts(cache, tmp_path, per_s, options, said):
    store(cache, per_s)
    path = tmp_path / "p.yaml"
    path.write_text(PROFILE)
    with Mock() as mock:
        answer = loadgen("run", path, "--target", mock.target, "--out", tmp_path / "r", *options)
    assert ("note: the profile asks for up to 100 requests/s" in answer.err) is said
    if said:
        assert answer.err.index("note:") < answer.err.index("reading m")


def test_another_hosts_ceiling_says_nothing(cache, tmp_path):
    store(cache, 10, host="elsewhere")
    path = tmp_path / "p.yaml"
    path.write_text(PROFILE)
    with Mock() as mock:
        answer = loadgen("run", path, "--target", mock.target, "--out", tmp_path / "r")
    assert "note:" not in answer.err


def test_the_peak_is_the_fullest_second():
    profile = parse_profile(PROFILE.replace("at: 100/s", "from: 0/s, to: 400/s").replace("500ms", "4s"), "p")
    whole = plan(profile)
    expected = np.bincount(whole.phases[0].due_ns // 10**9).max()
    assert peak_per_s(whole) == expected
    assert 300 < expected <= 400
    assert headroom_warning(700, "http", 1, {"http": 1000}) is None
    assert "1000/s over http" in headroom_warning(701, "http", 1, {"http": 1000})


def test_more_users_than_open_files_is_refused_with_the_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr("loadgen.lab.limits.raise_file_limit", lambda: 300)
    path = tmp_path / "p.yaml"
    path.write_text(
        PROFILE.partition("phases")[0] + "phases: [{name: c, closed: {users: 400, requests: 400}}]\n"
    )
    answer = loadgen("run", path, "--target", "http://127.0.0.1:9", "--out", tmp_path / "r")
    assert (answer.code, len(answer.error_lines)) == (2, 1)
    assert "464 open files" in answer.err
    assert "allows 300" in answer.err
