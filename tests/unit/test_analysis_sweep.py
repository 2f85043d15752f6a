"""What a sweep's folder says, from blocks made by hand."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from loadgen.analysis.pool import pool
from loadgen.analysis.slo import judge, measured_of
from loadgen.analysis.sweep import BLOCKS, FORMAT, JOURNAL, read_sweep
from loadgen.cli.sweep import EXITS
from loadgen.report.sweep import conclusion, print_sweep, render_sweep
from loadgen.runread import read_run
from tests.support import runs

MS = 10**6
TEXT = """
name: s
profile: p.yaml
loads: [{users: 4}]
repeats: 3
configurations: [{name: slow, delay: 2ms}, {name: fast, delay: 1ms}]
"""


def sweep(path, blocks, text=TEXT, **journal):
    """`blocks`: {name: ms between two answers, or service times in ms of requests 5 ms apart}."""
    path.mkdir()
    text = {"name": "s", "text": text, "folder": str(path)}
    told = {
        "format": FORMAT, "status": "finished", "sweep": text, "profile": text, "model": "m", "target": None,
        "protocol": "grpc", "repository": None, "base": {}, "command": [], "visits": [], **journal,
    }  # fmt: skip
    (path / JOURNAL).write_text(json.dumps(told))
    for name, gap in blocks.items():
        load = runs.phase(
            "load", loop="closed", users=4, duration_ns=2000 * MS, load_end_ns=2000 * MS, end_ns=2000 * MS
        )
        if isinstance(gap, int):
            rows = [runs.row(at * MS, 5 * MS) for at in range(0, 2000, gap)]
        else:
            rows = [runs.row(i * 2000 * MS // len(gap), int(ms * MS)) for i, ms in enumerate(gap)]
        runs.build(path / BLOCKS / name, rows, [load])
    return path


ALL = {"r1-c1-l1": 20, "r2-c1-l1": 20, "r3-c1-l1": 21, "r1-c2-l1": 10, "r2-c2-l1": 10, "r3-c2-l1": 11}


def test_the_faster_one_wins(tmp_path):
    result = read_sweep(sweep(tmp_path / "s", ALL))
    assert result["best"]["configuration"] == "fast"
    assert result["best"]["probability"] > 0.9
    cells = {cell["configuration"]: cell for cell in result["cells"]}
    ratio = cells["fast"]["achieved_per_s"] / cells["slow"]["achieved_per_s"]
    assert ratio == pytest.approx((2 * 2 * 21 / 11) ** (1 / 3), rel=0.02)


def test_a_configuration_that_was_left_out_does_not_win_by_the_blocks_before(tmp_path):
    some = {name: gap for name, gap in ALL.items() if name != "r3-c2-l1"}
    result = read_sweep(sweep(tmp_path / "s", some, failed={"fast": "out of memory"}))
    assert result["best"]["configuration"] == "slow"
    assert "left out: fast: out of memory" in conclusion(result)
    rows = {row["name"]: row for row in result["configurations"]}
    assert rows["fast"]["score"] is None
    assert next(c for c in result["cells"] if c["configuration"] == "fast")["blocks"] == 2  # still shown


def tail(p99, n=2000, middle=20):
    """Service times in ms whose P99 is `p99`: 3 % of them are there."""
    few = n * 3 // 100
    return np.random.default_rng(n).permutation([middle] * (n - few) + [p99] * few).tolist()


ONE = TEXT.replace("[{name: slow, delay: 2ms}, {name: fast, delay: 1ms}]", "[{name: alone, delay: 2ms}]")
P99 = 'objectives: ["latency p99 < 250ms"]'


def cells_of(result):
    return {cell["configuration"]: cell for cell in result["cells"]}


@pytest.mark.parametrize(
    ("p99s", "verdict", "blocks"),
    [
        ((85, 499, 301), "inconclusive", ["pass", "fail", "fail"]),  # their geometric mean is 234 ms
        ((85, 85, 85), "pass", ["pass"] * 3),
        ((300, 300, 300), "fail", ["fail"] * 3),
    ],
)
def test_an_objective_is_judged_on_the_requests_and_not_on_the_mean_of_the_blocks(
    tmp_path, p99s, verdict, blocks
):
    found = {f"r{i + 1}-c1-l1": tail(ms) for i, ms in enumerate(p99s)}
    [cell] = read_sweep(sweep(tmp_path / "s", found, ONE + P99))["cells"]
    [row] = cell["objectives"]
    assert (cell["verdict"], row["verdict"], row["blocks"]) == (verdict, verdict, blocks)
    assert (cell["n"], row["n"]) == (6000, 6000)
    assert (
        cell["p99_ns"] == row["observed"] == np.sort(np.concatenate([tail(ms) for ms in p99s]))[5940 - 1] * MS
    )


def test_the_verdicts_of_a_sweep_are_those_of_judge_on_the_pooled_blocks(tmp_path):
    rng = np.random.default_rng(4)
    wanted = [
        "latency p99 < 120ms",
        "latency p50 < 60ms",
        "failure rate < 1%",
        "latency mean < 61ms",
        "latency p90 < 97ms",
    ]
    text = TEXT + f"objectives: {json.dumps(wanted)}"
    names = [f"r{r}-c{c}-l1" for r in (1, 2, 3) for c in (1, 2)]
    path = sweep(tmp_path / "s", {name: rng.lognormal(4, 0.4, 700).tolist() for name in names}, text)
    seen = set()
    for place, cell in enumerate(read_sweep(path)["cells"], 1):
        blocks = [read_run(path / BLOCKS / f"r{r}-c{place}-l1") for r in (1, 2, 3)]
        rows = [row.json() for row in judge(wanted, measured_of(pool(blocks)))]
        keys = ("objective", "observed", "verdict", "n", "interval")
        told = [{key: row[key] for key in keys} for row in cell["objectives"]]
        assert told == [{key: row[key] for key in keys} for row in rows]
        assert {row["n"] for row in rows} == {2100}
        seen |= {row["verdict"] for row in rows}
    assert len(seen) > 1


def test_a_cell_of_which_a_block_fails_does_not_pass(tmp_path):
    """The P99 of all together is 85 ms, yet one of three runs fails: runs differ by more than chance within one."""
    found = {"r1-c1-l1": tail(85, 4000), "r2-c1-l1": tail(300), "r3-c1-l1": tail(85, 4000)}
    result = read_sweep(sweep(tmp_path / "s", found, ONE + P99))
    [cell] = result["cells"]
    [row] = cell["objectives"]
    assert (row["verdict"], row["blocks"], cell["verdict"]) == (
        "inconclusive",
        ["pass", "fail", "pass"],
        "inconclusive",
    )
    assert (result["best"]["verdict"], result["best"]["configuration"]) == ("inconclusive", None)


def test_too_few_requests_are_inconclusive_and_exit_3(tmp_path):
    found = {f"r{i}-c1-l1": tail(85, 100) for i in (1, 2, 3)}
    result = read_sweep(sweep(tmp_path / "s", found, ONE + P99))  # 300 of the 500 that a P99 needs
    assert result["cells"][0]["verdict"] == "inconclusive"
    assert EXITS[result["best"]["verdict"]] == 3
    assert (result["best"]["leading"], result["best"]["compared"]) == ("alone", "inconclusive")


def test_one_configuration_alone_is_not_best_with_any_probability(tmp_path):
    result = read_sweep(sweep(tmp_path / "s", {f"r{i}-c1-l1": tail(85) for i in (1, 2, 3)}, ONE + P99))
    best = result["best"]
    assert (best["configuration"], best["verdict"], best["probability"], best["worse_by_at_most"]) == (
        "alone",
        "only",
        None,
        None,
    )
    assert result["configurations"][0]["probability_best"] is None
    assert EXITS["only"] == 0
    assert "100" not in " ".join(conclusion(result)).replace("1000", "")


def test_when_nothing_meets_the_objectives_candidates_are_still_compared(tmp_path):
    found = {name: [300 + i % 5 for i in range(400 if "c1" in name else 800)] for name in ALL}
    result = read_sweep(sweep(tmp_path / "s", found, TEXT + P99))
    best = result["best"]
    assert (best["configuration"], best["verdict"], best["leading"], best["compared"]) == (
        None,
        "none",
        "fast",
        "fail",
    )
    assert EXITS[best["verdict"]] == 1
    rows = {row["name"]: row for row in result["configurations"]}
    assert rows["fast"]["score"] == pytest.approx(2 * rows["slow"]["score"], rel=0.02)
    assert 0.95 < best["probability"] < 1
    assert "meets the objectives; without them fast leads" in conclusion(result)[0]


def test_a_faster_one_that_may_meet_them_keeps_the_chosen_one_from_being_clear(tmp_path):
    """slow passes; fast has too few requests to tell, and would win if it did."""
    text = TEXT.replace("configurations", "best: latency p50\nconfigurations")
    found = {name: [30] * 400 if "c1" in name else [10] * 110 for name in ALL}
    result = read_sweep(sweep(tmp_path / "s", found, text + P99))
    cells = cells_of(result)
    assert (cells["slow"]["verdict"], cells["fast"]["verdict"]) == ("pass", "inconclusive")
    best = result["best"]
    assert (best["configuration"], best["verdict"], best["rivals"]) == ("slow", "inconclusive", ["fast"])


def test_nothing_is_settled_before_every_configuration_was_measured(tmp_path):
    some = {name: gap for name, gap in ALL.items() if "c1" in name}
    result = read_sweep(sweep(tmp_path / "s", some, status="interrupted"))
    assert (result["best"]["leading"], result["best"]["verdict"]) == ("slow", "inconclusive")


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("best", ["requests/s", "items/s", "latency p95"])
def test_no_width_and_no_pipe_drops_what_decides(tmp_path, width, best):
    text = TEXT.replace("configurations", f"best: {best}\nconfigurations").replace(
        "slow,", "slow and of a long name,"
    )
    found = {name: tail(85 if "c1" in name else 400) for name in ALL}
    result = read_sweep(sweep(tmp_path / "s", found, text + P99))
    file = io.StringIO()
    print_sweep(result, Console(file=file, width=width, force_terminal=False))
    table = file.getvalue().partition("how sure")[0]
    assert "verdict" in table
    assert best in table
    assert " pass " in table
    assert " fail " in table
    page = render_sweep(result)
    assert "<td>pass</td>" in page
    assert "n 6000" in page
