import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from loadgen.analysis.slo import Reason
from loadgen.analysis.summary import summarise
from loadgen.records import Outcome
from loadgen.report.html import render
from loadgen.report.sweep import judged_words
from loadgen.report.text import print_summary
from loadgen.report.words import cores, figure, interval, note, observed, rate, settling, share, statuses
from loadgen.runread import read_run
from tests.support.example_run import example
from tests.support.runs import MS, S, build, phase, row, statistics, steady, window

GOLDEN = Path(__file__).parent.parent / "golden"


def shown(summary, encoding="utf-8", width=80):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    print_summary(summary, Console(file=file, width=width, highlight=False), Path("runs/x.html"))
    file.flush()
    return raw.getvalue().decode(encoding)


def test_the_example_reads_as_it_always_did(tmp_path):
    """On a wanted change: python -m tests.support.golden."""
    text = shown(summarise(example(tmp_path / "run")))
    assert [line.rstrip() for line in text.splitlines()] == (GOLDEN / "summary.txt").read_text().splitlines()


def test_no_report_of_a_run_calls_itself_sure(tmp_path):
    path = example(tmp_path / "run")
    summary = summarise(path)
    page = re.sub(r"<script.*?</script>", "", render(read_run(path), summary), flags=re.DOTALL)
    for text in (shown(summary), page):
        assert re.search(r"\b(sure|certain|confident|confidence)\b", text) is None
        assert "95 %: " in " ".join(text.split())


def test_an_interval_is_told_alike_everywhere(tmp_path):
    """Of a maximum it is what may come of a cancelled request: nothing that holds to 95 %."""
    cancelled = row(5 * S, 10 * MS, outcome=Outcome.CANCELLED)
    rows = [*steady(2940), *steady(60, service=20 * MS), cancelled]
    path = build(tmp_path / "run", rows, objectives=["latency p99 < 1s", "latency max < 1s"])
    summary = summarise(path)
    told = [interval(one) for one in summary["slo"]]
    assert told == ["95 %: 20 ms to 20 ms", "at least 20 ms"]
    text, html = " ".join(shown(summary).split()), render(read_run(path), summary)
    for one, words in zip(summary["slo"], told, strict=True):
        assert f"observed 20 ms ({words}), n" in text
        assert f"<td>{words}" in html
        assert f"observed 20 ms ({words}), n" in judged_words(one | {"blocks": []})


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ({"reason": "more_data", "more_s": 360.0}, "about 6 minutes more at this rate would tell"),
        ({"reason": "more_data", "more_s": 90.0}, "about 90 seconds more"),
        ({"reason": "more_data", "more_s": 1.0}, "about 1 second more"),
        ({"reason": "more_data", "more_s": 8000.0}, "about 2 hours more"),
        ({"reason": "more_data"}, "a longer run, or several, would tell"),
        (
            {"reason": "more_requests", "needed": 500, "more_s": 40.0},
            "at least 500 requests are needed to pass, 100 were",
        ),
        ({"reason": "never"}, "no number of requests is enough"),
        ({"reason": "too_close"}, "too close to the bound"),
        ({"reason": "unknown_ends", "unknown": 3}, "how 3 more would have ended is not known"),
        ({"reason": "ensemble", "models": {"pre": 4.0}, "metric": "mean batch"}, "its models: pre 4.00"),
        ({"lost": 1}, "1 request never succeeded and counts as infinitely late"),
        ({"phases": 3}, "in peak, the worst of 3 phases"),
    ],
)
def test_a_row_says_what_would_settle_it(over, says):
    row = {
        "metric": "latency", "n": 100, "phase": "peak", "phases": 1, "reason": None, "needed": None, "more_s": None, "lost": 0,
        "unknown": 0, "models": None,
    }  # fmt: skip
    assert says in note(row | over)
    assert note(row) == ""


def test_every_reason_has_words():
    row = {"metric": "latency", "n": 1, "reason": None, "needed": 2, "more_s": None, "models": None}
    assert all(settling(row | {"reason": reason}) for reason in Reason)


