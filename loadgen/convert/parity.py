"""Does the ONNX file say what PyTorch says, at every size, and does padding change nothing?

Numbers in, numbers out; it must not know how a model was exported or where it goes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.convert import inputs
from loadgen.convert.encoder import Encoder, first_line
from loadgen.convert.session import SessionError, open_session
from loadgen.exits import ExitCode
from loadgen.records import LoadgenError

LARGEST = 1e-4  # FP32: what reordering of sums may cost, as a share of the reference's largest magnitude
# Of the largest magnitude at a point, and anywhere: less may be near zero by chance.
_OF_POINT, _OF_ALL = 0.1, 0.01
ULPS = 2.5e-7  # two units in the last place of 1: what exp, erf and sigmoid are right to, however small the answer
DIFFERING = 1e-3  # of the places of whole numbers: ties and roundings, among thousands of pixels
_FILL, _ABOVE = 1e4, 1e3  # a mark like -1e9: so large, and so many times the median magnitude

Floats = npt.NDArray[np.float32]  # whole numbers and truths are as the model gives them
Feeds = Mapping[str, npt.NDArray[Any]]
Run = Callable[[Feeds], Floats]

ONNX_VS_TORCH = "onnx = torch"
ALONE_TORCH = "alone = padded, torch"
ALONE_ONNX = "alone = padded, onnx"
ONNX_VS_FILE = "onnx = source"  # of an ONNX file there is no PyTorch to ask
ALONE_FILE = "alone = padded, source"
EMPTY_ROW = "beside a row of padding alone"
AGAIN = "the same asked again"  # PyTorch, what was asked last: a model may count, or draw random numbers


class ParityError(LoadgenError):
    """The export does not say what the model says, or does not run; the message carries the numbers."""


class ParityMissedError(ParityError):
    """Everything ran, and a limit was missed: the exit code of a missed objective."""

    exit_code = ExitCode.MISSED


@dataclass(frozen=True, slots=True)
class ParityPoint:
    """One comparison over the real (not padded) positions.

    `cosine` is the worst vector's, `peak` the largest magnitude that the reference gives here; `gaps` and `peaks` are
    the largest error and magnitude in each column (along the last axis).  `exact`: whole numbers, which have no
    rounding; their gaps are 0 where no more than a thousandth of them differ.
    """

    check: str
    batch: int
    length: int
    cosine: float
    max_abs: float
    mean_abs: float
    peak: float
    gaps: npt.NDArray[np.float64] = field(repr=False, compare=False)
    peaks: npt.NDArray[np.float64] = field(repr=False, compare=False)
    exact: bool = False

    def as_json(self) -> dict[str, str | int | float]:
        """As it stands in convert.json, without the columns."""
        return {name: getattr(self, name) for name in self.__slots__ if name not in ("gaps", "peaks")}


def points(max_batch: int, max_length: int) -> list[tuple[int, int]]:
    """(batch, length) to compare at: alone and full, length 1, the longest, odd sizes."""
    wanted = [(1, 1), (1, max_length), (2, 3), (3, 17), (5, 32), (max_batch, 29), (2, max_length)]
    return sorted({(min(b, max(max_batch, 1)), min(n, max_length)) for b, n in wanted})


def torch_run(encoder: Encoder) -> Run:
    """The model itself, on numpy."""
    import torch

    def run(feeds: Feeds) -> Floats:
        with torch.no_grad():
            answer = encoder.module(**{name: torch.from_numpy(value) for name, value in feeds.items()})
        return as_numbers((answer.float() if answer.is_floating_point() else answer).numpy())

    return run


def onnx_run(path: Path, device: str = "cpu") -> Run:
    """The written file under onnxruntime, on "cpu" or "cuda".  Raises ParityError if it does not load there."""
    try:
        session = open_session(path, device)
    except SessionError as why:
        raise ParityError(str(why)) from None

    def run(feeds: Feeds) -> Floats:
        return as_numbers(session.run(None, dict(feeds))[0])

    return run


def as_numbers(answer: Any) -> Floats:
    """Floats of any width as FP32; whole numbers and truths stay what they are: FP32 would round them."""
    found: Any = np.asarray(answer)
    whole: Floats = found.astype(np.float32) if found.dtype.kind == "f" else found
    return whole


def make_feeds(encoder: Encoder, lengths: Sequence[int], rng: np.random.Generator) -> dict[str, Any]:
    """Random rows of those lengths, padded to the longest, within what the model takes."""
    return inputs.make_feeds(encoder.specs, lengths, rng)


def measure(
    encoder: Encoder, onnx: Run, sizes: Sequence[tuple[int, int]], seed: int = 0
) -> list[ParityPoint]:
    """Every comparison at those sizes, passed or not.  Raises ParityError where a size does not run at all."""
    rng = np.random.default_rng(seed)
    torch = torch_run(encoder)
    versus, alone = (ONNX_VS_FILE, ALONE_FILE) if encoder.exporter == "file" else (ONNX_VS_TORCH, ALONE_TORCH)
    found: list[ParityPoint] = []
    for batch, length in sizes:
        # One row is as long as asked, the others are shorter: a batch of equals would hide the mask.
        shorter = [int(n) for n in rng.integers(1, length + 1, batch - 1)]
        lengths = [length, *shorter] if encoder.padded else [length] * batch
        feeds = make_feeds(encoder, lengths, rng)
        want, got = torch(feeds), _try(onnx, feeds, batch, length)
        found.append(_point(versus, encoder, lengths, want, got, length))
        if batch > 1:
            found.append(_alone(alone, encoder, torch, feeds, lengths, want))
            found.append(_alone(ALONE_ONNX, encoder, onnx, feeds, lengths, got))
    if sizes:
        found.append(_point(AGAIN, encoder, lengths, want, torch(feeds), length))
    batch, length = max(sizes, default=(1, 1))
    if batch > 1 and encoder.padded:
        found.append(_beside_padding(encoder, torch, onnx, length, rng))
    return found


def limits(found: Sequence[ParityPoint]) -> list[npt.NDArray[np.float64]]:
    """The largest error that is allowed in each column of each point: a share of the largest magnitude there, or of
    some of the point's or of all points', where that is more; and two units in the last place of 1 where answers are
    ten times that.  Whole numbers have none.
    """
    largest = max((point.peak for point in found if np.isfinite(point.peak)), default=0.0)
    floors = [np.fmax(_OF_POINT * point.peak, _OF_ALL * largest) for point in found]
    return [
        np.zeros_like(point.peaks)
        if point.exact
        else np.fmax(LARGEST * np.fmax(point.peaks, floor), ULPS if point.peak >= 10 * ULPS else 0.0)
        for point, floor in zip(found, floors, strict=True)
    ]


@np.errstate(all="ignore")
def verdict(found: Sequence[ParityPoint]) -> str | None:
    """The worst point's numbers if any is beyond its limit (or is not a number); None where all are within."""
    # Written so that NaN, which compares with nothing, fails.
    shares = [
        np.where(point.gaps <= limit, 0.0, np.nan_to_num(point.gaps / np.fmax(limit, 1e-300), nan=np.inf))
        for point, limit in zip(found, limits(found), strict=True)
    ]
    bad = [at for at, share in enumerate(shares) if share.max(initial=0.0) > 0]
    if not bad:
        return None
    at = max(bad, key=lambda one: float(shares[one].max()))
    worst, column = found[at], int(shares[at].argmax())
    allowed = limits(found)[at][column]
    why = f"{LARGEST:g} of the largest magnitude"
    if worst.exact:
        why = f"as more than {DIFFERING:g} of these whole numbers differ"
    if np.isnan(worst.peak):
        why += "; PyTorch's own answers are not numbers"
    return (
        f"parity failed at {len(bad)} of {len(found)} points, worst '{worst.check}' at batch {worst.batch}, "
        f"length {worst.length}: max abs {worst.gaps[column]:.3g} in column {column}, mean abs {worst.mean_abs:.3g}, "
        f"cosine {worst.cosine:.6f}; allowed is max abs {allowed:.3g}, {why}"
    )


