"""One JSON object a line: pyarrow reads blocks of alike rows, Python's json all that is odd, to the same values.

Keys that are not needed (lists of hashes) are skipped, not built.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.json as pjson

from loadgen.traffic.traces.source import BLOCK_BYTES, Batch, Source, TraceError
from loadgen.traffic.words import near

_Types = Mapping[str, pa.DataType]


def read_jsonl(
    source: Source, needed: Sequence[str], must: Sequence[str], block_bytes: int = BLOCK_BYTES
) -> Iterator[Batch]:
    """The needed keys, null where a row lacks one; some row must have each of `must`.  Raises TraceError."""
    seen, keys = set[str](), set[str]()
    for first_line, block in source.blocks(block_bytes):
        lines = [number for number, line in enumerate(block.split(b"\n"), first_line) if line.strip()]
        if not lines:
            continue
        columns = _fast(block, needed, len(lines)) or _slow(source.name, first_line, block, needed, keys)
        seen |= {name for name, column in columns.items() if column.null_count < len(column)}
        yield Batch(columns, len(lines), _placer(source.name, lines))
    for name in must:
        if name not in seen:
            raise TraceError(f"{source.name}: no row has the key {name!r}{near(name, keys or _keys(source))}")


def _placer(name: str, lines: Sequence[int]) -> Callable[[int], str]:
    return lambda row: f"{name}:{lines[row]}"


def _keys(source: Source) -> set[str]:
    """Those of the first row, for an error's sake."""
    for _, block in source.blocks():
        for line in block.split(b"\n"):
            if line.strip():
                return set(json.loads(line))
    return set()


def _fast(block: bytes, needed: Sequence[str], rows: int) -> dict[str, pa.Array] | None:
    """None where the rows are not alike enough."""
    try:
        first = json.loads(block.lstrip().split(b"\n", 1)[0])
        types = {name: _TYPES[type(first.get(name))] for name in needed}
    except (ValueError, AttributeError, KeyError):
        return None
    for wide in (False, True):
        if wide:
            types = {name: pa.float64() if pa.types.is_integer(t) else t for name, t in types.items()}
        try:
            table = _parsed(block, types)
        except pa.ArrowInvalid:
            continue
        if table.num_rows != rows:
            return None
        return {name: table.column(name).combine_chunks() for name in needed}
    return None


_TYPES = {type(None): pa.int64(), int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}


def _parsed(block: bytes, types: _Types) -> pa.Table:
    return pjson.read_json(
        pa.BufferReader(block),
        read_options=pjson.ReadOptions(use_threads=False, block_size=len(block) + 1),
        parse_options=pjson.ParseOptions(
            explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior="ignore"
        ),
    )


def _slow(name: str, line: int, block: bytes, needed: Sequence[str], keys: set[str]) -> dict[str, pa.Array]:
    values: dict[str, list[str | None]] = {key: [] for key in needed}
    for number, text in enumerate(block.split(b"\n"), line):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as why:
            said = why.msg if isinstance(why, json.JSONDecodeError) else str(why)
            raise TraceError(f"{name}:{number}: not a line of JSON: {' '.join(said.split())[:120]}") from None
        if not isinstance(row, dict):
            raise TraceError(f"{name}:{number}: {type(row).__name__} where an object, {{...}}, is needed")
        keys |= row.keys()
        for key in needed:
            values[key].append(_text(row.get(key)))
    return {key: pa.array(column, pa.string()) for key, column in values.items()}


def _text(value: Any) -> str | None:
    """As the fast way and a cast to text would have it."""
    return value if value is None or isinstance(value, str) else json.dumps(value)
