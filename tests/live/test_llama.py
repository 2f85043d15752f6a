"""Chats with a streaming server that no one here wrote: llama-cpp-python, with a real model of 135 million weights."""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from llama import MODEL, llama_server, python
from told import Told

from loadgen.clock import MONOTONIC
from loadgen.lab.texts import build_texts
from loadgen.records import Outcome, Wanted
from loadgen.target import parse_target
from loadgen.traffic.chat import Chat, Completion
from loadgen.transport.http import HttpTransport
from loadgen.wire.openai import make_request
from tests.support.cli import loadgen

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]  # the first time, the server is built


@pytest.fixture(scope="module")
def port():
    python()
    with llama_server() as port:
        yield port


def ask(port, requests, users=2):
    """All of them, `users` at a time: (reply, what was streamed) of each, and the transport."""

    async def job():
        transport = HttpTransport(parse_target(f"openai+http://127.0.0.1:{port}/v1"), MONOTONIC)
        prepared = [transport.prepare(request) for request in requests]
        told = Told(lambda _: left and transport.send(*left.pop()))
        left = list(enumerate(prepared))[::-1]
        await transport.open(told, users)
        for _ in range(users):
            transport.send(*left.pop())
        replies = await told.wait(len(requests), timeout=300)
        await transport.close()
        return [(reply, told.streamed[reply.token]) for reply in replies], transport

    return asyncio.run(job())


def test_fifty_chats_with_plausible_figures(port):
    """This server tells no usage in a stream, and writes a token a chunk."""
    part = Chat(system="You are brief.", temperature=0.8)
    wanted = [Wanted(20 + n % 7, 12) for n in range(50)]
    requests = [m.request for m in build_texts(MODEL, "", part, wanted, np.random.default_rng(1), None)]
    answers, transport = ask(port, requests)
    assert [(reply.outcome, reply.status, reply.detail) for reply, _ in answers] == [
        (Outcome.OK, 200, None)
    ] * 50
    for reply, came in answers:
        assert came.source == "chunks"
        assert 1 <= came.tokens_out == len(came.chunk_ns) <= 12
        assert came.finish in ("stop", "length")
        assert reply.sent_ns < reply.first_ns <= came.chunk_ns[0] == came.first_content_ns
        assert came.chunk_ns[-1] <= reply.done_ns
    full = [(reply, came) for reply, came in answers if came.finish == "length"]
    assert len(full) > 25, "random words are answered at length"
    for _, came in full:
        assert came.tokens_out == 12
    tpot = np.median([(came.chunk_ns[-1] - came.chunk_ns[0]) / 11 for _, came in full])
    ttft = np.median([came.chunk_ns[0] - reply.sent_ns for reply, came in answers])
    assert 1e6 < tpot < 1e9
    assert ttft > tpot, "forty tokens in, and another request in front"
    assert transport.connections_opened == 2


PROFILE = """
name: smollm2
seed: 9
kinds:
  chat:
    model: smollm2
    chat: {system: You are brief., temperature: 0.8}
    lengths: [{in: 20, out: 12, weight: 3}, {in: 60, out: 24}]
    timeout: 120s
phases:
  - {name: warm-up, warmup: true, closed: {users: 2, requests: 4}}
  - {name: two users, closed: {users: 2, requests: 60}}
objectives: ["ttft max < 20s", "tpot max < 1s", "goodput > 90%"]
"""


def test_sixty_chats_through_a_run(port, tmp_path):
    (tmp_path / "smollm2.yaml").write_text(PROFILE)
    out = tmp_path / "run"
    target = f"openai+http://127.0.0.1:{port}/v1"
    answer = loadgen("run", tmp_path / "smollm2.yaml", "--target", target, "--out", out)
    print(answer.err, answer.out, sep="\n")
    assert answer.code in (0, 3)  # 3: a busy machine
    summary = json.loads((out / "summary.json").read_text())
    streaming = summary["total"]["streaming"]
    assert summary["total"]["counts"]["ok"] == streaming["n"] == streaming["ttft_ns"]["n"] == 60
    assert streaming["tokens_from"]["chunks"] == 60  # it tells no usage in a stream, and the report says so
    assert streaming["chunks"] == streaming["tokens_out"]["sum"] <= 60 * 24
    assert {row["to"] for row in streaming["by_length"]} == {32, 64}
    assert 1e6 < streaming["tpot_ns"]["p50"] < streaming["ttft_from_sent_ns"]["p50"] < 20e9
    assert [v["verdict"] for v in summary["slo"]] == ["pass"] * 3


def test_a_whole_answer_tells_usage(port):
    turns = [{"role": "user", "content": "Say hi."}]
    ((reply, came),), _ = ask(
        port, [make_request(MODEL, turns, stream=False, max_tokens=4, keep_text=True)], 1
    )
    assert reply.outcome is Outcome.OK
    assert (came.source, len(came.chunk_ns)) == ("usage", 0)
    assert 1 <= came.tokens_out <= 4
    assert came.tokens_in > 4
    assert came.text


def test_completions(port):
    part = Completion(temperature=0.8)
    (message,) = build_texts(MODEL, "", part, [Wanted(10, 8)], np.random.default_rng(2), None)
    ((reply, came),), _ = ask(port, [message.request], 1)
    assert reply.outcome is Outcome.OK
    assert 1 <= len(came.chunk_ns) <= 8


def test_a_prompt_that_breaks_the_server_is_no_quick_success(port):
    """Field case 31: this server answers one that is too long with a 200 and an empty stream."""
    turns = [{"role": "user", "content": "word " * 3000}]
    ((reply, came),), _ = ask(port, [make_request(MODEL, turns, max_tokens=4)], 1)
    assert (reply.outcome, reply.status, reply.detail) == (
        Outcome.STREAM_ENDED_EARLY,
        200,
        "the answer was empty",
    )
    assert came.chunk_ns == []
