"""Triton's system shared memory on a real server, over both protocols: the same bits, and nothing left behind."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from loadgen.connect.options import ConnectOptions
from loadgen.lab.target import make_transport
from loadgen.records import Payload, Placed, Tensor
from loadgen.triton.shared_memory import FOLDER, SharedMemory, own_name
from loadgen.wire import kserve_grpc, kserve_http
from tests.support.cli import loadgen, spawn
from tests.support.told import Told

pytestmark = pytest.mark.live

PROFILE = """
name: shared
kinds:
  k: {model: %s, batch: %d, timeout: 30s, shared_memory: %s}
phases:
  - {name: warm-up, warmup: true, closed: {users: 4, requests: 8}}
  - {name: load, closed: {users: 4, %s}}
"""

IDENTITY = "identity, length: {uniform: {min: 8, max: 64}}"


def regions(triton):
    """What the server knows."""
    with urllib.request.urlopen(f"{triton.http_target}/v2/systemsharedmemory/status", timeout=10) as answer:
        return [row["name"] for row in json.load(answer)]


def files():
    return sorted(path.name for path in FOLDER.glob("loadgen-*"))


def beats(run, workers):
    """The heartbeats of each sender so far."""
    paths = [run / (f"progress-{worker}.jsonl" if worker else "progress.jsonl") for worker in range(workers)]
    return [
        path.read_text().replace('":', '": ').replace("  ", " ") if path.exists() else "" for path in paths
    ]


@pytest.fixture(autouse=True)
def nothing_left(triton):
    before = files()  # of other runs on this machine
    yield
    assert regions(triton) == []
    assert set(files()) <= set(before)


def test_outputs_are_the_inputs_to_the_bit(target):
    random = np.random.default_rng(3)
    arrays = [
        random.standard_normal((rows, width)).astype("<f4") for rows, width in [(1, 1), (3, 17), (8, 4096)]
    ]
    arrays[0][:] = np.nan
    payloads = [
        Payload((Tensor("INPUT", "FP32", a.shape, a.tobytes()),), a.shape[1], a.shape[0]) for a in arrays
    ]
    codec = kserve_grpc if target.protocol == "grpc" else kserve_http

    async def go():
        memory = SharedMemory(target, ConnectOptions())
        transport = make_transport(target)
        bodies = {}
        transport.on_body = bodies.__setitem__
        try:
            placed = memory.place("k", payloads, inputs=True, outputs=[{"OUTPUT": a.nbytes} for a in arrays])
            await memory.open()
            await transport.open(told := Told(), 1)
            for token, one in enumerate(placed):
                request = codec.infer_request("identity", "", one.tensors, outputs=one.outputs)
                assert len(request.body) < 400
                told.send(transport, token, transport.prepare(request))
            await told.wait(len(placed))
            outputs = []
            for one in placed:
                [at] = one.outputs.values()
                outputs.append((FOLDER / at.name).read_bytes()[at.offset : at.offset + at.size])
            return told.replies, outputs, bodies
        finally:
            await transport.close()
            await memory.close()

    replies, outputs, bodies = asyncio.run(go())
    assert [(r.outcome.name, r.detail) for r in replies] == [("OK", None)] * 3
    assert outputs == [array.tobytes() for array in arrays]
    assert sorted(bodies) == [0, 1, 2]


@pytest.mark.parametrize(
    "asked",
    ["{inputs: true, outputs: true}", "{inputs: true}", "{outputs: true}", "{outputs: {OUTPUT: 4KiB}}"],
)
def test_a_run_through_shared_memory(triton, target, tmp_path, asked):
    path = tmp_path / "p.yaml"
    path.write_text(PROFILE % (IDENTITY, 2, asked, "requests: 200"))
    answer = loadgen("run", path, "--target", target.url, "--out", tmp_path / "run", "--json", "-q")
    assert answer.code == 0, answer
    assert answer.json["total"]["counts"]["ok"] == 200
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    [sender] = info["client"]["senders"]
    assert sender["shared_memory"]["bytes"] > 1000
    assert sender["shared_memory"]["removed"] == []


def test_what_a_run_left_that_was_killed_is_removed_and_said(triton, target, tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(PROFILE % (IDENTITY, 1, "{inputs: true, outputs: true}", "duration: 60s"))
    run = spawn("run", path, "--target", target.url, "--out", tmp_path / "killed")
    try:
        until = time.monotonic() + 60
        while len(regions(triton)) < 2 or not (tmp_path / "killed" / "records.arrow").exists():
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        run.kill()
        run.communicate()
    assert len(regions(triton)) == 2
    path.write_text(PROFILE % (IDENTITY, 1, "{inputs: true}", "requests: 20"))
    answer = loadgen("run", path, "--target", target.url, "--out", tmp_path / "next")
    assert answer.code == 0, answer
    assert "removed 2 shared memory regions that ended runs had left" in answer.err


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_after_an_interrupt(triton, target, tmp_path, number, workers):
    """While requests are in flight: the model takes its time."""
    path = tmp_path / "p.yaml"
    path.write_text(PROFILE % ("slow", 1, "{inputs: true, outputs: true}", "duration: 60s"))
    run = spawn("run", path, "--target", target.url, "--out", tmp_path / "run", "--workers", workers)
    until = time.monotonic() + 60
    try:
        while not all('"phase": 1' in text for text in beats(tmp_path / "run", workers)):
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < until
            time.sleep(0.05)
        assert len(regions(triton)) == 2 * workers
        run.send_signal(number)
        _, err = run.communicate(timeout=40)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 130, err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "interrupted"
    with urllib.request.urlopen(f"{triton.http_target}/v2/health/live", timeout=10) as answer:
        assert answer.status == 200


def test_a_region_of_a_process_that_lives_is_left_alone(triton, target):
    """Two runs at once; and a file whose name only looks like ours."""
    code = "import sys; from loadgen.triton.shared_memory import own_name; print(own_name(), flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd(),
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    ) as other:  # fmt: skip
        theirs, stranger = other.stdout.readline().strip(), "loadgen-of-mine"
        assert theirs.split("-")[2] == str(other.pid)
        made = [theirs, stranger, own_name()]
        for name in made:
            (FOLDER / name).write_bytes(bytes(64))

        async def sweep():
            memory = SharedMemory(target, ConnectOptions())
            try:
                await memory.open()
                return memory.removed
            finally:
                await memory.close()

        try:
            assert asyncio.run(sweep()) == []
            assert set(made) <= set(files())
            other.stdin.close()
            other.wait(10)
            assert asyncio.run(sweep()) == [theirs]
        finally:
            for name in made:
                (FOLDER / name).unlink(missing_ok=True)


def test_what_is_too_small_or_unknown_is_told_before_the_load(triton, target, tmp_path):
    path = tmp_path / "p.yaml"
    for asked, words in (
        ("{outputs: {OUTPUT: 16B}}", "OUTPUT"),
        ("{outputs: {OUT: 1KiB}}", "no output 'OUT'; allowed: OUTPUT"),
    ):
        path.write_text(PROFILE % (IDENTITY, 1, asked, "requests: 20"))
        answer = loadgen("run", path, "--target", target.url, "--out", tmp_path / "never")
        assert (answer.code, len(answer.error_lines)) in {(2, 1), (3, 1)}, answer
        assert words in answer.err


def test_placed_tensors_take_no_bytes_in_a_request():
    """Offsets are left out where they are 0, as the protocol has it."""
    from loadgen.records import Region

    tensor = Placed("x", "FP32", (1, 2), Region("r", 0, 8))
    head = json.loads(kserve_http.infer_request("m", "", [tensor], outputs={"y": Region("o", 64, 8)}).body)
    assert head["inputs"][0]["parameters"] == {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    assert head["outputs"][0]["parameters"]["shared_memory_offset"] == 64
