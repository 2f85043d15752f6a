"""One JSON object a line: pyarrow reads blocks of alike rows, Python's json all that is odd, to the same values.

Keys that are not needed (lists of hashes) are skipped, not built.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.json as pjson

from loadgen.traffic.json_text import JsonError, parse_json
from loadgen.traffic.traces.source import BLOCK_BYTES, Batch, Source, TraceError, check_utf8
from loadgen.traffic.words import near

_Types = Mapping[str, pa.DataType]
_KEY = re.compile(rb'"([^"\\]{1,60})"\s*:')


def read_jsonl(
    source: Source, needed: Sequence[str], must: Sequence[str], block_bytes: int = BLOCK_BYTES
) -> Iterator[Batch]:
    """The needed keys, null where a row lacks one; some row must have each of `must`.  Raises TraceError."""
    seen, keys = set[str](), set[str]()
    names: dict[bytes, bool] = {}
    for first_line, block in source.blocks(block_bytes):
        lines = [number for number, line in enumerate(block.split(b"\n"), first_line) if line.strip()]
        if not lines:
            continue
        check_utf8(source.name, first_line, block)
        columns = _fast(block, needed, len(lines)) or _slow(source.name, first_line, block, needed, keys)
        _learn_names(block, names)
        seen |= {name for name, column in columns.items() if column.null_count < len(column)}
        others = [name for key, is_key in names.items() if is_key and (name := key.decode()) not in needed]
        yield Batch(columns, len(lines), _placer(source.name, lines), others=others)
    for name in must:
        if name not in seen:
            raise TraceError(f"{source.name}: no row has the key {name!r}{near(name, keys or _keys(source))}")


def _learn_names(block: bytes, names: dict[bytes, bool]) -> None:
    """Names that stand before a colon, each with whether it is a key of the first row that has it."""
    for name in set(_KEY.findall(block)) - names.keys():
        at = block.find(b'"%b"' % name)
        line = block[block.rfind(b"\n", 0, at) + 1 :].split(b"\n", 1)[0]
        try:
            names[name] = name.decode() in json.loads(line)
        except ValueError:  # is told by who reads the row
            names[name] = False


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
        columns = {name: table.column(name).combine_chunks() for name in needed}
        if table.num_rows != rows or any(_is_repeated(block, *column) for column in columns.items()):
            return None
        return columns
    return None


def _is_repeated(block: bytes, name: str, column: pa.Array) -> bool:
    """Whether a key may stand twice in a row, where pyarrow takes the last: it stands there more often than it has values."""
    key = json.dumps(name, ensure_ascii=False).encode()
    nulls = len(re.findall(re.escape(key) + rb"\s*:\s*null", block)) if column.null_count else 0
    there: int = len(column) - column.null_count + nulls
    return block.count(key) > there


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
            row = parse_json(text)
        except JsonError as why:
            raise TraceError(f"{name}:{number}: not a line of JSON: {why}") from None
        if not isinstance(row, dict):
            raise TraceError(f"{name}:{number}: {type(row).__name__} where an object, {{...}}, is needed")
        keys |= row.keys()
        for key in needed:
            values[key].append(_text(row.get(key)))
    return {key: pa.array(column, pa.string()) for key, column in values.items()}


def _text(value: Any) -> str | None:
    """As the fast way and a cast to text would have it."""
    return value if value is None or isinstance(value, str) else json.dumps(value)
