"""Replicas for a forecast, with the uncertainty of the capacity."""

import numpy as np
import pytest

from loadgen.analysis.sizing import Forecast, Measured, fit_usl, size, usl
from loadgen.records import LoadgenError
from tests.support.cli import loadgen


def test_replicas_come_from_the_low_end_with_headroom_and_spares():
    found = size([Measured(212, 205, 219)], Forecast(900, 900), headroom=0.2, spare=1, price_per_hour=1.2)
    assert (found.replicas, found.likely, found.least) == (
        7,
        7,
        6,
    )  # 1080 / 205 = 5.3, / 212 = 5.1, / 219 = 4.9
    assert found.cost_per_hour == pytest.approx(8.4)
    assert found.cost_per_million == pytest.approx(8.4 / (900 * 3600) * 1e6)
    assert found.proportional


def test_a_range_of_forecasts_widens_the_range_of_replicas():
    found = size([Measured(100, 95, None)], Forecast(800, 1000))
    assert (found.replicas, found.likely, found.least) == (11, 9, None)


def test_a_whole_number_of_replicas_is_not_rounded_up():
    assert size([Measured(100, 100, 100)], Forecast(300, 300)).replicas == 3


def test_what_is_recommended_suffices_in_95_of_100_searches():
    """The estimate of a capacity errs by its own standard error; its interval is what `capacity` prints."""
    rng, true, enough = np.random.default_rng(1), 200.0, 0
    for _ in range(1000):
        estimate, error = rng.normal(true, 4), 4.0
        found = size(
            [Measured(estimate, estimate - 1.96 * error, estimate + 1.96 * error)], Forecast(5000, 5000)
        )
        enough += found.replicas * true >= 5000
    assert enough >= 950


def test_a_capacity_without_a_low_end_sizes_nothing():
    with pytest.raises(LoadgenError, match="no low end"):
        size([Measured(100, None, 120)], Forecast(300, 300))


def test_the_law_of_several_instance_counts_is_found_again():
    rng, truth, held = np.random.default_rng(2), (100.0, 0.03, 0.0005), 0
    n = np.array([1, 2, 4, 8, 16])
    for _ in range(12):
        value = usl(n, *truth) * rng.normal(1, 0.01, n.size)
        law, _ = fit_usl([Measured(v, 0.98 * v, 1.02 * v, int(i)) for v, i in zip(value, n, strict=True)])
        held += law.rate_interval[0] <= truth[0] <= law.rate_interval[1]
        assert law.serial == pytest.approx(truth[1], abs=0.02)
    assert held >= 9


def test_more_replicas_than_the_law_carries_are_refused():
    n = np.array([1, 2, 4, 8, 16])
    measured = [
        Measured(v, 0.98 * v, 1.02 * v, int(i)) for v, i in zip(usl(n, 100, 0.1, 0.02), n, strict=True)
    ]
    with pytest.raises(LoadgenError, match="no number of replicas"):
        size(measured, Forecast(5000, 5000))


def test_the_command_line_takes_a_capacity_and_a_profile(tmp_path):
    profile = tmp_path / "p.yaml"
    profile.write_text(
        "kinds: {k: {model: m, length: 4}}\nphases: [{name: a, open: {arrivals: uniform, rate: [{duration: 4s, at: 50/s}]}}]\n"
    )
    answer = loadgen("size", "--capacity", "20/s (19 to 21)", "--for", profile, "--peak-over", "1s", "--json")
    assert (answer.code, answer.json["replicas"], answer.json["least"]) == (0, 3, 3)
    said = loadgen("size", "--capacity", "212/s (205 to 219)", "--for", "900/s", "--spare", 1, "--price", 1.2)
    assert said.out.startswith(
        "6 replicas for 900/s with 1 replica lost (6 to 6; 6 at the measured capacity)"
    )
    assert "warning: replicas are taken to add up" in said.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--for is needed"),
        (["--for", "900/s"], "no capacity"),
        (["--for", "many", "--capacity", "10/s"], "--for many"),
        (["--for", "9/s", "--capacity", "10/s (11 to 12)"], "must hold the value"),
        (["--for", "9/s", "--instances", "x:y"], "write N:FOLDER"),
        (["--for", "9/s", "--capacity", "10/s", "--headroom", "a lot"], "--headroom"),
        (["nosuch", "--for", "9/s"], "nosuch"),
    ],
)
def test_what_cannot_be_sized_is_said_in_a_line(options, said):
    answer = loadgen("size", *options)
    assert answer.code == 2
    assert len(answer.error_lines) == 1
    assert said in answer.err
