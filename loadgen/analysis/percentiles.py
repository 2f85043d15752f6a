"""Distributions of durations: one rule for every percentile the project prints.

The rule is nearest rank (see loadgen.histogram).  Under EXACT_BELOW values it is applied to the sorted values
themselves and is exact; from there on to an HdrHistogram, where a percentile is at most 0.1 % too high
while n, mean and max stay exact.  Which of the two was used follows from n alone.  This module must not
know what the durations are durations of.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.histogram import Histogram, rank

EXACT_BELOW = 100_000
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}

Ints = npt.NDArray[np.int64]


def quantile(values: Ints, q: float) -> int | None:
    """The smallest value such that at least a share `q` of all values are <= it; None when there are none."""
    if values.size == 0:
        return None
    if values.size < EXACT_BELOW:
        at = rank(q, values.size) - 1
        return int(np.partition(values, at)[at])
    return histogram(values).quantile(q)


def distribution(values: Ints) -> dict[str, Any]:
    """n, mean, p50 to p999 and max, as ints; all but n are None when there are no values."""
    n = int(values.size)
    if n == 0:
        return {"n": 0, "mean": None, **dict.fromkeys(QUANTILES), "max": None}
    if n < EXACT_BELOW:
        ordered = np.sort(values)
        points = {name: int(ordered[rank(q, n) - 1]) for name, q in QUANTILES.items()}
        mean = float(np.mean(values, dtype=np.float64))
    else:
        binned = histogram(values)
        points = {name: int(binned.quantile(q) or 0) for name, q in QUANTILES.items()}
        mean = binned.mean or 0.0
    return {"n": n, "mean": round(mean), **points, "max": int(values.max())}


def histogram(values: Ints) -> Histogram:
    """Of many values: they are counted, not copied nor sorted."""
    binned = Histogram()
    binned.record_many(values)
    return binned
