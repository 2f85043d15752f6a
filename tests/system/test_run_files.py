"""A run whose tensors come from files: on the wire in the file's order, told in run.json, refused before it starts."""

import json

import numpy as np
import pytest

from loadgen.runread import read_run
from tests.support.cli import loadgen
from tests.support.kserve_mock import Mock, Model

PROFILE = """
name: t
kinds: {k: {model: m, data: {file: rows.jsonl, columns: {INPUT: x}, order: %(order)s}}}
phases:
  - {name: warm, warmup: true, closed: {users: %(users)d, requests: 2}}
  - {name: p, closed: {users: %(users)d, requests: 12}}
"""


@pytest.fixture
def run(tmp_path):
    """Runs the profile in a folder of its own; (answer, run folder, values sent in order)."""

    def go(*options, rows=5, order="file", users=1, text=PROFILE, model=None):
        (tmp_path / "p.yaml").write_text(text % {"order": order, "users": users})
        lines = [json.dumps({"x": [float(n)] * (n + 1)}) for n in range(rows)]
        (tmp_path / "rows.jsonl").write_text("\n".join(lines))
        out = tmp_path / "run"
        with Mock(models={"m": model or Model()}) as mock:
            mock.bodies = []
            answer = loadgen(
                "run", tmp_path / "p.yaml", "--target", mock.target, "--out", out, "--json", "-q", *options
            )
            return answer, out, [values(body) for body in mock.bodies]

    return go


def values(body):
    head, end = json.JSONDecoder().raw_decode(body.decode("latin-1"))
    assert head["inputs"][0]["shape"] == [1, (len(body) - end) // 4]
    return np.frombuffer(body[end:], "<f4").tolist()


def test_rows_go_in_the_files_order_and_start_over(run):
    answer, out, sent = run()
    assert answer.code == 0, answer
    assert len(sent) == 1 + 2 + 12  # the first request of the kind, the warm-up, the phase
    assert sent[3:] == [[float(n % 5)] * (n % 5 + 1) for n in range(12)]
    read = read_run(out)
    assert [row["length"] for row in read.records.to_pylist()][2:] == [n % 5 + 1 for n in range(12)]


def test_two_workers_send_them_too_and_run_json_says_how_many(run):
    answer, out, sent = run("--workers", "2", users=2, order="random")
    assert answer.code == 0, answer
    phase = [row[0] for row in sent[3:]]
    assert np.bincount(np.array(phase, int), minlength=5).min() >= 2  # each row twice or three times
    told = json.loads((out / "run.json").read_text())
    files = told["client"]["senders"][1]["kinds"]["k"]["files"]
    assert files == [
        {"file": f"{out.parent}/rows.jsonl", "inputs": ["INPUT"], "order": "random", "columns": ["x"],
         "rows": 5, "rows_built": 5}
    ]  # fmt: skip


def test_a_row_that_does_not_fit_is_refused_before_anything_is_sent(run):
    answer, _, sent = run(model=Model(dims=(33,)))
    assert answer.code == 2
    assert "rows.jsonl:1: input 'INPUT': 1 value given, shape needs 33" in answer.err
    assert sent == []
