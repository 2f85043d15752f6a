import re

import numpy as np
import pytest

from loadgen.analysis.conclusion import exit_code
from loadgen.analysis.summary import summarise
from loadgen.exits import ExitCode
from loadgen.records import Outcome
from tests.support.runs import MS, S, beat, build, phase, row, running, statistics, steady, window

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
    assert "few_samples" not in found(tmp_path / "b", steady(100))[0]


@pytest.mark.parametrize(
    ("objective", "n", "text"),
    [
        ("latency p99.9 < 1s", 999, "P99.9 is of 999 successes: fewer than 1000,"),
        ("latency p999 < 1s", 1000, None),
        ("latency p99.5 < 1s", 199, "P99.5 is of 199 successes: fewer than 200,"),
        ("latency p99.5 < 1s", 200, None),
        ("short: lag p99.99 < 1s", 1000, "P99.99 of short is of 1000 successes: fewer than 10000,"),
        ("latency p99 < 1s", 100, None),
        ("latency max < 1s", 100, None),
        ("failure rate < 1%", 100, None),
        ("latency p99.9 < 1s", 40, "P99 is of 40 successes: fewer than 100,"),
    ],
)
def test_a_quantile_that_the_sample_cannot_give_is_told_where_an_objective_asks_for_it(
    tmp_path, objective, n, text
):
    for name, over in (("own", {"objectives": [objective]}), ("other", {})):
        build(tmp_path / name, steady(n), [phase(planned=n), WARM], **over)
        asked = None if over else [objective]
        doubts = [d for d in summarise(tmp_path / name, asked)["doubts"] if d["code"] == "few_samples"]
        assert [d["text"].partition(" so ")[0] for d in doubts] == ([] if text is None else [text])


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


def test_waits_do_not_hide_the_clients_own_delay(tmp_path):
    rows = steady(500, lag=20 * MS) + steady(490) + steady(10, lag=500 * MS)
    doubts, _ = found(tmp_path, rows, [phase(planned=1000, cap_waits=10), WARM])
    assert "P99 of lag of those that waited for nothing 20 ms" in doubts["late_sends"]["text"]
    assert "cap_reached" in doubts


def test_waits_for_a_connection_are_the_servers(tmp_path):
    """A full accept queue: 250 of 1000 waited up to 2.5 s; the client was on time for all others."""
    rows = steady(750) + [row(3 * S + i * 10 * MS, 5 * MS, 2500 * MS - i * 10 * MS) for i in range(250)]
    doubts, summary = found(tmp_path / "a", rows, [phase(planned=1000, conn_waits=250), WARM])
    assert "250 of 1000 requests waited for a connection" in doubts["connection_waits"]["text"]
    assert not {"late_sends", "client_bound"} & doubts.keys()
    near_end = steady(750) + [row(9 * S + i * 4 * MS, 5 * MS, 2500 * MS - i * 4 * MS) for i in range(250)]
    doubts, summary = found(tmp_path / "b", near_end, [phase(planned=1000, conn_waits=250), WARM])
    assert "client_bound" not in doubts
    assert summary["valid"] is True
    assert "client_bound" in found(tmp_path / "c", near_end)[0]


def test_a_killed_run_at_a_full_cap_is_not_a_late_client(tmp_path):
    rows = [row(i * 10 * MS, 10 * MS, i * 10 * MS) for i in range(250)]
    beats = [beat(5 * S, 500, 250, waiting=246, in_flight=4, cap_waits=496)]
    doubts, _ = found(tmp_path, rows, [running(planned=1000), WARM], status="running", beats=beats,
                      cap={"in_flight": 4, "when_full": "wait"})  # fmt: skip
    assert "cap of 4" in doubts["cap_reached"]["text"]
    assert not {"late_sends", "client_bound"} & doubts.keys()


def test_late_sends_without_a_cap_are_the_clients_own(tmp_path):
    assert (
        "P99 of lag 11 ms"
        in found(tmp_path / "a", steady(1000, service=S, lag=11 * MS))[0]["late_sends"]["text"]
    )
    assert "late_sends" in found(tmp_path / "b", steady(1000, service=10 * MS, lag=2 * MS))[0]
    assert "late_sends" not in found(tmp_path / "c", steady(1000, service=200_000, lag=90_000))[0]


