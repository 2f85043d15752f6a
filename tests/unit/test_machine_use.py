"""How busy the cores were that a run could use: it decides what is advised against late sends."""

import time

import pytest

from loadgen.lab import facts
from loadgen.lab.facts import cores_used
from loadgen.lab.run import _share_used

STAT = """cpu  999 0 0 0 0 0 0 0 0 0
cpu0 10 20 30 400 50 1 2 3 5 5
cpu1 100 0 0 900 0 0 0 0 0 0
cpu10 7 0 0 7 0 0 0 0 0 0
intr 5
"""


@pytest.mark.parametrize(
    ("cores", "told"), [({0}, (66, 516)), ({0, 1}, (166, 1516)), ({10}, (7, 14)), ({5}, None)]
)
def test_of_the_cores_allowed(tmp_path, monkeypatch, cores, told):
    (tmp_path / "stat").write_text(STAT)
    monkeypatch.setattr(facts, "Path", lambda _: tmp_path / "stat")
    monkeypatch.setattr(facts.os, "sched_getaffinity", lambda _: cores)
    assert cores_used() == told


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        ((10, 100), (60, 200), 0.5),
        ((10, 100), (10, 200), 0.0),
        ((10, 100), (10, 100), None),
        (None, (1, 2), None),
        ((1, 2), None, None),
    ],
)
def test_the_share_between_two_readings(before, after, share):
    assert _share_used(before, after) == share


def test_this_machine_counts_on():
    before, end = cores_used(), time.monotonic() + 0.2
    while time.monotonic() < end:
        pass
    after = cores_used()
    assert after[0] > before[0]
    assert 0 < _share_used(before, after) <= 1
