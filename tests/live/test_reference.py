"""The wire transports against other people's clients on a real Triton: the same answers, the same refusals."""

import asyncio
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from told import Told

from loadgen.clock import MONOTONIC
from loadgen.records import Tensor
from loadgen.transport.grpc import GrpcTransport
from loadgen.transport.http import HttpTransport
from loadgen.transport.reference import ReferenceTransport
from loadgen.wire import kserve_grpc, kserve_http

pytestmark = pytest.mark.live


async def talk(transport, requests):
    """(replies, bodies) of requests sent one after the other: batches would differ from run to run."""
    bodies = {}
    transport.on_body = bodies.__setitem__
    try:
        await transport.open(told := Told(), 1)
        for token, request in enumerate(requests):
            told.send(transport, token, transport.prepare(request))
            await told.wait(token + 1)
        return sorted(told.replies), bodies
    finally:
        await transport.close()


def test_the_same_answers_and_refusals(target):
    codec = kserve_grpc if target.protocol == "grpc" else kserve_http
    wire = GrpcTransport if target.protocol == "grpc" else HttpTransport
    random = np.random.default_rng(5)
    sent = [
        random.standard_normal((rows, width)).astype("<f4") for rows, width in [(1, 1), (3, 17), (8, 4096)]
    ]
    requests = [
        codec.infer_request("identity", "", [Tensor("INPUT", "FP32", x.shape, x.tobytes())]) for x in sent
    ]
    wrong = Tensor("INPUT", "FP32", (9, 2), bytes(72))  # more rows than the model takes
    requests += [codec.infer_request("nobody", "", [wrong]), codec.infer_request("identity", "", [wrong])]
    mine, my_bodies = asyncio.run(talk(wire(target, MONOTONIC), requests))
    theirs, their_bodies = asyncio.run(talk(ReferenceTransport(target, MONOTONIC), requests))

    assert [r.outcome.name for r in mine][:3] == ["OK"] * 3
    assert all(r.outcome.name in ("HTTP_4XX", "GRPC_STATUS", "REJECTED") for r in mine[3:])
    for one, other in zip(mine, theirs, strict=True):
        assert (one.outcome, one.status, one.detail) == (other.outcome, other.status, other.detail)
    assert my_bodies == their_bodies
    assert sorted(my_bodies) == [0, 1, 2]
    for token, x in enumerate(sent):
        body = my_bodies[token]
        (answer,) = codec.read_infer_response(*(body if isinstance(body, tuple) else (body,)))
        assert (answer.shape, answer.data) == (x.shape, x.tobytes())
        if target.protocol == "grpc":
            from tritonclient.grpc import service_pb2

            official = service_pb2.ModelInferResponse.FromString(body)
            assert official.raw_output_contents[0] == x.tobytes()
