"""How many servers: by hand, with intervals, in simulated searches, and on the command line."""

import json

import numpy as np
import pytest

from loadgen.analysis.forecast import Unit, read_forecast
from loadgen.analysis.scaling import throughput
from loadgen.analysis.sizing import (
    Capacity,
    Caveat,
    Counted,
    Law,
    Price,
    parse_capacity,
    read_capacity_file,
    size,
)
from loadgen.records import LoadgenError, NotMeasuredError
from loadgen.report.sizing import caveats, headline, lines
from tests.support.cli import loadgen
from tests.support.runs import build, steady

M = 60 * 10**9


def sized(capacity, forecast, **over):
    return size([parse_capacity(capacity)], read_forecast(forecast, M), **over)


def test_replicas_headroom_and_a_spare_by_hand():
    found = sized("212/s (205 to 219)", "900/s", headroom=0.2, spare=1)
    # 900 / 0.8 = 1125: by 205 5.49, by 212 5.31, by 219 5.14, so 6, and one to lose
    assert (found.servers.low, found.servers.value, found.servers.high, found.recommended) == (7, 7, 7, 7)
    assert found.used_at_peak == pytest.approx(900 / (6 * 205))
    assert found.caveats == (Caveat.PROPORTIONAL,)
    assert headline(found) == "7 replicas for 900/s with 1 of them lost and 20 % headroom"


def test_the_interval_of_the_capacity_is_that_of_the_number():
    found = sized("100/s (80 to 125)", "1000/s")
    assert (found.servers.low, found.servers.value, found.servers.high) == (8, 10, 13)
    assert found.recommended == 13
    assert lines(found)[0].startswith("needed: 10 (8 to 13); recommended is the upper end")


def test_a_range_of_the_forecast_is_carried_too():
    found = sized("100/s (90 to 110)", "800/s to 1000/s")
    assert (found.servers.low, found.servers.value, found.servers.high) == (
        8,
        9,
        12,
    )  # 800 / 110, 900 / 100, 1000 / 90


def test_a_load_that_fits_exactly_needs_no_server_more():
    assert sized("100/s", "300/s").recommended == 3
    assert sized("0.1/s", "0.3/s").recommended == 3
    assert sized("100/s", "1/s", spare=1).recommended == 2


def test_users():
    found = sized("14 users (13 to 15)", "40 users")
    assert (found.servers.low, found.recommended, found.cost) == (3, 4, None)
    with pytest.raises(LoadgenError, match="a capacity in users, the forecast is in requests/s"):
        sized("14 users", "900/s")


def test_cost_per_million_requests():
    found = sized("100/s (95 to 105)", "150/s to 250/s", price=Price(3.6, "EUR"))
    assert found.recommended == 3
    assert found.cost.per_hour == pytest.approx(10.8)
    # 3 servers at 3.6 an hour: 0.003 a second, over 200/s (150 to 250)
    cost = found.cost.per_million
    assert (cost.value, cost.low, cost.high) == (pytest.approx(15), pytest.approx(12), pytest.approx(20))
    assert lines(found)[-1] == (
        "cost: 10.8 EUR an hour, 15 (12 to 20) EUR per million requests at the forecast's mean rate"
    )


def test_the_recommendation_suffices_in_95_percent_of_simulated_searches():
    rng = np.random.default_rng(3)
    enough, spent, runs = 0, 0.0, 2000
    for truth, error in zip(rng.uniform(50, 500, runs), rng.uniform(0.01, 0.05, runs), strict=True):
        seen = truth * np.exp(error * rng.standard_normal())
        held = Capacity("s", Unit.RATE, 1, seen, seen * np.exp(-1.96 * error), seen * np.exp(1.96 * error))
        found = size([held], read_forecast("9000/s", M), headroom=0.1)
        needed = np.ceil(9000 / 0.9 / truth)
        enough += found.recommended >= needed
        spent += found.recommended / needed / runs
        assert found.servers.low <= found.servers.value <= found.servers.high
    assert enough / runs >= 0.95
    assert spent < 1.10  # and it does not buy the certainty with servers


def test_the_law_of_several_counts_suffices_too():
    rng, law, error = np.random.default_rng(4), np.array([[200.0, 0.03, 0.0005]]), 0.015
    counts, runs, enough = (1, 2, 4, 8, 16), 60, 0
    needed = next(n for n in range(1, 200) if throughput(n, law)[0] >= 2000)
    for _ in range(runs):
        seen = throughput(np.array(counts), law) * (1 + error * rng.standard_normal(5))
        held = [
            Capacity("s", Unit.RATE, n, v, v * (1 - 1.96 * error), v * (1 + 1.96 * error))
            for n, v in zip(counts, seen, strict=True)
        ]
        found = size(held, read_forecast("2000/s", M))
        assert found.law is Law.USL
        enough += found.recommended is not None and found.recommended >= needed
    assert enough >= 0.95 * runs - 2


