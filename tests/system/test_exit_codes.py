"""One table of exit codes and one order among them, as a shell sees them: a process for each."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadgen.exits import ExitCode
from tests.support.cli import ROOT, loadgen, spawn
from tests.support.kserve_mock import Mock
from tests.support.scripted import Scripted

PROFILE = """
name: t
kinds: {k: {model: m, length: 4, timeout: 2s}}
phases:
  - {name: warm-up, warmup: true, closed: {users: 4, requests: 8}}
  - {name: load, open: {arrivals: uniform, rate: [{duration: DURATION, at: 200/s}]}}
objectives: [OBJECTIVES]
"""
PASSES, MISSED = '"latency max < 5s"', '"latency max < 1us"'


@pytest.fixture
def profile(tmp_path):
    def write(objectives=PASSES, duration="2s"):
        path = tmp_path / "p.yaml"
        path.write_text(PROFILE.replace("OBJECTIVES", objectives).replace("DURATION", duration))
        return path

    return write


def ended(*args, **options):
    process = spawn(*args, **options)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    return process.returncode, out, err


def codes(out):
    return {doubt["code"] for doubt in json.loads(out)["doubts"] if doubt["invalidates"]}


def unless_too_busy(code, out):
    """The code meant; 3 where this machine was too busy to be believed, which outranks all of them."""
    return 3 if "client_bound" in codes(out) else code


def test_the_readme_has_the_table_of_the_code():
    rows = [
        line.split("|")[1:3]
        for line in (ROOT / "README.md").read_text().splitlines()
        if line.startswith("| ")
    ]
    told = {int(number): name.strip().strip("`") for number, name in rows if number.strip().isdigit()}
    assert told == {int(code): code.name for code in ExitCode}


@pytest.mark.parametrize(
    ("objectives", "code"),
    [(PASSES, 0), (MISSED, 1), ('"latency p99.9 < 5s"', 3), (f'{MISSED}, "latency p99.9 < 5s"', 1)],
)
def test_what_objectives_come_to(profile, tmp_path, objectives, code):
    with Mock(lambda _: (0.001, 200, None)) as mock:
        ran = ended(
            "run", profile(objectives), "--target", mock.target, "--out", tmp_path / "r", "-q", "--json"
        )
    assert ran[0] == unless_too_busy(code, ran[1]), ran
    assert ended("check", tmp_path / "r")[0] == ran[0]


def test_usage_and_interrupts(profile, tmp_path):
    assert ended("run", tmp_path / "absent.yaml")[0] == ended("run", "--absent")[0] == 2
    with Mock(lambda _: (0.001, 200, None)) as mock:
        where = ("--target", mock.target, "--out", tmp_path / "r")
        process = spawn("run", profile(MISSED, "30s"), *where, "-q")
        end = time.monotonic() + 20
        while mock.requests < 100:
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode == 130


_SERVER = """
import os, sys, time
from tests.support.kserve_mock import Mock
def answer(n):
    if n == int(sys.argv[1]):
        os.kill(os.getpid(), 9)
    return 0.001, 200, None
