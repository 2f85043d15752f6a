"""The ladder's figures against answers known beforehand, and a server's rungs against a double."""

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import numpy as np
import pytest
from typer.testing import CliRunner

from loadgen.cli.app import app
from loadgen.convert import served
from loadgen.convert.convert import convert
from loadgen.convert.encoder import load_encoder
from loadgen.convert.ladder import (
    LIMITS,
    Step,
    class_agreement,
    climb,
    compare,
    lengths_for,
    rank_agreement,
    require,
)
from loadgen.convert.options import ConvertOptions
from loadgen.convert.parity import ParityError, torch_run
from loadgen.convert.recheck import RecheckError, recheck
from loadgen.convert.served import served_rungs
from loadgen.convert.sources import find_source
from loadgen.target import parse_target
from tests.support.encoder import write_encoder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    top = tmp_path_factory.mktemp("sources")
    return {
        "plain": write_encoder(top / "plain"),
        "sentence": write_encoder(top / "st", pooling="mean_tokens"),
    }


@pytest.fixture(scope="module")
def encoders(folders):
    return {name: load_encoder(find_source(str(folder)), 48) for name, folder in folders.items()}


def test_ranks_are_spearman_s():
    from scipy.stats import spearmanr

    rng = np.random.default_rng(0)
    a = rng.normal(size=(12, 6))
    b = a + rng.normal(size=a.shape) * 0.5
    sides = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b)]
    cosines = [x @ x.T for x in sides]
    want = np.mean(
        [spearmanr(np.delete(cosines[0][i], i), np.delete(cosines[1][i], i)).statistic for i in range(12)]
    )
    ranks, neighbours = rank_agreement(a, b, k=3)
    assert ranks == pytest.approx(want)
    near = [set(np.argsort(-(c - 9 * np.eye(12)), axis=1)[i, :3]) for c in cosines for i in range(12)]
    assert neighbours == pytest.approx(np.mean([len(near[i] & near[i + 12]) / 3 for i in range(12)]))
    assert rank_agreement(a, a * 7) == (pytest.approx(1.0), 1.0)
    assert rank_agreement(a, -a)[0] == pytest.approx(1.0), "cosines between rows do not see a common sign"
    assert np.isnan(rank_agreement(a, a * np.nan)[0])


def test_equal_texts_are_ties_whatever_the_last_bit_says():
    """On a GPU fp32 missed its limit by such: the same text twice, ordered by rounding."""
    rng = np.random.default_rng(1)
    a = np.repeat(rng.normal(size=(6, 32)), 2, axis=0).astype(np.float32)
    noise = rng.normal(size=(2, *a.shape)) * 1e-7
    assert rank_agreement(a + noise[0], a + noise[1])[0] == 1.0
    assert rank_agreement(a, a[:, ::-1] + rng.normal(size=a.shape))[0] < 0.9
    assert rank_agreement(np.ones((8, 4)), np.ones((8, 4)))[0] == 1.0
    assert rank_agreement(np.ones((8, 32)), rng.normal(size=(8, 32)))[0] == 0.0


def test_classes_agree_by_the_first_and_by_the_top():
    want = np.array([[5.0, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5]])
    assert class_agreement(want, want, k=2) == (1.0, 1.0)
    got = want.copy()
    got[0, :2] = [4, 5]  # the first two change places: another first, the same two
    assert class_agreement(want, got, k=2) == (0.5, 1.0)
    got[1] = -want[1]
    assert class_agreement(want, got, k=2) == (0.0, 0.5)


def test_only_real_positions_count(encoders):
    want = np.ones((2, 5, 24), np.float32)
    got = want.copy()
    got[1, 3:] = 99
    step = compare("r", "padded", 5, encoders["plain"], want, got, [5, 3])
    assert (step.max_abs, step.cosine, step.rms, step.peak) == (0.0, pytest.approx(1.0), 1.0, 1.0)
    assert compare("r", "batched", 5, encoders["plain"], want, got).max_abs == 98
    with pytest.raises(ParityError, match=r"r at length 5 gives \(2, 4, 24\), PyTorch \(2, 5, 24\)"):
        compare("r", "batched", 5, encoders["plain"], want, got[:, :4])


