"""A second KServe v2 server that is not Triton: MLServer, over both protocols with the same profile.

It has no configuration, no statistics and, over HTTP, no binary tensors.
"""

import json
import shutil
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.cli import loadgen
from tests.support.processes import free_port, serving
from tests.support.venvs import venv_with

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

MODELS = Path(__file__).parents[1] / "support" / "mlserver"
PROFILE = """
name: second-server
seed: 3
kinds:
  short: {model: %(model)s, version: "%(version)s", weight: 3, length: {uniform: {min: 2, max: 16}}, timeout: 10s}
  long: {model: %(model)s, weight: 1, batch: %(batch)d, length: {fixed: 64}, timeout: 10s}
phases:
  - {name: warm-up, warmup: true, closed: {users: 4, requests: 16}}
  - {name: closed, closed: {users: 4, requests: 200}}
"""


class MlServer:
    def __init__(self, http, grpc):
        self.http, self.grpc = f"http://127.0.0.1:{http}", f"grpc://127.0.0.1:{grpc}"

    def repository(self, model, verb):
        request = urllib.request.Request(f"{self.http}/v2/repository/models/{model}/{verb}", method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200


@pytest.fixture(scope="module")
def mlserver(tmp_path_factory):
    root = tmp_path_factory.mktemp("mlserver")
    shutil.copytree(MODELS, root / "models", ignore=shutil.ignore_patterns("__pycache__"))
    http, grpc, metrics = free_port(), free_port(), free_port()
    settings = {"host": "127.0.0.1", "http_port": http, "grpc_port": grpc, "metrics_port": metrics,
                "parallel_workers": 0}  # fmt: skip
    (root / "models" / "settings.json").write_text(json.dumps(settings))
    command = venv_with("mlserver==1.7.1") / "mlserver"
    ready = f"http://127.0.0.1:{http}/v2/models/echo/ready"
    with serving([command, "start", root / "models"], ready, root / "log"):
        yield MlServer(http, grpc)


@pytest.fixture(params=["http", "grpc"])
def target(request, mlserver):
    return getattr(mlserver, request.param)


@pytest.fixture
def measure(tmp_path):
    def go(target, model="echo", version="", batch=2):
        path, out = tmp_path / "p.yaml", tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
        path.write_text(PROFILE % {"model": model, "version": version, "batch": batch})
        return loadgen("run", path, "--target", target, "--out", out, "--json", "-q"), out

    return go


@pytest.mark.parametrize("version", ["", "1"])
def test_a_run_on_a_server_that_is_not_triton(target, measure, version):
    answer, out = measure(target, version=version)
    assert answer.code == 0, answer
    summary = answer.json
    assert summary["valid"]
    total = summary["total"]["counts"]
    assert (total["ok"], total["sent"], total["failed"]) == (200, 200, 0)
    assert "no_server_statistics" in {doubt["code"] for doubt in summary["doubts"]}
    info = json.loads((out / "run.json").read_text())
    assert info["server"]["name"] == "mlserver"
    told = info["server"]["models"]["echo"]
    assert (told["max_batch_size"], told["config"]) == (None, None)
    assert told["binary"] == target.startswith("grpc")  # over HTTP it takes JSON only
    table = pa.ipc.open_stream((out / "records.arrow").read_bytes()).read_all()
    rows = {(row["kind"], row["items"], row["length"] == 64) for row in table.to_pylist()}
    assert rows == {("short", 1, False), ("long", 2, True)}  # a batch of 2 without being told of a batch axis


def test_a_model_that_declares_no_inputs_is_asked_with_a_request_written_by_hand(
    mlserver, target, measure, tmp_path
):
    """MLServer's default: metadata without tensors."""
    answer, _ = measure(target, model="mute")
    assert (answer.code, len(answer.error_lines)) == (2, 1)
    assert "kind 'short', model 'mute': the server tells no inputs of it" in answer.err
    path = tmp_path / "written.yaml"
    path.write_text("""
name: written
kinds:
  k:
    http:
      path: /v2/models/mute/infer
      json: {inputs: [{name: x, shape: [1, 3], datatype: FP32, data: "{row}"}]}
      values: {row: {uniform: {min: 0, max: 1}, shape: [3]}}
      success: {json: {path: "$.outputs[0].shape", equals: [1, 3]}}
      ready: {path: /v2/models/mute/ready}
phases:
  - {name: warm-up, warmup: true, closed: {users: 2, requests: 8}}
  - {name: load, closed: {users: 2, requests: 100}}
""")
    answer = loadgen("run", path, "--target", mlserver.http, "--out", tmp_path / "written", "--json", "-q")
    assert answer.code == 0, answer
    assert answer.json["total"]["counts"]["ok"] == 100


def test_what_the_server_lacks_is_said_in_its_terms(mlserver, target, measure):
    answer, _ = measure(target, model="nobody")
    assert (answer.code, len(answer.error_lines)) == (2, 1)
    assert "no model 'nobody'" in answer.err
    assert "it has: echo, mute" in answer.err
    answer, _ = measure(target, version="7")
    assert "model 'echo' has no version '7'" in answer.err
    assert "loaded: 1" in answer.err
    mlserver.repository("echo", "unload")
    try:
        answer, _ = measure(target)
    finally:
        mlserver.repository("echo", "load")
    assert (answer.code, len(answer.error_lines)) == (2, 1)
    assert "not loaded (UNAVAILABLE)" in answer.err