with Mock(answer) as mock:
    print(mock.target, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("last", [60, 350])
def test_a_server_that_is_killed_in_the_middle_makes_no_result(profile, tmp_path, last):
    """Not an objective missed: nobody knows what it would have answered."""
    command = [sys.executable, "-c", _SERVER, str(last)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        where = ("--target", server.stdout.readline().strip(), "--out", tmp_path / "r")
        code, out, err = ended("run", profile(f'{MISSED}, "failure rate < 1%"'), *where, "--json", "-q")
    finally:
        server.kill()
        server.wait()
    assert (code, "outage" in codes(out)) == (3, True), (out, err)
    missed, failures = json.loads(out)["slo"]
    assert missed["verdict"] == "fail"
    assert failures["verdict"] == ("fail" if last == 60 else "inconclusive")  # 50 in a row are one event
    assert ended("check", tmp_path / "r")[0] == 3


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("back_s", [0.4, 3600])
def test_a_server_that_goes_away_is_no_result_even_if_it_comes_back(profile, tmp_path, protocol, back_s):
    def fault(link, n, _):
        if n == 200:
            link.server.restart(back_s)
            return True
        return None

    with Scripted(protocol, fault) as server:
        path = profile(f'{MISSED}, "failure rate < 1%"')
        path.write_text(path.read_text().replace(" length: 4,", ""))
        answer = loadgen("run", path, "--target", server.target, "--out", tmp_path / "r", "--json")
    assert (answer.code, "outage" in codes(answer.out)) == (3, True)


def test_a_proxy_whose_server_is_gone_is_no_result(profile, tmp_path):
    with Mock(lambda n: (0.001, 200, None) if n < 200 else (0.0, 502, "bad gateway")) as mock:
        answer = loadgen("run", profile(MISSED), "--target", mock.target, "--out", tmp_path / "r", "--json")
    assert (answer.code, "outage" in codes(answer.out)) == (3, True)


@pytest.mark.parametrize(
    "answer",
    [
        lambda n: (0.0, 429, "full") if n % 3 else (0.001, 200, None),
        lambda n: (0.0, 429, "full") if n > 200 else (0.001, 200, None),
        lambda n: (0.0, 500, "no") if n % 3 == 1 else (0.001, 200, None),
        lambda n: (0.0, 500, "device error") if n > 200 else (0.001, 200, None),
        lambda n: (0.0, 400, "no such input") if n > 200 else (0.001, 200, None),
    ],
    ids=[
        "full now and then",
        "full from then on",
        "a third fails",
        "errors from then on",
        "refusals from then on",
    ],
)
def test_a_server_that_answers_misses_its_objectives(profile, tmp_path, answer):
    with Mock(answer) as mock:
        ran = loadgen("run", profile(MISSED), "--target", mock.target, "--out", tmp_path / "r", "--json")
    assert (ran.code, "outage" in codes(ran.out)) == (unless_too_busy(1, ran.out), False)


_SWEEP = """
name: s
profile: PROFILE
model: m
loads: [{users: 2}]
block: 1s
repeats: 1
best: latency mean
grid: {delay: [0ms]}
"""


def _verbs(profile, tmp_path, run, nowhere):
    """Every way to name a place for a file or folder, where none can be made."""
    sweep, trace = tmp_path / "s.yaml", tmp_path / "t.csv"
    sweep.write_text(_SWEEP.replace("PROFILE", str(profile)))
    trace.write_text("t,input\n" + "".join(f"{n},{n % 9 + 1}\n" for n in range(50)))
    target = ("--target", "http://127.0.0.1:9")
    keys = "{columns: {time: t, input: input}, unit: ms}"
    return {
        "run": ("run", profile, *target, "--out", nowhere),
        "report": ("report", run, "--html", nowhere / "page.html"),
        "report over a folder": ("report", run, "--html", tmp_path),
        "sweep": ("sweep", "begin", sweep, *target, "--out", nowhere),
        "coldstart": ("coldstart", profile, *target, "--out", nowhere),
        "plan": ("profile", "show", profile, "--save", nowhere / "plan.arrow"),
        "synth": ("profile", "synth", trace, "--keys", keys, "--out", nowhere / "fit.yaml"),
    }


@pytest.mark.parametrize(
    "verb", ["run", "report", "report over a folder", "sweep", "coldstart", "plan", "synth"]
)
def test_what_cannot_be_written_has_one_code_and_one_line(profile, tmp_path, verb):
    with Mock(lambda _: (0.001, 200, None)) as mock:
        loadgen("run", profile(duration="300ms"), "--target", mock.target, "--out", tmp_path / "r", "-q")
    (tmp_path / "file").write_text("")
    answer = loadgen(*_verbs(profile(), tmp_path, tmp_path / "r", tmp_path / "file" / "x")[verb])
    assert (answer.code, len(answer.error_lines), answer.out) == (3, 1, ""), answer
    assert answer.error_lines[0].startswith("error: cannot write ")
    assert str(tmp_path) in answer.error_lines[0]


@pytest.mark.parametrize("stops", [True, False])
def test_what_an_interrupt_could_not_keep_is_not_called_interrupted(profile, tmp_path, stops):
    """130 promises that all so far is written."""
    with Mock(lambda _: (0.001, 200, None)) as mock:
        where = ("--target", mock.target, "--out", tmp_path / "r")
        process = spawn("run", profile(MISSED, "30s" if stops else "1s"), *where, "-q")
        end = time.monotonic() + 20
        while mock.requests < 100:
            assert time.monotonic() < end
            time.sleep(0.02)
        (tmp_path / "r" / "report.html").mkdir()  # in the way of the page
        (tmp_path / "r" / "report.html" / "x").write_text("")
        if stops:
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 3
    assert err.splitlines()[-1].startswith("error: cannot write ")


_ENDS = """
import sys
import loadgen.cli.main as main
def ends():
    exec(sys.argv[1])
main._call = ends
main.main()
"""


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("raise SystemExit(7)", 7),
        ("raise SystemExit(None)", 0),
        ("raise SystemExit('words')", 3),
        ("raise BrokenPipeError(32, 'Broken pipe')", 3),
        ("import os; r, w = os.pipe(); os.close(r); os.write(w, b'x')", 3),
        ("raise ConnectionResetError(104, 'reset')", 3),
        ("raise RuntimeError('x')", 3),
        ("raise KeyboardInterrupt", 130),
        ("print('x' * 100000, flush=True)", 0),
    ],
)
@pytest.mark.parametrize("read", [True, False])
def test_only_a_broken_standard_output_is_quiet(what, code, read):
    reading, writing = os.pipe()
    if not read:
        os.close(reading)
    command = [sys.executable, "-c", _ENDS, what]
    process = subprocess.Popen(
        command, stdout=writing, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    os.close(writing)
    if read:
        with os.fdopen(reading) as output:
            assert output.read().strip("x\n") == ""
    err = process.communicate(timeout=20)[1]
    assert process.returncode == code, err
    assert len(err.splitlines()) == (code not in (0, 7))


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_nobody_reads_stops_no_work(profile, tmp_path, unbuffered):
    """Every verb, also those that print as they go; what comes after the printing is still done."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [
        sys.executable,
        "-m",
        "loadgen",
        "profile",
        "show",
        str(profile()),
        "--save",
        str(tmp_path / "plan"),
    ]
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, env=env)
    os.close(writing)
    assert (done.returncode, "wrote " in done.stderr) == (0, True)
    assert Path(tmp_path / "plan").exists()


def test_a_fault_has_its_code_also_when_it_is_traced():
    """Python's own code of an exception is 1, which means an objective missed."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "LOADGEN_TRACE": "1"}
    command = [sys.executable, "-c", _ENDS, "raise RuntimeError('deep inside')"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, "Traceback" in done.stderr) == (3, True)
