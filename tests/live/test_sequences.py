"""Stateful sequences and request parameters on a real Triton: the server keeps our sessions apart."""

import asyncio
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from told import Told

from loadgen.clock import MONOTONIC
from loadgen.records import Outcome, Tensor
from loadgen.transport.grpc import GrpcTransport
from loadgen.transport.http import HttpTransport
from loadgen.triton.control import Control
from loadgen.wire import kserve_grpc, kserve_http
from loadgen.workload.fit import FitError
from loadgen.workload.parameters import request_parameters
from loadgen.workload.sequences import FIRST_ID, first_id, sequence_id, steps

pytestmark = pytest.mark.live


@pytest.fixture
def codec(target):
    return kserve_grpc if target.protocol == "grpc" else kserve_http


@pytest.fixture
def wire(target):
    return (GrpcTransport if target.protocol == "grpc" else HttpTransport)(target, MONOTONIC)


def outputs(codec, body):
    """Name to values of a kept body, whichever protocol it came by."""
    tensors = codec.read_infer_response(body) if codec is kserve_grpc else codec.read_infer_response(*body)
    return {t.name: t for t in tensors}


def whole(tensor):
    return np.frombuffer(tensor.data, "<i8").tolist()[0]


def number(codec, model, value, **options):
    return codec.infer_request(model, "", [Tensor("INPUT", "INT32", (1, 1), np.int32(value).tobytes())], **options)  # fmt: skip


def sums(transport, codec, model, ids, length, users):  # noqa: PLR0915 - a closed loop in one view
    """Runs one sequence an id, `users` at a time, over a pool of eight shared payloads; (sum, steps) of each answer."""
    told_of = defaultdict(list)
    values = list(range(1, 9))

    async def talk():
        pool = [
            transport.prepare(number(codec, model, v, sequence="x" * 20 if isinstance(ids[0], str) else FIRST_ID))
            for v in values
        ]  # fmt: skip
        waiting, at, failed = list(enumerate(ids)), {}, []
        ends = asyncio.get_running_loop().create_future()

        def send(user):
            nth, step = at[user]
            start, end = steps(length)[step]
            piece = codec.sequence_piece(ids[nth], start=start, end=end)
            tokens.append(user)
            transport.send(len(tokens) - 1, pool[(nth + step) % len(pool)].patched(piece))

        def answered(reply):
            user = tokens[reply.token]
            if reply.outcome is not Outcome.OK:
                failed.append(reply)
            nth, step = at[user]
            if step + 1 < length:
                at[user] = nth, step + 1
                send(user)
            elif waiting:
                at[user] = waiting.pop(0)[0], 0
                send(user)
            else:
                del at[user]
                if not at:
                    ends.set_result(None)

        def body(token, data):
            tensors = outputs(codec, data)
            told_of[at[tokens[token]][0]].append((whole(tensors["SUM"]), whole(tensors["STEPS"])))

        tokens = []
        transport.on_body = body
        await transport.open(Told(answered), users)
        try:
            for user in range(users):
                at[user] = waiting.pop(0)[0], 0
                send(user)
            async with asyncio.timeout(60):
                await ends
        finally:
            await transport.close()
        assert not failed, failed[0]

    asyncio.run(talk())
    expected = [
        [(sum(values[(nth + i) % 8] for i in range(step + 1)), step + 1) for step in range(length)]
        for nth in range(len(ids))
    ]
    return [told_of[nth] for nth in range(len(ids))], expected


@pytest.mark.parametrize("model", ["accumulate", "accumulate_oldest"])
def test_sequences_are_kept_apart_though_they_share_payloads(triton, wire, codec, model):
    triton.load(model)
    first = first_id(MONOTONIC.now_ns())
    ids = [sequence_id(first, nth) for nth in range(40)]
    came, expected = sums(wire, codec, model, ids, length=7, users=8)
    assert came == expected


def test_a_sequence_of_one_request(triton, wire, codec):
    triton.load("accumulate")
    first = first_id(MONOTONIC.now_ns())
    came, expected = sums(wire, codec, "accumulate", [first, first + 1], length=1, users=1)
    assert came == expected == [[(1, 1)], [(2, 1)]]


def test_ids_may_be_text(triton, wire, codec):
    triton.load("accumulate_oldest")
    run = f"{first_id(MONOTONIC.now_ns()):016x}"[:16]
    came, expected = sums(
        wire, codec, "accumulate_oldest", [f"{run}-{nth:03d}" for nth in range(12)], length=4, users=4
    )
    assert came == expected


def test_a_request_that_no_sequence_was_begun_for(triton, wire, codec):
    """The server refuses what has no start: our flags reach it."""
    triton.load("accumulate")

    async def talk():
        await wire.open(told := Told(), 1)
        try:
            prepared = wire.prepare(number(codec, "accumulate", 1, sequence=FIRST_ID))
            piece = codec.sequence_piece(first_id(MONOTONIC.now_ns()), start=False, end=False)
            told.send(wire, 0, prepared.patched(piece))
            return (await told.wait(1))[0]
        finally:
            await wire.close()

    reply = asyncio.run(talk())
    assert reply.outcome in (Outcome.HTTP_4XX, Outcome.GRPC_STATUS)
    assert "must specify the START flag" in reply.detail


