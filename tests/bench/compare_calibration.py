"""How often `loadgen compare` calls equal sides different, and finds a shift, in simulations whose truth is known.

`python -m tests.bench.compare_calibration [RUNS]` prints the table.
"""

import sys

import numpy as np

from loadgen.analysis import intervals
from loadgen.analysis.compare import correlation, effect_in_rounds, effect_of
from tests.bench.queues import LAWS, WARM_UP, single_server

SEED, CHUNK = 20261202, 100


def compared(a, b, q, same_requests):
    """The effect of two runs of latencies, as `compare` has it."""
    x, y = intervals.quantile([a], q), intervals.quantile([b], q)
    return effect_of(x, y, correlation(a > x.value, b > y.value) if same_requests else 0.0)


def is_flagged(effect):
    """Whether the interval of the ratio excludes 1."""
    low, high = effect.ratio.low, effect.ratio.high
    return (low is not None and low > 1) or (high is not None and high < 1)


def flags(law, n, runs, shift, rng, q=0.5, same_requests=None):
    """The share of comparisons of two runs of n requests whose quantile is called different, and of those that have an
    interval.  The second side takes `shift` longer (0.1: 10 %).

    `same_requests` None: independent runs of a law of `queues`.  Else both have the arrivals of one M/M/1 at this load
    (law: a number), and this share of the requests takes equally long on both sides: one seed, one profile.
    """
    flagged = printed = 0
    for start in range(0, runs, CHUNK):
        size = min(CHUNK, runs - start)
        if same_requests is None:
            first, second = LAWS[law](size, n, rng), LAWS[law](size, n, rng)
        else:
            first, second = same_arrivals(law, size, n, same_requests, rng)
        for a, b in zip(first, second * (1 + shift), strict=True):
            found = compared(a, b, q, same_requests is not None)
            printed += found.ratio.bounded
            flagged += is_flagged(found)
    return flagged / runs, printed / runs


def same_arrivals(load, runs, n, shared, rng):
    """Two M/M/1 with the same arrivals; each request takes equally long on both with this probability."""
    shape = (runs, n + WARM_UP)
    gaps, first = rng.exponential(1 / load, shape), rng.exponential(1, shape)
    second = np.where(rng.random(shape) < shared, first, rng.exponential(1, shape))
    return single_server(gaps, first), single_server(gaps, second)


def flags_in_rounds(law, n, runs, shift, rng, rounds=4, spread=0.0, q=0.5):
    """The share of live comparisons that call a quantile different.  Runs differ by `spread` (of their logarithm)
    beyond their requests, and rounds drift by a fifth.
    """
    flagged = 0
    for _ in range(runs):
        drift = rng.normal(0, 0.2, (rounds, 1))
        sides = [
            LAWS[law](rounds, n, rng) * np.exp(drift + rng.normal(0, spread, (rounds, 1))) for _ in range(2)
        ]
        sides[1] *= 1 + shift
        each = [[intervals.quantile([run], q) for run in side] for side in sides]
        found = effect_in_rounds(*each, [effect_of(x, y) for x, y in zip(*each, strict=True)])
        flagged += is_flagged(found)
    return flagged / runs


INDEPENDENT = (
    "independent, exponential",
    "independent, lognormal",
    "independent, bimodal",
    "M/M/1, load 0.5",
)


def rows(runs, n=5000, seed=SEED):
    """Lines of a Markdown table: equal sides called different, and a shift of 10 % at P50 found."""
    lines = [
        "| sides | requests a run | equal sides called different | 10 % at P50 found |",
        "|---|---|---|---|",
    ]
    for law in INDEPENDENT:
        alike, shifted = (
            flags(law, n, runs, s, np.random.default_rng([seed, len(law)]))[0] for s in (0.0, 0.1)
        )
        lines.append(f"| {law}, two seeds | {n:,} | {100 * alike:.1f} % | {100 * shifted:.1f} % |")
        print(lines[-1], flush=True)
    for shared in (0.0, 0.5, 0.9, 1.0):
        alike, shifted = (
            flags(0.5, n, runs, s, np.random.default_rng([seed, 7]), same_requests=shared)[0]
            for s in (0.0, 0.1)
        )
        name = f"M/M/1, load 0.5, one seed, {100 * shared:.0f} % of the requests take equally long"
        lines.append(f"| {name} | {n:,} | {100 * alike:.1f} % | {100 * shifted:.1f} % |")
        print(lines[-1], flush=True)
    for spread in (0.0, 0.03, 0.1):
        alike, shifted = (
            flags_in_rounds(
                "independent, lognormal", n // 4, runs, s, np.random.default_rng([seed, 9]), spread=spread
            )
            for s in (0.0, 0.1)
        )
        name = f"4 rounds, independent, lognormal, runs {100 * spread:.0f} % apart"
        lines.append(f"| {name} | {n // 4:,} | {100 * alike:.1f} % | {100 * shifted:.1f} % |")
        print(lines[-1], flush=True)
    return lines


if __name__ == "__main__":
    rows(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