def test_a_full_core_is_client_bound(tmp_path):
    doubts, summary = found(tmp_path, steady(1000), [phase(planned=1000, cpu_ns=9 * S), WARM])
    assert "90% of a core; above 94.4 requests/s figures are not to be" in doubts["client_bound"]["text"]
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


def test_the_rate_up_to_which_a_client_can_be_believed_is_the_last_it_kept(tmp_path):
    """A ramp from 0 to 2000/s: from 1000/s on, everything is sent 50 ms late."""
    due = (np.sqrt(np.arange(10_000) / 10_000) * 10 * S).astype(int).tolist()
    lag = {"n": 500, "p50": MS, "p99": 60 * MS, "max": 90 * MS}
    rows = [row(at, lag=0 if at < 5 * S else 50 * MS) for at in due]
    text = found(tmp_path / "a", rows, [phase(planned=10_000, loop_lag_ns=lag), WARM])[0]["client_bound"][
        "text"
    ]
    rate = float(
        re.search(r"above ([\d,]+) requests/s figures are not to be believed", text)[1].replace(",", "")
    )
    assert 900 <= rate <= 1000
    rows = [row(at, lag=50 * MS) for at in due]
    text = found(tmp_path / "b", rows, [phase(planned=10_000, loop_lag_ns=lag), WARM])[0]["client_bound"][
        "text"
    ]
    assert "at none of its rates" in text


def test_a_full_core_shows_however_long_the_drain_was(tmp_path):
    rows = [*steady(10_000), row(9 * S, 31 * S, outcome=Outcome.TIMEOUT)]
    doubts, _ = found(tmp_path, rows, [phase(planned=10_001, cpu_ns=int(9.7 * S), end_ns=40 * S), WARM])
    assert "97% of a core" in doubts["client_bound"]["text"]


@pytest.mark.parametrize("loop", ["open", "closed"])
@pytest.mark.parametrize(
    ("p50", "p99", "name"), [(500_000, MS, "P50"), (90_000, 900_000, "P99"), (90_000, 99_000, None)]
)
def test_a_loop_that_is_late_for_a_good_part_of_service_is_told(tmp_path, loop, p50, p99, name):
    rows = steady(980, service=1_600_000) + steady(20, service=5 * MS)
    lag = {"n": 500, "p50": p50, "p99": p99, "max": MS}
    phases = [phase(loop=loop, users=4, planned=1000 if loop == "open" else None, loop_lag_ns=lag), WARM]
    doubts, summary = found(tmp_path, rows, phases)
    assert summary["valid"] is True
    if name is None:
        assert "client_time" not in doubts
    else:
        assert f"{name} of the client's event loop lag is" in doubts["client_time"]["text"]


def test_requests_sent_a_second_time_are_told_beyond_one_percent(tmp_path):
    assert "resent" not in found(tmp_path / "a", steady(1000), [phase(resent=10), WARM])[0]
    doubts, summary = found(tmp_path / "b", steady(1000), [phase(resent=53), WARM])
    assert "53 of 1000 requests (5.3%) were sent a second time" in doubts["resent"]["text"]
    assert summary["client"]["resent"] == summary["phases"][0]["resent"] == 53


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
    assert "; 66.7 of 100 requests/s asked were answered" in doubts["not_sustained"]["text"]
    assert (
        "317 requests were waiting or in flight when the load ended, 167 in"
        in doubts["not_sustained"]["text"]
    )
    assert not {"drift", "unsteady"} & doubts.keys()


@pytest.mark.parametrize("service", [600 * MS, 3 * S])
def test_a_constant_service_time_is_sustained_however_long(tmp_path, service):
    rows = [row(i * 50 * MS, service) for i in range(200)]
    doubts, summary = found(tmp_path, rows, [phase(planned=200, end_ns=13 * S), WARM])
    assert "not_sustained" not in doubts
    assert summary["total"]["achieved_per_s"] == 20.0


def test_a_ramp_that_the_server_follows_is_sustained_and_one_it_does_not_is_not(tmp_path):
    due = (np.sqrt(np.arange(1000) / 1000) * 10 * S).astype(int).tolist()  # 0 to 200/s
    assert "not_sustained" not in found(tmp_path / "a", [row(at, 500 * MS) for at in due])[0]
    free, rows = 0, []
    for at in due:
        free = max(free, at) + 10 * MS  # 100/s and no more
        rows.append(row(at, free - at))
    assert "not_sustained" in found(tmp_path / "b", rows)[0]


