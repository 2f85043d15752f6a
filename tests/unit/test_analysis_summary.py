import json
import os
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.analysis.summary import summarise
from loadgen.records import Outcome
from loadgen.runfile import RECORDS
from loadgen.runread import read_run
from tests.support.runs import (
    MS,
    S,
    beat,
    build,
    phase,
    read_json,
    row,
    running,
    statistics,
    steady,
    window,
)

CONTRACT = {"format", "valid", "doubts", "phases", "total", "server", "slo", "client"}
OF_A_PHASE = {"name", "measured", "loop", "span_ns", "counts", "offered_per_s", "achieved_per_s", "items_per_s",
              "latency_ns", "service_ns", "lag_ns", "by_kind", "by_length", "errors"}  # fmt: skip


def test_the_contract_keys_and_values(tmp_path):
    told = phase(planned=1000, end_ns=10_500 * MS, reconnects=2, conn_waits=3)
    found = summarise(build(tmp_path / "run", steady(1000, lag=1 * MS), [told]))
    assert found.keys() >= CONTRACT
    one = found["phases"][0]
    assert one.keys() >= OF_A_PHASE
    assert one["counts"] == {
        "planned": 1000, "tried": 1000, "sent": 1000, "ok": 1000, "failed": 0, "rejected": 0, "timeout": 0, "dropped": 0,
    }  # fmt: skip
    assert (one["latency_ns"]["p99"], one["service_ns"]["p99"], one["lag_ns"]["p99"]) == (
        11 * MS,
        10 * MS,
        MS,
    )
    assert one["offered_per_s"] == 100.0
    assert (one["span_ns"], one["drain_ns"]) == (10 * S, 500 * MS)
    assert one["achieved_per_s"] == pytest.approx(100.0)
    assert found["client"] == {
        "cpu_ns_per_request": 100_000, "cpu_share": 0.01, "max_in_flight": 4, "workers": 1,
        "resent": 0, "reconnects": 2, "conn_waits": 3,
        "loop_lag_ns": {"n": 100, "p50": 50_000, "p99": 200_000, "max": 400_000},
        "cap": {"in_flight": None, "when_full": "wait"}, "proxies_ignored": [],
    }  # fmt: skip
    json.dumps(found, allow_nan=False)


def test_failures_are_in_no_percentile_and_have_a_row_of_their_own(tmp_path):
    """441 quick refusals must not halve the median of 160 slow successes."""
    rows = [
        row(i * MS, 300_000, outcome=Outcome.REJECTED, status=429, detail="queue full") for i in range(441)
    ]
    rows += [row(i * MS, 2500 * MS) for i in range(160)]
    found = summarise(build(tmp_path / "run", rows))
    total = found["total"]
    assert (total["latency_ns"]["n"], total["latency_ns"]["p50"]) == (160, 2500 * MS)
    assert (total["counts"]["rejected"], total["counts"]["failed"], total["counts"]["ok"]) == (441, 0, 160)
    error = total["errors"]["rejected"]
    assert (error["n"], error["status"], error["text"]) == (441, {"429": 441}, "queue full")
    assert error["service_ns"]["p50"] == 300_000
    assert found["valid"] is False


def test_the_same_error_is_grouped_once_with_its_most_common_words(tmp_path):
    rows = steady(10) + [
        row(i, MS, outcome=Outcome.HTTP_5XX, status=500 + i % 2, detail="a") for i in range(7)
    ]
    rows += [
        row(1, MS, outcome=Outcome.HTTP_5XX, status=500, detail="b"),
        row(2, None, outcome=Outcome.CONNECT),
    ]
    errors = summarise(build(tmp_path / "run", rows))["total"]["errors"]
    assert errors.keys() == {"http_5xx", "connect"}
    five = errors["http_5xx"]
    assert (five["n"], five["text"], five["different_texts"], five["status"]) == (
        8,
        "a",
        2,
        {"500": 5, "501": 3},
    )
    assert (errors["connect"]["n"], errors["connect"]["service_ns"]["n"], errors["connect"]["text"]) == (
        1,
        0,
        None,
    )


