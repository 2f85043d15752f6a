"""The careful loop in virtual time: due times, caps, timeouts, closed loops, stopping."""

import gc
import time

import numpy as np
import pytest

from loadgen.clock import MONOTONIC
from loadgen.records import Outcome
from tests.support.virtual import MS, S, VirtualServer, closed_phase, open_phase, play, run_virtual

GRID = np.arange(3000) / 100  # 100/s for 30 s


def nearest_rank(values, q):
    return sorted(values)[int(np.ceil(q * len(values))) - 1]


@pytest.mark.parametrize("cap", [4, 1000])
def test_a_server_that_freezes_for_2_s_shows_in_p99_from_due_with_any_cap(cap):
    async def main(loop):
        server = VirtualServer(loop, frozen=[(10 * S, 12 * S)])
        return (*await play(loop, server, [open_phase(GRID, 30)], cap=cap), server)

    rows, _, _, server = run_virtual(main)
    due, sent, done = (rows.column(n) for n in ("due_ns", "sent_ns", "done_ns"))
    assert len(due) == 3000
    assert 1.6 * S <= nearest_rank(done - due, 0.99) <= 2.0 * S
    assert ((sent - due) + (done - sent) == done - due).all()
    if cap == 4:  # the wait is in the lag, four requests apart: service stays what the server took
        assert server.most == 4
        assert nearest_rank(done - sent, 0.99) <= 6 * MS
        assert nearest_rank(sent - due, 0.99) >= 1.5 * S
    else:
        assert nearest_rank(sent - due, 0.99) < MS
        assert nearest_rank(done - sent, 0.99) >= 1.6 * S


