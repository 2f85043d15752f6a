"""streams.arrow: what streamed answers were made of, a row each, beside records.arrow.

Chunk stamps are kept in full: in order of arrival, of an answer with several choices choice after choice, and
`choice_chunks` says how many each has (null: one choice).  Rows are found again by phase and seq.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from loadgen.records import Streamed

    Row = tuple[int, int, int, int, int, int, int, Streamed]  # as seams.RecordSink.append_streamed has it


def path_beside(records: Path) -> Path:
    """records-1.arrow has its streams in streams-1.arrow."""
    return records.with_name(records.name.replace("records", "streams"))


def schema() -> pa.Schema:
    """The columns of streams.arrow: a public contract.  Times in ns from the start of the run; null: never,
    or not known.
    """
    import pyarrow as pa

    named = {"phase": pa.int16(), "kind": pa.int16(), "outcome": pa.int8()}
    plain = {"seq": pa.int64(), "phase": None, "kind": None, "due_ns": pa.int64(), "sent_ns": pa.int64(), "outcome": None,
             "first_token_ns": pa.int64(), "first_content_ns": pa.int64(), "last_token_ns": pa.int64(), "chunks": pa.int32(),
             "chunk_ns": pa.list_(pa.int64()), "tokens_in": pa.int32(), "tokens_out": pa.int32(), "source": pa.string(),
             "finish": pa.string(), "cached_tokens": pa.int32(), "max_tokens": pa.int32(), "min_tokens": pa.int32(),
             "unseen": pa.int32(), "choice_chunks": pa.list_(pa.int32())}  # fmt: skip
    return pa.schema(
        [pa.field(name, kind or pa.dictionary(named[name], pa.string())) for name, kind in plain.items()]
    )


def _first(streamed: Streamed) -> int:
    """Its first stamp; 0: none."""
    stamps = streamed.chunk_ns
    return min(stamps) if streamed.choice_chunks else stamps[0] if stamps else 0


def _last(streamed: Streamed) -> int:
    """Its last stamp; 0: none."""
    stamps = streamed.chunk_ns
    return max(stamps) if streamed.choice_chunks else stamps[-1] if stamps else 0


class StreamsFile:
    """Written as the run goes, by one thread; made with the first streamed answer."""

    def __init__(self, path: Path, names: dict[str, pa.Array]) -> None:
        """`names` are the dictionaries of phase, kind and outcome.  Raises OSError."""
        import pyarrow as pa

        self._names = names
        self._file = path.open("xb", buffering=0)
        self._stream = pa.ipc.new_stream(self._file, schema())

    def write(self, rows: list[Row]) -> None:
        """One batch.  Raises OSError on a full disk."""
        import pyarrow as pa

        seq, phase, kind, due, sent, outcome, origin, streams = zip(*rows, strict=True)
        zero = np.array(origin, np.int64)
        counts = np.array([len(s.chunk_ns) for s in streams], np.int32)
        chunks = np.concatenate([np.array(s.chunk_ns, np.int64) for s in streams]) - np.repeat(zero, counts)
        ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

        def stamp(values: list[int]) -> pa.Array:
            stamps = np.array(values, np.int64)
            return pa.array(stamps - zero, mask=stamps <= 0)

        def known(values: list[int] | tuple[int, ...], kind: Any) -> pa.Array:
            numbers = np.array(values, kind)
            return pa.array(numbers, mask=numbers < 0)

        def named(name: str, places: tuple[int, ...], kind: Any) -> pa.Array:
            return pa.DictionaryArray.from_arrays(pa.array(np.array(places, kind)), self._names[name])

        columns = [
            pa.array(seq, pa.int64()),
            named("phase", phase, np.int16),
            named("kind", kind, np.int16),
            pa.array(due, pa.int64()),
            known(sent, np.int64),
            named("outcome", outcome, np.int8),
            stamp([_first(s) for s in streams]),
            stamp([s.first_content_ns for s in streams]),
            stamp([_last(s) for s in streams]),
            pa.array(counts),
            pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), pa.array(chunks)),
            known([s.tokens_in for s in streams], np.int32),
            known([s.tokens_out for s in streams], np.int32),
            pa.array([s.source for s in streams], pa.string()),
            pa.array([s.finish for s in streams], pa.string()),
            known([s.cached_tokens for s in streams], np.int32),
            known([s.max_tokens for s in streams], np.int32),
            known([s.min_tokens for s in streams], np.int32),
            known([s.unseen for s in streams], np.int32),
            pa.array([s.choice_chunks or None for s in streams], pa.list_(pa.int32())),
        ]
        self._stream.write_batch(pa.record_batch(columns, schema=schema()))

    def close(self) -> None:
        """Raises OSError on a full disk."""
        with self._file:
            self._stream.close()


def batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The whole batches of a file, also of one that was cut; none when there is no file."""
    import pyarrow as pa

    try:
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
            yield from stream
    except FileNotFoundError:
        return
    except (OSError, pa.ArrowInvalid):  # cut in the middle of a batch: what came before it was yielded
        return
