"""The open loop's rate against simulated servers whose truth is known: `python -m tests.bench.rates [RUNS]`.

Prints the mean of |bias| over all cases, and those with more than 1.2 % in the mean or 4 % in one of twenty runs.
Truth: what was answered over the load where the server kept up; else what ended within the load, or its capacity.
"""

import heapq
import sys

import numpy as np

from loadgen.records import Outcome
from tests.unit.test_analysis_rates import frame, rate

REJECTED = int(Outcome.REJECTED)
ARRIVALS = {
    "poisson": lambda per_s, load_s, rng: np.sort(rng.random(rng.poisson(per_s * load_s)) * load_s),
    "uniform": lambda per_s, load_s, rng: np.arange(int(per_s * load_s)) / per_s,
    "whole seconds": lambda per_s, load_s, rng: np.repeat(np.arange(float(load_s)), int(per_s)),
    "ramp": lambda per_s, load_s, rng: (
        np.sqrt((np.arange(int(per_s * load_s)) + 0.5) / int(per_s * load_s)) * load_s
    ),
    "gamma 4": lambda per_s, load_s, rng: (
        at := np.cumsum(rng.gamma(0.25, 4 / per_s, int(2 * per_s * load_s)))
    )[at < load_s],
}
LATENCIES = {
    "constant": lambda rng, n: np.full(n, 0.5),
    "lognormal 2 s": lambda rng, n: rng.lognormal(np.log(2) - 0.125, 0.5, n),
    "exponential 1 s": lambda rng, n: rng.exponential(1, n),
    "two sorts": lambda rng, n: np.where(rng.random(n) < 0.3, 6.0, 0.5),
}


def queue(due, service, servers=1, limit=None):
    """(ends, outcomes) of a queue first come first served; more than `limit` in it are turned away."""
    free, inside = [0.0] * servers, []
    done, ends = np.empty(due.size), np.zeros(due.size, int)
    for i, at in enumerate(due):
        while inside and inside[0] <= at:
            heapq.heappop(inside)
        if limit is not None and len(inside) >= limit:
            done[i], ends[i] = at + 0.001, REJECTED
            continue
        done[i] = max(heapq.heappop(free), at) + service(i, at)
        heapq.heappush(free, done[i])
        heapq.heappush(inside, done[i])
    return done, ends


def serial(due, step):
    """Ends of one server whose service time hangs on when it begins."""
    free, done = 0.0, []
    for at in due:
        begin = max(free, at)
        free = begin + step(begin)
        done.append(free)
    return np.array(done)


def independent(rng, load_s, arrivals, law, share):
    due = ARRIVALS[arrivals](50, load_s, rng)
    ends = np.where(rng.random(due.size) < share, REJECTED, 0)
    done = due + np.where(ends > 0, 0.001, LATENCIES[law](rng, due.size))
    return due, done, ends, np.count_nonzero(ends == 0) / load_s


def one_queue(rng, load_s, rho, law):
    due = ARRIVALS["poisson"](100 * rho, load_s, rng)
    service = rng.exponential(0.01, due.size) if law == "M" else np.full(due.size, 0.01)
    done, ends = queue(due, lambda i, _: service[i])
    return due, done, ends, (due.size if rho < 1 else np.count_nonzero(done <= load_s)) / load_s


def bounded(rng, load_s, limit, rho):
    due = ARRIVALS["poisson"](100 * rho, load_s, rng)
    done, ends = queue(due, lambda *_: 0.01, limit=limit)
    in_load = np.count_nonzero((done <= load_s) & (ends == 0)) / load_s
    return due, done, ends, 100 if rho > 1.1 else in_load


def slots(rng, load_s, per_s, limit):
    """50 slots that take 5 s each."""
    due = ARRIVALS["poisson"](per_s, load_s, rng)
    service = rng.exponential(5, due.size)
    done, ends = queue(due, lambda i, _: service[i], 50, limit)
    return due, done, ends, 10


