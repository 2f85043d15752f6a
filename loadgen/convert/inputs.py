"""What a model takes: names, types, free axes and ranges, and random tensors that keep to them.

A person writes an input as `name:dtype:dims[:low..high]`, on the command line or in a YAML or JSON file.
It must not know torch, ONNX or where a model comes from.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.records import LoadgenError

BATCH, LENGTH = "batch", "length"
LONGEST = 512  # of a free axis that names no range: attention grows with its square
WIDEST_BATCH = 65536
NUMPY = {
    "FP32": np.float32, "FP16": np.float16, "FP64": np.float64, "INT64": np.int64, "INT32": np.int32,
    "INT16": np.int16, "INT8": np.int8, "UINT8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip
DATATYPES = {np.dtype(kind).name: name for name, kind in NUMPY.items()}  # the same from numpy's side
_FLOATS = ("FP32", "FP16", "FP64")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_AXIS = re.compile(r"([A-Za-z_]\w*)(?:=(\d+)\.\.(\d+))?")
_RANGE = re.compile(r"(-?\d+(?:\.\d+)?(?:e-?\d+)?)\.\.(-?\d+(?:\.\d+)?(?:e-?\d+)?)")
_KEYS = ("name", "dtype", "dims", "range", "mask", "pad")


class InputError(LoadgenError):
    """An input that is not described in a way that can be kept to."""


@dataclass(frozen=True, slots=True)
class Input:
    """One input.  An axis is its size, or its name where it is free; inputs that name one axis share its size.

    Values lie in `low`..`high`, both included.  `fill` is what padding holds.  `mask` marks an input that is 1 at
    real positions of its last axis and 0 at padding; `tokens` one whose `fill` is no real value.  `spans` are the
    sizes (least, most) of axes that have bounds of their own.
    """

    name: str
    datatype: str  # KServe v2: FP32, INT64, ...
    axes: tuple[str | int, ...]
    low: float = 0
    high: float = 1
    fill: int = 0
    mask: bool = False
    tokens: bool = False
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def batched(self) -> bool:
        """Whether its first axis is the batch."""
        return self.axes[:1] == (BATCH,)

    def draw(
        self, sizes: Mapping[str, int], real: Mapping[str, npt.NDArray[np.int64]], rng: np.random.Generator
    ) -> npt.NDArray[Any]:
        """Random values of the shape that `sizes` makes; beyond a row's `real` length along an axis, padding."""
        shape = tuple(axis if isinstance(axis, int) else sizes[axis] for axis in self.axes)
        kept = np.ones(shape, np.bool_)
        for at, axis in enumerate(self.axes):
            if not isinstance(axis, int) and axis in real:
                place = np.arange(shape[at]).reshape([-1 if n == at else 1 for n in range(len(shape))])
                rows = real[axis] if self.batched else real[axis][:1]
                kept &= place < rows.reshape([-1] + [1] * (len(shape) - 1))
        if self.mask:
            return kept.astype(NUMPY[self.datatype])
        values: npt.NDArray[Any]
        if self.datatype in _FLOATS:
            values = rng.uniform(self.low, self.high, shape)
        else:
            values = rng.integers(int(self.low), int(self.high) + (not self.tokens), shape)
            if self.tokens:  # the padding id gives some models other positions: no real token is it
                values += values >= self.fill
        return np.where(kept, values, self.fill).astype(NUMPY[self.datatype])


def make_feeds(
    inputs: Sequence[Input], lengths: Sequence[int], rng: np.random.Generator
) -> dict[str, npt.NDArray[Any]]:
    """A batch of so many rows: `lengths` real positions each along "length", padded to the longest.

    Other free axes get a size within what is allowed, and rows a length within it where a mask can tell.
    """
    masked = {str(one.axes[-1]) for one in inputs if one.mask}
    sizes = {BATCH: len(lengths), LENGTH: max(lengths)}
    real = {LENGTH: np.asarray(lengths, np.int64)}
    for axis, (low, high) in spans_of(inputs).items():
        if axis in sizes:
            continue
        sizes[axis] = (low, high, int(rng.integers(low, high + 1)))[rng.integers(3)]
        if axis in masked:
            real[axis] = rng.integers(low, sizes[axis] + 1, len(lengths))
            real[axis][0] = sizes[axis]
    return {one.name: one.draw(sizes, real, rng) for one in inputs}


