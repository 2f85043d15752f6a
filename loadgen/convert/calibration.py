"""Rows that say how large a model's numbers are under real traffic: from a profile, a text or an .npz file.

One row at a time and unpadded, so that memory does not grow with their number and padding is in no range.
It must not know what is done with them.
"""

import hashlib
import importlib.util
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.convert.encoder import Encoder
from loadgen.convert.parity import make_feeds
from loadgen.records import LoadgenError
from loadgen.traffic.lines import LinesError, check_line_ends, check_text

_SUBJECT = 8  # tokens
ROWS = 128  # enough for ranges to settle; more cost time alone
_PROFILES = (".yaml", ".yml", ".json")
_PLAIN = "random values, each within what its input takes"
_TEXT = ("input_ids", "attention_mask", "token_type_ids", "position_ids")

Row = Mapping[str, npt.NDArray[Any]]


class CalibrationError(LoadgenError):
    """Calibration data that is missing, empty or not for this model."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """`rows` starts anew at each call and gives a batch of one each time; `facts` are for the sidecar."""

    rows: Callable[[], Iterator[Row]]
    facts: Mapping[str, Any]


def require_rows(path: Path) -> None:
    """Refuses at once a file that is not there, or empty.  Raises CalibrationError."""
    if not path.is_file():
        raise CalibrationError(f"calibration {path}: there is no such file")
    if path.stat().st_size == 0:
        raise _no_rows(path)


def _no_rows(path: Path) -> CalibrationError:
    return CalibrationError(f"calibration {path}: it holds no rows; one sample a line is expected")


def open_calibration(
    path: Path, encoder: Encoder, folder: Path, *, rows: int = ROWS, seed: int = 0
) -> Calibration:
    """Rows of a traffic profile (.yaml), an .npz file, or else a text with one sample a line.

    `folder` is the model's, for its tokenizer.  Raises CalibrationError with one line that says what is wrong.
    """
    require_rows(path)
    if path.suffix == ".npz":
        make, how = _npz(path, encoder, rows), "tensors of the file"
    elif path.suffix in _PROFILES:
        make, how = made_rows(encoder, folder, traffic_lengths(path, rows, encoder.max_length), seed)
    else:
        make, how = _text(path, encoder, folder, rows), "texts by the model's tokenizer"
    lengths: Counter[int] = Counter()
    for row in make():
        lengths[max(array.shape[-1] if array.ndim > 1 else 1 for array in row.values())] += 1
    if not lengths:
        raise _no_rows(path)
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    ordered = sorted(lengths.elements())
    facts = {
        "source": path.name, "sha256": digest, "rows": len(ordered), "made_of": how,
        "lengths": {"min": ordered[0], "median": ordered[len(ordered) // 2], "max": ordered[-1]},
    }  # fmt: skip
    return Calibration(make, facts)


def text_samples(encoder: Encoder, folder: Path, seed: int = 0) -> Callable[[int, int], Row] | None:
    """Makes (rows, length) of texts by the model's tokenizer, unpadded; None where it has none that fits.

    Each text keeps to a few words of its own, as one with a subject does: texts of words drawn from all alike
    grow equal with their length, and there is no order among equals to compare.
    """
    from loadgen.workload.prompts import load_tokenizer, make_texts

    if importlib.util.find_spec("tokenizers") is None:
        return None
    if strangers(encoder):
        return None
    try:
        tokenizer = load_tokenizer(folder)
    except LoadgenError:
        return None
    rng = np.random.default_rng(seed)

    def make(rows: int, length: int) -> Row:
        each = []
        for subject in make_texts([_SUBJECT] * rows, rng, tokenizer):
            ids = _encode(tokenizer, " ".join(rng.choice(subject.split(), length)))
            each.append(row_of(encoder, ids if len(ids) == length else [*ids[: length - 1], ids[-1]]))
        return {name: np.concatenate([row[name] for row in each]) for name in each[0]}

    return make


def strangers(encoder: Encoder) -> list[str]:
    """Inputs that a text's ids do not fill."""
    return [name for name in encoder.inputs if name not in _TEXT]


def row_of(encoder: Encoder, ids: Sequence[int]) -> Row:
    """One unpadded row of those ids, as the model takes it.  Raises CalibrationError for inputs that are no text."""
    array = np.asarray([ids], np.int64)
    values = {
        "input_ids": array,
        "attention_mask": np.ones_like(array),
        "token_type_ids": np.zeros_like(array),
        "position_ids": np.arange(array.shape[1], dtype=np.int64)[None],
    }
    if strange := strangers(encoder):
        raise CalibrationError(
            f"calibration: the input {strange[0]} is no text; give an .npz file with {', '.join(encoder.inputs)}"
        )
    return {name: values[name] for name in encoder.inputs}


