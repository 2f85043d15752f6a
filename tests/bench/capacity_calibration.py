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


FIRST_SEED = 1000  # the constants of the search were chosen on those before
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
# Rates by `measured_truth` (24,000 s at each of four loads; its error is about 0.3 %).  Users by formula: with N > 4 users
# a response is Erlang(N - 4, 100/s) + exponential(40 ms); its P99 is 299.3 ms with 14 users and 310.8 ms with 15.
TRUTH = {
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


def trial(kind, seed):
    """(answer, truth, seconds of load) of one search."""
    answer, probes = search(kind, seed)
    return answer, TRUTH[kind], sum(one.seconds for one in probes)


def measured_truth(kind, seconds=8000.0):
    """The load with 1 % beyond the limit: a line through log shares of long simulations near it."""
    simulate, limit, *_ = SERVERS[kind]
    near = np.array([0.975, 0.99, 1.005, 1.02]) * TRUTH[kind]
    logs = []
    for load in near:
        runs = [simulate(load, seconds, np.random.default_rng(100 + seed)) for seed in range(3)]
        late = np.concatenate([response[due > 20] > limit for due, response in runs])
        logs.append(np.log(late.mean() / 0.01))
    slope, intercept = np.polyfit(near, logs, 1)
    return -intercept / slope


def rows(seeds):
    """Of each server what its searches came to, as a dictionary of figures."""
    for kind, true in TRUTH.items():
        found = [trial(kind, seed) for seed in range(FIRST_SEED, FIRST_SEED + seeds)]
        answers, seconds = [one[0] for one in found], [one[2] for one in found]
        value = np.array([one.value or np.nan for one in answers])
        low = np.array([one.low or 0.0 for one in answers])
        high = np.array([np.inf if one.high is None else one.high for one in answers])
        whole = SERVERS[kind][3]
        yield {
            "server": kind,
            "true": true,
            "within": "1 user" if whole else "5 %",
            "near": float((np.abs(value - true) <= (1 if whole else 0.05 * true)).mean()),
            "held": float(((low <= true) & (true <= high)).mean()),
            "bias": float(np.nanmean(value) / true - 1),
            "half_width": float(np.median(high - low) / 2 / true),
            "decided": float(np.mean([one.answer == "found" for one in answers])),
            "seconds": float(np.median(seconds)),
            "most_seconds": float(max(seconds)),
        }


def main(seeds):
    for row in rows(seeds):
        print(
            f"{row['server']}: true {row['true']:g}; within {row['within']} {row['near']:.2f}, held {row['held']:.2f}, "
            f"bias {row['bias']:+.3f}, half width {row['half_width']:.3f}, decided {row['decided']:.2f}, "
            f"load {row['seconds']:.0f} s (at most {row['most_seconds']:.0f} s)",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
