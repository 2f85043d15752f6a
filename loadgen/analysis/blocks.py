"""Figures of candidates that were measured in rounds: a randomised complete block design (Montgomery, "Design and
Analysis of Experiments", chapter 4).

Every candidate is measured once a round, so what a round had in common (a warm machine, a busy neighbour) is fitted
out: figure = candidate + round + noise.  One noise for all candidates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_PASSES = 50


@dataclass(frozen=True, slots=True)
class Fit:
    """Candidates' means (NaN: nothing measured; inf: never succeeded), the noise, its degrees of freedom."""

    mean: Floats
    count: npt.NDArray[np.int64]
    variance: float
    freedom: int
    ratios: bool  # the means are logarithms

    def contrast(self, a: int, b: int) -> tuple[float, float]:
        """(mean of b - mean of a, its standard error; NaN where the noise is not known)."""
        error = math.sqrt(self.variance * (1 / max(1, self.count[a]) + 1 / max(1, self.count[b])))
        return float(self.mean[b] - self.mean[a]), error


def fit(values: Floats, *, ratios: bool | None = None) -> Fit:
    """`values` are candidates x rounds, NaN where nothing was measured, inf where none succeeded.

    `ratios`: logarithms are fitted; None: where all values are above 0.
    """
    endless = np.asarray(np.isinf(values).any(axis=1))
    there = np.isfinite(values) & ~endless[:, None]
    if ratios is None:
        ratios = bool((values[there] > 0).all())
    y = np.where(there, np.log(np.where(there & ratios, values, 1.0)) if ratios else values, 0.0)
    of_row, of_round = there.sum(axis=1), there.sum(axis=0)
    mean, drift = np.zeros(len(values)), np.zeros(values.shape[1])
    several = (of_row > 0).sum() > 1  # of one alone, its rounds cannot be told from noise
    for _ in range(_PASSES):  # exact at once when nothing is missing
        mean = (np.where(there, y - drift, 0).sum(axis=1)) / np.maximum(of_row, 1)
        drift = several * (np.where(there, y - mean[:, None], 0).sum(axis=0)) / np.maximum(of_round, 1)
        drift -= drift[of_round > 0].mean() if (of_round > 0).any() else 0.0
    left = np.where(there, y - mean[:, None] - drift, 0.0)
    freedom = int(there.sum() - (of_row > 0).sum() - several * max(0, (of_round > 0).sum() - 1))
    variance = float((left**2).sum() / freedom) if freedom > 0 else np.nan
    mean = np.where(endless, np.inf, np.where(of_row > 0, mean, np.nan))
    return Fit(mean, of_row, variance, freedom, ratios)


def means(values: Floats) -> Floats:
    """Of candidates x loads x rounds: the fitted means, candidates x loads, in the figures' own unit."""
    found = [fit(values[:, load]) for load in range(values.shape[1])]
    return np.stack([np.exp(one.mean) if one.ratios else one.mean for one in found], axis=1)
