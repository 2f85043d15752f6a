"""How often the intervals, verdicts and searches of loadgen are right, in simulations whose truth is known.

`python -m tests.bench.calibration [--quick]` prints the tables and, unless quick, writes docs/calibration.md.
"""

import sys
import time
from pathlib import Path

import numpy as np

from loadgen.analysis import intervals
from tests.bench import capacity_calibration, compare_calibration
from tests.bench.queues import LAWS, true_mean, truth
from tests.bench.sequential_calibration import sequential_table

SEED = 20261201
CHUNK = 200  # runs that are simulated at once
DOCS = Path(__file__).parents[2] / "docs" / "calibration.md"


def runs_of(law, runs, n, seed=SEED):
    """So many runs of n latencies, one after the other; the same for the same seed."""
    rng = np.random.default_rng([seed, list(LAWS).index(law), n])
    for start in range(0, runs, CHUNK):
        yield from LAWS[law](min(CHUNK, runs - start), n, rng)


def coverage(law, n, runs, quantiles=(0.5, 0.99), seed=SEED):
    """Of each quantile: runs with an interval, those whose interval holds the truth, median width over the truth,
    one-sided bounds, and those of them that the truth is beyond.
    """
    rows = {q: [0, 0, [], 0, 0] for q in quantiles}
    for run in runs_of(law, runs, n, seed):
        for q in quantiles:
            true, found, row = truth(law, q), intervals.quantile([run], q), rows[q]
            if found.bounded:
                row[0] += 1
                row[1] += found.low <= true <= found.high
                row[2].append((found.high - found.low) / true)
            elif found.low is not None:
                row[3] += 1
                row[4] += true < found.low
    return {q: (a, b, float(np.median(w)) if w else None, c, d) for q, (a, b, w, c, d) in rows.items()}


def mean_coverage(law, n, runs, seed=SEED):
    """Of the mean: runs with an interval, those whose interval holds the truth."""
    true = true_mean(law)
    printed = right = 0
    for run in runs_of(law, runs, n, seed):
        found = intervals.mean([run])
        if found.bounded:
            printed += 1
            right += found.low <= true <= found.high
    return printed, right


def percent(part, whole):
    return "-" if not whole else f"{100 * part / whole:.1f} %"


def interval_table(runs, sizes):
    lines = [
        "| law | requests | figure | interval printed | of these it holds the truth | cannot tell | median width | lower bound alone is too high |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for law in LAWS:
        for n in sizes:
            for q, (printed, right, width, one_sided, beyond) in coverage(law, n, runs).items():
                holds = percent(right, printed) if printed >= 20 else f"{right} of {printed}"
                wide = "-" if width is None else f"{100 * width:.0f} %"
                lines.append(
                    f"| {law} | {n:,} | P{100 * q:g} | {percent(printed, runs)} | {holds} | "
                    f"{percent(runs - printed, runs)} | {wide} | {percent(beyond, one_sided)} |"
                )
                print(lines[-1], flush=True)
    return lines


def mean_table(runs, sizes):
    lines = ["| law | requests | interval printed | of these it holds the truth |", "|---|---|---|---|"]
    for law in LAWS:
        for n in sizes:
            printed, right = mean_coverage(law, n, runs)
            holds = percent(right, printed) if printed >= 20 else f"{right} of {printed}"
            lines.append(f"| {law} | {n:,} | {percent(printed, runs)} | {holds} |")
            print(lines[-1], flush=True)
    return lines


def capacity_table(seeds):
    lines = [
        "| server | true capacity | near it | interval holds it | bias | half the interval | decided | load: median, most |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in capacity_calibration.rows(seeds):
        near = f"{percent(row['near'], 1)} within {row['within']}"
        lines.append(
            f"| {row['server']} | {row['true']:g} | {near} | {percent(row['held'], 1)} | {100 * row['bias']:+.1f} % | "
            f"{100 * row['half_width']:.1f} % | {percent(row['decided'], 1)} | {row['seconds']:.0f} s, {row['most_seconds']:.0f} s |"
        )
        print(lines[-1], flush=True)
    return lines


def main(quick):
    began = time.perf_counter()
    runs, sizes = (200, (5000,)) if quick else (2000, (5000, 50_000))
    text = [
        "# Calibration: how often the figures are right",
        "",
        f"Made by `make calibration` (seed {SEED}); every row is simulated with the code that judges runs.",
        "",
        "## 95 % intervals of quantiles",
        "",
        f"{runs:,} runs a row.  Where no interval is printed, the run says so and gives a lower bound; its last column is how",
        "often that bound is beyond the truth (at most 2.5 % is right).",
        "",
        *interval_table(runs, sizes),
        "",
        "## 95 % intervals of means",
        "",
        *mean_table(runs // 4, sizes),
        "",
        "## Comparisons",
        "",
        f"{runs:,} pairs a row.  Equal sides called different: 5 % is right.  Two independent runs of 5,000 requests of M/M/1",
        "cannot show a shift of 10 % nine times out of ten: each P50 has a standard error of 4 %.",
        "",
        *compare_calibration.rows(runs),
        "",
        "## Repeating until sure",
        "",
        "The limit is the true figure: any decision is wrong; 5 % together is allowed.",
        "",
        *sequential_table(runs // 5),
        "",
        "## Capacity",
        "",
        "100 searches a row." if runs >= 2000 else "A few searches a row.",
        "",
        *capacity_table(runs // 20),
        "",
    ]
    print(f"{time.perf_counter() - began:.0f} s")
    if not quick:
        DOCS.write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
