"""HTTP/2 framing: every frame, flow control both ways, the same result however the bytes are cut."""

from itertools import pairwise

import pytest
from hpack import Decoder, Encoder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.records import LoadgenError
from loadgen.wire.errors import ProtocolError
from loadgen.wire.h2 import H2Connection
from loadgen.wire.h2_frames import (
    BIGGEST_WINDOW,
    OUR_FRAME,
    PREFACE,
    UNPROCESSED,
    Call,
    Reset,
    Stream,
    frame,
)
from loadgen.wire.hpack_lite import SUCCESS, Blocks, Trailers, encode_call, parse_block

BLOCK = encode_call("/s/M", "h:1", tls=False)
HELLO = frame(4, 0, 0)


def headers(*fields):
    """A block without a table, as a peer may write it."""
    encoder = Encoder()
    encoder.header_table_size = 0
    return encoder.encode(fields)


HEAD = headers((":status", "200"), ("content-type", "application/grpc"))
DONE = headers(("grpc-status", "0"))
U32 = "big"


def message(body):
    return b"\0" + len(body).to_bytes(4, U32) + body


def answer(sid, body=b"abc", done=DONE):
    return frame(1, 4, sid, HEAD) + frame(0, 0, sid, message(body)) + frame(1, 5, sid, done)


def connect(calls=1, hello=HELLO, *, body=b"x", blocks=None, **windows):
    """A connection with calls 1, 3, 5 … in flight and what it wrote after the greeting."""
    link = H2Connection(Blocks() if blocks is None else blocks, **windows)
    link.receive(hello, 1)
    out = link.take()
    for token in range(calls):
        stream = Stream(token, Call(BLOCK, body))
        stream.body = []
        out += link.request(stream)
    return link, out


def frames(data):
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 3], U32)
        found.append(
            (
                data[at + 3],
                data[at + 4],
                int.from_bytes(data[at + 5 : at + 9], U32),
                data[at + 9 : at + 9 + size],
            )
        )
        at += 9 + size
    return found


def fed(link, pieces):
    """(token, end, bytes of data) of each stream that ended, in order; then the error, if any."""
    out = []
    for number, piece in enumerate(pieces):
        try:
            ended = link.receive(piece, 100 + number)
        except ProtocolError as why:
            out += [(s.token, told(s.end), b"".join(s.body)) for s in link.ended]
            out.append(("error", why.code))
            break
        out += [(s.token, told(s.end), b"".join(s.body)) for s in ended]
    return out


def told(end):
    return ("reset", end.code) if isinstance(end, Reset) else tuple(end)[:3]


def cut(data, places):
    edges = [0, *sorted({p % (len(data) + 1) for p in places}), len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]


def test_the_greeting():
    link = H2Connection(Blocks())
    told_first = link.greeting()
    assert told_first.startswith(PREFACE)
    settings_frame, window = frames(told_first[len(PREFACE) :])
    pairs = [settings_frame[3][i : i + 6] for i in range(0, len(settings_frame[3]), 6)]
    known = {int.from_bytes(p[:2], U32): int.from_bytes(p[2:], U32) for p in pairs}
    assert known == {1: 0, 2: 0, 4: BIGGEST_WINDOW, 5: OUR_FRAME}
    assert window == (8, 0, 0, (BIGGEST_WINDOW - 65535).to_bytes(4, U32))
    assert link.limit == 0, "no call before the peer's SETTINGS"


def test_a_call_is_these_frames():
    link, out = connect(2, body=b"payload")
    ack, *rest = frames(out)
    assert ack == (4, 1, 0, b"")
    assert rest == [
        (1, 4, 1, BLOCK), (0, 1, 1, message(b"payload")),
        (1, 4, 3, BLOCK), (0, 1, 3, message(b"payload")),
    ]  # fmt: skip
    assert Call(BLOCK, b"payload").bytes_out == len(out[9:]) // 2
    assert dict(Decoder().decode(BLOCK)) == {
        ":method": "POST", ":scheme": "http", ":path": "/s/M", ":authority": "h:1", "te": "trailers",
        "content-type": "application/grpc"}  # fmt: skip
    assert len(link.streams) == 2


