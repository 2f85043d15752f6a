"""HTTP/1.1 framing: the same result however the bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.records import LoadgenError, Request
from loadgen.wire.errors import ProtocolError
from loadgen.wire.http1 import HEAD_LIMIT, Heads, ResponseReader, encode_request, failure_words, head_fields

OK = b"HTTP/1.1 200 OK\r\n"
# (bytes, status, body, keep_alive); `None` for the status means: only the end of the connection completes it
REPLIES = {
    "length": (OK + b"Content-Length: 5\r\n\r\nhello", 200, b"hello", True),
    "empty": (OK + b"content-length:0\r\n\r\n", 200, b"", True),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 77\r\n\r\n", 304, b"", True),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\nx", 200, b"x", True),
    "close": (OK + b"Content-Length: 2\r\nConnection: Close\r\n\r\nab", 200, b"ab", False),
    "1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab", 200, b"ab", False),
    "1.0 kept": (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nab", 200, b"ab", True),
    "same length twice": (OK + b"Content-Length: 3, 3\r\nContent-Length: 3\r\n\r\nabc", 200, b"abc", True),
    "continue": (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nz", 200, b"z", True),
    "early hints twice": (
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 2 + OK + b"Content-Length: 1\r\n\r\nz", 200, b"z", True),
    "chunked": (
        OK + b'Transfer-Encoding: chunked\r\n\r\n4\r\nwiki\r\n5;ext="1"\r\npedia\r\n0\r\n\r\n', 200, b"wikipedia", True),
    "trailers": (
        OK + b"Transfer-Encoding: Chunked\r\n\r\nA\r\n0123456789\r\n0\r\nX-T: 1\r\nY: 2\r\n\r\n", 200, b"0123456789", True),
    "chunked, close": (
        OK + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\n\r\n0\r\n\r\n", 200, b"\n", False),
    "failure": (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 16\r\n\r\n" + b'{"error":"full"}', 503, b'{"error":"full"}', True),
    "body like a head": (OK + b"Content-Length: 8\r\n\r\n\r\n\r\n\n\n\r\n", 200, b"\r\n\r\n\n\n\r\n", True),
}  # fmt: skip
BROKEN = {
    "garbage": b"\x16\x03\x01 not http at all\r\n\r\n",
    "http2": b"\0\0\x12\x04\0\0\0\0\0",
    "bare newlines": b"HTTP/1.1 200 OK\nContent-Length: 1\n\nx",
    "status": b"HTTP/1.1 2000 OK\r\n\r\n",
    "conflict": OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "conflict in one": OK + b"Content-Length: 3, 4\r\n\r\nabcd",
    "negative": OK + b"Content-Length: -1\r\n\r\n",
    "plus": OK + b"Content-Length: +1\r\n\r\nx",
    "absurd": OK + b"Content-Length: 99999999999999999999999\r\n\r\nx",
    "no length": OK + b"Content-Length:\r\n\r\nx",
    "both": OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "gzip": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "folded": OK + b"X: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "space before colon": OK + b"Content-Length : 1\r\n\r\nx",
    "bad chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    "switching": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "too long": OK + b"X: " + b"a" * HEAD_LIMIT + b"\r\n\r\n",
    "endless interim": b"HTTP/1.1 102 Processing\r\n\r\n" * 3000 + OK + b"Content-Length: 0\r\n\r\n",
}


def read(pieces, *, keep_body=True, heads=None):
    reader = ResponseReader(Heads() if heads is None else heads)
    reader.reset(keep_body=keep_body)
    done = False
    for piece in pieces:
        assert not done, "complete before its last byte"
        done = reader.feed(piece)
    return reader, done


def cut(data, places):
    edges = [0, *sorted({p % (len(data) + 1) for p in places}), len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]


def seen(reader):
    return reader.head.status, reader.body, reader.head.keep_alive, reader.excess


@pytest.mark.parametrize("name", REPLIES)
def test_a_reply_is_read_whole_and_byte_by_byte(name):
    data, status, body, keep_alive = REPLIES[name]
    for step in (len(data), 1, 10):
        reader, done = read([data[i : i + step] for i in range(0, len(data), step)])
        assert done
        assert seen(reader) == (status, body, keep_alive, False)


@given(name=st.sampled_from(sorted(REPLIES)), places=st.lists(st.integers(0, 2**16), max_size=8))
def test_a_reply_is_read_cut_anywhere(name, places):
    data, status, body, keep_alive = REPLIES[name]
    reader, done = read(cut(data, places))
    assert done
    assert seen(reader) == (status, body, keep_alive, False)


@given(
    body=st.binary(max_size=300),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=20),
    places=st.lists(st.integers(0, 2**16), max_size=8),
)
def test_any_chunked_body_comes_back(body, sizes, places):
    data, at = OK + b"Transfer-Encoding: chunked\r\n\r\n", 0
    for size in [*sizes, len(body) + 1]:
        part = body[at : at + size]
        if part:
            data += b"%x\r\n%s\r\n" % (len(part), part)
        at += size
    reader, done = read(cut(data + b"0\r\n\r\n", places))
    assert (done, reader.body) == (True, body)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_bytes_are_refused_in_any_cutting(name):
    data = BROKEN[name]
    with pytest.raises(ProtocolError):
        read([data])
    step = 1 if len(data) < 1000 else 1000
    with pytest.raises(ProtocolError):
        read([data[i : i + step] for i in range(0, len(data), step)])


def test_a_head_of_the_limit_is_read_and_one_byte_more_is_not():
    filler = HEAD_LIMIT - len(OK + b"Content-Length: 0\r\nX: \r\n\r\n")
    for extra, fits in ((0, True), (1, False)):
        data = OK + b"Content-Length: 0\r\nX: " + b"a" * (filler + extra) + b"\r\n\r\n"
        if fits:
            assert read([data])[1]
        else:
            with pytest.raises(ProtocolError, match="more than 65536"):
                read([data])


def test_a_body_without_length_ends_with_the_connection():
    reader, done = read([OK + b"X: y\r\n\r\nab", b"cd"])
    assert not done
    assert reader.eof()
    assert (reader.body, reader.head.keep_alive) == (b"abcd", False)
    cut_short, done = read([OK + b"Content-Length: 10\r\n\r\nab"])
    assert not done
    assert not cut_short.eof()
    before_the_head, _ = read([b"HTTP/1.1 20"])
    assert not before_the_head.eof()


@pytest.mark.parametrize("name", ["length", "chunked", "chunked, close", "no content"])
def test_bytes_after_the_end_are_told(name):
    data, status, body, keep_alive = REPLIES[name]
    reader, done = read([data + b"x"])
    assert done
    assert seen(reader) == (status, body, keep_alive, True)


def test_without_asking_only_the_words_of_a_failure_are_kept():
    assert read([REPLIES["length"][0]], keep_body=False)[0].body == b""
    long = b"HTTP/1.1 500 x\r\nContent-Length: 9000\r\n\r\n" + b"e" * 9000
    assert read([long], keep_body=False)[0].body == b"e" * 2048
    assert read([bytes([b]) for b in long], keep_body=False)[0].body == b"e" * 2048


def test_endless_trailers_are_refused():
    with pytest.raises(ProtocolError, match="without any body"):
        read([OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"] + [b"T: " + b"x" * 997 + b"\r\n"] * 100)


def test_the_memory_never_confuses_heads_and_is_bounded():
    heads = Heads()
    for n in range(10_000):
        reader, done = read(
            [OK + b"X-N: %d\r\nContent-Length: %d\r\n\r\n" % (n, n % 7) + b"b" * (n % 7)], heads=heads
        )
        assert done
        assert reader.body == b"b" * (n % 7)
    assert len(heads) <= 4096


def test_a_reader_is_used_again():
    reader, _ = read([REPLIES["chunked"][0] + b"junk"])
    reader.reset(keep_body=True)
    assert reader.feed(REPLIES["close"][0])
    assert seen(reader) == (200, b"ab", False, False)


def test_a_request_is_these_bytes():
    request = Request("v2/models/m/infer", (("Content-Type", "a/b"), ("X", "1")), b"BODY")
    assert encode_request(request, "h:8000", "/base/x", [("Authorization", "Bearer t")]) == (
        b"POST /base/x/v2/models/m/infer HTTP/1.1\r\nHost: h:8000\r\nContent-Length: 4\r\n"
        b"Content-Type: a/b\r\nX: 1\r\nAuthorization: Bearer t\r\n\r\nBODY"
    )


def test_a_host_of_ones_own_takes_the_place_of_the_targets():
    request = Request("m", (), b"")
    assert encode_request(request, "h:8000", "", [("X", "1"), ("host", "a.example"), ("Y", "2")]) == (
        b"POST /m HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\nX: 1\r\nY: 2\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("a b", ()),
        ("a\r\nX: y", ()),
        ("模型", ()),
        ("a", (("X", "a\r\nEvil: 1"),)),
        ("a", (("X\r\nEvil", "1"),)),
        ("a", (("", "1"),)),
        ("a", (("Content-Length", "7"),)),
        ("a", (("transfer-encoding", "chunked"),)),
        ("a", (("X", "é"),)),
    ],
)
def test_a_request_cannot_be_split_by_its_parts(path, headers):
    with pytest.raises(LoadgenError):
        encode_request(Request(path, headers, b""), "h", "")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":"Exceeds maximum\\nqueue size"}', "Exceeds maximum queue size"),
        (b'{"error":{"message":"no such model","code":404}}', "no such model"),
        (b'{"detail":"x"}', "x"),
        (b"<h1>Bad\r\nGateway</h1>", "<h1>Bad Gateway</h1>"),
        (b'{"error":"cut off', '{"error":"cut off'),
        (b"\xff\x00", "\ufffd"),
        (b"", ""),
    ],
)
def test_the_servers_words_are_one_line(body, words):
    assert failure_words(body) == words


def test_header_fields_are_joined():
    block = b"HTTP/1.1 200 OK\r\nA: 1\r\nb:  x \r\na: 2\r\n\r\n"
    assert head_fields(block) == {"a": "1, 2", "b": "x"}
