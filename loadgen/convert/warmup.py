"""The warm-up of a served model: its own shapes before it is ready, with ids that are in its vocabulary.

Triton's random_data is the raw bytes of rand(): token ids that no table has.  So whole numbers come from files.
It must not know how the model was made or where its folder is.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from loadgen.records import TensorSpec
from loadgen.triton.config import Warmup, WarmupInput
from loadgen.triton.config_enums import DataType
from loadgen.triton.pbtxt import ConfigError

_WHOLE = {"INT64": np.int64, "INT32": np.int32, "INT16": np.int16, "INT8": np.int8,
          "UINT64": np.uint64, "UINT32": np.uint32, "UINT16": np.uint16, "UINT8": np.uint8}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fill:
    """What a whole-number input is filled with: `low` to `high`, both allowed."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class WarmupPlan:
    """`files` are bytes by name, for the model's warmup folder; they name the version they belong to."""

    warmup: tuple[Warmup, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


def require_lengths(cells: Sequence[tuple[int, int]], longest: int) -> None:
    """Raises ConfigError for a length that the served model refuses: it would never be ready."""
    for batch, length in cells:
        if length > longest:
            raise ConfigError(f"warm-up {batch}x{length}: the model takes lengths 1..{longest}")


def plan(
    inputs: Sequence[TensorSpec],
    cells: Sequence[tuple[int, int]],
    fills: Mapping[str, Fill],
    *,
    max_batch: int,
    version: int,
) -> WarmupPlan:
    """One warm-up a (batch, length), every free dimension of an input at `length`.

    Whole numbers without a fill, and every other tensor, are zeros.  Files are named by version, so a later
    conversion never changes what a served version warms up with.  Raises ConfigError for a batch that is not served.
    """
    files: dict[str, bytes] = {}
    warmup = []
    for batch, length in cells:
        if batch > max(max_batch, 1):
            raise ConfigError(f"warm-up batch {batch}: the largest batch is {max(max_batch, 1)}")
        given = {spec.name: _one(spec, length, fills.get(spec.name), version, files) for spec in inputs}
        warmup.append(Warmup(name=f"batch {batch}, length {length}", batch_size=batch, inputs=given))
    return WarmupPlan(tuple(warmup), files)


def _one(
    spec: TensorSpec, length: int, fill: Fill | None, version: int, files: dict[str, bytes]
) -> WarmupInput:
    dims = tuple(length if size < 0 else size for size in spec.shape) or (1,)
    kind = DataType("TYPE_STRING" if spec.datatype == "BYTES" else f"TYPE_{spec.datatype}")
    if fill is None or spec.datatype not in _WHOLE:
        return WarmupInput(data_type=kind, dims=dims, zero_data=True)
    name = f"{version}-{len(files)}-{re.sub(r'[^A-Za-z0-9_.]', '_', spec.name)}-{'x'.join(map(str, dims))}"
    rng = np.random.default_rng(length)
    values = rng.integers(fill.low, fill.high, size=dims, endpoint=True)
    files[name] = values.astype(_WHOLE[spec.datatype]).tobytes()
    return WarmupInput(data_type=kind, dims=dims, input_data_file=name)
