"""TensorRT's optimization profiles: the shapes an engine is made for, from the lengths of the traffic.

Pure.  It must not know TensorRT's module, nor how an engine is built.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadgen.convert.config import FullTensor
from loadgen.convert.serve_options import MOST_INT32, whole_number
from loadgen.records import LoadgenError

_STEP = 8  # ends of buckets are multiples: what kernels like, and what nearby lengths share
_TYPICAL = 128  # the length an engine is tuned for when no traffic is given
Shape = tuple[int, ...]


class ProfileError(LoadgenError):
    """Shapes that make no optimization profile."""


@dataclass(frozen=True, slots=True)
class Span:
    """From `low` to `high`, both allowed; `typical` is what is tuned for."""

    low: int
    typical: int
    high: int

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.typical <= self.high:
            raise ProfileError(
                f"{self.low}:{self.typical}:{self.high} is no min:opt:max: 1 <= min <= opt <= max is"
            )


@dataclass(frozen=True, slots=True)
class Ranges:
    """One profile: the smallest, the tuned and the largest shape of each input."""

    shapes: Mapping[str, tuple[Shape, Shape, Shape]]

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {':'.join('x'.join(map(str, shape)) for shape in three)}"
            for name, three in self.shapes.items()
        )


def span(text: str, option: str) -> Span:
    """Reads "1:8:16" as a Span; raises ProfileError naming the option."""
    parts = [n for n in (whole_number(part, MOST_INT32) for part in text.split(":")) if n is not None]
    if len(parts) != 3 or text.count(":") != 2:  # noqa: PLR2004
        raise ProfileError(f"{option}: {text!r} is not allowed; min:opt:max is, e.g. 1:8:16")
    try:
        return Span(*parts)
    except ProfileError as why:
        raise ProfileError(f"{option}: {why}") from None


def buckets(lengths: Sequence[int], longest: int, count: int) -> tuple[Span, ...]:
    """At most `count` spans that together hold 1 to `longest`, each with an equal share of `lengths`.

    `lengths` are those of the traffic, in any order, each as often as it comes; those beyond `longest` are cut.
    Without any there is one span.  `typical` is a span's median length.
    """
    if not lengths:
        return (Span(1, min(_TYPICAL, longest), longest),)
    seen = sorted(min(max(length, 1), longest) for length in lengths)
    shares = (seen[-(-len(seen) * i // count) - 1] for i in range(1, count))
    ends = sorted({min(-(-end // _STEP) * _STEP, longest) for end in shares} | {longest})
    spans = []
    low = 1
    for end in ends:
        inside = seen[bisect_right(seen, low - 1) : bisect_right(seen, end)]
        spans.append(Span(low, inside[len(inside) // 2] if inside else end, end))
        low = end + 1
    return tuple(spans)


def ranges(inputs: Sequence[FullTensor], batch: Span, lengths: Sequence[Span]) -> tuple[Ranges, ...]:
    """A profile a span of lengths: the first axis of an input is the batch, its other free axes the length.

    A fixed axis keeps its size.  Raises ProfileError for an input whose rank is not known.
    """
    return tuple(
        Ranges({tensor.name: _three(tensor, batch, length) for tensor in inputs}) for length in lengths
    )


def _three(tensor: FullTensor, batch: Span, length: Span) -> tuple[Shape, Shape, Shape]:
    def shape(rows: int, tokens: int) -> Shape:
        free = (rows if i == 0 else tokens for i in range(len(tensor.axes)))
        return tuple(
            axis if isinstance(axis, int) and axis >= 0 else size
            for axis, size in zip(tensor.axes, free, strict=True)
        )

    return (
        shape(batch.low, length.low),
        shape(batch.typical, length.typical),
        shape(batch.high, length.high),
    )


def served_batch(profiles: Sequence[Ranges]) -> tuple[int, list[str]]:
    """(max_batch_size, warnings) for an engine: the largest batch that each of its profiles takes.

    A larger one in the configuration would fail in the server; so would one below a profile's smallest, and
    Triton's batcher forms those whenever few requests are waiting: that is a warning.
    """
    largest = [min(high[0] for _, _, high in p.shapes.values() if high) for p in profiles]
    smallest = [max(low[0] for low, _, _ in p.shapes.values() if low) for p in profiles]
    warnings = []
    if max(smallest) > 1:
        warnings.append(
            f"the engine's smallest batch is {max(smallest)}: the server will form smaller ones when few requests "
            "wait, and they fail; build it from batch 1"
        )
    if len(set(largest)) > 1:
        told = ", ".join(f"{i}: {size}" for i, size in enumerate(largest))
        warnings.append(
            f"profiles differ in their largest batch ({told}); max_batch_size is the least of them"
        )
    return min(largest), warnings
