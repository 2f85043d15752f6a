"""The nouns of an engine benchmark: what is asked, one cell of the grid, and what was found.

It must not know torch, ONNX or how anything is measured.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from loadgen.histogram import nearest_rank
from loadgen.records import LoadgenError

RUNTIMES = ("torch", "torch-compile", "onnxruntime", "tensorrt")
PRECISIONS = ("fp32", "fp16", "bf16", "int8", "fp8")
MODES = ("infer", "train")
FEW = 100  # rounds: a P99 of fewer is close to the slowest of them


class BenchError(LoadgenError):
    """A benchmark that cannot be run as it was asked for."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The grid.  `seconds` is spent on each cell beyond its warm-up, and at least `rounds` rounds are made."""

    batches: tuple[int, ...] = (1, 4, 16)
    lengths: tuple[int, ...] = ()  # none: some that the model takes
    precisions: tuple[str, ...] = ("fp32",)
    runtimes: tuple[str, ...] = ("torch", "onnxruntime")
    mode: str = "infer"
    device: str = "cpu"
    seconds: float = 1.0
    rounds: int = 10
    warmup: int = 3
    threads: int | None = None

    def __post_init__(self) -> None:
        for key, allowed in (("runtimes", RUNTIMES), ("precisions", PRECISIONS)):
            wrong = [one for one in getattr(self, key) if one not in allowed]
            if wrong or not getattr(self, key):
                raise BenchError(f"{key} {', '.join(wrong) or 'none'}: allowed are {', '.join(allowed)}")
        if self.mode not in MODES:
            raise BenchError(f"mode {self.mode!r}: allowed are {', '.join(MODES)}")
        for key in ("batches", "lengths"):
            if min(getattr(self, key), default=1 if key == "lengths" else 0) < 1:
                raise BenchError(f"{key}: whole numbers of 1 or more are expected")
        if self.rounds < 1 or self.warmup < 1:
            raise BenchError("rounds and warmup must be 1 or more")
        if not 0 <= self.seconds < math.inf:
            raise BenchError(f"seconds {self.seconds}: a number of 0 or more is expected")

    def engines(self) -> Iterator[tuple[str, str]]:
        """(runtime, precision), each opened once; sizes are then run in ascending order."""
        for runtime in self.runtimes:
            for precision in self.precisions:
                yield runtime, precision

    def sizes(self) -> Iterator[tuple[int, int]]:
        """(batch, length), ascending: what a larger size keeps allocated is in no smaller one's figure."""
        yield from sorted(((b, n) for b in set(self.batches) for n in set(self.lengths)), key=math.prod)


@dataclass(frozen=True, slots=True)
class Cell:
    """One runtime, precision, batch and length, and what was measured; `error` says why not.

    Latencies are of one call; `parts` of a training step are its medians.  `memory` holds bytes by where they
    were counted: `torch_peak` (torch's allocator, where torch runs the model), `device_used` (the GPU's, all
    processes) and `device_growth` (over what it had before the runtime was opened, kernels included), `rss_peak`
    (the process), `rss_growth` (over what it had before the runtime was opened), `arena` (onnxruntime: what
    running added to the process since the session was open; it gives nothing back).  `tokens`: a length is one in
    tokens, which an image's is not.
    """

    runtime: str
    precision: str
    batch: int
    length: int
    median_ns: float | None = None
    p99_ns: float | None = None
    least_ns: float | None = None
    rounds: int = 0
    first_ns: float | None = None  # the first call at this size
    open_ns: float | None = None  # of the runtime, with the very first answer: compiling, choosing kernels
    parts: dict[str, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    cosine: float | None = None
    max_abs: float | None = None
    ranks: float | None = None
    error: str | None = None
    tokens: bool = True  # whether a length is one in tokens: an image has none

    @property
    def samples_per_s(self) -> float | None:
        return None if not self.median_ns else self.batch * 1e9 / self.median_ns

    @property
    def tokens_per_s(self) -> float | None:
        return self.batch * self.length * 1e9 / self.median_ns if self.median_ns and self.tokens else None

    @property
    def agreement(self) -> float | None:
        """With FP32: of embedding ranks where there are any, else the cosine.  None where nothing was compared.

        Answers that all point one way, or nowhere, have their ranks in common with any others: a cosine that is not
        above zero overrules them.
        """
        if self.ranks is None or self.cosine is None or not self.cosine > 0:
            return self.cosine
        return self.ranks

    @property
    def peak_bytes(self) -> int | None:
        """The figure to compare: torch's own on a GPU, else what the GPU or the process grew by."""
        return next(
            (self.memory[key] for key in ("torch_peak", "device_growth", "rss_growth") if key in self.memory),
            None,
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "samples_per_s": self.samples_per_s,
            "tokens_per_s": self.tokens_per_s,
            "peak_bytes": self.peak_bytes,
            "p99_of_few": self.rounds < FEW,
        }


def latency(stamps_ns: Sequence[float]) -> dict[str, Any]:
    """Median and P99 (both nearest rank), least and count of some calls' nanoseconds."""
    ordered = sorted(stamps_ns)
    return {
        "median_ns": float(nearest_rank(ordered, 0.5)),
        "p99_ns": float(nearest_rank(ordered, 0.99)),
        "least_ns": float(ordered[0]),
        "rounds": len(ordered),
    }
