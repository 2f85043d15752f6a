"""Padding buckets for lengths: which few lengths to pad to, so that padding and lost batching together cost least.

Triton's batcher takes requests in the order they came and closes a batch at the first other shape.  So every
length by itself wastes no padding but seldom batches, and one length for all batches best but pads most.  At
saturation, with lengths drawn independently, requests of a bucket of share p come in runs of r with probability
p^(r-1) (1-p); a run fills floor(r / B) batches of B and one of the rest.  The cost of a bucket depends on its own
share and length alone, so dynamic programming over the sorted lengths finds the cheapest K buckets exactly.

Pure.  It must not know servers nor how S(b, L), the time of one execution, was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Time = Callable[[Reals, Reals], Reals]  # S(b, L) in ns, elementwise

_MOST_LENGTHS = 256  # different ones; more are joined to their upper neighbours before the search


@dataclass(frozen=True, slots=True)
class Service:
    """S(b, L) = a0 + a1 b + a2 b L + a3 b L^2 in ns: fixed cost, per row, per token, attention.  None is negative.

    `error` is the greatest relative distance of a measured point from it, `points` how many there were.
    """

    coefficients: tuple[float, float, float, float]
    error: float
    points: int

    def __call__(self, batch: Reals, length: Reals) -> Reals:
        """Nanoseconds of one execution."""
        a0, a1, a2, a3 = self.coefficients
        return np.asarray(a0 + batch * (a1 + length * (a2 + a3 * length)), np.float64)


def fit_service(points: Sequence[tuple[int, int, float]]) -> Service:
    """The Service nearest to (batch, length, ns) points, by relative error.  Needs at least four of them."""
    from scipy.optimize import nnls

    b, length, ns = (np.array(column, np.float64) for column in zip(*points, strict=True))
    features = np.stack([np.ones_like(b), b, b * length, b * length**2], axis=1)
    scale = features.max(axis=0)
    found, _ = nnls(features / scale / ns[:, None], np.ones_like(ns))
    a0, a1, a2, a3 = (float(value) for value in found / scale)
    service = Service((a0, a1, a2, a3), 0.0, len(points))
    error = float(np.max(np.abs(service(b, length) / ns - 1)))
    return Service(service.coefficients, error, len(points))


@dataclass(frozen=True, slots=True)
class Buckets:
    """Lengths to pad to, ascending, and what is predicted of them at saturation.

    `cost_ns` is server time a request, so one instance answers 1e9 / cost_ns requests a second; `padding` the share
    of the tokens computed that are padding; `mean_batch` rows an execution.
    """

    bounds: tuple[int, ...]
    shares: tuple[float, ...]
    cost_ns: float
    padding: float
    mean_batch: float

    @property
    def per_s(self) -> float:
        """Requests a second of one instance that never idles."""
        return 1e9 / self.cost_ns


def run_cost(service: Time, share: Reals, length: Reals, most: int) -> tuple[Reals, Reals]:
    """(ns, executions) that a bucket of that share and length adds to each request, at saturation."""
    p = np.minimum(share, 1 - 1e-12)[..., None]
    sizes = np.arange(1, most + 1, dtype=np.float64)
    rest = p ** (sizes[:-1] - 1) * (1 - p) / (1 - p**most)  # a run's last batch, of 1 to most - 1
    full = p ** (most - 1) / (1 - p**most)
    often = np.concatenate([rest, full], axis=-1) * p * (1 - p)
    times = service(np.broadcast_to(sizes, often.shape), np.broadcast_to(length[..., None], often.shape))
    return (often * times).sum(-1), often.sum(-1)


def best_buckets(lengths: Ints, counts: Ints, service: Time, most: int, k: int) -> list[Buckets]:
    """The cheapest 1, 2, ... k buckets for lengths that come so often; `most` rows a batch.

    Fewer than k where there are fewer different lengths.
    """
    lengths, counts = _thinned(lengths, counts)
    n = len(lengths)
    shares = counts / counts.sum()
    sums = np.concatenate([[0.0], np.cumsum(shares)])
    low, high = np.meshgrid(np.arange(n), np.arange(n), indexing="ij")
    share = np.where(low <= high, sums[high + 1] - sums[low], 1.0)
    ns, _ = run_cost(service, share, lengths[high].astype(np.float64), most)
    cost = np.where(low <= high, ns, np.inf)  # of one bucket from length `low` to length `high`
    best, ends = cost[0], [np.zeros(n, np.int64)]
    found = [_told(lengths, counts, [n - 1], service, most)]
    for _ in range(1, min(k, n)):
        through = best[:-1, None] + cost[1:, :]  # [end of the one before, end]
        before = np.argmin(through, axis=0)
        ends.append(before)
        best = through[before, np.arange(n)]
        at, chosen = n - 1, [n - 1]
        for steps in reversed(ends[1:]):
            at = int(steps[at])
            chosen.append(at)
        found.append(_told(lengths, counts, chosen[::-1], service, most))
    return found


def unpadded(lengths: Ints, counts: Ints, service: Time, most: int) -> Buckets:
    """Every length by itself: no padding, and batches only where neighbours happen to be equal."""
    return _told(lengths, counts, list(range(len(lengths))), service, most)


def ragged(lengths: Ints, counts: Ints, service: Time, most: int) -> Buckets:
    """Where the server batches any lengths and pads to the longest of each batch: full batches at saturation."""
    shares = counts / counts.sum()
    below = np.cumsum(shares) ** most
    longest = np.diff(np.concatenate([[0.0], below]))
    times = service(np.full(len(lengths), float(most)), lengths.astype(np.float64))
    padded, mean = float((longest * lengths).sum()), float((shares * lengths).sum())
    return Buckets((), (), float((longest * times).sum()) / most, 1 - mean / padded, float(most))


def _told(lengths: Ints, counts: Ints, ends: Sequence[int], service: Time, most: int) -> Buckets:
    shares = counts / counts.sum()
    edges = np.concatenate([[0], np.array(ends) + 1])
    parts = np.add.reduceat(shares, edges[:-1])
    bounds = lengths[np.array(ends)].astype(np.float64)
    ns, executions = run_cost(service, parts, bounds, most)
    padded, mean = float((parts * bounds).sum()), float((shares * lengths).sum())
    return Buckets(
        bounds=tuple(int(b) for b in bounds),
        shares=tuple(float(p) for p in parts),
        cost_ns=float(ns.sum()),
        padding=1 - mean / padded,
        mean_batch=1 / float(executions.sum()),
    )


def _thinned(lengths: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """At most so many different lengths: neighbours joined, each padded to the longest of its group."""
    if len(lengths) <= _MOST_LENGTHS:
        return lengths, counts
    edges = np.linspace(0, len(lengths), _MOST_LENGTHS + 1).astype(np.int64)
    return lengths[edges[1:] - 1], np.add.reduceat(counts, edges[:-1])


def choose(found: Sequence[Buckets], worth: float = 0.02) -> Buckets:
    """The fewest buckets within `worth` of the cheapest: each bucket more is a shape more to warm and to build."""
    least = min(one.cost_ns for one in found)
    return next(one for one in found if one.cost_ns <= least * (1 + worth))


def warmup_grid(buckets: Buckets, most: int) -> list[tuple[int, int]]:
    """(batch, length) pairs to warm: each bucket at every power of two of rows and at the greatest batch."""
    batches = sorted({1 << i for i in range(most.bit_length()) if 1 << i <= most} | {most})
    return [(batch, length) for length in buckets.bounds for batch in batches]


def tensorrt_profiles(buckets: Buckets, most: int) -> list[dict[str, Any]]:
    """One optimisation profile a bucket: [rows, tokens] least, best and most.  Best is what saturation makes of it."""
    profiles, low = [], 1
    for bound, share in zip(buckets.bounds, buckets.shares, strict=True):
        p = min(share, 1 - 1e-12)
        run = (1 - p**most) / (1 - p)  # the mean batch of this bucket
        profiles.append({"min": [1, low], "opt": [max(1, round(run)), bound], "max": [most, bound]})
        low = bound + 1
    return profiles
