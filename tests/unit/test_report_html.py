import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis.frame import frame_of
from loadgen.analysis.summary import summarise
from loadgen.records import Outcome
from loadgen.report.charts import BINS, LEAST, MOST_POINTS, bin_width_ns, charts, distribution, joined, thin
from loadgen.report.html import render
from loadgen.runread import read_run
from tests.support.example_run import example
from tests.support.runs import MS, S, build, phase, row, running, statistics, steady, window

FIXTURE = Path(__file__).parent.parent / "fixtures" / "run-format-1"
GOLDEN = Path(__file__).parent.parent / "golden"


def page(path):
    run = read_run(path)
    return render(run, summarise(run))


def figures(path):
    run = read_run(path)
    return charts(frame_of(run), summarise(run), run.info)


def test_a_run_folder_of_format_1_always_loads():
    assert summarise(FIXTURE) == json.loads(
        (GOLDEN / "run-format-1.summary.json").read_text(encoding="utf-8")
    )


def test_the_page_needs_nothing_from_outside(tmp_path):
    text = page(example(tmp_path / "run"))
    head = text[: text.index("<script>")]
    assert "default-src 'none'" in head
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", head)


def test_hostile_names_and_details_stay_text(tmp_path):
    evil = "</script><script>alert(1)</script>"
    base = {"model": "m", "version": "1", "batch": 1, "weight": 1.0, "timeout_ns": S, "variants": 1}
    kinds = [{"name": evil} | base, {"name": "b"} | base]
    rows = steady(50) + steady(50, kind=1) + [row(0, MS, outcome=Outcome.HTTP_5XX, status=500, detail=evil)]
    profile = {"name": evil, "text": evil, "sha256": "0"}
    path = build(tmp_path / "run", rows, [phase(evil)], kinds=kinds, profile=profile, facts={"x": evil})
    text = page(path)
    assert evil not in text
    assert "<script>alert" not in text
    assert text.count("&lt;/script&gt;&lt;script&gt;alert(1)") >= 6


def test_the_data_survives_the_escaping(tmp_path):
    text = page(example(tmp_path / "run"))
    data = json.loads(re.search(r"const figures = (.*);\n", text)[1])
    assert data.keys() == {"over-time", "lag", "rate", "distribution", "batches"}
    assert data["batches"]["data"][0]["x"] == ["1", "2", "4", "8"]
    assert data["batches"]["data"][0]["y"] == [100, 50, 40, 20]


def test_every_axis_has_a_unit(tmp_path):
    for figure in figures(example(tmp_path / "run")).values():
        for axis in ("xaxis", "yaxis"):
            assert re.search(
                r"\((s|ms|%|requests/s|items an execution|count)\)", figure["layout"][axis]["title"]["text"]
            )


@pytest.mark.parametrize("rows", [[], [row(0, None, outcome=Outcome.CONNECT)], [row(0)], [row(0, 0)]])
def test_little_or_nothing_measured_still_makes_a_page(tmp_path, rows):
    assert "</html>" in page(
        build(tmp_path / "run", rows, [phase(start_ns=None, load_end_ns=None, end_ns=None)])
    )


@given(st.integers(1, 10**15))
def test_bins_are_round_and_few(span):
    width = bin_width_ns(span)
    assert re.fullmatch(r"[125]0*", str(width))
    assert span <= width * BINS