def test_warm_up_is_listed_and_in_no_total(tmp_path):
    phases = [
        phase("warm", measured=False, planned=100, load_end_ns=S, end_ns=S, duration_ns=S),
        phase("steady", start_ns=S, load_end_ns=11 * S, end_ns=11 * S, planned=1000),
    ]
    rows = steady(100, span=S, service=20 * S, phase=0) + steady(1000, start=S, phase=1)
    server = window(statistics({1: 5}), statistics({1: 105}), phase="warm")
    server += window(statistics({1: 105}), statistics({1: 105, 4: 250}))
    found = summarise(build(tmp_path / "run", rows, phases, server))
    assert [(p["name"], p["measured"]) for p in found["phases"]] == [("warm", False), ("steady", True)]
    assert found["phases"][0]["latency_ns"]["max"] == 20 * S
    assert found["total"]["latency_ns"]["max"] == 10 * MS
    assert found["total"]["counts"]["planned"] == 1000
    assert found["total"]["span_ns"] == 10 * S
    assert found["server"]["batch_sizes"] == {"4": 250}


def test_two_measured_phases_pool_latencies_and_add_up_spans(tmp_path):
    phases = [
        phase("a", planned=100, load_end_ns=10 * S),
        phase("b", planned=300, start_ns=20 * S, load_end_ns=30 * S, end_ns=30 * S),
    ]
    rows = steady(100, service=10 * MS) + steady(300, start=20 * S, service=30 * MS, phase=1)
    total = summarise(build(tmp_path / "run", rows, phases))["total"]
    assert total["span_ns"] == 20 * S
    assert (total["latency_ns"]["n"], total["latency_ns"]["p50"], total["latency_ns"]["mean"]) == (
        400,
        30 * MS,
        25 * MS,
    )
    assert (total["offered_per_s"], total["achieved_per_s"]) == (20.0, 20.0)


def test_items_and_requests_are_told_apart(tmp_path):
    kinds = [
        {
            "name": "eight",
            "model": "m",
            "version": "1",
            "batch": 8,
            "weight": 1.0,
            "timeout_ns": S,
            "variants": 1,
        }
    ]
    found = summarise(build(tmp_path / "run", steady(100, items=8), kinds=kinds))["phases"][0]
    assert (found["achieved_per_s"], found["items_per_s"]) == (10.0, 80.0)
    assert found["by_kind"]["eight"]["batch"] == 8


def test_lengths_fall_into_buckets_that_end_at_powers_of_two(tmp_path):
    lengths = [0, 1, 2, 3, 4, 5, 64, 65, 128, 129]
    rows = [row(i, (i + 1) * MS, length=length) for i, length in enumerate(lengths)] + [row(11, MS)]
    found = summarise(build(tmp_path / "run", rows))["total"]["by_length"]
    assert [(b["from"], b["to"], b["n"]) for b in found] == [
        (0, 1, 2), (2, 2, 1), (3, 4, 2), (5, 8, 1), (33, 64, 1), (65, 128, 2), (129, 256, 1),
    ]  # fmt: skip
    assert found[5]["latency_ns"]["max"] == 9 * MS


def test_an_interrupt_leaves_planned_arrivals_visible(tmp_path):
    phases = [phase(planned=1000, load_end_ns=4 * S, end_ns=4 * S)]
    rows = [
        *steady(400, span=4 * S),
        row(4 * S, 0, outcome=Outcome.CANCELLED),
        row(4 * S, None, outcome=Outcome.CANCELLED),
    ]
    found = summarise(build(tmp_path / "run", rows, phases, status="interrupted"))
    counts = found["total"]["counts"]
    assert (counts["planned"], counts["sent"], counts["ok"], counts["cancelled"]) == (1000, 401, 400, 2)
    assert counts["tried"] == 401
    assert (found["total"]["offered_per_s"], found["total"]["span_ns"]) == (100.0, 4 * S)
    doubt = next(d for d in found["doubts"] if d["code"] == "interrupted")
    assert "2 of 402 requests due (0.5 %) were given up" in doubt["text"]
    assert "599 of 1000 planned requests were never sent" in doubt["text"]
    assert (doubt["invalidates"], found["valid"]) == (False, True)


