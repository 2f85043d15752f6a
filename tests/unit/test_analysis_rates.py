"""The rule of rates against small simulations whose truth is known."""

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.analysis.columns import Columns
from loadgen.analysis.frame import Frame
from loadgen.analysis.rates import window
from loadgen.records import Outcome
from tests.support.runs import S


def frame(due_s, done_s, outcome=None):
    due, done = ((np.asarray(at) * S).round().astype(np.int64) for at in (due_s, done_s))
    zero = np.zeros(due.size, dtype=np.int64)
    ends = zero if outcome is None else np.asarray(outcome, dtype=np.int64)
    return Frame(
        Columns(np.arange(due.size), zero, zero, due, due, done, zero, zero + 1, ends, zero, zero - 1)
    )


def rate(rows, load_s, loop="open", **told):
    found = window(rows, {"start_ns": 0, "load_end_ns": round(load_s * S), "loop": loop, **told})
    return float(found.share.sum()) * 1e9 / found.span_ns


def fifo(due, service):
    """One server, first come first served."""
    free, done = 0.0, []
    for at in due:
        free = max(free, at) + service
        done.append(free)
    return done


def closed(rng, users, draw, load_s=None, requests=None, think=0.0):
    """N users, as the engine sends: (frame, when the load ended)."""
    ready, due, done = [(0.0, user) for user in range(users)], [], []
    while ready:
        at, user = heapq.heappop(ready)
        if (load_s is not None and at >= load_s) or (requests is not None and len(due) >= requests):
            continue
        due.append(at)
        done.append(at + draw(rng))
        heapq.heappush(ready, (done[-1] + think, user))
    return frame(due, done), load_s if load_s is not None else due[-1]


@pytest.mark.parametrize("service", [0.001, 0.6, 2.4])
def test_a_server_that_keeps_up_shows_the_rate_asked_whatever_its_service_time(service):
    due = np.arange(100) / 20
    assert rate(frame(due, due + service), 5) == pytest.approx(20.0)


def test_one_straggler_moves_an_open_rate_by_at_most_one_request():
    due = np.arange(1000) / 100
    for at in (0, 500, 999):
        done = due + 0.01
        done[at] = due[at] + 14.0
        assert 99.9 - 1e-6 <= rate(frame(due, done), 10) <= 100 + 1e-6


@pytest.mark.parametrize("asked", [60, 100, 500, 2000])
def test_an_overloaded_server_shows_its_own_rate_however_long_the_drain(asked):
    due = np.arange(asked * 10) / asked
    assert rate(frame(due, fifo(due, 0.02)), 10) == pytest.approx(50.0, rel=0.01)


def test_a_server_that_keeps_up_shows_the_rate_asked_however_its_latency_spreads():
    rng = np.random.default_rng(1)
    found = []
    for _ in range(150):
        due = np.sort(rng.random(rng.poisson(200)) * 5)
        latency = rng.lognormal(np.log(0.3), 0.5, due.size)
        found.append(rate(frame(due, due + latency), 5) / (due.size / 5) - 1)
    assert np.mean(found) == pytest.approx(0, abs=0.002)
    assert np.mean(np.abs(found) > 0.01) <= 0.02


