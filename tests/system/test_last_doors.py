"""What is left when everything else went wrong: damaged folders, full outputs, two runs at once, a hung server."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadgen.records import NotMeasuredError
from loadgen.runfile import write_atomic
from tests.support.cli import loadgen, spawn
from tests.support.kserve_mock import Mock

PROFILE = """
name: t
kinds: {k: {model: m, length: 4, timeout: 60s}}
phases:
  - {name: warm-up, warmup: true, closed: {users: 2, requests: 4}}
  - {name: load, closed: {users: 2, requests: 300}}
"""


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(PROFILE)
    return path


@pytest.fixture
def folder(profile, tmp_path):
    with Mock(lambda _: (0.001, 200, None)) as mock:
        loadgen("run", profile, "--target", mock.target, "--out", tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("harm", ["cut", "emptied", "deleted", "overwritten"])
@pytest.mark.parametrize("verb", ["report", "check"])
def test_damaged_records_are_no_result(folder, harm, verb):
    summary = (folder / "summary.json").read_bytes()
    records = folder / "records.arrow"
    content = records.read_bytes()
    if harm == "deleted":
        records.unlink()
    else:
        middle = len(content) // 2
        harmed = {"cut": content[:middle], "emptied": b"", "overwritten": os.urandom(len(content))}[harm]
        records.write_bytes(harmed)
    options = ["--objective", "latency p99 < 10s"] if verb == "check" else []
    answer = loadgen(verb, folder, *options)
    assert (answer.code, len(answer.error_lines)) == (3, 1), answer
    assert "304 records" in answer.err
    assert (folder / "summary.json").read_bytes() == summary


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("server.jsonl", b"\xff\xfe\n"),
        ("server.jsonl", b"null\n"),
        ("watch.jsonl", b"[1]\n7\n"),
        ("run.json", b'{"format": 1, "profile": "x"}'),
    ],
)
def test_nonsense_in_a_run_folder_is_one_line_and_not_an_objective_missed(folder, name, content):
    (folder / name).write_bytes(content)
    answer = loadgen("report", folder)
    assert answer.code == (3 if name == "run.json" else 0)
    assert len(answer.error_lines) == (answer.code == 3)


def test_an_output_that_takes_nothing_is_told(folder):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "loadgen", "report", folder], stdout=full, stderr=subprocess.PIPE,
                              text=True, check=False)  # fmt: skip
    assert done.returncode == 3
    assert done.stderr == "error: cannot write standard output: No space left on device\n"
    assert "Traceback" not in done.stderr


def test_a_full_disk_keeps_no_report_from_being_printed(folder):
    (folder / "summary.json").unlink()
    command = ["bash", "-c", 'ulimit -f 1; exec "$@"', "-", sys.executable, "-m", "loadgen", "report", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "latency from due" in done.stdout
    assert done.stderr.startswith(f"error: cannot write {folder / 'summary.json'}: ")
    assert not (folder / "summary.json").exists()


def test_what_cannot_be_written_is_told_by_its_own_name(folder):
    """Where even the file beside it cannot be taken back: a read-only disk, or no folder at all."""
    with pytest.raises(NotMeasuredError, match=r"^cannot write .*summary\.json/x: Not a directory$"):
        write_atomic(folder / "summary.json" / "x", "")


_GRPC = """
import asyncio, sys
from loadgen.cli.main import main
sys.argv = ["loadgen", "--version"]
try:
    main()
except SystemExit:
    pass
import grpc

async def fork_while_a_call_waits():
    call = grpc.aio.insecure_channel("127.0.0.1:9").unary_unary("/a/b")
    waiting = asyncio.ensure_future(call(b"", wait_for_ready=True, timeout=5))
    await asyncio.sleep(0.2)
    await (await asyncio.create_subprocess_exec(sys.executable, "-c", "0")).wait()
    waiting.cancel()

