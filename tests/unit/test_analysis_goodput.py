"""Objectives on streams, and how many requests were good."""

import pytest

from loadgen.analysis.summary import summarise
from loadgen.records import Outcome
from tests.support.runs import MS, S, info, row
from tests.support.streams import build_streamed, chat, every


def summary_of(tmp_path, rows, *objectives, **over):
    return summarise(build_streamed(tmp_path / "run", rows, **over), list(objectives))


def chats(n, gap=20 * MS, first=100 * MS, **over):
    return [chat(i * 10 * S // n, every(gap, 11, first), **over) for i in range(n)]


@pytest.mark.parametrize(
    ("objective", "observed", "verdict", "n"),
    [
        ("ttft p95 < 500ms", 105 * MS, "pass", 400),
        ("ttft from sent p95 < 101ms", 100 * MS, "pass", 400),
        ("ttft p95 < 101ms", 105 * MS, "fail", 400),
        ("first content p50 <= 105ms", 105 * MS, "pass", 400),
        ("tpot mean < 50ms", 20 * MS, "pass", 400),
        ("tpot p99 < 10ms", 20 * MS, "fail", 400),
        ("time to first p95 < 1s", None, None, None),
        ("chunk gap p99 < 25ms", 20 * MS, "pass", 4000),
        ("chunk gap max < 20ms", 20 * MS, "fail", 4000),
        ("output tokens/s > 100", 440.0, "pass", 400),
        ("input tokens/s > 1", None, "inconclusive", 0),
    ],
)
def test_judged(tmp_path, objective, observed, verdict, n):
    rows = chats(400, lag=5 * MS)
    if verdict is None:
        with pytest.raises(Exception, match="unknown metric"):
            summary_of(tmp_path, rows, objective)
        return
    found = summary_of(tmp_path, rows, objective)["slo"][0]
    assert (found["verdict"], found["n"]) == (verdict, n)
    assert found["observed"] == (observed if observed is None else pytest.approx(observed))


def test_a_stream_that_failed_counts_as_infinitely_late_in_each_of_its_times(tmp_path):
    rows = [*chats(50), *(chat(S, [50 * MS], outcome=Outcome.STREAM_ENDED_EARLY) for _ in range(10))]
    found = summary_of(tmp_path, rows, "ttft p90 < 1s", "tpot p90 < 1s", "chunk gap p99 < 1s")["slo"]
    assert [(one["observed"], one["n"]) for one in found] == [(None, 60), (None, 60), (None, 510)]
    assert found[0]["lost"] == 10


def test_other_kinds_are_in_no_time_of_streams(tmp_path):
    kinds = [info([])["kinds"][0] | {"name": name} for name in ("chat", "infer")]
    rows = [*chats(400), *(row(i * MS, kind=1, outcome=Outcome.HTTP_5XX) for i in range(50))]
    found = summary_of(tmp_path, rows, "ttft p95 < 500ms", "infer: ttft p95 < 1s", kinds=kinds)["slo"]
    assert (found[0]["verdict"], found[0]["n"]) == ("pass", 400)
    assert (found[1]["verdict"], found[1]["n"]) == ("inconclusive", 0)


def test_an_interrupted_stream_is_late_when_it_was_late_already(tmp_path):
    """Before its first token at 900 ms it had waited for longer than 500 ms; at 50 ms nobody knows."""
    for tail, verdict in ((900 * MS, "fail"), (50 * MS, "inconclusive")):
        rows = [
            *chats(10),
            *(chat(S, [], tail=tail, outcome=Outcome.CANCELLED, detail="interrupt") for _ in range(30)),
        ]
        found = summary_of(tmp_path / verdict, rows, "ttft p50 < 500ms")["slo"][0]
        assert found["verdict"] == verdict


def test_goodput_is_the_share_within_all_bounds(tmp_path):
    """100 good; 20 slow to start; 10 slow to go on; 5 both; 5 failed; 10 cancelled by an interrupt: not judged."""
    rows = [
        *chats(100),
        *chats(20, first=600 * MS),
        *chats(10, gap=60 * MS),
        *chats(5, gap=60 * MS, first=600 * MS),
        *chats(5, outcome=Outcome.TIMEOUT),
    ]
    objectives = ("ttft p95 < 500ms", "tpot mean < 50ms", "goodput > 60%", "request goodput > 95%",
                  "good requests/s > 5", "good tokens/s >= 50", "requests/s > 1", "latency p50 > 1ms")  # fmt: skip
    summary = summary_of(tmp_path, rows, *objectives)
    found = summary["total"]["streaming"]["goodput"]
    assert found["bounds"] == ["ttft p95 < 500ms", "tpot mean < 50ms"]
    assert (found["n"], found["good"], found["share"]) == (140, 100, 100 / 140)
    assert found["requests_per_s"] == pytest.approx(10.0)
    assert found["output_tokens_per_s"] == pytest.approx(110.0)
    verdicts = {one["objective"]: (one["verdict"], one["observed"]) for one in summary["slo"]}
    assert verdicts["goodput > 60%"] == ("pass", pytest.approx(100 / 140))
    assert verdicts["request goodput > 95%"] == ("fail", pytest.approx(100 / 140))
    assert verdicts["good requests/s > 5"] == ("pass", pytest.approx(10.0))
    assert verdicts["good tokens/s >= 50"] == ("pass", pytest.approx(110.0))


def test_bounds_of_a_kind_bind_only_that_kind(tmp_path):
    kinds = [info([])["kinds"][0] | {"name": name} for name in ("chat", "code", "infer")]
    rows = [
        *chats(10, first=600 * MS),
        *chats(10, first=600 * MS, kind=1),
        *(row(i * S, 80 * MS, kind=2) for i in range(5)),
    ]
    objectives = (
        "chat: ttft p95 < 500ms",
        "infer: latency p99 < 50ms",
        "goodput > 1%",
        "code: goodput > 60%",
    )
    summary = summary_of(tmp_path, rows, *objectives, kinds=kinds)
    assert summary["total"]["streaming"]["goodput"]["good"] == 10  # code's
    assert [one["verdict"] for one in summary["slo"]][2:] == ["pass", "pass"]
    assert summary["slo"][3]["n"] == 10


def test_one_token_has_no_time_a_token_and_meets_that_bound(tmp_path):
    rows = [chat(0, [50 * MS]), chat(S, [], out=0)]
    found = summary_of(tmp_path, rows, "tpot p50 < 1ms", "ttft p50 < 1s")["total"]["streaming"]["goodput"]
    assert (found["n"], found["good"]) == (2, 1)  # an answer without a token never had its first


def test_goodput_without_bounds_cannot_be_told(tmp_path):
    found = summary_of(tmp_path, chats(10), "goodput > 95%", "tpot mean > 1ms")["slo"][0]
    assert (found["verdict"], found["observed"]) == ("inconclusive", None)
    assert found["reason"] == "no_bound"


def test_a_few_requests_cannot_show_a_share(tmp_path):
    """All of 20 good: the share may be as low as 83 % (Clopper-Pearson)."""
    found = summary_of(tmp_path, chats(20), "ttft p50 < 1s", "goodput > 95%")["slo"][1]
    assert (found["verdict"], found["observed"]) == ("inconclusive", 1)
    assert found["interval"][0] == pytest.approx(0.8316, abs=0.001)