@pytest.mark.parametrize(
    ("error", "numbers", "told"),
    [
        ("http_5xx", {"500": 20}, "status 500"),
        ("http_5xx", {"200": 20}, "inside answers with status 200"),
        ("http_5xx", {"200": 5, "500": 15}, "status 500: 15; inside answers with status 200: 5"),
        ("rejected", {"200": 5, "8": 1, "0": 2}, "status 8: 1; inside answers with status 200: 5"),
        ("protocol", {"200": 3}, "status 200"),
        ("connection", {"0": 3}, ""),
    ],
)
def test_an_error_within_an_answer_that_began_well_is_told_as_such(tmp_path, error, numbers, told):
    assert statuses(error, numbers) == told
    rows = steady(900) + [
        row(i, MS, outcome=Outcome[error.upper()], status=int(code))
        for code, n in numbers.items()
        for i in range(n)
    ]
    path = build(tmp_path / "run", rows)
    summary, n = summarise(path), sum(numbers.values())
    start = f"{n} x {error} ({told})" if told else f"{n} x {error},"
    assert start in " ".join(shown(summary, width=200).split())
    assert (f'<span class="soft">{told}</span>' in render(read_run(path), summary)) == bool(told)


def test_the_drain_and_the_rate_with_it_stand_beside_the_rate(tmp_path):
    rows = [row(i * 10 * MS, 10 * MS) for i in range(999)] + [row(9_990 * MS, 14 * S)]
    text = shown(summarise(build(tmp_path / "run", rows, [phase(planned=1000, end_ns=24 * S)])))
    assert re.search(r"drain .*14 s.*41\.7 requests/s", " ".join(text.split()))
    assert re.search(r"steady +100 +100 ", text)


def test_no_line_is_wider_than_80_columns_nor_carries_control_characters(tmp_path):
    text = shown(summarise(example(tmp_path / "run")))
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert "queue full [31m </script>[bold]" in " ".join(text.split())


def test_a_terminal_without_unicode_gets_ascii(tmp_path):
    kinds = [
        {
            "name": "模型",
            "model": "m",
            "version": "1",
            "batch": 1,
            "weight": 1.0,
            "timeout_ns": 1,
            "variants": 1,
        }
    ] * 2
    kinds[1] = kinds[1] | {"name": "b"}
    rows = steady(20) + steady(20, kind=1)
    text = shown(summarise(build(tmp_path / "run", rows, kinds=kinds)), encoding="ascii")
    assert text.isascii()
    assert "??" in text


def test_requests_and_items_are_named_apart_when_a_batch_is_more_than_one(tmp_path):
    kinds = [
        {"name": "k", "model": "m", "version": "1", "batch": 8, "weight": 1.0, "timeout_ns": 1, "variants": 1}
    ]
    text = shown(summarise(build(tmp_path / "run", steady(100, items=8), kinds=kinds)))
    header, line = next(
        (a, b) for a, b in zip(text.splitlines(), text.splitlines()[2:], strict=False) if "items/s" in a
    )
    assert header.split()[:5] == ["requests/s", "asked", "achieved", "items/s", "batch"]
    assert line.split()[:5] == ["steady", "10.0", "10.0", "80.0", "8"]
    assert "items/s" not in shown(summarise(build(tmp_path / "one", steady(100))))


def test_not_valid_is_the_first_word_and_its_reason_the_first_doubt(tmp_path):
    text = shown(summarise(build(tmp_path / "run", [row(0)], [phase(planned=1, cpu_ns=10**10)])))
    assert text.startswith("NOT VALID, 3 doubts below")
    assert text.index("not valid: phase steady: the client was the limit") < text.index("doubt: P99 is of 1")