def test_each_length_batched_alone_and_padded(encoders):
    encoder = encoders["sentence"]
    calls = []

    def run(feeds):
        calls.append(feeds["input_ids"].shape)
        return torch_run(encoder)(feeds)

    climbed = climb(encoder, {"same": run}, "fp32", rows=10, max_batch=4)
    assert climbed.passed
    assert [(s.how, s.length) for s in climbed.steps] == [
        (how, n) for n in (1, 8, 32, 48) for how in ("batched", "alone")
    ] + [("padded", 48)]
    assert {shape[0] for shape in calls} == {4, 2, 1}, "ten rows in fours, then one by one"
    assert climbed.steps[2].ranks == pytest.approx(1.0)
    assert climbed.steps[0].ranks is None, "one token: there is no order to speak of"
    assert lengths_for(512) == [1, 8, 32, 128, 512]
    assert lengths_for(1) == [1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda y: y * 1.0002, "max abs"),
        (lambda y: y + np.float32("nan"), "max abs nan"),
        (lambda y: y[::-1].copy(), "max abs"),
    ],
)
def test_a_rung_beyond_its_limits_fails_with_numbers(encoders, change, says):
    encoder = encoders["sentence"]
    climbed = climb(encoder, {"off": lambda feeds: change(torch_run(encoder)(feeds))}, "fp32", rows=6)
    assert not climbed.passed
    with pytest.raises(
        ParityError, match=f"parity failed for fp32 at .* first off, batched, length 1: {says}.*--force"
    ):
        require(climbed)
    json.dumps(climbed.as_json()["limits"], allow_nan=False)


def test_one_number_that_is_near_zero_is_judged_by_the_others():
    """A model of one number at a time: what FP16 costs is a share of what it usually says, not of this answer."""
    step = Step("r", "alone", 1, 8, 1.0, 2e-4, 2e-4, rms=1e-3, peak=1e-3, few=True)
    limits = LIMITS["fp16"]
    assert step.fault(limits) == "max abs 0.0002 > 1e-05"
    assert step.fault(limits, peak=1.5, rms=1.0) is None
    assert replace(step, max_abs=0.02).fault(limits, peak=1.5, rms=1.0) == "max abs 0.02 > 0.015"
    many = replace(step, few=False)
    assert many.fault(limits, peak=1.5, rms=1.0) == "max abs 0.0002 > 1e-05"


def test_limits_loosen_with_the_precision():
    order = ["fp32", "fp16", "bf16", "fp8", "int8"]
    for a, b in pairwise(order):
        assert LIMITS[a].mean <= LIMITS[b].mean
        assert LIMITS[a].cosine >= LIMITS[b].cosine
        assert LIMITS[a].agreement >= LIMITS[b].agreement