def busy(rng, load_s):
    """Slower with more in flight, and stable."""
    due, running, done = ARRIVALS["poisson"](6, load_s, rng), [], []
    for at in due:
        running = [end for end in running if end > at]
        running.append(at + 2 + 0.1 * len(running))
        done.append(running[-1])
    return due, np.array(done), np.zeros(due.size, int), due.size / load_s


def changing(rng, load_s, arrivals, step, *, keeps_up):
    due = ARRIVALS[arrivals](100, load_s, rng)
    done = serial(due, lambda at: step(at / load_s))
    return (
        due,
        done,
        np.zeros(due.size, int),
        (due.size if keeps_up else np.count_nonzero(done <= load_s)) / load_s,
    )


def paused(rng, load_s):
    due = ARRIVALS["poisson"](100, load_s, rng)
    done, at = due + 0.01, load_s * 0.4
    done[(done > at) & (done < at + 2)] = at + 2
    return due, done, np.zeros(due.size, int), due.size / load_s


def cases():
    """(name, load in s, simulation)."""
    for load_s in (10, 20, 60):
        for arrivals in ARRIVALS:
            for law in LATENCIES:
                for share in (0, 0.02, 0.06):
                    yield (
                        f"{arrivals}, {law}, {share:.0%} rejected",
                        load_s,
                        independent,
                        (arrivals, law, share),
                    )
        for rho in (0.5, 0.9, 1.05, 1.1, 1.2, 1.5, 4):
            for law in ("D", "M"):
                yield f"M/{law}/1 at {rho}", load_s, one_queue, (rho, law)
        for limit in (20, 100):
            for rho in (1.1, 1.5, 4):
                yield f"queue of {limit} at {rho}", load_s, bounded, (limit, rho)
        yield "50 slots, rejecting, at 2", load_s, slots, (20, 50)
        yield "50 slots at 1.2", load_s, slots, (12, None)
        yield "slower when busy", load_s, busy, ()
        yield "pause of 2 s", load_s, paused, ()
        yield from changes(load_s)


def changes(load_s):
    for name, arrivals, step, keeps_up in (
        ("25/s from 0.85 on", "uniform", lambda at: 1 / (200 if at < 0.85 else 25), False),
        ("10/s from 0.9 on", "uniform", lambda at: 1 / (200 if at < 0.9 else 10), False),
        ("a slow third, then as asked", "uniform", lambda at: 1 / (50 if at < 1 / 3 else 100), False),
        ("a slow third, then faster", "poisson", lambda at: 1 / (50 if at < 1 / 3 else 300), True),
        ("ramp through saturation", "ramp", lambda _: 0.01, False),
    ):  # fmt: skip

        def simulate(rng, load_s, arrivals=arrivals, step=step, keeps_up=keeps_up):
            return changing(rng, load_s, arrivals, step, keeps_up=keeps_up)

        yield name, load_s, simulate, ()


def main():
    runs, rows = int(sys.argv[1]) if len(sys.argv) > 1 else 20, []
    for name, load_s, simulate, given in cases():
        rng, errors = np.random.default_rng(1), []
        for _ in range(runs if load_s < 60 else max(6, runs // 3)):
            due, done, ends, truth = simulate(rng, load_s, *given)
            errors.append(rate(frame(due, done, ends), load_s) / truth - 1)
        rows.append((float(np.mean(errors)), float(np.percentile(np.abs(errors), 95)), f"{name}, {load_s} s"))
    bad = sorted((row for row in rows if abs(row[0]) > 0.012 or row[1] > 0.04), key=lambda row: -abs(row[0]))
    print(f"{len(rows)} cases, mean |bias| {np.mean([abs(row[0]) for row in rows]):.2%}; listed: {len(bad)}")
    for mean, most, name in bad:
        print(f"{name:50} {mean:8.2%}   95 % of runs within {most:.2%}")


if __name__ == "__main__":
    main()
