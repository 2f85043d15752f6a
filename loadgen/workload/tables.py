"""Files of rows, read as they are: .npy (memory-mapped), .npz, .json, .jsonl, .txt.

A table knows for each row where it stands in its file, and which of its columns the row has.
"""

import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from loadgen.records import LoadgenError
from loadgen.traffic.data import DATA_FILES
from loadgen.traffic.json_text import JsonError, decoded, parse_json
from loadgen.traffic.lines import BOM, LinesError, check_line_ends, check_text, text_lines
from loadgen.traffic.words import near, show_value
from loadgen.units import show_bytes
from loadgen.workload.entries import is_entry

MOST_BYTES = 2**30  # of a file that is read whole; an .npy of any size is mapped
Rows = Sequence[Any] | npt.NDArray[Any]
WHOLE = ""  # the column of rows that have no names
_OF_DATA = "data"  # perf_analyzer's key for a file's rows


class Absent(Enum):
    """The type of ABSENT."""

    ABSENT = 0


ABSENT: Final = Absent.ABSENT  # stands in a column for a row that does not have it


class DataError(LoadgenError):
    """A file of rows that cannot be used: where, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of `n` rows each; `where` says the place of a row (from 0) as a person would look it up."""

    path: Path
    n: int
    columns: Mapping[str, Rows]
    where: Callable[[int], str]

    def column(self, name: str, *, asked: bool) -> Rows:
        """The rows of an input: its column, or the whole rows where columns have no names.

        `asked`: the profile names the column; else the only one will do.  Raises DataError.
        """
        if name in self.columns:
            return self.columns[name]
        if not asked and (WHOLE in self.columns or len(self.columns) == 1):
            return next(iter(self.columns.values()))
        if WHOLE in self.columns:
            raise DataError(f"{self.path}: its rows have no named columns, so there is no {name!r}")
        known = list(self.columns)
        raise DataError(f"{self.path}: no column {name!r}{near(name, known)}; allowed: {', '.join(known)}")


def read_table(path: Path, names: Collection[str] = ()) -> Table:
    """The rows of a file, by the end of its name.  Raises DataError.

    `names` are columns that rows may have, for an object that could be a single tensor too: {"data": [1, 2]}.
    """
    suffix = path.suffix.lower()
    try:
        size = path.stat().st_size
        if suffix != ".npy" and size > MOST_BYTES:
            raise DataError(
                f"{path}: {show_bytes(size)}; allowed: {show_bytes(MOST_BYTES)}, or an .npy of any size"
            )
        if suffix in (".json", ".jsonl"):
            table = (_json if suffix == ".json" else _jsonl)(path, names)
        else:
            table = {".npy": _npy, ".npz": _npz, ".txt": _txt}[suffix](path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; a profile names files from its own folder") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder; allowed: a file ({', '.join(DATA_FILES)})") from None
    except OSError as why:
        raise DataError(f"{path}: cannot be read: {why.strerror or why}") from None
    if table.n == 0:
        raise DataError(f"{path}: has no rows; allowed: at least one")
    return table


def _npy(path: Path) -> Table:
    array = _loaded(path)
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}: is no .npy file; allowed: what numpy.save writes")
    return _arrays(path, {WHOLE: array})


def _npz(path: Path) -> Table:
    with _loaded(path) as archive:
        if isinstance(archive, np.ndarray):
            raise DataError(f"{path}: is an .npy file; name it so")
        names = list(archive.files)
        return _arrays(path, {name: _member(path, archive, name) for name in names})


def _loaded(path: Path) -> Any:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile):
        said = f"no numpy file of numbers or text; allowed: what numpy.save{'z' * (path.suffix == '.npz')} writes"
        raise DataError(f"{path}: {said} (no pickled objects)") from None


def _member(path: Path, archive: Any, name: str) -> Any:
    try:
        return archive[name]
    except (ValueError, EOFError, zipfile.BadZipFile, KeyError):
        raise DataError(f"{path}: array {name!r} cannot be read; allowed: numbers or text") from None