def test_what_was_not_measured_is_a_dash(tmp_path):
    text = shown(summarise(build(tmp_path / "run", [])))
    assert "nan" not in text.lower()
    assert next(line for line in text.splitlines() if line.startswith("steady")).split() == [
        "steady",
        "0",
        *"------",
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.421, "0.42"), (9.714, "9.71"), (97.14, "97.1"), (12345.6, "12346")]
)
def test_rates(value, text):
    assert rate(value) == text


def test_a_percentile_that_failures_reach_is_named_so():
    assert observed({"metric": "latency", "observed": None, "n": 500}) == "no answer"
    assert observed({"metric": "latency", "observed": None, "n": 0}) == "-"
    assert observed({"metric": "latency", "observed": 2_000_000, "n": 500}) == "2 ms"


def test_figures_carry_units():
    assert figure("latency", 2_500_000) == "2.5 ms"
    assert figure("failure rate", 0.0125) == "1.25 %"
    assert figure("items/s", 80) == "80.0/s"
    assert (figure("mean batch", 4.5), figure("lag", None)) == ("4.50", "-")
    assert (share(0.004), share(0.5), share(0)) == ("<1%", "50%", "0%")


def test_what_never_left_the_client_is_told_from_what_was_sent(tmp_path):
    rows = steady(20) + [row(i, None, outcome=Outcome.CONNECT) for i in range(30)]
    text = shown(summarise(build(tmp_path / "run", rows)))
    assert re.search(r"tried +sent +ok +failed\n.*\nsteady .* 50 +20 +20 +30\n", text)
    assert "tried" not in shown(summarise(build(tmp_path / "b", steady(20))))


def test_cpu_is_also_a_share_of_a_core_and_trouble_with_connections_is_told(tmp_path):
    told = phase(cpu_ns=68_800_000, resent=53, reconnects=60, conn_waits=3)
    text = " ".join(shown(summarise(build(tmp_path / "run", steady(80), [told]))).split())
    assert "CPU 860 us a request (<1% of a core)" in text
    assert (
        "53 requests sent a second time, 60 connections ended by the server, 3 waits for a connection" in text
    )
    assert (cores(0.5), cores(1.62), cores(None)) == ("50% of a core", "1.6 cores", "- of a core")


def test_cache_hits_stand_beside_the_batches(tmp_path):
    server = window(statistics({1: 0}), statistics({1: 420}, requests=1000, hits=580))
    text = shown(summarise(build(tmp_path / "run", steady(1000), server=server)))
    assert "server  580 of 1000 requests (58%) were answered from its response cache" in text


@pytest.mark.parametrize(("width", "left_out"), [(80, []), (60, ["service P99", "lag P99"]),
                                                 (40, ["P99", "max", "service P99", "lag P99"])])  # fmt: skip
