"""Tensors of every datatype on a real Triton: what was sent comes back to the bit, over HTTP and gRPC."""

import asyncio
import base64
import json
from pathlib import Path

import numpy as np
import pytest

from loadgen.clock import MONOTONIC
from loadgen.records import Wanted
from loadgen.traffic.profile import parse_profile
from loadgen.transport.grpc import GrpcTransport
from loadgen.transport.http import HttpTransport
from loadgen.triton.control import Control
from loadgen.wire import kserve_grpc, kserve_http
from loadgen.workload.payloads import build, pool_rng
from loadgen.workload.rows import read_data
from tests.support.told import Told

pytestmark = pytest.mark.live

ECHO = Path(__file__).parents[1] / "support" / "tensors" / "echo"
TEXTS = [b"\xff\xfe", b"", "中文🙂".encode(), b"x" * 2**20]
KINDS = """
name: t
kinds:
  drawn: {model: echo, batch: 3, length: 5,
          inputs: {FP16: {normal: {mean: 0, sd: 100}, shape: [length, 3]}, BF16: {shape: [4, 3], uniform: {min: -1, max: 1}},
                   INT8: {integers: {min: -128, max: 127}}, BYTES: {text: {min: 1, max: 9}}, SCALAR: {constant: 0.5}}}
  filed: {model: echo, data: {file: rows.jsonl}}
phases: [{name: p, closed: {users: 1, requests: 1}}]
"""


def row(number):
    """One row of every input; numbers at the ends of their types."""
    text = TEXTS[number % len(TEXTS)]
    return {
        "FP16": [[65504, 1e-7, -0.1]] * (number + 1),
        "BF16": {"data": [1.00390625, 1.01171875, -3e38], "shape": [1, 3]},
        "FP32": list(range(number, number + 8)),
        "FP64": [1e308, 5e-324, 0.1 + number],
        "INT8": [-128, 127][: number % 2 + 1],
        "INT16": [-(2**15), 2**15 - 1],
        "INT32": -(2**31),
        "INT64": [[-(2**63)], [2**63 - 1], [0]],
        "UINT8": np.arange(48).reshape(4, 4, 3).tolist(),
        "UINT16": [0, 2**16 - 1],
        "UINT32": [0, 2**32 - 1],
        "UINT64": [2**53 + 1, 2**64 - 1],
        "BOOL": [True, False, True, True, False],
        "BYTES": [{"b64": base64.b64encode(text).decode()}, "plain"],
        "SCALAR": 0.25 + number,
    }


async def echoed(target, payloads):
    """The tensors that come back for each payload."""
    codec = kserve_grpc if target.protocol == "grpc" else kserve_http
    transport = (GrpcTransport if target.protocol == "grpc" else HttpTransport)(target, MONOTONIC)
    bodies = {}
    transport.on_body = bodies.__setitem__
    try:
        await transport.open(told := Told(), 1)
        for token, payload in enumerate(payloads):
            codec = kserve_grpc if target.protocol == "grpc" else kserve_http
            request = codec.infer_request("echo", "", payload.tensors)
            told.send(transport, token, transport.prepare(request))
            replies = await told.wait(token + 1)
            assert replies[token].outcome.name == "OK", replies[token].detail
    finally:
        await transport.close()
    return [
        codec.read_infer_response(*(b if isinstance(b, tuple) else (b,))) for _, b in sorted(bodies.items())
    ]


async def facts_of(target):
    async with Control(target) as control:
        return await control.model_facts("echo", "")


@pytest.fixture
def pools(triton, target, tmp_path):
    """The payloads of a kind of KINDS, built for what the server says of its model."""
    triton.add_model(ECHO)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row(number)) + "\n" for number in range(4)))
    facts = asyncio.run(facts_of(target))

    def make(name, n):
        kind = parse_profile(KINDS, "t.yaml").kinds[name]
        data = read_data(kind, facts, tmp_path)
        want = Wanted(5 if kind.length else None)
        return build(kind, facts, [want] * n, pool_rng(1, name), data)

    return make


@pytest.mark.parametrize("name", ["drawn", "filed"])
def test_what_was_sent_comes_back_to_the_bit(pools, target, name):
    """Cases 5, 6 and 7: BF16 and FP16 from plain numbers, bytes of any content, on the real server."""
    payloads = pools(name, 4)
    assert len(payloads[0].tensors) == 15
    for payload, answers in zip(payloads, asyncio.run(echoed(target, payloads)), strict=True):
        got = {tensor.name: tensor for tensor in answers}
        for sent in payload.tensors:
            assert (got[sent.name].datatype, got[sent.name].shape) == (sent.datatype, sent.shape)
            assert got[sent.name].data == sent.data, sent.name


def test_the_bits_are_those_of_the_file(pools):
    tensors = {tensor.name: tensor for tensor in pools("filed", 3)[2].tensors}
    assert tensors["BF16"].data == bytes.fromhex("803f 823f 62ff")
    assert tensors["FP16"].shape == (1, 3, 3)
    assert tensors["UINT64"].data == (2**53 + 1).to_bytes(8, "little") + b"\xff" * 8
    assert tensors["BYTES"].data == b"\x0a\0\0\0" + TEXTS[2] + b"\5\0\0\0plain"
    assert (tensors["SCALAR"].shape, tensors["SCALAR"].data) == ((1, 1), np.float32(2.25).tobytes())