def _arrays(path: Path, arrays: dict[str, Any]) -> Table:
    arrays = {name: np.atleast_1d(array) for name, array in arrays.items()}
    for name, array in arrays.items():
        if array.dtype.names is not None:
            said = f"array {name!r} " if name else ""
            raise DataError(
                f"{path}: {said}has rows of named fields ({', '.join(array.dtype.names)}); save each field as an array "
                "of an .npz"
            )
    sizes = {name: len(array) for name, array in arrays.items()}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise DataError(f"{path}: arrays of different numbers of rows ({told}); allowed: one number")
    n = next(iter(sizes.values()), 0)
    return Table(path, n, arrays, lambda row: f"{path}: row {row + 1}")


def _txt(path: Path) -> Table:
    """A line ends with LF or CRLF; what is between is bytes of any kind."""
    try:
        lines = text_lines(path.read_bytes(), any_bytes=True)
    except LinesError as why:
        raise DataError(f"{path}: {why}") from None
    return Table(path, len(lines), {WHOLE: lines}, lambda row: f"{path}:{row + 1}")


def _jsonl(path: Path, names: Collection[str]) -> Table:
    rows: list[Any] = []
    at: list[int] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1:
                _check_lines(path, line)
            if text := line.removeprefix(BOM).strip() if number == 1 else line.strip():
                rows.append(_parsed(text, f"{path}:{number}"))
                at.append(number)
    return _objects(path, rows, lambda row: f"{path}:{at[row]}", names)


def _check_lines(path: Path, first: bytes) -> None:
    """`first` ends with LF, unless the file has none."""
    try:
        check_text(first)
        check_line_ends(first)
    except LinesError as why:
        raise DataError(f"{path}: {why}") from None


def _json(path: Path, names: Collection[str]) -> Table:
    """A list of rows, or {"data": [rows]} as perf_analyzer has it."""
    raw = path.read_bytes()
    _check_lines(path, raw[:2])
    value = _parsed(raw.removeprefix(BOM), str(path))
    if isinstance(value, dict) and _OF_DATA in value and "shape" not in value:
        if unread := next((key for key in value if key != _OF_DATA), None):
            raise DataError(
                f'{path}: the key {unread!r} is not read; allowed beside "data": none; take it out'
            )
        value = value[_OF_DATA]
    if not isinstance(value, list):
        raise DataError(f'{path}: {show_value(value)}; allowed: a list of rows, or {{"data": [rows]}}')
    return _objects(path, value, lambda row: f"{path}: row {row + 1}", names)


def _parsed(text: bytes, where: str) -> Any:
    try:
        plain = decoded(text)
    except JsonError as why:
        raise DataError(f"{where}: {why}; write bytes as {{b64: ...}}") from None
    try:
        return parse_json(plain, exact=True)
    except JsonError as why:
        raise DataError(f"{where}: {why}") from None


def _objects(path: Path, rows: list[Any], where: Callable[[int], str], names: Collection[str]) -> Table:
    """Objects are rows of named columns, each with those that it has; anything else is a row itself."""
    named = [
        isinstance(row, dict) and (not is_entry(row) or not row.keys().isdisjoint(names)) for row in rows
    ]
    if not any(named):
        for index, row in enumerate(rows):
            if isinstance(row, list) and any(isinstance(part, dict) and not is_entry(part) for part in row):
                said = "a list of rows in place of a row (perf_analyzer's streams of steps)"
                raise DataError(f"{where(index)}: {said}; allowed: its steps as rows of their own")
        return Table(path, len(rows), {WHOLE: rows}, where)
    first = named.index(True)
    columns = list(dict.fromkeys(name for row in rows if isinstance(row, dict) for name in row))
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise DataError(
                f"{where(index)}: {show_value(row)}; allowed: an object of named columns, as in {where(first)}"
            )
    return Table(path, len(rows), {name: [row.get(name, ABSENT) for row in rows] for name in columns}, where)
