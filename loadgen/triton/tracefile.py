"""trace.arrow in a run folder: what the server's trace told, one row a request, in ns from the run's start.

It must not know what is read out of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loadgen.records import LoadgenError, NotWrittenError
from loadgen.triton.trace import Timeline, read_label, request_label

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

NAME = "trace.arrow"
_STAMPS = ("queue_ns", "start_ns", "end_ns", "done_ns")  # start and end are null where it was never executed


def schema() -> pa.Schema:
    """`label` is triton.trace.request_label's text, null where a request did not carry one."""
    import pyarrow as pa

    texts = [(name, pa.string()) for name in ("model", "version", "label")]
    return pa.schema([*texts[:2], *((name, pa.int64()) for name in _STAMPS), texts[2]])


def write_timelines(folder: Path, timelines: Sequence[Timeline], origin_ns: int) -> None:
    """Stamps of the server's clock, from `origin_ns` on.  Raises NotWrittenError on a full disk."""
    import pyarrow as pa

    def run_clock(stamp: int | None) -> int | None:
        return None if stamp is None else stamp - origin_ns

    columns: dict[str, list[Any]] = {
        "model": [one.model for one in timelines],
        "version": [one.version for one in timelines],
        **{name: [run_clock(getattr(one, name)) for one in timelines] for name in _STAMPS},
        "label": [_label(one) for one in timelines],
    }
    try:
        with (folder / NAME).open("wb") as file, pa.ipc.new_stream(file, schema()) as stream:
            stream.write_table(pa.Table.from_pydict(columns, schema()))
    except OSError as why:
        raise NotWrittenError(folder / NAME, why) from None


def read_timelines(folder: Path) -> list[Timeline]:
    """Of a run folder, by time of queueing.  Raises LoadgenError where no trace was taken."""
    import pyarrow as pa

    try:
        with (folder / NAME).open("rb") as file, pa.ipc.open_stream(file) as stream:
            rows = stream.read_all().to_pylist()
    except FileNotFoundError:
        raise LoadgenError(
            f"{folder}: no trace of the server in it: make the run with `loadgen run --trace-server`"
        ) from None
    except (OSError, pa.ArrowInvalid) as why:
        raise LoadgenError(f"{folder / NAME}: cannot be read: {why}") from None
    return [_timeline(row) for row in rows]


def _timeline(row: dict[str, Any]) -> Timeline:
    rows, length, shapes = read_label(row["label"] or "")
    stamps = {name: row[name] for name in _STAMPS}
    return Timeline(row["model"], row["version"], **stamps, rows=rows, length=length, shapes=shapes)


def _label(one: Timeline) -> str | None:
    return None if one.rows is None else request_label(one.rows, one.length, one.shapes or {})
