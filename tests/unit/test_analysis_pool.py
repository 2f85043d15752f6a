"""Several runs judged as one: every figure is that of all their requests."""

import numpy as np
import pytest

from loadgen.analysis.pool import pool
from loadgen.analysis.summary import summarise
from loadgen.records import LoadgenError, Outcome
from loadgen.runread import read_run
from tests.support import runs, streams
from tests.support.runs import MS, S

WANTED = [
    "latency p99 < 100ms", "latency p50 < 1s", "latency mean < 1s", "failure rate < 1%", "requests/s > 1", "mean batch > 1",
]  # fmt: skip


def made(tmp_path, name, n, service, bad=0, batches=None):
    """One run of 10 s: `n` requests of `service` ns, the first `bad` of them failed."""
    rows = [
        runs.row(i * 10 * S // n, service, outcome=Outcome.HTTP_5XX if i < bad else Outcome.OK, detail="x" * (i < bad))
        for i in range(n)
    ]  # fmt: skip
    lines = runs.window(runs.statistics({1: 0}), runs.statistics(batches)) if batches else ()
    return read_run(runs.build(tmp_path / name, rows, server=lines))


def test_a_pool_is_judged_on_the_requests_of_all_its_runs(tmp_path):
    parts = [
        made(tmp_path, "a", 1000, 10 * MS, batches={1: 1000}),
        made(tmp_path, "b", 3000, 200 * MS, bad=4, batches={4: 749}),
    ]
    summary = summarise(pool(parts), WANTED)
    rows = {row["metric"] + str(i): row for i, row in enumerate(summary["slo"])}
    every = np.sort(np.r_[np.full(1000, 10 * MS), np.full(2996, 200 * MS)])
    assert rows["latency0"]["n"] == 4000
    assert rows["latency0"]["verdict"] == "fail"
    assert rows["latency0"]["observed"] == 200 * MS
    assert rows["latency1"]["observed"] == every[2000 - 1]
    assert rows["failure rate3"]["observed"] == pytest.approx(4 / 4000)
    assert rows["mean batch5"]["observed"] == pytest.approx((1000 + 4 * 749) / (1000 + 749))
    each = [summarise(part)["total"] for part in parts]
    assert summary["total"]["counts"]["ok"] == 3996
    assert summary["total"]["span_ns"] == sum(one["span_ns"] for one in each)
    rates = np.average(
        [one["achieved_per_s"] for one in each], weights=[one["span_ns"] for one in each]
    )  # over the summed spans
    assert rows["requests/s4"]["observed"] == pytest.approx(rates)


def test_a_pool_of_one_is_that_run_and_order_changes_nothing(tmp_path):
    a, b = made(tmp_path, "a", 500, 10 * MS), made(tmp_path, "b", 700, 30 * MS, bad=1)
    assert pool([a]) is a
    for one, other in zip(
        *(summarise(pool(order), WANTED)["slo"] for order in ([a, b], [b, a])), strict=True
    ):
        ends, others = one.pop("interval"), other.pop("interval")
        assert one == other
        assert (ends is None and others is None) or ends == pytest.approx(others)
    twice = summarise(pool([b, b]), WANTED)["slo"]
    assert [row["observed"] for row in twice] == [row["observed"] for row in summarise(b, WANTED)["slo"]]
    assert twice[0]["n"] == 1400


def test_runs_of_other_kinds_are_no_pool(tmp_path):
    other = runs.info([])["kinds"][0] | {"name": "long"}
    b = read_run(runs.build(tmp_path / "b", [runs.row(0)], kinds=[other]))
    with pytest.raises(LoadgenError, match="kinds are not those of"):
        pool([made(tmp_path, "a", 10, MS), b])


def test_streams_keep_to_their_requests(tmp_path):
    """First tokens after 100 and 300 ms: a median of both, as many gaps as in each."""
    for name, first, n in (("a", 100, 300), ("b", 300, 200)):
        rows = [streams.chat(i * 20 * MS, streams.every(10 * MS, 5, first * MS)) for i in range(n)]
        streams.build_streamed(tmp_path / name, rows)
    parts = [read_run(tmp_path / name) for name in "ab"]
    rows = summarise(pool(parts), ["ttft p50 < 1s", "ttft p99 < 1s", "chunk gap mean < 1s"])["slo"]
    assert [(row["observed"], row["n"]) for row in rows] == [
        (100 * MS, 500), (300 * MS, 500), (pytest.approx(10 * MS), 500 * 4),
    ]  # fmt: skip