def test_an_interrupt_that_gave_up_more_than_one_percent_is_not_valid(tmp_path):
    rows = steady(594, span=6 * S) + [row(5 * S, 2 * S, outcome=Outcome.CANCELLED)] * 7
    phases = [phase(planned=1000, load_end_ns=7 * S)]
    found = summarise(build(tmp_path / "run", rows, phases, status="interrupted"))
    doubt = next(d for d in found["doubts"] if d["code"] == "interrupted")
    assert "7 of 601 requests due (1.2 %) were given up" in doubt["text"]
    assert (doubt["invalidates"], found["valid"]) == (True, False)


def test_asked_of_a_phase_cut_short_is_what_was_due_until_then(tmp_path):
    """A ramp from 0 to 200/s over 10 s, interrupted after 5 s: 250 requests were due, 50/s, not 100/s."""
    due = [round((i / 1000) ** 0.5 * 10 * S) for i in range(250)]
    cut = phase("ramp", planned=1000, load_end_ns=5 * S, end_ns=5 * S)
    whole = phase("flat", planned=1000, start_ns=10 * S, load_end_ns=20 * S, end_ns=20 * S)
    rows = [row(at) for at in due] + steady(1000, start=10 * S, phase=1)
    found = summarise(build(tmp_path / "run", rows, [cut, whole], status="interrupted"))
    assert [one["offered_per_s"] for one in found["phases"]] == [50.0, 100.0]
    assert [one["counts"]["planned"] for one in found["phases"]] == [1000, 1000]
    assert found["total"]["offered_per_s"] == pytest.approx(1250 / 15)


def test_asked_of_a_killed_phase_counts_what_was_on_its_way(tmp_path):
    path = build(tmp_path / "run", steady(400, span=4 * S), [running(planned=1000)], status="running",
                 beats=[beat(5 * S, 500, 400)])  # fmt: skip
    found = summarise(path)
    assert (found["total"]["offered_per_s"], found["total"]["counts"]["unknown"]) == (100.0, 100)


def test_what_an_interrupted_run_never_began_was_never_asked(tmp_path):
    phases = [phase("a", planned=1000), running("b", planned=50_000)]
    total = summarise(build(tmp_path / "run", steady(1000), phases, status="interrupted"))["total"]
    assert (total["offered_per_s"], total["achieved_per_s"]) == (100.0, pytest.approx(100.0))
    assert total["counts"]["planned"] == 51_000


def test_an_interrupted_closed_loop_shows_what_was_asked(tmp_path):
    closed = phase(loop="closed", users=4, duration_ns=None, requests=1000, load_end_ns=2 * S, end_ns=2 * S)
    found = summarise(build(tmp_path / "run", steady(200, span=2 * S), [closed], status="interrupted"))
    assert found["total"]["counts"]["planned"] == 1000
    assert "800 of 1000 planned requests were never sent" in found["doubts"][0]["text"]
    timed = closed | {"duration_ns": 2 * S}
    found = summarise(build(tmp_path / "b", steady(200, span=2 * S), [timed]))
    assert found["total"]["counts"]["planned"] == 200


def test_heartbeats_tell_how_far_a_killed_run_came_and_what_was_on_its_way(tmp_path):
    """Frozen from 5.49 s on, killed after 12 s: 549 answers in 12 s, and 700 requests nobody knows the end of."""
    told = running(planned=3000, duration_ns=30 * S)
    beats = [beat(12 * S, 700, 300, cap_waits=5), beat(11_900 * MS, 549, 249, max_in_flight=300, waiting=0)]
    found = summarise(
        build(tmp_path / "run", steady(549, span=5490 * MS), [told], status="running", beats=beats)
    )
    one = found["phases"][0]
    assert found["total"]["achieved_per_s"] == pytest.approx(549 / 12, rel=0.01)
    assert (one["max_in_flight"], one["cap_waits"], one["conn_waits"]) == (304, 5, None)
    assert found["client"]["cpu_ns_per_request"] is None
    doubt = next(d for d in found["doubts"] if d["code"] == "unfinished")
    assert "how 700 of 1249 requests due ended is not known" in doubt["text"]
    assert "1751 of 3000 planned requests were never sent" in doubt["text"]
    assert (doubt["invalidates"], found["valid"]) == (True, False)