@given(st.integers(0, 2**32 - 1))
def test_thinning_keeps_the_slowest_of_each_slice_and_few_others(seed):
    rng = np.random.default_rng(seed)
    at, value = np.sort(rng.integers(0, 10**9, 20_000)), rng.integers(0, 10**9, 20_000)
    kept = thin(at, value)
    assert kept.size <= MOST_POINTS
    assert (np.diff(at[kept]) >= 0).all()
    slices = np.minimum((at - at.min()) * 1000 // (at.max() - at.min()), 999)
    assert all(
        value[slices == s].max() in value[kept][slices[kept] == s] for s in np.unique(slices)[:50].tolist()
    )


def test_the_rate_chart_counts_every_request(tmp_path):
    due, ok = figures(build(tmp_path / "run", steady(1000)))["rate"]["data"]
    width = ok["x"][1] - ok["x"][0]
    assert sum(due["y"]) * width == pytest.approx(1000)
    assert sum(ok["y"]) * width == pytest.approx(1000)
    assert due["y"][10] == 100.0


def test_the_distribution_meets_the_percentiles(tmp_path):
    rows = [row(i * MS, (i + 1) * MS) for i in range(1000)]
    frame = frame_of(read_run(build(tmp_path / "run", rows)))
    trace = distribution(frame)["data"][0]
    points = dict(zip(trace["y"], trace["x"], strict=True))
    assert (points[100.0], points[0.1]) == (1.0, 1000.0)
    assert trace["x"] == sorted(trace["x"])


def test_batches_are_drawn_only_when_the_server_told_them(tmp_path):
    assert "batches" not in figures(build(tmp_path / "a", steady(10)))
    server = window(statistics({1: 0}), statistics({2: 5}))
    assert figures(build(tmp_path / "b", steady(10), server=server))["batches"]["data"][0]["y"] == [5]


def test_lag_is_drawn_over_time_beside_latency(tmp_path):
    rows = steady(500) + [row(5 * S + i * 10 * MS, 10 * MS, 40 * MS) for i in range(500)]
    drawn = figures(build(tmp_path / "run", rows))
    assert list(drawn)[:2] == ["over-time", "lag"]
    p99 = next(t for t in drawn["lag"]["data"] if t["name"].startswith("P99"))
    late = dict(zip(p99["x"], p99["y"], strict=True))
    assert {y for x, y in late.items() if x > 5.1} == {40.0}
    assert {y for x, y in late.items() if x < 4.9} == {0.001}
    assert drawn["lag"]["layout"]["yaxis"]["title"]["text"] == "lag, due to sent (ms)"
    assert '<div id="lag">' in page(tmp_path / "run")


def test_a_killed_run_has_dashes_where_nobody_knows(tmp_path):
    text = page(build(tmp_path / "run", steady(10), [running()], status="running"))
    assert "at most - requests in flight" in text
    assert "CPU - a request (- of a core)" in text


def test_resent_and_cached_requests_stand_in_the_page(tmp_path):
    server = window(statistics({1: 0}), statistics({1: 420}, requests=1000, hits=580))
    path = build(tmp_path / "run", steady(1000), [phase(resent=53, reconnects=53)], server=server)
    text = page(path)
    assert "580 of 1000 requests were answered from its response cache" in text
    assert "53 requests sent a second time, 53 connections ended by the server" in text


def test_a_percentile_in_a_chart_stands_for_twenty_requests_or_more(tmp_path):
    """20/s for 10 s, then one request a second: 100 bins of 200 ms would hold 1 to 4 requests."""
    rows = steady(200) + [row(10 * S + i * S, 30 * MS) for i in range(30)]
    told = [phase(planned=230, duration_ns=40 * S, load_end_ns=40 * S, end_ns=40 * S)]
    p50, p99 = figures(build(tmp_path / "run", rows, told))["over-time"]["data"][1:]
    assert p50["name"] == "P50 per 5 s or longer"
    assert p50["x"] == p99["x"] == [2.5, 7.5, 25.0]
    assert p50["y"] == [10.0, 10.0, 30.0]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60))
def test_bins_are_joined_until_each_holds_enough(numbers):
    counts = np.array(numbers)
    if counts.sum() < LEAST:
        return
    groups = joined(counts)
    assert all(counts[first : last + 1].sum() >= LEAST and counts[first] > 0 for first, last in groups)
    assert sum(counts[first : last + 1].sum() for first, last in groups) == counts.sum()
    assert all(a[1] < b[0] for a, b in itertools.pairwise(groups))


def test_one_request_is_a_dot_and_a_rate_over_the_whole(tmp_path):
    told = [phase(planned=1, duration_ns=S, load_end_ns=S, end_ns=S)]
    drawn = figures(build(tmp_path / "run", [row(S // 5, 100 * MS)], told))
    (dot,) = drawn["over-time"]["data"]
    assert (dot["mode"], dot["x"], dot["y"]) == ("markers", [0.2], [100.0])
    assert {"50", "100", "200"} < set(drawn["over-time"]["layout"]["yaxis"]["ticktext"])
    assert drawn["over-time"]["layout"]["xaxis"]["range"] == pytest.approx([-0.02, 1.02])
    assert [trace["y"][0] for trace in drawn["rate"]["data"]] == [2.0, 2.0]  # one in the first half second
    assert {trace["mode"] for trace in drawn["distribution"]["data"]} == {"lines+markers"}


def test_the_doubt_that_invalidates_comes_first_and_sentences_are_apart(tmp_path):
    text = page(build(tmp_path / "run", [row(0)], [phase(planned=1, cpu_ns=10**10)]))
    assert text.index("the client was the limit") < text.index("P99 is of 1 success: fewer than 100")
    assert re.search(r"short 42 ms\.\s+Percentiles are nearest rank", text)


def test_the_requests_table_counts_the_cancelled_and_shows_no_status_of_0(tmp_path):
    rows = [*steady(95), row(S, S, outcome=Outcome.CANCELLED), row(S, S, outcome=Outcome.CANCELLED)]
    rows += [row(2 * S, outcome=Outcome.TIMEOUT), row(2 * S, outcome=Outcome.HTTP_5XX, status=502),
             row(2 * S, outcome=Outcome.HTTP_5XX)]  # fmt: skip
    text = page(build(tmp_path / "run", rows, [phase(planned=200, load_end_ns=9 * S)], status="interrupted"))
    table = text[text.index("<h2>Requests</h2>") : text.index("</table>", text.index("<h2>Requests</h2>"))]
    head, cells = (re.findall(rf"<{tag}[^>]*>([^<]*)<", table) for tag in ("th", "td"))
    told = dict(zip(head, cells, strict=True))
    assert (told["planned"], told["tried"], told["ok"], told["cancelled"]) == ("200", "100", "95", "2")
    errors = re.findall(r"<li>(\d+ .*)</li>", text)
    assert [error.replace(" \u00d7", "") for error in errors] == [
        "1 timeout",
        '2 http_5xx <span class="soft">status 502: 1</span>',
    ]
