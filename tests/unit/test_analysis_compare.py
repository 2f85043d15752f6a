"""Whether two runs differ, on runs whose difference is known."""

import json
import math

import numpy as np
import pytest

from loadgen.analysis import intervals
from loadgen.analysis.comparability import side_of, side_of_runs
from loadgen.analysis.compare import (
    Basis,
    Change,
    compare,
    correlation,
    effect_in_rounds,
    effect_of,
    holm,
    p_value,
)
from loadgen.analysis.intervals import Estimate
from loadgen.records import LoadgenError, Outcome
from loadgen.traffic.objective import parse_figure
from tests.bench.compare_calibration import flags, flags_in_rounds
from tests.support.runs import MS, S, build, phase, row, statistics, window

PROFILE = {"name": "test", "text": "kinds: {short: {model: m}}\n", "sha256": "0" * 64}
P50 = [parse_figure("latency p50")]


def side(path, services, *, span=10 * S, **over):
    """A run with these service times in ms, one after the other."""
    rows = [row(i * span // len(services), round(ms * MS)) for i, ms in enumerate(services)]
    return side_of(build(path, over.pop("rows", rows), **({"profile": PROFILE} | over)))


def lognormal(seed, n=4000, scale=10.0):
    return scale * np.random.default_rng(seed).lognormal(0, 0.5, n)


def changes(*sides, figures=(), **over):
    """The change of each figure of the only pair, by its text."""
    (pair,) = compare(sides, figures, **over).pairs
    return {str(one.figure): one.change for one in pair.figures}


def test_equal_sides(tmp_path):
    found = changes(side(tmp_path / "a", lognormal(1)), side(tmp_path / "b", lognormal(2), seed=8), worth=0.1)
    assert found == {
        "latency p50": Change.NO_DIFFERENCE, "latency p90": Change.NO_DIFFERENCE, "latency p99": Change.UNDECIDED,
        "latency mean": Change.NO_DIFFERENCE, "service p50": Change.NO_DIFFERENCE, "requests/s": Change.NO_DIFFERENCE,
        "failure rate": Change.NO_DIFFERENCE}  # fmt: skip


def test_a_shift_by_a_tenth_is_seen_with_its_sign_and_size(tmp_path):
    a, b = side(tmp_path / "a", lognormal(1)), side(tmp_path / "b", lognormal(2, scale=11), seed=8)
    one = compare([a, b], P50).pairs[0].figures[0]
    assert one.change is Change.WORSE
    assert one.effect.ratio.low < 1.1 < one.effect.ratio.high
    assert one.effect.difference.low < 1 * MS < one.effect.difference.high
    assert one.effect.basis is Basis.REQUESTS  # other seeds: other arrivals
    assert changes(b, a, figures=P50) == {"latency p50": Change.BETTER}
    assert changes(a, b, figures=P50, worth=0.2) == {"latency p50": Change.SMALL}


def test_the_same_plan_is_compared_in_pairs(tmp_path):
    """What is 4 % slower is seen where the requests are the same, and only there."""
    times = lognormal(1, 1000)
    a = side(tmp_path / "a", times)
    b = side(tmp_path / "b", times * 1.04)
    one = compare([a, b], P50).pairs[0].figures[0]
    assert (one.effect.basis, one.change) == (Basis.PAIRED_REQUESTS, Change.WORSE)
    assert one.effect.correlation > 0.9
    other = compare([a, side(tmp_path / "c", times * 1.04, seed=8)], P50).pairs[0].figures[0]
    assert (other.effect.basis, other.change) == (Basis.REQUESTS, Change.UNDECIDED)


def test_what_would_decide_is_told(tmp_path):
    """Of a shift by 4 % with an interval of about 6 % to either side: twice as much data."""
    times = lognormal(1, 1000)
    a, b = side(tmp_path / "a", times), side(tmp_path / "b", times * 1.04, seed=8)
    one = compare([a, b], P50).pairs[0].figures[0]
    half = math.log(one.effect.ratio.high / one.effect.ratio.low) / 2
    assert one.more == pytest.approx((half / math.log(1.04)) ** 2, rel=0.05)
    assert 1.2 < one.more < 10


def test_failures_and_what_never_ends(tmp_path):
    rows = [row(i * 5 * MS, outcome=Outcome.HTTP_5XX if i % 20 == 0 else Outcome.OK) for i in range(2000)]
    a = side(tmp_path / "a", [10.0] * 2000)
    b = side(tmp_path / "b", [], rows=rows)
    figures = [parse_figure(one) for one in ("failure rate", "latency p50", "latency p99", "latency mean")]
    found = changes(a, b, figures=figures)
    assert found["failure rate"] is Change.WORSE
    assert found["latency p50"] is Change.NO_DIFFERENCE
    assert found["latency p99"] is Change.WORSE  # 5 % never succeeded: its whole interval is infinite
    assert changes(b, a, figures=figures)["latency p99"] is Change.BETTER
    assert changes(b, side(tmp_path / "c", [], rows=rows), figures=figures)["latency p99"] is Change.UNDECIDED


def test_facts_are_shown_and_not_judged(tmp_path):
    servers = [window([statistics({1: 0})], [statistics({1: 0, 4: n})]) for n in (100, 200)]
    a, b = (side(tmp_path / str(i), [10.0] * 400, server=server) for i, server in enumerate(servers))
    found = changes(a, b, figures=[parse_figure("mean batch"), parse_figure("latency max")])
    assert found == {"mean batch": Change.NOT_JUDGED, "latency max": Change.NO_DIFFERENCE}


def test_what_is_not_comparable_is_refused(tmp_path):
    a = side(tmp_path / "a", lognormal(1))
    b = side(tmp_path / "b", lognormal(2), profile=PROFILE | {"text": "kinds: {other: {model: m}}\n"})
    (pair,) = compare([a, b], P50).pairs
    assert pair.refused
    assert pair.figures == ()
    (forced,) = compare([a, b], P50, force=True).pairs
    assert len(forced.figures) == 1
    assert not compare([a, b], P50, expected=frozenset({"profile"})).pairs[0].refused


def test_rounds_take_the_drift_out(tmp_path):
    """Every round is slower than the one before by more than the sides differ."""
    sides = []
    for name, scale in (("a", 10), ("b", 11)):
        paths = []
        for number in range(4):
            times = lognormal(10 * number + len(name) + scale, 500, scale * 1.3**number)
            rows = [row(i * 20 * MS, round(ms * MS)) for i, ms in enumerate(times)]
            paths.append(build(tmp_path / f"{name}{number}", rows, seed=number, profile=PROFILE))
        sides.append(side_of_runs(paths, tmp_path, name))
    one = compare(sides, P50, in_rounds=True).pairs[0].figures[0]
    assert one.change is Change.WORSE
    assert one.effect.ratio.value == pytest.approx(1.1, rel=0.06)
    assert compare(sides, P50).pairs[0].figures[0].change is Change.UNDECIDED


def exact(value):
    return Estimate(value, value, value, 100)


def test_an_interval_of_rounds_is_that_of_paired_differences():
    """Of the logarithms 0.1, 0.2, 0.3: mean 0.2, standard error 0.1 / sqrt(3), t of two degrees 4.303."""
    a, b = [exact(1.0)] * 3, [exact(math.exp(x)) for x in (0.1, 0.2, 0.3)]
    found = effect_in_rounds(a, b, [effect_of(x, y) for x, y in zip(a, b, strict=True)])
    assert found.basis is Basis.ROUNDS
    assert math.log(found.ratio.value) == pytest.approx(0.2)
    assert math.log(found.ratio.high) == pytest.approx(0.2 + 4.3027 * 0.1 / math.sqrt(3), rel=1e-4)
    assert found.p_ratio == pytest.approx(0.0742, abs=1e-4)  # t = 3.464
    assert effect_in_rounds([exact(1.0), exact(math.inf)], [exact(1.0)] * 2, []) is None


def test_p_values_agree_with_their_intervals():
    assert p_value(Estimate(1.0, 0.0, 2.0, 100)) == pytest.approx(0.05, abs=1e-6)
    assert p_value(Estimate(-1.0, -2.0, -0.5, 100)) == pytest.approx(0.0001, abs=1e-4)
    assert p_value(Estimate(1.0, None, 2.0, 100)) == 1


def test_holm():
    """The example of Wikipedia's article, by hand: 0.01, 0.04, 0.03, 0.005 become 0.03, 0.06, 0.06, 0.02."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


def test_a_correlation_is_none_where_nothing_is_shared():
    rng = np.random.default_rng(4)
    a, b = rng.random(4000), rng.random(4000)
    assert correlation(a, b) < 0.35
    assert correlation(a, a + 0.1 * b) > 0.9
    assert correlation(a, a[:-1]) == 0
    assert correlation(a[:100], a[:100]) == 0


def test_paired_intervals_are_narrower_by_the_covariance():
    rng = np.random.default_rng(5)
    a, b = (intervals.quantile([rng.exponential(1, 5000)], 0.5) for _ in range(2))
    free, half = effect_of(a, b), effect_of(a, b, 0.75)
    assert math.log(half.ratio.high / half.ratio.low) == pytest.approx(
        0.5 * math.log(free.ratio.high / free.ratio.low), rel=0.05
    )
    assert half.difference.high - half.difference.low == pytest.approx(
        0.5 * (free.difference.high - free.difference.low), rel=0.05
    )


def test_few_and_none(tmp_path):
    none = side(tmp_path / "a", [], rows=[], phases=[phase()])
    one = side(tmp_path / "b", [10.0])
    found = compare([none, one], force=True)
    assert {row.change for row in found.pairs[0].figures} <= {
        Change.UNDECIDED,
        Change.NOT_JUDGED,
        Change.NO_DIFFERENCE,
    }
    json.dumps(found.json(), allow_nan=False)


def test_too_few_requests_are_undecided_and_no_facts(tmp_path):
    a, b = side(tmp_path / "a", [10.0] * 10), side(tmp_path / "b", [20.0] * 10, seed=8)
    assert changes(a, b, figures=P50) == {"latency p50": Change.UNDECIDED}


def test_json_is_typed(tmp_path):
    a, b = side(tmp_path / "a", lognormal(1)), side(tmp_path / "b", lognormal(2, scale=11), seed=8)
    told = json.loads(json.dumps(compare([a, b], P50).json(), allow_nan=False))
    (pair,) = told["pairs"]
    assert pair["figures"][0]["figure"] == "latency p50"
    assert pair["figures"][0]["change"] == "worse"
    assert [one["aspect"] for one in pair["differences"]] == ["seed"]
    assert len(pair["curve"]) == 24


def test_goodput_of_other_bounds_is_refused(tmp_path):
    a = side(tmp_path / "a", [10.0] * 100, objectives=["latency p99 < 20ms"])
    b = side(tmp_path / "b", [10.0] * 100, objectives=["latency p99 < 30ms"])
    with pytest.raises(LoadgenError, match="different objectives"):
        compare([a, b], [parse_figure("goodput")])


@pytest.mark.parametrize("shared", [None, 0.9])
def test_equal_sides_are_rarely_called_different(shared):
    law = "M/M/1, load 0.5" if shared is None else 0.5
    rng = np.random.default_rng(6)
    assert flags(law, 2000, 80, 0.0, rng, same_requests=shared)[0] <= 0.1


def test_a_shift_is_found_in_a_queue_that_got_the_same_requests():
    assert flags(0.5, 5000, 40, 0.1, np.random.default_rng(7), same_requests=0.9)[0] >= 0.9


@pytest.mark.parametrize("spread", [0.0, 0.05])
def test_equal_sides_in_rounds_are_rarely_called_different(spread):
    rng = np.random.default_rng(8)
    assert flags_in_rounds("independent, lognormal", 500, 80, 0.0, rng, spread=spread) <= 0.1
