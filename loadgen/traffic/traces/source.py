"""A trace's file as a stream of bytes: opened, uncompressed, cut into blocks of whole lines, hashed.

Nothing here holds more than a block.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from loadgen.records import LoadgenError
from loadgen.traffic.lines import BOM, LinesError, check_line_ends, check_text
from loadgen.units import show_bytes

BLOCK_BYTES = 1 << 20
MOST_LINE_BYTES = 64 << 20
HEAD_BYTES = 256 << 10  # what a format is recognised by
PARQUET = b"PAR1"
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


class TraceError(LoadgenError):
    """A trace that cannot be used: where, what, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows in file order: arrays of equal length by column name; `where(i)` names the place of row i.

    `unread`: lines among them that are no rows of the format.  `notes`: what of some rows is not replayed, with which
    those are.  `others`: names of columns that are not read.
    """

    columns: Mapping[str, pa.Array]
    rows: int
    where: Callable[[int], str]
    unread: int = 0
    notes: Mapping[str, Sequence[bool]] = field(default_factory=dict)
    others: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """A readable trace file; `path` is the one to open, `name` the one to say."""

    path: Path
    name: str
    compression: str | None

    @contextmanager
    def stream(self) -> Iterator[Any]:
        """The uncompressed bytes, from the start.  Raises TraceError, also for damage met while reading."""
        try:
            with pa.OSFile(str(self.path), "rb") as raw:
                if self.compression is None:
                    yield raw
                else:
                    with pa.CompressedInputStream(raw, self.compression) as plain:
                        yield plain
        except OSError as why:  # pyarrow's word for damaged or cut compressed data too
            what = f"its {self.compression} data is damaged or ends early" if self.compression else str(why)
            raise TraceError(f"{self.name}: cannot be read: {' '.join(what.split())[:200]}") from None

    def head(self) -> bytes:
        """The first bytes, uncompressed.  Raises TraceError when they are text in another encoding, or lines of CR."""
        with self.stream() as stream:
            head: bytes = stream.read(HEAD_BYTES)
        if head.startswith(PARQUET):
            return head
        try:
            check_text(head)
            if not head.removeprefix(BOM).lstrip().startswith(b"["):  # one JSON list has no lines
                check_line_ends(head)
        except LinesError as why:
            raise TraceError(f"{self.name}: {why}") from None
        if (at := head.find(b"\0")) >= 0:
            line = head.count(b"\n", 0, at) + 1
            raise TraceError(f"{self.name}:{line}: a zero byte; is it UTF-16? Save it as UTF-8")
        return head

    def blocks(self, block_bytes: int = BLOCK_BYTES) -> Iterator[tuple[int, bytes]]:
        """Blocks of whole lines, each with the number (from 1) of its first; the last may lack its line end."""
        line, rest = 1, b""
        with self.stream() as stream:
            while new := stream.read(block_bytes):
                cut = new.rfind(b"\n") + 1
                if not cut:
                    rest += new
                    if too_long(rest):
                        raise TraceError(
                            f"{self.name}:{line}: a line of more than {show_bytes(MOST_LINE_BYTES)}; is it text?"
                        )
                    continue
                block = rest + new[:cut]
                yield line, block.removeprefix(BOM) if line == 1 else block
                line, rest = line + block.count(b"\n"), new[cut:]
        if rest:
            yield line, rest.removeprefix(BOM) if line == 1 else rest

    def sha256(self) -> str:
        """Of the file as it lies there, compressed or not."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def check_utf8(name: str, line: int, block: bytes) -> None:
    """Raises TraceError when a block, whose first line is this one, is not UTF-8."""
    try:
        block.decode()
    except UnicodeDecodeError as why:
        at = line + block.count(b"\n", 0, why.start)
        raise TraceError(f"{name}:{at}: is not UTF-8 text; save it as UTF-8") from None


def too_long(held: bytes) -> bool:
    """Whether what should be one line is more than any line is."""
    return len(held) > MOST_LINE_BYTES


def open_source(file: str, folder: Path) -> Source:
    """Finds a trace relative to a folder; TraceError when there is none that can be read."""
    path = folder / file
    try:
        with path.open("rb") as stream:
            start = stream.read(4)
    except FileNotFoundError:
        raise TraceError(
            f"{path}: no such trace; a trace's file is relative to its profile's folder"
        ) from None
    except IsADirectoryError:
        raise TraceError(f"{path}: is a folder; name a trace in it") from None
    except (OSError, ValueError) as why:
        reason = why.strerror if isinstance(why, OSError) else str(why)
        raise TraceError(f"{path}: cannot be read: {reason}") from None
    if not start:
        raise TraceError(f"{path}: is empty; a trace needs rows")
    compression = next((name for magic, name in _MAGIC.items() if start.startswith(magic)), None)
    return Source(path, str(path), compression)
