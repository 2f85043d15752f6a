"""A trace file read into timelines, also one without its end."""

import json

import pytest

from loadgen.records import LoadgenError
from loadgen.triton.trace import Timeline, parse_trace, read_label, request_label
from loadgen.triton.tracefile import read_timelines, write_timelines


def entries(number, request_id="", **stamps):
    about = {"id": number, "model_name": "m", "model_version": 1, "request_id": request_id}
    return [about, *({"id": number, "timestamps": [{"name": k, "ns": v}]} for k, v in stamps.items())]


ONE = entries(1, request_label(2, 7, {"A": (7,), "B": (3, 4)}), QUEUE_START=10, COMPUTE_START=20, COMPUTE_END=30,
              REQUEST_END=31)  # fmt: skip
TWO = entries(2, "somebody else's", QUEUE_START=5, REQUEST_END=50)
READ = [
    Timeline("m", "1", 5, None, None, 50),
    Timeline("m", "1", 10, 20, 30, 31, 2, 7, {"A": (7,), "B": (3, 4)}),
]


def test_entries_of_a_request_come_together_whatever_their_order():
    assert parse_trace(json.dumps(ONE + TWO)) == READ
    assert parse_trace(json.dumps([*ONE, *TWO][::-1])) == READ
    assert parse_trace("") == []


def test_what_was_written_of_a_cut_file_is_read():
    text = json.dumps(TWO + ONE, separators=(",", ":"))
    assert parse_trace(text[:-1]) == [
        READ[0],
        Timeline("m", "1", 10, 20, 30, 30, *read_label(ONE[0]["request_id"])),
    ]


def test_an_ensemble_has_no_queue_of_its_own():
    assert parse_trace(json.dumps(entries(1, REQUEST_START=1, REQUEST_END=2))) == []


@pytest.mark.parametrize("text", ["{}", "no", '[{"a": 1}]', "[1]"])
def test_what_is_no_trace_is_refused(text):
    with pytest.raises(LoadgenError, match="no trace in Triton's own form"):
        parse_trace(text)


@pytest.mark.parametrize("text", ["", "x", "loadgen/a/b/c", "other/1/2/A=3", "loadgen/1/2"])
def test_other_ids_say_nothing(text):
    assert read_label(text) == (None, None, None)


def test_labels_say_all():
    assert read_label(request_label(1, None, {})) == (1, None, {})
    assert read_label(request_label(3, 9, {"a/b": (), "c=d": (9, 1)})) == (3, 9, {"a/b": (), "c=d": (9, 1)})


def test_timelines_are_kept_in_the_run_folder(tmp_path):
    write_timelines(tmp_path, READ, 5)
    assert read_timelines(tmp_path) == [
        Timeline("m", "1", 0, None, None, 45),
        Timeline("m", "1", 5, 15, 25, 26, 2, 7, {"A": (7,), "B": (3, 4)}),
    ]
    with pytest.raises(LoadgenError, match="--trace-server"):
        read_timelines(tmp_path / "none")
