"""The control plane and the statistics against a real Triton, over both protocols."""

import asyncio

import numpy as np
import pytest

from loadgen.records import LoadgenError, TensorSpec
from loadgen.target import parse_target
from loadgen.triton.control import Control
from loadgen.triton.statistics import window

pytestmark = pytest.mark.live


def ask(target, method, *arguments, **options):
    async def go():
        async with Control(target, **options) as control:
            return await getattr(control, method)(*arguments)

    return asyncio.run(go())


async def infer(triton, model, rows, count, width=3):
    """`count` requests at once of `rows` rows each; every answer must be what was sent."""
    from tritonclient.grpc import InferInput
    from tritonclient.grpc.aio import InferenceServerClient

    async with InferenceServerClient(triton.grpc_target.removeprefix("grpc://")) as client:

        async def one(i):
            sent = np.full((rows, width), i, dtype=np.float32)
            tensor = InferInput("INPUT", sent.shape, "FP32")
            tensor.set_data_from_numpy(sent)
            answer = await client.infer(model, [tensor])
            np.testing.assert_array_equal(answer.as_numpy("OUTPUT"), sent)

        await asyncio.gather(*(one(i) for i in range(count)))


def test_what_the_server_is(target):
    assert ask(target, "server_live")
    metadata = ask(target, "server_metadata")
    assert metadata["name"] == "triton"
    assert "statistics" in metadata["extensions"]


def test_what_a_model_is(target):
    facts = ask(target, "model_facts", "slow")
    assert (facts.name, facts.versions, facts.max_batch_size) == ("slow", ("1",), 4)
    assert facts.inputs == (
        TensorSpec("INPUT", "FP32", (1,)),
        TensorSpec("NOTE", "BYTES", (1,), optional=True),
    )
    assert facts.outputs == (TensorSpec("OUTPUT", "FP32", (1,)),)
    assert facts.parameters == {"sleep_ms": "50"}
    assert ask(target, "model_facts", "identity", "1").inputs == (TensorSpec("INPUT", "FP32", (-1,)),)


def test_both_protocols_tell_the_same(triton):
    both = [parse_target(triton.http_target), parse_target(triton.grpc_target)]
    for method in ("server_ready", "server_metadata", "repository_index"):
        http, grpc = (ask(target, method) for target in both)
        assert http == grpc
    http, grpc = (ask(target, "model_facts", "identity") for target in both)
    assert http == grpc
    assert http.config["dynamic_batching"]["max_queue_delay_microseconds"] == 2000
    asyncio.run(infer(triton, "identity", rows=2, count=3))
    http, grpc = (ask(target, "settled_statistics", "identity") for target in both)
    assert http == grpc
    assert isinstance(http["inference_stats"]["success"]["ns"], int)


def test_statistics_equal_what_was_sent(triton, target):
    before = ask(target, "settled_statistics", "identity")
    asyncio.run(infer(triton, "identity", rows=2, count=12))
    for i in range(3):
        asyncio.run(infer(triton, "identity", rows=i + 5, count=1))
    done = window(before, ask(target, "settled_statistics", "identity"))
    assert done.success.count == 15
    assert done.inferences == 12 * 2 + 5 + 6 + 7
    assert sum(size * count for size, count in done.batch_sizes.items()) == done.inferences
    assert {5, 6, 7} <= done.batch_sizes.keys()
    assert done.mean_batch == done.inferences / done.executions
    assert done.queue_ns_mean > 0
    assert done.compute_ns_mean > 0
    assert not done.went_back


def test_requests_sent_together_are_merged_and_service_is_what_the_model_sleeps(triton, target):
    before = ask(target, "settled_statistics", "slow")
    asyncio.run(infer(triton, "slow", rows=1, count=13, width=1))
    done = window(before, ask(target, "settled_statistics", "slow"))
    assert done.inferences == 13
    assert done.batch_sizes[4] >= 2  # 1, 4, 4, 4 when all are there in time
    assert done.batches[4].mean_ns > 50e6
    assert done.queue_ns_mean > 50e6  # most waited for at least one batch


def test_load_and_unload_and_what_is_said_between(triton, target):
    name = triton.add_model(triton.repository / "identity", f"spare_{target.protocol}")
    ask(target, "wait_model_ready", name)
    ask(target, "unload", name)
    assert not ask(target, "model_ready", name)
    with pytest.raises(
        LoadgenError, match=rf"'{name}' is known to .* but not loaded \(UNAVAILABLE: unloaded\)"
    ):
        ask(target, "model_facts", name)
    with pytest.raises(LoadgenError, match="but not loaded"):
        ask(target, "statistics", name)
    ask(target, "load", name)
    assert ask(target, "model_ready", name)
    ask(target, "unload", name)


def test_a_configuration_laid_over_resets_the_counters_and_is_seen(triton, target):
    name = triton.add_model(triton.repository / "identity", f"tuned_{target.protocol}")
    asyncio.run(infer(triton, name, rows=1, count=4))
    before = ask(target, "settled_statistics", name)
    config = dict(ask(target, "model_facts", name).config)
    ask(
        target,
        "load",
        name,
        config | {"max_batch_size": 2, "dynamic_batching": {"preferred_batch_size": [2]}},
    )
    assert ask(target, "model_facts", name).max_batch_size == 2
    assert window(before, ask(target, "statistics", name)).went_back
    ask(target, "unload", name)


def test_unknown_models_and_versions_name_what_there_is(target):
    with pytest.raises(LoadgenError, match=r"no model 'nosuch' on .*; it has: .*identity.*slow"):
        ask(target, "model_facts", "nosuch")
    with pytest.raises(LoadgenError, match=r"'identity' has no version '7' on .*; loaded: 1"):
        ask(target, "model_facts", "identity", "7")
    with pytest.raises(LoadgenError, match="no model 'nosuch'"):
        ask(target, "unload", "nosuch")
    with pytest.raises(LoadgenError, match=r"no model 'nosuch' in the server's repository; it has: "):
        ask(target, "load", "nosuch")


def test_the_reason_of_a_failed_load_reaches_the_user(triton, target):
    with pytest.raises(LoadgenError, match=r"'broken' could not be loaded: .*made of cheese"):
        ask(target, "load", "broken")
    with pytest.raises(LoadgenError, match="preferred size must be <= max batch size"):
        ask(target, "load", "misconfigured", log=triton.log_path)
    with pytest.raises(LoadgenError, match="only in the server's log"):
        ask(target, "load", "misconfigured")


def test_the_wrong_port_is_guessed(triton):
    swapped = (
        triton.http_target.replace("http://", "grpc://"),
        triton.grpc_target.replace("grpc://", "http://"),
    )
    for url, words in zip(swapped, ("is this the HTTP port", "is this the gRPC port"), strict=True):
        with pytest.raises(LoadgenError, match=words):
            ask(parse_target(url), "server_live")
