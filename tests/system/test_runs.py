"""`loadgen runs` over runs that `loadgen run` made: a summary is read as it was written, repeats from their records."""

import json
import os

from tests.support.cli import loadgen
from tests.support.kserve_mock import Mock

PROFILE = """
name: p
kinds: {k: {model: m, length: 4}}
phases: [{name: load, open: {rate: [{duration: 1s, at: 200/s}]}}]
objectives: ["latency p50 < 5s"]
"""


def test_runs_that_were_made_are_read(tmp_path):
    profile, folder = tmp_path / "p.yaml", tmp_path / "runs"
    profile.write_text(PROFILE)
    folder.mkdir()
    with Mock(lambda _: (0.005, 200, None)) as mock:
        for options in (["--out", folder / "one"], ["--repeat", 2, "--out", folder / "many"]):
            assert loadgen("run", profile, "--target", mock.target, "-q", *options).code in (0, 3)
    path = folder / "one" / "summary.json"
    stamp, summary = path.stat().st_mtime_ns, json.loads(path.read_text())
    summary["intervals"] = [row | {"value": 1e6} for row in summary["intervals"]]  # a mark that only it has
    path.write_text(json.dumps(summary))
    os.utime(path, ns=(stamp, stamp))
    answer = loadgen("runs", folder, "--figure", "latency p50", "--json", "-q")
    assert answer.code == 0
    runs = answer.json["runs"]
    assert [run["name"] for run in runs] == ["one", "many/1", "many/2"]
    assert [run["verdict"] for run in runs] == ["pass"] * 3
    assert {run["target"] for run in runs} == {mock.target}
    assert runs[0]["p50"]["value"] == 1e6
    assert all(4e6 < run["p50"]["low"] < run["p50"]["value"] < run["p50"]["high"] for run in runs[1:])
    (series,) = answer.json["series"]
    assert [point["value"] for point in series["points"]] == [run["p50"] for run in runs]