def made_rows(
    encoder: Encoder, folder: Path, lengths: Sequence[int], seed: int = 0
) -> tuple[Callable[[], Iterator[Row]], str]:
    """A row of each length, and what it is made of: random words where the model has a tokenizer for them."""
    from loadgen.workload.prompts import load_tokenizer, make_texts

    if not (folder / "tokenizer.json").is_file() or strangers(encoder):

        def plain() -> Iterator[Row]:
            rng = np.random.default_rng(seed)
            for length in lengths:
                yield make_feeds(encoder, [length], rng)

        return plain, _PLAIN
    tokenizer = load_tokenizer(folder)
    around = len(_encode(tokenizer, ""))  # the special tokens

    def texts() -> Iterator[Row]:
        rng = np.random.default_rng(seed)
        for length in lengths:
            (text,) = make_texts([max(length - around, 1)], rng, tokenizer)
            yield row_of(encoder, _encode(tokenizer, text)[: encoder.max_length])

    return texts, "random words by the model's tokenizer"


def traffic_lengths(path: Path, n: int, longest: int) -> list[int]:
    """`n` lengths spread evenly over those of the profile's measured requests, none over `longest`."""
    every = sorted(profile_lengths(path))
    if not every:
        raise CalibrationError(f"calibration {path}: its requests have no lengths")
    return [min(every[(2 * i + 1) * len(every) // (2 * n)], longest) for i in range(n)]


def profile_lengths(path: Path) -> list[int]:
    """The length of every measured arrival of a traffic profile, where it has one."""
    from loadgen.schedule import plan
    from loadgen.traffic.profile import load_profile

    phases = plan(load_profile(path)).phases
    columns = [phase.length for phase in phases if phase.measured and phase.length is not None]
    return [int(n) for column in columns for n in column if n > 0]


def _text(path: Path, encoder: Encoder, folder: Path, rows: int) -> Callable[[], Iterator[Row]]:
    from loadgen.workload.prompts import load_tokenizer

    if not (folder / "tokenizer.json").is_file():
        raise CalibrationError(
            f"calibration {path}: a text needs the model's tokenizer.json, and {folder} has none"
        )
    tokenizer = load_tokenizer(folder)

    try:
        with path.open("rb") as file:
            first = file.readline()
        check_text(first)
        check_line_ends(first)
    except LinesError as why:
        raise CalibrationError(f"calibration {path}: {why}") from None

    def make() -> Iterator[Row]:
        try:
            with path.open(encoding="utf-8-sig", newline="\n") as lines:
                for line in islice((text for text in map(str.strip, lines) if text), rows):
                    ids = _encode(tokenizer, line[: encoder.max_length * 32])[: encoder.max_length]
                    if ids:
                        yield row_of(encoder, ids)
        except UnicodeDecodeError:
            raise CalibrationError(f"calibration {path}: it is no UTF-8 text") from None

    return make


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode_batch([text], add_special_tokens=True)[0].ids)


def _npz(path: Path, encoder: Encoder, rows: int) -> Callable[[], Iterator[Row]]:
    names = encoder.inputs
    try:
        with zipfile.ZipFile(path) as archive:
            there = {name.removesuffix(".npy") for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile) as why:
        raise CalibrationError(f"calibration {path}: not an .npz file: {why}") from None
    if missing := [name for name in names if name not in there]:
        raise CalibrationError(
            f"calibration {path}: it lacks {', '.join(missing)}; it has {', '.join(sorted(there)) or 'nothing'}"
        )

    def make() -> Iterator[Row]:
        with zipfile.ZipFile(path) as archive:
            columns = [_column(archive, name, path) for name in names]
            for values in islice(zip(*columns, strict=False), rows):
                yield _unpadded(dict(zip(names, values, strict=True)))

    return make


def _column(archive: zipfile.ZipFile, name: str, path: Path) -> Iterator[npt.NDArray[Any]]:
    """The rows of one array, [1, ...] each, read as they are asked for."""
    with archive.open(f"{name}.npy") as stream:
        version = np.lib.format.read_magic(stream)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(stream)
        if fortran or dtype.hasobject or not shape:
            raise CalibrationError(f"calibration {path}: {name} must be a plain array [rows, ...] in C order")
        if 0 in shape[1:]:
            raise CalibrationError(
                f"calibration {path}: the rows of {name} are empty: its shape is {list(shape)}"
            )
        size = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        for _ in range(shape[0]):
            yield np.frombuffer(stream.read(size), dtype).reshape(1, *shape[1:])


def _unpadded(row: dict[str, npt.NDArray[Any]]) -> Row:
    """Without the padding that its mask tells of, where it has one and the padding is on the right."""
    mask = row.get("attention_mask")
    if mask is None or mask.ndim != 2:  # noqa: PLR2004 - [1, length]
        return row
    length = int(mask.sum())
    if length == 0 or not mask[0, :length].all():
        return row
    return {
        name: np.ascontiguousarray(array[:, :length]) if array.shape[:2] == mask.shape else array
        for name, array in row.items()
    }
