"""How often `loadgen runs` marks a change where there is none, and after how many runs it finds one of 20 %.

`python -m tests.bench.changes_calibration [SERIES]` prints the table of docs/runs.md (about two minutes for 600).
"""

import sys

import numpy as np

from loadgen.analysis.changes import change_points

SPREAD = 0.03  # between runs, of the logarithm
LENGTHS = (5, 8, 12, 20, 50)
BEFORE, LONGEST = 10, 15  # runs before the shift, and at most after it


def normal(rng, n):
    return SPREAD * rng.standard_normal(n), np.zeros(n)


def student(rng, n):
    return SPREAD * rng.standard_t(4, n) / np.sqrt(2), np.zeros(n)


def own_intervals(rng, n):
    own = rng.choice([0.01, 0.02, 0.05], n)
    return own * rng.standard_normal(n) + SPREAD / 2 * rng.standard_normal(n), own


def outliers(rng, n):
    return SPREAD * rng.standard_normal(n) + 0.25 * (rng.random(n) < 0.05), np.zeros(n)


def autoregressive(rng, n):
    y = np.zeros(n + 20)
    for i in range(1, y.size):
        y[i] = 0.5 * y[i - 1] + SPREAD * np.sqrt(0.75) * rng.standard_normal()
    return y[20:], np.zeros(n)


def runs_until_found(law, rng):
    y, own = law(rng, BEFORE + LONGEST)
    y[BEFORE:] += np.log(1.2)
    for after in range(1, LONGEST + 1):
        upto = BEFORE + after
        if any(abs(one.place - BEFORE) <= 1 for one in change_points(y[:upto], own[:upto])):
            return after
    return np.inf


def main(series=600):
    print(f"{'law':16}" + "".join(f"{f'n {n}':>8}" for n in LENGTHS) + "   20 % shift: runs (within 5)")
    for law in (normal, student, own_intervals, outliers, autoregressive):
        rng = np.random.default_rng(7)
        alarms = [np.mean([bool(change_points(*law(rng, n))) for _ in range(series)]) for n in LENGTHS]
        runs = np.array([runs_until_found(law, rng) for _ in range(series // 5)])
        shares = "".join(f"{100 * share:6.1f} %" for share in alarms)
        print(
            f"{law.__name__:16}{shares}   {np.median(runs):.0f} ({100 * np.mean(runs <= 5):.0f} %)",
            flush=True,
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
