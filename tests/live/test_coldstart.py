"""Cold starts of a real Triton: cold answers of each instance and length, warm-up, loads that are none, Ctrl-C."""

import asyncio
import json
import shutil
import signal
import time
from urllib.request import urlopen

import pytest

from loadgen.connect.options import ConnectOptions
from loadgen.lab.cold_repeat import Condition, NotColdError, Site, cold_load
from loadgen.triton.control import Control
from tests.live.conftest import MODELS
from tests.support.cli import loadgen, spawn

pytestmark = [pytest.mark.live, pytest.mark.slow]
MS = 10**6
PROFILE = """
name: cold
kinds:
  k: {model: cold, length: {uniform: {min: 2, max: 30}}}
phases:
  - {name: p, closed: {users: 1, requests: 30}}
"""
QUICK = ("--lengths", "8,16", "--answers", 10, "--within", 300, "--drop", "files", "-q")


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(PROFILE)
    return path


def told(out):
    return json.loads((out / "coldstart.json").read_text())


def test_a_process_a_repeat_every_stage_each_length_each_instance(profile, tmp_path):
    """Case 21 on the real server: 2 instances, 2 cold answers, for each new length again; warm-up takes them away."""
    repository = tmp_path / "repository"
    shutil.copytree(MODELS / "cold", repository / "cold")
    out = tmp_path / "out"
    options = ("--repository", repository, "--repeats", 1, "--cache", "dropped", *QUICK)
    answer = loadgen("coldstart", profile, "--out", out, *options)
    assert answer.code == 0, answer
    off, on = told(out)["summary"]["conditions"]
    assert (off["warmup"], on["warmup"]) == (False, True)
    stages = {key: value["median"] for key, value in off["stages_ns"].items()}
    assert set(stages) == {
        "live", "server_ready", "model_ready", "start_to_answer", "unload", "load_call", "load_to_ready",
        "load_to_answer", "first_answer", "reload_to_ready", "reload_first_answer",
    }  # fmt: skip
    assert stages["live"] <= stages["server_ready"] <= stages["model_ready"] < stages["start_to_answer"]
    assert stages["load_call"] <= stages["load_to_ready"] < stages["load_to_answer"]
    assert stages["first_answer"] >= 400 * MS
    assert stages["reload_first_answer"] >= 400 * MS  # a true load: its instances are new
    for shape in off["shapes"]:
        # on a busy machine two may come close enough together to be one batch: both are cold, and one is to come
        assert 2 <= shape["cold_answers"]["max"] <= 4, off["shapes"]
        assert shape["first_ns"]["min"] >= 400 * MS
    # each instance slept once a length before it was ready
    assert on["stages_ns"]["first_answer"]["max"] < 400 * MS
    assert on["stages_ns"]["load_to_ready"]["min"] > 2 * 400 * MS
    warmed = next(repeat for repeat in told(out)["repeats"] if "no warm-up" not in repeat["condition"])
    assert all(max(shape["latency_ns"]) < 400 * MS for shape in warmed["shapes"])
    memory = off["memory_bytes"]
    assert memory["before"]["median"] < memory["loaded"]["median"] <= 1.2 * memory["warm"]["median"]
    assert off["cached_share"]["max"] == 0


def test_at_a_target_the_model_is_unloaded_and_left_as_it_was(triton, target, profile, tmp_path):
    triton.load("cold")
    out = tmp_path / "out"
    answer = loadgen(
        "coldstart", profile, "--target", target.url, "--out", out, "--repeats", 1, "--cache", "warm", *QUICK
    )
    assert answer.code == 0, answer
    cold = told(out)
    assert (cold["mode"], len(cold["repeats"]), cold["rejected"]) == ("load", 2, [])
    off, on = cold["summary"]["conditions"]
    assert off["stages_ns"]["first_answer"]["min"] >= 400 * MS > on["stages_ns"]["first_answer"]["max"]
    assert "live" not in off["stages_ns"]
    assert asyncio.run(_config(target))["parameters"]["cold_ms"]["string_value"] == "400"
    assert not asyncio.run(_config(target)).get("model_warmup")


async def _config(target):
    async with Control(target) as control:
        return (await control.model_facts("cold")).config


ONE_LENGTH = """
name: one
kinds: {k: {model: cold, length: 8, timeout: 300ms}}
phases: [{name: load, closed: {users: 2, requests: 40}}]
"""


def test_a_plain_run_shows_the_cold_answer_of_each_instance_and_none_is_among_the_loads(
    triton, target, tmp_path
):
    """Case 21: each of 2 instances sleeps 400 ms at its first answer, longer than the kind's timeout."""
    triton.unload("cold")
    triton.load("cold")
    (tmp_path / "p.yaml").write_text(ONE_LENGTH)
    answer = loadgen(
        "run", tmp_path / "p.yaml", "--target", target.url, "--out", tmp_path / "run", "--json", "-q"
    )
    first = answer.json["first_each_ns"]["k"]
    assert len(first) == 2
    assert min(first) >= 400 * MS
    assert answer.json["total"]["counts"]["ok"] == 40, answer


def test_a_second_load_of_the_same_files_is_never_a_cold_start(triton, target):
    """Triton answers it with 200 at once; the model was ready before."""
    triton.load("cold")

    async def load(*, unload):
        async with Control(target) as control:
            site = Site(control, ConnectOptions(), "cold", (), 2, 4, 10**10, 10**10, 10**10)
            stages = {}
            await cold_load(site, Condition("c", "warm", warmup=False), stages, unload=unload)
            return stages

    assert asyncio.run(load(unload=True))["load_to_ready"] > 10 * MS
    with pytest.raises(NotColdError, match="that load did nothing"):
        asyncio.run(load(unload=False))


def test_an_interrupt_keeps_the_finished_repeats(triton, profile, tmp_path):
    triton.load("cold")
    out = tmp_path / "out"
    options = ("--repeats", 50, "--cache", "warm", "--warmup", "off", *QUICK)
    process = spawn("coldstart", profile, "--target", triton.http_target, "--out", out, *options)
    try:
        deadline = time.monotonic() + 60
        while not (out / "coldstart.json").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    cold = told(out)
    assert cold["status"] == "interrupted"
    assert 1 <= len(cold["repeats"]) < 50
    assert "start to" not in said
    assert "load to model ready" in said
    assert "Traceback" not in errors
    with urlopen(f"{triton.http_target}/v2/models/cold/ready") as answer:  # left loaded
        assert answer.status == 200
