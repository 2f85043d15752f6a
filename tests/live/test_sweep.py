"""A sweep on a real Triton: interrupted and resumed, with a winner that is known from how the model is made."""

import json
import signal
import time
import urllib.request

import pytest

from tests.support.cli import loadgen, spawn

pytestmark = [pytest.mark.live, pytest.mark.slow]

PROFILE = """
kinds: {k: {model: slow, timeout: 10s}}
phases: [{name: not used, closed: {users: 1, requests: 1}}]
"""
# `slow` takes 50 ms an execution, whatever its batch: the larger the batch, the better
SWEEP = """
name: known
seed: 3
profile: profile.yaml
loads: [{users: 2}, {users: 8}]
block: 800ms
repeats: 2
objectives: ["latency max < 5s"]
configurations:
  - {name: alone, batching: false}
  - {name: two, max_batch_size: 2}
  - {name: four, max_batch_size: 4}
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "profile.yaml").write_text(PROFILE)

    def of(text):
        path = tmp_path / "sweep.yaml"
        path.write_text(text)
        return path

    return of


def finished(out):
    """(name, when it began) of each whole block."""
    found = {}
    for path in out.glob("blocks/*/run.json"):
        info = json.loads(path.read_text() or "{}")  # empty: just being made
        if info.get("status") == "finished":
            found[path.parent.name] = info["started_at"]
    return found


def check_the_known(result):
    best = result["best"]
    assert (best["configuration"], best["verdict"]) == ("four", "clear")
    assert best["probability"] >= 0.95
    cells = {(cell["configuration"], cell["load"]): cell for cell in result["cells"]}
    # field case 28: whether requests were merged is read from counters before and after, not guessed
    assert cells["alone", "8 users"]["mean_batch"] == 1
    assert cells["two", "8 users"]["mean_batch"] == pytest.approx(2, abs=0.2)
    assert cells["four", "8 users"]["mean_batch"] == pytest.approx(4, abs=0.5)
    rates = [cells[name, "8 users"]["achieved_per_s"] for name in ("alone", "two", "four")]
    assert rates[1] / rates[0] == pytest.approx(2, rel=0.3)
    assert rates[2] / rates[0] == pytest.approx(4, rel=0.3)
    assert cells["four", "8 users"]["front"]
    assert not cells["alone", "8 users"]["front"]
    assert all(cell["blocks"] == 2 for cell in result["cells"])


def test_it_survives_ctrl_c_and_picks_the_best(triton, files, tmp_path):
    out = tmp_path / "swept"
    process = spawn("sweep", files(SWEEP), "--target", triton.grpc_target, "--out", out)
    end = time.monotonic() + 90
    try:
        while len(finished(out)) < 4 and time.monotonic() < end and process.poll() is None:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert f"loadgen sweep resume {out} goes on" in " ".join(said.split())
    before = finished(out)
    assert 4 <= len(before) < 12
    assert json.loads((out / "sweep.json").read_text())["status"] == "interrupted"

    answer = loadgen("sweep", "resume", out, "--json", "-q")
    result = answer.json
    assert answer.code == 0, answer
    after = finished(out)
    assert len(after) == 12
    assert {name: after[name] for name in before} == before  # none was measured again
    assert (result["status"], result["blocks"]["finished"]) == ("finished", 12)

    check_the_known(result)
    shown = loadgen("sweep", "show", out, "--json")
    assert (shown.code, shown.json) == (0, result)
    page = (out / "sweep.html").read_text()
    assert "Plotly.newPlot" in page
    assert "four" in page
    # and the model is as it was found
    with urllib.request.urlopen(f"{triton.http_target}/v2/models/slow/config", timeout=10) as told:
        assert "dynamic_batching" in json.load(told)


def test_resized_live_and_one_that_cannot_be_loaded(triton, files, tmp_path):
    text = (
        SWEEP.partition("configurations:")[0]
        .replace("repeats: 2", "repeats: 1")
        .replace("{users: 2}, {users: 8}", "{users: 24}")
    )
    text += """configurations:
  - {name: one}
  - {name: twice, instances: 2}
  - {name: never, set: {parameters.sleep_ms.string_value: none}}
"""
    out = tmp_path / "swept"
    answer = loadgen("sweep", files(text), "--target", triton.http_target, "--out", out, "--json", "-q")
    assert answer.code == 3, answer  # one block a cell says nothing about noise
    result = answer.json
    rows = {row["name"]: row for row in result["configurations"]}
    assert "could not convert string to float" in rows["never"]["failed"]
    assert rows["never"]["score"] is None
    hows = {visit["configuration"]: visit["how"] for visit in result["visits"]}
    assert hows == {"twice": "loaded", "one": "resized"}  # in the order of seed 3, after the one that failed
    assert all(visit["steady"] for visit in result["visits"])
    cells = {cell["configuration"]: cell for cell in result["cells"]}
    assert (
        cells["twice"]["achieved_per_s"] > 1.4 * cells["one"]["achieved_per_s"]
    )  # twice, but for the hand-overs
    assert (result["best"]["configuration"], result["best"]["verdict"]) == ("twice", "inconclusive")


def test_what_triton_would_hide_is_said_before_anything_is_sent(triton, files, tmp_path):
    text = SWEEP + "  - {name: wrong, preferred: [2, 16]}\n"
    answer = loadgen("sweep", files(text), "--target", triton.http_target, "--out", tmp_path / "never")
    assert answer.code == 2
    assert answer.error_lines == [
        "error: configuration 'wrong': preferred_batch_size 16 is more than max_batch_size 4"
    ]
    assert not (tmp_path / "never").exists()
