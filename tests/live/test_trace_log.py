"""Arrivals out of the verbose log that a real Triton wrote."""

import http.client
import json
import time
from pathlib import Path

import pytest

from loadgen.traffic.trace import Trace
from loadgen.traffic.traces.read import read_trace
from loadgen.triton.local import LocalTriton

pytestmark = pytest.mark.live

MODELS = Path(__file__).parents[1] / "support" / "models"
MODEL = "identity"
INPUT = {"name": "INPUT", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}


def test_a_real_log_tells_when_requests_arrived(tmp_path):
    asked, answered = [], []
    with LocalTriton(MODELS, models=[MODEL], options=["--log-verbose=1"]) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.facts.http_port, timeout=20)
        for _ in range(4):
            asked.append(time.time_ns())
            connection.request("POST", f"/v2/models/{MODEL}/infer", json.dumps({"inputs": [INPUT]}))
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
            answered.append(time.time_ns())
        connection.close()
        (tmp_path / "server.log").write_text(server.log())
    rows = read_trace(Trace.model_validate({"file": "server.log", "where": {"model": MODEL}}), tmp_path)
    assert (rows.facts["format"], rows.facts["recognised"], rows.facts["rows_kept"]) == (
        "triton_log",
        True,
        4,
    )
    for place in range(1, 4):  # the log's stamps are cut to 1 us
        assert asked[place] - answered[0] - 1000 <= rows.due_ns[place] <= answered[place] - asked[0] + 1000
