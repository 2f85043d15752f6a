import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.units import UnitError, parse_bytes, parse_duration, parse_rate, show_bytes, show_ns


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("250ms", 250_000_000), ("1.5s", 1_500_000_000), ("2m", 120_000_000_000), ("1h", 3_600_000_000_000),
        ("7 us", 7_000), ("7µs", 7_000), ("7μs", 7_000), ("1e3ns", 1000), (" 3ns ", 3), ("0s", 0), ("1.1s", 1_100_000_000),
    ],
)  # fmt: skip
def test_durations(text, ns):
    assert parse_duration(text) == ns


@pytest.mark.parametrize(
    "text", ["5", "-5ms", "5 sec", "ms", "", "1,5s", "5MS", "nan s", "1e400s", "1s2s", True, 5, None]
)
def test_no_duration(text):
    with pytest.raises(UnitError):
        parse_duration(text)


def test_the_message_says_what_is_allowed():
    with pytest.raises(
        UnitError,
        match=r"'5' is not a duration: write a number and one of ns, us, ms, s, m, h, e.g. \"250ms\"",
    ):
        parse_duration("5")


@pytest.mark.parametrize(
    ("text", "per_s"), [("200/s", 200.0), ("90/m", 1.5), ("36/h", 0.01), ("0/s", 0.0), ("1.5 / s", 1.5)]
)
def test_rates(text, per_s):
    assert parse_rate(text) == pytest.approx(per_s, rel=1e-12)


@pytest.mark.parametrize("text", ["200", "-1/s", "200/d", "200 rps", "/s", "1e999/s", True])
def test_no_rate(text):
    with pytest.raises(UnitError):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "n"), [("64KiB", 65536), ("1MB", 1_000_000), ("512B", 512), ("1.5MiB", 1572864), ("2GiB", 2**31)]
)
def test_sizes(text, n):
    assert parse_bytes(text) == n


def test_no_size():
    with pytest.raises(UnitError):
        parse_bytes("64kb")


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0 ns"), (950, "950 ns"), (999.6, "1 us"), (12_345, "12.3 us"), (4_560_000, "4.56 ms"), (1.23e9, "1.23 s"),
     (-5_000, "-5 us"), (999.6e6, "1 s"), (5_000e9, "5000 s")],
)  # fmt: skip
def test_shown_times(ns, text):
    assert show_ns(ns) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [(512, "512 B"), (65536, "64 KiB"), (1572864, "1.5 MiB"), (2**31, "2 GiB"), (2**41, "2048 GiB")],
)
def test_shown_sizes(n, text):
    assert show_bytes(n) == text


@given(st.integers(0, 10**15))
def test_a_whole_number_of_ns_survives(ns):
    assert parse_duration(f"{ns}ns") == ns


@given(st.integers(0, 10**12))
def test_shown_times_read_back_within_half_a_percent(ns):
    assert parse_duration(show_ns(ns)) == pytest.approx(ns, rel=5.1e-3)