asyncio.run(fork_while_a_call_waits())
"""


def test_the_grpc_library_says_nothing_of_processes_that_we_start():
    done = subprocess.run([sys.executable, "-c", _GRPC], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_a_reader_that_has_enough_does_not_change_the_exit_code(profile, tmp_path):
    with Mock(lambda n: (0.001, 200, None) if n < 100 else (0, 500, "x")) as mock:
        command = f"{sys.executable} -m loadgen run {profile} --target {mock.target} --out {tmp_path / 'r'} -q | head -1; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


def unread(args, both):
    """The exit code of a command whose output, and with `both` its stderr, goes to a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    to = writing if both else subprocess.DEVNULL
    command = [sys.executable, "-m", "loadgen", *map(str, args)]
    done = subprocess.run(command, stdout=writing, stderr=to, check=False)
    os.close(writing)
    return done.returncode


@pytest.mark.parametrize("both", [True, False])
def test_nobody_reading_changes_no_exit_code(folder, profile, tmp_path, both):
    assert unread(["run", "nosuch.yaml"], both) == 2
    assert unread(["report", folder], both) == 0
    assert unread(["report", folder, "--json"], both) == 0
    assert unread(["run", "--nosuch"], both) == 2
    assert unread(["check", folder, "--objective", "latency p99 < 1ns"], both) == 1
    with Mock(lambda _: (0.001, 200, None)) as mock:
        assert unread(["run", profile, "--target", mock.target, "--out", tmp_path / "r"], both) == 0
    assert (tmp_path / "r" / "summary.json").exists()


def test_runs_that_begin_in_the_same_second_keep_out_of_each_others_way(profile, tmp_path):
    with Mock() as mock:
        runs = [spawn("run", profile, "--target", mock.target, "-q", cwd=tmp_path) for _ in range(4)]
        said = [process.communicate(timeout=60)[1] for process in runs]
    assert 2 not in [process.returncode for process in runs], said
    folders = list((tmp_path / "runs").iterdir())
    assert len(folders) == 4
    for folder in folders:
        assert json.loads((folder / "summary.json").read_text())["total"]["counts"]["ok"] == 300


def test_a_refused_run_leaves_no_folder(profile, tmp_path):
    answer = loadgen("run", profile, "--target", "http://127.0.0.1:9", "--out", tmp_path / "deep" / "run")
    assert answer.code == 2
    assert not (tmp_path / "deep" / "run").exists()


def test_an_interrupt_while_the_server_hangs_ends_within_seconds(tmp_path):
    path, out = tmp_path / "p.yaml", tmp_path / "run"
    path.write_text(PROFILE.replace("requests: 300", "duration: 60s"))
    with Mock() as mock:
        hung = []

        def answer(n):
            return (None, 200, None) if hung else (0.001, 200, None)

        mock.answer = answer
        process = spawn("run", path, "--target", mock.target, "--out", out)
        end = time.monotonic() + 20
        while mock.requests < 200:
            assert time.monotonic() < end
            time.sleep(0.02)
        hung.append(True)
        mock.hang_statistics = True
        seen = mock.requests
        while mock.requests < seen + 2:
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert time.monotonic() - began < 8
    assert "reading the server's statistics" in err
    summary = json.loads((out / "summary.json").read_text())
    assert summary["total"]["counts"]["cancelled"] == 2
    assert "no_server_statistics" in {d["code"] for d in summary["doubts"]}


def test_a_fault_of_our_own_is_one_line_and_code_3(folder, monkeypatch):
    def broken(*_):
        raise RuntimeError("deep inside")

    monkeypatch.setattr("loadgen.report.write.write_reports", broken)
    answer = loadgen("report", folder)
    assert (answer.code, len(answer.error_lines)) == (3, 1)
    assert "RuntimeError: deep inside" in answer.err
    assert "LOADGEN_TRACE" in answer.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_polite_end_is_a_ctrl_c_in_every_command(tmp_path, number):
    process = _waits_for_a_target(tmp_path)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()


def test_a_hangup_that_the_caller_ignores_stays_ignored(tmp_path):
    """As under nohup."""
    process = _waits_for_a_target(
        tmp_path, "--wait", "2s", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    )
    process.send_signal(signal.SIGHUP)
    err = process.communicate(timeout=20)[1]
    assert process.returncode == 2, err


def _waits_for_a_target(tmp_path, *options, **how):
    """A run whose server is not there yet."""
    path = tmp_path / "p.yaml"
    path.write_text(PROFILE)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        where = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        process = spawn(
            "run", path, "--target", where, "--wait", "60s", *options, "--out", tmp_path / "run", **how
        )
        first = process.stderr.read(1)
        assert first, process.communicate()
    return process
