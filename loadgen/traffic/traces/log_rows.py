"""Arrivals out of server logs: Triton's verbose log, and access logs in nginx's (Apache's) combined form.

Triton says `prepared:` once for each request that it takes, whatever the protocol, with `--log-verbose=1`; the
stamp is right to 1 us in the default log format (local time, no year) and to 1 s in ISO8601.  An ensemble's
steps are such requests too, each under its own model.  nginx stamps the whole second in which a request ENDED.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache

import pyarrow as pa

from loadgen.traffic.traces.csv_rows import check_columns
from loadgen.traffic.traces.layouts import NGINX, TRITON
from loadgen.traffic.traces.source import BLOCK_BYTES, Batch, Source, TraceError

TRITON_COLUMNS = ("time", "input", "id", "model", "version", "batch", "priority")
NGINX_COLUMNS = ("time", "method", "path", "status", "bytes", "agent")
_SHAPE = re.compile(rb"input: [^,]+, type: INT(?:32|64), original shape: \[(?:\d+,)+(\d+)\]")
_LEAP_YEAR = 2000  # so that 29 February is a day
_DECEMBER = 12

_Row = dict[str, int | str | None]


def read_triton_log(source: Source, needed: Sequence[str], block_bytes: int = BLOCK_BYTES) -> Iterator[Batch]:
    """Requests in the order of the log.  `input` is the last axis of the integer inputs, where they agree.

    Raises TraceError when there is none.
    """
    year = _Year()

    def row(match: re.Match[bytes]) -> _Row:
        sizes = set(_SHAPE.findall(match["rest"]))
        time_ns = (
            _iso_s(match["iso"]) * 10**9
            if match["iso"]
            else year.seconds(match["day"]) * 10**9 + int(match["micros"]) * 1000
        )
        words = {name: match[name].decode(errors="replace") for name in TRITON_COLUMNS[2:]}
        return {"time": time_ns, "input": int(sizes.pop()) if len(sizes) == 1 else None, **words}

    check_columns(source, needed, TRITON_COLUMNS)
    missing = "no request in it; Triton logs them with --log-verbose=1"
    return _matches(source, needed, TRITON, row, missing, block_bytes)


def read_nginx_log(source: Source, needed: Sequence[str], block_bytes: int = BLOCK_BYTES) -> Iterator[Batch]:
    """Requests in the order of the log.  Raises TraceError when there is none."""

    def row(match: re.Match[bytes]) -> _Row:
        words = {name: (match[name] or b"").decode(errors="replace") for name in NGINX_COLUMNS[1:]}
        return {"time": _nginx_s(match["stamp"]) * 10**9, **words, "bytes": words["bytes"].replace("-", "0")}

    check_columns(source, needed, NGINX_COLUMNS)
    missing = "no line of nginx's combined log format in it"
    return _matches(source, needed, NGINX, row, missing, block_bytes, every_line=True)


def _matches(
    source: Source,
    needed: Sequence[str],
    pattern: re.Pattern[bytes],
    read: Callable[[re.Match[bytes]], _Row],
    missing: str,
    block_bytes: int,
    *,
    every_line: bool = False,
) -> Iterator[Batch]:
    """`every_line`: a line that is no row is one that cannot be read, and is counted."""
    any_row = False
    for line, block in source.blocks(block_bytes):
        rows, starts = [], []
        for match in pattern.finditer(block):
            try:
                rows.append(read(match))
            except ValueError:
                where = f"{source.name}:{_line(line, block, match.start())}"
                raise TraceError(f"{where}: a time stamp that is no date") from None
            starts.append(match.start())
        unread = sum(map(bool, map(bytes.strip, block.split(b"\n")))) - len(rows) if every_line else 0
        if not rows and not unread:
            continue
        any_row |= bool(rows)
        columns = {name: pa.array([row[name] for row in rows], _type(name)) for name in needed}
        yield Batch(columns, len(rows), _placer(source.name, line, block, starts), unread)
    if not any_row:
        raise TraceError(f"{source.name}: {missing}")


def _type(name: str) -> pa.DataType:
    return pa.int64() if name in ("time", "input") else pa.string()


def _placer(name: str, line: int, block: bytes, starts: Sequence[int]) -> Callable[[int], str]:
    return lambda row: f"{name}:{_line(line, block, starts[row])}"


def _line(first: int, block: bytes, at: int) -> int:
    return first + block.count(b"\n", 0, at)


@lru_cache(maxsize=4096)
def _iso_s(stamp: bytes) -> int:
    return int(datetime.strptime(stamp.decode(), "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp())


@lru_cache(maxsize=4096)
def _nginx_s(stamp: bytes) -> int:
    return int(datetime.strptime(stamp.decode(), "%d/%b/%Y:%H:%M:%S %z").timestamp())


class _Year:
    """Counts the years of a log that names none: December before January is the year before."""

    def __init__(self) -> None:
        self._year, self._month, self._seen = _LEAP_YEAR, 0, (b"", 0)

    def seconds(self, day: bytes) -> int:
        """Of a stamp such as `1130 06:03:21`."""
        if day != self._seen[0]:
            month = int(day[:2])
            if month == 1 and self._month == _DECEMBER:
                self._year += 1
            elif month == _DECEMBER and self._month == 1 and self._year > _LEAP_YEAR:
                self._year -= 1  # a line written a moment late
            self._month = month
            text = f"{self._year} {day.decode()}"
            self._seen = (
                day,
                int(datetime.strptime(text, "%Y %m%d %H:%M:%S").replace(tzinfo=UTC).timestamp()),
            )
        return self._seen[1]