def test_a_narrow_terminal_keeps_the_name_and_n(tmp_path, width, left_out):
    rows = [row(i * S // 200, 1_234_567_890) for i in range(1000)]
    told = phase("a phase with a long name indeed", planned=1000)
    summary = summarise(build(tmp_path / "run", rows, [told]))
    summary["phases"][0]["latency_ns"]["n"] = 123_456
    text = shown(summary, width=width)
    lines = text.splitlines()
    head = next(line for line in lines if line.startswith("latency from due"))
    assert (
        head.split()[3:]
        == " ".join(
            name
            for name in ("n", "P50", "P90", "P99", "max", "service P99", "lag P99")
            if name not in left_out
        ).split()
    )
    first = lines[lines.index(head) + 2]
    assert first.startswith("a phase with a l")
    assert first.split()[-2 * (7 - len(left_out)) + 1] == "123456"
    assert ("too narrow for " + ", ".join(left_out) in " ".join(text.split())) == bool(left_out)
    assert max(map(len, lines)) <= width
    assert all(
        any(name in line.split() for line in lines) for name in ("asked", "achieved", "sent", "ok", "failed")
    )


@pytest.mark.parametrize("n", [99_999, 999_999])
def test_the_head_stays_on_one_line_with_five_and_six_digits(tmp_path, n):
    summary = summarise(example(tmp_path / "run"))
    for figures in (*summary["phases"], *summary["total"]["by_kind"].values()):
        figures["latency_ns"] = dict.fromkeys(figures["latency_ns"], 12_345_678) | {"n": n}
    lines = shown(summary).splitlines()
    assert lines[2].split() == [
        "latency",
        "from",
        "due",
        "n",
        "P50",
        "P90",
        "P99",
        "max",
        "service",
        "P99",
        "lag",
        "P99",
    ]
    assert lines[4].startswith("warm (warm-up)")
    assert str(n) in lines[4]
    assert max(map(len, lines)) <= 80


def test_planned_has_a_column_when_not_all_of_it_was_asked(tmp_path):
    cut = phase(planned=1000, load_end_ns=4 * S, end_ns=4 * S)
    text = shown(summarise(build(tmp_path / "run", steady(400, span=4 * S), [cut], status="interrupted")))
    assert re.search(
        r"asked +achieved +planned +sent +ok +failed\n.*\nsteady +100 +100 +1000 +400 +400 +0\n", text
    )
    assert "planned" not in shown(summarise(build(tmp_path / "b", steady(1000))))


def test_one_is_not_many(tmp_path):
    server = window(statistics({1: 0}), statistics({1: 1}))
    told = phase(planned=1, max_in_flight=1, resent=1, reconnects=1, conn_waits=1)
    path = build(tmp_path / "run", [row(0)], [told], server=server, objectives=["latency p99 < 1s"])
    text = " ".join(shown(summarise(path)).split())
    for part in ("P99 is of 1 success:", "in 1 execution,", "1 execution, 100%", "1 was judged", "at most 1 request in",
                 "1 request sent a second time, 1 connection ended by the server, 1 wait for"):  # fmt: skip
        assert part in text


BURSTY = {"gap_cv": 1.931, "dispersion": None, "largest_burst": 1057, "bin_ns": S, "share_an_instant": 2000}


def test_other_texts_are_counted_in_words(tmp_path):
    rows = [row(i * MS, outcome=Outcome.HTTP_5XX, detail=text) for i, text in enumerate("aaab")] + steady(200)
    assert "a (and 1 other text)" in shown(summarise(build(tmp_path / "run", rows)))


def test_how_bursty_the_plan_was_is_one_line_a_phase_and_in_the_summary(tmp_path):
    phases = [
        phase("warm", loop="closed", measured=False, users=2, requests=0, arrivals=None),
        phase(arrivals=BURSTY),
    ]
    summary = summarise(build(tmp_path / "run", steady(20, phase=1), phases))
    assert [told["plan"] for told in summary["phases"]] == [
        None,
        {"gap_cv": 1.931, "dispersion": None, "bins": None, "largest_burst": 1057},
    ]
    lines = " ".join(shown(summary).split())
    assert (
        "plan steady: gap CV 1.93, dispersion - (Poisson, constant rate: both 1), largest burst 1,057"
        in lines
    )
    page = render(read_run(tmp_path / "run"), summary)
    assert (
        page.count(
            "Plan of steady: gap CV 1.93, dispersion - (Poisson, constant rate: both 1), largest burst 1,057."
        )
        == 1
    )


def test_how_many_different_inputs_were_sent_is_in_the_text_and_on_the_page(tmp_path):
    prefix = {"bytes": 600, "share": 0.45}
    rows = [
        {"kind": "k", "requests": 2000, "distinct": 512, "repeated": 1500, "shared_prefix": prefix},
        {"kind": "all", "requests": 30, "distinct": 30, "repeated": 0, "shared_prefix": None},
    ]
    path = build(tmp_path / "run", steady(100), inputs=rows)
    summary = summarise(path)
    assert summary["inputs"] == rows
    for text in (shown(summary), render(read_run(path), summary)):
        words = " ".join(text.split())
        assert "k: 2,000 requests had 512 distinct inputs, 75% repeated an earlier one" in words
        assert "begin alike for 45% of their length" in words
        assert "all: 30 requests had 30 distinct inputs, none was sent before" in words
