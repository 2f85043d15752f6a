"""Streamed answers over HTTP/1.1: when a request ends, what is stamped, what becomes of the connection."""

import asyncio
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from null_server import ScriptedHttp, serving
from sse_bodies import DONE, PLAIN, ROLE, STOP, body, cuttings, said, usage
from told import LOOPS, Told

from loadgen.clock import MONOTONIC
from loadgen.records import LoadgenError, Outcome, QueueFull, Request
from loadgen.target import parse_target
from loadgen.transport.http import HttpTransport
from loadgen.wire.generate import generate_request
from loadgen.wire.openai import make_request

CHAT = make_request("m", [{"role": "user", "content": "hi"}], keep_text=True)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def framed(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(data, *fields):
    return b"\r\n".join([HEAD + b"Content-Length: %d" % len(data), *fields, b"", data])


@pytest.fixture(params=sorted(LOOPS))
def run(request):
    return LOOPS[request.param]


@asynccontextmanager
async def talking(handle, *, connections=1):
    made = []
    async with serving(lambda: ScriptedHttp(handle, made)) as port:
        transport = HttpTransport(parse_target(f"openai+http://127.0.0.1:{port}/v1"), MONOTONIC)
        await transport.open(told := Told(), connections)
        told.servers = made
        try:
            yield transport, told
        finally:
            await transport.close()


def talk(run, handle, *, request=CHAT, count=1, cancel_s=None):
    """Asks `count` times, one after the other: (reply, what was streamed) of each, and the transport."""

    async def job():
        async with talking(handle) as (transport, told):
            prepared = transport.prepare(request)
            for token in range(count):
                told.send(transport, token, prepared)
                if cancel_s is not None:
                    await asyncio.sleep(cancel_s)
                    transport.cancel(token, Outcome.CANCELLED)
                await told.wait(token + 1)
            return [(reply, told.streamed[reply.token]) for reply in told.replies], transport

    return run(job())


def later(*pieces, gap_s=0.02, close=False):
    """Answers piece by piece."""

    def handle(link, _):
        async def speak():
            for at, piece in enumerate(pieces):
                await asyncio.sleep(gap_s if at else 0)
                link.write(piece)
            if close:
                link.close()

        link.speaking = asyncio.get_running_loop().create_task(speak())

    return handle


def seen(pair):
    reply, came = pair
    return reply.outcome.name, reply.detail, came.text, len(came.chunk_ns), came.tokens_out


GOOD = ("OK", None, "Good day", 2, 2)


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
def test_a_stream_in_any_framing_and_cutting(run, framing):
    for pieces in cuttings(body(*PLAIN)):
        if framing == "length":
            first, rest = whole(body(*PLAIN))[: -len(body(*PLAIN))], [*pieces]
        elif framing == "chunked":
            first, rest = CHUNKED, [*map(framed, filter(None, pieces)), LAST]
        else:
            first, rest = HEAD + b"\r\n", pieces
        answers, transport = talk(run, later(first, *rest, gap_s=0, close=framing == "close"), count=2)
        assert [seen(pair) for pair in answers] == [GOOD, GOOD]
        if framing != "close":
            assert transport.connections_opened == 1
        for reply, came in answers:
            assert reply.status == 200
            assert reply.sent_ns <= reply.first_ns <= came.chunk_ns[0] <= came.chunk_ns[-1] <= reply.done_ns


def test_ttft_and_tpot_are_right_within_a_millisecond(run):
    """Field cases 37 and 39: the server says when it wrote each chunk; the role, long before, is no token."""
    wrote = []
    words = [said(f"w{n} v{n}") for n in range(8)]

    async def speak(link):
        link.write(CHUNKED, framed(body(ROLE)))
        await asyncio.sleep(0.08)
        for word in words:
            wrote.append(time.monotonic_ns())
            link.write(framed(body(word)))
            await asyncio.sleep(0.012)
        link.write(framed(body(STOP, usage(4, 16), DONE)), LAST)

    def handle(link, _):
        link.speaking = asyncio.get_running_loop().create_task(speak(link))

    best_ttft = best_tpot = 1e9
    for _ in range(5):  # a busy machine may be late, and then for once
        wrote.clear()
        ((reply, came),), _ = talk(run, handle)
        assert len(came.chunk_ns) == 8
        assert came.tokens_out == 16
        ttft, told_ttft = came.chunk_ns[0] - reply.sent_ns, wrote[0] - reply.sent_ns
        tpot, told_tpot = ((at[-1] - at[0]) / (came.tokens_out - 1) for at in (came.chunk_ns, wrote))
        assert all(got - put >= 0 for got, put in zip(came.chunk_ns, wrote, strict=True))
        assert reply.first_ns < came.chunk_ns[0] - 70e6
        best_ttft, best_tpot = min(best_ttft, abs(ttft - told_ttft)), min(best_tpot, abs(tpot - told_tpot))
    assert best_ttft < 1e6
    assert best_tpot < 1e6


def test_done_ends_the_request_though_the_server_keeps_silent(run):
    """Field case 36: [DONE], then a minute of silence."""

    def handle(link, _):
        link.write(CHUNKED, framed(body(*PLAIN)))

    start = time.monotonic_ns()
    answers, transport = talk(run, handle, count=5)
    assert [seen(pair) for pair in answers] == [GOOD] * 5
    assert time.monotonic_ns() - start < 5e9
    assert 2 <= transport.connections_opened <= 5, "a connection that says no more is not asked again"
    for reply, came in answers:
        assert reply.done_ns - came.chunk_ns[-1] < 40e6, "the end is [DONE], not the end of patience"


def test_a_connection_that_will_not_be_kept_is_not_waited_for(run):
    answers, transport = talk(run, later(HEAD + b"\r\n" + body(*PLAIN)), count=3)
    assert [seen(pair) for pair in answers] == [GOOD] * 3
    assert (transport.connections_opened, transport.reconnects, transport.cut_short) == (3, 3, 0)
    assert transport.patience_s == 0.05


def test_framing_that_ends_a_little_later_keeps_the_connection(run):
    pieces = (CHUNKED + framed(body(*PLAIN)), LAST)
    answers, transport = talk(run, later(*pieces, gap_s=0.01), count=4)
    assert [seen(pair) for pair in answers] == [GOOD] * 4
    assert (transport.cut_short, transport.patience_s) == (0, 0.05)
    assert transport.connections_opened <= 4, (
        "a user does not wait for the rest, another connection serves it"
    )
    due = [reply.done_ns for reply, _ in answers[:-1]]
    sent = [reply.sent_ns for reply, _ in answers[1:]]
    assert min(s - d for d, s in zip(due, sent, strict=True)) < 8e6, "the framing's 10 ms are nobody's lag"


def test_what_follows_done_is_not_read(run):
    """Several [DONE], garbage: inside the body it is nothing, in its framing it costs the connection."""
    more = framed(body(*PLAIN) + body(DONE) + b"\xff\0{{{")
    answers, transport = talk(
        run, later(CHUNKED + more, framed(body(said("more"))) + LAST, gap_s=0.005), count=2
    )
    assert [seen(pair) for pair in answers] == [GOOD] * 2
    assert transport.connections_opened <= 2
    for pieces in ((CHUNKED + framed(body(*PLAIN)) + b"zzz",), (CHUNKED + framed(body(*PLAIN)), b"zzz")):
        answers, transport = talk(run, later(*pieces, gap_s=0.005), count=2)
        assert [seen(pair) for pair in answers] == [GOOD] * 2
        assert transport.connections_opened == 2


def test_an_end_without_done(run):
    """Field case 36: with a finish_reason it is one, without it the answer is not whole."""
    ended = body(said("Good"), said(" day"), STOP, usage(3, 2))
    cut = body(said("Good"), said(" day"))
    words = "the stream ended with neither [DONE] nor a finish_reason"
    for pieces, close in (
        (whole(ended), False),
        (HEAD + b"\r\n" + ended, True),
        (CHUNKED + framed(ended), True),
    ):
        answers, _ = talk(run, later(pieces, close=close), count=2)
        assert [seen(pair) for pair in answers] == [GOOD] * 2
    for pieces, close in ((whole(cut), False), (HEAD + b"\r\n" + cut, True)):
        ((reply, came),), _ = talk(run, later(pieces, close=close))
        assert seen((reply, came)) == ("STREAM_ENDED_EARLY", words, "Good day", 2, 2)
    ((reply, came),), _ = talk(run, later(CHUNKED + framed(cut), close=True))
    assert reply.outcome is Outcome.STREAM_ENDED_EARLY
    assert reply.detail == f"the connection ended within the answer: {words}"
    assert len(came.chunk_ns) == 2


def test_an_error_inside_a_200_ends_the_request_at_once(run):
    """Field case 33."""
    error = body(said("Hello"), {"error": {"message": "engine died", "code": 500}})
    answers, transport = talk(run, later(CHUNKED + framed(error), framed(body(DONE)) + LAST), count=2)
    for pair in answers:
        assert seen(pair) == ("HTTP_5XX", "error 500 inside the stream: engine died", "Hello", 1, 1)
    assert transport.connections_opened <= 2


FAILURES = [
    (b"HTTP/1.1 400 X\r\nContent-Length: 22\r\n\r\n" + b'{"error":"unsupported"', "HTTP_4XX", 400, '{"error":"unsupported"'),
    (b"HTTP/1.1 429 X\r\nContent-Length: 0\r\n\r\n", "REJECTED", 429, "HTTP 429"),
    (b"HTTP/1.1 302 X\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", "PROTOCOL", 302, "redirected to /x, which is not followed"),
    (b"HTTP/1.1 204 X\r\n\r\n", "STREAM_ENDED_EARLY", 204, "the answer was empty"),
    (whole(b""), "STREAM_ENDED_EARLY", 200, "the answer was empty"),
    (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 9\r\n\r\n<p>hi</p>", "PROTOCOL", 200,
     "no event stream, where one was asked: <p>hi</p>"),
    (whole(b'{"error": {"message": "no such model", "code": 404}}'), "HTTP_4XX", 200,
     'error 404 where a stream was asked: {"error": {"message": "no such model", "code": 404}}'),
    (whole(b"\x1f\x8b\x08junk", b"Content-Encoding: gzip"), "PROTOCOL", 200, "Content-Encoding 'gzip' was not asked for"),
    (whole(body({"x": "y" * 100}) + b"data: oops\n\n"), "PROTOCOL", 200, "an event that is no JSON object: oops"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "outcome", "status", "detail"), FAILURES)
def test_failures_are_told_with_an_empty_stream(run, answer, outcome, status, detail):
    ((reply, came),), _ = talk(run, later(answer))
    assert (reply.outcome.name, reply.status, reply.detail) == (outcome, status, detail)
    assert (came.chunk_ns, came.tokens_out, came.source) == ([], -1, "")


def test_identity_is_no_compression(run):
    answers, _ = talk(run, later(whole(body(*PLAIN), b"Content-Encoding: identity")))
    assert seen(answers[0]) == GOOD


def test_a_request_given_up_tells_what_came(run):
    """A client that cancels in the middle: a load feature, or a timeout."""
    pieces = (CHUNKED + framed(body(ROLE, said("a"))), framed(body(said("b"))))
    ((reply, came),), transport = talk(run, later(*pieces, gap_s=0.01), cancel_s=0.15)
    assert reply.outcome is Outcome.CANCELLED
    assert (came.text, len(came.chunk_ns), came.finish) == ("ab", 2, "")
    assert came.chunk_ns[-1] < reply.done_ns
    assert transport.in_flight == 0
    ((reply, came),), _ = talk(run, lambda *_: None, cancel_s=0.02)
    assert (reply.outcome, reply.first_ns, came.chunk_ns) == (Outcome.CANCELLED, 0, [])


def test_giving_up_after_done_comes_too_late(run):
    async def job():
        async with talking(lambda link, _: link.write(CHUNKED, framed(body(*PLAIN)))) as (transport, told):
            told.send(transport, 0, transport.prepare(CHAT))
            (reply,) = await told.wait(1)  # told a moment after [DONE], though the framing never ends
            transport.cancel(0, Outcome.TIMEOUT)
            assert told.replies == [reply]
            assert (reply.outcome, reply.status, reply.detail) == (Outcome.OK, 200, None)
            assert transport.in_flight == 0

    run(job())


def test_requests_that_no_connection_took_have_streams_too(run):
    async def job():
        async with talking(lambda *_: None) as (transport, told):
            prepared = transport.prepare(CHAT)
            for token in range(3):
                told.send(transport, token, prepared)
            for token in (1, 0, 2):
                transport.cancel(token, Outcome.CANCELLED)
            await told.wait(3)
            assert sorted(told.streamed) == [0, 1, 2]
            await transport.close()
            told.send(transport, 3, prepared)
            await told.wait(4)
            assert told.streamed[3].chunk_ns == []

    run(job())


def test_plain_and_streamed_requests_share_a_connection(run):
    def handle(link, request):
        link.write(
            whole(body(*PLAIN)) if b"stream" in request else b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        )

    async def job():
        async with talking(handle) as (transport, told):
            prepared = [transport.prepare(CHAT), transport.prepare(Request("x", (), b"{}"))]
            for token in range(8):
                told.send(transport, token, prepared[token % 2])
                await told.wait(token + 1)
            assert told.outcomes == {"OK": 8}
            assert sorted(told.streamed) == [0, 2, 4, 6]
            assert transport.connections_opened == 1

    run(job())


def test_a_whole_chat_has_tokens_but_no_chunks(run):
    request = make_request("m", [], stream=False, keep_text=True)
    data = (
        b'{"choices":[{"message":{"content":"Good day"}}],"usage":{"prompt_tokens":1,"completion_tokens":2}}'
    )
    answer = whole(data)
    ((reply, came),), _ = talk(run, later(answer[:60], answer[60:]), request=request)
    assert seen((reply, came)) == ("OK", None, "Good day", 0, 2)
    assert came.chunk_ns == []


def test_generate_stream_ends_with_its_framing(run):
    request = generate_request("m", "", "hi", keep_text=True)
    events = [framed(body({"text_output": text})) for text in ("Good", " day")]
    answers, transport = talk(run, later(CHUNKED, *events, LAST), request=request, count=2)
    assert [seen(pair) for pair in answers] == [GOOD] * 2
    assert transport.connections_opened == 1
    ((reply, _),), _ = talk(run, later(CHUNKED, events[0], close=True), request=request)
    assert reply.outcome is Outcome.STREAM_ENDED_EARLY


# -- methods and judges ----------------------------------------------------------------------------


def test_the_method_is_the_requests(run):
    asked = []

    def handle(link, request):
        asked.append(request)
        link.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async def job():
        async with talking(handle) as (transport, told):
            for token, (method, data) in enumerate(
                [("GET", b""), ("PUT", b"x"), ("DELETE", b""), ("POST", b"")]
            ):
                told.send(transport, token, transport.prepare(Request("p", (), data, method=method)))
                await told.wait(token + 1)
            with pytest.raises(LoadgenError, match="method 'HEAD': allowed: GET, POST"):
                transport.prepare(Request("p", (), b"", method="HEAD"))

    run(job())
    assert [request.split(b" ")[0] for request in asked] == [b"GET", b"PUT", b"DELETE", b"POST"]
    assert [b"Content-Length" in request for request in asked] == [False, True, False, True]


def test_a_judge_says_what_a_success_is(run):
    judged = []

    def judge(status, headers, data):
        judged.append((status, headers["x-a"], data))
        return None if data == b'{"ok":true}' else "ok is not true"

    def answers(status, data):
        return lambda link, _: link.write(
            b"HTTP/1.1 %d X\r\nX-A: 1\r\nContent-Length: %d\r\n\r\n%s" % (status, len(data), data)
        )

    async def job(status, data):
        async with talking(answers(status, data)) as (transport, told):
            told.send(transport, 0, transport.prepare(Request("p", (), b"", judge=judge)))
            (reply,) = await told.wait(1)
            assert not told.streamed
            return reply.outcome.name, reply.status, reply.detail

    assert run(job(200, b'{"ok":true}')) == ("OK", 200, None)
    assert run(job(404, b'{"ok":true}')) == ("OK", 404, None)
    assert run(job(200, b"{}")) == ("PROTOCOL", 200, "ok is not true")
    assert run(job(500, b"x" * 9000)) == ("HTTP_5XX", 500, "ok is not true")
    assert judged[-1] == (500, "1", b"x" * 9000)


FULL = QueueFull(frozenset((200, 503)), ("come back later",))


@pytest.mark.parametrize("judged", [True, False])
@pytest.mark.parametrize(
    ("status", "head", "data", "outcome"),
    [
        (503, b"", b"<h1>503</h1> Come back later", "REJECTED"),
        (503, b"", b"<h1>503</h1> No server", "HTTP_5XX"),
        (503, b"retry-after: 3\r\n", b"No server", "REJECTED"),
        (503, b"", b'{"error": "[m] Exceeds maximum queue size"}', "REJECTED"),
        (500, b"Retry-After: 3\r\n", b"come back later", "HTTP_5XX"),
        (429, b"", b"", "REJECTED"),
        (404, b"", b"", "HTTP_4XX"),
    ],
)
def test_a_full_queue_is_told_from_an_outage(run, judged, status, head, data, outcome):
    judge = (lambda *_: "no") if judged else None
    answer = b"HTTP/1.1 %d X\r\n%sContent-Length: %d\r\n\r\n%s" % (status, head, len(data), data)

    async def job():
        async with talking(lambda link, _: link.write(answer)) as (transport, told):
            told.send(transport, 0, transport.prepare(Request("p", (), b"", judge=judge, full=FULL)))
            return (await told.wait(1))[0]

    reply = run(job())
    assert (reply.outcome.name, reply.status) == (outcome, status)


def test_a_refusal_with_status_200_that_the_judge_sees_may_mean_full(run):
    answer = b"HTTP/1.1 200 X\r\nContent-Length: 15\r\n\r\n"

    async def job(data):
        async with talking(lambda link, _: link.write(answer, data)) as (transport, told):
            request = Request("p", (), b"", judge=lambda *_: "no", full=FULL)
            told.send(transport, 0, transport.prepare(request))
            return (await told.wait(1))[0].outcome.name

    assert run(job(b"come back later")) == "REJECTED"
    assert run(job(b"something wrong")) == "PROTOCOL"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        ({"message": "The request queue is full.", "code": 503}, "REJECTED"),
        ({"message": "please COME BACK LATER"}, "REJECTED"),
        ({"message": "slow down", "code": 429}, "REJECTED"),
        ({"message": "the engine is dead", "code": 503}, "HTTP_5XX"),
        ({"message": "the engine is dead"}, "HTTP_5XX"),
    ],
)
def test_an_error_within_a_stream_goes_by_the_same_rule(run, error, outcome):
    request = replace(CHAT, full=FULL)
    events = framed(body({"error": error}))
    ((reply, _),), _ = talk(run, later(CHUNKED, events, LAST), request=request)
    assert reply.outcome.name == outcome
