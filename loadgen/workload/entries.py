"""One row of given data as a tensor's raw bytes: plain values of JSON, bytes of a text line, numpy arrays.

Nothing is guessed: what does not fit the datatype, the range or the shape is refused in words that a caller
puts a place in front of.  It must not know files, models or batches.
"""

import base64
import binascii
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.traffic.words import show_value
from loadgen.workload.fills import raw_numbers, raw_texts
from loadgen.workload.fit import DTYPES, FLOATS, WHOLES, whole_range

_Array = npt.NDArray[Any]
_GIVEN = ("data", "content")  # KServe's name for a tensor's values, and perf_analyzer's
_EXACT = 2**53  # whole numbers up to here are FP64 exactly
_BITS_64 = 8
_DOUBLE = 8  # bytes of an FP64


class EntryError(ValueError):
    """A row that the tensor cannot take: what is wrong and what is allowed."""


@dataclass(frozen=True, slots=True)
class Row:
    """A tensor's row: its shape without the batch axis, and its raw bytes."""

    shape: tuple[int, ...]
    data: bytes


def is_entry(value: Any) -> bool:
    """Whether an object is one tensor's row ({b64}, {data, shape}) rather than named columns."""
    return isinstance(value, dict) and bool(value) and value.keys() <= {*_GIVEN, "b64", "shape"}


def row_of(value: Any, datatype: str, dims: tuple[int, ...]) -> Row:
    """A row from a plain value (number, text, nested lists, {b64: ...}, {data: ..., shape: ...}) or an array.

    `dims` is what the model takes, -1 for a free one.  Raises EntryError.
    """
    shape: tuple[int, ...] | None = None
    if isinstance(value, dict):
        if datatype != "BYTES" and "b64" in value:
            return _raw_row(value, datatype, dims)
        if not (datatype == "BYTES" and value.keys() == {"b64"}):
            value, shape = _opened(value)
    if datatype == "BYTES":
        found, texts = _texts(value)
        return Row(fitted(found, len(texts), dims, shape), raw_texts(texts))
    array = value if isinstance(value, np.ndarray) else _array(value, datatype)
    if datatype == "BF16" and array.dtype == np.dtype("V2"):  # how numpy stores it without ml_dtypes
        return Row(fitted(array.shape, array.size, dims, shape), array.tobytes())
    return Row(fitted(array.shape, array.size, dims, shape), raw_numbers(_checked(array, datatype), datatype))


