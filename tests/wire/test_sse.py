"""Server-sent events: the standard's rules, and the same events however the bytes are cut."""

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.wire import sse
from loadgen.wire.errors import ProtocolError
from loadgen.wire.sse import SseParser

BOM = b"\xef\xbb\xbf"
STREAMS = {
    "one": (b"data: a\n\n", [(b"", b"a")]),
    "no space": (b"data:a\n\n", [(b"", b"a")]),
    "only one space goes": (b"data:  a \n\n", [(b"", b" a ")]),
    "CRLF": (b"data: a\r\n\r\ndata: b\r\n\r\n", [(b"", b"a"), (b"", b"b")]),
    "CR": (b"data: a\r\rdata: b\r\r", [(b"", b"a"), (b"", b"b")]),
    "all three": (b"data: a\r\n\ndata: b\r\r\ndata: c\n\r\n", [(b"", b"a"), (b"", b"b"), (b"", b"c")]),
    "many lines": (b"data: a\ndata:\ndata: b\n\n", [(b"", b"a\n\nb")]),
    "many lines, CR": (b"data: a\rdata: b\r\r", [(b"", b"a\nb")]),
    "comments": (b":\n\n: ping\n\n:data: x\ndata: a\n:\n\n", [(b"", b"a")]),
    "empty data": (b"data\n\ndata:\n\n", [(b"", b""), (b"", b"")]),
    "named": (b"event: error\ndata: a\n\ndata: b\n\n", [(b"error", b"a"), (b"", b"b")]),
    "the last name counts": (b"event: x\ndata: a\nevent:y\n\n", [(b"y", b"a")]),
    "a name without data is no event": (b"event: x\n\ndata: a\n\n", [(b"", b"a")]),
    "other fields": (b"id: 7\nretry: 10\nnoise: x\nDATA: y\n data: z\ndata: a\n\n", [(b"", b"a")]),
    "BOM": (BOM + b"data: a\n\ndata: b\n\n", [(b"", b"a"), (b"", b"b")]),
    "BOM before a comment": (BOM + b": x\ndata: a\n\n", [(b"", b"a")]),
    "BOM later is a field's name": (b"data: a\n\n" + BOM + b"data: b\n\n", [(b"", b"a")]),
    "BOM after a blank line": (b"\n" + BOM + b"data: b\n\n", []),
    "two BOMs": (BOM + BOM + b"data: a\n\n", []),
    "no blank line at the end": (b"data: a\n\ndata: b\n", [(b"", b"a")]),
    "cut in a line": (b"data: a\n\ndata: b", [(b"", b"a")]),
    "UTF-8": ("data: 中文🙂é\n\n".encode(), [(b"", "中文🙂é".encode())]),
    "separators that are no line ends": (
        "data: a\u2028b\x0bc\x0cd\x85\n\n".encode(), [(b"", "a\u2028b\x0bc\x0cd\x85".encode())]),
    "colons": (b"data: a: b\ndata::c\n\n", [(b"", b"a: b\n:c")]),
    "blank lines": (b"\n\n\n\r\r\n\ndata: a\n\n\n\n", [(b"", b"a")]),
    "nothing": (b"", []),
}  # fmt: skip


def cut(data, places):
    edges = [0, *sorted({p % (len(data) + 1) for p in places}), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def read(pieces):
    parser = SseParser()
    return [event for piece in pieces for event in parser.feed(piece)]


@pytest.mark.parametrize("name", STREAMS)
def test_the_standards_rules_whole_by_bytes_and_by_sevens(name):
    data, events = STREAMS[name]
    for step in (len(data) or 1, 1, 7):
        assert read([data[i : i + step] for i in range(0, len(data), step)]) == events, step


@given(name=st.sampled_from(sorted(STREAMS)), places=st.lists(st.integers(0, 2**16), max_size=12))
def test_the_same_events_cut_anywhere(name, places):
    data, events = STREAMS[name]
    assert read(cut(data, places)) == events


LINES = st.sampled_from(
    [b"data: x", b"data:", b"data", b"event: e", b":c", b"id: 1", "data: é🙂".encode(), b"", b"", BOM]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(st.lists(st.tuples(LINES, ENDS), max_size=30), st.lists(st.integers(0, 2**16), max_size=12))
def test_any_mixture_of_lines_and_ends_cut_anywhere(lines, places):
    data = b"".join(part for line in lines for part in line)
    whole = read([data])
    assert read(cut(data, places)) == whole
    assert read([data[i : i + 1] for i in range(len(data))]) == whole


def test_an_event_is_told_with_its_last_byte_not_with_the_next_one():
    parser = SseParser()
    assert parser.feed(b"data: a\r") == []
    assert parser.feed(b"\r") == [(b"", b"a")]
    assert parser.feed(b"\ndata: b\n\n") == [(b"", b"b")]
    assert parser.feed(b"data: c\r\n\r") == [(b"", b"c")]
    assert parser.feed(b"\n") == []


def test_id_and_retry_are_kept():
    parser = SseParser()
    parser.feed(b"id: 7\nretry: 2500\n\nid: a\0b\nretry: soon\nretry: -1\n\n")
    assert (parser.last_id, parser.retry_ms) == (b"7", 2500)
    parser.feed(b"id\n\n")
    assert parser.last_id == b""


def test_a_line_of_megabytes_in_small_pieces_takes_no_more_than_it_holds():
    parser = SseParser()
    tracemalloc.start()
    parser.feed(b"data: ")
    for _ in range(4096):
        assert parser.feed(b"x" * 1024) == []
    ((_, data),) = parser.feed(b"\n\n")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert data == b"x" * 4 * 2**20
    assert peak < 16 * 2**20


def test_the_limit_of_an_event_is_stated(monkeypatch):
    monkeypatch.setattr(sse, "EVENT_LIMIT", 1000)
    for endless in (b"x" * 100, b"data: x\n" * 10):
        with pytest.raises(ProtocolError, match="a server-sent event of more than 1000 bytes"):
            read([endless] * 100)
    parser = SseParser()
    for _ in range(100):  # the limit is an event's, not the stream's
        assert len(parser.feed(b"data: " + b"x" * 900 + b"\n\n:" + b"c" * 900 + b"\n\n")) == 1
