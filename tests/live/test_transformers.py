"""Chats with a streaming server that no one here wrote, `transformers serve`, through `loadgen run`."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from loadgen.runread import read_run
from tests.support.cli import loadgen
from tests.support.transformers_server import transformers_server

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]
MS = 1_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with transformers_server(tmp_path_factory.mktemp("transformers")) as it:
        yield it


PROFILE = """
name: chats
seed: 3
kinds:
  chat:
    model: %(model)s
    weight: 3
    chat: {tokenizer: %(tokenizer)s, system: Be brief.}
    lengths: [{in: 40, out: 12}, {in: 120, out: 24}]
  talk:
    model: %(model)s
    chat: {tokenizer: %(tokenizer)s, turns: 3, think: 20ms}
    length: 30
    output: 8
  completion: {model: %(model)s, completion: {tokenizer: %(tokenizer)s}, length: 50, output: 16}
  whole: {model: %(model)s, chat: {stream: false, tokenizer: %(tokenizer)s}, length: 40, output: 6}
phases:
  - {name: warm-up, warmup: true, closed: {users: 2, requests: 8}}
  - {name: load, closed: {users: 2, requests: 70}}
objectives: ["ttft max < 10s", "tpot max < 2s", "goodput > 90%%", "output tokens/s > 1"]
"""


def test_seventy_conversations_with_plausible_labelled_figures(server, tmp_path):
    """Its streams end with a finish_reason and no [DONE] (field case 36), and tell usage without being told to."""
    (tmp_path / "p.yaml").write_text(PROFILE % {"model": server.model, "tokenizer": server.tokenizer})
    out = tmp_path / "run"
    answer = loadgen("run", tmp_path / "p.yaml", "--target", server.target, "--out", out)
    print(answer.out)
    assert answer.code in (0, 3), answer.err  # 3: on a busy machine the client's own lag may be doubted
    summary = json.loads((out / "summary.json").read_text())
    total, streaming = summary["total"], summary["total"]["streaming"]
    rows = [r for r in read_run(out).records.to_pylist() if r["phase"] == "load"]
    assert total["counts"]["ok"] == len(rows) > 70
    assert total["errors"] == {}
    assert {name: n for name, n in streaming["tokens_from"].items() if n} == {"usage": len(rows)}
    files = sorted(Path(out).glob("streams*.arrow"))
    streams = [r for f in files for r in pa.ipc.open_stream(f.read_bytes()).read_all().to_pylist()]
    of = {(r["phase"], r["seq"]): r for r in streams}
    asked = {"talk": 8, "completion": 16, "whole": 6}
    for row in rows:
        came = of[row["phase"], row["seq"]]
        most = asked.get(row["kind"]) or {40: 12, 120: 24}[row["length"]]
        assert (came["tokens_out"], came["finish"]) == (most, "length")
        if row["kind"] == "whole":
            assert (came["chunks"], came["first_token_ns"]) == (0, None)
            continue
        assert 1 <= came["chunks"] <= came["tokens_out"]
        assert (
            row["sent_ns"]
            < row["first_ns"]
            <= came["first_token_ns"]
            <= came["last_token_ns"]
            <= row["done_ns"]
        )
        if row["kind"] == "completion":
            assert came["tokens_in"] == 50  # our tokens are the server's: the tokenizer is its own
        elif row["kind"] == "chat":  # and what the template adds, the same for each
            assert came["tokens_in"] - row["length"] == len("system: Be brief.\nuser: \nassistant: ")
    talks = [of[r["phase"], r["seq"]]["tokens_in"] for r in rows if r["kind"] == "talk"]
    assert min(talks) == 30 + len("user: \nassistant: ")
    assert max(talks) >= 3 * 30 + 2 * len("user: \nassistant: \n")  # the history is resent
    told = streaming["by_kind"]
    assert told["chat"]["tpot_ns"]["p50"] < told["chat"]["ttft_from_sent_ns"]["p50"] < 10_000 * MS
    assert streaming["peak_output_tokens_per_s"] >= streaming["output_tokens_per_s"] > 1
    assert [v["verdict"] for v in summary["slo"]] == ["pass"] * 4
    model = json.loads((out / "run.json").read_text())["server"]["models"][server.model]
    assert model == {"listed": True}
