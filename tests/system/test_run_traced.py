"""`loadgen run --trace-server` against a server that tells its trace, one that has none, and one that loses it."""

import json

import pytest

from loadgen.lab import server_trace
from loadgen.runread import read_run
from loadgen.triton.tracefile import read_timelines
from tests.support.cli import loadgen
from tests.support.kserve_mock import Mock

PROFILE = """
kinds: {k: {model: m, length: 4, batch: 2}}
phases: [{name: load, closed: {users: 2, requests: 10}}]
"""


@pytest.fixture
def run(tmp_path):
    def go(mock, *options):
        (tmp_path / "p.yaml").write_text(PROFILE)
        return loadgen("run", tmp_path / "p.yaml", "--target", mock.target, "--out", tmp_path / "run", "-q",
                       "--trace-server", *options)  # fmt: skip

    return go


def settings(file):
    return {"trace_level": ["OFF"], "trace_rate": "1000", "trace_file": str(file), "trace_mode": "triton"}


def test_requests_say_what_a_trace_does_not_and_the_trace_is_kept(run, tmp_path):
    with Mock() as mock:
        mock.trace, mock.bodies = settings(tmp_path / "trace.json"), []
        late = 2**61  # later than the run's start on any machine
        stamps = {"QUEUE_START": late, "COMPUTE_START": late + 5, "COMPUTE_END": late + 9}
        mock.traced = json.dumps(
            [
                {"id": 1, "model_name": "m", "model_version": 1, "request_id": "loadgen/2/4/INPUT=4"},
                *({"id": 1, "timestamps": [{"name": k, "ns": v}]} for k, v in stamps.items()),
                {"id": 2, "model_name": "m", "model_version": 1},
                {"id": 2, "timestamps": [{"name": "QUEUE_START", "ns": 1}]},  # before the run
            ]
        )
        answer = run(mock, "--workers", 2)
        assert "no_trace" not in answer.out
        assert mock.trace["trace_rate"] == "1"
    ids = [json.loads(body[: body.index(b"]}") + 2]).get("id") for body in mock.bodies]
    assert ids == [None] + ["loadgen/2/4/INPUT=4"] * 10  # the first request comes before the trace
    [one] = read_timelines(tmp_path / "run")
    assert (one.end_ns - one.start_ns, one.start_ns - one.queue_ns, one.rows) == (4, 5, 2)
    assert read_run(tmp_path / "run").info["trace"] == {"requests": 1, "full": []}
    assert not (tmp_path / "trace.json.0").exists()


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (None, "has no trace extension"),
        ({"trace_file": "", "trace_mode": "triton"}, "writes no trace file; start the server with"),
        ({"trace_file": "/x", "trace_mode": "opentelemetry"}, "writes no trace file"),
        ({"trace_file": "/none/of/this/trace.json"}, "on its own machine, which is not seen from here"),
    ],
)
def test_a_server_that_cannot_be_traced_is_refused_before_the_load(run, trace, said):
    with Mock() as mock:
        mock.trace = trace
        answer = run(mock)
    assert answer.code == 2
    assert len(answer.error_lines) == 1
    assert said in answer.err
    assert mock.requests == 0


def test_a_trace_that_does_not_come_is_told_and_the_run_stands(run, tmp_path, monkeypatch):
    monkeypatch.setattr(server_trace, "_WRITTEN_S", 0.3)
    with Mock() as mock:
        mock.trace, mock.traced = settings(tmp_path / "trace.json"), None
        answer = run(mock, "--json")
    assert {d["code"]: d["text"] for d in answer.json["doubts"]}["no_trace"].startswith(
        f"the server's trace is missing: the server wrote no trace to {tmp_path / 'trace.json'}.N"
    )
    assert answer.json["total"]["counts"]["ok"] == 10
    assert "make the run with" in loadgen("explain", tmp_path / "run").err
