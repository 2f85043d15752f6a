"""Model servers that speak neither KServe nor OpenAI: FastAPI and LitServe, each in an environment of its own."""

import json
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.cli import loadgen
from tests.support.processes import free_port, serving
from tests.support.venvs import venv_with

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

APPS = Path(__file__).parents[1] / "support" / "apps"
PROFILES = Path(__file__).parents[2] / "traffic_profiles"


@pytest.fixture(scope="module")
def fastapi(tmp_path_factory):
    port = free_port()
    python = venv_with("fastapi==0.115.14", "uvicorn==0.54.0", "python-multipart==0.0.34") / "python"
    command = [
        python,
        "-m",
        "uvicorn",
        "app_fastapi:app",
        "--host",
        "127.0.0.1",
        "--port",
        port,
        "--log-level",
        "warning",
    ]
    log = tmp_path_factory.mktemp("fastapi") / "log"
    with serving(command, f"http://127.0.0.1:{port}/health", log, cwd=APPS):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def litserve(tmp_path_factory):
    port = free_port()
    python = venv_with("litserve==0.2.19", "fastapi==0.115.14", "uvicorn==0.54.0") / "python"
    log = tmp_path_factory.mktemp("litserve") / "log"
    with serving([python, APPS / "app_litserve.py", port], f"http://127.0.0.1:{port}/health", log):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def run(tmp_path):
    def go(text, target, *options):
        path, out = tmp_path / "p.yaml", tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
        path.write_text(text)
        return loadgen("run", path, "--target", target, "--out", out, "--json", "-q", *options), out

    return go


def records(out):
    return pa.ipc.open_stream((out / "records.arrow").read_bytes()).read_all()


def seen(target):
    """What the application counted, by its own keeping."""
    with urllib.request.urlopen(f"{target}/seen", timeout=10) as answer:
        return json.load(answer)


def shipped(name, phases):
    """A profile that ships with loadgen, with phases that fit a test and no objectives: its runs are short."""
    text = (PROFILES / name).read_text()
    return f"{text[: text.index('phases:')]}phases:\n{phases}"


PHASES = """
  - {name: warm-up, warmup: true, closed: {users: 4, requests: 8}}
  - {name: steady, open: {rate: [{duration: 2s, at: 60/s}]}}
  - {name: closed, closed: {users: 4, requests: 100}}
"""


def test_the_fastapi_profile_against_fastapi(fastapi, run):
    before = seen(fastapi)
    answer, out = run(shipped("fastapi.yaml", PHASES), fastapi)
    after = seen(fastapi)
    assert answer.code == 0, answer
    summary = answer.json
    assert summary["valid"]
    # nothing is said of statistics: such a server has none
    assert "no_server_statistics" not in {doubt["code"] for doubt in summary["doubts"]}
    total = summary["total"]["counts"]
    assert (total["failed"], total["rejected"]) == (0, 0)
    assert total["ok"] == total["sent"] == records(out).num_rows - 8
    assert after["predict"] - before["predict"] == total["ok"] + 8 + 1  # warm-up, first request
    assert 0 < summary["total"]["latency_ns"]["p50"] < 100e6
    info = json.loads((out / "run.json").read_text())
    assert info["server"]["requests"]["classify"] == {
        "method": "POST", "path": "/predict", "ready": "GET /health: 200",
    }  # fmt: skip
    assert info["first_request_ns"]["classify"] > 0
    lengths = set(records(out)["length"].to_pylist())
    assert len(lengths) > 10
    assert set(after["words"]) >= lengths  # the server counted the words of each text itself
    assert not (out / "server.jsonl").exists() or not (out / "server.jsonl").read_text()


FAULTY = """
name: faulty
kinds:
  good: {http: {path: /predict, json: {text: "a b", top_k: 1}, success: {json: {path: $.score, min: 0}}}}
  wrong: {http: {path: "/error-in-200/{id}", json: {}, success: {json: {path: $.score, exists: true}}}}
  busy: {http: {path: "/status/503", json: {}}}
  bad: {http: {path: "/status/422", json: {}}}
  teapot: {http: {method: GET, path: "/status/418", success: {status: [418]}}}
phases:
  - {name: load, closed: {users: 2, requests: 200}}
"""


