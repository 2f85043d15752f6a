"""Phases that replay a trace, planned."""

import numpy as np
import pytest

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


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_slices_of_a_trace_are_the_trace(tmp_path, n):
    rows = "t,in,out,who\n" + "".join(f"{i // 3},{i + 1},1,x\n" for i in range(50))
    whole = planned(tmp_path, TRACE, rows)
    parts = [slice_plan(whole, k, n).phases[0] for k in range(n)]
    for name in ("due_ns", "kind", "length", "output", "draw"):
        merged = np.empty_like(getattr(whole.phases[0], name))
        for k, part in enumerate(parts):
            merged[k::n] = getattr(part, name)
        assert merged.tolist() == getattr(whole.phases[0], name).tolist()


def test_kinds_that_are_not_there(tmp_path):
    with pytest.raises(ProfileError, match=r"phases\[0\]\.trace\.kinds: there is no kind 'c'.*allowed: a, b"):
        planned(tmp_path, TRACE.replace("x: b", "x: c"))