def require(found: Sequence[ParityPoint]) -> None:
    """Raises ParityMissedError with the verdict, if there is one."""
    if (why := verdict(found)) is not None:
        raise ParityMissedError(f"{why}; nothing was published")


def _alone(
    check: str, encoder: Encoder, run: Run, feeds: Feeds, lengths: Sequence[int], padded: Floats
) -> ParityPoint:  # fmt: skip
    """Each row run alone at its own length against the same row inside the padded batch."""
    batch, width = len(lengths), max(lengths)
    rows = []
    for row, length in enumerate(lengths):
        own = inputs.one_row(encoder.specs, feeds, row, length)
        rows.append(_try(run, own, 1, length)[0])
    if not encoder.per_token:
        return _point(check, encoder, lengths, np.stack(rows), padded, width)
    want = np.zeros((batch, width, encoder.width), rows[0].dtype)
    for row, answer in enumerate(rows):
        want[row, : lengths[row]] = answer
    return _point(check, encoder, lengths, want, padded, width)


def _beside_padding(
    encoder: Encoder, torch: Run, onnx: Run, length: int, rng: np.random.Generator
) -> ParityPoint:
    """A row whose mask is all zeros must not change its neighbour.  Its own answer means nothing: often no number."""
    feeds = make_feeds(encoder, [length, length], rng)
    for one in encoder.specs:
        if one.mask:
            feeds[one.name][1] = 0
    first = {name: np.ascontiguousarray(value[:1]) for name, value in feeds.items()}
    want, got = torch(first), _try(onnx, feeds, 2, length)[:1]
    return _point(EMPTY_ROW, encoder, [length], want, got, length)


