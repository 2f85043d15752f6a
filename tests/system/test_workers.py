"""Several processes, one plan: the same arrivals as one process sends, merged exactly, also when one dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from loadgen.runread import read_run
from tests.support.cli import ROOT, loadgen, spawn
from tests.support.kserve_mock import Mock

PROFILE = """
name: t
seed: 5
kinds:
  a: {model: m, length: {uniform: {min: 1, max: 50}}, weight: 2}
  b: {model: m, length: 7}
phases:
  - {name: warm, warmup: true, closed: {users: 6, requests: 12}}
  - {name: open, open: {arrivals: {gamma: {burstiness: 4}}, rate: [{duration: 1s, from: 50/s, to: 300/s}]}}
  - {name: closed, closed: {users: 5, requests: 101}}
%s
"""


def run(tmp_path, mock, name, *options, text=PROFILE % ""):
    path, out = tmp_path / "p.yaml", tmp_path / name
    path.write_text(text)
    answer = loadgen("run", path, "--target", mock.target, "--out", out, "--json", "-q", *options)
    return answer, out


def arrivals(out, phase):
    """(seq, kind, length, due from the phase's start) of every row, in order of seq."""
    record = read_run(out)
    start = next(p["start_ns"] for p in record.info["phases"] if p["name"] == phase)
    rows = record.records.to_pylist()
    return sorted(
        (r["seq"], r["kind"], r["length"], r["due_ns"] - start) for r in rows if r["phase"] == phase
    )


def test_three_workers_send_what_one_sends(tmp_path):
    with Mock() as mock:
        _, one = run(tmp_path, mock, "one")
        before = mock.requests
        answer, three = run(tmp_path, mock, "three", "--workers", "3")
    assert arrivals(three, "open") == arrivals(one, "open")
    assert len(arrivals(three, "open")) > 100
    assert {p.name for p in three.glob("records*")} == {"records.arrow", "records-1.arrow", "records-2.arrow"}
    # closed: the same number of requests, by the same number of users
    counts = {p["name"]: p["counts"] for p in answer.json["phases"]}
    assert (counts["warm"]["ok"], counts["closed"]["ok"]) == (12, 101)
    seqs = [row[0] for row in arrivals(three, "closed")]
    assert len(set(seqs)) == 101
    assert mock.requests - before == 12 + counts["open"]["ok"] + 101 + 2
    assert answer.json["client"]["workers"] == 3
    # merged exactly: the summary's percentile is the rank of the union
    rows = read_run(three).records.to_pylist()
    latency = sorted(r["done_ns"] - r["due_ns"] for r in rows if r["phase"] != "warm")
    assert answer.json["total"]["latency_ns"]["n"] == len(latency)
    assert answer.json["total"]["latency_ns"]["max"] == latency[-1]
    assert answer.json["total"]["latency_ns"]["p50"] == latency[-(-len(latency) // 2) - 1]


@pytest.mark.parametrize(
    ("phase", "n"),
    [
        ("open: {arrivals: uniform, rate: [{duration: 1s, at: 10/s}]}", 10),
        ("closed: {users: 4, requests: 11}", 11),
        ("closed: {users: 5, requests: 4}", 4),
    ],
)
def test_inputs_are_counted_over_all_workers(tmp_path, phase, n):
    text = f"name: t\nseed: 5\nkinds: {{k: {{model: m, length: 7, distinct: all}}}}\nphases: [{{name: a, {phase}}}]\n"
    with Mock() as mock:
        answer, _ = run(tmp_path, mock, "r", "--workers", "3", text=text)
        assert mock.requests == n + 1  # and the first of the kind
    (row,) = answer.json["inputs"]
    assert (row["requests"], row["distinct"], row["repeated"]) == (n, n, 0)


def test_all_start_at_one_instant_and_share_the_cap(tmp_path):
    text = PROFILE % "cap: {in_flight: 5, when_full: wait}"
    with Mock(lambda n: (0.05 if n > 1 else 0, 200, None)) as mock:
        _, out = run(tmp_path, mock, "r", "--workers", "2", text=text)
        assert mock.most_in_flight <= 6  # 5 users and the cap's 5; warm-up has 6
    first = {}
    for row in read_run(out).records.to_pylist():
        if row["phase"] == "closed":
            worker = row["seq"] % 2
            first[worker] = min(first.get(worker, row["due_ns"]), row["due_ns"])
    assert first[0] == first[1]


def test_workers_that_would_have_nothing_to_do_are_refused(tmp_path):
    with Mock() as mock:
        path = tmp_path / "p.yaml"
        path.write_text(PROFILE % "cap: {in_flight: 3}")
        answer = loadgen("run", path, "--target", mock.target, "--out", tmp_path / "r", "--workers", "4")
    assert (answer.code, len(answer.error_lines)) == (2, 1)
    assert "4 workers" in answer.err
    assert "1 to 3" in answer.err
    assert not (tmp_path / "r").exists()


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def children(pid):
    return [p for p in psutil.Process(pid).children() if "loadgen.lab.worker" in " ".join(p.cmdline())]


LONG = """
name: t
kinds: {k: {model: m, length: 4}}
phases:
  - {name: load, open: {arrivals: uniform, rate: [{duration: 4s, at: 200/s}]}}
"""


def test_a_worker_that_is_killed_leaves_a_run_marked_as_such(tmp_path):
    path, out = tmp_path / "p.yaml", tmp_path / "run"
    path.write_text(LONG)
    with Mock() as mock:
        process = spawn("run", path, "--target", mock.target, "--out", out, "--workers", "2", "--json")
        wait_for(lambda: mock.requests > 300)
        os.kill(children(process.pid)[1].pid, signal.SIGKILL)
        text, err = process.communicate(timeout=30)
    summary = json.loads(text)
    counts = summary["total"]["counts"]
    doubts = {d["code"]: d for d in summary["doubts"]}
    assert "worker_lost" in doubts, err
    assert doubts["worker_lost"]["invalidates"]
    assert f": {counts['never_sent']} of 800 planned requests (" in doubts["worker_lost"]["text"]
    assert "other_clients" not in doubts
    assert summary["total"]["offered_per_s"] == 200.0
    assert process.returncode == 3
    assert counts["planned"] == 800
    assert 400 + 20 <= counts["ok"] < 700
    assert counts["sent"] == counts["ok"]  # the rest was planned and never sent
    assert summary["total"]["latency_ns"]["n"] == counts["ok"]
    assert "Traceback" not in err


def test_what_a_killed_worker_had_on_its_way_is_of_unknown_end(tmp_path):
    """100/s each, answered after 300 ms: some 30 were in flight at its last heartbeat."""
    path, out = tmp_path / "p.yaml", tmp_path / "run"
    path.write_text(LONG)
    with Mock(lambda n: (0.3, 200, None)) as mock:
        process = spawn("run", path, "--target", mock.target, "--out", out, "--workers", "2", "--json")
        wait_for(lambda: mock.requests > 400)
        os.kill(children(process.pid)[1].pid, signal.SIGKILL)
        text, err = process.communicate(timeout=30)
    summary = json.loads(text)
    doubts = {d["code"]: d for d in summary["doubts"]}
    unknown = summary["total"]["counts"]["unknown"]
    assert 10 <= unknown <= 60, err
    assert (
        f"how {unknown} of {summary['total']['counts']['ok'] + unknown} requests"
        in doubts["unknown_ends"]["text"]
    )
    assert (doubts["unknown_ends"]["invalidates"], summary["valid"]) == (True, False)
    assert process.returncode == 3


def test_workers_end_with_their_parent(tmp_path):
    path, out = tmp_path / "p.yaml", tmp_path / "run"
    path.write_text(LONG.replace("4s", "60s"))
    with Mock() as mock:
        process = spawn("run", path, "--target", mock.target, "--out", out, "--workers", "2")
        wait_for(lambda: mock.requests > 100)
        workers = children(process.pid)
        process.kill()
        process.communicate(timeout=10)
        wait_for(lambda: not any(p.is_running() for p in workers))
    assert len(workers) == 2
    assert all(
        pa.ipc.open_stream(Path(f).read_bytes()).read_next_batch().num_rows for f in out.glob("records*")
    )


def test_an_interrupt_reaches_every_worker(tmp_path):
    path, out = tmp_path / "p.yaml", tmp_path / "run"
    path.write_text(LONG.replace("4s", "60s"))
    with Mock() as mock:
        process = spawn("run", path, "--target", mock.target, "--out", out, "--workers", "2")
        wait_for(lambda: mock.requests > 100)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        sent = mock.requests - 1
    assert process.returncode == 130, err
    counts = json.loads((out / "summary.json").read_text())["total"]["counts"]
    assert counts["sent"] == counts["ok"] == sent


@pytest.mark.parametrize("text", ["9999", "a", "0,,1", "-1"])
def test_cores_that_are_not_there_are_refused(tmp_path, text):
    path = tmp_path / "p.yaml"
    path.write_text(LONG)
    answer = loadgen("run", path, "--target", "http://127.0.0.1:1", "--pin", text)
    assert (answer.code, len(answer.error_lines)) == (2, 1)
    assert "--pin" in answer.err


def test_realtime_and_pinning_say_what_they_came_to(tmp_path):
    core = str(min(os.sched_getaffinity(0)))
    allowed = os.sched_getaffinity(0)
    try:
        with Mock() as mock:
            answer, out = run(tmp_path, mock, "r", "--realtime", "--pin", core, text=LONG.replace("4s", "1s"))
    finally:
        os.sched_setaffinity(0, allowed)
    assert answer.json["total"]["counts"]["ok"] == 200
    [facts] = json.loads((out / "run.json").read_text())["client"]["senders"]
    assert facts["pinning"] == f"pinned to {core}"
    assert facts["scheduling"].startswith(("SCHED_FIFO", "not real-time: "))
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


@pytest.mark.parametrize("workers", ["1", "2"])
def test_real_time_that_is_refused_is_told(tmp_path, workers):
    path = tmp_path / "p.yaml"
    path.write_text(LONG.replace("4s", "500ms"))
    refuse = (  # for this process and its workers, whoever runs the test
        "import os, sys\n"
        "def refuse(pid, policy, param):\n"
        "    if policy != os.SCHED_OTHER: raise PermissionError\n"
        "os.sched_setscheduler = refuse\n"
    )
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(refuse)
    with Mock() as mock:
        command = [sys.executable, "-m", "loadgen", "run", path, "--target", mock.target, "--out", tmp_path / "r",
                   "--workers", workers, "--realtime"]  # fmt: skip
        env = os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path / 'site'}"}
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=env, check=False)
    assert done.stderr.count("note: not real-time: not permitted") == 1, done.stderr
    assert "the client is not real-time: not permitted" in " ".join(done.stdout.split())
