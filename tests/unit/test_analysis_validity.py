import numpy as np
import pytest

from loadgen.analysis.summary import summarise
from loadgen.records import Outcome
from tests.support.runs import MS, S, build, phase, row, statistics, steady, window

WARM = phase("warm", measured=False, planned=0, duration_ns=S, load_end_ns=0, end_ns=0)


def found(tmp_path, rows, phases=None, **over):
    """Doubts by code, of a run that has a warm-up, so that nothing else is doubted."""
    if phases is None:
        phases = [phase(planned=len(rows)), WARM]
    summary = summarise(build(tmp_path / "run", rows, phases, **over))
    return {doubt["code"]: doubt for doubt in summary["doubts"]}, summary


def test_a_clean_run_has_no_doubt(tmp_path):
    doubts, summary = found(tmp_path, steady(1000))
    assert (doubts, summary["valid"]) == ({}, True)


def test_few_samples_are_flagged_with_n(tmp_path):
    assert "P99 is of 10 successes" in found(tmp_path / "a", steady(10))[0]["few_samples"]["text"]
    assert "P99.9 is of 100 successes" in found(tmp_path / "b", steady(100))[0]["few_samples"]["text"]


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome.HTTP_5XX, "failures"),
        (Outcome.TIMEOUT, "failures"),
        (Outcome.REJECTED, "rejected"),
        (Outcome.DROPPED, "dropped"),
    ],
)
def test_more_than_one_percent_without_an_answer_invalidates(tmp_path, outcome, code):
    for lost, valid in ((10, True), (11, False)):
        rows = steady(1000 - lost) + [row(i, MS, outcome=outcome) for i in range(lost)]
        doubts, summary = found(tmp_path / str(lost), rows)
        assert f"{lost} of 1000 requests" in doubts[code]["text"]
        assert (doubts[code]["invalidates"], summary["valid"]) == (not valid, valid)


def test_nothing_measured_is_not_a_success(tmp_path):
    doubts, summary = found(tmp_path / "a", [])
    assert (doubts.keys(), summary["valid"]) == ({"nothing_measured"}, False)
    doubts, _ = found(tmp_path / "b", [row(0, None, outcome=Outcome.CONNECT)] * 3)
    assert "none of 3 requests succeeded" in doubts["nothing_measured"]["text"]


def test_waits_at_the_cap_are_told_with_share_and_lag(tmp_path):
    rows = steady(900) + steady(100, lag=500 * MS)
    phases = [phase(planned=1000, cap_waits=100), WARM]
    doubts, summary = found(tmp_path, rows, phases, cap={"in_flight": 4, "when_full": "wait"})
    text = doubts["cap_reached"]["text"]
    assert "100 of 1000 arrivals (10%)" in text
    assert "cap of 4" in text
    assert "P99 of lag 500 ms" in text
    assert "late_sends" not in doubts
    assert summary["valid"]


def test_late_sends_without_a_cap_are_the_clients_own(tmp_path):
    assert (
        "P99 of lag 11 ms"
        in found(tmp_path / "a", steady(1000, service=S, lag=11 * MS))[0]["late_sends"]["text"]
    )
    assert "late_sends" in found(tmp_path / "b", steady(1000, service=10 * MS, lag=2 * MS))[0]
    assert "late_sends" not in found(tmp_path / "c", steady(1000, service=200_000, lag=90_000))[0]


def test_a_full_core_is_client_bound(tmp_path):
    doubts, summary = found(tmp_path, steady(1000), [phase(planned=1000, cpu_ns=9 * S), WARM])
    assert "90% of a core" in doubts["client_bound"]["text"]
    assert not summary["valid"]
    two = {"workers": 2}
    assert (
        "client_bound"
        not in found(tmp_path / "w", steady(1000), [phase(cpu_ns=9 * S, cpu_max_ns=5 * S), WARM], client=two)[
            0
        ]
    )


