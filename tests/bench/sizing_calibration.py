"""How often the number that `loadgen size` recommends is enough, and the fitted law's intervals hold the truth.

`python -m tests.bench.sizing_calibration [FITS]` prints the figures of docs/sizing.md (about a minute for 300).
"""

import sys

import numpy as np

from loadgen.analysis.forecast import Unit, read_forecast
from loadgen.analysis.scaling import Point, fit, throughput
from loadgen.analysis.sizing import Capacity, size

LAWS = (  # rate, contention, coherency; the counts that were measured
    ((200, 0.04, 0.002), (1, 2, 4, 8, 16, 24)),
    ((200, 0.03, 0.0), (1, 2, 4, 8, 16)),
    ((200, 0.0, 0.0), (1, 2, 3, 4)),
    ((200, 0.05, 0.01), (1, 2, 3, 4, 6, 8)),
    ((200, 0.1, 0.01), (1, 2, 4, 8)),
)
SEARCHES = 2000


def proportional(peak, seed):
    """(Share of searches whose recommendation is enough, how many times as many servers as are needed)."""
    rng, forecast = np.random.default_rng(seed), read_forecast(f"{peak}/s", 1)
    enough, times = 0, 0.0
    for truth, error in zip(rng.uniform(50, 500, SEARCHES), rng.uniform(0.01, 0.05, SEARCHES), strict=True):
        seen = truth * np.exp(error * rng.standard_normal())
        half = np.exp(1.96 * error)
        recommended = size([Capacity("", Unit.RATE, 1, seen, seen / half, seen * half)], forecast).recommended
        needed = np.ceil(peak / truth)
        enough += recommended >= needed
        times += recommended / needed
    return enough / SEARCHES, times / SEARCHES


def coverage(law, counts, error, fits):
    """Of rate, contention, coherency and the capacity of 1.25 times the largest count; and of its lower end alone."""
    rng, n, holds = np.random.default_rng(1), np.array(counts), np.zeros(5)
    truth, beyond = np.array(law, dtype=float), int(1.25 * max(counts))
    for seed in range(fits):
        seen = throughput(n, truth) * (1 + error * rng.standard_normal(n.size))
        points = [
            Point(int(k), v, v * (1 - 1.96 * error), v * (1 + 1.96 * error))
            for k, v in zip(n, seen, strict=True)
        ]
        scaling = fit(points, seed)
        each = (scaling.rate, scaling.contention, scaling.coherency)
        holds[:3] += [one.low - 1e-12 <= true <= one.high for one, true in zip(each, truth, strict=True)]
        low, high = np.quantile(throughput(beyond, scaling.draws), [0.025, 0.975])
        right = throughput(beyond, truth)[0]
        holds[3:] += [low <= right <= high, low <= right]
    return holds / fits


def main(fits=300):
    for peak in (900, 9000):
        for seed in (3, 4, 5):
            enough, times = proportional(peak, seed)
            print(
                f"peak {peak}/s: enough in {100 * enough:.1f} %, {times:.3f} times what is needed", flush=True
            )
    for law, counts in LAWS:
        for error in (0.015, 0.03):
            shares = "  ".join(f"{100 * one:5.1f} %" for one in coverage(law, counts, error, fits))
            print(f"{law} at {counts}, errors of {100 * error:g} %: {shares}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