def fitted(
    found: tuple[int, ...], n: int, dims: tuple[int, ...], told: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """The shape that `n` values take, found nested like `found` or told; raises EntryError.

    A flat list or a single value takes the model's shape where that has no free dimension (or is one).
    """
    if told is not None:
        if len(found) != 1 and found != told:
            raise EntryError(f"its lists are nested as {list(found)}, its shape says {list(told)}")
        found = told
        if math.prod(told) != n:
            raise EntryError(_count(n, told))
    if _matches(found, dims):
        return found
    if -1 not in dims and len(found) <= 1 and told is None:
        if n == math.prod(dims):
            return dims
        raise EntryError(_count(n, dims))
    if n == 1 and found == () and len(dims) == 1:
        return (1,)
    allowed = ", ".join("any" if dim == -1 else str(dim) for dim in dims)
    hint = (
        "" if told is not None or len(found) != 1 else "; nest the lists or write {data: [...], shape: [...]}"
    )
    raise EntryError(f"shape {list(found)} given; allowed: [{allowed}]{hint}")


def _count(n: int, shape: tuple[int, ...]) -> str:
    needs = f"shape {list(shape)} needs" if len(shape) != 1 else "shape needs"
    return f"{n} value{'' if n == 1 else 's'} given, {needs} {math.prod(shape)}"


def _matches(shape: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    return len(shape) == len(dims) and all(dim in (-1, ours) for dim, ours in zip(dims, shape, strict=True))


def _opened(value: dict[str, Any]) -> tuple[Any, tuple[int, ...] | None]:
    """The values and the shape of {data: ..., shape: ...}."""
    keys = [key for key in _GIVEN if key in value]
    if len(keys) != 1 or not value.keys() <= {*_GIVEN, "shape"}:
        raise EntryError(f"keys {', '.join(value)}; allowed: {{b64: ...}} or {{data: [...], shape: [...]}}")
    return value[keys[0]], _told_shape(value)


def _told_shape(value: dict[str, Any]) -> tuple[int, ...] | None:
    shape = value.get("shape")
    if shape is None:
        return None
    if not isinstance(shape, list) or not all(type(dim) is int and dim >= 0 for dim in shape):
        raise EntryError(f"shape {show_value(shape)}; allowed: a list of whole numbers")
    return tuple(shape)


def _decoded(text: Any) -> bytes:
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise EntryError(f"b64 {show_value(text)} is not base64")


def _raw_row(value: dict[str, Any], datatype: str, dims: tuple[int, ...]) -> Row:
    """{b64: ..., shape: ...} of numbers: the raw little-endian bytes of the row."""
    if not value.keys() <= {"b64", "shape"}:
        raise EntryError(f"keys {', '.join(value)}; allowed beside b64: shape")
    data, size = _decoded(value["b64"]), np.dtype(DTYPES[datatype]).itemsize
    if len(data) % size:
        raise EntryError(f"b64 holds {len(data)} bytes, no multiple of the {size} of a {datatype}")
    if datatype == "BOOL" and not set(data) <= {0, 1}:
        raise EntryError("b64 holds bytes that are neither 0 nor 1, as BOOL needs")
    n = len(data) // size
    return Row(fitted((n,), n, dims, _told_shape(value)), data)


def _texts(value: Any) -> tuple[tuple[int, ...], list[bytes]]:
    """Strings nested in lists, as (shape, flat)."""
    if isinstance(value, np.ndarray):
        return value.shape, _array_texts(value)
    if not isinstance(value, list):
        return (), [_text(value)]
    parts = [_texts(part) for part in value]
    shapes = {shape for shape, _ in parts}
    if len(shapes) > 1:
        raise EntryError("its nested lists are not all of one size")
    inner = shapes.pop() if shapes else ()
    return (len(parts), *inner), [text for _, flat in parts for text in flat]


def _array_texts(array: _Array) -> list[bytes]:
    """Of numpy's fixed widths: V whole, U without its padding, S where no text ends in a zero byte.

    numpy pads S with zero bytes and takes all of them off again, a text's own too.
    """
    width = array.dtype.itemsize
    if array.dtype.kind == "U":
        return [_text(text) for text in array.ravel().tolist()]
    if array.dtype.kind not in "SV" or array.dtype.names is not None:
        raise EntryError(f"values of numpy type {array.dtype}; allowed: text (numpy types S, U and V)")
    raw = array.tobytes()
    texts = [raw[at : at + width] for at in range(0, len(raw), width)] if width else [b""] * array.size
    if array.dtype.kind == "S" and any(text.endswith(b"\0") for text in texts):
        raise EntryError(
            f"numpy type S{width} pads with zero bytes, so a text's own cannot be told from them; save text as U, and "
            f"bytes of one width as V{width}"
        )
    return texts


def _text(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise EntryError(
                f"{show_value(value)} is half a character; write {{b64: ...}} for bytes"
            ) from None
    if isinstance(value, dict) and value.keys() == {"b64"}:
        return _decoded(value["b64"])
    raise EntryError(f"{show_value(value)} is not text; allowed: text in quotes or {{b64: ...}}")


def _array(value: Any, datatype: str) -> _Array:
    """Plain JSON values as an array that holds them exactly."""
    try:
        array = np.array(value)
    except ValueError:
        raise EntryError("its nested lists are not all of one size") from None
    if array.dtype.kind in "biu" or (array.dtype.kind == "f" and not _loses(array, datatype)):
        return array if array.size or array.dtype.kind == "i" else array.astype(np.int64)
    exact = np.array(value, dtype=object)
    for one in exact.ravel().tolist():
        if not isinstance(one, bool | int | float):
            allowed = "true or false" if datatype == "BOOL" else "numbers"
            raise EntryError(f"{show_value(one)} is no {datatype}; allowed: {allowed}")
    return exact


def _loses(array: _Array, datatype: str) -> bool:
    """Whether whole numbers of 64 bits may have been rounded among real ones."""
    wide = datatype in WHOLES and int(WHOLES[datatype][-1]) == _BITS_64
    return wide and bool((np.abs(array) >= _EXACT).any())


def _checked(array: _Array, datatype: str) -> _Array:
    """The array, when every value has a place in the datatype.  Raises EntryError."""
    if array.dtype.kind not in "biufO":
        raise EntryError(f"values of numpy type {array.dtype}; allowed: numbers")
    if datatype in FLOATS:
        return _real(array, datatype)
    if datatype == "BOOL":
        flags = array.astype(bool)
        if bad := _first(array, flags != array):
            raise EntryError(f"{bad} is no BOOL; allowed: true or false, 1 or 0")
        return flags
    return _whole(array, datatype)


def _real(array: _Array, datatype: str) -> _Array:
    try:
        real = array.astype(np.float64)
    except OverflowError:
        raise EntryError(f"a whole number is beyond {datatype}") from None
    with np.errstate(over="ignore"):
        raw = np.frombuffer(raw_numbers(real, datatype), dtype=DTYPES[datatype]).reshape(real.shape)
    ends = (raw & 0x7FFF) == 0x7F80 if datatype == "BF16" else np.isinf(raw)  # noqa: PLR2004 - BF16 infinity
    if bad := _first(array, ends & np.isfinite(real)):
        most = np.finfo(np.dtype(DTYPES[datatype])).max if datatype != "BF16" else 3.3895314e38
        raise EntryError(f"{bad} is beyond {datatype}; allowed: {-most:g} to {most:g}")
    return real


def _whole(array: _Array, datatype: str) -> _Array:
    low, high = whole_range(datatype)
    if (
        array.dtype.kind == "f" and array.dtype.itemsize < _DOUBLE
    ):  # FP16 cannot even be compared with the ends
        array = array.astype(np.float64)
    given = array
    if array.dtype.kind in "fO":
        if bad := _first(array, array != np.floor(array) if array.dtype.kind == "f" else _broken(array)):
            raise EntryError(f"{bad} is no whole number, as {datatype} needs")
        if array.dtype.kind == "O":
            array = np.array([int(one) for one in array.ravel().tolist()], dtype=object).reshape(array.shape)
    if array.dtype.kind != "b" and (
        bad := _first(given, (array < low) | (array >= high + 1 if array.dtype.kind == "f" else array > high))
    ):  # 2^63 - 1 has no real number of its own: compared as one it is 2^63
        raise EntryError(f"{bad} is beyond {datatype}; allowed: {low} to {high}")
    return array.astype(DTYPES[datatype])


def _broken(array: _Array) -> _Array:
    return np.array([one != one or one in (math.inf, -math.inf) or one != int(one)  # noqa: PLR0124 - NaN
                     for one in array.ravel().tolist()], dtype=bool).reshape(array.shape)  # fmt: skip


def _first(array: _Array, wrong: npt.ArrayLike) -> str:
    """The first wrong value as a person wrote it; "" when there is none."""
    where = np.asarray(wrong, dtype=bool)
    if not where.any():
        return ""
    found = array[where].ravel()[0]
    return show_value(found.item() if isinstance(found, np.generic) else found)
