"""The main job on a real Triton, over both protocols: what the run says is what the server counted."""

import json
import urllib.request

import numpy as np
import pyarrow as pa
import pytest

from tests.support.cli import loadgen

pytestmark = pytest.mark.live

PROFILE = """
name: live
seed: 3
kinds:
  short: {model: %(model)s, weight: 3, length: {uniform: {min: 2, max: 16}}, timeout: 10s}
  long: {model: %(model)s, weight: 1, length: {fixed: 64}, timeout: 10s}
phases:
  - {name: warm-up, warmup: true, closed: {users: 8, requests: 32}}
  - {name: open, open: {arrivals: poisson, rate: [{duration: 2s, from: 20/s, to: 120/s}, {duration: 1s, at: 60/s}]}}
  - {name: closed, closed: {users: 8, requests: 400}}
objectives: ["latency max < 2s", "failure rate in all phases < 1%%"]
"""


def statistics(triton, model):
    with urllib.request.urlopen(f"{triton.http_target}/v2/models/{model}/stats", timeout=10) as answer:
        return json.load(answer)["model_stats"][0]


def configuration(triton, model, **changes):
    with urllib.request.urlopen(f"{triton.http_target}/v2/models/{model}/config", timeout=10) as answer:
        config = json.load(answer)
    config.update(changes)
    triton.load(model, config)
    return config


@pytest.fixture
def measure(tmp_path):
    def go(text, target, *options):
        path, out = tmp_path / "p.yaml", tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
        path.write_text(text)
        answer = loadgen("run", path, "--target", target, "--out", out, "--json", "-q", *options)
        return answer, answer.json, out

    return go


def test_a_run_on_a_real_triton(triton, target, measure):
    before = statistics(triton, "identity")
    answer, summary, out = measure(PROFILE % {"model": "identity"}, target.url)
    after = statistics(triton, "identity")
    assert answer.code == 0, answer
    assert summary["valid"]
    phases = {p["name"]: p for p in summary["phases"]}
    assert phases["warm-up"]["counts"]["ok"] == 32
    assert phases["closed"]["counts"]["ok"] == 400
    opened = phases["open"]["counts"]
    assert opened["ok"] == opened["planned"] == opened["sent"]
    assert abs(opened["planned"] - 200) < 60  # 70/s for 2 s and 60/s for 1 s; Poisson
    ok = opened["ok"] + 400
    assert summary["total"]["counts"]["ok"] == ok
    # every request arrived once: two first requests, the warm-up and the measured ones
    assert (
        after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"]
        == ok + 32 + 2
    )
    # batch sizes are the server's own, of the measured phases only
    sizes = {int(size): n for size, n in summary["server"]["batch_sizes"].items()}
    assert sum(size * n for size, n in sizes.items()) == ok
    assert summary["server"]["mean_batch"] == pytest.approx(ok / sum(sizes.values()))
    assert max(sizes) > 1
    # and the records tell the same
    table = pa.ipc.open_stream((out / "records.arrow").read_bytes()).read_all()
    assert table.num_rows == ok + 32
    rows = {
        name: table[name].to_numpy()
        for name in ("due_ns", "sent_ns", "first_ns", "done_ns", "length", "bytes_in")
    }
    assert (rows["due_ns"] <= rows["sent_ns"]).all()
    assert (rows["sent_ns"] <= rows["first_ns"]).all()
    assert (rows["first_ns"] <= rows["done_ns"]).all()
    kinds = np.array(table["kind"].to_pylist())
    assert set(rows["length"][kinds == "long"].tolist()) == {64}
    assert set(rows["length"][kinds == "short"].tolist()) == set(range(2, 17))
    latency = np.sort((rows["done_ns"] - rows["due_ns"])[np.array(table["phase"].to_pylist()) != "warm-up"])
    told = summary["total"]["latency_ns"]
    assert told["p99"] == latency[int(np.ceil(0.99 * len(latency))) - 1]
    assert told["max"] == latency[-1] >= told["p99"] >= told["p50"]
    # an idle server answers in milliseconds: a client that stalled would show here
    assert told["p50"] < 50e6


