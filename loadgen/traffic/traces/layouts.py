"""The public formats: how each names its columns, in which unit it counts time, what gives it away.

It must not know how rows are read.
"""

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.traffic.lines import BOM
from loadgen.traffic.trace import Columns, Format, Seam, Trace, Unit
from loadgen.traffic.traces.source import PARQUET, Source, TraceError

_TOKENS = {"input": "input_length", "output": "output_length"}
_BAILIAN_KEYS = {"chat_id", "parent_chat_id", "type", "turn"}
_LOOKED = 200  # rows that a format is recognised by
_ALLOWED = (
    "allowed formats: azure, mooncake, bailian, burstgpt, ragpulse, sharegpt, triton_log, nginx_log, and csv, "
    "jsonl, parquet with columns: {time: ..., input: ..., output: ...} and a unit"
)
NGINX = re.compile(
    rb'^\S+ \S+ .*? \[(?P<stamp>[^\]]+)\] "(?:(?P<method>[A-Z]+) (?P<path>\S+)[^"]*|[^"]*)" '
    rb'(?P<status>\d{3}) (?P<bytes>\d+|-)(?: "[^"]*" "(?P<agent>[^"]*)")?',
    re.MULTILINE,
)
TRITON = re.compile(
    rb"^(?:I(?P<day>\d{4} \d\d:\d\d:\d\d)\.(?P<micros>\d{6})|(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)Z I) +\d+ "
    rb"infer_request\.cc:\d+\] .*?prepared: .*?request id: (?P<id>[^,]*), model: (?P<model>[^,]+), "
    rb"requested version: -?\d+, actual version: (?P<version>-?\d+), .*?batch size: (?P<batch>\d+), "
    rb"priority: (?P<priority>\d+)(?P<rest>.*)$",
    re.MULTILINE,
)
_TRITON_LINE = re.compile(
    rb"^(?:[IWEV]\d{4} [\d:.]{15}|\d{4}-\d\d-\d\dT[\d:]{8}Z [IWEV]) +\d+ \w+\.(?:cc|h):\d+\] "
)


@dataclass(frozen=True, slots=True)
class Layout:
    """One format's columns, unit and nature; the names of columns are those in the file."""

    format: Format
    columns: Columns
    unit: Unit | None
    seam: Seam = "concat"
    columns_must_be: bool = True  # else a column that the file lacks is empty


KNOWN: Mapping[str, Layout] = {
    layout.format: layout
    for layout in (
        Layout(
            "azure", Columns(time="TIMESTAMP", input="ContextTokens", output="GeneratedTokens"), "datetime"
        ),
        Layout("burstgpt", Columns(time="Timestamp", input="Request tokens", output="Response tokens"), "s"),
        Layout("mooncake", Columns(time="timestamp", **_TOKENS), "ms", columns_must_be=False),
        Layout("bailian", Columns(time="timestamp", **_TOKENS), "s", columns_must_be=False),
        Layout("ragpulse", Columns(time="timestamp", **_TOKENS), "s", columns_must_be=False),
        Layout("sharegpt", Columns(input="input", output="output"), None),
        Layout("triton_log", Columns(time="time", input="input"), "ns", seam="sort"),
        Layout("nginx_log", Columns(time="time"), "ns", seam="sort"),
    )
}


def layout_of(trace: Trace, source: Source) -> tuple[Layout, str]:
    """The layout of a trace, and in words how it was known.  Raises TraceError where a choice must be made."""
    head = source.head()
    if trace.format is not None and trace.format in KNOWN:
        return KNOWN[trace.format], "as the profile says"
    if trace.columns is not None:
        chosen = trace.format or _container(head)
        how = "as the profile says" if trace.format else "recognised from its content"
        return Layout(chosen, trace.columns, trace.unit), how
    return KNOWN[recognise(head, source.name)], "recognised from its content"


