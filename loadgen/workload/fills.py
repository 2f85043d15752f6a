"""Raw KServe v2 bytes of a tensor: random values under a law, little endian, row-major.

It must not know models, batches or protocols.
"""

import string
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.traffic.inputs import Fill
from loadgen.workload.fit import DTYPES, FLOATS, WHOLES

_LETTERS = np.frombuffer((string.ascii_lowercase + "      ").encode(), dtype=np.uint8)
_FEW, _MANY = 8, 64  # bytes of a string where nothing says how long it be


def bf16_bytes(values: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.uint16]:
    """BF16 is the upper half of an FP32: rounded to nearest, ties to even; NaN stays NaN.

    Adding 0x7fff and the kept part's lowest bit carries into it exactly when rounding up is due.  FP64 goes
    through FP32 cut towards 0 with a sticky last bit, so that it is rounded once, not twice.
    """
    with np.errstate(over="ignore"):
        single = values.astype("<f4")
    bits = single.view("<u4").astype(np.uint64)
    if values.dtype.itemsize > single.dtype.itemsize:
        outward = np.abs(single) > np.abs(values)
        bits = np.where(single != values, (bits - outward) | 1, bits)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    nan = np.asarray(((bits >> 16) | 0x40).astype("<u2"))
    return np.where(np.isnan(values), nan, rounded)


def raw_numbers(values: npt.NDArray[np.generic], datatype: str) -> bytes:
    """The values in a datatype's raw form."""
    if datatype == "BF16":
        return bf16_bytes(values.astype(np.float64)).astype("<u2").tobytes()
    return values.astype(DTYPES[datatype]).tobytes()


def raw_texts(texts: list[bytes]) -> bytes:
    """BYTES: each element behind its length in bytes (not characters), 4 bytes little endian."""
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def draw(
    rng: np.random.Generator, datatype: str, shape: tuple[int, ...], fill: Fill | None, length: int | None
) -> bytes:
    """Random raw bytes: the law given, else standard normal, 0 to 100, true or false, or letters.

    Strings without a law have `length` bytes where there is one.
    """
    if datatype == "BYTES":
        return raw_texts(_texts(rng, int(np.prod(shape, dtype=np.int64)), fill, length))
    law = fill.law if fill else None
    if fill is not None and law == "constant":
        value = np.array(fill.constant, dtype=np.float64 if datatype in FLOATS else DTYPES[datatype])
        return raw_numbers(np.full(shape, value), datatype)
    if datatype == "BOOL":
        return raw_numbers(rng.integers(0, 2, size=shape), datatype)
    if datatype in WHOLES:
        low, high = (fill.integers.min, fill.integers.max) if fill and fill.integers else (0, 100)
        return raw_numbers(
            rng.integers(low, high, size=shape, dtype=DTYPES[datatype], endpoint=True), datatype
        )
    return raw_numbers(_reals(rng, shape, fill), datatype)


def _reals(rng: np.random.Generator, shape: tuple[int, ...], fill: Fill | None) -> npt.NDArray[np.float64]:
    if fill and fill.uniform:
        return fill.uniform.min + (fill.uniform.max - fill.uniform.min) * rng.random(shape)
    if fill and fill.integers:
        span = (fill.integers.min, fill.integers.max)
        return np.floor(span[0] + (span[1] - span[0] + 1) * rng.random(shape))
    mean, sd = (fill.normal.mean, fill.normal.sd) if fill and fill.normal else (0.0, 1.0)
    return mean + sd * rng.standard_normal(shape)


def _texts(rng: np.random.Generator, n: int, fill: Fill | None, length: int | None) -> list[bytes]:
    if fill and fill.constant is not None:
        return [str(fill.constant).encode()] * n
    low, high = (fill.text.min, fill.text.max) if fill and fill.text else (length or _FEW, length or _MANY)
    sizes = rng.integers(low, high, size=n, endpoint=True)
    return [_LETTERS[rng.integers(0, len(_LETTERS), size=size)].tobytes() for size in sizes]