def _try(run: Run, feeds: Feeds, batch: int, length: int) -> Floats:
    try:
        return run(feeds)
    except Exception as why:  # noqa: BLE001 - onnxruntime's errors have no public base
        raise ParityError(
            f"parity: does not run at batch {batch}, length {length}: {first_line(why)}"
        ) from None


def _point(
    check: str, encoder: Encoder, lengths: Sequence[int], want: Floats, got: Floats, length: int
) -> ParityPoint:  # fmt: skip
    batch = len(lengths)
    if want.shape != got.shape:
        raise ParityError(
            f"parity: at batch {batch}, length {length} the shapes differ: {want.shape} and {got.shape}"
        )
    if encoder.per_token:
        real = np.arange(want.shape[1]) < np.asarray(lengths)[:, None]
        want, got = want[real], got[real]
    a, b = comparable(want, got)
    gap, size = np.abs(a - b), sizes_of(a)
    exact = want.dtype.kind != "f"
    alike = exact and differing(a, b) <= DIFFERING
    columns = (-1, a.shape[-1]) if a.ndim > 1 else (-1, 1)
    return ParityPoint(
        check, batch, length, worst_cosine(a, b), float(gap.max()), float(gap.mean()), float(size.max()),
        0.0 * size.reshape(columns).max(0) if alike else gap.reshape(columns).max(0), size.reshape(columns).max(0),
        exact=exact,
    )  # fmt: skip


@np.errstate(all="ignore")
def comparable(want: Floats, got: Floats) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Both as they are measured: marks in the reference, as the -1e9 of a class that is not allowed, are as large as its
    largest answer (and `got` there in proportion), or next to them any answer would do.  The same infinity in both is
    no difference.
    """
    a, b = want.astype(np.float64), got.astype(np.float64)
    same = np.isinf(a) & (a == b)
    a[same] = b[same] = 0.0
    size = np.abs(a)
    answers = size[(size > 0) & np.isfinite(size)]
    if answers.size:
        mark = np.isfinite(size) & (size >= max(_FILL, _ABOVE * float(np.median(answers))))
        if mark.any():
            share = float(size[~mark].max(initial=0.0, where=np.isfinite(size[~mark]))) / size[mark]
            a[mark] *= share
            b[mark] *= share
    return a, b


def differing(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    """The share of places at which whole numbers are not the same."""
    return float((a != b).mean())


def sizes_of(answers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Magnitudes to measure errors by: that of an infinity would allow any."""
    return np.where(np.isinf(answers), 0.0, np.abs(answers))


@np.errstate(all="ignore")
def worst_cosine(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    """Of the vectors along the last axis.  Two that are all zeros are the same."""
    a, b = (side / np.maximum(np.abs(side).max(-1, keepdims=True), 1e-300) for side in (a, b))
    norms = np.linalg.norm(a, axis=-1), np.linalg.norm(b, axis=-1)
    cosine = (a * b).sum(-1) / np.maximum(norms[0] * norms[1], 1e-30)
    return float(np.where((norms[0] == 0) & (norms[1] == 0), 1.0, cosine).min())
