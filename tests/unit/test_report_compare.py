"""What a comparison says in words."""

import io
import math

import pytest
from rich.console import Console

from loadgen.analysis.comparability import side_of
from loadgen.analysis.compare import compare
from loadgen.report.compare import print_comparison, ratio, render_comparison, signed
from loadgen.traffic.objective import parse_figure
from tests.support.runs import MS, build, row


def shown(comparison):
    out = io.StringIO()
    print_comparison(comparison, Console(file=out, width=160, highlight=False))
    return out.getvalue()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1.1, "+10 %"),
        (0.97, "-3 %"),
        (1.0512, "+5.12 %"),
        (1 + 1e-15, "+0 %"),
        (24.5, "24.5x"),
        (0.25, "0.25x"),
        (None, "-"),
    ],
)
def test_ratios(value, said):
    assert ratio(value) == said


@pytest.mark.parametrize(
    ("metric", "value", "said"),
    [("latency", 1.2 * MS, "+1.2 ms"), ("latency", -450_000, "-450 us"), ("failure rate", 0.012, "+1.2 points"),
     ("requests/s", -3.0, "-3.00/s"), ("latency", math.inf, "+infinite"), ("latency", None, "-")],
)  # fmt: skip
def test_differences(metric, value, said):
    assert signed(metric, value) == said


def test_the_verdict_and_what_it_rests_on(tmp_path):
    rows = [[row(i * 10 * MS, round(ms * (1 + 0.1 * (i % 7)) * MS)) for i in range(1000)] for ms in (10, 12)]
    a, b = (side_of(build(tmp_path / name, each, seed=seed)) for (name, each, seed) in
            zip("ab", rows, (1, 2), strict=True))  # fmt: skip
    compared = compare([a, b], [parse_figure("latency p50"), parse_figure("latency p99.9")])
    text = shown(compared)
    assert "B against A: worse: latency p50 +20 %" in text
    assert "note: seeds differ (A: 1; B: 2)" in text
    assert "2 figures judged" in text
    assert "more than 3 % (of shares 0.5 points)" in text
    assert "undecided" in text
    page = render_comparison(compared)
    assert "Latency by quantile, B against A" in page
    assert "https://" not in page.split("<script>")[0]


def test_a_hostile_name_is_escaped(tmp_path):
    evil = "<script>alert(1)</script>"
    rows = [row(i * 10 * MS) for i in range(500)]
    path = build(tmp_path / "a", rows, target=evil, doubts=[])
    other = build(tmp_path / "b", rows, target="x", profile={"name": evil, "text": evil, "sha256": evil})
    for force in (False, True):
        page = render_comparison(compare([side_of(path, evil), side_of(other)], force=force))
        assert evil not in page
