"""From a column as a file has it, text or numbers, to whole numbers: nanoseconds, tokens.

Whole columns at once; where one value is wrong, which one is found by halving.  It must not know files.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
NONE = np.int64(-(2**63))  # a time that the row does not have
_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_FARTHEST_NS = 4 * 10**18  # so that the difference of any two fits 64 bits


class BadValueError(ValueError):
    """A value that cannot be what its column should hold; `row` counts within the batch."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row


def texts(column: pa.Array) -> pa.Array:
    """As text; numbers and booleans as JSON writes them."""
    return column if pa.types.is_string(column.type) else pc.cast(column, pa.string())


def times_ns(column: pa.Array, unit: str) -> Ints:
    """Nanoseconds since whatever the column counts from; NONE where it is empty.  Raises BadValueError.

    Fractions that went through floating point are right within 0.3 us for today's epoch in seconds.
    """
    if unit == "datetime":
        return _filled(_dates(column), NONE)
    scale = _UNITS[unit]
    numbers = _numbers(column, f"no time in {unit}")
    if numbers.dtype == np.int64:
        held = numbers != NONE
        _within(np.where(held, numbers, 0) * float(scale), column, unit)
        return np.where(held, numbers * np.int64(scale), NONE)
    reals = numbers * float(scale)
    _within(np.nan_to_num(reals), column, unit)
    return np.where(np.isnan(reals), NONE, np.rint(np.nan_to_num(reals)).astype(np.int64))


def lengths(column: pa.Array, name: str) -> Ints:
    """Whole numbers of 0 or more; -1 where it is empty.  Raises BadValueError."""
    numbers = _numbers(column, f"no {name}: a whole number of 0 or more is needed")
    missing = np.isnan(numbers) if numbers.dtype != np.int64 else numbers == NONE
    values = np.where(missing, -1, numbers)
    wrong = ~missing & ((values < 0) | (values != np.floor(values)) | (values > 2.0**53))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise BadValueError(row, f"{column[row]} is no {name}: a whole number of 0 or more is needed")
    return values.astype(np.int64)


def numbers(column: pa.Array) -> tuple[Ints | Reals, npt.NDArray[np.bool_]]:
    """Numbers, whole ones of 64 bits exactly where all are whole, and where there is one.  Raises BadValueError."""
    values = _numbers(column, "no number")
    return values, values != NONE if values.dtype == np.int64 else ~np.isnan(values)


def _numbers(column: pa.Array, what: str) -> npt.NDArray[np.int64] | Reals:
    """int64 (NONE where empty) if every value is whole, else float64 (NaN where empty)."""
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), NONE)
    if pa.types.is_boolean(kind) or pa.types.is_temporal(kind):
        raise BadValueError(0, f"{column[0]} is {what}")
    if pa.types.is_string(kind) or pa.types.is_integer(kind):
        whole = _tried(column, pa.int64())
        if whole is not None:
            return _filled(whole, NONE)
        if pa.types.is_string(kind):
            column = pc.utf8_trim_whitespace(column)
            column = pc.if_else(pc.equal(column, ""), None, column)
    real = _tried(column, pa.float64())
    if real is None:
        row = _first_bad(column, lambda part: _tried(part, pa.float64()) is not None)
        raise BadValueError(row, f"{column[row].as_py()!r} is {what}")
    values: Reals = real.to_numpy(zero_copy_only=False).astype(np.float64)
    odd = ~np.isfinite(values) & np.asarray(real.is_valid())
    if odd.any():
        row = int(np.flatnonzero(odd)[0])
        raise BadValueError(row, f"{values[row]} is {what}")
    return values


def _dates(column: pa.Array) -> pa.Array:
    """Date and time, with a zone in every row or in none, as int64 nanoseconds."""
    if pa.types.is_timestamp(column.type):
        return pc.cast(pc.cast(column, pa.timestamp("ns", column.type.tz), safe=False), pa.int64())
    if not pa.types.is_string(column.type):
        if pa.types.is_null(column.type):
            return pc.cast(column, pa.int64())
        raise BadValueError(0, f"{column[0]} is no date and time; for numbers give the unit: ns, us, ms or s")
    kinds = (pa.timestamp("ns"), pa.timestamp("ns", "UTC"))
    for kind in kinds:
        if (stamps := _tried(column, kind)) is not None:
            return pc.cast(stamps, pa.int64())
    rows = [_first_bad(column, lambda part, kind=kind: _tried(part, kind) is not None) for kind in kinds]  # type: ignore[misc]
    row = max(rows)
    said = f"{column[row].as_py()!r} is no date and time such as 2024-05-10 00:00:00.5+00:00"
    if any(_tried(column.slice(row, 1), kind) is not None for kind in kinds):
        said = f"{column[row].as_py()!r}: some rows have a zone and some have none"
    raise BadValueError(row, said)


def _tried(column: pa.Array, kind: pa.DataType) -> pa.Array | None:
    try:
        pc.cast(column.slice(0, 1), kind)  # a whole column that fails costs a message a row
        return pc.cast(column, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _first_bad(column: pa.Array, holds: Callable[[pa.Array], bool]) -> int:
    low, high = 0, len(column)  # the first bad row is in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(column.slice(low, middle - low)) else (low, middle)
    return low


def _filled(column: pa.Array, missing: np.int64) -> Ints:
    values: Ints = pc.fill_null(column, int(missing)).to_numpy(zero_copy_only=False)
    return values


def _within(ns: Reals, column: pa.Array, unit: str) -> None:
    beyond = np.abs(ns) > _FARTHEST_NS
    if beyond.any():
        row = int(np.flatnonzero(beyond)[0])
        raise BadValueError(row, f"{column[row]} {unit} is beyond any calendar; is the unit right?")
