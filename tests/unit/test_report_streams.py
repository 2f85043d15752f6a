"""Streams, goodput and the network in the text and on the page."""

import io
import json
import re

import pytest
from rich.console import Console

from loadgen.analysis.summary import summarise
from loadgen.records import Outcome
from loadgen.report.html import render
from loadgen.report.text import print_summary
from loadgen.runread import read_run
from tests.support.runs import MS, S, build, info, steady
from tests.support.streams import build_streamed, chat, every

NETWORK = {
    "by": "relay", "delay_ns": 100 * MS, "jitter_ns": 5 * MS, "bytes_per_s": 10 << 20, "round_trip_ns": 200 * MS,
    "calibration": {"n": 400, "added_p50_ns": 22_000, "added_p99_ns": 90_000, "cpu_ns_per_piece": 40_000},
    "relay": {"connections": 6, "bytes": 1, "pieces": 2, "pacer": "timerfd", "cpu_ns": 1,
              "late_ns": {"n": 100, "p50": 24_000, "p99": 750_000, "max": 900_000}},
}  # fmt: skip


@pytest.fixture
def path(tmp_path):
    kinds = [info([])["kinds"][0] | {"name": name} for name in ("chat", "<b>code</b>")]
    rows = [
        *(chat(i * 100 * MS, every(20 * MS, 11), lag=5 * MS, into=100, content=2) for i in range(60)),
        *(chat(i * 100 * MS, every(40 * MS, 6, first=700 * MS), kind=1, source="chunks", finish="length") for i in range(30)),
        chat(S, [], outcome=Outcome.PLANNED_CANCEL),
    ]  # fmt: skip
    return build_streamed(
        tmp_path / "run", rows, kinds=kinds, network=NETWORK, objectives=["ttft p95 < 500ms", "goodput > 50%"]
    )


def text_of(path, width=80):
    file = io.StringIO()
    print_summary(summarise(path), Console(file=file, width=width, highlight=False))
    return file.getvalue()


def test_the_text_tells_first_tokens_gaps_and_who_counted(path):
    text = text_of(path)
    assert all(len(line) <= 80 for line in text.splitlines())
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert "first token from due n P50 P90 P99 sent P50 sent P99 content P50" in lines
    assert "chat 60 105 ms 105 ms 105 ms 100 ms 100 ms 145 ms" in lines
    assert "<b>code</b> 30 700 ms 700 ms 700 ms 700 ms 700 ms 700 ms" in lines
    assert "chat 20 ms 20 ms 20 ms 20 ms 36.7 - -" in lines
    flat = " ".join(text.split())
    assert (
        "90 streams in 840 chunks, 840 tokens out (mean 9.33), counted by the server's usage (60) and counting chunks (30)"
        in flat
    )
    assert "ended by stop (60), length (30), 1 request cancelled as the profile asks" in flat
    assert "goodput 66.7 % (60 of 90 requests) were good" in flat
    assert "within ttft p95 < 500ms" in flat
    assert (
        "network 100 ms +- 5 ms each way (a round trip takes 200 ms more), 10 MiB/s each way, the relay itself adds 22 us (P50)"
        in flat
    )
    assert "[tokens_from_chunks]" in flat


@pytest.mark.parametrize("width", [40, 60, 200])
def test_no_line_is_wider_than_its_terminal(path, width):
    assert all(len(line) <= width for line in text_of(path, width).splitlines())


def test_the_page_draws_first_tokens_and_gaps(path):
    run = read_run(path)
    page = render(run, summarise(run))
    assert "<b>code</b>" not in page
    figures = json.loads(re.search(r"const figures = (.*);\n", page)[1])
    first = figures["first-token"]["data"]
    assert first[0]["name"] == "stream (90 of 90 drawn)"
    assert sorted(set(first[0]["y"])) == [105.0, 700.0]
    assert [trace["name"] for trace in first[1:]] == ["P50 per 2 s", "P99 per 2 s"]
    shown = {trace["name"]: trace for trace in figures["tokens"]["data"]}
    assert set(shown) == {
        "first token from due",
        "first token from sent",
        "time per output token",
        "chunk gap",
    }
    assert sorted(set(shown["chunk gap"]["x"])) == [20.0, 40.0]
    assert shown["chunk gap"]["y"][0] == 100.0
    assert "Goodput: 66.7 % (60 of 90 requests) were good" in page
    assert "planned cancels" in page


def test_without_streams_there_is_none_of_it(tmp_path):
    path = build(tmp_path / "run", steady(200))
    run = read_run(path)
    page, text = render(run, summarise(run)), text_of(path)
    assert "first-token" not in page
    assert "<h2>Streams<" not in page
    assert "first token" not in text
    assert "network" not in text


@pytest.mark.parametrize(("p99", "doubted"), [(4_900_000, False), (5_100_000, True)])
def test_a_relay_that_was_late_is_doubted(tmp_path, p99, doubted):
    relay = NETWORK["relay"] | {"late_ns": NETWORK["relay"]["late_ns"] | {"p99": p99}}
    summary = summarise(build(tmp_path / "run", steady(200), network=NETWORK | {"relay": relay}))
    assert ("relay_late" in {doubt["code"] for doubt in summary["doubts"]}) == doubted
    assert summary["network"]["round_trip_ns"] == 200 * MS


def test_the_text_and_the_page_say_what_token_figures_rest_on(tmp_path):
    short = {"max_tokens": 50, "min_tokens": 50, "cached_tokens": 90}
    rows = [
        *(chat(i * 100 * MS, every(20 * MS, 10), out=20, into=100, more=short) for i in range(30)),
        *(chat(i * 100 * MS, every(20 * MS, 50), into=100, more=short) for i in range(10)),
    ]
    path = build_streamed(tmp_path / "run", rows, objectives=["latency p50 < 10s"])
    flat = " ".join(text_of(path).split())
    assert "usage counts 600 tokens where 300 chunks came, in 30 of 40 streams" in flat
    assert "50 tokens asked at most, 27.5 delivered (means), 30 of 40 stopped short" in flat
    assert "3600 tokens in (90 %) came from the server's prefix cache, as 40 streams told" in flat
    assert "goodput 25 % (10 of 40 requests) were good (30 stopped short)" in flat
    page = " ".join(render(read_run(path), summarise(path)).split())
    for words in ("Counts: usage counts 600 tokens", "Lengths: 50 tokens asked", "Cached: 3600 tokens in"):
        assert words in page
    assert all(len(line) <= 60 for line in text_of(path, 60).splitlines())


def test_many_reasons_for_an_end_are_not_all_listed(tmp_path):
    rows = [chat(i * S, every(20 * MS, 2), finish=f"reason {i}") for i in range(20)]
    flat = " ".join(text_of(build_streamed(tmp_path / "run", rows)).split())
    assert "reason 7 (1), 12 other reasons" in flat
    assert "reason 8" not in flat