def test_the_server_saw_each_kind_as_planned(triton, target, measure):
    """The tensors that arrive have the lengths the records claim: identity gives back what it was sent."""
    _, _, out = measure(PROFILE % {"model": "identity"}, target.url)
    table = pa.ipc.open_stream((out / "records.arrow").read_bytes()).read_all()
    length, size = table["length"].to_numpy(), table["bytes_in"].to_numpy()
    assert np.corrcoef(length, size)[0, 1] > 0.999
    assert len(set((size - 4 * length).tolist())) < 12  # FP32 there and back; the rest is framing


OPEN_400 = """
name: batching
seed: 3
kinds:
  k: {model: identity, length: %s, timeout: 10s}
phases:
  - {name: warm-up, warmup: true, closed: {users: 8, requests: 32}}
  - {name: open, open: {arrivals: poisson, rate: [{duration: 3s, at: 400/s}]}}
"""


def batching(triton, measure, url, length, **config):
    """The mean batch of a run with that configuration, its batch sizes held against the server's own."""
    configuration(triton, "identity", **config)  # loads anew: counters start from 0
    _, summary, _ = measure(OPEN_400 % length, url)
    ok = summary["total"]["counts"]["ok"]
    assert abs(ok - 1200) < 150  # Poisson
    told = {int(size): n for size, n in summary["server"]["batch_sizes"].items()}
    counted = {
        row["batch_size"]: row["compute_infer"]["count"]
        for row in statistics(triton, "identity")["batch_stats"]
    }
    assert sum(size * n for size, n in told.items()) == ok
    assert sum(size * n for size, n in counted.items()) == ok + 32 + 1  # the warm-up, one first request
    assert all(n <= counted[size] for size, n in told.items())
    return summary["server"]["mean_batch"]


@pytest.fixture
def as_found(triton):
    yield
    triton.unload("identity")
    triton.load("identity")


@pytest.mark.usefixtures("as_found")
def test_delay_decides_batch_sizes(triton, target, measure):
    """0 against 5 ms at the same arrivals: the batcher waits for company only when told to."""
    mean = [
        batching(
            triton, measure, target.url, "16", dynamic_batching={"max_queue_delay_microseconds": delay_us}
        )
        for delay_us in (0, 5000)
    ]
    assert mean[0] < 1.4
    assert mean[1] > 1.5 * mean[0]


@pytest.mark.usefixtures("as_found")
def test_ragged_decides_batch_sizes(triton, target, measure):
    """Requests of different lengths merge only when the input may be ragged."""
    mean = []
    for ragged in (False, True):
        config = configuration(triton, "identity")
        tensor = {**config["input"][0], "allow_ragged_batch": ragged}
        delay = {"max_queue_delay_microseconds": 5000}
        lengths = "{uniform: {min: 1, max: 200}}"
        mean.append(batching(triton, measure, target.url, lengths, input=[tensor], dynamic_batching=delay))
    assert mean[0] < 1.2
    assert mean[1] > 1.5 * mean[0]


def test_a_request_that_the_model_cannot_take_is_refused_before_the_run(triton, target, measure, tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(
        (PROFILE % {"model": "identity"}).replace("length: {fixed: 64}", "length: {fixed: 64}, batch: 9")
    )
    answer = loadgen("run", path, "--target", target.url, "--out", tmp_path / "never")
    assert (answer.code, len(answer.error_lines)) == (2, 1)
    assert "batch 9" in answer.err
    assert not (tmp_path / "never").exists()


def test_a_model_that_is_not_loaded_is_told_from_one_that_is_not_there(triton, target, tmp_path):
    path = tmp_path / "p.yaml"
    for model, word in (("misconfigured", "misconfigured"), ("nobody", "identity")):
        path.write_text(PROFILE % {"model": model})
        answer = loadgen("run", path, "--target", target.url, "--out", tmp_path / "never")
        assert (answer.code, len(answer.error_lines)) == (2, 1), answer
        assert model in answer.err
        assert word in answer.err
