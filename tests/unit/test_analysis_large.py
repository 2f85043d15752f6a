"""A million rows: what a report costs a row, in memory and in steps of Python.  No clock: machines differ."""

import sys
import time
import tracemalloc

import numpy as np
import pytest

from loadgen.histogram import Histogram
from loadgen.records import Outcome
from loadgen.report.write import write_reports
from loadgen.runfile import RunFolder
from loadgen.runread import read_run
from tests.support.runs import MS, S, info, phase

N, STEP = 1_000_000, 10_000


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """100,000/s for 10 s after a tenth of warm-up, two kinds, one request in 500 rejected; its path and latencies."""
    path = tmp_path_factory.mktemp("large")
    warm = phase("warm", measured=False, planned=N // 10, duration_ns=S, load_end_ns=S, end_ns=S)
    load = phase(
        "load", planned=N - N // 10, duration_ns=9 * S, start_ns=S, load_end_ns=10 * S, end_ns=11 * S
    )
    kinds = [info([])["kinds"][0] | {"name": name} for name in "ab"]
    writer = RunFolder(
        path, info([warm, load], kinds=kinds, objectives=["latency p99 < 1s", "lag p99 < 1s"])
    ).writer()
    service = (np.random.default_rng(0).lognormal(0, 0.5, N) * 5 * MS).astype(np.int64)
    for i, ns in enumerate(service.tolist()):
        due, bad = i * STEP, i % 500 == 250
        writer.append(i, int(i >= N // 10), i & 1, due, due + 1000, due + ns, due + 1000 + ns, i % 512, 1, 300, 200,
                      int(Outcome.REJECTED) if bad else 0, 503 if bad else 200, "full" if bad else None)  # fmt: skip
    writer.close()
    assert writer.error is None
    measured = np.arange(N) >= N // 10
    return path, service[measured & (np.arange(N) % 500 != 250)] + 1000


def test_a_report_holds_a_row_once_and_never_as_an_object(large):
    """The columns take 43 bytes a row; what is computed from them at a time must stay of that order."""
    path, latency = large
    calls = 0

    def count(_frame, event, _arg):
        nonlocal calls
        calls += event in ("call", "c_call")

    write_reports(path)  # imports are not what is counted
    tracemalloc.start()
    sys.setprofile(count)
    try:
        summary = write_reports(path)
    finally:
        sys.setprofile(None)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 130 * N
    assert calls < N / 3
    total = summary["total"]
    assert (
        total["counts"] | {"ok": latency.size, "rejected": N * 9 // 5000, "planned": N * 9 // 10}
        == total["counts"]
    )
    assert total["latency_ns"]["max"] == latency.max()
    assert total["latency_ns"]["mean"] == round(latency.mean())
    exact = np.quantile(latency, 0.99, method="inverted_cdf")
    assert total["latency_ns"]["p99"] == exact
    assert [one["verdict"] for one in summary["slo"]] == ["pass", "pass"]
    # one run has one P99: no rejected request reaches into the lag's
    assert summary["slo"][1]["observed"] == total["lag_ns"]["p99"] == summary["phases"][1]["lag_ns"]["p99"]
    assert sum(bucket["n"] for bucket in total["by_length"]) == latency.size
    assert total["errors"]["rejected"]["text"] == "full"


def test_the_records_are_read_a_batch_at_a_time(large):
    import pyarrow as pa

    run = read_run(large[0])
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    for batch in run.batches():
        rows += batch.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    assert rows == run.rows == N
    assert most < 5 * 10**6


def test_a_histogram_counts_many_values_without_looking_at_each(large):
    calls, histogram = 0, Histogram()

    def count(_frame, event, _arg):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        histogram.record_many(large[1])
    finally:
        sys.setprofile(None)
    assert histogram.n == large[1].size
    assert calls < 1000


def test_a_sender_keeps_no_record_that_is_written(tmp_path):
    """Blocks of 8192 rows come and go: what is held is what the disk has not taken yet."""
    writer = RunFolder(tmp_path, info([phase()])).writer()

    def some(first):
        for i in range(first, first + 8192):
            writer.append(i, 0, 0, i, i, i, i, 1, 1, 300, 200, 0, 200, None)
        while writer.rows < first + 8192:
            time.sleep(0)  # for the writer's thread

    some(0)
    tracemalloc.start()
    for block in range(1, 25):
        some(block * 8192)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    writer.close()
    assert read_run(tmp_path).rows == 25 * 8192
    assert peak < 4 * 10**6  # 16 MB are on disk
