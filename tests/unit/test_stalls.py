"""Stretches without an answer while requests are in flight, from stamps alone."""

import numpy as np
import pytest

from loadgen.analysis.stalls import silences
from loadgen.analysis.summary import summarise
from loadgen.records import Outcome
from tests.support import runs

MS = 10**6
TRITON = {"name": "triton", "version": "2.51.0", "extensions": ["statistics"]}


def found(pairs, limit=250):
    sent, done = np.array(pairs, np.int64).T * MS
    return [(a // MS, b // MS, n) for a, b, n in silences(sent, done, limit * MS)]


def test_a_gap_between_answers_with_requests_in_flight():
    assert found([(0, 20), (5, 40), (30, 500), (35, 510)]) == [(40, 500, 2)]


def test_a_pause_without_requests_is_none():
    assert found([(0, 20), (900, 920)]) == []
    # and where one comes late and waits, the stretch begins with it
    assert found([(0, 20), (900, 1400)]) == [(900, 1400, 1)]


def test_the_first_answer_may_be_the_late_one():
    assert found([(0, 400), (100, 410)]) == [(0, 400, 1)]
    assert found([(0, 200)]) == []


def test_who_came_within_the_stretch_is_not_counted():
    assert found([(0, 10), (5, 600), (300, 610)]) == [(10, 600, 1)]


def rows(gap_ms):
    """One a 10 ms for 5 s, each served in 10 ms; those of 2 s to 2 s + gap end together after it."""
    out = []
    for due in range(0, 5000, 10):
        end = 2000 + gap_ms + 10 if 2000 <= due < 2000 + gap_ms else due + 10
        out.append(runs.row(due * MS, service=(end - due) * MS))
    return out


@pytest.mark.parametrize(("gap", "times"), [(0, 0), (200, 0), (450, 1)])
def test_a_run_says_so_with_its_stamps(tmp_path, gap, times):
    summary = summarise(runs.build(tmp_path / "run", rows(gap), facts=TRITON))
    doubts = [d for d in summary["doubts"] if d["code"] == "idle_while_pending"]
    assert len(doubts) == times
    if times:
        [stall] = summary["stalls"]
        assert stall == {"phase": "steady", "start_ns": 2000 * MS, "end_ns": 2460 * MS, "in_flight": 1}
        assert "once" in doubts[0]["text"]
        assert "460 ms" in doubts[0]["text"]
        assert not doubts[0]["invalidates"]
    else:
        assert "stalls" not in summary


def test_all_are_counted_and_the_longest_listed(tmp_path):
    """120 answers, each 300 ms and n ms after the last, and the short ones that make 10 ms the usual time."""
    out, at = [], 0
    for n in range(120):
        out += [runs.row((at + k) * MS, service=10 * MS) for k in (0, 2, 4)]
        out.append(runs.row((at + 5) * MS, service=(300 + n) * MS))
        at += 310 + n
    last = at * MS
    phases = [runs.phase(planned=480, duration_ns=last, load_end_ns=last, end_ns=last)]
    summary = summarise(runs.build(tmp_path / "run", out, phases, facts=TRITON))
    [doubt] = [d for d in summary["doubts"] if d["code"] == "idle_while_pending"]
    assert "120 times" in doubt["text"]
    assert len(summary["stalls"]) == 100
    assert min(s["end_ns"] - s["start_ns"] for s in summary["stalls"]) > 300 * MS


def test_long_service_is_no_stall(tmp_path):
    slow = [runs.row(i * 1000 * MS, service=900 * MS) for i in range(10)]
    summary = summarise(runs.build(tmp_path / "run", slow))
    assert "stalls" not in summary


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        (TRITON, "idle_while_pending"),
        ({"name": "ours", "extensions": ["schedule_policy"]}, "idle_while_pending"),  # tritonserver --id=ours
        ({"name": "mlserver", "extensions": []}, "stalled"),
        ({"name": "OpenAI-compatible server", "extensions": []}, "stalled"),
        ({}, "stalled"),
    ],
)
def test_advice_on_tritons_batcher_is_for_a_triton(tmp_path, facts, code):
    summary = summarise(runs.build(tmp_path / "run", rows(450), facts=facts))
    [doubt] = [d for d in summary["doubts"] if d["code"] in ("idle_while_pending", "stalled")]
    assert doubt["code"] == code
    assert ("Triton" in doubt["hint"]) == (code == "idle_while_pending")


@pytest.mark.parametrize("outcome", [Outcome.REJECTED, Outcome.HTTP_5XX])
def test_quick_refusals_do_not_hide_a_stall(tmp_path, outcome):
    """One a 20 ms is turned away at once, all along."""
    quick = [runs.row(due * MS, service=MS, outcome=outcome) for due in range(5, 5000, 20)]
    summary = summarise(runs.build(tmp_path / "run", rows(450) + quick))
    [stall] = summary["stalls"]
    assert stall == {"phase": "steady", "start_ns": 2000 * MS, "end_ns": 2460 * MS, "in_flight": 1}
