"""Decoupled models of a real Triton: the answers of our streams are those of tritonclient's."""

import asyncio
import queue
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from told import Told

from loadgen.clock import MONOTONIC
from loadgen.records import Outcome, Tensor
from loadgen.target import parse_target
from loadgen.transport.grpc import GrpcTransport
from loadgen.triton.control import Control
from loadgen.wire.kserve_grpc import read_infer_response, stream_infer_request
from loadgen.wire.kserve_stream import StreamReader
from loadgen.wire.protobuf import fields

pytestmark = pytest.mark.live
MS = 1_000_000


@pytest.fixture(scope="module")
def decoupled(triton):
    triton.load("decoupled")
    return triton


def asking(count, delay_ms=0, style=0, model="decoupled"):
    data = np.array([count, delay_ms, style], "<i4").tobytes()
    return stream_infer_request(model, "", [Tensor("ASK", "INT32", (3,), data)])


def stream(triton, requests, then=None):
    """Sends them all at once; what each was told, and the replies."""

    async def talk():
        transport = GrpcTransport(parse_target(triton.grpc_target), MONOTONIC)
        await transport.open(told := Told(), 1)
        try:
            for token, request in enumerate(requests):
                told.send(transport, token, transport.prepare(request))
            if then is not None:
                await then(transport, told)
            replies = await told.wait(len(requests), timeout=30)
            assert transport.connections_opened == 1
            return replies, [told.streamed[token] for token in range(len(requests))]
        finally:
            await transport.close()

    return asyncio.run(talk())


@pytest.mark.parametrize(
    ("count", "style"), [(5, 0), (0, 0), (5, 1), (1, 1), (1, 0), (300, 0)],
    ids=["five", "none", "five, final in the last", "one with the final flag", "one", "many"],
)  # fmt: skip
def test_as_many_answers_as_the_model_gives(decoupled, count, style):
    """Field case 42."""
    [reply], [came] = stream(decoupled, [asking(count, 0, style)])
    assert (reply.outcome, reply.detail) == (Outcome.OK, None)
    assert len(came.chunk_ns) == came.tokens_out == count
    assert came.source == "chunks"
    assert came.chunk_ns == sorted(came.chunk_ns)
    assert all(reply.sent_ns < at <= reply.done_ns for at in came.chunk_ns)


def test_each_answer_is_stamped_as_it_comes(decoupled):
    [reply], [came] = stream(decoupled, [asking(5, 40)])
    assert reply.outcome is Outcome.OK
    after = [(at - reply.sent_ns) / MS for at in came.chunk_ns]
    assert all(at >= 40 * (i + 1) for i, at in enumerate(after)), after
    gaps = np.diff(after)
    assert all(gaps > 20), after  # the first does not wait for the last
    assert reply.done_ns >= came.chunk_ns[-1]


def test_streams_side_by_side_on_one_connection(decoupled):
    counts = [(i * 7) % 23 for i in range(200)]
    replies, came = stream(decoupled, [asking(count, 1, i % 2) for i, count in enumerate(counts)])
    assert {r.outcome for r in replies} == {Outcome.OK}
    assert [len(c.chunk_ns) for c in came] == counts


def test_a_failure_inside_the_stream_keeps_the_answers_before_it(decoupled):
    [reply], [came] = stream(decoupled, [asking(3, 0, 2)])
    assert reply.outcome is Outcome.GRPC_STATUS
    assert "the model ran out of words" in reply.detail
    assert reply.detail.endswith("(after answers)")
    assert len(came.chunk_ns) == 3


def test_a_model_that_is_not_there_and_one_that_is_not_decoupled(decoupled):
    plain = stream_infer_request("identity", "", [Tensor("INPUT", "FP32", (1, 4), bytes(16))])
    replies, came = stream(decoupled, [asking(1, model="nobody"), plain])
    assert replies[0].outcome is Outcome.GRPC_STATUS
    assert "nobody" in replies[0].detail
    assert replies[1].outcome is Outcome.OK
    assert [len(c.chunk_ns) for c in came] == [0, 1]


