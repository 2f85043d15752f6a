"""Comma-separated rows, by the names in the header: pyarrow reads, Python's csv says on which line it broke."""

import contextlib
import csv
import io
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.csv as pcsv

from loadgen.traffic.traces.layouts import delimiter_of, header_of
from loadgen.traffic.traces.source import BLOCK_BYTES, Batch, Source, TraceError, check_utf8, too_long
from loadgen.traffic.words import near


def read_csv(source: Source, needed: Sequence[str], block_bytes: int = BLOCK_BYTES) -> Iterator[Batch]:
    """The needed columns as text, empty cells as null.  Raises TraceError, with the line."""
    head = source.head()
    check_utf8(source.name, 1, head.partition(b"\n")[0])
    header, delimiter = [name.strip() for name in header_of(head)], delimiter_of(head)
    check_columns(source, needed, header)
    parse = pcsv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    convert = pcsv.ConvertOptions(
        include_columns=needed,
        column_types=dict.fromkeys(needed, pa.string()),
        strings_can_be_null=True,
        null_values=[""],
    )
    any_row = False
    others = [name for name in header if name not in needed]
    for line, block in _records(source, block_bytes):
        check_utf8(source.name, line, block)
        read = pcsv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=header)
        place = _placer(source.name, line, block, delimiter)
        try:
            table = pcsv.read_csv(pa.BufferReader(block), read, parse, convert)
        except pa.ArrowInvalid as why:
            raise TraceError(_fault(source.name, line, block, delimiter, len(header), str(why))) from None
        any_row = any_row or table.num_rows > 0
        columns = {name: table.column(name).combine_chunks() for name in needed}
        yield Batch(columns, table.num_rows, place, others=others)
    if not any_row:
        raise TraceError(f"{source.name}: has a header and no rows")


def check_columns(source: Source, needed: Sequence[str], there: Sequence[str]) -> None:
    """Raises TraceError unless each needed column is there, once."""
    for name in needed:
        if there.count(name) != 1:
            close = near(name, there) if name not in there else ""
            what = (
                f"there is no column {name!r}{close}" if name not in there else f"{name!r} names two columns"
            )
            raise TraceError(f"{source.name}: {what}; it has: {', '.join(there)[:300]}")


def _records(source: Source, block_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Blocks without the header, none cut inside a quoted cell, none blank."""
    first, held = 1, b""
    for line, block in source.blocks(block_bytes):
        if line == 1:
            first, block = 2, block.partition(b"\n")[2]  # noqa: PLW2901
        if not held and line > 1:
            first = line
        held += block
        if held.count(b'"') % 2:
            if too_long(held):
                raise TraceError(f"{source.name}:{first}: a quote that is never closed")
            continue
        if held.strip():
            yield first, held
        held = b""
    if held:
        raise TraceError(f"{source.name}:{first}: a quote that is never closed")


def _placer(name: str, line: int, block: bytes, delimiter: str) -> Callable[[int], str]:
    def place(row: int) -> str:
        at = next((at for i, (at, _) in enumerate(_rows(line, block, delimiter)) if i == row), line)
        return f"{name}:{at}"

    return place


def _fault(name: str, line: int, block: bytes, delimiter: str, width: int, said: str) -> str:
    for at, cells in _rows(line, block, delimiter):
        if len(cells) != width:
            return f"{name}:{at}: {len(cells)} cells where the header has {width}"
    return f"{name}:{line}: not CSV: {' '.join(said.split())[:200]}"


def _rows(line: int, block: bytes, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a block, each with the line it ends on; blank lines are no rows."""
    reader = csv.reader(io.StringIO(block.decode(errors="replace"), newline=""), delimiter=delimiter)
    with contextlib.suppress(csv.Error):  # a cell beyond what Python's csv takes: no line is known
        for cells in reader:
            if cells:
                yield line + reader.line_num - 1, cells