def one_row(
    inputs: Sequence[Input], feeds: Mapping[str, npt.NDArray[Any]], row: int, length: int
) -> dict[str, npt.NDArray[Any]]:
    """That row of a batch alone, without its padding: `length` long, other axes as long as their mask says."""
    own = {LENGTH: length}
    for one in inputs:
        if one.mask and one.axes[-1] != LENGTH:
            own[str(one.axes[-1])] = int(feeds[one.name][row].sum())
    cut = {}
    for one in inputs:
        at = tuple(slice(own.get(axis) if isinstance(axis, str) else None) for axis in one.axes[1:])
        cut[one.name] = np.ascontiguousarray(feeds[one.name][(slice(row, row + 1), *at)])
    return cut


def spans_of(inputs: Sequence[Input]) -> dict[str, tuple[int, int]]:
    """(least, most) of every free axis; where inputs differ, what all of them take.  Raises InputError."""
    found: dict[str, tuple[int, int]] = {}
    for one in inputs:
        for axis in one.axes:
            if isinstance(axis, int):
                continue
            low, high = one.spans.get(axis, (1, WIDEST_BATCH if axis == BATCH else LONGEST))
            before = found.get(axis, (low, high))
            found[axis] = (max(low, before[0]), min(high, before[1]))
            if found[axis][0] > found[axis][1]:
                raise InputError(f"{one.name}: no size of {axis} suits every input that names it")
    return found


def pick_sizes(spans: Mapping[str, tuple[int, int]], avoid: frozenset[int]) -> dict[str, int]:
    """An example size of each free axis: at least 2, since 0 and 1 are special, all unequal, none to `avoid`.

    Where bounds leave no such size, the best there is; raises InputError if there is none of 2 or more.
    """
    sizes: dict[str, int] = {}
    for axis, (low, high) in spans.items():
        liked = (3, 5, 7, 9, 21) if axis == BATCH else (11, 13, 17, 19, 23, 7, 5, 3, 2)
        allowed = [
            n for n in (*liked, *range(max(low, 2), min(high, low + 64) + 1)) if max(low, 2) <= n <= high
        ]
        if not allowed:
            raise InputError(f"a {axis} of {high} at most is too short to convert; 2 is the least")
        unequal = [size for size in allowed if size not in sizes.values()] or allowed
        sizes[axis] = next((n for n in unequal if n not in avoid and n != low), unequal[0])
    return sizes


def require_axes(name: str, axes: Sequence[str | int]) -> None:
    """Raises InputError for a tensor without any axis: Triton allows none where there is no batch."""
    if not axes:
        raise InputError(
            f"{name} is a scalar (shape []), which Triton cannot take or give; use shape [1] in the model"
        )


def read_inputs(texts: Sequence[str], file: Path | None = None) -> tuple[tuple[Input, ...], str | None]:
    """The inputs that a file and texts describe, and the output's name if the file gives one; raises InputError."""
    told: list[Any] = list(texts)
    output = None
    if file is not None:
        from_file, output = _read_file(file)
        told = [*from_file, *told]
    inputs = tuple(_parse(one) if isinstance(one, str) else _parse_mapping(one) for one in told)
    names = [one.name for one in inputs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"input {twice[0]!r} is described twice")
    spans_of(inputs)
    return inputs, output