async def served(triton, model):
    async with Control(parse_target(triton.http_target)) as control:
        return (await control.model_facts(model, "")).config


def test_a_full_queue_rejects(decoupled):
    """Field case 18, on streams: a failure without a status is known by its words."""
    name = decoupled.add_model(decoupled.repository / "slow", "slow_full")
    policy = {"default_queue_policy": {"max_queue_size": 1}}
    config = asyncio.run(served(decoupled, name))
    decoupled.load(name, {**config, "dynamic_batching": policy, "max_batch_size": 1})
    request = stream_infer_request(name, "", [Tensor("INPUT", "FP32", (1, 1), bytes(4))])
    replies, came = stream(decoupled, [request] * 12)
    rejected = [r for r in replies if r.outcome is Outcome.REJECTED]
    assert 6 <= len(rejected) <= 11
    assert {r.outcome for r in replies} == {Outcome.OK, Outcome.REJECTED}
    assert all("queue size" in r.detail for r in rejected), rejected
    assert [len(c.chunk_ns) for c in came] == [int(r.outcome is Outcome.OK) for r in replies]


def test_a_wait_too_long_in_the_queue_rejects(decoupled):
    decoupled.load("told")
    request = stream_infer_request(
        "told", "", [Tensor("INPUT", "INT32", (1, 1), bytes(4))], parameters={"timeout": 150_000}
    )
    replies, _ = stream(decoupled, [request] * 8)
    assert {r.outcome for r in replies} == {Outcome.OK, Outcome.REJECTED}
    assert all("timeout expired" in r.detail for r in replies if r.outcome is Outcome.REJECTED)


def test_given_up_in_the_middle(decoupled):
    async def give_up(transport, told):
        await asyncio.sleep(0.5)
        transport.cancel(0, Outcome.CANCELLED)

    replies, came = stream(decoupled, [asking(20, 100), asking(8, 100)], give_up)
    assert [r.outcome for r in replies] == [Outcome.CANCELLED, Outcome.OK]
    assert 1 <= len(came[0].chunk_ns) < 10
    assert "given up within the answer" in replies[0].detail
    assert len(came[1].chunk_ns) == 8  # its neighbour on the connection goes on


def test_the_same_answers_as_tritonclients_stream(decoupled, monkeypatch):
    import tritonclient.grpc as official

    asked = [(4, 0, 0), (0, 0, 0), (3, 0, 1), (2, 0, 2)]
    seen = []
    feed = StreamReader.feed
    monkeypatch.setattr(
        StreamReader, "feed", lambda self, data, now: (seen[-1].append(data), feed(self, data, now))[1]
    )

    def ours(ask):
        seen.append([])
        [reply], _ = stream(decoupled, [asking(*ask)])
        answers = []
        for message in seen[-1]:
            for number, value in fields(message):
                tensors = read_infer_response(value) if number == 2 else []
                answers += [np.frombuffer(t.data, "<i4").tolist() for t in tensors]
        return answers, reply.outcome is Outcome.OK

    def theirs(ask):
        told = queue.Queue()
        with official.InferenceServerClient(decoupled.grpc_target.removeprefix("grpc://")) as client:
            client.start_stream(lambda result, error: told.put((result, error)))
            tensor = official.InferInput("ASK", [3], "INT32")
            tensor.set_data_from_numpy(np.array(ask, np.int32))
            client.async_stream_infer("decoupled", [tensor], enable_empty_final_response=True)
            answers = []
            while True:
                result, error = told.get(timeout=10)
                if error is not None:
                    return answers, False
                response = result.get_response()
                if response.outputs:
                    answers.append(result.as_numpy("ANSWER").tolist())
                if response.parameters["triton_final_response"].bool_param:
                    return answers, True

    for ask in asked:
        assert ours(ask) == theirs(ask), ask
