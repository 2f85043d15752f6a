"""Phases that replay a trace, planned."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.schedule import plan, slice_plan
from loadgen.traffic.profile import ProfileError, parse_profile

KINDS = (
    "kinds:\n  a: {model: m, chat: {}, length: 5, output: {uniform: {min: 1, max: 9}}}\n"
    "  b: {model: m, completion: {}}\n"
)
ROWS = "t,in,out,who\n0,10,1,x\n5,20,,y\n5,30,3,x\n"
TRACE = "trace: {file: t.csv, columns: {time: t, input: in, output: out}, unit: s, kinds: {column: who, map: {x: b, y: a}}}"


def planned(folder, phase, rows=ROWS):
    (folder / "t.csv").write_text(rows)
    text = f"{KINDS}phases:\n  - {{name: p, {phase}}}\n"
    return plan(parse_profile(text, "p.yaml", folder))


def test_a_trace_is_an_open_loop_of_its_rows(tmp_path):
    phase = planned(tmp_path, TRACE).phases[0]
    assert (phase.loop, phase.due_ns.tolist(), phase.duration_ns) == (
        "open",
        [0, 5 * 10**9, 5 * 10**9],
        7_500_000_000,
    )
    assert (phase.kind.tolist(), phase.length.tolist()) == ([1, 0, 1], [10, 20, 30])
    assert phase.output[[0, 2]].tolist() == [1, 3]
    assert 1 <= phase.output[1] <= 9  # what the trace does not tell, the kind's law does
    assert phase.facts["rows_kept"] == 3


def test_case_55_without_times_one_user_sends_all_rows_in_order(tmp_path):
    """Field case 55: all rows, in file order, in a closed loop, and the choice is said."""
    phase = planned(tmp_path, TRACE.replace("time: t, ", "").replace("unit: s, ", "")).phases[0]
    assert (phase.loop, phase.due_ns, phase.users, phase.requests) == ("closed", None, 1, 3)
    assert phase.length.tolist() == [10, 20, 30]
    assert "the trace has no times" in phase.facts["said"][-1]


def test_the_profile_may_give_the_load_and_the_trace_the_lengths(tmp_path):
    phase = planned(tmp_path, TRACE + ", open: {arrivals: uniform, rate: [{duration: 7s, at: 1/s}]}").phases[
        0
    ]
    assert (len(phase.due_ns), phase.length.tolist()) == (7, [10, 20, 30, 10, 20, 30, 10])
    phase = planned(tmp_path, TRACE + ", closed: {users: 4, requests: 9}").phases[0]
    assert (phase.users, phase.requests, phase.length.tolist()) == (4, 9, [10, 20, 30])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 99), st.sampled_from("xy")), min_size=2),
    st.integers(1, 12),
)
def test_slices_of_a_trace_are_the_trace(gaps, n):
    """Also one with bursts, and rows whose output is left to the kind's law."""
    times = np.cumsum([gap for gap, _, _ in gaps])
    lines = [
        f"{t},{size},{size if t % 2 else ''},{who}" for t, (_, size, who) in zip(times, gaps, strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        whole = planned(Path(folder), TRACE, "\n".join(["t,in,out,who", *lines]))
    parts = [slice_plan(whole, k, n).phases[0] for k in range(n)]
    for name in ("due_ns", "kind", "length", "output", "draw"):
        merged = np.empty_like(getattr(whole.phases[0], name))
        for k, part in enumerate(parts):
            merged[k::n] = getattr(part, name)
        assert merged.tolist() == getattr(whole.phases[0], name).tolist()
    assert whole.phases[0].due_ns.tolist() == ((times - times[0]) * 10**9).tolist()


def test_kinds_that_are_not_there(tmp_path):
    with pytest.raises(ProfileError, match=r"phases\[0\]\.trace\.kinds: there is no kind 'c'.*allowed: a, b"):
        planned(tmp_path, TRACE.replace("x: b", "x: c"))
