"""What streams come to, from stamps that are given.  Field cases 37, 39 and 41 on the side that reads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis.percentiles import Tally, distribution
from loadgen.analysis.summary import summarise
from loadgen.records import Outcome
from loadgen.runread import read_run
from tests.support.runs import MS, S, build, info, phase, row, steady
from tests.support.streams import build_streamed, chat, every


def streaming_of(tmp_path, rows, phases=None, **over):
    return summarise(build_streamed(tmp_path / "run", rows, phases, **over))["total"]["streaming"]


def test_the_times_of_one_stream_from_due_and_from_sent(tmp_path):
    """Field case 37: the first content comes after three chunks of reasoning; both are told, neither for the other."""
    found = streaming_of(tmp_path, [chat(S, every(20 * MS, 11), lag=5 * MS, content=3, into=30)])
    assert found["n"] == 1
    assert found["ttft_ns"]["p50"] == 105 * MS
    assert found["ttft_from_sent_ns"]["p50"] == 100 * MS
    assert found["first_content_ns"]["p50"] == 165 * MS
    assert found["first_content_from_sent_ns"]["p50"] == 160 * MS
    assert found["tpot_ns"] == distribution(np.array([20 * MS]))
    assert found["chunk_gap_ns"] == distribution(np.full(10, 20 * MS))
    assert found["chunks"] == 11
    assert found["tokens_out"] == {"n": 1, "sum": 11, "mean": 11.0, "max": 11}
    assert found["tokens_in"] == {"n": 1, "sum": 30, "mean": 30.0, "max": 30}
    assert found["output_tokens_per_s_per_user"]["p50"] == pytest.approx(11 / 0.3)
    assert found["output_tokens_per_s"] == pytest.approx(1.1)
    assert found["input_tokens_per_s"] == pytest.approx(3.0)
    assert found["finish"] == {"stop": 1}
    assert found["goodput"] is None


def test_several_tokens_a_chunk(tmp_path):
    """Field case 39: TPOT is from usage, the gap keeps its own name, and no peak is below its mean."""
    found = streaming_of(tmp_path, [chat(0, every(40 * MS, 10), out=40)])
    assert found["tpot_ns"]["p50"] == round(360 * MS / 39)
    assert found["chunk_gap_ns"]["p50"] == 40 * MS
    assert not [key for key in found if "itl" in key or "inter_token" in key]
    assert found["peak_output_tokens_per_s"] == pytest.approx(40.0)
    assert found["peak_output_tokens_per_s"] >= found["output_tokens_per_s"] == pytest.approx(4.0)


@given(
    st.lists(
        st.tuples(st.integers(0, 9000), st.lists(st.integers(0, 500), max_size=12), st.integers(-1, 99)),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(["open", "closed"]),
)
def test_no_peak_is_below_its_mean_whatever_came(tmp_path_factory, chats, loop):
    rows = []
    for due, gaps, out in chats:
        stamps = np.cumsum([1, *gaps]).tolist() if gaps else []
        rows.append(chat(due * MS, [at * MS for at in stamps], out=out))
    path = tmp_path_factory.mktemp("peak")
    told = phase(loop=loop, users=3, duration_ns=10 * S, planned=None)
    found = summarise(build_streamed(path / "run", rows, [told]))["total"]["streaming"]
    mean, peak = found["output_tokens_per_s"], found["peak_output_tokens_per_s"]
    assert (mean is None) == (peak is None) == all(out < 0 for _, _, out in chats)
    assert mean is None or peak >= mean


def test_what_cannot_be_measured_is_null_with_its_n(tmp_path):
    """No token, one token, one chunk of ten tokens: none has a time between tokens."""
    rows = [
        chat(0, [], out=0),
        chat(S, [50 * MS]),
        chat(2 * S, [50 * MS], out=10),
        chat(3 * S, every(MS, 2), out=-1),
    ]
    found = streaming_of(tmp_path, rows)
    assert (found["n"], found["ttft_ns"]["n"]) == (4, 3)
    assert found["tpot_ns"] == {
        "n": 0, "mean": None, "p50": None, "p90": None, "p95": None, "p99": None, "p999": None, "max": None,
    }  # fmt: skip
    assert found["chunk_gap_ns"]["n"] == 1
    assert found["tokens_out"] == {"n": 3, "sum": 11, "mean": 11 / 3, "max": 10}
    assert found["tokens_from"] == {"unknown": 1, "usage": 3, "tokenizer": 0, "chunks": 0}


@pytest.mark.parametrize(
    ("sources", "codes"),
    [
        ({"usage": 4}, set()),
        ({"tokenizer": 2, "usage": 2}, set()),
        ({"chunks": 1, "usage": 3}, {"tokens_from_chunks"}),
        ({"": 3, "chunks": 1}, {"no_usage", "tokens_from_chunks"}),
    ],
)
def test_who_counted_the_tokens_is_said(tmp_path, sources, codes):
    """Field case 41: usage first, else what the report says, and a doubt where it is only chunks, or nothing."""
    names = [name for name, n in sources.items() for _ in range(n)]
    rows = [chat(i * S, every(MS, 7), out=10 if name else -1, source=name) for i, name in enumerate(names)]
    summary = summarise(build_streamed(tmp_path / "run", rows))
    told = summary["total"]["streaming"]["tokens_from"]
    assert {key: n for key, n in told.items() if n} == {name or "unknown": n for name, n in sources.items()}
    doubts = {doubt["code"]: doubt["text"] for doubt in summary["doubts"]}
    assert {"tokens_from_chunks", "no_usage"} & set(doubts) == codes
    if "no_usage" in codes:
        assert doubts["no_usage"].startswith("3 of 4 streams told no number of tokens")


def test_rates_of_tokens_follow_the_rule_of_rates(tmp_path):
    """Open: the success that ends a median later than the load is in; 100 chats of 30 tokens in 10 s are 300/s."""
    rows = [chat(i * S // 10, every(10 * MS, 30), into=12) for i in range(100)]
    summary = summarise(build_streamed(tmp_path / "run", rows))
    found = summary["total"]["streaming"]
    assert found["output_tokens_per_s"] == pytest.approx(summary["total"]["achieved_per_s"] * 30)
    assert found["output_tokens_per_s"] == pytest.approx(300)
    assert found["input_tokens_per_s"] == pytest.approx(120)


def test_failures_are_in_no_percentile_and_cancelled_ones_are_no_failures(tmp_path):
    rows = [
        *(chat(i * 100 * MS, every(10 * MS, 5)) for i in range(8)),
        chat(5 * S, [900 * MS], outcome=Outcome.STREAM_ENDED_EARLY, detail="cut"),
        chat(6 * S, [800 * MS], outcome=Outcome.PLANNED_CANCEL),
        chat(7 * S, [], outcome=Outcome.PLANNED_CANCEL),
    ]
    summary = summarise(build_streamed(tmp_path / "run", rows), ["ttft p50 < 200ms", "failure rate < 1%"])
    counts, found = summary["total"]["counts"], summary["total"]["streaming"]
    assert (counts["ok"], counts["failed"], counts["planned_cancels"]) == (8, 1, 2)
    assert "cancelled" not in counts
    assert (found["n"], found["ttft_ns"]["max"], found["planned_cancels"]) == (8, 100 * MS, 2)
    assert summary["slo"][0]["n"] == 9  # the one that failed counts, those cancelled as asked do not
    assert summary["slo"][1]["observed"] == pytest.approx(1 / 9)
    assert summary["slo"][1]["n"] == 9


def test_by_kind_and_by_tokens_in(tmp_path):
    kinds = [info([])["kinds"][0] | {"name": name} for name in ("chat", "code", "infer")]
    rows = [
        *(chat(i * 100 * MS, every(10 * MS, 5), into=100) for i in range(10)),
        *(chat(i * 100 * MS, every(10 * MS, 5, first=300 * MS), kind=1, length=500) for i in range(5)),
        *(row(i * 100 * MS, kind=2, length=100) for i in range(3)),
    ]
    found = streaming_of(tmp_path, rows, kinds=kinds)
    assert set(found["by_kind"]) == {"chat", "code"}
    assert found["by_kind"]["code"]["ttft_ns"]["p50"] == 300 * MS
    assert found["by_kind"]["code"]["chunk_gap_ns"]["n"] == 20
    lengths = [(part["from"], part["to"], part["n"], part["ttft_ns"]["p50"]) for part in found["by_length"]]
    assert lengths == [(65, 128, 10, 100 * MS), (257, 512, 5, 300 * MS)]


def test_warm_up_is_in_its_own_phase_only(tmp_path):
    phases = [phase("warm", measured=False, load_end_ns=S, end_ns=S, duration_ns=S),
              phase("load", start_ns=S, load_end_ns=11 * S, end_ns=11 * S)]  # fmt: skip
    rows = [chat(0, every(MS, 5, first=900 * MS)), chat(2 * S, every(MS, 3), phase=1)]
    summary = summarise(build_streamed(tmp_path / "run", rows, phases))
    assert [one["streaming"]["ttft_ns"]["p50"] for one in summary["phases"]] == [900 * MS, 100 * MS]
    assert summary["total"]["streaming"]["chunk_gap_ns"]["n"] == 2


def test_a_run_without_streams_says_nothing_of_them(tmp_path):
    summary = summarise(build(tmp_path / "run", steady(100)), ["output tokens/s > 1", "ttft p50 < 1s"])
    assert "streaming" not in summary["total"]
    assert [(one["verdict"], one["observed"]) for one in summary["slo"]] == [("inconclusive", None)] * 2


def test_streams_of_several_workers_and_a_cut_file_are_laid_beside_their_records(tmp_path):
    """A worker's records and streams have its number; a stream whose record was lost is left out."""
    path = build_streamed(tmp_path / "run", [chat(i * S, every(MS, 4)) for i in range(4)])
    other = build_streamed(
        tmp_path / "other", [row(0), *(chat(i * S, every(2 * MS, 4)) for i in range(1, 9))]
    )
    # the second worker's requests have places of their own: 4 to 12 after these four would clash with none
    for name in ("records", "streams"):
        shifted = _shift(other / f"{name}.arrow", 4)
        (path / f"{name}-1.arrow").write_bytes(shifted)
    data = (path / "streams.arrow").read_bytes()
    (path / "streams.arrow").write_bytes(data[: len(data) // 2])
    summary = summarise(read_run(path))
    assert summary["total"]["counts"]["ok"] == 13
    assert summary["total"]["streaming"]["n"] == 8
    assert summary["total"]["streaming"]["chunk_gap_ns"]["p50"] == 2 * MS


def _shift(path, by):
    import io

    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.set_column(0, table.schema.field(0), pc.add(table["seq"], by)))
    return sink.getvalue()


@given(st.lists(st.lists(st.integers(0, 10**10), max_size=40), max_size=5))
def test_a_tally_is_the_distribution_of_all(parts):
    whole = Tally()
    tallies = []
    for part in parts:
        one = Tally()
        one.add(np.array(part, np.int64))
        tallies.append(one)
        whole.add(np.array(part, np.int64))
    every_value = np.array([value for part in parts for value in part], np.int64)
    expected = distribution(every_value)
    for tally in (whole, Tally.merged(tallies)):
        found = tally.distribution()
        assert found | {"mean": None} == expected | {"mean": None}
        assert expected["mean"] is None or found["mean"] == pytest.approx(expected["mean"], abs=1)


def test_a_large_tally_is_exact_and_merges_with_small_ones():
    rng = np.random.default_rng(3)
    large, small = rng.integers(0, 10**9, 100_005), rng.integers(0, 10**9, 1000)
    tallies = [Tally(), Tally()]
    for at in range(0, large.size, 4096):
        tallies[0].add(large[at : at + 4096])
    tallies[1].add(small)
    both = np.concatenate([large, small])
    for order in (tallies, tallies[::-1]):
        merged = Tally.merged(order)
        exact = np.quantile(both, 0.99, method="inverted_cdf")
        assert merged.distribution()["p99"] == exact
        assert (merged.size, merged.at(np.array([1, merged.size])).tolist()) == (
            both.size,
            [both.min(), both.max()],
        )
        assert (
            np.concatenate(merged.parts).tolist()
            == np.concatenate([large, small][:: 1 if order is tallies else -1]).tolist()
        )


def test_parts_of_a_tally_lie_in_order_of_time_whoever_wrote_them():
    first, second = Tally(), Tally()
    for tally, at in ((first, 30), (first, 10), (second, 20), (second, 40)):
        tally.add(np.array([at, at + 1]), at)
    assert np.concatenate(first.parts).tolist() == [10, 11, 30, 31]
    assert np.concatenate(Tally.merged([first, second]).parts).tolist() == [10, 11, 20, 21, 30, 31, 40, 41]


def two_choices(due, a, b, out, **over):
    return chat(due, [*a, *b], out=out, more={"choice_chunks": [len(a), len(b)]}, **over)


def test_choices_have_their_own_times(tmp_path):
    """n=2 in lock step, 20 ms a token each: no time a token of 10 ms, no gap across choices."""
    rows = [two_choices(i * S, every(20 * MS, 6), every(20 * MS, 6, first=110 * MS), 12) for i in range(3)]
    found = streaming_of(tmp_path, rows)
    assert (found["tpot_ns"]["n"], found["tpot_ns"]["p50"], found["tpot_ns"]["max"]) == (3, 20 * MS, 20 * MS)
    assert (found["chunk_gap_ns"]["n"], found["chunk_gap_ns"]["p50"], found["chunk_gap_ns"]["max"]) == (
        30,
        20 * MS,
        20 * MS,
    )
    assert found["ttft_ns"]["p50"] == 100 * MS
    assert found["output_tokens_per_s_per_user"]["p50"] == pytest.approx(12 / 0.21)
    assert found["chunks"] == 36


def test_a_choice_of_one_chunk_has_no_time_between_tokens(tmp_path):
    """Twelve tokens in six chunks of equal size: five chunks of the one choice (10 tokens in 80 ms), one of the other."""
    found = streaming_of(tmp_path, [two_choices(0, every(20 * MS, 5), [500 * MS], 12)])
    assert found["tpot_ns"]["p50"] == round(80 * MS / 9)
    alone = streaming_of(tmp_path / "alone", [two_choices(0, [5 * MS], [500 * MS], 12)])
    assert alone["tpot_ns"]["n"] == alone["chunk_gap_ns"]["n"] == 0


@given(st.lists(st.lists(st.integers(1, 500), min_size=2, max_size=9), min_size=1, max_size=4))
def test_the_time_a_token_of_choices_is_the_mean_over_their_tokens(tmp_path_factory, choices):
    stamps = [np.cumsum(gaps).tolist() for gaps in choices]
    flat = [at * MS for one in stamps for at in one]
    more = {"choice_chunks": [len(one) for one in stamps]} if len(stamps) > 1 else {}
    path = tmp_path_factory.mktemp("choices")
    found = streaming_of(path, [chat(0, flat, more=more), chat(S, every(MS, 3))])
    spans, intervals = sum(one[-1] - one[0] for one in stamps), sum(len(one) - 1 for one in stamps)
    assert found["tpot_ns"]["max"] == round(spans * MS / intervals)
    assert found["chunk_gap_ns"]["n"] == intervals + 2


def doubts_of(path, rows, **over):
    summary = summarise(build_streamed(path / "run", rows, **over))
    return summary["total"]["streaming"], {doubt["code"]: doubt["text"] for doubt in summary["doubts"]}


def test_usage_beside_chunks(tmp_path):
    rows = [*(chat(i * S, every(MS, 5)) for i in range(4)), *(chat(i * S, every(MS, 5), out=20) for i in range(2)),
            chat(S, every(MS, 5), source="chunks"), chat(S, [], out=3, more={"unseen": 3})]  # fmt: skip
    found, doubts = doubts_of(tmp_path, rows)
    assert found["usage_and_chunks"] == {"n": 6, "differ": 2, "tokens": 40, "chunks": 10}
    assert found["unseen_tokens"] == {"n": 1, "sum": 3}
    assert doubts["tokens_unseen"].startswith("1 of 8 streams told 3 tokens in usage that they did not show")
    assert found["ttft_ns"]["n"] == 7


def test_hidden_reasoning_is_in_the_counts_and_in_no_time_a_token(tmp_path):
    """Of 45 tokens 40 came before the first that was shown, 20 ms each after it."""
    found = streaming_of(tmp_path, [chat(0, every(20 * MS, 5), out=45, more={"unseen": 40})])
    assert (found["tpot_ns"]["p50"], found["tokens_out"]["sum"]) == (20 * MS, 45)


def test_a_success_without_tokens_has_no_first_one_to_be_late_and_one_unseen_may_be(tmp_path):
    rows = [chat(i * 10 * MS, every(MS, 5)) for i in range(500)]
    none = summarise(
        build_streamed(tmp_path / "none", [*rows, *(chat(S, [], out=0) for _ in range(50))]),
        ["ttft p95 < 1s"],
    )
    assert (none["slo"][0]["verdict"], none["slo"][0]["n"]) == ("pass", 500)
    assert (none["total"]["counts"]["ok"], none["total"]["streaming"]["ttft_ns"]["n"]) == (550, 500)
    unseen = [chat(S, [], out=9, more={"unseen": 9}) for _ in range(50)]
    hidden = summarise(build_streamed(tmp_path / "hidden", [*rows, *unseen]), ["ttft p95 < 1s"])
    assert hidden["slo"][0]["verdict"] == "inconclusive"


def test_ends_that_nobody_knows_are_said(tmp_path):
    rows = [
        chat(i * S, every(MS, 5), finish=finish)
        for i, finish in enumerate(["stop", "length", "bored", "bored"])
    ]
    _, doubts = doubts_of(tmp_path, rows)
    assert doubts["unknown_finish"] == "2 of 4 streams ended by a reason that is not known: bored (2)"
    assert "unknown_finish" not in doubts_of(tmp_path / "known", rows[:2])[1]


SHORT = {"max_tokens": 5, "min_tokens": 5}


@pytest.mark.parametrize(
    ("fields", "lengths"),
    [
        ([{"out": 5}, {"out": 2}, {"out": 3}], (3, 5, 10 / 3, 3, 2, 2.5, 0)),
        ([{"out": 5}, {"out": 2, "more": {"max_tokens": 5}}], (2, 5, 3.5, 1, 0, None, 0)),  # it may stop
        ([{"out": 7}, {"out": 5}], (2, 5, 6, 2, 0, None, 1)),
        ([{"out": -1}, {"out": 5}], (1, 5, 5, 1, 0, None, 0)),
        (
            [{"out": 2, "source": "chunks", "finish": "length"}] * 2,
            (2, 5, 2, 2, 0, None, 0),
        ),  # chunks of several
        ([{"out": 2, "source": "chunks", "finish": "stop"}] * 2, (2, 5, 2, 2, 2, 2, 0)),
        ([{"out": 2, "source": "chunks", "finish": ""}] * 2, (2, 5, 2, 2, 0, None, 0)),
        # a tokenizer cuts the text again: 4 or 6 of 5
        ([{"out": n, "source": "tokenizer", "finish": "length"} for n in (4, 6)], (2, 5, 5, 2, 0, None, 0)),
        ([{"out": 4, "source": "tokenizer", "finish": ""}] * 2, (2, 5, 4, 2, 0, None, 0)),
        ([{"out": 4, "source": "tokenizer", "finish": "stop"}] * 2, (2, 5, 4, 2, 2, 4, 0)),
        ([{"out": 4, "finish": "length"}] * 2, (2, 5, 4, 2, 2, 4, 0)),  # by usage
    ],
)
def test_asked_and_delivered_lengths(tmp_path, fields, lengths):
    rows = [chat(i * S, every(MS, 5), **({"more": SHORT} | one)) for i, one in enumerate(fields)]
    summary = summarise(build_streamed(tmp_path / "run", rows), ["latency p50 < 10s"])
    found = summary["total"]["streaming"]
    assert tuple(found["output_lengths"].values()) == pytest.approx(lengths)
    short, good = lengths[4], found["goodput"]
    assert (good["stopped_short"], good["good"]) == (short, len(fields) - short)
    codes = {doubt["code"]: doubt["text"] for doubt in summary["doubts"]}
    assert ("short_outputs" in codes) == (short > 0)
    assert not short or codes["short_outputs"].startswith(f"{short} of {lengths[3]} streams (")


@pytest.mark.parametrize(
    ("cached", "figures", "doubted"),
    [
        ([90] * 10, (10, 900, 0.9, 10), True),
        ([16] * 10, (10, 160, 0.16, 0), False),  # a system prompt, as ever
        ([100, 100, *[0] * 8], (10, 200, 0.2, 2), True),  # a few prompts that were sent before
        ([0] * 10, (10, 0, 0.0, 0), False),
        ([-1] * 10, (0, None, None, 0), False),
        ([2**31 - 1, -1], (1, 100, 1.0, 1), True),  # more than there is: all of it
    ],
)
def test_prompts_from_a_prefix_cache(tmp_path, cached, figures, doubted):
    rows = [chat(i * S, every(MS, 5), into=100, more={"cached_tokens": n}) for i, n in enumerate(cached)]
    found, doubts = doubts_of(tmp_path, rows)
    assert tuple(found["cached_tokens"].values()) == pytest.approx(figures)
    assert ("prompts_cached" in doubts) == doubted


def test_streams_of_an_older_run_lack_columns(tmp_path):
    import pyarrow as pa

    new = ["cached_tokens", "max_tokens", "min_tokens", "unseen", "choice_chunks"]
    path = build_streamed(tmp_path / "run", [chat(i * S, every(20 * MS, 5)) for i in range(4)])
    before = summarise(path)["total"]["streaming"]
    file = path / "streams.arrow"
    table = pa.ipc.open_stream(file.read_bytes()).read_all().drop_columns(new)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert summarise(path)["total"]["streaming"] == before