def test_arrivals_are_sent_at_their_due_times_and_a_phase_lasts_its_planned_time():
    async def main(loop):
        return await play(loop, VirtualServer(loop), [open_phase([0, 0.5, 0.5, 0.75], 2.0)])

    rows, [result], _ = run_virtual(main)
    assert (rows.column("sent_ns") == rows.column("due_ns")).all()
    assert (rows.column("due_ns") - result.start_ns).tolist() == [0, S // 2, S // 2, 3 * S // 4]
    assert result.load_end_ns - result.start_ns == 2 * S
    assert result.end_ns == result.load_end_ns


def test_a_full_cap_drops_when_the_profile_says_so_and_counts_it():
    async def main(loop):
        return await play(
            loop, VirtualServer(loop, service_ns=S), [open_phase([0, 0.1, 0.2, 1.5], 2.0)], cap=1, drop=True
        )

    rows, _, engine = run_virtual(main)
    outcomes = {row["seq"]: (row["outcome"], row["sent_ns"]) for row in rows.rows}
    assert [outcomes[i][0] for i in range(4)] == [Outcome.OK, Outcome.DROPPED, Outcome.DROPPED, Outcome.OK]
    assert outcomes[1][1] == -1
    assert (engine.counts.sent, engine.counts.ok, engine.counts.dropped) == (2, 2, 2)


def test_a_request_without_an_answer_ends_at_its_timeout():
    async def main(loop):
        return await play(
            loop, VirtualServer(loop, service_ns=100 * S), [open_phase([0], 1)], timeout_ns=3 * S
        )

    rows, _, _ = run_virtual(main)
    [row] = rows.rows
    assert row["outcome"] == Outcome.TIMEOUT
    assert 3 * S <= row["done_ns"] - row["sent_ns"] <= 3 * S + 20 * MS


def test_who_waits_a_whole_timeout_at_the_cap_gives_up_unsent_so_a_dead_server_ends():
    async def main(loop):
        return await play(
            loop, VirtualServer(loop, service_ns=10**6 * S), [open_phase(GRID[:300], 3)], cap=2, timeout_ns=S
        )

    rows, [result], _ = run_virtual(main)
    assert len(rows.rows) == 300
    assert {row["outcome"] for row in rows.rows} == {Outcome.TIMEOUT}
    assert result.end_ns - result.start_ns < 6 * S


def test_a_closed_loop_keeps_its_users_busy_and_due_is_when_the_user_became_free():
    async def main(loop):
        server = VirtualServer(loop, service_ns=10 * MS)
        return (*await play(loop, server, [closed_phase(8, duration_s=1)]), server)

    rows, [result], _, server = run_virtual(main)
    assert server.most == 8
    assert len(rows.rows) == 800  # 8 users, 10 ms each, 1 s
    assert (rows.column("sent_ns") == rows.column("due_ns")).all()
    assert result.max_in_flight == 8


def test_a_closed_loop_of_n_requests_sends_exactly_n():
    async def main(loop):
        return await play(
            loop, VirtualServer(loop), [closed_phase(3, requests=10), closed_phase(2, requests=5)]
        )

    rows, _, _ = run_virtual(main)
    numbers = [sorted(row["seq"] for row in rows.rows if row["phase"] == phase) for phase in (0, 1)]
    assert numbers == [list(range(10)), list(range(5))]


def test_think_time_is_waited_until_an_absolute_time():
    async def main(loop):
        return await play(
            loop, VirtualServer(loop, service_ns=10 * MS), [closed_phase(1, requests=4, think_ns=90 * MS)]
        )

    rows, [result], _ = run_virtual(main)
    assert (rows.column("due_ns") - result.start_ns).tolist() == [0, 100 * MS, 200 * MS, 300 * MS]


def test_stopping_sends_no_more_and_ends_what_waits():
    async def main(loop):
        def meddle(engine):
            loop.call_later(1.0, engine.stop)

        server = VirtualServer(loop, service_ns=300 * MS)
        return await play(loop, server, [open_phase(GRID, 30)], cap=2, meddle=meddle)

    rows, [result], _ = run_virtual(main)
    outcomes = rows.column("outcome")
    stopped_ns = S + 20 * MS
    assert rows.column("sent_ns").max() <= stopped_ns
    assert (outcomes == Outcome.OK).sum() == 8  # 2 at a time, 300 ms each: 6 before the stop, 2 in flight
    assert (outcomes == Outcome.CANCELLED).sum() == 100 - 8
    assert result.end_ns < 1.4 * S


def test_cancel_in_flight_ends_a_hanging_request():
    async def main(loop):
        def meddle(engine):
            loop.call_later(1.0, engine.stop)
            loop.call_later(2.0, engine.cancel_in_flight)

        return await play(
            loop, VirtualServer(loop, service_ns=50 * S), [closed_phase(2, duration_s=30)], meddle=meddle
        )

    rows, _, _ = run_virtual(main)
    assert rows.column("outcome").tolist() == [Outcome.CANCELLED] * 2
    assert 1.9 * S < rows.column("done_ns").max() < 2.1 * S


def test_a_backlog_is_sent_at_once_when_the_loop_was_held_up():
    async def main(loop):
        def hold():
            loop.virtual_s += 0.5  # the loop itself stands still

        def meddle(engine):
            loop.call_later(1.0, hold)

        return await play(loop, VirtualServer(loop), [open_phase(GRID[:200], 2)], meddle=meddle)

    rows, [result], _ = run_virtual(main)
    lag = rows.column("sent_ns") - rows.column("due_ns")
    assert 0.48 * S < lag.max() < 0.51 * S
    assert (lag > 0).sum() >= 49
    assert result.loop_lag_ns["max"] > 0.45 * S  # and the client says so itself


def test_connect_failures_do_not_spin_a_closed_loop():
    async def main(loop):
        server = VirtualServer(loop, service_ns=0, outcome=Outcome.CONNECT)
        return await play(loop, server, [closed_phase(2, duration_s=1)])

    rows, _, _ = run_virtual(main)
    assert len(rows.rows) == 20


def test_the_garbage_collector_is_off_in_a_phase_and_on_after():
    seen = []

    async def main(loop):
        def meddle(engine):
            loop.call_later(0.5, lambda: seen.append(gc.isenabled()))

        return await play(loop, VirtualServer(loop), [open_phase([0], 1)], meddle=meddle)

    run_virtual(main)
    assert seen == [False]
    assert gc.isenabled()


def test_a_wall_clock_that_steps_changes_nothing(monkeypatch):
    """Case 49: NTP sets the wall clock back by 5 s in the middle of a run."""

    async def main(loop):
        real = time.time

        def meddle(engine):
            loop.call_later(0.5, lambda: monkeypatch.setattr(time, "time", lambda: real() - 5))

        return await play(loop, VirtualServer(loop), [open_phase(GRID[:100], 1)], meddle=meddle)

    rows, _, _ = run_virtual(main)
    assert set((rows.column("done_ns") - rows.column("due_ns")).tolist()) == {5 * MS}
    # and the clock of a real run is the monotonic one, which no one sets back
    assert MONOTONIC.now_ns is time.monotonic_ns


def test_the_load_of_a_closed_loop_ends_when_its_last_request_is_sent_not_when_a_straggler_is_done():
    async def main(loop):
        server = VirtualServer(loop, service_ns=lambda seq, _: 8 * S if seq == 99 else 10 * MS)
        return await play(loop, server, [closed_phase(4, requests=100)])

    _, [result], _ = run_virtual(main)
    assert result.load_end_ns - result.start_ns == pytest.approx(0.24 * S, abs=10 * MS)
    assert result.end_ns - result.start_ns > 8 * S


def test_a_user_with_nothing_left_to_send_does_not_think_first():
    async def main(loop):
        phases = [closed_phase(1, requests=2, think_ns=3 * S), closed_phase(1, duration_s=1, think_ns=20 * S)]
        return await play(loop, VirtualServer(loop, service_ns=10 * MS), phases)

    rows, [counted, timed], _ = run_virtual(main)
    assert len(rows.rows) == 3
    assert counted.end_ns - counted.start_ns == pytest.approx(3.02 * S, abs=MS)
    assert timed.end_ns - timed.start_ns < 1.1 * S


def test_the_clients_own_figures_end_with_the_load_not_with_the_drain():
    async def main(loop):
        return await play(loop, VirtualServer(loop, service_ns=10 * S), [open_phase(GRID[:100], 1)])

    _, [result], _ = run_virtual(main)
    assert result.loop_lag_ns["n"] == pytest.approx(50, abs=2)  # a probe each 20 ms of the first second
    assert result.end_ns - result.start_ns > 10 * S


def test_each_kind_gives_up_at_its_own_timeout_while_it_waits_at_the_cap():
    """An impatient request behind a patient one does not wait for it."""

    async def main(loop):
        server = VirtualServer(loop, service_ns=100 * S)
        phase = open_phase([0, 0.01, 0.02], 1)
        phase.kind[:] = [0, 0, 1]
        return await play(loop, server, [phase], cap=1, timeout_ns=[5 * S, 500 * MS])

    rows, _, _ = run_virtual(main)
    waited = {row["seq"]: row["done_ns"] - row["due_ns"] for row in rows.rows}
    assert {row["outcome"] for row in rows.rows} == {Outcome.TIMEOUT}
    assert waited[2] == pytest.approx(500 * MS, abs=20 * MS)
    assert waited[1] == pytest.approx(10 * S, abs=40 * MS)  # sent when the first gave up, then its own 5 s


def test_a_heartbeat_tells_what_is_in_flight_and_since_when():
    beats = []

    async def main(loop):
        def meddle(engine):
            loop.call_later(1.0, lambda: beats.append(engine.beat()))

        server = VirtualServer(loop, frozen=[(S // 2, 3 * S)])
        return await play(loop, server, [open_phase(GRID[:200], 2)], cap=20, meddle=meddle)

    run_virtual(main)
    [beat] = beats
    assert (beat["phase"], beat["in_flight"], beat["max_in_flight"]) == (0, 20, 20)
    assert beat["due"] == pytest.approx(100, abs=2)
    assert beat["sent"] - beat["ended"] == 20
    assert beat["waiting"] == beat["cap_waits"] == beat["due"] - beat["sent"]
    assert 0.49 * S < beat["oldest_due_ns"] < 0.52 * S


def test_what_the_transport_counts_is_told_phase_by_phase():
    async def main(loop):
        server = VirtualServer(loop)
        server.resent = 5

        def meddle(_):
            loop.call_later(0.5, lambda: setattr(server, "resent", 8))

        return await play(loop, server, [open_phase([0], 1), open_phase([0], 1)], meddle=meddle)

    _, results, _ = run_virtual(main)
    assert [r.resent for r in results] == [3, 0]
