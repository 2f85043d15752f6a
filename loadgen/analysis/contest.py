"""Which candidate is best, and how sure that is, from few repeats in rounds.

For each load the figures are fitted as candidate + round (analysis.blocks), the noise pooled over the candidates
because three repeats of one say next to nothing about it.  Times and rates are compared as ratios (logarithms).
From that fit the true means are drawn, variance first (scaled inverse chi-square), shrunk towards each other as
much as the noise explains their spread; each draw has its winner: the share of the draws a candidate wins is the
probability that it is the best.  The limit: one noise for all candidates of a load; one that is far less steady than
the others is believed too much.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.analysis.blocks import Floats, fit, means
from loadgen.histogram import nearest_rank

DRAWS = 4000
CLEAR = 0.95
CLOSE = 0.03  # a difference that is not worth another night
LEAST_SPREAD = 4
_MOST_LOG = 300.0


def drawn(values: Floats, rng: np.random.Generator, draws: int = DRAWS) -> Floats:
    """What the true means may be: draws x candidates x loads.  NaN where no noise can be told."""
    layers = []
    for load in range(values.shape[1]):
        one = fit(values[:, load])
        if one.freedom < 1:
            layers.append(np.full((draws, len(values)), np.nan))
            continue
        noise = one.variance * one.freedom / rng.chisquare(one.freedom, draws)[:, None]
        noise = noise / np.maximum(one.count, 1)
        finite = np.isfinite(one.mean)
        middle, kept = _shrunk(one.mean[finite], noise[:, finite], rng)
        normal = rng.standard_normal((draws, len(values)))
        truth = np.tile(one.mean, (draws, 1))
        truth[:, finite] = middle + normal[:, finite] * np.sqrt(kept * noise[:, finite])
        # with one degree of freedom a draw may lie beyond any number: such a one is only very large
        bounded = np.where(np.isinf(truth), truth, np.clip(truth, -_MOST_LOG, _MOST_LOG))
        layers.append(np.exp(bounded) if one.ratios else truth)
    return np.stack(layers, axis=2)


def _shrunk(mean: Floats, noise: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """The means drawn towards their middle, and by how much they keep their distance from it (1: all of it).

    The best of many was lucky too: how far the candidates truly lie apart is what their spread has over the noise
    (empirical Bayes; Efron and Morris 1973).  Of fewer than LEAST_SPREAD nobody can tell their spread.
    """
    if len(mean) < LEAST_SPREAD:
        return np.broadcast_to(mean, noise.shape), np.ones_like(noise)
    freedom = len(mean) - 1
    total = mean.var(ddof=1) * freedom / rng.chisquare(freedom, len(noise))[:, None]
    kept = np.maximum(total - noise, 0) / np.maximum(total, np.finfo(float).tiny)
    return mean.mean() + kept * (mean - mean.mean()), kept


Score = Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`scores` by candidate: larger is better, NaN not complete, 0 no contender.

    `probability` of being best, by candidate; `worse` is by how much the chosen one may be worse than the true
    best: 0.02 says that in 95 % of the draws it is within 2 % of it.  Both None where the noise cannot be told, and
    where there is but one contender (`alone`): nothing was compared.
    """

    scores: Floats
    best: int | None
    probability: Floats | None
    worse: float | None
    drawn: Floats | None = None  # scores, draws x candidates
    alone: bool = False

    @property
    def verdict(self) -> str:
        """One of clear | close (which is best matters little) | only (one contender) | inconclusive | none."""
        if self.best is None:
            return "none"
        if self.alone:
            return "only"
        if self.probability is None or self.worse is None:
            return "inconclusive"
        if self.probability[self.best] >= CLEAR:
            return "clear"
        return "close" if self.worse <= CLOSE else "inconclusive"


def contest(figures: Floats, score: Score, seed: int = 0, *, rivals: Score | None = None) -> Outcome:
    """`figures` are candidates x loads x rounds; `score` makes one number a candidate of their means.

    `score` gets an array whose last two axes are candidates x loads, and gives what is left without loads.
    `rivals` is the score that the others have at best (default: the same), so that what is undecided about them
    speaks against the chosen one.
    """
    middle = means(figures)
    told = score(middle)
    good = np.nan_to_num(told, nan=0.0)
    if not good.max(initial=0.0) > 0:
        return Outcome(told, None, None, None)
    best = int(good.argmax())
    rivals = rivals or score
    against = np.nan_to_num(rivals(middle), nan=0.0) > 0
    against[best] = False
    if not against.any():
        return Outcome(told, best, None, None, alone=True)
    guessed = drawn(figures, np.random.default_rng(seed))
    if np.isnan(guessed).all(axis=(0, 1)).any():
        return Outcome(told, best, None, None)
    scores = np.nan_to_num(rivals(guessed), nan=0.0)
    scores[:, best] = np.nan_to_num(score(guessed)[:, best], nan=0.0)
    top = scores.max(axis=1)
    wins = (scores == top[:, None]) & (top[:, None] > 0)
    shares = (wins / np.maximum(wins.sum(axis=1), 1)[:, None]).mean(axis=0)
    lost = np.where(top > 0, 1 - scores[:, best] / np.where(top > 0, top, 1), 0.0)
    return Outcome(told, best, shares, float(nearest_rank(np.sort(lost), CLEAR)), scores)


def effect(outcome: Outcome, groups: list[list[int]]) -> list[tuple[float | None, float | None]]:
    """What a setting does, all else alike: for each group of candidates the geometric mean of its scores over that
    of the best group, and the probability that it is the best.  None where a candidate has no score above 0.

    Many candidates share each value, so this is known when no single winner is.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        told = [float(np.exp(np.log(outcome.scores[group]).mean())) for group in groups]
        known = [bool(np.isfinite(value) and value > 0) for value in told]
        top = max((value for value, has in zip(told, known, strict=True) if has), default=1.0)
        shares: list[float | None] = [None] * len(groups)
        if outcome.drawn is not None and all(known):
            guessed = np.stack([np.log(outcome.drawn[:, group]).mean(axis=1) for group in groups])
            wins = np.bincount(guessed.argmax(axis=0), minlength=len(groups)) / guessed.shape[1]
            shares = [float(share) for share in wins]
    return [
        (value / top if has else None, share) for value, has, share in zip(told, known, shares, strict=True)
    ]


def front(gain: Floats, cost: Floats) -> list[bool]:
    """Of points with something to gain and something to pay: those that no other beats in both."""
    points: list[Any] = list(zip(gain.tolist(), cost.tolist(), strict=True))
    return [
        bool(np.isfinite(g) and np.isfinite(c))
        and not any(og >= g and oc <= c and (og > g or oc < c) for og, oc in points)
        for g, c in points
    ]
