"""Rows of files put together to the tensors of one request: stacked along the batch axis, token ids padded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.workload.entries import Row
from loadgen.workload.fills import raw_numbers
from loadgen.workload.fit import Slot
from loadgen.workload.rows import Column, KindData
from loadgen.workload.tables import DataError


@dataclass(frozen=True, slots=True)
class Stack:
    """What one request takes from files: tensors by input (batch axis and all), and what that says of the rest.

    `length` is what other inputs' free axes get: the tokens of the longest row, else the first free axis of
    a file's rows; None where there is none.  `tokens` are those of each row, before padding.
    """

    tensors: Mapping[str, Row]
    length: int | None
    tokens: tuple[int, ...] | None


def stack(
    data: KindData, slots: Mapping[str, Slot], picks: Sequence[Sequence[int]], length: int | None, pad: int
) -> Stack:
    """`picks`: for each group of `data` its rows of this request; `length`: the tokens a row shall have.

    An input that all of them leave out is not among the tensors.  Raises DataError where rows of one batch have
    different shapes or inputs.
    """
    tensors: dict[str, Row] = {}
    free: int | None = None
    tokens: tuple[int, ...] | None = None
    for group, chosen in zip(data.groups, picks, strict=True):
        for name, column in group.columns.items():
            slot = slots[name]
            if _left_out(column, slot, chosen):
                continue
            if column.tokens:
                tensors[name], tokens = _token_rows(column, slot, chosen, length, pad)
            else:
                tensors[name] = _same_rows(column, slot, chosen)
                sizes = [got for dim, got in zip(slot.shape, tensors[name].shape, strict=True) if dim == -1]
                free = free if free is not None or not sizes else sizes[0]
    return Stack(tensors, free if tokens is None else max(tokens), tokens)


def _left_out(column: Column, slot: Slot, chosen: Sequence[int]) -> bool:
    """Whether the rows of one batch lack this input.  Raises DataError where some do and some do not."""
    if not column.partial:
        return False
    rows = chosen if slot.batched else chosen[:1]
    lacking = [column.at(index) is None for index in rows]
    if any(lacking) and not all(lacking):
        at, other = rows[lacking.index(True)], rows[lacking.index(False)]
        raise DataError(
            f"{column.where(at)}: input {slot.spec.name!r} is missing, but another row of its batch "
            f"({column.where(other)}) has it; allowed: the same inputs in a batch, or batch: 1"
        )
    return lacking[0]


def _row(column: Column, index: int) -> Row:
    row = column.at(index)
    assert row is not None  # noqa: S101 - _left_out was asked before
    return row


def _same_rows(column: Column, slot: Slot, chosen: Sequence[int]) -> Row:
    if not slot.batched:
        return _row(column, chosen[0])
    rows = [_row(column, index) for index in chosen]
    for index, row in zip(chosen, rows, strict=True):
        if row.shape != rows[0].shape:
            raise DataError(
                f"{column.where(index)}: input {slot.spec.name!r} has shape {list(row.shape)}, but the first row of its "
                f"batch ({column.where(chosen[0])}) has {list(rows[0].shape)}; allowed: one shape a batch, or batch: 1"
            )
    return Row((len(rows), *rows[0].shape), b"".join(row.data for row in rows))


def _token_rows(
    column: Column, slot: Slot, chosen: Sequence[int], length: int | None, pad: int
) -> tuple[Row, tuple[int, ...]]:
    """Token ids behind one another up to `length`, or as they are; padded to the longest or to the model's width."""
    datatype = slot.spec.datatype
    unit = raw_numbers(np.array([pad]), datatype)
    chosen = chosen if slot.batched else chosen[:1]
    rows = [
        _row(column, index).data if length is None else _joined(column, index, length * len(unit))
        for index in chosen
    ]
    tokens = tuple(len(row) // len(unit) for row in rows)
    width = max(tokens) if slot.shape[-1] == -1 else slot.shape[-1]
    data = b"".join(row + unit * (width - n) for row, n in zip(rows, tokens, strict=True))
    return Row((*slot.shape[:-1], width), data), tokens


def _joined(column: Column, index: int, size: int) -> bytes:
    """A row and those that follow it in the file, cut at `size` bytes; rows without this input are passed over."""
    parts: list[bytes] = []
    got = 0
    while got < size:
        if (row := column.at(index % column.n)) is not None:
            parts.append(row.data)
            got += len(row.data)
        index += 1
    return b"".join(parts)[:size]