def facts(target, model):
    async def ask():
        async with Control(target) as control:
            return await control.model_facts(model, "")

    return asyncio.run(ask())


def answers(transport, requests):
    """(replies, bodies), all sent at once."""
    bodies = {}
    transport.on_body = bodies.__setitem__

    async def talk():
        await transport.open(told := Told(), len(requests))
        try:
            for token, request in enumerate(requests):
                told.send(transport, token, transport.prepare(request))
            return await told.wait(len(requests), timeout=30)
        finally:
            await transport.close()

    return asyncio.run(talk()), bodies


def test_parameters_of_every_type_arrive(triton, target, wire, codec):
    triton.load("told")
    given = {"flag": True, "off": False, "count": -3, "big": 2**53 + 1, "part": 0.25, "name": "Ä b"}
    told, remarks = request_parameters(
        "k", facts(target, "told"), priority=2, server_timeout_ns=1_500_000_000, parameters=given
    )
    assert remarks == []
    [reply], bodies = answers(wire, [number(codec, "told", 1, parameters=told)])
    assert reply.outcome is Outcome.OK, reply
    data = outputs(codec, bodies[0])["TOLD"].data
    seen = json.loads(data[4:])
    assert seen["timeout"] == 1_500_000
    assert {name: seen["parameters"].get(name) for name in given} == given


def test_a_priority_overtakes_those_that_wait(triton, target, wire, codec):
    """Priority 1 is the first to be taken, though it came last."""
    triton.load("told")
    served = facts(target, "told")
    urgent, _ = request_parameters("k", served, priority=1)
    usual, _ = request_parameters("k", served, priority=0)
    assert (urgent, usual) == ({"priority": 1}, {})
    requests = [number(codec, "told", i, parameters=usual) for i in range(6)]
    replies, _ = answers(wire, [*requests, number(codec, "told", 9, parameters=urgent)])
    order = sorted(replies, key=lambda reply: reply.done_ns)
    assert {r.outcome for r in replies} == {Outcome.OK}
    assert [r.token for r in order].index(6) <= 3  # one was being served, one or two were bound to be next


def test_a_server_timeout_rejects_those_that_wait_too_long(triton, target, wire, codec):
    triton.load("told")
    short, remarks = request_parameters("k", facts(target, "told"), server_timeout_ns=150_000_000)
    assert remarks == []
    replies, _ = answers(wire, [number(codec, "told", i, parameters=short) for i in range(8)])
    words = {r.detail for r in replies if r.outcome is not Outcome.OK}
    assert 1 <= sum(r.outcome is Outcome.OK for r in replies) <= 4
    assert all("imeout expired" in text for text in words), words


def test_what_the_server_would_not_do_is_said(triton, target, wire, codec):
    """Its queue takes no timeouts: the remark says so, and so it is."""
    served = facts(target, "slow")
    with pytest.raises(FitError, match=r"priority 1, but the model has no priority levels"):
        request_parameters("k", served, priority=1)
    triton.load("told")
    with pytest.raises(FitError, match=r"priority 4, but the model has 3 levels; allowed: 1 \(first\) to 3"):
        request_parameters("k", facts(target, "told"), priority=4)
    told, remarks = request_parameters("k", served, server_timeout_ns=1_000_000)
    (remark,) = remarks
    assert remark == (
        "kind 'k', model 'slow': server_timeout of 1000 us will not be kept: its queue policy does not allow it"
        " (allow_timeout_override)"
    )
    note = [Tensor("INPUT", "FP32", (4, 1), bytes(16))]
    replies, _ = answers(wire, [codec.infer_request("slow", "", note, parameters=told) for _ in range(6)])
    assert {r.outcome for r in replies} == {Outcome.OK}


def test_a_timeout_cannot_be_longer_than_the_policys(triton, target, wire, codec):
    """A policy without a timeout of its own lets nothing be shortened."""
    name = triton.add_model(triton.repository / "slow", f"slow_{target.protocol}")
    policy = {"allow_timeout_override": True}
    config = facts(target, name).config
    triton.load(name, {**config, "dynamic_batching": {"default_queue_policy": policy}})
    told, remarks = request_parameters("k", facts(target, name), server_timeout_ns=1_000_000)
    assert len(remarks) == 1
    assert "may only shorten the policy's own timeout, which is none" in remarks[0]
    note = [Tensor("INPUT", "FP32", (4, 1), bytes(16))]
    replies, _ = answers(wire, [codec.infer_request(name, "", note, parameters=told) for _ in range(6)])
    assert {r.outcome for r in replies} == {Outcome.OK}
