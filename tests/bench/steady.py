"""How often each state of the steady state is given to simulated phases whose truth is known.

`python -m tests.bench.steady [RUNS]` prints the table of docs/steady-state.md.  Seeded: the same table every time.
"""

import sys

import numpy as np

from loadgen.analysis.steady_state import LEAST, State, steady_state
from tests.bench.queues import autoregressive, bimodal

SEED, RUNS = 20261201, 200
S, PER_S = 10**9, 100
UNIT_NS = S // PER_S  # a time of 1 is the mean gap of arrivals
SHOWN = (State.SETTLED, State.WARMING_UP, State.DRIFT, State.NEVER_SETTLED)


def exponential(at, rng):
    return rng.exponential(1, at.shape)


def lognormal(at, rng):
    """Of a spread of 30 %, as of one model on one device."""
    return rng.lognormal(0, 0.3, at.shape)


def queue(load):
    """Response times of one server, exponential service of mean `load`, empty at first, for these very arrivals."""

    def law(at, rng):
        service = rng.exponential(load, at.shape)
        steps = np.zeros(at.shape)
        steps[:, 1:] = service[:, :-1] - np.diff(at, axis=1) / UNIT_NS
        walk = np.cumsum(steps, axis=1)
        return walk - np.minimum.accumulate(walk, axis=1) + service

    return law


def scaled(law, by):
    """Times of `law`, multiplied by what `by` gives for the place in the phase, 0 to 1."""
    return lambda at, rng: law(at, rng) * by(np.arange(at.shape[1]) / at.shape[1])


def decay(law, length, size):
    """Service times that fall from `size` times to once, 95 % of the way within `length` of the phase."""
    return scaled(law, lambda x: 1 + (size - 1) * np.exp(-3 * x / length))


def grown(law, by):
    return scaled(law, lambda x: 1 + by * x)


def step(law, by):
    return scaled(law, lambda x: np.where(x < 1 / 2, 1, by))


def disturbed(law, by):
    return scaled(law, lambda x: np.where(abs(x - 0.55) < 0.1, by, 1))


def periodic(law, by, times):
    """`by` times as slow for the second half of each of so many equal periods."""
    return scaled(law, lambda x: np.where(x * times % 1 < 1 / 2, 1, by))


STEADY = {
    "steady, exponential": exponential,
    "steady, lognormal": lognormal,
    "steady, bimodal": lambda at, rng: bimodal(*at.shape, rng),
    "steady, AR(1), 0.9": lambda at, rng: autoregressive(0.9, *at.shape, rng),
} | {f"M/M/1 from empty, load {load}": queue(load) for load in (0.5, 0.8, 0.9)}
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
    | {f"2x for half of each of {times} periods, {name}": (periodic(law, 2, times), None) for name, law in LAWS.items() for times in (4, 50)}
    | {f"drift +{by:.0%}, {name}": (grown(law, by), None) for name, law in LAWS.items() for by in (0.2, 1)}
    | {f"growing queue, load {load}": (queue(load), None) for load in (1.05, 1.1)}
)  # fmt: skip
CASES = {name: (law, None) for name, law in STEADY.items()} | MOVING


def phases(name, n, runs):
    """When requests of `runs` seeded phases were due (Poisson arrivals at PER_S) and how long they took, runs x n, in ns."""
    rng = np.random.default_rng([SEED, list(CASES).index(name), n])
    at = np.sort(rng.integers(0, n * S // PER_S, (runs, n)), axis=1)
    return at, np.maximum(CASES[name][0](at, rng) * UNIT_NS, 1).astype(np.int64)


def row(name, n, runs):
    """Shares of the states, and the median error of the detected start as a share of the phase."""
    true, span = CASES[name][1], (0, n * S // PER_S)
    states = [
        steady_state(at, took, at + took, took, span, constant=True)
        for at, took in zip(*phases(name, n, runs), strict=True)
    ]
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
