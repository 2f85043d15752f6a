"""Searches for the capacity of simulated servers whose truth is known.

`python -m tests.bench.capacity_calibration [SEEDS]` prints how far the answers were from the truth, how often their
interval held it, and for how long they probed.
"""

import heapq
import sys

import numpy as np

from loadgen.analysis.capacity import Capacity, Probe, Settings, batched, filling_seconds, next_step


def queue(rate, seconds, servers, service, rng):
    """Response times of a queue first come, first served, and when they were due; from empty."""
    due = np.cumsum(rng.exponential(1 / rate, int(rate * seconds + 6 * np.sqrt(rate * seconds) + 10)))
    due = due[due < seconds]
    took = service(rng, due.size)
    free = [0.0] * servers
    found = np.empty(due.size)
    for i, at in enumerate(due.tolist()):
        begin = max(free[0], at)
        heapq.heapreplace(free, begin + took[i])
        found[i] = begin + took[i] - at
    return due, found


def batches(rate, seconds, rng, fixed=0.002, per_row=0.0005, rows=8):
    """The same of a server that takes all that wait, at most 8, at once."""
    due = np.cumsum(rng.exponential(1 / rate, int(rate * seconds + 6 * np.sqrt(rate * seconds) + 10)))
    due = due[due < seconds]
    found, free, i, n = np.empty(due.size), 0.0, 0, due.size
    while i < n:
        begin = max(free, due[i])
        j = min(int(np.searchsorted(due[i : i + rows], begin, "right")) + i, n)
        free = begin + fixed + per_row * (j - i)
        found[i:j] = free - due[i:j]
        i = j
    return due, found


def users(number, seconds, slots, mean_s, rng):
    """The same of a closed loop of users without thinking, on a server with so many slots."""
    free, waiting, found, due = [0.0] * slots, [(0.0, user) for user in range(int(number))], [], []
    heapq.heapify(waiting)
    took = iter(rng.exponential(mean_s, int(seconds * slots / mean_s * 1.2) + 1000).tolist())
    while waiting[0][0] < seconds:
        at, user = waiting[0]
        end = max(free[0], at) + next(took)
        heapq.heapreplace(free, end)
        found.append(end - at)
        due.append(at)
        heapq.heapreplace(waiting, (end, user))
    return np.array(due), np.array(found)


# kind: (simulation, limit of P99 in s, true capacity, first load, whole)
SERVERS = {
    "M/G/4, lognormal service": (
        lambda load, s, rng: queue(
            load, s, 4, lambda r, n: r.lognormal(np.log(0.004) - 0.32, 0.8, n).tolist(), rng
        ),
        0.03,
        100.0,
        False,
    ),
    "batch server, 8 rows": (batches, 0.015, 100.0, False),
    "4 slots, users": (lambda load, s, rng: users(load, s, 4, 0.04, rng), 0.3, 2.0, True),
}
# by `measured_truth`: the rate (users: the highest number) with 1 % beyond the limit
TRUTH = {  # 20,000 s of a ten times slower server
    "M/G/4, lognormal service": 823.0,
    "batch server, 8 rows": 1062.0,
    "4 slots, users": 14.0,
}


def cut(due, response, seconds, most):
    """(seconds, due, response) up to the moment at which more than `most` requests are in flight."""
    in_flight = np.arange(1, due.size + 1) - np.searchsorted(np.sort(due + response), due)
    over = np.flatnonzero(in_flight > most)
    if not over.size:
        return seconds, due, response
    end = due[over[0]] + 0.5  # it looks twice a second
    return min(end, seconds), due[due <= end], response[due <= end]


def probe(kind, load, seconds, rng):
    """As the driver makes one of a real run."""
    simulate, limit, _, whole = SERVERS[kind]
    due, response = simulate(load, seconds, rng)
    if not whole:  # the driver ends the load when so many are in flight
        seconds, due, response = cut(due, response, seconds, max(200, 10 * load * limit))
    kept = response[due >= filling_seconds(seconds, limit)]
    late = kept > limit
    return Probe(load, seconds, (batched(0.01, late),))


def search(kind, seed, **changes):
    """(answer, probes) of one search."""
    _, _, first, whole = SERVERS[kind]
    settings = Settings(
        **{"first_load": first, "least_load": 1.0, "most_load": 10_000.0, "whole": whole, **changes}
    )
    rng, probes = np.random.default_rng([seed, list(SERVERS).index(kind)]), []
    while not isinstance(step := next_step(settings, probes), Capacity):
        probes.append(probe(kind, step.load, step.seconds, rng))
    return step, probes


def measured_truth(kind, seconds=20_000.0, seed=1):
    """The load with 1 % beyond the limit, by bisection over long simulations from one seed."""
    simulate, limit, *_ = SERVERS[kind]
    low, high = 10.0, 400.0
    while high - low > 0.05:
        load = (low + high) / 2
        due, response = simulate(load, seconds, np.random.default_rng(seed))
        low, high = (low, load) if (response[due > 100] > limit).mean() > 0.01 else (load, high)
    return (low + high) / 2


def main(seeds):
    for kind, true in TRUTH.items():
        found = [search(kind, seed)[0] for seed in range(seeds)]
        value = np.array([one.value or np.nan for one in found])
        off = np.abs(value - true) <= 1 if SERVERS[kind][3] else np.abs(value / true - 1) <= 0.05
        held = [one.low is not None and one.high is not None and one.low <= true <= one.high for one in found]
        answers = {name: sum(one.answer == name for one in found) for name in {one.answer for one in found}}
        print(
            f"{kind}: true {true:g}; near {off.mean():.2f}, held {np.mean(held):.2f}, bias {np.nanmean(value) / true - 1:+.3f}, "
            f"half width {np.median([(one.high - one.low) / 2 / true for one in found if one.high and one.low]):.3f}, "
            f"probed {np.median([one.seconds for one in found]):.0f} s (at most {max(one.seconds for one in found):.0f}), {answers}",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
