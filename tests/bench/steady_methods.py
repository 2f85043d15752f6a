"""What other methods say of the phases of tests.bench.steady: MSER-5 without a test before it, and PELT.

`pip install ruptures` (no dependency of loadgen), then `python -m tests.bench.steady_methods` prints the table of
docs/steady-state.md.  Seeded: the same phases as there.
"""

import numpy as np
import ruptures

from loadgen.analysis.steady_state import BATCH, State, level, mser
from tests.bench.steady import RUNS, phases

NAMES = (
    "steady, exponential",
    "steady, lognormal",
    "steady, AR(1), 0.9",
    "M/M/1 from empty, load 0.5",
    "M/M/1 from empty, load 0.8",
    "warm-up 30%, 2x, exponential",
    "warm-up 30%, 2x, lognormal",
    "drift +100%, lognormal",
)
MOST = 200  # means for PELT, which takes quadratic time
SIGMA = 0.954  # the median of |a - b| of two standard normal values


def means(took, size):
    return np.log(took[took.size % size :]).reshape(-1, size).mean(axis=1)


def changes(took):
    """How many change points of the mean PELT finds: penalty 3 variances times log n, variance by differences."""
    values = means(took, max(BATCH, took.size // MOST))
    variance = (np.median(np.abs(np.diff(values))) / SIGMA) ** 2
    fitted = ruptures.KernelCPD(kernel="linear", min_size=5).fit(values)
    return len(fitted.predict(pen=3 * variance * np.log(values.size))) - 1


def main():
    print("| case | requests | CUSUM first: not settled | MSER-5 alone: cuts | PELT: finds a change |")
    print("|---|---|---|---|---|")
    for name in NAMES:
        for n in (1000, 5000):
            took = phases(name, n, RUNS)[1]
            shares = [
                np.mean([level(means(one, BATCH)).state is not State.SETTLED for one in took]),
                np.mean([mser(means(one, BATCH)) > 0 for one in took]),
                np.mean([changes(one) > 0 for one in took]),
            ]
            print(f"| {name} | {n:,} | " + " | ".join(f"{share:.1%}" for share in shares) + " |")


if __name__ == "__main__":
    main()
