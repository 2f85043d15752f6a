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


def test_one_straggler_moves_an_open_rate_by_one_request():
    due = np.arange(1000) / 100
    done = due + 0.01
    done[-1] = 24.0
    assert rate(frame(due, done), 10) == pytest.approx(99.9)


@pytest.mark.parametrize("asked", [60, 100, 500, 2000])
def test_an_overloaded_server_shows_its_own_rate_however_long_the_drain(asked):
    due = np.arange(asked * 10) / asked
    assert rate(frame(due, fifo(due, 0.02)), 10) == pytest.approx(50.0, rel=0.01)


def test_the_bias_of_a_server_that_keeps_up_is_the_mean_distance_from_the_median():
    rng = np.random.default_rng(1)
    found, stated = [], []
    for _ in range(150):
        due = np.sort(rng.random(rng.poisson(200)) * 5)
        latency = rng.lognormal(np.log(0.3), 0.5, due.size)
        found.append(rate(frame(due, due + latency), 5) / (due.size / 5) - 1)
        stated.append(-float(np.mean(np.abs(latency - np.median(latency)))) / 5)
    assert np.mean(stated) < -0.02
    assert np.mean(found) == pytest.approx(np.mean(stated), abs=0.004)


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
