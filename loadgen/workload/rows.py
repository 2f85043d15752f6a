"""The rows of files that a kind's inputs are filled from, checked against its model before anything is sent.

Each row brings the inputs that it has: one that the model calls optional may be missing in some.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.records import ModelFacts, TensorSpec
from loadgen.traffic.profile import Kind
from loadgen.traffic.words import near
from loadgen.workload.entries import EntryError, Row, row_of
from loadgen.workload.fit import WHOLES, FitError, axes, has_batch, is_token_input, item_bytes, model_number
from loadgen.workload.tables import ABSENT, DataError, Rows, Table, read_table
from loadgen.workload.tokens import load_tokenizer, token_ids

_Place = Callable[[int], str]
_BLOCK = 2**18  # values of an array that are checked at once


@dataclass(frozen=True, slots=True)
class Column:
    """The rows of one input: `at` gives one (or raises DataError), `where` its place in the file.

    `at` gives None for a row that leaves the input out.  Rows of `tokens` are ids of one text each: they may be cut, joined and padded.  `row_bytes` is the most
    that a row has, `mean_bytes` what it has on average.
    """

    n: int
    at: Callable[[int], Row | None]
    where: _Place
    row_bytes: int
    mean_bytes: float
    tokens: bool = False
    partial: bool = False  # some rows leave the input out


@dataclass(frozen=True, slots=True)
class Group:
    """Columns of one file, taken row by row together."""

    columns: Mapping[str, Column]
    n: int
    order: str  # "file" | "random"
    told: Mapping[str, Any]

    def picks(self, need: int, rng: np.random.Generator) -> Sequence[int]:
        """`need` rows: in the file's order, starting over; or shuffled, each once before any comes again."""
        if self.order == "file":
            return range(need) if need <= self.n else [row % self.n for row in range(need)]
        if need <= self.n:
            return [int(row) for row in rng.choice(self.n, need, replace=False)]
        decks = [rng.permutation(self.n) for _ in range(-(-need // self.n))]
        return [int(row) for row in np.concatenate(decks)[:need]]


@dataclass(frozen=True, slots=True)
class KindData:
    """Everything that a kind takes from files; empty for most kinds."""

    groups: tuple[Group, ...] = ()
    columns: Mapping[str, Column] = field(default_factory=dict)  # of all groups, by input

    @property
    def rows(self) -> int:
        """The rows of the longest file."""
        return max((group.n for group in self.groups), default=0)

    @property
    def in_order(self) -> bool:
        """Whether variants are to be sent one after the other: their rows have an order, if a shuffled one."""
        return bool(self.groups)

    def told(self, requests: int, batch: int) -> list[dict[str, Any]]:
        """For run.json: each file, its rows, and how many of them `requests` different requests were built from."""
        used = requests * batch
        return [{**group.told, "rows_built": min(group.n, used), "rows": group.n} for group in self.groups]


NO_DATA = KindData()


def read_data(kind: Kind, facts: ModelFacts, folder: Path) -> KindData:
    """Opens the files of a kind and converts their rows; `folder` is the profile's.

    Texts and JSON are converted here, whole; rows of numpy arrays are checked here and converted when they are used.  Raises DataError (file,
    line, input, what is allowed), FitError or TokenizerError.
    """
    specs = {spec.name: spec for spec in facts.inputs}
    groups = []
    if kind.data is not None:
        table = read_table(folder / kind.data.file, (*specs, *(kind.data.columns or {}).values()))
        wanted = _joint(kind, specs, table)
        groups.append(_group(kind, facts, table, wanted, kind.data.order, _path(folder, kind.data.tokenizer)))
    for name, fill in kind.inputs.items():
        if fill.file is not None and name in specs:  # a name that is not there is the fit's to refuse
            table = read_table(folder / fill.file)
            rows = table.column(fill.column or name, asked=fill.column is not None)
            tokenizer = _path(folder, fill.tokenizer)
            groups.append(_group(kind, facts, table, {name: (specs[name], rows)}, fill.order, tokenizer))
    return KindData(
        tuple(groups), {name: column for group in groups for name, column in group.columns.items()}
    )


def _path(folder: Path, name: str | None) -> Path | None:
    return None if name is None else folder / name


def _joint(kind: Kind, specs: Mapping[str, TensorSpec], table: Table) -> dict[str, tuple[TensorSpec, Rows]]:
    """The columns that fill inputs: those the profile maps, and those that bear an input's name."""
    where = f"kind {kind.name!r}, model {kind.model!r}: data"
    data = kind.data
    assert data is not None  # noqa: S101 - asked for only then
    mapped = dict(data.columns or {})
    for name in mapped:
        if name not in specs:
            raise FitError(f"{where}: no input {name!r}{near(name, specs)}; allowed: {', '.join(specs)}")
    if not mapped and not specs.keys() & table.columns.keys():
        known = ", ".join(name for name in table.columns if name) or "none with a name"
        raise DataError(
            f"{table.path}: no column bears the name of an input of model {kind.model!r} "
            f"({', '.join(specs)}); its columns: {known}; map them: data: {{columns: {{INPUT: COLUMN}}}}"
        )
    wanted = {}
    for name, spec in specs.items():
        if name in mapped or name in table.columns:
            fill = kind.inputs.get(name)
            if fill is not None and fill.law is not None:
                raise FitError(f"{where}: input {name!r} is filled by inputs too; take one out")
            wanted[name] = (spec, table.column(mapped.get(name, name), asked=True))
    _refuse_unread(kind, table, {mapped.get(name, name) for name in wanted}, specs)
    return wanted


def _refuse_unread(kind: Kind, table: Table, read: set[str], specs: Mapping[str, TensorSpec]) -> None:
    """Raises DataError for a column that fills no input and that the profile does not leave out in words."""
    assert kind.data is not None  # noqa: S101 - asked for only then
    for name in kind.data.ignore:
        if name not in table.columns:
            raise DataError(f"{table.path}: data.ignore: no column {name!r}{near(name, table.columns)}")
    for name, rows in table.columns.items():
        if name in read or name in kind.data.ignore:
            continue
        row = 0 if isinstance(rows, np.ndarray) else next(i for i, v in enumerate(rows) if v is not ABSENT)
        raise DataError(
            f"{table.where(row)}: column {name!r} fills no input of model {kind.model!r}{near(name, specs)}; its inputs: "
            f"{', '.join(specs)}; map it (data: {{columns: {{INPUT: {name}}}}}) or leave it out (data: {{ignore: [{name}]}})"
        )


def _group(
    kind: Kind,
    facts: ModelFacts,
    table: Table,
    wanted: Mapping[str, tuple[TensorSpec, Rows]],
    order: str,
    tokenizer: Path | None,
) -> Group:
    told: dict[str, Any] = {"file": str(table.path), "inputs": list(wanted), "order": order}
    if tokenizer is not None:
        told["tokenizer"] = str(tokenizer)
    if names := [name for name in table.columns if name]:
        told["columns"] = names
    columns = {}
    for name, (spec, rows) in wanted.items():
        binding = _Binding(kind, facts, spec)
        if isinstance(rows, np.ndarray):
            columns[name] = binding.mapped(rows, table.where)
            continue
        there = [index for index, value in enumerate(rows) if value is not ABSENT]
        if len(there) < len(rows):
            told.setdefault("rows_without", {})[name] = len(rows) - len(there)
        if spec.datatype in WHOLES and _is_text(rows[there[0]]):
            if tokenizer is None:
                said = "is text, and the input takes token ids; add tokenizer: the folder of the model's tokenizer.json"
                raise DataError(f"{table.where(there[0])}: input {name!r} {said}")
            columns[name], cut = binding.tokenised(rows, table.where, load_tokenizer(tokenizer))
            told["texts_cut"] = told.get("texts_cut", 0) + cut
        else:
            columns[name] = binding.converted(rows, table.where)
    if tokenizer is not None and not any(column.tokens for column in columns.values()):
        raise DataError(
            f"{table.path}: tokenizer {tokenizer.name!r} has nothing to do: no whole-number input is given as text; "
            "take it out"
        )
    return Group(columns, table.n, order, told)


def _is_text(value: Any) -> bool:
    return isinstance(value, str | bytes)


class _Binding:
    """An input of a model that rows are held against."""

    def __init__(self, kind: Kind, facts: ModelFacts, spec: TensorSpec) -> None:
        self.spec = spec
        fill = kind.inputs.get(spec.name)
        where = f"kind {kind.name!r}, model {facts.name!r}"
        _, self.dims = axes(spec, fill, has_batch(facts), facts.max_batch_size)
        if fill is not None and fill.shape is not None:
            self.dims = tuple(-1 if dim == "length" else int(dim) for dim in fill.shape)
        is_token = is_token_input(spec)
        self.vocab = model_number(facts, "vocab_size", where) if is_token else None
        self.longest = model_number(facts, "max_length", where) if is_token else None

    def row(self, value: Any, where: _Place, index: int) -> Row | None:
        """One row's value, converted and checked; None where the row has none and need not.  Raises DataError."""
        if self.is_left_out(value, where, index):
            return None
        try:
            row = row_of(value, self.spec.datatype, self.dims)
            self.check_tokens(row)
        except EntryError as why:
            raise DataError(f"{where(index)}: input {self.spec.name!r}: {why}") from None
        return row

    def is_left_out(self, value: Any, where: _Place, index: int) -> bool:
        """Whether a row lacks this input.  Raises DataError where the model needs it."""
        if value is None and self.spec.optional:
            raise DataError(
                f"{where(index)}: input {self.spec.name!r} is null; leave its key out of the row to send none"
            )
        if value is not ABSENT:
            return False
        if not self.spec.optional:
            raise DataError(
                f"{where(index)}: input {self.spec.name!r} is missing in this row, and the model's configuration does not "
                "call it optional; give every row one"
            )
        return True

    def check_tokens(self, row: Row) -> None:
        """Raises EntryError for token ids outside the vocabulary, and for more of them than the model takes."""
        if self.vocab is not None:
            ids = np.frombuffer(row.data, dtype=WHOLES[self.spec.datatype])
            outside = ids[(ids < 0) | (ids >= self.vocab)]
            if len(outside):
                raise EntryError(f"{outside[0]} leaves the vocabulary; allowed: 0 to {self.vocab - 1}")
        if self.longest is not None and row.shape and row.shape[-1] > self.longest:
            raise EntryError(f"{row.shape[-1]} tokens; the model takes at most {self.longest}")

    def converted(self, values: Sequence[Any], where: _Place) -> Column:
        """Plain values: all of them now."""
        return _column([self.row(value, where, index) for index, value in enumerate(values)], where)

    def mapped(self, array: Any, where: _Place) -> Column:
        """Rows of an array, each converted when it is used; the shape, which all share, and all values are checked now."""
        self.row(array[0, ...], where, 0)
        values = math.prod(array.shape[1:])
        block = max(1, _BLOCK // max(1, values))
        for start in range(0, len(array), block):
            self._check_values(array, where, range(start, min(start + block, len(array))))
        text = array.dtype.itemsize if self.spec.datatype == "BYTES" else 0
        size = values * (item_bytes(self.spec.datatype) + text)
        return Column(len(array), lambda index: self.row(array[index, ...], where, index), where, size, size)

    def _check_values(self, array: Any, where: _Place, rows: range) -> None:
        """Raises DataError, with the row, for a value that the input cannot take."""
        try:
            values = row_of(array[rows.start : rows.stop].reshape(-1), self.spec.datatype, (-1,))
            self.check_tokens(replace(values, shape=()))  # a row's length is checked with the first
        except EntryError:
            for index in rows:
                self.row(array[index, ...], where, index)

    def tokenised(self, texts: Sequence[Any], where: _Place, tokenizer: Any) -> tuple[Column, int]:
        """Texts as token ids, cut to what the model takes; also how many were cut."""
        name = self.spec.name
        if len(self.dims) != 1:
            shape = ", ".join("any" if dim == -1 else str(dim) for dim in self.dims)
            raise DataError(
                f"{where(0)}: input {name!r}: token ids fill one axis; the model's row is [{shape}]"
            )
        most = self.dims[0] if self.dims[0] != -1 else self.longest
        if self.longest is not None and most is not None:
            most = min(most, self.longest)
        plain = {
            index: self._plain(text, where, index)
            for index, text in enumerate(texts)
            if not self.is_left_out(text, where, index)
        }
        ids, cut = token_ids(tokenizer, list(plain.values()), most)
        rows: list[Row | None] = [None] * len(texts)
        for index, row in zip(plain, ids, strict=True):
            if not row:
                raise DataError(
                    f"{where(index)}: input {name!r}: the text gives no token; allowed: at least one"
                )
            made = Row((len(row),), np.array(row, dtype=WHOLES[self.spec.datatype]).tobytes())
            try:
                self.check_tokens(made)
            except EntryError as why:
                raise DataError(
                    f"{where(index)}: input {name!r}: {why}; is it the model's own tokenizer?"
                ) from None
            rows[index] = made
        return _column(rows, where, tokens=True), cut

    def _plain(self, text: Any, where: _Place, index: int) -> str:
        if isinstance(text, bytes):
            try:
                return text.decode()
            except UnicodeDecodeError as why:
                said = f"not UTF-8 (byte {why.start}), which a tokenizer needs"
                raise DataError(f"{where(index)}: input {self.spec.name!r}: {said}") from None
        if not isinstance(text, str):
            said = "no text, as rows before it are"
            raise DataError(f"{where(index)}: input {self.spec.name!r}: {said}; allowed: text in quotes")
        return text


def _column(rows: list[Row | None], where: _Place, *, tokens: bool = False) -> Column:
    sizes = [len(row.data) for row in rows if row is not None]
    mean = sum(sizes) / len(sizes)
    return Column(
        len(rows), rows.__getitem__, where, max(sizes), mean, tokens, partial=len(sizes) < len(rows)
    )