def test_a_poisson_stream_near_capacity_is_sustained(tmp_path):
    rng = np.random.default_rng(4)
    free, rows = 0, []
    for at in np.sort(rng.integers(0, 10 * S, 1000)).tolist():
        free = max(free, at) + int(rng.exponential(8 * MS))
        rows.append(row(at, free - at))
    assert "not_sustained" not in found(tmp_path, rows)[0]


def served(due, per_s):
    """Rows of a server that answers so many a second and no more, one after the other."""
    free, rows = 0, []
    for at in due:
        free = max(free, at) + S // per_s
        rows.append(row(at, free - at))
    return rows


SECONDS = [second * S for second in range(4) for _ in range(180)]  # stamps of whole seconds
BURSTS = [2 * burst * S + i * 5 * MS for burst in range(3) for i in range(200)]  # 200/s and nothing, in turn


@pytest.mark.parametrize(("due", "end", "left"), [(SECONDS, 3, 429), (SECONDS, 3.5, 381), (BURSTS, 5, 115)])
def test_a_backlog_at_the_end_is_not_sustained_whatever_the_pattern_of_arrivals(tmp_path, due, end, left):
    told = phase(planned=len(due), duration_ns=round(end * S), load_end_ns=round(end * S), end_ns=9 * S)
    text = found(tmp_path / "slow", served(due, 97), [told, WARM])[0]["not_sustained"]["text"]
    assert f": {left} requests were waiting or in flight when the load ended" in text
    for name, rows in (
        ("quick", [row(at, 50 * MS) for at in due]),
        ("long", [row(at, 2 * S) for at in due]),
        ("keeps up", served(due, 205)),
    ):
        assert "not_sustained" not in found(tmp_path / name, rows, [told, WARM])[0], name


def closed_phase(**over):
    return [phase(loop="closed", users=4, planned=None, **over), WARM]


def test_a_disturbance_within_a_phase_is_unsteady(tmp_path):
    """Two seconds of ten at three times the service time: the thirds agree, the tenths do not."""
    rows = [row(i * 10 * MS, (30 if 450 <= i < 650 else 10) * MS) for i in range(1000)]
    for loop, phases in (("open", None), ("closed", closed_phase())):
        doubts, summary = found(tmp_path / loop, rows, phases)
        assert "median service time was 10 ms to 30 ms in tenths of the phase" in doubts["unsteady"]["text"]
        assert "drift" not in doubts
        assert summary["valid"] is True


def test_a_rate_that_varies_is_unsteady_even_at_one_service_time(tmp_path):
    """A closed loop whose users were held back for a while (they waited before they were answered quickly)."""
    at = [i * 10 * MS for i in range(1000) if not (450 <= i < 550 and i % 2)]
    text = found(tmp_path, [row(due) for due in at], closed_phase())[0]["unsteady"]["text"]
    assert text == "phase steady: not steady: 55 to 101 answers/s"


def test_what_is_constant_by_chance_alone_is_steady(tmp_path):
    rng = np.random.default_rng(6)
    for name in ("uniform", "poisson"):
        due = (
            [i * 5 * MS for i in range(2000)]
            if name == "uniform"
            else np.sort(rng.integers(0, 10 * S, 2000)).tolist()
        )
        rows = [row(at, int(rng.lognormal(0, 0.7) * 10 * MS)) for at in due]
        assert "unsteady" not in found(tmp_path / name, rows)[0]