ARRIVALS = {
    "whole seconds": lambda rng, n: np.repeat(np.arange(10.0), -(-n // 10))[:n],
    "whole seconds, the last at the end": lambda rng, n: np.repeat(np.arange(1.0, 11.0), -(-n // 10))[:n],
    "uniform from 0": lambda rng, n: np.arange(n) * 10 / n,
    "uniform to the end": lambda rng, n: (np.arange(n) + 1) * 10 / n,
    "poisson": lambda rng, n: np.sort(rng.random(n) * 10),
    "all at the start": lambda rng, n: np.zeros(n),
    "all at the end": lambda rng, n: np.full(n, 10.0),
    "ramp": lambda rng, n: np.sqrt((np.arange(n) + 0.5) / n) * 10,
    "two bursts": lambda rng, n: np.repeat([4.99, 9.99], [n // 2, n - n // 2]),
}
LATENCIES = {
    "constant": lambda rng, n: np.full(n, 0.05),
    "uniform": lambda rng, n: rng.uniform(0.005, 0.05, n),
    "lognormal": lambda rng, n: np.minimum(rng.lognormal(np.log(0.02), 0.7, n), 0.09),
    "two sorts": lambda rng, n: np.where(rng.random(n) < 0.1, 0.09, 0.004),
}


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(sorted(ARRIVALS)), st.sampled_from(sorted(LATENCIES)), st.integers(1, 600),
    st.integers(0, 2**32),
)  # fmt: skip
def test_what_was_answered_is_what_was_asked_for_any_arrivals_and_latencies(arrivals, law, n, seed):
    rng = np.random.default_rng(seed)
    due = ARRIVALS[arrivals](rng, n)
    done = due + LATENCIES[law](rng, n)
    order = rng.permutation(n)  # records lie in no order that counts
    assert rate(frame(due[order], done[order]), 10) == pytest.approx(n / 10, rel=0.01)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10 * S), st.integers(0, S // 10)), min_size=1, max_size=60))
def test_no_arrivals_however_odd_bend_the_rate_of_a_server_that_answers_soon(pairs):
    due, latency = np.array(pairs, dtype=float).T / S
    assert rate(frame(due, due + latency), 10) == pytest.approx(len(pairs) / 10, rel=0.0101)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["whole seconds", "uniform from 0", "uniform to the end"]),
    st.floats(1.5, 6), st.sampled_from([20, 50, 100]),
)  # fmt: skip
def test_an_overloaded_server_shows_its_capacity_for_any_arrivals(arrivals, times, capacity):
    due = ARRIVALS[arrivals](None, round(times * capacity * 10))
    began = due[0]
    shown = rate(frame(due - began, np.array(fifo(due, 1 / capacity)) - began), 10)
    assert shown == pytest.approx(capacity, rel=0.02)


@pytest.mark.parametrize("times", [1.05, 1.1, 1.5, 4.0])
@pytest.mark.parametrize("limit", [20, 100])
def test_a_full_queue_that_rejects_does_not_lend_its_length_to_the_rate(times, limit):
    capacity, due = 100, np.arange(round(times * 1000)) / (times * 100)
    free, ends, done = 0.0, [], []
    waiting = []
    for at in due:
        waiting = [end for end in waiting if end > at]
        full = len(waiting) >= limit
        free = free if full else max(free, at) + 1 / capacity
        waiting += [] if full else [free]
        ends.append(Outcome.REJECTED if full else Outcome.OK)
        done.append(at + 0.001 if full else free)
    assert rate(frame(due, done, ends), 10) == pytest.approx(capacity, rel=0.015)


def test_random_arrivals_and_services_under_overload_are_unbiased():
    rng, found = np.random.default_rng(4), []
    for _ in range(40):
        due = np.sort(rng.random(rng.poisson(1500)) * 10)
        free, done = 0.0, []
        for at in due:
            free = max(free, at) + rng.exponential(0.01)
            done.append(free)
        found.append(rate(frame(due, done), 10) / 100)
    assert np.mean(found) == pytest.approx(1, abs=0.02)


def test_a_queue_answered_in_any_order_shows_the_same_capacity():
    rng = np.random.default_rng(5)
    due = np.arange(2000) / 200
    waiting, done, now, came = [], np.empty(due.size), 0.0, 0
    while came < due.size or waiting:
        now = max(now, due[came]) if not waiting else now
        while came < due.size and due[came] <= now:
            waiting.append(came)
            came += 1
        now += 0.01
        done[waiting.pop(rng.integers(len(waiting)))] = now
    assert rate(frame(due, done), 10) == pytest.approx(100, rel=0.01)


def test_a_ramp_through_saturation_counts_what_the_server_did_in_the_load():
    """0 to 200/s in 10 s on 100/s: 750 of 1,000 are answered by its end."""
    due = np.sqrt((np.arange(1000) + 0.5) / 1000) * 10
    assert rate(frame(due, fifo(due, 0.01)), 10) == pytest.approx(75, rel=0.01)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.02, 0.05, 0.2])
@pytest.mark.parametrize("how", ["lognormal", "two sorts"])
def test_requests_turned_away_do_not_make_slow_answers_a_backlog(share, how):
    """Of latencies that do not depend on the load, a tenth of it in the mean: unbiased within 1.5 %."""
    rng, found = np.random.default_rng(6), []
    for _ in range(60):
        due = np.sort(rng.random(rng.poisson(1000)) * 20)
        law = rng.lognormal(np.log(2) - 0.125, 0.5, due.size)
        latency = law if how == "lognormal" else np.where(rng.random(due.size) < 0.3, 6.0, 0.3)
        ends = np.where(rng.random(due.size) < share, int(Outcome.REJECTED), 0)
        done = due + np.where(ends > 0, 0.001, latency)
        found.append(rate(frame(due, done, ends), 20) / (np.count_nonzero(ends == 0) / 20))
    assert np.mean(found) == pytest.approx(1, abs=0.015)


@pytest.mark.parametrize(("at", "then"), [(0.85, 25), (0.9, 10), (0.5, 20)])
def test_a_server_that_collapses_towards_the_end_shows_what_it_did(at, then):
    due = np.arange(3000) / 100
    free, done = 0.0, []
    for when in due:
        start = max(free, when)
        free = start + 1 / (200 if start < at * 30 else then)
        done.append(free)
    assert rate(frame(due, done), 30) == pytest.approx(np.count_nonzero(np.array(done) <= 30) / 30, rel=0.01)


def test_a_server_that_was_slow_first_and_caught_up_shows_the_rate_asked():
    due = np.arange(3000) / 100
    free, done = 0.0, []
    for when in due:
        start = max(free, when)
        free = start + 1 / (50 if start < 10 else 300)
        done.append(free)
    assert rate(frame(due, done), 30) == pytest.approx(100, rel=1e-6)


def test_a_server_that_is_slower_when_busy_and_keeps_up_shows_the_rate_asked():
    due = np.arange(180) / 6
    running, done = [], []
    for at in due:
        running = [end for end in running if end > at]
        running.append(at + 2 + 0.1 * len(running))
        done.append(running[-1])
    assert rate(frame(due, done), 30) == pytest.approx(6, rel=0.01)


@pytest.mark.parametrize(("n", "shown"), [(4, 0.2), (8, 0.2), (40, 0.2)])
def test_a_few_requests_one_after_the_other_far_beyond_the_load_are_no_rate_of_the_load(n, shown):
    due = np.arange(n) / n
    assert rate(frame(due, fifo(due, 5.0)), 1) == pytest.approx(shown, rel=0.02)


def test_answers_longer_than_the_load_that_all_take_the_same_keep_up():
    due = np.arange(100) / 100
    assert rate(frame(due, due + 3), 1) == pytest.approx(100)


@pytest.mark.parametrize("how", ["duration", "requests"])
@pytest.mark.parametrize("think", [0.0, 0.5])
@pytest.mark.parametrize(
    ("draw", "spread"),
    [(lambda rng: 0.1, 0.0), (lambda rng: rng.uniform(0.08, 0.12), 0.115), (lambda rng: rng.exponential(0.1), 1.0)],
    ids=["constant", "jitter", "exponential"],
)  # fmt: skip
def test_a_closed_loop_is_unbiased_to_first_order(how, think, draw, spread):
    """8 users: 8 / (mean cycle), with the stated second-order term, in step or not, with or without thinking."""
    rng, cycle = np.random.default_rng(2), 0.1 + think
    found = []
    for _ in range(80):
        length = {"load_s": rng.uniform(5, 6)} if how == "duration" else {"requests": int(44 / cycle)}
        rows, load_s = closed(rng, 8, draw, think=think, **length)
        found.append(rate(rows, load_s, "closed", think_ns=round(think * S)) * cycle / 8)
    stated = cycle * (spread * 0.1 / cycle) ** 2 / 2 / 5.5
    assert np.mean(found) == pytest.approx(1 + stated, abs=0.006 if spread else 1e-6)


def test_one_straggler_among_the_requests_of_a_closed_loop_does_not_stretch_the_span():
    rows, load_s = closed(np.random.default_rng(3), 10, lambda _: 0.0133, requests=1000)
    done, ends = rows.done_ns / S, np.zeros(1000)
    done[500], ends[500] = rows.due_ns[500] / S + 8, Outcome.TIMEOUT
    assert rate(frame(rows.due_ns / S, done, ends), load_s, "closed") == pytest.approx(10 / 0.0133, rel=0.002)


@pytest.mark.parametrize(("loop", "load_s"), [("open", 0.05), ("closed", 0.05), ("closed", 0.0)])
def test_one_request_longer_than_its_phase_is_one_in_the_time_it_took(loop, load_s):
    found = window(frame([0.0], [0.3]), {"start_ns": 0, "load_end_ns": round(load_s * S), "loop": loop})
    assert (found.span_ns, found.share.tolist()) == (300_000_000, [1.0])


def test_failures_are_in_no_rate():
    due = np.arange(100) / 10
    ends = np.where(np.arange(100) % 4 == 0, int(Outcome.HTTP_5XX), 0)
    assert rate(frame(due, due + 0.01, ends), 10) == pytest.approx(7.5)
    assert rate(frame(due, due + 0.01, ends), 10, "closed") == pytest.approx(7.5)


def test_after_the_last_sign_of_life_no_time_counts():
    due = np.arange(500) / 100
    rows = frame(due, due + 0.5)
    seen = rows.where(rows.done_ns <= 5 * S)
    assert rate(seen, 5, seen_ns=5 * S) == pytest.approx(100.0, rel=0.01)


def test_an_overloaded_server_whose_run_was_killed_shows_its_capacity():
    due = np.arange(2000) / 200
    rows = frame(due, fifo(due, 0.01))
    seen = rows.where(rows.done_ns <= 5 * S)
    assert rate(seen, 5, seen_ns=5 * S) == pytest.approx(100, rel=0.02)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 10**10), st.integers(0, 10**10)), min_size=1, max_size=40),
    st.sampled_from(["open", "closed"]),
)
def test_no_request_counts_more_than_once_and_the_span_is_the_load_or_longer(pairs, loop):
    due, latency = np.array(pairs, dtype=float).T / S
    found = window(frame(due, due + latency), {"start_ns": 0, "load_end_ns": 10 * S, "loop": loop})
    assert found.span_ns >= 10 * S
    assert ((found.share >= 0) & (found.share <= 1)).all()
    assert (found.asked >= found.share).all()