def test_rows_that_did_not_reach_the_disk_are_unknown_too(tmp_path):
    path = build(tmp_path / "run", steady(400, span=4 * S), [running(planned=1000)], status="running",
                 beats=[beat(5 * S, 500, 498)])  # fmt: skip
    doubt = next(d for d in summarise(path)["doubts"] if d["code"] == "unfinished")
    assert "how 100 of 500" in doubt["text"]


def test_a_killed_run_is_a_measurement_when_it_had_sent_its_plan(tmp_path):
    for at_s, valid in ((5, False), (9.95, True)):
        n = round(at_s * 100)
        path = build(tmp_path / str(n), steady(n - 1, span=(n - 1) * 10 * MS), [running(planned=1000)], status="running",
                     beats=[beat(round(at_s * S), n, n - 1)])  # fmt: skip
        found = summarise(path)
        assert found["valid"] is valid
        assert found["total"]["counts"]["never_sent"] == 1000 - n
        assert found["total"]["achieved_per_s"] == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize(("lost", "valid"), [(10, True), (250, False)])
def test_a_lost_worker_takes_nothing_from_what_was_asked(tmp_path, lost, valid):
    """Timers come up to a millisecond early: the phase is whole all the same."""
    told = phase(planned=1000, load_end_ns=10 * S - MS)
    doubt = {
        "code": "worker_lost",
        "text": "1 of 2 workers ended before the run did: what they had",
        "hint": "h",
    }
    found = summarise(build(tmp_path / "run", steady(1000 - lost), [told], doubts=[doubt]))
    assert found["total"]["offered_per_s"] == 100.0
    assert found["total"]["counts"]["never_sent"] == lost
    [shown] = [d for d in found["doubts"] if d["code"] == "worker_lost"]
    assert shown["text"].startswith(
        f"1 of 2 workers ended before the run did: {lost} of 1000 planned requests ("
    )
    assert (shown["invalidates"], found["valid"]) == (not valid, valid)


def test_a_timed_closed_loop_that_was_killed_early_is_no_result(tmp_path):
    told = running(loop="closed", users=2)
    path = build(
        tmp_path / "run", steady(400, span=4 * S), [told], status="running", beats=[beat(4 * S, 400, 400)]
    )
    assert summarise(path)["valid"] is False


def test_a_run_whose_process_is_gone_was_killed(tmp_path):
    here, gone = socket.gethostname(), 2**22 + 1  # larger than any process number
    for client, status in (
        ({"host": here, "pid": gone}, "killed"),
        ({"host": here, "pid": os.getpid()}, "running"),
        ({"host": "elsewhere", "pid": gone}, "running"),
    ):
        path = build(
            tmp_path / f"{len(list(tmp_path.iterdir()))}",
            [],
            [running(planned=9)],
            status="running",
            client=client,
        )
        found = summarise(path)
        assert found["run"]["status"] == status
        assert ("the run was killed" in found["doubts"][0]["text"]) == (status == "killed")


def test_a_second_interrupt_leaves_ends_unknown(tmp_path):
    path = build(tmp_path / "run", steady(400, span=4 * S), [running(planned=1000)], status="interrupted",
                 beats=[beat(4 * S, 420, 400)])  # fmt: skip
    [doubt] = [d for d in summarise(path)["doubts"] if d["code"] == "interrupted"]
    assert "how 20 of 420 requests due ended is not known" in doubt["text"]
    assert doubt["invalidates"]