def test_a_law_that_has_a_top_says_that_no_number_is_enough():
    counts, law = np.array([1, 2, 4, 8]), np.array([100.0, 0.1, 0.02])
    held = [
        Capacity("s", Unit.RATE, int(n), v, v * 0.98, v * 1.02)
        for n, v in zip(counts, throughput(counts, law), strict=True)
    ]
    found = size(held, read_forecast("5000/s", M), price=Price(1))
    assert (found.recommended, found.servers.value, found.cost) == (None, None, None)
    assert Caveat.UNREACHABLE in found.caveats
    assert headline(found) == "no number of replicas is sure to be enough for 5000/s"


def test_three_counts_scale_from_the_largest():
    held = [
        parse_capacity(text, n)
        for n, text in ((1, "100/s (98 to 102)"), (2, "190/s (186 to 194)"), (3, "270/s (264 to 276)"))
    ]
    found = size(held, read_forecast("850/s", M))
    assert (found.law, found.each.value, found.recommended) == (Law.PROPORTIONAL, 90, 10)  # 850 / 88 = 9.7
    assert Caveat.PROPORTIONAL in found.caveats
    assert "load balancing loses something" in caveats(found)[0]


def result(folder, answer="found", value=212, low=205, high=219, unit="requests/s", probes=()):
    folder.mkdir(parents=True, exist_ok=True)
    capacity = {"value": value, "low": low, "high": high, "unit": unit}
    held = {
        "answer": answer,
        "capacity": capacity,
        "objectives": ["latency p99 < 50ms"],
        "target": "http://x",
        "probes": list(probes),
    }
    (folder / "result.json").write_text(json.dumps(held))
    return folder


def test_a_capacity_is_read_from_the_folder_of_a_search(tmp_path):
    found = read_capacity_file(result(tmp_path))
    assert (found.unit, found.count, found.value, found.low, found.high) == (Unit.RATE, 1, 212, 205, 219)
    assert read_capacity_file(tmp_path / "result.json").value == 212


def test_at_least_is_a_lower_bound_and_below_is_nothing_to_size_with(tmp_path):
    held = read_capacity_file(result(tmp_path, "at_least", 300, 300, None))
    found = size([held], read_forecast("900/s", M))
    assert (found.servers.low, found.recommended) == (None, 3)
    assert Caveat.LOWER_BOUND in found.caveats
    with pytest.raises(NotMeasuredError, match=r"no lower end of its capacity \(below\)"):
        read_capacity_file(result(tmp_path, "below", None, None, 5))


def test_the_command_line(tmp_path):
    folder = result(tmp_path / "c")
    found = loadgen("size", folder, "--forecast", "900/s", "--headroom", "20%", "--spare", "1", "--json")
    assert (found.code, found.json["recommended"], found.json["law"]) == (0, 7, "proportional")
    shown = loadgen("size", folder, "--forecast", "900/s", "--price", "1.20 USD")
    assert shown.code == 0
    assert "5 replicas for 900/s" in shown.out
    assert "6 USD an hour, 1.85 USD per million requests" in shown.out


def test_instances_are_read_from_the_configuration_of_the_first_probe(tmp_path):
    folders = []
    for n, v in ((1, 100), (2, 190), (3, 270), (4, 340)):
        config = {"instance_group": [{"count": n}]}
        folder = tmp_path / f"i{n}"
        build(folder / "probes" / "0", steady(40), facts={"models": {"m": {"config": config}}})
        folders.append(result(folder, value=v, low=v * 0.98, high=v * 1.02, probes=[{"folder": "probes/0"}]))
    found = loadgen("size", *folders, "--forecast", "300/s", "--json").json
    assert [one["count"] for one in found["capacities"]] == [1, 2, 3, 4]
    assert (found["counted"], found["law"]) == (Counted.INSTANCES, Law.USL)
    assert found["recommended"] == 4
    assert found["usl"]["rate"]["value"] == pytest.approx(100, rel=0.02)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--forecast", "900/s"], 2, "no capacity is given"),
        (["--capacity", "212", "--forecast", "900/s"], 2, "cannot be read"),
        (
            ["--capacity", "212/s (220 to 230)", "--forecast", "900/s"],
            2,
            "an interval that holds the capacity",
        ),
        (["--capacity", "212/s", "--forecast", "900/s", "--headroom", "100%"], 2, "0% to less than 100%"),
        (
            ["--capacity", "212/s", "--forecast", "900/s", "--price", "cheap"],
            2,
            "a number and, if you like, a currency",
        ),
        (["--capacity", "212/s", "--forecast", "900/s", "--peak-over", "0s"], 2, "above 0"),
        (
            ["--capacity", "2: 212/s", "--capacity", "2: 99/s", "--forecast", "900/s"],
            2,
            "a second capacity of 2",
        ),
        (["nowhere", "--forecast", "900/s"], 2, "there is no such file"),
    ],
)
def test_refusals_are_one_line(options, code, said):
    found = loadgen("size", *options)
    assert found.code == code
    assert len(found.error_lines) == 1
    assert said in found.err
