"""Rows of a Parquet file, a batch at a time."""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loadgen.traffic.traces.csv_rows import check_columns
from loadgen.traffic.traces.source import Batch, Source, TraceError

_ROWS = 1 << 16


def read_parquet(source: Source, needed: Sequence[str]) -> Iterator[Batch]:
    """The needed columns.  Raises TraceError; a place is a row's number, from 1."""
    try:
        with pq.ParquetFile(source.path) as file:
            check_columns(source, needed, file.schema_arrow.names)
            past, others = 0, [name for name in file.schema_arrow.names if name not in needed]
            for batch in file.iter_batches(_ROWS, columns=list(needed)):
                columns = {name: _plain(batch.column(name)) for name in needed}
                yield Batch(columns, batch.num_rows, _placer(source.name, past), others=others)
                past += batch.num_rows
    except (pa.ArrowInvalid, OSError) as why:
        raise TraceError(f"{source.name}: not Parquet: {' '.join(str(why).split())[:200]}") from None


def _placer(name: str, past: int) -> Callable[[int], str]:
    return lambda row: f"{name}: row {past + row + 1}"


def _plain(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if pa.types.is_large_string(kind) or pa.types.is_binary(kind) or str(kind) == "string_view":
        return pc.cast(column, pa.string())
    return pc.cast(column, pa.float64()) if pa.types.is_decimal(kind) else column
