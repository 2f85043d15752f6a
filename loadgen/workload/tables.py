"""Files of rows, read as they are: .npy (memory-mapped), .npz, .json, .jsonl, .txt.

A table knows for each row where it stands in its file.  It must not know tensors, models or requests.
"""

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.records import LoadgenError
from loadgen.traffic.data import DATA_FILES
from loadgen.traffic.words import near, show_value
from loadgen.units import show_bytes
from loadgen.workload.entries import is_entry

MOST_BYTES = 2**30  # of a file that is read whole; an .npy of any size is mapped
Rows = Sequence[Any] | npt.NDArray[Any]
WHOLE = ""  # the column of rows that have no names


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


def read_table(path: Path) -> Table:
    """The rows of a file, by the end of its name.  Raises DataError."""
    read = {".npy": _npy, ".npz": _npz, ".json": _json, ".jsonl": _jsonl, ".txt": _txt}[path.suffix.lower()]
    try:
        size = path.stat().st_size
        if path.suffix.lower() != ".npy" and size > MOST_BYTES:
            raise DataError(
                f"{path}: {show_bytes(size)}; allowed: {show_bytes(MOST_BYTES)}, or an .npy of any size"
            )
        table = read(path)
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
    sizes = {name: len(array) for name, array in arrays.items()}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise DataError(f"{path}: arrays of different numbers of rows ({told}); allowed: one number")
    n = next(iter(sizes.values()), 0)
    return Table(path, n, arrays, lambda row: f"{path}: row {row + 1}")


def _txt(path: Path) -> Table:
    """A line ends with LF or CRLF; what is between is bytes of any kind."""
    lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not lines[-1]:
        lines.pop()
    return Table(path, len(lines), {WHOLE: [line.removesuffix(b"\r") for line in lines]},
                 lambda row: f"{path}:{row + 1}")  # fmt: skip


def _jsonl(path: Path) -> Table:
    rows: list[Any] = []
    at: list[int] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if text := line.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else line.strip():
                rows.append(_parsed(text, f"{path}:{number}"))
                at.append(number)
    return _objects(path, rows, lambda row: f"{path}:{at[row]}")


def _json(path: Path) -> Table:
    """A list of rows, or {"data": [rows]} as perf_analyzer has it."""
    value = _parsed(path.read_bytes().removeprefix(b"\xef\xbb\xbf"), str(path))
    if isinstance(value, dict) and "data" in value and "shape" not in value:
        value = value["data"]
    if not isinstance(value, list):
        raise DataError(f'{path}: {show_value(value)}; allowed: a list of rows, or {{"data": [rows]}}')
    return _objects(path, value, lambda row: f"{path}: row {row + 1}")


def _parsed(text: bytes, where: str) -> Any:
    try:
        return json.loads(text.decode())
    except json.JSONDecodeError as why:
        at = f"line {why.lineno}, column {why.colno}" if b"\n" in text else f"column {why.colno}"
        raise DataError(f"{where}: not JSON: {why.msg} at {at}") from None
    except UnicodeDecodeError as why:
        raise DataError(f"{where}: not UTF-8 (byte {why.start}); write bytes as {{b64: ...}}") from None
    except (ValueError, RecursionError):
        raise DataError(
            f"{where}: not JSON that can be read: nested too deep, or a number too long"
        ) from None


def _objects(path: Path, rows: list[Any], where: Callable[[int], str]) -> Table:
    """Objects are rows of named columns, all with the columns of the first; anything else is a row itself."""
    named = bool(rows) and isinstance(rows[0], dict) and not is_entry(rows[0])
    if not named:
        return Table(path, len(rows), {WHOLE: rows}, where)
    names = list(rows[0])
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise DataError(
                f"{where(index)}: {show_value(row)}; allowed: an object with {', '.join(names)}, as the first row is"
            )
        if missing := next((name for name in names if name not in row), None):
            raise DataError(f"{where(index)}: no column {missing!r}, which the first row has")
    return Table(path, len(rows), {name: [row[name] for row in rows] for name in names}, where)
