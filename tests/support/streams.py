"""Writes streams.arrow beside the records of a hand-made run, in the columns that a real run has."""

import pyarrow as pa

from tests.support.runs import MS

CODES = pa.dictionary(pa.int16(), pa.string())
SCHEMA = pa.schema(
    [
        ("seq", pa.int64()), ("phase", CODES), ("kind", CODES), ("due_ns", pa.int64()), ("sent_ns", pa.int64()),
        ("first_token_ns", pa.int64()), ("first_content_ns", pa.int64()), ("last_token_ns", pa.int64()),
        ("chunks", pa.int32()), ("chunk_ns", pa.list_(pa.int64())), ("tokens_in", pa.int32()),
        ("tokens_out", pa.int32()), ("source", pa.string()), ("finish", pa.string()),
        ("outcome", pa.dictionary(pa.int8(), pa.string())),
    ]
)  # fmt: skip


def stream(seq, due, chunks, **over):
    """One stream: `chunks` are stamps from due on, in ns."""
    stamps = [due + at for at in chunks]
    first, last = (stamps[0], stamps[-1]) if stamps else (None, None)
    return {"seq": seq, "phase": "steady", "kind": "short", "due_ns": due, "sent_ns": due, "first_token_ns": first,
            "first_content_ns": first, "last_token_ns": last, "chunks": len(stamps), "chunk_ns": stamps,
            "tokens_in": 20, "tokens_out": len(stamps), "source": "usage", "finish": "stop", "outcome": "ok"} | over  # fmt: skip


def write_streams(path, streams, name="streams.arrow", batch=1000):
    """Into a run folder."""
    with pa.OSFile(str(path / name), "wb") as file, pa.ipc.new_stream(file, SCHEMA) as writer:
        for at in range(0, len(streams), batch):
            part = streams[at : at + batch]
            columns = [pa.array([row[field.name] for row in part], _plain(field.type)) for field in SCHEMA]
            coded = [
                column.dictionary_encode().cast(field.type) if pa.types.is_dictionary(field.type) else column
                for column, field in zip(columns, SCHEMA, strict=True)
            ]
            writer.write_batch(pa.record_batch(coded, schema=SCHEMA))
    return path


def _plain(kind):
    return pa.string() if pa.types.is_dictionary(kind) else kind


def every(gap, n, first=100 * MS):
    """Chunks a gap apart, from the first on."""
    return [first + i * gap for i in range(n)]
