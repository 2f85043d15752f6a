"""Every profile we ship plans enough requests to pass its own objectives, if all are answered at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis import intervals
from loadgen.analysis.slo import requests_needed, verdict
from loadgen.analysis.summary import summarise
from loadgen.analysis.unwise import unwise
from loadgen.planstory import describe_plan
from loadgen.schedule import plan
from loadgen.traffic.objective import RATES, parse_objective
from loadgen.traffic.profile import load_profile
from loadgen.workload.http_answer import judge_of
from tests.support.cli import ROOT
from tests.support.runs import MS, S, build, phase, row

SHIPPED = [*sorted((ROOT / "traffic_profiles").glob("*.yaml")), ROOT / "loadgen" / "lab" / "demo.yaml"]
ANSWER_NS = 50 * MS  # of a timed closed loop's requests


def _due(planned):
    """When the requests of a phase are due, in ns of the phase, and their kinds."""
    if planned.due_ns is not None:
        return planned.due_ns.tolist(), planned.kind.tolist()
    cycle = ANSWER_NS + planned.think_ns
    n = planned.requests or planned.users * (planned.duration_ns // cycle)
    due = [place // planned.users * cycle for place in range(n)]
    return due, [int(planned.kind[place % len(planned.kind)]) for place in range(n)]


def perfect(folder, profile, whole):
    """A run of a plan in which everything was answered in 50 ms."""
    rows, phases, begin = [], [], 0
    for place, planned in enumerate(whole.phases):
        due, kinds = _due(planned)
        rows += [
            row(begin + at, ANSWER_NS, phase=place, kind=kind) for at, kind in zip(due, kinds, strict=True)
        ]
        span = planned.duration_ns or (max(due, default=0) + S)
        phases.append(
            phase(planned.name, loop=planned.loop, measured=planned.measured, start_ns=begin, duration_ns=span,
                  load_end_ns=begin + span, end_ns=begin + span + S, planned=len(due) if planned.loop == "open" else None)
        )  # fmt: skip
        begin += span + S
    kinds = [{"name": name, "model": "m", "version": "", "batch": 1} for name in profile.kinds]
    return build(folder, rows, phases, kinds=kinds, objectives=[o.text for o in profile.objectives])


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_perfect_server_passes(tmp_path, path):
    profile = load_profile(path)
    judged = summarise(perfect(tmp_path / "run", profile, plan(profile)))["slo"]
    verdicts = {
        one["objective"]: one["verdict"] for one in judged if one["metric"] not in (*RATES, "mean batch")
    }
    assert verdicts
    assert set(verdicts.values()) == {"pass"}, verdicts


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_lint_has_nothing_that_a_plan_cannot_decide(path, seed):
    profile = load_profile(path)
    planned = plan(profile, seed)
    assert not [note for note in unwise(profile, planned, describe_plan(planned)) if "cannot pass" in note]


def _passes(objective, n):
    """Whether `n` requests that are all good pass, by the intervals themselves."""
    if objective.quantile is not None:
        return verdict(objective, intervals.quantile([np.full(n, 1)], objective.quantile)) == "pass"
    bad_are_counted = objective.metric != "goodput"
    return verdict(objective, intervals.share([np.full(n, not bad_are_counted)])) == "pass"


@given(
    st.sampled_from(["latency p{} < 1s", "failure rate < {}%", "rejection rate <= {}%", "goodput > {}%"]),
    st.integers(1, 999).filter(
        lambda tenths: tenths not in (25, 975)
    ),  # there one alone is at the bound itself
)
def test_fewer_than_the_number_needed_never_pass_and_three_times_as_many_good_ones_do(text, tenths):
    objective = parse_objective(text.format(tenths / 10))
    need = requests_needed(objective)
    assert _passes(objective, 3 * int(need))
    assert need == 1 or not _passes(objective, int(need) - 1)


@pytest.mark.parametrize(
    ("text", "need"),
    [
        ("latency p99 < 1s", 500),
        ("latency p50 < 1s", 20),
        ("latency p99.9 < 1s", 5000),
        ("failure rate < 1%", 368),
        ("failure rate < 0.5%", 736),
        ("rejection rate < 5%", 72),
        ("goodput > 95%", 72),
        ("latency max < 1s", 1),
        ("latency mean < 1s", 40),
        ("requests/s > 5", 1),
        ("failure rate < 0%", float("inf")),
        ("goodput >= 100%", float("inf")),
    ],
)
def test_numbers_needed(text, need):
    assert requests_needed(parse_objective(text)) == need


@pytest.mark.parametrize(
    ("objective", "n", "need"),
    [
        ("failure rate < 1%", 60, 368),
        ("goodput > 95%", 60, 72),
        ("latency p99 < 1s", 60, 500),
        ("failure rate < 1%", 368, 0),
    ],
)
def test_a_verdict_says_how_many_it_takes(tmp_path, objective, n, need):
    rows = [row(i * 10 * MS, 5 * MS) for i in range(n)]
    judged = summarise(build(tmp_path / "run", rows, objectives=["latency p50 < 1s", objective]))["slo"][1]
    assert judged["verdict"] == ("inconclusive" if need else "pass")
    assert (judged["reason"], judged["needed"], judged["n"]) == (
        ("more_requests", need, n) if need else (None, None, n)
    )
    assert (judged["more_s"] or 0) >= (10 * (need / n - 1) * 0.9 if need else 0)  # of a load of 10 s


def test_the_sweep_that_we_ship_has_enough_in_its_blocks():
    from loadgen.traffic.sweep import load_sweep

    sweep = load_sweep(ROOT / "traffic_profiles" / "sweeps" / "batching.yaml")
    open_loads = [load for load in sweep.loads if load.rate_per_s is not None]
    assert open_loads
    for load in open_loads:
        judged = load.rate_per_s * sweep.block_ns / 1e9 * sweep.repeats
        for text in sweep.objectives:
            assert judged >= requests_needed(parse_objective(text)), text


@pytest.mark.parametrize(
    ("body", "good"),
    [
        (b'{\n  "tabby": 0.4096,\n  "tiger_cat": 0.3467,\n  "lynx": 1.2e-05\n}', True),
        (b'{"code": 503, "type": "InternalServerException", "message": "Prediction failed"}', False),
        (b'{"error": "out of memory"}', False),
        (b"{}", False),
        (b"<html>404</html>", False),
    ],
)
def test_the_torchserve_profile_knows_an_answer_from_an_error_with_status_200(body, good):
    [kind] = load_profile(ROOT / "traffic_profiles" / "torchserve.yaml").kinds.values()
    judge = judge_of(kind.http.success)
    assert (judge(200, {}, body) is None) == good
