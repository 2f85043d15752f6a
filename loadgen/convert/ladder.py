"""The ladder from PyTorch to what is served: each rung against PyTorch in FP32, at several lengths.

A rung is a function from tensors to an answer: a file under onnxruntime, an engine, a running server.  What
counts as good enough is one table, by precision.  It must not know how a rung came to be.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.convert.encoder import Encoder
from loadgen.convert.parity import (
    DIFFERING,
    LARGEST,
    ULPS,
    Feeds,
    ParityError,
    ParityMissedError,
    Run,
    comparable,
    differing,
    make_feeds,
    sizes_of,
    torch_run,
    worst_cosine,
)

AT_ONCE = "at once"  # ends the name of a rung that asks each row alone already
_TIE = 1e-6  # between cosines of float32 vectors of unit length
_NEIGHBOURS = 5
_TOP = 5
_FEW = 16  # numbers in an answer
_BLOCK = 16  # rows run at once to make the reference

Floats = npt.NDArray[np.float32]
Samples = Callable[[int, int], Feeds]  # (rows, length): rows of exactly that length, unpadded


@dataclass(frozen=True, slots=True)
class Limits:
    """What a rung may differ by: the largest error as a share of the reference's largest magnitude, the mean error
    as a share of its RMS, the worst vector's cosine.
    """

    largest: float
    mean: float
    cosine: float
    agreement: float  # of embedding ranks, or of the first choice among classes
    exact: bool = False  # whole numbers are the very same, but for a thousandth


LIMITS: Mapping[str, Limits] = {
    "fp32": Limits(LARGEST, 2e-5, 0.99999, 0.999, exact=True),
    "fp16": Limits(1e-2, 2e-3, 0.9999, 0.98),
    "bf16": Limits(1e-1, 2e-2, 0.995, 0.95),
    # Few levels: single numbers may be far off while the answer still means the same.
    "int8": Limits(np.inf, 0.3, 0.90, 0.90),
    "fp8": Limits(np.inf, 0.2, 0.95, 0.90),
}


@dataclass(frozen=True, slots=True)
class Step:
    """One rung at one length.  `how`: "batched", "alone" (a row a call), or "padded" (rows of several lengths).

    `cosine` is the worst vector's, or that of all rows together where an answer has fewer than 16 numbers.  `ranks` is
    Spearman's correlation of each row's similarities to the others, mean over rows, and `neighbours` the share of its
    nearest rows that stay so; both for embeddings.  `top1` and `top_k` are the agreement of the largest class and of
    the largest five; for logits.  `few`: less than 16 numbers in all, which may be near zero by chance.
    `differing`: of whole numbers or truths, the share that is not the same.
    """

    rung: str
    how: str
    rows: int
    length: int
    cosine: float
    max_abs: float
    mean_abs: float
    rms: float  # of the reference
    peak: float  # its largest magnitude
    few: bool = False
    differing: float | None = None
    ranks: float | None = None
    neighbours: float | None = None
    top1: float | None = None
    top_k: float | None = None
    missed: bool = False  # a figure was beyond its limit

    def fault(self, limits: Limits, peak: float = 0.0, rms: float = 0.0) -> str | None:
        """The first figure beyond its limit, in words.  What is not a number is beyond every limit.

        `peak` and `rms` are the largest of all steps, which `few` numbers are measured by.
        """
        if self.differing is not None and limits.exact:
            same = self.differing <= DIFFERING
            return (
                None if same else f"{self.differing:.3g} of the whole numbers differ, more than {DIFFERING:g}"
            )
        least = ULPS if self.peak >= 10 * ULPS else 0.0
        largest = max(limits.largest * (max(self.peak, peak) if self.few else self.peak), least)
        mean = max(limits.mean * (max(self.rms, rms) if self.few else self.rms), least)
        agreement = self.top1 if self.ranks is None else self.ranks
        checks = (
            (self.max_abs <= largest, f"max abs {self.max_abs:.3g} > {largest:.3g}"),
            (self.mean_abs <= mean, f"mean abs {self.mean_abs:.3g} > {mean:.3g}"),
            (self.cosine >= limits.cosine, f"cosine {self.cosine:.5f} < {limits.cosine}"),
            (
                agreement is None or agreement >= limits.agreement,
                f"agreement {agreement or 0:.3f} < {limits.agreement}",
            ),
        )
        return next((words for good, words in checks if not good), None)


@dataclass(frozen=True, slots=True)
class Climb:
    """Every step, and the verdict by the limits of `precision`."""

    precision: str
    steps: tuple[Step, ...]
    faults: tuple[str, ...]
    forced: bool = False

    @property
    def passed(self) -> bool:
        return not self.faults

    def as_json(self) -> dict[str, Any]:
        """As it stands in convert.json; JSON has no infinity, so a limit that is none is null."""
        limits = asdict(LIMITS[self.precision])
        return {
            "precision": self.precision,
            "limits": {key: value if np.isfinite(value) else None for key, value in limits.items()},
            "passed": self.passed,
            "forced": self.forced and not self.passed,
            "faults": list(self.faults),
            "steps": [asdict(step) for step in self.steps],
        }


def lengths_for(longest: int) -> list[int]:
    """1, the longest, and some between."""
    return sorted({1, longest, *(n for n in (8, 32, 128) if n < longest)})


def climb(  # noqa: PLR0913 - each by name
    encoder: Encoder,
    rungs: Mapping[str, Run],
    precision: str,
    *,
    samples: Samples | None = None,
    rows: int = 24,
    max_batch: int = 8,
    lengths: Sequence[int] = (),
    seed: int = 0,
) -> Climb:
    """Runs `rungs` (name to run) at each length, batched, alone and padded.  Raises ParityError if one cannot run."""
    rng = np.random.default_rng(seed)
    if samples is None:

        def samples(many: int, length: int) -> Feeds:
            return make_feeds(encoder, [length] * many, rng)

    reference = torch_run(encoder)
    rows = rows if encoder.batched else 1
    batch = max(1, min(max_batch, rows))
    steps: list[Step] = []
    for length in lengths or lengths_for(encoder.max_length):
        feeds = samples(rows, length)
        want = _blocks(reference, _BLOCK, feeds)
        for name, run in rungs.items():
            for how, size in (("batched", batch), ("alone", 1))[
                : 1 if batch == 1 or name.endswith(AT_ONCE) else 2
            ]:
                got = _run(name, partial(_blocks, run, size), feeds, length)
                steps.append(compare(name, how, length, encoder, want, got))
    if batch > 1 and encoder.max_length > 1 and encoder.padded:
        lengths_now = [max(1, encoder.max_length * (n + 1) // batch) for n in reversed(range(batch))]
        feeds = make_feeds(encoder, lengths_now, rng)
        want = reference(feeds)
        for name, run in rungs.items():
            got = _run(name, run, feeds, lengths_now[0])
            steps.append(compare(name, "padded", lengths_now[0], encoder, want, got, lengths_now))
    limits = LIMITS[precision]
    peak, rms = (max((getattr(step, key) for step in steps), default=0.0) for key in ("peak", "rms"))
    beyond = [(step, step.fault(limits, peak, rms)) for step in steps]
    faults = [
        f"{step.rung}, {step.how}, length {step.length}: {told}" for step, told in beyond if told is not None
    ]
    judged = tuple(replace(step, missed=told is not None) for step, told in beyond)
    return Climb(precision, judged, tuple(faults))


def require(climbed: Climb) -> None:
    """Raises ParityMissedError with the first numbers beyond the limits."""
    if climbed.passed:
        return
    raise ParityMissedError(
        f"parity failed for {climbed.precision} at {len(climbed.faults)} of {len(climbed.steps)} steps, "
        f"first {climbed.faults[0]}; nothing was published (--force publishes with this verdict)"
    )


def _blocks(run: Run, size: int, feeds: Feeds) -> Floats:
    many = len(next(iter(feeds.values())))
    parts = [
        run({name: np.ascontiguousarray(value[at : at + size]) for name, value in feeds.items()})
        for at in range(0, many, size)
    ]
    return np.concatenate(parts)


def _run(name: str, run: Run, feeds: Feeds, length: int) -> Floats:
    from loadgen.convert.encoder import first_line

    try:
        return run(feeds)
    except ParityError:
        raise
    except Exception as why:  # noqa: BLE001 - each runtime has errors of its own
        raise ParityError(f"parity: {name} does not run at length {length}: {first_line(why)}") from None


@np.errstate(all="ignore")
def compare(
    rung: str, how: str, length: int, encoder: Encoder, want: Floats, got: Floats,
    lengths: Sequence[int] | None = None,
) -> Step:  # fmt: skip
    """One step; `lengths` are the rows' own where they are padded.  Raises ParityError for other shapes."""
    if want.shape != got.shape:
        raise ParityError(f"parity: {rung} at length {length} gives {got.shape}, PyTorch {want.shape}")
    rows = len(want)
    if encoder.per_token and lengths is not None:
        real = np.arange(want.shape[1]) < np.asarray(lengths)[:, None]
        want, got = want[real], got[real]
    a, b = comparable(want, got)
    gap = np.abs(a - b)
    # So few numbers have no direction of their own, near zero least of all: the rows together are one vector.
    x, y = (a, b) if a.shape[-1] >= _FEW else (a.reshape(1, -1), b.reshape(1, -1))
    more: dict[str, Any] = {}
    if encoder.output.startswith("logits"):
        more = dict(zip(("top1", "top_k"), class_agreement(want, got), strict=True))
    elif (
        not encoder.per_token
        and rows > _NEIGHBOURS
        and lengths is None
        and (length > 1 or encoder.max_length == 1)
    ):
        more = dict(
            zip(
                ("ranks", "neighbours"), rank_agreement(a.reshape(rows, -1), b.reshape(rows, -1)), strict=True
            )
        )
    return Step(
        rung, how, rows, length, worst_cosine(x, y), float(gap.max()), float(gap.mean()),
        float(np.sqrt((sizes_of(a) ** 2).mean())), float(sizes_of(a).max()), few=a.size < _FEW, differing=None if want.dtype.kind == "f" else differing(a, b), **more,
    )  # fmt: skip