def test_users_in_step_and_bursts_are_not_called_unsteady(tmp_path):
    step = [row(r * S, S - MS) for r in range(10) for _ in range(40)]  # 40 users, ten rounds of a second
    assert "unsteady" not in found(tmp_path / "step", step, closed_phase())[0]
    bursts = [row(i // 200 * 2 * S + i % 200 * MS) for i in range(1000)]
    assert "unsteady" not in found(tmp_path / "bursts", bursts)[0]


@pytest.mark.parametrize("loop", ["open", "closed"])
def test_a_phase_that_gets_slower_all_along_drifts(tmp_path, loop):
    rows = [row(i * 10 * MS, 10 * MS + i * 10_000) for i in range(1000)]
    phases = [phase(loop=loop, users=4, planned=1000 if loop == "open" else None), WARM]
    doubts, summary = found(tmp_path, rows, phases)
    assert "from 11.7 ms in the first third to 18.3 ms in the last" in doubts["drift"]["text"]
    assert not {"unsteady", "warm_up"} & doubts.keys()
    assert summary["phases"][0]["steady"]["detected"] is None


@pytest.mark.parametrize("loop", ["open", "closed"])
def test_warm_up_in_a_measured_phase_is_told_with_both_windows(tmp_path, loop):
    rows = [row(i * 10 * MS, (30 if i < 400 else 10) * MS) for i in range(1000)]
    phases = [phase(loop=loop, users=4, planned=1000 if loop == "open" else None), WARM]
    doubts, summary = found(tmp_path, rows, phases)
    assert doubts["warm_up"]["text"] == (
        "phase steady: its first 4 s were warm-up: latency P50 10 ms, P99 30 ms in the declared window (0.000 s to 10.000 s "
        "of the run), P50 10 ms, P99 10 ms in the detected steady window (4.000 s to 10.000 s of the run)"
    )
    assert doubts["warm_up"]["hint"] == "the figures are of the declared window: warm up for 4 s longer"
    assert not {"unsteady", "drift"} & doubts.keys()
    steady = summary["phases"][0]["steady"]
    assert (steady["state"], steady["service"], steady["throughput"]) == (
        "warming_up",
        "warming_up",
        "settled",
    )
    assert steady["declared"] == {
        "start_ns": 0,
        "end_ns": 10 * S,
        "n": 1000,
        "p50_ns": 10 * MS,
        "p99_ns": 30 * MS,
    }
    assert steady["detected"] == {
        "start_ns": 4 * S,
        "end_ns": 10 * S,
        "n": 600,
        "p50_ns": 10 * MS,
        "p99_ns": 10 * MS,
    }
    assert summary["total"]["latency_ns"]["p99"] == 30 * MS  # figures stay those of the declared window


def test_a_phase_that_is_slower_after_its_beginning_may_have_been_disturbed(tmp_path):
    """Queues that fill are warm-up too, so both causes are named."""
    rows = [row(i * 10 * MS, (10 if i < 400 else 30) * MS + i % 7 * MS) for i in range(1000)]
    doubts, _ = found(tmp_path, rows, [phase(planned=1000), WARM])
    assert "find what slowed the server down" in doubts["warm_up"]["hint"]


def test_no_steady_window_is_looked_for_where_the_planned_rate_changes(tmp_path):
    """The rates as the profile states them decide; of older runs, which do not tell, the due times."""
    rows = [row(i * 10 * MS, (30 if i < 400 else 10) * MS) for i in range(1000)]
    flat, ramp = [[100.0, 100.0], [100.0, 100.0]], [[90.0, 110.0]]
    for name, rates, state in (
        ("flat", flat, "warming_up"),
        ("ramp", ramp, "not_constant"),
        ("old", None, "warming_up"),
    ):
        doubts, summary = found(tmp_path / name, rows, [phase(planned=1000, rates=rates), WARM])
        assert summary["phases"][0]["steady"]["state"] == state
        assert ("warm_up" in doubts) == (state == "warming_up")
        assert summary["phases"][1]["steady"] is None


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
    beside = closed | {"name": "c", "start_ns": 20 * S, "load_end_ns": 30 * S, "max_in_flight": 9, "users": 9}
    by_chance = [phase(max_in_flight=11), beside, WARM | {"max_in_flight": 9}]
    rows = steady(1000) + steady(1000, start=20 * S, phase=1)
    assert "short_warmup" not in found(tmp_path / "e", rows, by_chance)[0]
    by_chance = [phase(max_in_flight=11), WARM | {"max_in_flight": 9}]
    assert "short_warmup" not in found(tmp_path / "d", steady(1000), by_chance)[0]


def test_other_clients_move_the_counters(tmp_path):
    server = window(statistics({1: 0}), statistics({8: 200}))
    text = found(tmp_path, steady(1000), server=server)[0]["other_clients"]["text"]
    assert "counted 1600 requests while this run sent 1000" in text
    own = window(statistics({1: 0}), statistics({8: 125}))
    assert "other_clients" not in found(tmp_path / "b", steady(1000), server=own)[0]


def test_records_that_were_lost_are_no_other_client(tmp_path):
    server = window(statistics({1: 0}), statistics({8: 200}))
    lost = {"code": "worker_lost", "text": "1 of 2 workers ended", "hint": ""}
    assert "other_clients" not in found(tmp_path / "a", steady(1000), server=server, doubts=[lost])[0]
    assert "other_clients" not in found(tmp_path / "b", steady(1000), server=server, status="failed")[0]


def test_requests_that_got_no_connection_did_not_wait_for_one(tmp_path):
    """5 of 305 waited; 206 were refused, which the errors tell."""
    rows = (
        steady(300) + [row(9 * S, 5 * MS, 900 * MS)] * 5 + [row(9 * S, None, outcome=Outcome.CONNECT)] * 206
    )
    doubts, _ = found(tmp_path, rows, [phase(planned=511, conn_waits=211), WARM])
    assert "5 of 305 requests waited for a connection" in doubts["connection_waits"]["text"]


def test_counters_that_went_backwards_give_no_figures(tmp_path):
    server = window(statistics({1: 5000}), statistics({1: 900}))
    doubts, summary = found(tmp_path, steady(1000), server=server)
    assert "model m" in doubts["counters_reset"]["text"]
    assert summary["server"]["mean_batch"] is None


def test_a_reload_within_a_phase_loses_counts_even_if_no_counter_fell(tmp_path):
    """A gentle warm-up leaves small counters: 444 of 600 successes are gone, and all counters rose."""
    server = window(statistics({1: 40}), statistics({1: 196}))
    doubts, summary = found(tmp_path, steady(600), server=server)
    assert "phase steady: they tell of 156 successes, this run had 600" in doubts["counters_reset"]["text"]
    told = summary["server"]
    assert {told[key] for key in ("request_count", "mean_batch", "queue_ns_mean", "batch_sizes")} == {None}
    slack = window(statistics({1: 40}), statistics({1: 638}))  # two answers were still on their way
    assert "counters_reset" not in found(tmp_path / "b", steady(600), server=slack)[0]


def test_a_version_swapped_within_a_phase_resets_too(tmp_path):
    before, after = window(statistics({1: 40}), statistics({1: 900}, version="2"))
    doubts, summary = found(tmp_path / "a", steady(1000), server=[before, after])
    assert "model m" in doubts["counters_reset"]["text"]
    assert summary["server"]["request_count"] is None
    one_side = found(
        tmp_path / "b", steady(1000), server=[before]
    )  # killed, or the server is gone: not a reset
    assert "counters_reset" not in one_side[0]
    assert one_side[1]["server"]["request_count"] is None


def test_a_phase_whose_counters_were_reset_is_left_out_of_the_others(tmp_path):
    phases = [phase("a"), phase("b", start_ns=20 * S, load_end_ns=30 * S, end_ns=30 * S), WARM]
    rows = steady(600) + steady(400, start=20 * S, phase=1)
    server = window(statistics({1: 40}), statistics({1: 196}), phase="a")
    server += window(statistics({1: 196}), statistics({1: 196, 4: 100}), phase="b")
    doubts, summary = found(tmp_path, rows, phases, server=server)
    assert "during phase a" in doubts["counters_reset"]["text"]
    assert summary["server"]["batch_sizes"] == {"4": 100}


def test_a_server_that_counts_nothing_was_not_reset(tmp_path):
    nothing = {"version": "1", "inference_count": 0, "execution_count": 0}
    assert "counters_reset" not in found(tmp_path, steady(1000), server=window(nothing, nothing))[0]


def test_answers_from_a_cache_are_counted_and_told(tmp_path):
    server = window(statistics({1: 0}), statistics({1: 420}, requests=1000, hits=580))
    doubts, summary = found(tmp_path / "a", steady(1000), server=server)
    assert (
        "580 of 1000 requests (58 %) were answered from the server's response cache"
        in doubts["cache_hits"]["text"]
    )
    assert summary["server"]["cache_hits"] == 580
    few = window(statistics({1: 0}), statistics({1: 990}, requests=1000, hits=10))
    assert "cache_hits" not in found(tmp_path / "b", steady(1000), server=few)[0]


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


@pytest.mark.parametrize(
    ("outcome", "status", "outage"),
    [
        (Outcome.CONNECT, 0, True),
        (Outcome.CONNECTION, 0, True),
        (Outcome.REFUSED_STREAM, 0, True),
        (Outcome.STREAM_ENDED_EARLY, 0, True),
        (Outcome.HTTP_5XX, 503, True),
        (Outcome.HTTP_5XX, 500, False),
        (Outcome.GRPC_STATUS, 14, True),
        (Outcome.GRPC_STATUS, 13, False),
        (Outcome.TIMEOUT, 0, False),
    ],
)
def test_an_outage_is_a_failure_and_its_hint_never_asks_for_less(tmp_path, outcome, status, outage):
    rows = steady(980) + [row(i, MS, outcome=outcome, status=status, detail="away") for i in range(20)]
    doubts, summary = found(tmp_path, rows)
    assert "rejected" not in doubts
    assert "ask for less" not in doubts["failures"]["hint"]
    assert ("outage" in doubts["failures"]["hint"]) == outage
    counts = summary["total"]["counts"]
    assert (counts["failed"] + counts["timeout"], counts["rejected"]) == (20, 0)


@pytest.mark.parametrize("others", [True, False])
def test_planned_cancels_of_older_folders_are_no_interruption(tmp_path, others):
    """There they were `cancelled`, and a text told the difference."""
    old = "cancelled as the profile asks"
    texts = [old, f"{old}: stream reset by the server"] * 50
    rows = [row(i, MS, outcome=Outcome.CANCELLED, detail=text) for i, text in enumerate(texts)]
    objectives = ["latency p95 < 1s", "failure rate < 1%"]
    rows = (steady(1000) if others else []) + rows
    summary = found(tmp_path / "a", rows, objectives=objectives)[1]
    counts = summary["total"]["counts"]
    assert (counts["planned_cancels"], counts.get("cancelled")) == (100, None)
    assert {r["verdict"] for r in summary["slo"]} == {"pass" if others else "inconclusive"}
    by_us = row(5 * S, 5 * S, outcome=Outcome.CANCELLED, detail="the run was interrupted")
    counts = found(tmp_path / "b", [*rows, by_us])[1]["total"]["counts"]
    assert (counts["planned_cancels"], counts["cancelled"]) == (100, 1)


def test_many_planned_cancels_with_as_many_texts_are_no_failures(tmp_path):
    """2,500 of 10,000, each with words of its own."""
    rows = []
    for i in range(10_000):
        gone = i % 4 == 0
        end = {"outcome": Outcome.PLANNED_CANCEL, "detail": f"gone {i}"} if gone else {}
        rows.append(row(i * 10 * MS, 500 * MS if gone else 100 * MS, **end))
    ends = {"planned": 10_000, "duration_ns": 100 * S, "load_end_ns": 100 * S, "end_ns": 100 * S}
    _, summary = found(tmp_path, rows, [phase(**ends), WARM], objectives=["latency p90 < 400ms"])
    counts = summary["total"]["counts"]
    assert (counts["ok"], counts["failed"], counts["planned_cancels"]) == (7500, 0, 2500)
    assert "cancelled" not in counts
    assert [row["verdict"] for row in summary["slo"]] == ["pass"]


def test_each_of_many_texts_is_counted(tmp_path):
    """More of them than a table would hold, in two classes: the second's are not lost over the first's."""
    rows = [row(i, MS, outcome=Outcome.HTTP_5XX, status=500, detail=f"id {i}") for i in range(9000)]
    rows += [row(i, MS, outcome=Outcome.GRPC_STATUS, status=13, detail="died") for i in range(50)]
    errors = found(tmp_path, rows)[1]["total"]["errors"]
    assert (errors["http_5xx"]["different_texts"], errors["http_5xx"]["text"]) == (9000, "id 0")
    assert (errors["grpc_status"]["different_texts"], errors["grpc_status"]["text"]) == (1, "died")


def _refused(n=3000, span=10 * S):
    """Beside 500 successes of 50 ms, all of them sent 200 us late, many that are turned away within 300 us."""
    quick = [row(i * span // n, 300_000, lag=200_000, outcome=Outcome.REJECTED) for i in range(n)]
    return steady(500, service=50 * MS, lag=200_000) + quick


def test_lag_is_held_against_the_service_of_successes(tmp_path):
    """Of 50 ms a lag of 200 us is nothing, however quickly others were turned away; of 1 ms it is much."""
    doubts, _ = found(tmp_path / "a", _refused(), [phase(planned=3500, conn_waits=100), WARM])
    assert not {"late_sends", "connection_waits"} & doubts.keys()
    slow = [row(i * 10 * MS, S, outcome=Outcome.TIMEOUT, lag=200_000) for i in range(700)]
    doubts, _ = found(tmp_path / "b", steady(300, service=MS, lag=200_000) + slow)
    assert "median service of successes 1 ms" in doubts["late_sends"]["text"]


def test_without_a_success_only_a_long_lag_is_late(tmp_path):
    rows = [row(i * 10 * MS, 300_000, lag=200_000, outcome=Outcome.REJECTED) for i in range(1000)]
    assert "late_sends" not in found(tmp_path / "a", rows)[0]
    rows = [row(i * 10 * MS, 300_000, lag=20 * MS, outcome=Outcome.REJECTED) for i in range(1000)]
    assert "late_sends" in found(tmp_path / "b", rows)[0]


@pytest.mark.parametrize(
    ("target", "busy", "realtime", "advised"),
    [
        ("http://127.0.0.1:8000", 0.9, False, True),
        ("grpc://localhost:8001", 0.6, False, True),
        ("http://127.0.0.1:8000", 0.2, False, False),
        ("http://127.0.0.1:8000", None, False, False),
        ("http://127.0.0.1:8000", 0.9, True, False),
        ("http://10.0.0.7:8000", 0.9, False, False),
    ],
)
def test_real_time_is_advised_where_client_and_server_share_busy_cores(
    tmp_path, target, busy, realtime, advised
):
    lag = {"n": 500, "p50": 500_000, "p99": MS, "max": MS}
    late = {"machine_busy": busy, "loop_lag_ns": lag}
    client = {"workers": 1, "realtime": realtime}
    rows = steady(1000, service=MS, lag=500_000)
    doubts, _ = found(tmp_path, rows, [phase(planned=1000, **late), WARM], target=target, client=client)
    for code in ("late_sends", "client_time"):
        assert ("--realtime" in doubts[code]["hint"]) == advised, code
        assert ("--workers" in doubts[code]["hint"]) != advised, code
        assert "ask for less" not in doubts[code]["hint"], code


def test_a_client_that_fills_its_core_is_not_sent_to_real_time(tmp_path):
    lag = {"n": 500, "p50": MS, "p99": 60 * MS, "max": 90 * MS}
    for cpu_ns, advised in ((9 * S, False), (S, True)):
        told = phase(planned=1000, machine_busy=0.9, cpu_ns=cpu_ns, loop_lag_ns=lag)
        doubts, _ = found(tmp_path / str(cpu_ns), steady(1000), [told, WARM])
        assert ("--realtime" in doubts["client_bound"]["hint"]) == advised


def test_cache_hits_are_a_share_of_the_answers(tmp_path):
    """5 of 100 answers, beside 900 that were refused: 5 %, not half a percent."""
    rows = steady(100) + steady(900, outcome=Outcome.REJECTED, service=MS)
    server = window(statistics({1: 0}), statistics({1: 95}, requests=100, fail=900, hits=5))
    assert "5 of 100 requests (5 %)" in found(tmp_path, rows, server=server)[0]["cache_hits"]["text"]


def test_littles_law_is_of_the_successes_on_both_sides(tmp_path):
    """100 of 10 ms in 10 s are 0.1 at a time, whatever was waited for others in vain."""
    rows = steady(100) + [row(i * S, 5 * S, outcome=Outcome.TIMEOUT) for i in range(5)]
    server = window(statistics({1: 0}), statistics({1: 100}))
    _, summary = found(tmp_path, rows, server=server)
    assert summary["server"]["in_flight"]["client"] == 0.1


def _broken(n, first, count, outcome, **over):
    """One a 10 ms; `count` of them from `first` on end with `outcome`."""
    return [
        row(i * 10 * MS, 5 * MS, **({"outcome": outcome} | over if first <= i < first + count else {}))
        for i in range(n)
    ]


@pytest.mark.parametrize(
    ("rows", "outage"),
    [
        (_broken(1000, 500, 500, Outcome.CONNECT), True),
        (_broken(1000, 500, 100, Outcome.CONNECT), True),  # and it came back
        (_broken(1000, 0, 100, Outcome.CONNECT), True),  # and was late
        (_broken(1000, 500, 10, Outcome.CONNECT), False),  # 1 %
        (_broken(1000, 500, 11, Outcome.HTTP_5XX, status=503), True),
        (_broken(1000, 500, 11, Outcome.GRPC_STATUS, status=14), True),
        (_broken(1000, 500, 500, Outcome.HTTP_5XX, status=500), False),  # it answers
        (_broken(1000, 500, 500, Outcome.HTTP_4XX, status=400), False),
        (_broken(1000, 500, 500, Outcome.GRPC_STATUS, status=3), False),
        (_broken(1000, 500, 500, Outcome.PROTOCOL), False),
        (_broken(1000, 500, 500, Outcome.CONNECTION), True),
        (_broken(1000, 500, 500, Outcome.REFUSED_STREAM), True),
        (_broken(1000, 3, 997, Outcome.CONNECT), True),  # soon after the start
        (_broken(20, 15, 5, Outcome.CONNECT), True),
        (_broken(20, 15, 5, Outcome.HTTP_5XX, status=503), False),  # so many can fail by chance
        (_broken(1000, 500, 500, Outcome.REJECTED), False),
        (_broken(1000, 500, 500, Outcome.TIMEOUT), False),
        (_broken(1000, 500, 500, Outcome.DROPPED), False),
        (_broken(1000, 500, 500, Outcome.CANCELLED), False),
        (_broken(1000, 500, 500, Outcome.STREAM_ENDED_EARLY), True),
        (_broken(1000, 100, 600, Outcome.TIMEOUT)[:700] + _broken(1000, 700, 300, Outcome.CONNECT)[700:], True),
        (_broken(1000, 100, 600, Outcome.REJECTED)[:700] + _broken(1000, 700, 300, Outcome.CONNECT)[700:], True),
        (
            [row(i * 10 * MS, MS, outcome=(Outcome.OK, Outcome.REJECTED, Outcome.HTTP_5XX)[i and 1 + i % 2]) for i in range(1000)],
            False,
        ),  # full, and some of what it turns away is an error
        ([r for i in range(500) for r in (row(i * 20 * MS), row(i * 20 * MS + MS, outcome=Outcome.CONNECT))], False),
        (_broken(1000, 0, 1000, Outcome.CONNECT), False),  # nothing was measured at all: said by another
        (steady(1000), False),
        ([], False),
    ],
)  # fmt: skip
def test_a_server_that_went_away(tmp_path, rows, outage):
    doubts, _ = found(tmp_path, rows)
    assert ("outage" in doubts) == outage
    if outage:
        assert doubts["outage"]["invalidates"]


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome.HTTP_4XX, 400), (Outcome.HTTP_5XX, 500), (Outcome.HTTP_5XX, 503), (Outcome.GRPC_STATUS, 3),
        (Outcome.GRPC_STATUS, 14), (Outcome.PROTOCOL, 0), (Outcome.CONNECT, 0), (Outcome.STREAM_ENDED_EARLY, 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("share", [0.05, 0.5, 0.7, 0.9, 0.99])
def test_failures_by_chance_are_no_outage_however_many(tmp_path, outcome, status, share):
    """1,000 requests that fail independently: a stretch of ten is ordinary then, and a missed objective stays one."""
    fails = np.random.default_rng(7).random(1000) < share
    rows = [
        row(i * 10 * MS, MS, **({"outcome": outcome, "status": status} if bad else {}))
        for i, bad in enumerate(fails)
    ]
    doubts, summary = found(tmp_path, rows, objectives=["failure rate < 1%"])
    assert "outage" not in doubts
    assert (summary["slo"][0]["verdict"], exit_code(summary)) == ("fail", ExitCode.MISSED)


def test_batches_that_fail_together_are_answers(tmp_path):
    """5 %, in groups of 16."""
    rows = [
        row(i * 10 * MS, MS, **({"outcome": Outcome.HTTP_5XX, "status": 500} if i % 320 < 16 else {}))
        for i in range(1600)
    ]
    assert "outage" not in found(tmp_path, rows)[0]


def test_a_server_that_is_gone_in_the_second_phase(tmp_path):
    rows = steady(1000) + steady(100, start=10 * S, phase=1, outcome=Outcome.CONNECT)
    second = phase("second", planned=100, start_ns=10 * S, load_end_ns=20 * S, end_ns=20 * S)
    doubts, _ = found(tmp_path, rows, [phase(planned=1000), second])
    assert "phase second: the server went away: 100 of 100" in doubts["outage"]["text"]