def test_a_killed_run_reads_up_to_the_last_whole_batch(tmp_path):
    unknown = running(planned=20_000, duration_ns=200 * S)
    path = build(tmp_path / "run", steady(20_000, span=200 * S), [unknown], status="running")
    whole = (path / RECORDS).read_bytes()
    (path / RECORDS).write_bytes(whole[: len(whole) * 6 // 10])
    kept = len(read_run(path).records)
    found = summarise(path)
    assert 0 < kept < 20_000
    assert found["total"]["counts"]["ok"] == kept
    assert found["total"]["achieved_per_s"] == pytest.approx(100, rel=0.01)
    assert found["client"]["cpu_ns_per_request"] is None
    assert (found["phases"][0]["max_in_flight"], found["phases"][0]["cap_waits"]) == (None, None)
    doubt = next(d for d in found["doubts"] if d["code"] == "unfinished")
    assert "how many requests were on their way is not known" in doubt["text"]
    assert found["valid"] is False


def test_a_phase_that_never_started_has_nulls_not_zeros(tmp_path):
    never = phase(planned=10, start_ns=None, load_end_ns=None, end_ns=None)
    found = summarise(build(tmp_path / "run", [], [never]))["phases"][0]
    assert (found["span_ns"], found["achieved_per_s"], found["latency_ns"]["p50"]) == (None, None, None)


def test_a_closed_loop_asks_for_what_it_sends(tmp_path):
    phases = [phase(loop="closed", users=4, planned=None)]
    found = summarise(build(tmp_path / "run", steady(200), phases))["phases"][0]
    assert (found["counts"]["planned"], found["offered_per_s"], found["users"]) == (200, 20.0, 4)


def test_one_request_in_all_is_reported_with_its_n(tmp_path):
    """A window shorter than a request: it belongs to the phase it was due in, and the span reaches its end."""
    phases = [phase(planned=1, duration_ns=S, load_end_ns=S, end_ns=3 * S)]
    found = summarise(build(tmp_path / "run", [row(S // 2, 2 * S)], phases))
    assert found["total"]["latency_ns"] == {
        "n": 1, "mean": 2 * S, "p50": 2 * S, "p90": 2 * S, "p95": 2 * S, "p99": 2 * S, "p999": 2 * S, "max": 2 * S,
    }  # fmt: skip
    assert found["total"]["span_ns"] == S // 2 + 2 * S
    assert found["total"]["achieved_per_s"] == 0.4
    assert found["valid"] is True


def test_the_drain_is_a_figure_of_its_own(tmp_path):
    rows = [*steady(999), row(9_990 * MS, 14 * S)]
    found = summarise(
        build(tmp_path / "run", rows, [phase(planned=1000, end_ns=24 * S)]), ["requests/s > 99"]
    )
    one = found["phases"][0]
    assert (one["span_ns"], one["drain_ns"], one["achieved_per_s"]) == (10 * S, 14 * S, 100.0)
    assert found["total"]["drain_ns"] == 14 * S
    for figures in (one, found["total"]):
        assert figures["load_ns"] == 10 * S
        assert figures["achieved_with_drain_per_s"] == pytest.approx(1000 / 24)
    assert found["slo"][0]["verdict"] == "pass"
    assert "not_sustained" not in {d["code"] for d in found["doubts"]}


def test_an_older_closed_run_gets_its_load_end_from_its_last_request(tmp_path):
    told = {k: v for k, v in phase(loop="closed", users=1, duration_ns=None).items() if k != "requests"}
    rows = [row(i * 10 * MS, 10 * MS) for i in range(200)] + [row(2 * S, 8 * S, outcome=Outcome.TIMEOUT)]
    one = summarise(build(tmp_path / "run", rows, [told]))["phases"][0]
    assert (one["span_ns"], one["achieved_per_s"]) == (2 * S, pytest.approx(100.0))


def test_the_server_figures_are_differences(tmp_path):
    before = statistics({1: 50, 8: 10})
    after = statistics({1: 150, 8: 110}, queue_ns=2 * MS, compute_ns=5 * MS)
    server = summarise(build(tmp_path / "run", steady(900), server=window(before, after)))["server"]
    assert server["batch_sizes"] == {"1": 100, "8": 100}
    assert (server["mean_batch"], server["inference_count"], server["execution_count"]) == (4.5, 900, 200)
    assert (server["queue_ns_mean"], server["compute_ns_mean"]) == (2 * MS, 5 * MS)


def test_no_statistics_are_null(tmp_path):
    server = summarise(build(tmp_path / "run", steady(10)))["server"]
    assert {server[key] for key in ("mean_batch", "queue_ns_mean", "compute_ns_mean", "batch_sizes")} == {
        None
    }


@settings(deadline=None)  # the first call reads pyarrow in
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 10**9), st.none() | st.integers(0, 10**9), st.sampled_from(list(Outcome))),
        max_size=40,
    )
)
def test_every_request_is_counted_exactly_once(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("runs") / "run"
    made = [row(due, service, outcome=outcome) for due, service, outcome in rows]
    counts = summarise(build(path, made))["total"]["counts"]
    ends = ("ok", "failed", "rejected", "timeout", "dropped", "cancelled", "planned_cancels")
    assert sum(counts.get(key, 0) for key in ends) == len(rows)
    assert counts["sent"] == sum(service is not None for _, service, _ in rows)
    by_us = (Outcome.CANCELLED, Outcome.PLANNED_CANCEL)
    unsent = sum(service is None and outcome in by_us for _, service, outcome in rows)
    assert counts["tried"] == len(rows) - counts["dropped"] - unsent


def test_sent_is_what_left_the_client(tmp_path):
    """A dead server: 171 requests reached it, the others found no connection or gave up at the cap."""
    rows = [row(i * MS, MS, outcome=Outcome.STREAM_ENDED_EARLY) for i in range(171)]
    rows += [row(i * MS, None, MS, outcome=Outcome.CONNECT) for i in range(400)]
    rows += [row(i * MS, None, S, outcome=Outcome.TIMEOUT) for i in range(29)]
    found = summarise(build(tmp_path / "run", rows))
    counts = found["total"]["counts"]
    assert (counts["tried"], counts["sent"], counts["failed"], counts["timeout"]) == (600, 171, 571, 29)
    assert found["client"]["cpu_ns_per_request"] == round(100 * MS / 171)


def test_run_json_is_left_as_it_was(tmp_path):
    path = build(tmp_path / "run", steady(10))
    before = read_json(path / "run.json")
    summarise(path)
    assert read_json(path / "run.json") == before


def lost_worker(tmp_path, name, on_the_way, **over):
    """Two workers share 100/s; the second is lost after 5 s with so many requests on their way."""
    rows = steady(500, service=10 * MS) + [row(S // 100 + i * 20 * MS) for i in range(250 - on_the_way)]
    client = {"workers": 2, "senders": [{"records": 500}, {"lost": True}]}
    beats = [
        beat(9900 * MS, 495, 494),
        beat(5 * S, 250, 250 - on_the_way, in_flight=on_the_way - 1, waiting=1),
    ]
    return build(tmp_path / name, rows, [phase(planned=1000)], client=client, beats=beats, **over)


def test_what_a_lost_worker_had_on_its_way_is_unknown_in_a_finished_run(tmp_path):
    found = summarise(lost_worker(tmp_path, "a", 5, objectives=["failure rate < 1%"]))
    doubt = next(d for d in found["doubts"] if d["code"] == "unknown_ends")
    assert "how 5 of 750 requests due (0.67 %) ended is not known" in doubt["text"]
    assert (doubt["invalidates"], found["valid"], found["total"]["counts"]["unknown"]) == (False, True, 5)
    assert found["slo"][0]["unknown"] == 5
    found = summarise(lost_worker(tmp_path, "b", 8))
    doubt = next(d for d in found["doubts"] if d["code"] == "unknown_ends")
    assert (doubt["invalidates"], found["valid"]) == (True, False)


def test_a_worker_that_lives_takes_nothing_along(tmp_path):
    path = build(tmp_path / "run", steady(1000), client={"workers": 2, "senders": [{"records": 500}] * 2},
                 beats=[beat(9900 * MS, 495, 490), beat(9900 * MS, 495, 490)])  # fmt: skip
    found = summarise(path)
    assert "unknown" not in found["total"]["counts"]
    assert "unknown_ends" not in {d["code"] for d in found["doubts"]}


def test_a_timer_that_comes_early_makes_no_more_of_a_load_than_was_asked(tmp_path):
    """509 in 20 s are 25.45/s, asked and achieved, though the load was ended 0.4 ms before its time."""
    rows = steady(509, span=20 * S)
    ends = {"planned": 509, "duration_ns": 20 * S, "load_end_ns": 20 * S - 400_000, "end_ns": 20 * S + MS}
    [found] = summarise(build(tmp_path / "run", rows, [phase(**ends)]))["phases"]
    assert found["offered_per_s"] == found["achieved_per_s"] == 25.45
