"""streams.arrow: what is written is what is read, also after a cut."""

from pathlib import Path

from loadgen.records import Outcome, Streamed
from loadgen.runfile import RecordWriter
from loadgen.streamfile import batches, path_beside


def written(tmp_path: Path, rows):
    writer = RecordWriter(tmp_path / "records.arrow", ["warm", "load"], ["chat"], None)
    for row in rows:
        writer.append_streamed(*row)
    writer.close()
    assert writer.error is None
    return path_beside(tmp_path / "records.arrow")


def test_a_row_holds_stamps_from_the_start_of_the_run_and_null_for_what_never_was(tmp_path):
    origin = 1_000_000
    full = Streamed(
        [origin + 5, origin + 9],
        origin + 9,
        7,
        2,
        "usage",
        "stop",
        "hello",
        cached_tokens=6,
        max_tokens=4,
        min_tokens=3,
    )
    path = written(tmp_path, [(3, 1, 0, 1, 2, Outcome.OK, origin, full),
                              (4, 1, 0, 1, -1, Outcome.CONNECT, origin, Streamed())])  # fmt: skip
    [batch] = batches(path)
    one, two = batch.to_pylist()
    assert one == {"seq": 3, "phase": "load", "kind": "chat", "due_ns": 1, "sent_ns": 2, "outcome": "ok",
                   "first_token_ns": 5, "first_content_ns": 9, "last_token_ns": 9, "chunks": 2, "chunk_ns": [5, 9],
                   "tokens_in": 7, "tokens_out": 2, "source": "usage", "finish": "stop",
                   "cached_tokens": 6, "max_tokens": 4, "min_tokens": 3, "unseen": 0, "choice_chunks": None}  # fmt: skip
    assert two["chunk_ns"] == []
    assert [
        two[n] for n in ("sent_ns", "first_token_ns", "first_content_ns", "last_token_ns", "tokens_out")
    ] == [None] * 5


def test_choices_lie_one_after_the_other_and_the_first_and_last_token_are_of_all(tmp_path):
    both = Streamed([10, 40, 5, 20], 5, choice_chunks=[2, 2])
    [batch] = batches(written(tmp_path, [(0, 1, 0, 1, 2, Outcome.OK, 0, both)]))
    [row] = batch.to_pylist()
    assert [row[name] for name in ("first_token_ns", "last_token_ns", "chunk_ns", "choice_chunks")] == [
        5, 40, [10, 40, 5, 20], [2, 2]]  # fmt: skip


def test_no_stream_no_file_and_a_cut_file_keeps_its_whole_batches(tmp_path):
    assert list(batches(tmp_path / "streams.arrow")) == []
    rows = [(i, 0, 0, 0, 0, Outcome.OK, 0, Streamed([i + 1])) for i in range(3000)]
    path = written(tmp_path, rows)
    whole = path.read_bytes()
    assert sum(batch.num_rows for batch in batches(path)) == 3000
    path.write_bytes(whole[: len(whole) // 2])
    assert sum(batch.num_rows for batch in batches(path)) == 1024
