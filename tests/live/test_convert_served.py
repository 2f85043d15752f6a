"""Converted models in the real Triton: what is served is what the file, and PyTorch, say."""

from dataclasses import replace

import numpy as np
import pytest

from loadgen.convert import served as served_module
from loadgen.convert.convert import convert
from loadgen.convert.encoder import load_encoder
from loadgen.convert.options import ConvertOptions
from loadgen.convert.parity import ParityError, make_feeds, torch_run
from loadgen.convert.serve_options import Queue, ServeOptions
from loadgen.convert.sources import find_source
from loadgen.target import parse_target
from loadgen.triton.local import LocalTriton
from tests.support.encoder import write_encoder
from tests.support.infer import ASK, executions, new_executions, together

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

LENGTHS = (3, 48, 7, 30, 1, 19)


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    top = tmp_path_factory.mktemp("sources")
    folders = {
        "plain": write_encoder(top / "plain"),
        "sentence": write_encoder(top / "st", pooling="mean_tokens"),
    }
    return {
        name: (str(folder), load_encoder(find_source(str(folder)), 48)) for name, folder in folders.items()
    }


@pytest.fixture(scope="module")
def served(encoders, tmp_path_factory):
    """Each encoder, ragged and not, with a delay long enough that requests sent together are one batch."""
    repository = tmp_path_factory.mktemp("repository")
    names = []
    for name, (folder, _) in encoders.items():
        options = ConvertOptions(
            name=name, repository=repository, max_batch=8, delay_ns=300_000_000, max_length=48, threads=1
        )
        convert(folder, options)
        names.append(name)
    folder, _ = encoders["sentence"]
    convert(folder, replace(options, name="no-ragged", ragged=False))
    with LocalTriton(repository, models=[*names, "no-ragged"]) as server:
        yield server


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", ["plain", "sentence"])
def test_served_is_what_pytorch_says_alone_and_batched(served, encoders, model, protocol):
    encoder = encoders[model][1]
    rng = np.random.default_rng(5)
    requests = [make_feeds(encoder, [n], rng) for n in LENGTHS] + [make_feeds(encoder, [9, 4], rng)]
    want = [torch_run(encoder)(feeds) for feeds in requests]
    before = executions(served, model)
    alone = [ASK[protocol](served, model, feeds) for feeds in (requests[0], requests[-1])]
    np.testing.assert_allclose(alone[0], want[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(alone[1][0], want[-1][0], rtol=0, atol=1e-5)
    assert new_executions(served, model, before, 3) == {1: 1, 2: 1}

    before = executions(served, model)
    got = together(served, protocol, model, requests)
    for answer, expected in zip(got, want, strict=True):
        assert answer.shape == expected.shape
        np.testing.assert_allclose(answer, expected, rtol=0, atol=2e-5)
    assert new_executions(served, model, before, 8) == {8: 1}, "seven requests of mixed lengths are one batch"


def test_without_ragged_lengths_are_not_mixed(served, encoders):
    encoder = encoders["sentence"][1]
    requests = [make_feeds(encoder, [n], np.random.default_rng(5)) for n in LENGTHS]
    before = executions(served, "no-ragged")
    got = together(served, "http", "no-ragged", requests)
    for answer, feeds in zip(got, requests, strict=True):
        np.testing.assert_allclose(answer, torch_run(encoder)(feeds), rtol=0, atol=2e-5)
    assert new_executions(served, "no-ragged", before, 6) == {1: 6}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_request_that_cannot_be_served_fails_alone(served, encoders, protocol):
    encoder = encoders["sentence"][1]
    rng = np.random.default_rng(6)
    good = [make_feeds(encoder, [n], rng) for n in (5, 11)]
    long = {name: np.ones((1, 49), np.int64) for name in encoder.inputs}
    strange = {name: np.ones((1, 4), np.int64) for name in encoder.inputs}
    strange["input_ids"][0, 2] = encoder.vocab_size
    before = executions(served, "sentence")
    first, refused, unknown, last = together(served, protocol, "sentence", [good[0], long, strange, good[1]])
    assert "length 49 is beyond the model's maximum of 48" in refused
    assert f"input_ids holds {encoder.vocab_size}; allowed is 0..{encoder.vocab_size - 1}" in unknown
    np.testing.assert_allclose(first, torch_run(encoder)(good[0]), rtol=0, atol=2e-5)
    np.testing.assert_allclose(last, torch_run(encoder)(good[1]), rtol=0, atol=2e-5)
    assert new_executions(served, "sentence", before, 4) == {4: 1}


def test_token_types_left_out_are_zeros(served, encoders):
    """Triton does not batch a request that has an optional input with one that leaves it out."""
    encoder = encoders["sentence"][1]
    before = executions(served, "sentence")
    feeds = make_feeds(encoder, [6], np.random.default_rng(7)) | {
        "token_type_ids": np.zeros((1, 6), np.int64)
    }
    fewer = {name: feeds[name] for name in ("input_ids", "attention_mask")}
    with_types, without = together(served, "grpc", "sentence", [feeds, fewer])
    np.testing.assert_allclose(without, with_types, rtol=0, atol=1e-6)
    np.testing.assert_allclose(without, torch_run(encoder)(feeds), rtol=0, atol=2e-5)
    assert new_executions(served, "sentence", before, 2) == {1: 2}


@pytest.mark.parametrize(
    "serve",
    [
        ServeOptions(queue=Queue(most=1)),
        ServeOptions(priority_levels=2, level_queues=((1, Queue(most=3)),)),
    ],
)
def test_a_short_queue_is_no_reason_to_fail_the_check(encoders, tmp_path, serve):
    """Field case 18: over HTTP and gRPC more is sent at once than waits there."""
    options = ConvertOptions(
        name="m", repository=tmp_path, max_batch=4, max_length=48, threads=1, check_served=True, serve=serve
    )
    told = convert(encoders["sentence"][0], options).sidecar["served"]
    assert told["passed"]
    assert {step["rung"] for step in told["steps"]} == {
        f"served, {how}" for how in ("http", "http, at once", "grpc", "grpc, at once")
    }


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_queue_that_never_takes_the_check_is_named(encoders, tmp_path, monkeypatch, protocol):
    """A wait of 1 us is too long before the batcher has looked once: 503, and gRPC's UNAVAILABLE."""
    monkeypatch.setattr(served_module, "_PATIENCE_S", 1)
    options = ConvertOptions(
        name="m", repository=tmp_path, max_batch=4, delay_ns=50_000_000, max_length=48, threads=1,
        serve=ServeOptions(queue=Queue(timeout_us=1)),
    )  # fmt: skip
    convert(encoders["sentence"][0], options)
    feeds = make_feeds(encoders["sentence"][1], [5], np.random.default_rng(1))
    with LocalTriton(tmp_path, models=["m"]) as server:
        target = parse_target(server.http_target if protocol == "http" else server.grpc_target)
        with (
            served_module.served_rungs(target, "m") as rungs,
            pytest.raises(
                ParityError, match=r"refuses m: .*timeout expired.*asked again for 1 s: .*--queue-timeout"
            ),
        ):
            rungs[f"served, {protocol}"](feeds)
