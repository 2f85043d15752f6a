"""Forecasts: numbers and ranges, rate curves, profiles and traces, and their peaks."""

import numpy as np
import pytest

from loadgen.analysis.forecast import Source, Unit, curve_peak, read_forecast, trace_peak
from loadgen.records import LoadgenError
from loadgen.schedule import rate_curve
from loadgen.traffic.phases import Open
from loadgen.traffic.profile import parse_profile  # noqa: F401 - the profile's parts are built with it

S = 10**9
M = 60 * S


def curve(*segments):
    return rate_curve(Open.model_validate({"rate": list(segments)}).rate)


def test_a_number_and_a_range():
    one, several = read_forecast("900/s", M), read_forecast("800/s to 1000/s", M)
    assert (one.unit, one.low, one.high, one.window_ns) == (Unit.RATE, 900, 900, None)
    assert (several.low, several.high, several.mean_low, several.mean_high) == (800, 1000, 800, 1000)
    assert read_forecast("40 users", M).unit is Unit.USERS
    assert read_forecast("5400/m", M).high == pytest.approx(90)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fast", "neither a load nor a file"),
        ("none/such.csv", "nor a file that is there"),
        ("0/s", "above 0"),
        ("900", "write a number per s, m or h"),
        ("1000/s to 800/s", "the lower end first"),
        ("800/s to 40 users", "one unit"),
    ],
)
def test_what_is_refused(text, said):
    with pytest.raises(LoadgenError, match=said):
        read_forecast(text, M)


def test_the_peak_of_a_ramp_is_at_its_end_and_of_a_triangle_about_its_top():
    ramp = curve({"duration": "100s", "from": "0/s", "to": "100/s"})
    assert curve_peak(ramp, 10 * S) == pytest.approx(950)  # 95/s on average in the last 10 s
    triangle = curve(
        {"duration": "60s", "from": "0/s", "to": "60/s"}, {"duration": "30s", "from": "60/s", "to": "0/s"}
    )
    # 9 s about the top where both ends have one rate: 60 - x = 60 - 2 (9 - x), so x = 6: 57/s on average
    assert curve_peak(triangle, 9 * S) == pytest.approx(57 * 9)
    assert curve_peak(triangle, 200 * S) == pytest.approx(60 * 90 / 2)


def test_the_peak_of_any_curve_is_that_of_a_fine_search():
    rng = np.random.default_rng(5)
    for _ in range(20):
        held = curve(
            *(
                {"duration": f"{d}s", "from": f"{a}/s", "to": f"{b}/s"}
                for d, a, b in rng.integers(1, 50, (6, 3)).tolist()
            )
        )
        window = int(rng.integers(1, 20)) * S
        begins = np.linspace(0, max(0, held.at_ns[-1] - window), 20_001)
        searched = (held.counted(np.minimum(begins + window, held.at_ns[-1])) - held.counted(begins)).max()
        assert searched <= curve_peak(held, window) * (1 + 1e-9)
        assert curve_peak(held, window) == pytest.approx(searched, rel=1e-4)


def test_the_peak_of_a_trace_counts_wherever_the_window_begins():
    due = np.array([0, 900, 950, 1000, 1100, 5000])
    assert trace_peak(due, 1000) == 4  # 900 to 1100, over an edge of whole seconds
    assert trace_peak(due, 1) == 1


def test_a_profile_gives_the_peak_and_mean_of_its_measured_phases(tmp_path):
    path = tmp_path / "day.yaml"
    path.write_text("""
name: day
kinds: {k: {model: m, length: 8}}
phases:
  - {name: warm, warmup: true, open: {rate: [{duration: 10s, at: 500/s}]}}
  - {name: night, open: {rate: [{duration: 90s, at: 10/s}]}}
  - {name: noon, open: {rate: [{duration: 10s, at: 110/s}]}}
""")
    found = read_forecast(str(path), 5 * S)
    assert (found.source, found.high, found.span_ns) == (Source.CURVE, pytest.approx(110), 100 * S)
    assert found.mean_high == pytest.approx(20)


def test_a_file_that_holds_only_a_rate(tmp_path):
    path = tmp_path / "curve.yaml"
    path.write_text("rate: [{duration: 1h, at: 10/s}, {duration: 1h, from: 10/s, to: 130/s}]\n")
    found = read_forecast(str(path), M)
    assert (found.high, found.mean_high) == (pytest.approx(129), pytest.approx(40))
    path.write_text("rate: [{duration: 1h, at: fast}]\n")
    with pytest.raises(LoadgenError, match=r"curve.yaml:1"):
        read_forecast(str(path), M)


def test_a_closed_loop_is_no_forecast(tmp_path):
    path = tmp_path / "users.yaml"
    path.write_text(
        "name: u\nkinds: {k: {model: m, length: 8}}\nphases: [{name: a, closed: {users: 4, duration: 5s}}]\n"
    )
    with pytest.raises(LoadgenError, match="phase a is a closed loop"):
        read_forecast(str(path), M)


def test_a_trace(tmp_path):
    path = tmp_path / "t.csv"
    times = [*range(0, 100_000, 1000), *range(50_000, 52_000, 20)]  # 1/s, and 50/s for 2 s
    path.write_text("t,n\n" + "\n".join(f"{t},8" for t in sorted(times)) + "\n")
    found = read_forecast(str(path), 2 * S, "{columns: {time: t, input: n}, unit: ms}")
    assert (found.source, found.at_peak, found.high) == (Source.TRACE, 102, pytest.approx(51))
    assert found.mean_high == pytest.approx(200 / 99.5, rel=0.01)
    with pytest.raises(LoadgenError, match=r"t\.csv"):
        read_forecast(str(path), 2 * S)