def test_success_is_what_the_profile_says(fastapi, run):
    """An error in a 200, a queue that is full, a status that is meant: each in its own place."""
    kinds = ["wrong", "busy", "bad"]
    for kind, words in zip(kinds, ("no $.score in the answer", "status 503", "status 422"), strict=True):
        lines = [
            line
            for line in FAULTY.splitlines()
            if not any(line.startswith(f"  {k}:") for k in {*kinds} - {kind})
        ]
        answer, _ = run("\n".join(lines), fastapi)
        assert answer.code == 3  # the first request already
        assert words in answer.err
        assert f"kind '{kind}'" in answer.err
    fine = [line for line in FAULTY.splitlines() if not any(line.startswith(f"  {k}:") for k in kinds)]
    answer, _ = run("\n".join(fine), fastapi)
    assert answer.code == 0, answer
    assert answer.json["total"]["counts"]["ok"] == 200


def test_an_error_inside_a_200_is_a_failure_in_the_figures(fastapi, run):
    text = """
name: flaky
kinds:
  k:
    full: {status: [503], words: [queue is full]}
    http: {path: "/flaky", json: {id: "{id}"}, success: {json: {path: $.score}}}
phases:
  - {name: load, closed: {users: 1, requests: 100}}
"""
    answer, out = run(text, fastapi)
    total = answer.json["total"]
    assert total["counts"]["ok"] == total["latency_ns"]["n"] == 75
    assert total["counts"]["rejected"] == 10
    assert total["counts"]["failed"] == 15
    [[name, errors]] = [item for item in total["errors"].items() if item[0] != "rejected"]
    assert errors["n"] == 15
    assert errors["text"] == 'no $.score in the answer: {"error":"out of memory"}'
    assert errors["status"] == {"200": 15}
    assert answer.code == 3  # too many failures to be believed
    outcomes = records(out)["outcome"].to_pylist()
    assert (outcomes.count("ok"), outcomes.count("rejected"), outcomes.count(name)) == (75, 10, 15)


def test_bodies_of_every_form_arrive_as_written(fastapi, run, tmp_path):
    (tmp_path / "cat.jpg").write_bytes(bytes(range(256)) * 4)
    text = """
name: bodies
kinds:
  raw:
    http:
      path: /bytes
      binary: {tensor: {datatype: FP32, shape: [3, 4], uniform: {min: 0, max: 1}}}
      success: {json: [{path: $.size, equals: 48}, {path: $.type, equals: application/octet-stream}]}
  form:
    length: 3
    http:
      method: PUT
      path: /upload
      form: {fields: {caption: "{text}"}, files: {image: {files: [%s], type: image/jpeg}}}
      success: {json: [{path: $.caption_words, equals: 3}, {path: $.size, equals: 1024}, {path: $.name, equals: cat.jpg}]}
  query:
    http: {method: GET, path: "/items/{name}?q={name}", values: {name: {choice: ["a b/c", "é&="]}},
           success: {json: [{path: $.same, equals: true}]}}
phases:
  - {name: load, closed: {users: 3, requests: 90}}
""" % (tmp_path / "cat.jpg")
    answer, out = run(text, fastapi)
    assert answer.code == 0, answer
    assert answer.json["total"]["counts"]["ok"] == 90
    assert set(records(out)["kind"].to_pylist()) == {"raw", "form", "query"}


def test_the_litserve_profile_against_litserve(litserve, run):
    phases = """
  - {name: warm-up, warmup: true, closed: {users: 16, requests: 64}}
  - {name: one user, closed: {users: 1, requests: 50}}
  - {name: 16 users, closed: {users: 16, requests: 300}}
"""
    answer, out = run(shipped("litserve.yaml", phases), litserve)
    assert answer.code == 0, answer
    phases = {phase["name"]: phase for phase in answer.json["phases"]}
    assert [phases[name]["counts"]["ok"] for name in ("warm-up", "one user", "16 users")] == [64, 50, 300]
    assert phases["16 users"]["counts"]["failed"] == 0
    one, many = (phases[name]["achieved_per_s"] for name in ("one user", "16 users"))
    assert many > 2 * one  # the server collects batches, and each takes it 10 ms
    info = json.loads((out / "run.json").read_text())
    assert info["server"]["requests"]["rows"]["ready"] == "GET /health: 200"


def test_a_worker_each_sends_its_part(fastapi, run):
    answer, out = run(shipped("fastapi.yaml", PHASES), fastapi, "--workers", "2")
    assert answer.code == 0, answer
    assert answer.json["total"]["counts"]["failed"] == 0
    assert (out / "records-1.arrow").exists()
