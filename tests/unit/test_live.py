"""What a person watches: a line that is true, on a terminal and elsewhere."""

import io
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from loadgen.cli.progress import Progress
from loadgen.records import Outcome
from loadgen.runfile import ROW_DTYPE
from loadgen.sinks.live import LiveLatency, LiveLine, live_quantile

MS = 1_000_000


def rows(latencies_ns, phase=0, outcome=Outcome.OK):
    block = np.zeros(len(latencies_ns), ROW_DTYPE)
    block["phase"], block["outcome"] = phase, outcome
    block["due_ns"] = 5
    block["done_ns"] = np.asarray(latencies_ns) + 5
    return block


def test_live_percentiles_are_right_to_one_percent():
    live = LiveLatency()
    values = np.random.default_rng(0).lognormal(16, 1, 10_000).astype(np.int64)
    for part in np.split(values, 10):
        live.add(rows(part))
    live.add(rows([10**11] * 50, outcome=Outcome.TIMEOUT))  # no success: in no percentile
    for q in (0.5, 0.99):
        assert live_quantile(live.bins, q) == pytest.approx(np.quantile(values, q), rel=0.011)


def test_a_new_phase_starts_afresh_and_nothing_is_no_percentile():
    live = LiveLatency()
    assert live_quantile(live.bins, 0.5) is None
    live.add(rows([900 * MS] * 10, phase=0))
    live.add(rows([MS] * 10, phase=1))
    assert live_quantile(live.bins, 0.99) == pytest.approx(MS, rel=0.011)


def test_the_line_tells_rates_since_the_last_line():
    clock = SimpleNamespace(t=0)
    clock.now_ns = lambda: clock.t
    line = LiveLine(clock)
    live = LiveLatency()
    live.add(rows([10 * MS] * 100))
    clock.t = 2_000 * MS
    counts = SimpleNamespace(due=100, ok=80, failed=3, dropped=0)
    text = line.text(
        "ramp", 2_000 * MS, 60_000 * MS, SimpleNamespace(counts=counts, in_flight=17, bins=live.bins)
    )
    assert text.startswith("ramp 2/60 s  asked 50/s  answered 40/s  in flight 17  P50 ~10")
    assert text.endswith("errors 3")
    clock.t = 3_000 * MS
    counts = SimpleNamespace(due=400, ok=380, failed=3, dropped=7)
    text = line.text("ramp", 3_000 * MS, None, SimpleNamespace(counts=counts, in_flight=2, bins=live.bins))
    assert "asked 300/s  answered 300/s" in text
    assert text.endswith("dropped 7")


def test_the_first_line_leaves_out_the_time_before_the_load():
    """Workers take a second to start: 100 requests in the 500 ms since are 200/s."""
    clock = SimpleNamespace(t=0, now_ns=lambda: clock.t)
    line = LiveLine(clock)
    clock.t = 1_500 * MS
    counts = SimpleNamespace(due=100, ok=50, failed=0, dropped=0)
    watched = SimpleNamespace(counts=counts, in_flight=50, bins=LiveLatency().bins)
    assert "asked 200/s  answered 100/s" in line.text("load", 500 * MS, None, watched)


def test_a_phase_has_no_rate_of_the_one_before_it():
    clock = SimpleNamespace(t=0, now_ns=lambda: clock.t)
    line, live = LiveLine(clock), LiveLatency()
    live.add(rows([10 * MS] * 100))

    def tick(t_ms, phase, began_ms, due, ok):
        clock.t = t_ms * MS
        counts = SimpleNamespace(due=due, ok=ok, failed=0, dropped=0)
        watched = SimpleNamespace(counts=counts, in_flight=2, bins=live.bins)
        return line.text(phase, (t_ms - began_ms) * MS, 12_000 * MS, watched)

    assert "asked 600/s  answered 600/s" in tick(500, "warm", 0, 300, 300)
    assert tick(1_000, "steady", 950, 600, 598) == "steady 0/12 s  in flight 2  errors 0"
    text = tick(1_500, "steady", 950, 610, 598)  # the bins are the warm-up's still
    assert text == "steady 1/12 s  asked 20/s  answered 0/s  in flight 2  no answer yet  errors 0"
    live.add(rows([40 * MS] * 10, phase=1))
    assert "asked 20/s  answered 20/s  in flight 2  P50 ~40" in tick(2_000, "steady", 950, 620, 608)


class Broken(io.StringIO):
    def write(self, _):
        raise BrokenPipeError


def test_progress_that_cannot_be_written_is_dropped(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Broken())
    with Progress() as progress:
        progress.say("one")
        progress.say("two")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_a_tick_takes_the_place_of_the_last_line(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress() as progress:
        progress.tick("one")
        progress.tick("two")
    assert sys.stderr.getvalue() == "\r\x1b[Kone\r\x1b[Ktwo\n"


def test_elsewhere_ticks_are_thinned_and_what_happens_once_is_not(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with Progress() as progress:
        for text in ("a", "b", "c"):
            progress.say(text)
        for _ in range(50):
            progress.tick("tick")
    assert sys.stderr.getvalue() in ("a\nb\nc\ntick\n", "a\nb\nc\n")


def test_quiet_is_quiet(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with Progress(quiet=True) as progress:
        progress.say("a")
        progress.tick("b")
    assert sys.stderr.getvalue() == ""