def recognise(head: bytes, name: str) -> Format:
    """Which known format the first bytes of a file belong to.  Raises TraceError."""
    if head.startswith(PARQUET):
        raise TraceError(
            f"{name}: a Parquet file; name its columns: {{time: ..., input: ...}} and the time's unit"
        )
    text = head.removeprefix(BOM).lstrip()
    if text.startswith(b"["):
        if re.search(rb'"(?:conversations|messages)"\s*:', text):
            return "sharegpt"
        raise TraceError(
            f"{name}: a JSON list that is no ShareGPT; one JSON object a line is needed; {_ALLOWED}"
        )
    if text.startswith(b"{"):
        return _recognise_json(_objects(text), name)
    if TRITON.search(text) or _TRITON_LINE.match(text):
        return "triton_log"
    if NGINX.match(text):
        return "nginx_log"
    header = set(header_of(text))
    for format_ in ("azure", "burstgpt"):
        columns = KNOWN[format_].columns
        if {columns.time, columns.input, columns.output} <= header:
            return KNOWN[format_].format
    shown = ", ".join(repr(column) for column in list(header_of(text))[:12])
    raise TraceError(f"{name}: its format is not recognised (first line: {shown[:200]}); {_ALLOWED}")


def header_of(text: bytes) -> Sequence[str]:
    """The names of a CSV's columns, as its first line has them."""
    line = text.removeprefix(BOM).split(b"\n", 1)[0].decode(errors="replace").rstrip("\r")
    try:
        return next(csv.reader(io.StringIO(line, newline=""), delimiter=delimiter_of(text)), [])
    except csv.Error:  # a line that is longer than any header
        return []


def delimiter_of(text: bytes) -> str:
    """A comma, or what the first line has instead."""
    line = text.split(b"\n", 1)[0]
    return next((mark for mark in (",", "\t", ";") if mark.encode() in line), ",")


def _container(head: bytes) -> Format:
    if head.startswith(PARQUET):
        return "parquet"
    return "jsonl" if head.removeprefix(BOM).lstrip().startswith(b"{") else "csv"


def _objects(text: bytes) -> list[dict[str, Any]]:
    found = []
    for line in text.split(b"\n")[:_LOOKED]:
        try:
            item = json.loads(line)
        except ValueError:  # the last line of the head is cut, and others are the reader's to judge
            continue
        if isinstance(item, dict):
            found.append(item)
    return found


def _recognise_json(rows: Sequence[Mapping[str, Any]], name: str) -> Format:
    keys = set().union(*rows) if rows else set[str]()
    if keys & {"conversations", "messages"}:
        return "sharegpt"
    if not set(_TOKENS.values()) <= keys:
        shown = ", ".join(sorted(keys)[:12]) or "none"
        raise TraceError(f"{name}: its format is not recognised (keys: {shown}); {_ALLOWED}")
    if any(isinstance(row.get("hash_ids"), dict) for row in rows):
        return "ragpulse"
    if "timestamp" not in keys:
        return "mooncake"  # without times no unit can be wrong
    votes = {format_ for format_, holds in _votes(rows, keys).items() if holds}
    if len(votes) == 1:
        return KNOWN[votes.pop()].format
    raise TraceError(
        f"{name}: Mooncake (ms, blocks of 512 tokens) or Bailian (s, blocks of 16)? Its rows "
        f"{'speak for both' if votes else 'do not tell'}; write format: mooncake or format: bailian"
    )


def _votes(rows: Sequence[Mapping[str, Any]], keys: set[str]) -> dict[str, bool]:
    """What speaks for each of two formats that share their keys but neither unit nor block size."""
    stamps = [row.get("timestamp") for row in rows]
    counts = [
        (len(row["hash_ids"]), row["input_length"])
        for row in rows
        if isinstance(row.get("hash_ids"), list) and isinstance(row.get("input_length"), int)
    ]
    blocks = {
        size: bool(counts) and all(n == -(-length // size) for n, length in counts) for size in (16, 512)
    }
    fractions = any(isinstance(stamp, float) and not stamp.is_integer() for stamp in stamps)
    signs = bool(keys & _BAILIAN_KEYS) or fractions  # of Bailian, whatever rows of a single block say
    return {
        "mooncake": blocks[512] and not blocks[16] and not (signs and all(n == 1 for n, _ in counts)),
        "bailian": signs or (blocks[16] and not blocks[512]),
    }