def _read_file(file: Path) -> tuple[list[Any], str | None]:
    from loadgen.traffic.document import ProfileError, read_document, read_text

    try:
        needs = "a list under 'inputs' is expected"
        told = read_document(read_text(file, "description of inputs"), str(file), needs).data
    except ProfileError as why:
        raise InputError(str(why)) from None
    if not isinstance(told, Mapping) or not isinstance(told.get("inputs"), list):
        raise InputError(f"{file}: a list under 'inputs' is expected, each with {', '.join(_KEYS)}")
    if unknown := sorted(set(told) - {"inputs", "output"}):
        raise InputError(f"{file}: unknown key {unknown[0]!r}; allowed: inputs, output")
    output = told.get("output")
    if output is not None and not isinstance(output, str):
        raise InputError(f"{file}: output {output!r} must be a name")
    return told["inputs"], output


def _parse(text: str) -> Input:
    parts = text.split(":")
    if len(parts) not in (3, 4):
        raise InputError(
            f"input {text!r}: write name:dtype:dims[:low..high], for example x:FP32:batch,3,224,224:-1..1"
        )
    told: dict[str, Any] = {
        "name": parts[0],
        "dtype": parts[1],
        "dims": [int(dim) if dim.isdigit() else dim for dim in parts[2].split(",") if dim],
    }
    if len(parts) == 4:  # noqa: PLR2004 - the range
        told |= {"mask": True} if parts[3] == "mask" else {"range": parts[3]}
    return _parse_mapping(told)


def _parse_mapping(told: Any) -> Input:
    if not isinstance(told, Mapping) or not {"name", "dtype", "dims"} <= set(told):
        raise InputError(f"input {told!r}: name, dtype and dims are needed")
    name, dtype = str(told["name"]), str(told["dtype"]).upper()
    if unknown := sorted(set(told) - set(_KEYS)):
        raise InputError(f"input {name}: unknown key {unknown[0]!r}; allowed: {', '.join(_KEYS)}")
    if not _NAME.fullmatch(name):
        raise InputError(f"input {name!r}: a name is letters, digits, '_' and '.', no digit first")
    if dtype not in NUMPY:
        raise InputError(f"input {name}: dtype {told['dtype']!r}; allowed: {', '.join(NUMPY)}")
    if not isinstance(told["dims"], list):
        raise InputError(f"input {name}: dims {told['dims']!r} must be a list")
    axes, spans = _axes(name, told["dims"])
    low, high = _range(name, dtype, told)
    fill = told.get("pad", 0)
    if not isinstance(fill, int):
        raise InputError(f"input {name}: pad {fill!r} must be a whole number")
    tokens = "pad" in told and dtype.startswith("INT") and high > low
    return Input(name, dtype, axes, low, high, fill, bool(told.get("mask", False)), tokens, spans)


def _axes(name: str, dims: Sequence[Any]) -> tuple[tuple[str | int, ...], dict[str, tuple[int, int]]]:
    axes: list[str | int] = []
    spans: dict[str, tuple[int, int]] = {}
    for dim in dims:
        if isinstance(dim, int) and not isinstance(dim, bool):
            if dim < 1:
                raise InputError(f"input {name}: size {dim} of an axis; allowed is 1 or more, or a name")
            axes.append(dim)
            continue
        match = _AXIS.fullmatch(str(dim))
        if match is None:
            raise InputError(f"input {name}: dim {dim!r}; write a size, a name, or name=least..most")
        if match[2]:
            low, high = int(match[2]), int(match[3])
            if not 1 <= low < high:
                raise InputError(f"input {name}: {dim}: sizes are 1 or more, the least first")
            spans[match[1]] = (low, high)
        axes.append(match[1])
    if BATCH in axes[1:]:
        raise InputError(f"input {name}: {BATCH} must be the first axis")
    return tuple(axes), spans


def _range(name: str, dtype: str, told: Mapping[str, Any]) -> tuple[float, float]:
    text = told.get("range")
    if text is None:
        if dtype in _FLOATS:
            return -1, 1
        if dtype == "BOOL" or told.get("mask"):
            return 0, 1
        raise InputError(
            f"input {name}: whole numbers need a range, or an index may fall out of its table; for example 0..99"
        )
    match = _RANGE.fullmatch(str(text))
    if match is None or float(match[1]) > float(match[2]):
        raise InputError(f"input {name}: range {text!r}; write low..high, both included")
    return float(match[1]), float(match[2])
