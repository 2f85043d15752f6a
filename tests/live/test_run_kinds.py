"""Streams, sequences, generate, priorities and mixes through `loadgen run` on a real Triton."""

import json
import urllib.request
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from loadgen.engine.dialogues import FOLLOWING
from loadgen.runread import read_run
from tests.support.cli import loadgen

pytestmark = pytest.mark.live
MS = 1_000_000


class Ran:
    def __init__(self, answer, out):
        self.answer, self.code, self.out = answer, answer.code, out
        self.summary = json.loads((out / "summary.json").read_text())
        self.info = json.loads((out / "run.json").read_text())
        self.total, self.streaming = self.summary["total"], self.summary["total"].get("streaming")

    def column(self, name):
        return np.array(read_run(self.out).records[name].to_pylist())

    @property
    def streams(self):
        return [
            row
            for path in sorted(self.out.glob("streams*.arrow"))
            for row in pa.ipc.open_stream(path.read_bytes()).read_all().to_pylist()
        ]


@pytest.fixture
def run(tmp_path):
    def go(text, target, *options):
        path, out = tmp_path / "p.yaml", tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
        path.write_text(text)
        answer = loadgen("run", path, "--target", target, "--out", out, *options)
        assert out.exists(), answer
        return Ran(answer, out)

    return go


def counted(triton, model):
    """(requests that succeeded, rows) as the server counts them."""
    with urllib.request.urlopen(f"{triton.http_target}/v2/models/{model}/stats", timeout=10) as answer:
        rows = json.load(answer)["model_stats"]
    return sum(r["inference_stats"]["success"]["count"] for r in rows), sum(
        r["inference_count"] for r in rows
    )


def nearest(values, q):
    return int(np.sort(values)[max(0, int(np.ceil(q * len(values))) - 1)])


DECOUPLED = """
name: decoupled
kinds:
  good: {model: decoupled, stream: true, weight: 3, data: {file: good.jsonl, columns: {ASK: ask}}%s}
  fails: {model: decoupled, stream: true, weight: 0.3, data: {file: fails.jsonl, columns: {ASK: ask}}}
phases: [{name: load, closed: {users: 4, requests: 80}}]
"""


@pytest.fixture
def asks(tmp_path):
    """(answers, ms before each, style) in turn: five, none at all, three with the final flag in the last."""
    good = [[5, 10, 0], [0, 0, 0], [3, 10, 1]]
    for name, rows in {"good": good, "fails": [[2, 0, 1], *[[2, 0, 2]] * 500]}.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps({"ask": row}) for row in rows))
    return good


@pytest.mark.parametrize("workers", [1, 2])
def test_a_decoupled_model_through_a_profile(triton, run, asks, workers):
    """Field case 42: answers a request differ, none is an answer too; a failure after two answers is one."""
    triton.load("decoupled")
    ran = run(DECOUPLED % "", triton.grpc_target, "--workers", workers)
    kinds = ran.column("kind")
    n = int((kinds == "good").sum())
    told = ran.streaming["by_kind"]["good"]
    chunks = [asks[turn % 3][0] for turn in range(n)]
    assert told["n"] == n == ran.total["by_kind"]["good"]["counts"]["ok"]
    assert told["chunks"] == told["tokens_out"]["sum"] == sum(chunks)
    assert told["tokens_from"]["chunks"] == n
    assert told["ttft_ns"]["n"] == sum(c > 0 for c in chunks)
    assert told["tpot_ns"]["n"] == sum(c > 1 for c in chunks)
    assert 10 * MS <= told["ttft_from_sent_ns"]["p50"] < 60 * MS
    assert 9 * MS <= told["tpot_ns"]["p50"] < 30 * MS
    assert told["chunk_gap_ns"]["n"] == sum(max(0, c - 1) for c in chunks)
    fails = ran.total["by_kind"]["fails"]["counts"]
    assert fails["failed"] == (kinds == "fails").sum() - fails["ok"]
    assert (
        fails["ok"] <= 1
    )  # the first row of that file is answered well: it is what is asked before the load
    assert ran.total["errors"]["grpc_status"]["n"] == fails["failed"]
    assert "the model ran out of words" in ran.total["errors"]["grpc_status"]["text"]
    assert (
        ran.total["achieved_per_s"] < ran.streaming["output_tokens_per_s"]
    )  # answers/s apart from requests/s


