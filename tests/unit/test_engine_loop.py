"""The careful loop in virtual time: due times, caps, timeouts, closed loops, stopping."""

import asyncio
import gc

import numpy as np
import pytest

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

    rows, [result], engine = run_virtual(main)
    outcomes = rows.column("outcome")
    stopped_ns = S + 20 * MS
    assert rows.column("sent_ns").max() <= stopped_ns
    assert (outcomes == Outcome.OK).sum() == 8  # 2 at a time, 300 ms each: 6 before the stop, 2 in flight
    assert (outcomes == Outcome.CANCELLED).sum() == 100 - 8
    assert result.end_ns < 1.4 * S
    assert engine.stopped


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
    assert not asyncio.all_tasks(asyncio.new_event_loop())


def test_a_wall_clock_that_steps_changes_nothing(monkeypatch):
    """Case 49: NTP sets the wall clock back by 5 s in the middle of a run."""
    import time

    async def main(loop):
        real = time.time

        def meddle(engine):
            loop.call_later(0.5, lambda: monkeypatch.setattr(time, "time", lambda: real() - 5))

        return await play(loop, VirtualServer(loop), [open_phase(GRID[:100], 1)], meddle=meddle)

    rows, _, _ = run_virtual(main)
    assert set((rows.column("done_ns") - rows.column("due_ns")).tolist()) == {5 * MS}
