"""How often each state of the steady state is given to simulated phases whose truth is known.

`python -m tests.bench.steady [RUNS]` prints the table of docs/steady-state.md.  Seeded: the same table every time.
"""

import sys

import numpy as np

from loadgen.analysis.steady_state import LEAST, State, steady_state
from tests.bench.queues import autoregressive, bimodal, mm1

SEED, RUNS = 20261201, 200
S, MS, PER_S = 10**9, 10**6, 100
SHOWN = (State.SETTLED, State.WARMING_UP, State.DRIFT, State.NEVER_SETTLED)


def exponential(runs, n, rng):
    return rng.exponential(1, (runs, n))


def lognormal(runs, n, rng):
    """Of a spread of 30 %, as of one model on one device."""
    return rng.lognormal(0, 0.3, (runs, n))


def growing_queue(runs, n, rng):
    """Even arrivals to one server of exponential service times, 10 % more than it can answer; empty at first."""
    steps = np.cumsum(rng.exponential(1, (runs, n)) - 1 / 1.1, axis=1)
    waiting = steps - np.minimum.accumulate(np.minimum(steps, 0), axis=1)
    return waiting + 1 / 1.1


def decay(law, length, size):
    """Service times that fall from `size` times to once, 95 % of the way within `length` of the phase."""
    return lambda runs, n, rng: law(runs, n, rng) * (1 + (size - 1) * np.exp(-3 * np.arange(n) / n / length))


def grown(law, by):
    return lambda runs, n, rng: law(runs, n, rng) * (1 + by * np.arange(n) / n)


def step(law, by):
    return lambda runs, n, rng: law(runs, n, rng) * np.where(np.arange(n) < n / 2, 1, by)


def disturbed(law, by):
    return lambda runs, n, rng: law(runs, n, rng) * np.where(abs(np.arange(n) / n - 0.55) < 0.1, by, 1)


STEADY = {
    "steady, exponential": exponential,
    "steady, lognormal": lognormal,
    "steady, bimodal": bimodal,
    "steady, AR(1), 0.9": lambda runs, n, rng: autoregressive(0.9, runs, n, rng),
    "steady, M/M/1, load 0.5": lambda runs, n, rng: mm1(0.5, runs, n, rng),
    "steady, M/M/1, load 0.8": lambda runs, n, rng: mm1(0.8, runs, n, rng),
}
LAWS = {"exponential": exponential, "lognormal": lognormal}
MOVING = (
    {
        f"warm-up {length:.0%}, {size:g}x, {name}": (decay(law, length, size), length / 3 * np.log((size - 1) / LEAST))
        for name, law in LAWS.items()
        for length in (0.1, 0.3, 0.6)
        for size in (1.3, 2, 10)
    }
    | {f"step to {by:g}x in the middle, {name}": (step(law, by), None) for name, law in LAWS.items() for by in (1.5, 3)}
    | {f"{by:g}x for a fifth of the time, {name}": (disturbed(law, by), None) for name, law in LAWS.items() for by in (1.5, 3)}
    | {f"drift +{by:.0%}, {name}": (grown(law, by), None) for name, law in LAWS.items() for by in (0.2, 1)}
    | {"growing queue, load 1.1": (growing_queue, None)}
)  # fmt: skip
CASES = {name: (law, None) for name, law in STEADY.items()} | MOVING


def found(law, runs, n, rng):
    """The steady state of each of `runs` phases of `n` requests at PER_S, Poisson arrivals; service is 10 ms a unit."""
    for times in law(runs, n, rng):
        at = np.sort(rng.integers(0, n * S // PER_S, n))
        took = np.maximum(times * 10 * MS, 1).astype(np.int64)
        yield steady_state(at, took, at + took, took, (0, n * S // PER_S), constant=True)


def row(name, n, runs):
    """Shares of the states, and the median error of the detected start as a share of the phase."""
    law, true = CASES[name]
    states = list(found(law, runs, n, np.random.default_rng([SEED, list(CASES).index(name), n])))
    shares = [sum(one.state is state for one in states) / runs for state in SHOWN]
    starts = [one.detected.start_ns / one.declared.end_ns for one in states if one.state is State.WARMING_UP]
    error = float(np.median(starts)) - true if starts and true is not None else None
    return shares, error


def main(runs=RUNS):
    print("| case | requests | settled | warming up | drift | never settled | start, median error |")
    print("|---|---|---|---|---|---|---|")
    for name in CASES:
        for n in (1000, 5000, 20_000) if name in STEADY else (1000, 5000):
            shares, error = row(name, n, runs)
            cells = [f"{share:.1%}" if share else "-" for share in shares]
            cells.append("" if error is None else f"{error:+.0%}")
            print("| " + " | ".join([name, f"{n:,}", *cells]) + " |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
