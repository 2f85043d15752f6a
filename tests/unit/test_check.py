"""`loadgen check` of real run folders: exit code, JUnit XML, Markdown, annotations and JSON say the same."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from markdown_it import MarkdownIt

from loadgen.analysis import intervals
from loadgen.analysis.baseline import parse_no_worse, verdict
from loadgen.records import LoadgenError, Outcome
from tests.support.cli import loadgen
from tests.support.junit import read_junit
from tests.support.runs import MS, S, beat, build, phase, row, running, steady

P99 = "latency p99 < 250ms"
BUSY = {"cpu_ns": 10 * S, "loop_lag_ns": {"n": 100, "p50": 50 * MS, "p99": 200 * MS, "max": 400 * MS}}


def varied(n=5000, *, seed=1, middle=20 * MS, **over):
    """`n` independent lognormal times over 10 s."""
    took = (np.random.default_rng(seed).lognormal(0, 0.3, n) * middle).astype(np.int64).tolist()
    return [row(i * 10 * S // n, ns, **over) for i, ns in enumerate(took)]


def cancelled(n):
    return [row(9 * S, S, outcome=Outcome.CANCELLED, detail="the run was interrupted") for _ in range(n)]


def failed(n):
    return steady(n, outcome=Outcome.TIMEOUT, detail="no answer")


def killed(due, ended):
    return {"phases": [running(planned=due)], "status": "running", "beats": [beat(5 * S, due, ended)]}


CASES = {  # rows, how the run ended, exit code, what CI shows of the measurement and of the objective
    "pass": (varied(), {}, 0, "pass", "pass"),
    "fail": (varied(middle=S), {}, 1, "pass", "failure"),
    "inconclusive": (varied(middle=124 * MS), {}, 3, "pass", "error"),
    "too few": (steady(20), {}, 3, "pass", "error"),
    "client was the limit": (varied(), {"phases": [phase(planned=5000, **BUSY)]}, 3, "error", "error"),
    "late because of the client": (varied(middle=S), {"phases": [phase(planned=5000, **BUSY)]}, 3, "error", "error"),
    "some failed": (varied() + failed(200), {}, 1, "error", "failure"),
    "interrupted, much given up": (varied(900) + cancelled(100), {"status": "interrupted"}, 3, "error", "error"),
    "interrupted, nothing lost": (varied(), {"status": "interrupted"}, 0, "pass", "pass"),
    "killed": (varied(), killed(5400, 5000), 3, "error", "error"),
    "killed, never seen": (varied(), {"phases": [running(planned=5000)], "status": "running"}, 3, "error", "error"),
    "killed at once": ([], {"phases": [running(planned=5000)], "status": "running"}, 3, "error", "error"),
    "broken off": (varied(), {"status": "failed"}, 3, "error", "error"),
    "empty": ([], {}, 3, "error", "error"),
    "one request": (steady(1), {}, 3, "pass", "error"),
    "one lost request": (failed(1), {}, 3, "error", "error"),
    "all failed": (failed(500), {}, 3, "error", "error"),
    "zero length": ([row(0, 0), row(0, 0)], {"phases": [phase(duration_ns=0, load_end_ns=0, end_ns=0)]}, 3, "pass", "error"),
    "zero length and empty": ([], {"phases": [phase(duration_ns=0, load_end_ns=0, end_ns=0)]}, 3, "error", "error"),
    "no phase": ([], {"phases": []}, 3, "error", "error"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_end_of_a_run_is_told_alike_by_code_xml_markdown_annotations_and_json(tmp_path, name):
    rows, over, code, measurement, objective = CASES[name]
    path = build(tmp_path / "run", rows, objectives=[P99], **over)
    found = loadgen("check", path, "--junit", tmp_path / "j.xml", "--annotations", "--json")
    read = read_junit(tmp_path / "j.xml")
    assert (found.code, read.of("measurement is valid"), read.of(P99)) == (code, measurement, objective)
    assert bool(read.red) == (code != 0)
    told = json.loads(found.out, parse_constant=pytest.fail)
    assert (told["exit_code"], told["valid"]) == (code, measurement == "pass")
    assert len(re.findall("^::error ", found.err, re.MULTILINE)) == len(read.red)
    text = loadgen("check", path, "--markdown", "-").out
    title = {0: "pass", 1: "fail", 3: "inconclusive" if measurement == "pass" else "not valid"}[code]
    assert text.startswith(f"### loadgen check: {title}\n")
    assert loadgen("check", path).code == code


def test_the_suite_tells_which_run_it_is(tmp_path):
    path = build(tmp_path / "run", varied(), objectives=[P99, "failure rate < 1%", P99])
    loadgen("check", path, "--junit", tmp_path / "j.xml")
    read = read_junit(tmp_path / "j.xml")
    (suite,) = read.root
    assert (suite.get("name"), suite.get("hostname"), suite.get("timestamp"), suite.get("time")) == (
        "20260102T030405-test", "here", "2026-01-02T03:04:05", "10.0")  # fmt: skip
    properties = {one.get("name"): one.get("value") for one in suite.find("properties")}
    assert properties == {
        "run": "20260102T030405-test", "path": str(path), "status": "finished", "target": "http://127.0.0.1:8000",
        "profile": "test", "seed": "7", "valid": "true"}  # fmt: skip
    assert list(read.verdicts) == [
        ("test", "measurement is valid"), ("test", P99), ("test", "failure rate < 1%")]  # fmt: skip
    said = suite.find(f"testcase[@name='{P99}']/system-out").text
    assert re.fullmatch(
        r"observed 40\.\d ms \(95 %: 39\.\d ms to 42\.\d ms\), n 5000 \(batch means, effective n [\d,]+\)",
        said,
    )


def test_a_failure_says_by_how_much_and_an_error_what_would_settle_it(tmp_path):
    path = build(tmp_path / "run", varied(middle=124 * MS), objectives=[P99, "latency p50 < 50ms"])
    loadgen("check", path, "--junit", tmp_path / "j.xml")
    read = read_junit(tmp_path / "j.xml")
    assert re.match(
        r"observed 2\d\d ms \(95 %: 2\d\d ms to 2\d\d ms\), n 5000 \(batch means, effective n [\d,]+\); .* would tell$",
        read.messages[P99],
    )
    assert re.match(
        r"observed 12\d ms \(95 %: 1\d\d ms to 1\d\d ms\), n 5000 \(batch means, .*\)$",
        read.messages["latency p50 < 50ms"],
    )
    types = {one.get("type") for one in read.root.iter("error")} | {
        one.get("type") for one in read.root.iter("failure")
    }
    assert types == {"inconclusive", "fail"}


NASTY = "\x1b[31m\x00<b>&\"']]>\ufffe\ud800 \U0001f468\u200d\U0001f469 |`@me`|\r\n::error::x %0A"


def test_what_servers_and_profiles_call_things_breaks_no_format(tmp_path):
    kind = {"name": "ch\x07at \U0001f600|`<i>", "model": "m", "version": "1", "batch": 1, "weight": 1.0,
            "timeout_ns": 5 * S, "variants": 8}  # fmt: skip
    wanted = f"{kind['name'].replace('<i>', '')}: latency p99 < 250ms"
    kind["name"] = kind["name"].replace("<i>", "")
    path = build(tmp_path / "run", varied(), kinds=[kind], objectives=[wanted, P99], target=NASTY,
                 profile={"name": NASTY, "text": "name: test\n", "sha256": "0" * 64},
                 doubts=[{"code": "run_failed", "text": NASTY, "hint": NASTY, "invalidates": True}])  # fmt: skip
    found = loadgen(
        "check", path, "--junit", tmp_path / "j.xml", "--annotations", "--markdown", tmp_path / "m.md"
    )
    assert found.code == 3
    read = read_junit(tmp_path / "j.xml")
    escaped = "\\x1b[31m\\x00<b>&\"']]>\\ufffe\\ud800 \U0001f468\u200d\U0001f469 |`@me`|  ::error::x %0A"
    properties = {one.get("name"): one.get("value") for one in read.root.iter("property")}
    assert properties["target"] == properties["profile"] == escaped
    assert escaped in read.messages["measurement is valid"]
    assert (escaped, "ch\\x07at \U0001f600|`: latency p99 < 250ms") in read.verdicts
    commands = [line for line in found.err.splitlines() if line]
    assert all(re.fullmatch(r"::(error|warning) title=[^:,]*::.*", line) for line in commands)
    assert any("%25250A" not in line and "::error::x %250A" in line for line in commands)
    html = MarkdownIt("commonmark").enable("table").render((tmp_path / "m.md").read_text())
    assert "<i>" not in html
    assert "<b>" not in html
    assert "@me" not in re.sub(r"<code>.*?</code>", "", html)  # nobody is called
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    assert [row.count("<td>") for row in rows] == [0, 6, 6]
    assert "<code>ch\\x07at \U0001f600|`: latency p99 &lt; 250ms</code>" in html


def test_half_a_surrogate_pair_is_valid_json(tmp_path):
    path = build(tmp_path / "run", varied(), objectives=[P99], target="a\ud800\x1b")
    found = loadgen("check", path, "--json")
    assert (found.code, found.json["runs"][0]["target"]) == (0, "a\ud800\x1b")
    assert found.out.encode()


def decoded(text):
    """As GitHub's runner reads a command's values."""
    for code, char in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, char)
    return text


def test_annotations_are_read_back_as_they_were_meant(tmp_path):
    path = build(tmp_path / "run", varied(middle=S), objectives=["short: latency p50 < 250ms"])
    found = loadgen("check", path, "--annotations")
    level, title, said = re.search(r"^::(error) title=(.*?)::(.*)$", found.err, re.MULTILINE).groups()
    assert (level, decoded(title)) == ("error", "loadgen fail: short: latency p50 < 250ms")
    assert re.match(r"observed (1|1\.\d+|99\d m|9\d\d m)s? ?s? \(95 %: ", decoded(said).replace("  ", " "))
    assert "::" not in found.out


def test_several_runs_are_judged_together_and_each_tells_of_itself(tmp_path):
    good = [build(tmp_path / str(seed), varied(480, seed=seed), objectives=[P99]) for seed in range(4)]
    assert [loadgen("check", path).code for path in good] == [3] * 4  # a P99 takes 500
    found = loadgen("check", *good, "--junit", tmp_path / "j.xml", "--json")
    read = read_junit(tmp_path / "j.xml")
    assert [name for _, name in read.verdicts] == [
        *(f"measurement {i} of 4 is valid" for i in (1, 2, 3, 4)),
        P99,
    ]
    assert (found.code, found.json["slo"][0]["n"], len(found.json["runs"])) == (0, 1920, 4)
    broken = build(tmp_path / "c", varied(480, seed=9), objectives=[P99], status="failed")
    found = loadgen("check", *good, broken, "--junit", tmp_path / "j.xml")
    read = read_junit(tmp_path / "j.xml")
    assert (found.code, read.red) == (3, ["measurement 5 of 5 is valid", P99])


@pytest.mark.parametrize(
    ("middle", "code", "p50", "p99"),
    [(20 * MS, 0, "pass", "pass"), (40 * MS, 1, "failure", "failure"), (21 * MS, 3, "error", "error")],
)
def test_a_run_is_held_against_a_baseline(tmp_path, middle, code, p50, p99):
    old = build(tmp_path / "old", varied(20_000))
    new = build(tmp_path / "new", varied(20_000, seed=2, middle=middle), id="20260103T030405-test")
    found = loadgen("check", new, "--baseline", old, "--junit", tmp_path / "j.xml", "--json")
    read = read_junit(tmp_path / "j.xml")
    assert (found.code, read.of("latency p50 at most 5% above the baseline")) == (code, p50)
    assert read.of("latency p99 at most 5% above the baseline") == p99
    assert read.of("failure rate at most 1 point above the baseline") == "pass"
    assert read.of("comparable with the baseline") == "pass"
    row = found.json["baseline"]["comparisons"][0]
    assert row["change"] == pytest.approx(middle / (20 * MS), rel=0.02)
    assert row["interval"][0] < row["change"] < row["interval"][1]
    assert (row["limit"], row["n"], row["baseline_n"]) == (1.05, 20_000, 20_000)
    assert (row["reason"], row["more_s"] is None) == (("more_data", False) if code == 3 else (None, True))


@pytest.mark.parametrize(
    ("margin", "rows", "verdict", "change"),
    [
        (
            "latency p50 5%",
            steady(1000, service=105 * MS // 10),
            "pass",
            1.05,
        ),  # the margin itself is allowed
        ("latency p50 5%", steady(1000, service=106 * MS // 10), "fail", 1.06),
        ("latency p99 5%", steady(1000, service=S), "fail", 100),
        ("latency p99 5%", failed(1000), "fail", None),  # no answer is later than any
        ("failure rate 1%", failed(1000), "fail", 1),
        ("failure rate 1%", steady(1000), "pass", 0),
        ("failure rate 0.01%", steady(1000), "inconclusive", 0),
        ("requests/s 5%", steady(1000), "pass", 1),
        ("requests/s 5%", failed(1000), "fail", None),
        ("requests/s 5%", steady(900) + failed(100), "fail", 0.9),
        ("latency p99 5%", [], "inconclusive", None),
    ],
)
def test_the_verdict_is_that_of_the_whole_interval(tmp_path, margin, rows, verdict, change):
    old, new = build(tmp_path / "old", steady(1000)), build(tmp_path / "new", rows)
    found = loadgen("check", new, "--baseline", old, "--no-worse", margin, "--json").json
    (row,) = found["baseline"]["comparisons"]
    assert (row["verdict"], row["change"]) == (verdict, None if change is None else pytest.approx(change))


@pytest.mark.parametrize("q", [0.5, 0.99])
def test_what_is_worse_by_just_the_margin_passes_in_one_of_forty_runs(q):
    rng, wanted, passed, unchanged = (
        np.random.default_rng(3),
        parse_no_worse(f"latency p{100 * q:g} 10%"),
        0,
        0,
    )
    for _ in range(200):
        old, new = (intervals.quantile([rng.lognormal(0, 0.3, 5000)], q) for _ in range(2))
        worse = replace(new, value=new.value * 1.1, low=new.low * 1.1, high=new.high * 1.1)
        passed += verdict(wanted, old, worse, intervals.ratio(old, worse)) == "pass"
        unchanged += verdict(wanted, old, new, intervals.ratio(old, new)) == "pass"
    assert passed <= 11  # of 5 expected at most, two and a half standard deviations
    assert unchanged >= 180


def test_runs_of_the_same_plan_are_paired(tmp_path):
    """Both met the same slow stretches: their ratio is known far better than either of them."""

    def slow_stretches(seed, middle):
        rows = varied(10_000, seed=seed, middle=middle)
        for i, one in enumerate(rows):
            one["done_ns"] += 40 * MS if i // 250 % 3 == 0 else 0
        return rows

    old = build(tmp_path / "old", slow_stretches(1, 20 * MS))
    widths = {}
    for seed in (7, 8):
        new = build(tmp_path / str(seed), slow_stretches(2, 20 * MS), seed=seed)
        found = loadgen("check", new, "--baseline", old, "--no-worse", "latency mean 5%", "--json").json
        (row,) = found["baseline"]["comparisons"]
        widths[row["basis"]] = row["interval"][1] - row["interval"][0]
    assert widths["paired_requests"] < widths["requests"] / 2


def test_a_baseline_in_which_nothing_succeeded_is_no_licence(tmp_path):
    """Whatever came of the run, it is no worse: but neither was measured, and that is refused."""
    old, new = build(tmp_path / "old", failed(1000)), build(tmp_path / "new", steady(1000))
    found = loadgen("check", new, "--baseline", old, "--junit", tmp_path / "j.xml")
    assert (found.code, read_junit(tmp_path / "j.xml").of("comparable with the baseline")) == (3, "error")


def test_a_figure_must_hold_in_every_phase(tmp_path):
    two = [phase("low", planned=1000), phase("peak", planned=1000)]
    old = build(tmp_path / "old", steady(1000) + steady(1000, phase=1), two)
    new = build(tmp_path / "new", steady(1000) + steady(1000, phase=1, service=12 * MS), two)
    found = loadgen("check", new, "--baseline", old, "--no-worse", "latency p50 5%", "--json")
    (row,) = found.json["baseline"]["comparisons"]
    assert (found.code, row["phase"], row["phases"], row["change"]) == (1, "peak", 2, pytest.approx(1.2))
    assert "in peak, the worst of 2 phases" in loadgen("check", new, "--baseline", old).out.replace("\n", " ")


def test_another_profile_is_no_baseline_and_another_machine_is_said(tmp_path):
    old = build(tmp_path / "old", varied(20_000))
    other = {"name": "other", "text": "name: other\nphases: [1]\n", "sha256": "1" * 64}
    new = build(tmp_path / "new", varied(20_000, seed=2), profile=other)
    found = loadgen("check", new, "--baseline", old, "--junit", tmp_path / "j.xml")
    read = read_junit(tmp_path / "j.xml")
    assert (found.code, len(read.red)) == (3, 4)
    assert "profile phases" in read.messages["comparable with the baseline"]
    moved = build(
        tmp_path / "moved", varied(20_000, seed=2), client={"host": "there", "cores": 2, "workers": 1}
    )
    found = loadgen("check", moved, "--baseline", old, "--markdown", "-")
    assert (found.code, "machine host: here in the baseline, there in the run" in found.out) == (0, True)


def test_a_missed_objective_shows_beside_a_baseline_that_does_not_fit(tmp_path):
    other = {"name": "other", "text": "name: other\nphases: [1]\n", "sha256": "1" * 64}
    old = build(tmp_path / "old", varied(), profile=other)
    new = build(tmp_path / "new", varied(middle=S), objectives=[P99])
    assert loadgen("check", new, "--baseline", old).code == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("latency p99", "write a figure and how much worse"),
        ("latency p99 5", "write a figure and how much worse"),
        ("latency 5%", "latency needs one of pNN"),
        ("latency max 5%", "one value of a run without an interval"),
        ("mean batch 5%", "one value of a run without an interval"),
        ("goodput 100%", "allows everything"),
    ],
)
def test_a_margin_that_cannot_be_is_one_line(text, says):
    with pytest.raises(LoadgenError, match=says) as why:
        parse_no_worse(text)
    assert "\n" not in str(why.value)


def test_what_does_not_go_together_is_refused_in_one_line(tmp_path):
    path = build(tmp_path / "a", steady(1000), objectives=[P99])
    other = build(tmp_path / "b", steady(1000), objectives=["latency p50 < 1s"])
    for args, says in (
        ([path, path], "given twice"),
        ([path, "--baseline", path], "given twice"),
        ([path, other], "its objectives are not those of"),
        ([path, "--no-worse", "latency p50 5%"], "--baseline"),
        ([path, "--markdown", "-", "--json"], "standard output"),
        ([path, "--objective", P99, "--objectives", path / "x.yaml"], "give one of them"),
    ):
        found = loadgen("check", *args)
        assert (found.code, found.out, len(found.err.splitlines())) == (2, "", 1)
        assert says in found.err
    assert loadgen("check", path, other, "--objective", P99).code == 0


def test_objectives_come_from_a_file(tmp_path):
    path = build(tmp_path / "a", steady(1000))
    (tmp_path / "o.yaml").write_text("- latency p99 < 1ms\n")
    assert loadgen("check", path, "--objectives", tmp_path / "o.yaml").code == 1


@pytest.mark.parametrize("option", ["--junit", "--markdown"])
def test_a_file_that_cannot_be_written_is_one_line_and_code_3_after_the_verdict(tmp_path, option):
    path = build(tmp_path / "run", varied(), objectives=[P99])
    os.mkfifo(tmp_path / "pipe")
    for place in ("no/folder.xml", "pipe"):
        found = loadgen("check", path, option, tmp_path / place)
        assert (found.code, len(found.err.splitlines()), P99 in found.out) == (3, 1, True)
        assert str(tmp_path / place) in found.err
        assert option in found.err
    assert loadgen("check", path, option, tmp_path).code == 2  # a folder
    assert not [one for one in tmp_path.iterdir() if one.name.startswith(".")]


def test_a_link_is_written_through_and_an_old_file_is_replaced_whole(tmp_path):
    path = build(tmp_path / "run", varied(), objectives=[P99])
    real = tmp_path / "real.xml"
    real.write_text("x" * 100_000)
    link = tmp_path / "link.xml"
    link.symlink_to(real)
    loadgen("check", path, "--junit", link)
    assert link.is_symlink()
    assert read_junit(real).of(P99) == "pass"


def test_the_docs_examples_are_yaml_and_their_options_exist():
    import yaml

    text = (Path(__file__).parents[2] / "docs" / "ci.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        yaml.safe_load(block)
    known = loadgen("check", "--help").out + loadgen("run", "--help").out
    assert all(option in known for option in set(re.findall(r"--[a-z][a-z-]+", "".join(blocks))))