class Double(BaseHTTPRequestHandler):
    """A KServe server that answers with what `server.answer` makes of the ids."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        at = int(self.headers["Inference-Header-Content-Length"])
        head, data = json.loads(body[:at]), body[at:]
        feeds = {}
        for tensor in head["inputs"]:
            size = tensor["parameters"]["binary_data_size"]
            feeds[tensor["name"]] = np.frombuffer(data[:size], np.int64).reshape(tensor["shape"])
            data = data[size:]
        self.server.seen.append((self.path, feeds["input_ids"].shape))
        out = self.server.answer(feeds)
        if isinstance(out, str):
            self.send(503 if "queue size" in out else 400, json.dumps({"error": out}).encode())
            return
        told = {
            "outputs": [
                {
                    "name": "y",
                    "datatype": "FP32",
                    "shape": list(out.shape),
                    "parameters": {"binary_data_size": out.nbytes},
                }
            ]
        }
        text = json.dumps(told).encode()
        self.send(200, text + out.tobytes(), ("Inference-Header-Content-Length", str(len(text))))

    def send(self, status, body, *headers):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def double():
    with ThreadingHTTPServer(("127.0.0.1", 0), Double) as server:
        server.seen = []
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def url(server):
    return f"http://127.0.0.1:{server.server_port}"


def test_a_server_is_asked_in_one_request_and_in_many(double, encoders):
    encoder = encoders["sentence"]
    double.answer = torch_run(encoder)
    with served_rungs(parse_target(url(double)), "m", "3") as rungs:
        assert list(rungs) == ["served, http", "served, http, at once"]
        feeds = {name: np.ones((5, 7), np.int64) for name in encoder.inputs}
        for run in rungs.values():
            np.testing.assert_allclose(run(feeds), torch_run(encoder)(feeds), rtol=0, atol=1e-6)
    assert double.seen[0] == ("/v2/models/m/versions/3/infer", (5, 7))
    assert double.seen[1:] == [("/v2/models/m/versions/3/infer", (1, 7))] * 5
    double.answer = lambda _: "no such length"
    with (
        served_rungs(parse_target(url(double)), "m") as rungs,
        pytest.raises(ParityError, match=r"refuses m: 400 .*no such length"),
    ):
        rungs["served, http"](feeds)
    with (
        served_rungs(parse_target("http://127.0.0.1:9"), "m") as rungs,
        pytest.raises(ParityError, match="does not answer"),
    ):
        rungs["served, http"](feeds)


def test_what_the_models_own_queue_refuses_is_asked_again(double, encoders, monkeypatch):
    """Field case 18: the requests of the check are more than a short queue holds."""
    encoder = encoders["sentence"]
    want, full, waiting = torch_run(encoder), "Exceeds maximum queue size", threading.Semaphore(1)

    def answer(feeds):
        if not waiting.acquire(blocking=False):
            return full
        try:
            return want(feeds)
        finally:
            waiting.release()

    double.answer = answer
    feeds = {name: np.ones((16, 7), np.int64) for name in encoder.inputs}
    with served_rungs(parse_target(url(double)), "m") as rungs:
        np.testing.assert_allclose(rungs["served, http, at once"](feeds), want(feeds), rtol=0, atol=1e-6)
        monkeypatch.setattr(served, "_PATIENCE_S", 0.1)
        double.answer = lambda _: full
        with pytest.raises(
            ParityError, match=rf'503 {{"error": "{full}"}}; asked again for .*--max-queue, --queue-timeout'
        ):
            rungs["served, http"](feeds)
    assert double.seen[-3:] == [("/v2/models/m/infer", (16, 7))] * 3


@pytest.fixture(scope="module")
def published(folders, tmp_path_factory):
    options = ConvertOptions(name="tiny", repository=tmp_path_factory.mktemp("repo"), max_batch=8)
    convert(str(folders["sentence"]), options)
    return options


def test_a_published_model_is_checked_on_a_running_server(published, double, encoders):
    double.answer = torch_run(encoders["sentence"])
    done = CliRunner().invoke(
        app, ["parity", str(published.version_folder), url(double), "--rows", "8", "--json"]
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["passed"]
    assert {step["rung"] for step in told["steps"]} == {"served, http", "served, http, at once"}
    assert {shape for path, shape in double.seen if path == "/v2/models/tiny/infer"} >= {
        (8, 48),
        (1, 48),
        (8, 1),
    }
    double.answer = lambda feeds: torch_run(encoders["sentence"])(feeds) * 1.01
    done = CliRunner().invoke(app, ["parity", str(published.version_folder), url(double), "--rows", "8"])
    assert done.exit_code == 1
    assert "beyond the limits: served, http, batched, length 1: max abs" in done.stdout


def test_a_source_that_changed_is_not_compared(published, folders, tmp_path):
    told = json.loads((published.version_folder / "convert.json").read_text())
    told["source"]["sha256"]["config.json"] = "0" * 64
    (tmp_path / "convert.json").write_text(json.dumps(told))
    with pytest.raises(RecheckError, match="has changed since"):
        recheck(tmp_path, ["http://127.0.0.1:9"])
    with pytest.raises(RecheckError, match="give a version folder that loadgen convert published"):
        recheck(tmp_path / "none", ["http://127.0.0.1:9"])
    (tmp_path / "convert.json").write_text("{}")
    with pytest.raises(RecheckError, match="is no record of a conversion"):
        recheck(tmp_path, ["http://127.0.0.1:9"])
    assert replace(published, force=True).force