def rank_agreement(
    want: npt.NDArray[Any], got: npt.NDArray[Any], k: int = _NEIGHBOURS
) -> tuple[float, float]:
    """(Spearman's correlation, share of the k nearest kept) of each row's cosines to all others, mean over rows.

    Cosines closer than float32 can tell (1e-6) are ties and share their mean rank: equal texts are equally near.
    """
    rows = len(want)
    others = ~np.eye(rows, dtype=bool)
    sides = []
    for vectors in (want, got):
        unit = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-30)
        sides.append((unit @ unit.T)[others].reshape(rows, rows - 1))
    if not all(np.isfinite(side).all() for side in sides):
        return float("nan"), float("nan")
    a, b = (np.apply_along_axis(_mean_ranks, 1, side) for side in sides)
    a -= a.mean(1, keepdims=True)
    b -= b.mean(1, keepdims=True)
    scale = np.sqrt((a * a).sum(1) * (b * b).sum(1))
    alike = np.all(a == b, axis=1)  # also where all are ties, and nothing has a correlation
    spearman = np.where(alike, 1.0, (a * b).sum(1) / np.where(scale > 0, scale, 1.0))
    return float(spearman.mean()), _shared(sides[0], sides[1], min(k, rows - 1))


def _mean_ranks(cosines: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    order = cosines.argsort()
    group = np.concatenate(([0], np.cumsum(np.diff(cosines[order]) > _TIE)))
    mean = np.bincount(group, np.arange(len(cosines))) / np.bincount(group)
    ranks = np.empty(len(cosines))
    ranks[order] = mean[group]
    return ranks


def class_agreement(want: npt.NDArray[Any], got: npt.NDArray[Any], k: int = _TOP) -> tuple[float, float]:
    """(share of vectors whose largest class is the same, share of the k largest that are)."""
    a, b = (side.reshape(-1, side.shape[-1]) for side in (want, got))
    first = float((a.argmax(1) == b.argmax(1)).mean())
    return first, _shared(a, b, min(k, a.shape[1]))


def _shared(a: npt.NDArray[Any], b: npt.NDArray[Any], k: int) -> float:
    tops = [np.argpartition(-side, k - 1, axis=1)[:, :k] for side in (a, b)]
    both = (tops[0][:, :, None] == tops[1][:, None, :]).any(2)
    return float(both.mean())