def test_streams_given_up_by_the_client(triton, run, tmp_path):
    triton.load("decoupled")
    (tmp_path / "good.jsonl").write_text(json.dumps({"ask": [20, 20, 0]}))
    text = (DECOUPLED % ", cancel: {share: 0.3, after: 100ms}").replace("  fails:", "  # fails:")
    ran = run(text.replace("requests: 80", "requests: 40"), triton.grpc_target)
    counts = ran.total["counts"]
    gone = [row["chunks"] for row in ran.streams if row["outcome"] == "planned_cancel"]
    assert counts["planned_cancels"] == len(gone) > 4
    assert (counts["ok"], counts["failed"]) == (40 - len(gone), 0)
    assert 2 <= np.median(gone) <= 6
    assert ran.streaming["chunks"] == 20 * counts["ok"]


SEQUENCES = """
name: sequences
kinds: {k: {model: counting, sequence: {requests: 5, ids: %s}, data: {file: rows.jsonl, columns: {INPUT: x}}}}
phases: [%s]
"""
CLOSED = "{name: load, closed: {users: 6, requests: 30}}"
OPEN = "{name: load, open: {rate: [{duration: 1s, at: 40/s}]}}"
TWICE = CLOSED + ", " + CLOSED.replace("load", "again")


@pytest.fixture
def counting(triton, tmp_path):
    """The model loaded anew, rows 1 to 8 in a file, and how many sequences are open."""
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"x": [n]}) for n in range(1, 9)))
    triton.unload("counting")
    triton.load("counting")

    def still_open():
        body = {"parameters": {"sequence_id": 77, "sequence_start": True, "sequence_end": True},
                "inputs": [{"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [1]}]}  # fmt: skip
        request = urllib.request.Request(
            f"{triton.http_target}/v2/models/counting/infer", json.dumps(body).encode()
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            told = {t["name"]: t["data"][0] for t in json.load(answer)["outputs"]}
        return told["OPEN"]

    return still_open


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("phases", "ids"), [(CLOSED, "number"), (CLOSED, "text"), (OPEN, "number"), (TWICE, "number")],
                         ids=["closed", "closed, text", "open", "phase after phase"])  # fmt: skip
def test_sequences_through_a_profile(triton, target, run, counting, phases, ids, workers):
    """The model fails what is out of turn: a value of another sequence, one that was never begun or begun twice."""
    ran = run(SEQUENCES % (ids, phases), target.url, "--workers", workers)
    assert ran.total["errors"] == {}
    counts = ran.total["counts"]
    assert counts["ok"] == counts["sent"] == counts["planned" if phases == OPEN else "tried"]
    assert counting() == 0  # also those that the end of the load came upon
    seqs, phase = ran.column("seq"), ran.column("phase")
    for name in set(phase.tolist()):
        steps = Counter((seqs[phase == name] % FOLLOWING).tolist())
        if phases == OPEN:
            assert len(steps) > 15
            assert max(steps.values()) == 5
        else:
            assert steps == dict.fromkeys(range(30), 5)
    due, done = ran.column("due_ns"), ran.column("done_ns")
    at = {(p, s): i for i, (p, s) in enumerate(zip(phase.tolist(), seqs.tolist(), strict=True))}
    for (p, s), i in at.items():
        if s >= FOLLOWING:
            assert due[i] == done[at[p, s - FOLLOWING]]
    assert (
        counted(triton, "counting")[0] == counts["ok"] + 1 + 1
    )  # the first request, and what counted the open ones


GENERATE = """
name: generate
kinds:
  streamed:
    model: writer
    generate: {extra: {stream: true}}
    lengths: [{in: 5, out: 3, weight: 3}, {in: 20, out: 8}]
  whole:
    model: writer
    generate: {stream: false, max_tokens_key: parameters.max_tokens}
    length: 12
    output: 4
phases: [{name: load, closed: {users: 3, requests: 90}}]
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_generate_and_generate_stream_through_a_profile(triton, run, workers):
    triton.load("writer")
    ran = run(GENERATE, triton.http_target, "--workers", workers)
    kind, length = ran.column("kind"), ran.column("length")
    assert ran.total["counts"]["ok"] == 90
    told = ran.streaming["by_kind"]["streamed"]
    short, long = (int((length[kind == "streamed"] == n).sum()) for n in (5, 20))
    assert short > long > 3
    assert told["tokens_out"] == {
        "n": short + long, "sum": 3 * short + 8 * long, "mean": (3 * short + 8 * long) / (short + long), "max": 8,
    }  # fmt: skip
    assert told["tokens_from"]["chunks"] == short + long
    assert told["tokens_in"]["sum"] == 5 * short + 20 * long
    assert 5 * MS <= told["ttft_from_sent_ns"]["p50"] < 50 * MS
    assert 4 * MS < told["tpot_ns"]["p50"] < 20 * MS
    buckets = {(b["from"], b["to"]): b["n"] for b in ran.streaming["by_length"]}
    assert buckets == {(5, 8): short, (9, 16): int((kind == "whole").sum()), (17, 32): long}
    whole = ran.streaming["by_kind"]["whole"]
    assert (whole["ttft_ns"]["n"], whole["chunks"]) == (0, 0)
    assert whole["tokens_from"]["unknown"] == whole["n"]  # nobody counts the tokens of one whole answer
    assert ran.total["by_kind"]["whole"]["service_ns"]["p50"] >= 20 * MS  # four words


PRIORITIES = """
name: priorities
kinds:
  urgent: {model: told, priority: 1}
  usual: {model: told, priority: 3, parameters: {tenant: blue, depth: 2}}
  brief: {model: told, priority: 3, server_timeout: 150ms}
phases: [{name: load, open: {arrivals: uniform, rate: [{duration: 2s, at: 15/s}]}}]
"""


def test_priorities_and_the_servers_own_timeout_through_a_profile(triton, target, run):
    """Ten a second are served where fifteen come: the urgent ones overtake, the brief ones are rejected."""
    triton.load("told")
    ran = run(PRIORITIES, target.url)
    of = ran.total["by_kind"]
    assert of["urgent"]["counts"]["ok"] == of["urgent"]["counts"]["tried"] > 3
    assert of["usual"]["counts"]["ok"] == of["usual"]["counts"]["tried"] > 3
    assert of["brief"]["counts"]["rejected"] > 0
    assert of["brief"]["counts"]["failed"] == 0
    assert ran.total["counts"]["rejected"] == of["brief"]["counts"]["rejected"]
    assert of["usual"]["latency_ns"]["max"] > 1.5 * of["urgent"]["latency_ns"]["max"]
    assert of["urgent"]["latency_ns"]["p50"] < 350 * MS
    assert "imeout expired" in ran.total["errors"]["rejected"]["text"]


def test_what_the_server_will_not_do_is_said_before_the_load(triton, target, run):
    text = "name: t\nkinds: {k: {model: slow, server_timeout: 1ms}}\nphases: [{name: p, closed: {users: 1, requests: 3}}]\n"
    ran = run(text, target.url)
    assert "server_timeout of 1000 us will not be kept" in ran.answer.err
    assert "will not be kept" in ran.info["client"]["senders"][0]["kinds"]["k"]["remarks"][0]


MIX = """
name: mix
seed: 11
kinds:
  short: {model: identity, weight: 6, length: {uniform: {min: 2, max: 16}}}
  long: {model: identity, weight: 2, length: 64, batch: 4}
  pair: {model: slow, weight: 1, batch: 2, inputs: {NOTE: {text: {min: 1, max: 9}}}}
  never: {model: identity, weight: 0, length: 3}
  talk: {model: decoupled, weight: 1, stream: true, data: {file: asks.jsonl, columns: {ASK: ask}}}
phases:
  - {name: warm-up, warmup: true, closed: {users: 8, requests: 40}}
  - {name: open, open: {arrivals: poisson, rate: [{duration: 3s, at: 100/s}]}}
  - {name: users, closed: {users: 4, requests: 200}}
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_models_and_kinds_in_one_run_figures_by_kind_and_by_length(  # noqa: PLR0915 - one run, many figures
    triton, run, tmp_path, workers
):
    """Every figure that is told by kind or by length, computed again from the records."""
    for model in ("identity", "slow", "decoupled"):
        triton.load(model)
    (tmp_path / "asks.jsonl").write_text(json.dumps({"ask": [3, 2, 0]}))
    before = {model: counted(triton, model) for model in ("identity", "slow", "decoupled")}
    ran = run(MIX, triton.grpc_target, "--workers", workers)
    after = {model: counted(triton, model) for model in before}
    rows = {
        name: ran.column(name)
        for name in ("phase", "kind", "due_ns", "sent_ns", "done_ns", "outcome", "items")
    }
    length = np.array([-1 if n is None else n for n in ran.column("length").tolist()])
    assert set(rows["outcome"].tolist()) == {"ok"}
    assert set(ran.info["first_request_ns"]) == {
        "short",
        "long",
        "pair",
        "talk",
    }  # what is never sent is not asked
    measured = rows["phase"] != "warm-up"
    n = int(measured.sum())
    assert n == ran.total["counts"]["ok"] > 440
    weights, batches = (
        {"short": 6, "long": 2, "pair": 1, "talk": 1},
        {"short": 1, "long": 4, "pair": 2, "talk": 1},
    )
    assert set(ran.total["by_kind"]) == set(weights)
    latency, service = rows["done_ns"] - rows["due_ns"], rows["done_ns"] - rows["sent_ns"]
    for kind, weight in weights.items():
        these, told = measured & (rows["kind"] == kind), ran.total["by_kind"][kind]
        assert told["batch"] == batches[kind]
        assert told["counts"]["ok"] == these.sum()
        assert abs(these.sum() - n * weight / 10) < 4 * np.sqrt(n * weight / 10)
        for name, values in (("latency_ns", latency[these]), ("service_ns", service[these])):
            points = {
                key: nearest(values, q) for key, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1))
            }
            assert {key: told[name][key] for key in points} == points
            assert told[name]["mean"] == pytest.approx(values.mean(), abs=1)
    buckets = {(b["from"], b["to"]): b for b in ran.total["by_length"]}
    assert set(buckets) == {(2, 2), (3, 4), (5, 8), (9, 16), (33, 64)}
    for (low, high), told in buckets.items():
        these = measured & (length >= low) & (length <= high)
        assert told["n"] == these.sum() > 0
        for name, values in (("latency_ns", latency[these]), ("service_ns", service[these])):
            assert told[name]["p50"] == nearest(values, 0.5)
            assert told[name]["p99"] == nearest(values, 0.99)
    for phase in ran.summary["phases"]:
        in_phase = rows["phase"] == phase["name"]
        assert sum(of["counts"]["ok"] for of in phase["by_kind"].values()) == in_phase.sum()
        for kind, of in phase["by_kind"].items():
            assert of["latency_ns"]["p50"] == nearest(latency[in_phase & (rows["kind"] == kind)], 0.5)
    assert {batches[k] for k in weights} == set(rows["items"].tolist())
    talks = measured & (rows["kind"] == "talk")
    told = ran.streaming["by_kind"]
    assert set(told) == {"talk"}
    assert (told["talk"]["n"], told["talk"]["chunks"]) == (talks.sum(), 3 * talks.sum())
    for model, kinds in (("identity", ("short", "long")), ("slow", ("pair",)), ("decoupled", ("talk",))):
        of = np.isin(rows["kind"], kinds)
        firsts = sum(batches[kind] for kind in kinds)
        assert after[model][1] - before[model][1] == rows["items"][of].sum() + firsts
        assert (
            ran.summary["server"]["by_model"][model]["inference_count"] == rows["items"][of & measured].sum()
        )
