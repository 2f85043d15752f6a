"""Many streams of many chunks: their stamps are never in memory all at once, only the gaps between them."""

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from loadgen.analysis.summary import summarise
from loadgen.records import Outcome
from loadgen.runfile import RunFolder
from loadgen.streamfile import schema
from tests.support.runs import MS, info, phase

N, CHUNKS, STEP, BATCH = 200_000, 32, 50_000, 1024


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """20,000 streams a second for 10 s; the k-th gap of the i-th takes 1 to 10 ms."""
    path = tmp_path_factory.mktemp("large-streams")
    folder = RunFolder(
        path, info([phase(planned=N)], objectives=["chunk gap p99 < 1s", "ttft p99 < 1s", "goodput > 1%"])
    )
    writer = folder.writer()
    rng = np.random.default_rng(0)
    gaps = rng.integers(1 * MS, 10 * MS, (N, CHUNKS - 1))
    first = rng.integers(50 * MS, 100 * MS, N)
    last = first + gaps.sum(axis=1)
    for i, took in enumerate(last.tolist()):
        due = i * STEP
        writer.append(i, 0, 0, due, due, due + took, due + took, 100, 1, 300, 200, int(Outcome.OK), 200, None)
    writer.close()
    with pa.OSFile(str(path / "streams.arrow"), "wb") as file, pa.ipc.new_stream(file, schema()) as stream:
        for at in range(0, N, BATCH):
            stream.write_batch(_batch(np.arange(at, min(at + BATCH, N)), first, gaps))
    return path, gaps, first


def _batch(these, first, gaps):
    due = these * STEP
    stamps = np.cumsum(np.column_stack([due + first[these], gaps[these]]), axis=1)

    def named(text, kind):
        return pa.DictionaryArray.from_arrays(pa.array(np.zeros(these.size, kind)), pa.array([text]))

    offsets = pa.array(np.arange(these.size + 1, dtype=np.int32) * CHUNKS)
    same = {"chunks": CHUNKS, "tokens_in": 100, "tokens_out": CHUNKS * 2, "cached_tokens": 0, "max_tokens": 64,
            "min_tokens": 64, "unseen": 0}  # fmt: skip
    columns = {
        "seq": pa.array(these), "phase": named("steady", np.int16), "kind": named("short", np.int16),
        "due_ns": pa.array(due), "sent_ns": pa.array(due), "outcome": named("ok", np.int8),
        "first_token_ns": pa.array(stamps[:, 0]), "first_content_ns": pa.array(stamps[:, 0]),
        "last_token_ns": pa.array(stamps[:, -1]), "chunk_ns": pa.ListArray.from_arrays(offsets, pa.array(stamps.ravel())),
        **{name: pa.array(np.full(these.size, n, np.int32)) for name, n in same.items()},
        "source": pa.array(["usage"] * these.size), "finish": pa.array(["stop"] * these.size),
        "choice_chunks": pa.nulls(these.size, pa.list_(pa.int32())),
    }  # fmt: skip
    return pa.record_batch([columns[name] for name in schema().names], schema=schema())


def test_stamps_are_read_a_batch_at_a_time_and_gaps_are_kept_narrow(large):
    """A stream takes its columns and 4 bytes a gap, eight times that while an interval of their mean is made; its
    stamps would stay as 256 more.
    """
    path, gaps, first = large
    summarise(path)  # imports are not what is counted
    tracemalloc.start()
    try:
        summary = summarise(path)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < (110 + 8 * 4 * (CHUNKS - 1)) * N
    found = summary["total"]["streaming"]
    assert found["chunk_gap_ns"]["n"] == gaps.size
    assert found["chunk_gap_ns"]["mean"] == pytest.approx(gaps.mean(), abs=1)
    exact = np.quantile(gaps, 0.99, method="inverted_cdf")
    assert found["chunk_gap_ns"]["p99"] == exact
    assert found["ttft_ns"]["max"] == first.max()
    assert found["tpot_ns"]["mean"] == pytest.approx((gaps.sum(axis=1) / (2 * CHUNKS - 1)).mean(), abs=2)
    assert (
        found["peak_output_tokens_per_s"]
        >= found["output_tokens_per_s"]
        == pytest.approx(20_000 * 64, rel=0.01)
    )
    assert [one["verdict"] for one in summary["slo"]] == ["pass"] * 3
