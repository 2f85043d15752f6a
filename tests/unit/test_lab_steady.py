"""Warm until steady, on windows that are given: their medians come from run folders of a scripted model."""

import pytest

from loadgen.lab import steady
from loadgen.lab.steady import is_steady, warm


@pytest.fixture
def windows(monkeypatch, tmp_path):
    """Windows whose median service times, in ms, are given."""

    def of(medians, interrupted_at=None):
        sent = []

        def window(name):
            sent.append(name)
            folder = tmp_path / name
            folder.mkdir()
            return folder, len(sent) == interrupted_at

        def told(folder):
            value = medians[min(int(folder.name), len(medians)) - 1]
            return {"total": {"service_ns": {"p50": value and value * 1e6}}}

        monkeypatch.setattr(steady, "summarise", told)
        return window, sent

    return of


def test_a_slow_warm_up_is_waited_for(windows, tmp_path):
    """Field case 23: the service time falls from 1 s to 50 ms over many requests; nothing before that is measured."""
    falling = [1000 * 0.8**n for n in range(14)] + [50] * 10
    window, sent = windows(falling)
    told = warm(window, 10**12)
    assert told["steady"]
    assert told["warm_p50_ns"][-1] == pytest.approx(50e6, rel=0.1)
    assert len(sent) == 16
    assert not list(tmp_path.iterdir())  # windows are thrown away


def test_a_warm_up_over_minutes_is_no_steady_state(windows):
    """Field case 23: from 1/s up to 21/s in four minutes, 1.3 % a second; no three windows are far apart."""
    falling = [1000 / 21 ** (second / 240) for second in range(240)] + [1000 / 21] * 10
    window, sent = windows(falling)
    told = warm(window, 10**12)
    assert told["steady"]
    assert len(sent) >= 240
    assert told["warm_p50_ns"][-1] == pytest.approx(1000 / 21 * 1e6, rel=0.03)


def test_what_never_settles_is_told(windows):
    window, sent = windows([100, 200] * 20)
    clock = iter(range(0, 10**12, 10**9))
    told = warm(window, 6 * 10**9, now_ns=lambda: next(clock))
    assert not told["steady"]
    assert 3 <= len(sent) <= 10


def test_interrupted_and_nothing_succeeded(windows):
    assert warm(windows([50] * 9, interrupted_at=2)[0], 10**12) is None
    with pytest.raises(Exception, match="nothing succeeded while warming"):
        warm(windows([None])[0], 10**12)


def test_steady_is_three_alike():
    assert not is_steady([50, 50])
    assert is_steady([90, 50, 52, 54])
    assert not is_steady([90, 80, 70])
    assert not is_steady([53, 52, 51])  # each faster than the one before
    assert is_steady([51, 52, 53])
    assert is_steady([50.5, 50.2, 50])  # by so little that chance does it