def test_a_host_of_ones_own_is_the_authority():
    block = encode_call("/p", "h:1", tls=False, metadata=[("x", "1"), ("Host", "a.example")])
    fields = Decoder().decode(block)
    assert [value for name, value in fields if name == ":authority"] == ["a.example"]
    assert [name for name, _ in fields if not name.startswith(":")] == ["te", "content-type", "x"]


def test_metadata_and_long_values():
    block = encode_call("/p", "h", tls=True, metadata=[("Authorization", "B" * 5000), ("x-bin", "AA==")])
    fields = dict(Decoder().decode(block))
    assert (fields[":scheme"], fields["authorization"], fields["x-bin"]) == ("https", "B" * 5000, "AA==")


@pytest.mark.parametrize(
    "pair", [("a b", "x"), (":path", "x"), ("te", "x"), ("x", "a\nb"), ("x", "é"), ("", "x")]
)
def test_metadata_that_cannot_be_sent(pair):
    with pytest.raises(LoadgenError):
        encode_call("/p", "h", tls=False, metadata=[pair])


FAILED = headers((":status", "200"), ("grpc-status", "14"), ("grpc-message", "queue%20full%20%E2%9C%93"))
DIALOGUES = {
    "plain": answer(1) + answer(3) + answer(5),
    "out of order": answer(5) + answer(1) + answer(3),
    "interleaved": frame(1, 4, 1, HEAD) + answer(3) + frame(0, 0, 1, message(b"late")) + answer(5) + frame(1, 5, 1, DONE),
    "trailers only": frame(1, 5, 1, FAILED) + answer(3) + answer(5),
    "padded, priority": frame(1, 4 | 8 | 32, 1, b"\2" + bytes(5) + HEAD + b"\0\0") + frame(0, 8, 1, b"\3" + message(b"abc") + b"\0\0\0")
    + frame(1, 5 | 8, 1, b"\1" + DONE + b"\0") + frame(2, 0, 3, bytes(5)) + answer(3) + answer(5),
    "continuation": frame(1, 0, 1, HEAD[:2]) + frame(9, 0, 1, HEAD[2:5]) + frame(9, 4, 1, HEAD[5:]) + frame(0, 0, 1, message(b"abc"))
    + frame(1, 1, 1, DONE[:3]) + frame(9, 4, 1, DONE[3:]) + answer(3) + answer(5),
    "data in parts": frame(1, 4, 1, HEAD) + b"".join(frame(0, 0, 1, bytes([b])) for b in message(b"abc")) + frame(1, 5, 1, DONE)
    + answer(3) + answer(5),
    "empty data": frame(1, 4, 1, HEAD) + frame(0, 0, 1) + frame(0, 8, 1, b"\0") + frame(0, 0, 1, message(b"abc")) + frame(1, 5, 1, DONE)
    + answer(3) + answer(5),
    "end on data": frame(1, 4, 1, HEAD) + frame(0, 1, 1, message(b"abc")) + answer(3) + answer(5),
    "unknown frames": frame(77, 255, 1, b"zz") + answer(1) + frame(10, 0, 0, b"alt-svc") + answer(3) + frame(99, 0, 9) + answer(5),
    "pings": frame(6, 0, 0, b"12345678") + answer(1) + frame(6, 1, 0, b"12345678") + answer(3) + answer(5),
    "reset": frame(3, 0, 1, (8).to_bytes(4, U32)) + answer(3) + answer(5),
    "reset mid answer": frame(1, 4, 1, HEAD) + frame(0, 0, 1, b"\0\0") + frame(3, 0, 1, (2).to_bytes(4, U32)) + answer(3) + answer(5),
    "after the end": answer(1) + frame(8, 0, 1, (9).to_bytes(4, U32)) + frame(3, 0, 1, bytes(4)) + frame(0, 0, 1, b"late") + answer(3) + answer(5),
    "goaway": answer(1) + frame(7, 0, 0, (3).to_bytes(4, U32) + bytes(4) + b"bye") + answer(3),
    "interim": frame(1, 4, 1, headers((":status", "103"))) + answer(1) + answer(3) + answer(5),
    "http error": frame(1, 4, 1, headers((":status", "502"), ("content-type", "text/html"))) + frame(0, 1, 1, b"<h1>") + answer(3) + answer(5),
    "table size 0 told": frame(1, 4, 1, b"\x20" + HEAD) + frame(0, 0, 1, message(b"abc")) + frame(1, 5, 1, DONE) + answer(3) + answer(5),
    "settings again": frame(4, 0, 0, b"\0\3\0\0\0\1" + b"\0\x63\0\0\0\1") + answer(1) + frame(4, 1, 0) + answer(3) + answer(5),
    "reserved bit": answer(1 | 1 << 31) + answer(3) + answer(5),
}  # fmt: skip
GOOD = (None, 0, "")
PLAIN = [(0, GOOD, message(b"abc")), (1, GOOD, message(b"abc")), (2, GOOD, message(b"abc"))]
EXPECTED = {
    "out of order": [PLAIN[2], PLAIN[0], PLAIN[1]],
    "interleaved": [PLAIN[1], PLAIN[2], (0, GOOD, message(b"late"))],
    "trailers only": [(0, (200, 14, "queue full ✓"), b""), *PLAIN[1:]],
    "end on data": [(0, (200, None, ""), message(b"abc")), *PLAIN[1:]],
    "reset": [(0, ("reset", 8), b""), *PLAIN[1:]],
    "reset mid answer": [(0, ("reset", 2), b"\0\0"), *PLAIN[1:]],
    "goaway": [PLAIN[0], (2, ("reset", -1), b""), PLAIN[1]],
    "http error": [(0, (502, None, ""), b"<h1>"), *PLAIN[1:]],
}
FAULTS = {
    "not http2": (b"HTTP/1.1 400 Bad Request\r\n\r\n", None),
    "no settings first": (frame(6, 0, 0, bytes(8)), None),
    "settings size": (frame(4, 0, 0, bytes(5)), 6),
    "settings ack with payload": (frame(4, 1, 0, bytes(6)), 6),
    "settings on a stream": (frame(4, 0, 1), 6),
    "window setting": (frame(4, 0, 0, b"\0\4\x80\0\0\0"), 3),
    "frame setting small": (frame(4, 0, 0, b"\0\5\0\0\0\1"), 1),
    "frame setting big": (frame(4, 0, 0, b"\0\5\1\0\0\0"), 1),
    "ping size": (frame(6, 0, 0, bytes(7)), 6),
    "ping on a stream": (frame(6, 0, 1, bytes(8)), 1),
    "reset size": (frame(3, 0, 1, bytes(3)), 6),
    "reset of a stream never opened": (frame(3, 0, 99, bytes(4)), 1),
    "window size": (frame(8, 0, 0, bytes(5)), 6),
    "window zero": (frame(8, 0, 0, bytes(4)), 1),
    "window overflow": (frame(8, 0, 0, b"\x7f\xff\xff\xff"), 3),
    "priority size": (frame(2, 0, 1, bytes(4)), 6),
    "goaway size": (frame(7, 0, 0, bytes(7)), 6),
    "push": (frame(5, 4, 1, bytes(8)), 1),
    "data on a stream never opened": (frame(0, 0, 7, b"x"), 1),
    "data on stream 0": (frame(0, 0, 0, b"x"), 1),
    "data on an even stream": (frame(0, 0, 2, b"x"), 1),
    "headers on a stream never opened": (frame(1, 4, 7, HEAD), 1),
    "data before headers": (frame(0, 0, 1, b"xyz"), 1),
    "padding": (frame(1, 4, 1, HEAD) + frame(0, 8, 1, b"\5abc"), 1),
    "priority too short": (frame(1, 4 | 32, 1, b"abc"), 6),
    "continuation alone": (frame(9, 4, 1, HEAD), 1),
    "continuation interrupted": (frame(1, 0, 1, HEAD[:3]) + frame(6, 0, 0, bytes(8)), 1),
    "continuation of another": (frame(1, 0, 1, HEAD[:3]) + frame(9, 4, 3, HEAD[3:]), 1),
    "a table that we forbade": (frame(1, 4, 1, b"\x3f\xe1\x1f" + HEAD), 9),
    "an index beyond the table": (frame(1, 4, 1, b"\xff\x00"), 9),
    "block cut": (frame(1, 4, 1, b"\x00\x7fabc"), 9),
    "no status": (frame(1, 4, 1, headers(("x", "y"))), 1),
    "status no number": (frame(1, 5, 1, headers((":status", "200"), ("grpc-status", "zero"))), 1),
    "headers twice": (frame(1, 4, 1, HEAD) + frame(1, 4, 1, HEAD), 1),
    "a frame too big": ((OUR_FRAME + 1).to_bytes(3, U32) + bytes(1) + bytes(1) + (1).to_bytes(4, U32) + bytes(20), 6),
    "a block too big": (frame(1, 0, 1, bytes(40_000)) + frame(9, 0, 1, bytes(40_000)), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", DIALOGUES)
def test_a_dialogue_is_read_whole_and_byte_by_byte(name):
    data = DIALOGUES[name]
    for step in (len(data), 1, 10):
        link, _ = connect(3)
        assert fed(link, [data[i : i + step] for i in range(0, len(data), step)]) == EXPECTED.get(name, PLAIN)
        assert link.streams == {}


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(name=st.sampled_from(sorted(DIALOGUES)), places=st.lists(st.integers(0, 2**16), max_size=8))
def test_a_dialogue_is_read_cut_anywhere(name, places):
    link, _ = connect(3)
    assert fed(link, cut(DIALOGUES[name], places)) == EXPECTED.get(name, PLAIN)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_an_error_in_any_cutting_and_what_ended_before_is_kept(name):
    data, code = FAULTS[name]
    first = code is None  # at the very start of the connection
    if not first:
        data = answer(5) + data
    for step in (len(data), 1, 10):
        if first:
            link = H2Connection(Blocks())
            code = 6 if data[:1] == b"H" else 1
        else:
            link, _ = connect(3)
        out = fed(link, [data[i : i + step] for i in range(0, len(data), step)])
        assert out == [*([] if first else [PLAIN[2]]), ("error", code)]


def test_the_memory_never_confuses_blocks_and_is_bounded():
    blocks = Blocks()
    for n in range(3000):
        link, _ = connect(1, blocks=blocks)
        trailers = headers(("grpc-status", str(n % 17)), ("grpc-message", f"number {n}"))
        got = fed(link, [frame(1, 4, 1, HEAD) + frame(1, 5, 1, trailers)])
        assert got == [(0, (None, 0, "") if n % 17 == 0 else (None, n % 17, f"number {n}"), b"")]
    assert len(blocks) <= 1024


def test_blocks_read_the_same_with_and_without_huffman_and_tables():
    fields = [(":status", "200"), ("grpc-status", "5"), ("grpc-message", "no%0Asuch")]
    plain, huffman = Encoder(), Encoder()
    plain.header_table_size = huffman.header_table_size = 0
    expected = Trailers(200, 5, "no such")
    assert parse_block(plain.encode(fields, huffman=False)) == expected
    assert parse_block(huffman.encode(fields, huffman=True)) == expected
    assert parse_block(DONE) is SUCCESS


def test_pings_are_answered_and_settings_acknowledged():
    link, _ = connect(0)
    link.receive(
        frame(6, 0, 0, b"12345678") + frame(6, 1, 0, b"87654321") + frame(4, 0, 0, b"\0\3\0\0\0\5"), 1
    )
    assert frames(link.take()) == [(6, 1, 0, b"12345678"), (4, 1, 0, b"")]
    assert link.limit == 5


def test_stamps_are_of_the_first_byte():
    link, _ = connect(1)
    (stream,) = link.streams.values()
    link.receive(frame(1, 4, 1, HEAD), 7)
    link.receive(frame(0, 0, 1, message(b"abc")), 8)
    assert link.receive(frame(1, 5, 1, DONE), 9) == [stream]
    assert (stream.first_ns, stream.bytes_in, stream.message()) == (7, 8, b"abc")


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\0\0", message(b"ab")[:-1], message(b"ab") + b"x", b"\1" + message(b"ab")[1:]]
)
def test_a_message_must_be_whole_and_plain(data):
    stream = Stream(0, Call(BLOCK, b""))
    stream.body = [data]
    with pytest.raises(ProtocolError):
        stream.message()


def granting(link, out, *, grant, stream_grant=None):
    """Lets the peer grant windows step by step; the frames of the one call, never beyond what was granted."""
    sent, rounds = frames(out), 0
    while not any(kind == 0 and flags & 1 for kind, flags, *_ in sent):
        update = frame(8, 0, 0, grant.to_bytes(4, U32)) + frame(
            8, 0, 1, (stream_grant or grant).to_bytes(4, U32)
        )
        link.receive(update, 1)
        more = frames(link.take())
        assert sum(len(p) for k, _, _, p in more if k == 0) <= grant
        sent += more
        rounds += 1
        assert rounds < 10_000
    return sent, rounds


@pytest.mark.parametrize(("size", "grant"), [(100_000, 1000), (5_000_000, 65_535), (64_000_000, 1 << 20)])
def test_a_message_beyond_the_windows_waits_for_them(size, grant):
    body = bytes(range(256)) * (size // 256)
    link, out = connect(1, body=body)
    first = sum(len(p) for k, _, _, p in frames(out) if k == 0)
    assert first == 65_535, "the first window is used to its end and not beyond"
    sent, _ = granting(link, out, grant=grant)
    data = [(flags, payload) for kind, flags, sid, payload in sent if kind == 0 and sid == 1]
    assert max(len(p) for _, p in data) <= 16_384
    assert b"".join(p for _, p in data) == message(body)
    assert [f for f, _ in data[:-1]] == [0] * (len(data) - 1)
    assert fed(link, [answer(1)]) == [PLAIN[0]]


@settings(max_examples=50)
@given(
    first=st.integers(0, 70_000),
    grants=st.lists(st.integers(1, 40_000), min_size=1, max_size=20),
    size=st.integers(0, 200_000),
)
def test_flow_control_never_sends_more_than_granted(first, grants, size):
    hello = frame(4, 0, 0, b"\0\4" + first.to_bytes(4, U32))
    link, out = connect(1, hello, body=bytes(size))
    window, sent = first, sum(len(p) for k, _, _, p in frames(out) if k == 0)
    assert sent <= min(first, 65_535)
    for grant in grants:
        window += grant
        link.receive(frame(8, 0, 1, grant.to_bytes(4, U32)), 1)
        sent += sum(len(p) for k, _, _, p in frames(link.take()) if k == 0)
        assert sent == min(window, 65_535, size + 5)
    link.receive(frame(8, 0, 0, (1 << 20).to_bytes(4, U32)), 1)
    sent += sum(len(p) for k, _, _, p in frames(link.take()) if k == 0)
    assert sent == min(window, size + 5)


def test_a_small_call_passes_one_that_waits_for_its_own_window():
    link, _ = connect(
        1, frame(4, 0, 0, b"\0\4\0\0\0\x0a") + frame(8, 0, 0, (1 << 20).to_bytes(4, U32)), body=bytes(50)
    )
    out = link.request(Stream(9, Call(BLOCK, b"abc")))
    assert frames(out)[1] == (0, 1, 3, message(b"abc"))


def test_an_initial_window_that_changes_moves_open_streams():
    def setting(value):
        return frame(4, 0, 0, b"\0\4" + value.to_bytes(4, U32))

    link, out = connect(1, setting(100), body=bytes(300))
    assert sum(len(p) for k, _, _, p in frames(out) if k == 0) == 100
    link.receive(setting(20), 1)  # 80 less than nothing
    link.receive(frame(8, 0, 1, (80).to_bytes(4, U32)), 1)
    assert [f for f in frames(link.take()) if f[0] == 0] == []
    link.receive(setting(50), 1)
    assert [len(p) for k, _, _, p in frames(link.take()) if k == 0] == [30]
    link.receive(setting(1000), 1)
    assert [(f, len(p)) for k, f, _, p in frames(link.take()) if k == 0] == [(1, 175)]


def test_the_peers_frame_size_is_used():
    hello = frame(4, 0, 0, b"\0\4\0\x10\0\0" + b"\0\5\0\0\xff\xff") + frame(
        8, 0, 0, (1 << 20).to_bytes(4, U32)
    )
    _, out = connect(1, hello, body=bytes(100_000))
    assert [len(p) for k, _, _, p in frames(out) if k == 0] == [65_535, 34_470]


def test_a_stream_window_that_overflows_is_an_error():
    link, _ = connect(1, body=bytes(100_000))
    with pytest.raises(ProtocolError) as caught:
        link.receive(frame(8, 0, 1, b"\x7f\xff\xff\xff") * 2, 1)
    assert caught.value.code == 3


def test_a_long_block_is_continued():
    block = encode_call("/p", "h", tls=False, metadata=[("x", "v" * 40_000)])
    link, _ = connect(0)
    sent = frames(link.request(Stream(0, Call(block, b"abc"))))
    assert [(k, f) for k, f, *_ in sent] == [(1, 0), (9, 0), (9, 4), (0, 1)]
    assert b"".join(p for k, _, _, p in sent if k != 0) == block


@pytest.mark.parametrize("size", [5_000_000, 64_000_000])
def test_a_big_answer_is_read_and_its_windows_given_back(size):
    body = bytes(range(256)) * (size // 256)
    link, _ = connect(1, our_window=1 << 20, stream_window=1 << 18)
    whole, out, ended = message(body), b"", []
    link.receive(frame(1, 4, 1, HEAD), 1)
    allowed, stream_allowed, at = 1 << 20, 1 << 18, 0
    while at < len(whole):
        step = min(allowed, stream_allowed, 100_000, len(whole) - at)
        assert step > 0, "the peer starves"
        data = frame(0, 0, 1, whole[at : at + step])
        at += step
        allowed, stream_allowed = allowed - step, stream_allowed - step
        for piece in (data[:5000], data[5000:]):
            ended += link.receive(piece, 2)
        out = frames(link.take())
        allowed += sum(int.from_bytes(p, U32) for k, _, sid, p in out if k == 8 and sid == 0)
        stream_allowed += sum(int.from_bytes(p, U32) for k, _, sid, p in out if k == 8 and sid == 1)
        assert allowed <= 1 << 20
        assert stream_allowed <= 1 << 18
    (stream,) = link.receive(frame(1, 5, 1, DONE), 3)
    assert stream.message() == body


def test_a_peer_that_overruns_our_window_is_in_error():
    link, _ = connect(1, our_window=65_535, stream_window=65_535)
    link.receive(frame(1, 4, 1, HEAD), 1)
    with pytest.raises(ProtocolError) as caught:
        link.receive(frame(0, 0, 1, bytes(65_536)), 1)
    assert caught.value.code == 3


def test_an_answer_before_the_request_was_read_ends_the_rest():
    link, _out = connect(1, body=bytes(200_000))
    link.request(Stream(7, Call(BLOCK, b"waits")))
    assert fed(link, [frame(1, 5, 1, FAILED)]) == [(0, (200, 14, "queue full ✓"), b"")]
    assert frames(link.take()) == [(3, 0, 1, bytes(4))]
    link.receive(frame(8, 0, 0, (1000).to_bytes(4, U32)), 1)
    assert frames(link.take()) == [(0, 1, 3, message(b"waits"))], "nothing more of the first"


def test_cancel_resets_and_later_frames_are_ignored():
    link, _ = connect(2)
    link.cancel(link.streams[1])
    assert frames(link.take()) == [(3, 0, 1, (8).to_bytes(4, U32))]
    assert fed(link, [answer(1) + answer(3)]) == [PLAIN[1]]


def test_goaway_tells_what_was_not_processed():
    link, _ = connect(3)
    ended = link.receive(frame(7, 0, 0, (1).to_bytes(4, U32) + (11).to_bytes(4, U32) + b"too_many_pings"), 1)
    assert [(s.token, s.end) for s in ended] == [(1, UNPROCESSED), (2, UNPROCESSED)]
    assert (link.limit, link.retiring) == (0, True)
    assert link.farewell == "GOAWAY ENHANCE_YOUR_CALM (too_many_pings)"
    assert fed(link, [frame(4, 0, 0, b"\0\3\0\0\0\5") + answer(1)]) == [PLAIN[0]]
    assert link.limit == 0


def test_used_up_stream_ids_retire_the_connection():
    link, _ = connect(0)
    link._next_id = 2**31 - 1
    out = link.request(Stream(0, Call(BLOCK, b"x")))
    assert frames(out)[0][2] == 2**31 - 1
    assert link.limit == 0
