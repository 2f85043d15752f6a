"""KServe v2 servers as they come: names that are paths, and servers without binary tensors."""

import json
import struct

import pytest

from tests.support.cli import loadgen
from tests.support.kserve_mock import Mock, Model

PROFILE = """
name: %s
kinds:
  k: {model: %s, version: "%s", length: 4, timeout: 5s}
phases:
  - {name: load, closed: {users: 1, requests: 3}}
"""


def write(path, model, version="", name=None):
    path.write_text(PROFILE % (json.dumps(name or model), json.dumps(model), version))
    return path


@pytest.mark.parametrize(
    ("model", "version", "path"),
    [
        ("a/b", "", "/v2/models/a%2Fb/infer"),
        ("模型", "", "/v2/models/%E6%A8%A1%E5%9E%8B/infer"),
        ("m:1", "", "/v2/models/m%3A1/infer"),
        ("m:1", "2", "/v2/models/m%3A1/versions/2/infer"),
        ("a b?#%", "", "/v2/models/a%20b%3F%23%25/infer"),
    ],
)
def test_names_as_paths(tmp_path, monkeypatch, model, version, path):
    """Case 17: the name reaches server and files intact, no file is named by it as it is, no run replaces another."""
    monkeypatch.chdir(tmp_path)
    profile = write(tmp_path / "p.yaml", model, version)
    with Mock(models={model: Model()}) as mock:
        answers = [loadgen("run", profile, "--target", mock.target, "--json", "-q") for _ in range(2)]
    assert [answer.code for answer in answers] == [0, 0]
    assert mock.paths.count(path) == 8  # two first requests, six of the load
    assert [p for p in mock.paths if p.endswith("/infer") and p != path] == []
    folders = sorted((tmp_path / "runs").iterdir())
    assert len(folders) == 2
    assert sorted(answer.json["run"]["id"] for answer in answers) == [f.name for f in folders]
    for folder in folders:
        assert not set(folder.name) & set("/:?#% ")
        info = json.loads((folder / "run.json").read_text())
        assert [(k["model"], k["version"]) for k in info["kinds"]] == [(model, version)]
        assert list(info["server"]["models"]) == [model]
        snapshots = [json.loads(line) for line in (folder / "server.jsonl").read_text().splitlines()]
        assert {line["model"] for line in snapshots} == {model}


@pytest.mark.parametrize("model", ["..", "."])
def test_a_name_that_no_url_can_carry_is_refused_before_anything_is_asked(tmp_path, model):
    """Case 17: every URL reader resolves it away, so it would be another address."""
    profile = write(tmp_path / "p.yaml", model, name="p")
    with Mock(models={model: Model()}) as mock:
        answer = loadgen("run", profile, "--target", mock.target, "--out", tmp_path / "run")
    assert (answer.code, len(answer.error_lines)) == (2, 1)
    assert f"model {model!r}: not a name that a URL can carry" in answer.err
    assert mock.paths == []
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("extensions", [[], ["statistics"]])
def test_a_server_without_binary_tensors_gets_json(tmp_path, extensions):
    """MLServer's way; with the extension the same values would go as bytes."""
    profile = write(tmp_path / "p.yaml", "m", name="p")
    with Mock(models={"m": Model(max_batch_size=2)}) as mock:
        mock.extensions, mock.bodies = extensions, []
        answer = loadgen("run", profile, "--target", mock.target, "--json", "-q", "--out", tmp_path / "run")
        plain = [json.loads(body) for body in mock.bodies]
        mock.extensions, mock.bodies = ["binary_tensor_data"], []
        loadgen("run", profile, "--target", mock.target, "--json", "-q", "--out", tmp_path / "binary")
    assert answer.code == 0, answer
    assert answer.json["total"]["counts"]["ok"] == 3
    assert len(plain) == 4
    for message, body in zip(plain, mock.bodies, strict=True):
        [tensor] = message["inputs"]
        assert set(message) == {"inputs"}
        assert (tensor["name"], tensor["datatype"], tensor["shape"]) == ("INPUT", "FP32", [1, 4])
        assert struct.pack("<4f", *tensor["data"]) == body[-16:]
    assert not [h for h in mock.headers[: len(mock.headers) // 2] if "Inference-Header-Content-Length" in h]
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["server"]["models"]["m"]["binary"] is False


def test_what_json_cannot_carry_is_refused_where_the_server_takes_nothing_else(tmp_path):
    """Case 4, on a server without the binary extension: refused in words, before the run."""
    profile = write(tmp_path / "p.yaml", "m", name="p")
    with Mock(models={"m": Model(datatype="FP16")}) as mock:
        mock.extensions = []
        answer = loadgen("run", profile, "--target", mock.target, "--out", tmp_path / "run")
    assert (answer.code, len(answer.error_lines)) == (2, 1)
    assert "input 'INPUT': FP16 has no JSON form" in answer.err
    assert "use gRPC" in answer.err
    assert mock.requests == 0