def test_requests_due_but_not_sent_in_time_are_client_bound(tmp_path):
    """50,000/s asked of a client that manages 40,000: the lag grows all along."""
    rows = [row(i * 20_000, MS, lag=i * 5_000) for i in range(5000)]
    phases = [phase(planned=5000, duration_ns=S // 10, load_end_ns=S // 10, end_ns=S), WARM]
    doubts, _ = found(tmp_path, rows, phases)
    assert "of 5000 requests due it had sent 4001" in doubts["client_bound"]["text"]


def test_a_loop_that_lags_is_client_bound(tmp_path):
    lag = {"n": 500, "p50": MS, "p99": 60 * MS, "max": 90 * MS}
    assert (
        "lag was 60 ms"
        in found(tmp_path, steady(1000), [phase(loop_lag_ns=lag), WARM])[0]["client_bound"]["text"]
    )


def test_a_slow_server_is_not_the_clients_fault(tmp_path):
    rows = [row(i * 10 * MS, 10 * MS + i * 5 * MS) for i in range(1000)]
    doubts, _ = found(tmp_path, rows, [phase(planned=1000, end_ns=16 * S), WARM])
    assert "client_bound" not in doubts
    assert doubts["not_sustained"]["text"].startswith("phase steady: 66.")


@pytest.mark.parametrize("loop", ["open", "closed"])
def test_drift_between_thirds(tmp_path, loop):
    rows = [row(i * 10 * MS, (30 if i < 400 else 10) * MS) for i in range(1000)]
    phases = [phase(loop=loop, users=4, planned=1000 if loop == "open" else None), WARM]
    text = found(tmp_path, rows, phases)[0]["drift"]["text"]
    assert "from 30 ms in the first third to 10 ms in the last" in text


def test_a_ramp_is_no_drift(tmp_path):
    due = (np.sqrt(np.arange(2000) / 2000) * 10 * S).astype(int).tolist()
    rows = [row(at, 10 * MS + at // 100) for at in due]
    assert "drift" not in found(tmp_path, rows)[0]


def test_warm_up_must_reach_the_concurrency(tmp_path):
    """Two warm-up requests at concurrency 4 leave two cold slots."""
    closed = phase(loop="closed", users=4, max_in_flight=4)
    doubts, _ = found(tmp_path / "a", steady(1000), [closed, WARM | {"max_in_flight": 2}])
    assert "4 requests were in flight, but only 2 during warm-up" in doubts["short_warmup"]["text"]
    assert "short_warmup" not in found(tmp_path / "b", steady(1000), [closed, WARM | {"max_in_flight": 4}])[0]
    assert "no warm-up phase" in found(tmp_path / "c", steady(1000), [closed])[0]["short_warmup"]["text"]
    by_chance = [phase(max_in_flight=11), WARM | {"max_in_flight": 9}]
    assert "short_warmup" not in found(tmp_path / "d", steady(1000), by_chance)[0]


def test_other_clients_move_the_counters(tmp_path):
    server = window(statistics({1: 0}), statistics({8: 200}))
    text = found(tmp_path, steady(1000), server=server)[0]["other_clients"]["text"]
    assert "counted 1600 requests while this run sent 1000" in text
    own = window(statistics({1: 0}), statistics({8: 125}))
    assert "other_clients" not in found(tmp_path / "b", steady(1000), server=own)[0]


def test_counters_that_went_backwards_give_no_figures(tmp_path):
    server = window(statistics({1: 5000}), statistics({1: 900}))
    doubts, summary = found(tmp_path, steady(1000), server=server)
    assert "model m" in doubts["counters_reset"]["text"]
    assert summary["server"]["mean_batch"] is None


def test_batching_that_does_not_happen_is_said(tmp_path):
    on = {"models": {"m": {"config": {"dynamic_batching": {}}}}}
    alone = window(statistics({1: 0}), statistics({1: 980, 2: 10}))
    text = found(tmp_path / "a", steady(1000), server=alone, facts=on)[0]["no_batching"]["text"]
    assert "mean batch was 1.01 items" in text
    assert "no_batching" not in found(tmp_path / "b", steady(1000), server=alone)[0]
    merged = window(statistics({1: 0}), statistics({8: 125}))
    assert "no_batching" not in found(tmp_path / "c", steady(1000), server=merged, facts=on)[0]
    assert "no_batching" in found(tmp_path / "d", steady(125, items=8), server=merged, facts=on)[0]


def test_doubts_found_while_running_come_first_and_once(tmp_path):
    told = {"code": "no_server_statistics", "text": "x", "hint": "y", "invalidates": True}
    _, summary = found(tmp_path, steady(10), doubts=[told, told])
    assert [d["code"] for d in summary["doubts"]] == ["no_server_statistics", "few_samples"]
    assert summary["valid"] is False
