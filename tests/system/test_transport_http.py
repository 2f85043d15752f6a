"""The HTTP transport against scripted servers, aiohttp and TLS."""

import asyncio
import socket
import ssl
import struct
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from null_server import HTTP_REPLY, NullHttp, ScriptedHttp, serving
from tls import Authority
from told import LOOPS, Told, until

from loadgen.clock import MONOTONIC
from loadgen.records import LoadgenError, Outcome, Request, Tensor
from loadgen.target import parse_target
from loadgen.transport.http import HttpTransport
from loadgen.wire.kserve_http import infer_request, read_infer_response

REQUEST = Request("v2/models/m/infer", (), b"body")


@pytest.fixture(params=sorted(LOOPS))
def run(request):
    return LOOPS[request.param]


@asynccontextmanager
async def talking(handle, *, connections=1, then=None, **options):
    """A scripted server and a transport that is connected to it."""
    made = []
    async with serving(lambda: ScriptedHttp(handle, made)) as port:
        transport = HttpTransport(parse_target(f"http://127.0.0.1:{port}"), MONOTONIC, **options)
        told = Told(then)
        await transport.open(told, connections)
        told.servers = made
        try:
            yield transport, told
        finally:
            await transport.close()


def reply(status=200, body=b"", *fields):
    lines = [b"HTTP/1.1 %d X" % status, b"Content-Length: %d" % len(body), *fields]
    return b"\r\n".join([*lines, b"", body])


def talk(run, handle, count=1, **options):
    """Sends `count` requests one after the other; the replies and the transport."""

    async def job():
        async with talking(handle, **options) as (transport, told):
            prepared = transport.prepare(REQUEST)
            for token in range(count):
                told.send(transport, token, prepared)
                await told.wait(token + 1)
            return told.replies, transport

    return run(job())


CLASSES = [
    (200, b"", "OK", None),
    (204, b"", "OK", None),
    (429, b"", "REJECTED", "HTTP 429"),
    (503, b'{"error":"Exceeds maximum queue size"}', "REJECTED", "Exceeds maximum queue size"),
    (400, b'{"error":"unexpected shape"}', "HTTP_4XX", "unexpected shape"),
    (404, b"gone\r\nfor good", "HTTP_4XX", "gone for good"),
    (500, b"", "HTTP_5XX", "HTTP 500"),
    (524, b"x" * 9000, "HTTP_5XX", "x" * 299 + "…"),
]


@pytest.mark.parametrize(("status", "body", "outcome", "detail"), CLASSES)
def test_statuses_are_classified_with_the_servers_words(run, status, body, outcome, detail):
    def handle(link, _):
        link.write(reply(status, body) if status != 204 else b"HTTP/1.1 204 X\r\n\r\n")

    replies, transport = talk(run, handle, 2)
    for told in replies:
        assert (told.outcome.name, told.status, told.detail) == (outcome, status, detail)
        assert 0 < told.sent_ns <= told.first_ns <= told.done_ns
        assert told.bytes_in > len(body)
    assert transport.connections_opened == 1


def test_a_redirect_is_not_followed(run):
    replies, _ = talk(run, lambda link, _: link.write(reply(307, b"", b"Location: http://b/")))
    assert replies[0].outcome is Outcome.PROTOCOL
    assert replies[0].detail == "redirected to http://b/, which is not followed"


def test_what_the_server_reads(run):
    seen = []

    def handle(link, request):
        seen.append(request)
        link.write(reply())

    async def job():
        made = []
        async with serving(lambda: ScriptedHttp(handle, made)) as port:
            target = parse_target(f"http://127.0.0.1:{port}/base/x")
            transport = HttpTransport(target, MONOTONIC, headers=[("Authorization", "Bearer t")])
            await transport.open(told := Told(), 1)
            prepared = transport.prepare(REQUEST)
            transport.send(0, prepared)
            await told.wait(1)
            await transport.close()
            head = f"POST /base/x/v2/models/m/infer HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            assert seen[0].startswith(head.encode())
            assert b"\r\nAuthorization: Bearer t\r\n" in seen[0]
            assert prepared.bytes_out == len(seen[0])

    run(job())


def test_parts_are_stamped_as_they_come(run):
    async def job():
        waiting = []
        async with talking(lambda link, _: waiting.append(link)) as (transport, told):
            transport.send(0, transport.prepare(REQUEST))
            await until(lambda: waiting)
            whole = reply(200, b"abcdef")
            waiting[0].write(whole[:20])
            (link,) = transport.busy.values()
            await until(lambda: link.first_ns)
            between = MONOTONIC.now_ns()
            waiting[0].write(whole[20:])
            (told_reply,) = await told.wait(1)
            assert told_reply.first_ns < between < told_reply.done_ns
            assert told_reply.bytes_in == len(whole)

    run(job())


def test_there_is_no_hidden_cap_and_freed_connections_are_used_again(run):
    async def job():
        held = []
        async with talking(lambda link, _: held.append(link)) as (transport, told):
            prepared = transport.prepare(REQUEST)
            for token in range(300):
                told.send(transport, token, prepared)
            assert (transport.in_flight, transport.waiting) == (1, 299)
            await until(lambda: len(held) == 300)
            assert (transport.in_flight, transport.waiting, transport.connections_opened) == (300, 0, 300)
            for link in held:
                link.write(reply())
            await told.wait(300)
            for token in range(300, 320):
                told.send(transport, token, prepared)
                await told.wait(token - 299)
                held[-1].write(reply())
                await told.wait(token + 1)
            assert transport.connections_opened == 300
            assert sum(link.requests > 1 for link in told.servers) == 1, "last in, first out"
            assert told.outcomes == {"OK": 320}

    run(job())


def test_a_request_that_waits_is_stamped_when_it_is_written(run):
    async def job():
        async with talking(lambda link, _: link.write(reply())) as (transport, told):
            prepared = transport.prepare(REQUEST)
            told.send(transport, 0, prepared)
            told.send(transport, 1, prepared)
            sent = MONOTONIC.now_ns()
            first, second = await told.wait(2)
            assert first.sent_ns <= sent < second.sent_ns

    run(job())


def test_a_closed_loop_goes_round_from_within_the_reply(run):
    async def job():
        async with talking(lambda link, _: link.write(HTTP_REPLY)) as (transport, told):
            prepared = transport.prepare(REQUEST)
            told.then = lambda r: r.token < 500 and transport.send(r.token + 1, prepared)
            transport.send(0, prepared)
            await told.wait(501)
            assert told.outcomes == {"OK": 501}
            assert transport.connections_opened == 1

    run(job())


def test_a_connection_closed_between_requests_is_replaced(run):
    async def job():
        def handle(link, _):
            link.write(reply())
            link.close()

        async with talking(handle) as (transport, told):
            prepared = transport.prepare(REQUEST)
            for token in range(5):
                transport.send(token, prepared)
                await told.wait(token + 1)
                await until(lambda: not transport._links)
            assert told.outcomes == {"OK": 5}
            assert (transport.connections_opened, transport.reconnects, transport.resent) == (5, 5, 0)

    run(job())


def test_a_request_that_was_read_is_not_sent_again(run):
    async def job():
        def handle(link, _):
            if link.requests > 1:
                link.transport.abort()  # it has the request: nobody knows what it did with it
            else:
                link.write(reply())

        async with talking(handle) as (transport, told):
            prepared = transport.prepare(REQUEST)
            for token in range(6):
                told.send(transport, token, prepared)
                await told.wait(token + 1)
            assert told.outcomes == {"OK": 3, "CONNECTION": 3}
            assert (transport.resent, transport.reconnects, transport.connections_opened) == (0, 3, 3)

    run(job())


class Kept:
    """A server of one connection at a time, by hand: it does what it is told at once, not when a loop comes to it."""

    def __init__(self):
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = self.door.getsockname()[1]
        self.link = None

    async def serve(self):
        """Answers one request, on the newest connection."""
        loop = asyncio.get_running_loop()
        if self.link is None:
            self.link = await loop.run_in_executor(None, lambda: self.door.accept()[0])
        await loop.run_in_executor(None, self.link.recv, 65536)
        self.link.sendall(reply())

    def close(self, *, reset=False):
        if reset:
            self.link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.link.close()
        self.link = None


@pytest.mark.parametrize("reset", [False, True])
def test_a_close_that_came_before_the_request_is_no_failure_and_is_counted(run, reset):
    """A server closes idle connections; its close lies in our kernel and nobody has looked yet."""

    async def job():
        server = Kept()
        transport = HttpTransport(parse_target(f"http://127.0.0.1:{server.port}"), MONOTONIC)
        await transport.open(told := Told(), 1)
        prepared = transport.prepare(REQUEST)
        for token in range(6):
            told.send(transport, token, prepared)
            await server.serve()
            await told.wait(token + 1)
            server.close(reset=reset)
        assert told.outcomes == {"OK": 6}
        assert (transport.resent, transport.reconnects, transport.connections_opened) == (5, 5, 6)
        await transport.close()
        server.door.close()

    run(job())


def test_a_request_is_sent_again_once_only(run):
    async def job():
        server = Kept()
        transport = HttpTransport(parse_target(f"http://127.0.0.1:{server.port}"), MONOTONIC)
        await transport.open(told := Told(), 1)
        loop, prepared = asyncio.get_running_loop(), transport.prepare(REQUEST)
        told.send(transport, 0, prepared)
        await server.serve()
        await told.wait(1)
        server.close()
        sent = MONOTONIC.now_ns()
        told.send(transport, 1, prepared)
        link = await loop.run_in_executor(None, lambda: server.door.accept()[0])
        link.close()
        lost = (await told.wait(2))[1]
        assert (lost.outcome, lost.detail) == (
            Outcome.CONNECTION,
            "the connection ended before the answer began",
        )
        assert sent <= lost.sent_ns < lost.done_ns
        assert transport.resent == 1
        await transport.close()
        server.door.close()

    run(job())


def test_a_server_that_works_and_then_hangs_up_has_failed(run):

    async def job():
        def handle(link, _):
            if link.requests == 1:
                link.write(reply())
            else:
                asyncio.get_running_loop().call_later(0.05, link.close)

        async with talking(handle) as (transport, told):
            prepared = transport.prepare(REQUEST)
            for token in range(6):
                told.send(transport, token, prepared)
                await told.wait(token + 1)
            assert told.outcomes == {"OK": 3, "CONNECTION": 3}
            lost = told.replies[1]
            assert lost.detail == "the connection ended before the answer began"
            assert lost.done_ns - lost.sent_ns >= 50_000_000
            assert (transport.resent, transport.reconnects) == (0, 3)

    run(job())


def test_requests_without_a_free_connection_are_counted(run):
    async def job():
        held = []
        async with talking(lambda link, _: held.append(link), connections=2) as (transport, told):
            prepared = transport.prepare(REQUEST)
            for token in range(5):
                told.send(transport, token, prepared)
            assert (transport.conn_waits, transport.connections_opened) == (3, 2)
            await until(lambda: len(held) == 5)
            for link in held:
                link.write(reply())
            await told.wait(5)
            told.send(transport, 5, prepared)
            assert (transport.conn_waits, transport.connections_opened) == (3, 5)

    run(job())


EARLY = {
    "head cut": (
        b"HTTP/1.1 200 OK\r\nConte",
        "STREAM_ENDED_EARLY",
        "the connection ended within the answer",
    ),
    "body cut": (reply(200, b"abcdef")[:-3], "STREAM_ENDED_EARLY", None),
    "chunks cut": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        "STREAM_ENDED_EARLY",
        None,
    ),
    "garbage": (b"\x16\x03\x01\x02 what is this", "PROTOCOL", None),
    "bad length": (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "PROTOCOL", None),
    "until close": (b"HTTP/1.1 200 OK\r\n\r\nabc", "OK", None),
    "1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", "OK", None),
}


@pytest.mark.parametrize("name", EARLY)
def test_an_answer_and_then_the_end(run, name):
    data, outcome, detail = EARLY[name]

    def handle(link, _):
        link.write(data)
        link.close()

    replies, transport = talk(run, handle, 3)
    assert [r.outcome.name for r in replies] == [outcome] * 3
    assert replies[0].detail == (None if outcome == "OK" else detail or replies[0].detail)
    assert replies[0].detail or outcome == "OK", "never an empty reason"
    assert replies[0].bytes_in == len(data)
    assert transport.connections_opened == 3
    assert transport.resent == 0


def test_half_closing_without_an_answer_ends_the_request(run):
    async def job():
        async with talking(lambda link, _: link.transport.write_eof()) as (transport, told):
            transport.send(0, transport.prepare(REQUEST))
            (lost,) = await told.wait(1)
            assert lost.outcome is Outcome.CONNECTION

    run(job())


def test_one_byte_per_packet(run):
    data = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"

    async def job():
        async def drip(link):
            for byte in data:
                link.write(bytes([byte]))
                await asyncio.sleep(0)

        jobs = []

        def handle(link, _):
            return jobs.append(asyncio.ensure_future(drip(link)))

        async with talking(handle) as (transport, told):
            transport.on_body = lambda token, entity: bodies.append(entity)
            bodies = []
            for token in range(2):
                transport.send(token, transport.prepare(REQUEST))
                await told.wait(token + 1)
            assert told.outcomes == {"OK": 2}
            assert bodies == [({"transfer-encoding": "chunked"}, b"abc")] * 2
            assert transport.connections_opened == 1

    run(job())


def test_an_answer_before_the_body_was_read(run):
    class Impatient(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, _):
            self.transport.pause_reading()
            self.transport.write(reply(413, b'{"error":"too big"}'))

    async def job():
        async with serving(Impatient) as port:
            transport = HttpTransport(parse_target(f"http://127.0.0.1:{port}"), MONOTONIC)
            await transport.open(told := Told(), 1)
            prepared = transport.prepare(Request("x", (), bytes(16 << 20)))
            for token in range(2):
                transport.send(token, prepared)
                *_, last = await told.wait(token + 1)
                assert (last.outcome, last.status, last.detail) == (Outcome.HTTP_4XX, 413, "too big")
            assert transport.connections_opened == 2, "half a request is still in the first one"
            await transport.close()

    run(job())


def test_bytes_that_nobody_asked_for_end_an_idle_connection(run):
    async def job():
        async with talking(lambda link, _: link.write(reply())) as (transport, told):
            told.servers[0].write(reply(408))
            await until(lambda: not transport.idle)
            transport.send(0, transport.prepare(REQUEST))
            (only,) = await told.wait(1)
            assert only.status == 200
            assert transport.connections_opened == 2

    run(job())


def test_excess_after_an_answer_costs_the_connection_not_the_answer(run):
    replies, transport = talk(run, lambda link, _: link.write(reply(200, b"ab") + b"!"), 2)
    assert [r.outcome.name for r in replies] == ["OK", "OK"]
    assert transport.connections_opened == 2


def test_many_rejections_and_few_answers_are_told_apart(run):
    async def job():
        numbers = iter(range(601))

        def handle(link, _):
            link.write(reply(429) if next(numbers) < 441 else reply(200, b"y"))

        async with talking(handle, connections=8) as (transport, told):
            prepared = transport.prepare(REQUEST)
            for token in range(601):
                told.send(transport, token, prepared)
            await told.wait(601)
            assert told.outcomes == {"REJECTED": 441, "OK": 160}

    run(job())


def test_nobody_listens(run, unused_port):
    transport = HttpTransport(parse_target(f"http://127.0.0.1:{unused_port}"), MONOTONIC)
    with pytest.raises(
        LoadgenError, match=rf"no server answers at http://127.0.0.1:{unused_port}: connection refused"
    ):
        run(transport.open(Told.__new__(Told), 4))


def test_an_unknown_name(run):
    transport = HttpTransport(parse_target("http://no-such-host.invalid"), MONOTONIC)
    with pytest.raises(LoadgenError, match=r"name not found: no-such-host.invalid"):
        run(transport.open(Told.__new__(Told), 1))


def test_a_server_that_never_shakes_hands(run):
    async def job():
        async with serving(asyncio.Protocol) as port:
            target = parse_target(f"https://127.0.0.1:{port}")
            transport = HttpTransport(target, MONOTONIC, connect_timeout_ns=50_000_000)
            with pytest.raises(LoadgenError, match="no connection within 50 ms"):
                await transport.open(Told(), 1)

    run(job())


def test_a_server_that_goes_and_comes_back(run):
    async def job():
        made = []
        async with serving(lambda: ScriptedHttp(lambda link, _: link.write(reply()), made)) as port:
            transport = HttpTransport(parse_target(f"http://127.0.0.1:{port}"), MONOTONIC)
            await transport.open(told := Told(), 2)
            prepared = transport.prepare(REQUEST)
        for link in made:
            link.close()
        await until(lambda: not transport.idle)
        told.send(transport, 0, prepared)
        (refused,) = await told.wait(1)
        assert (refused.outcome, refused.sent_ns, refused.first_ns) == (Outcome.CONNECT, 0, 0)
        assert refused.detail == "connection refused"
        server = await asyncio.get_running_loop().create_server(NullHttp, "127.0.0.1", port)
        told.send(transport, 1, prepared)
        assert (await told.wait(2))[1].outcome is Outcome.OK
        await transport.close()
        server.close()

    run(job())


def test_cancel_in_flight_waiting_and_unknown(run):
    async def job():
        held = []
        async with talking(lambda link, _: held.append(link)) as (transport, told):
            prepared = transport.prepare(REQUEST)
            transport.send(0, prepared)
            transport.send(1, prepared)
            transport.cancel(1, Outcome.CANCELLED)
            await until(lambda: held)
            transport.cancel(0, Outcome.TIMEOUT)
            transport.cancel(0, Outcome.TIMEOUT)
            transport.cancel(7, Outcome.TIMEOUT)
            given_up, never = await told.wait(2)
            assert (given_up.outcome, given_up.first_ns) == (Outcome.TIMEOUT, 0)
            assert given_up.sent_ns < given_up.done_ns
            assert given_up.detail == "given up before the answer began"
            assert (never.outcome, never.sent_ns) == (Outcome.CANCELLED, 0)
            assert (transport.in_flight, transport.waiting) == (0, 0)
            await until(held[0].transport.is_closing)

    run(job())


def test_close_ends_what_is_in_flight_once(run):
    async def job():
        async with talking(lambda link, _: None, connections=2) as (transport, told):
            prepared = transport.prepare(REQUEST)
            for token in range(4):
                transport.send(token, prepared)
            told.then = lambda r: r.token < 4 and told.send(transport, r.token + 10, prepared)
            await transport.close()
            await told.wait(8)
            assert told.outcomes == {"CANCELLED": 4, "CLIENT": 4}
            assert not transport._links

    run(job())


def test_proxies_are_ignored(run, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    replies, _ = talk(run, lambda link, _: link.write(reply()))
    assert replies[0].outcome is Outcome.OK


def test_the_same_bytes_as_a_real_server_decodes_and_sends(run):
    from aiohttp import web

    async def identity(request):
        size = int(request.headers["Inference-Header-Content-Length"])
        body = await request.read()
        asked = __import__("json").loads(body[:size])
        outputs = [{**one, "name": "y" + one["name"]} for one in asked["inputs"]]
        head = web.json_response({"model_name": "m", "outputs": outputs}).body
        headers = {"Inference-Header-Content-Length": str(len(head))}
        answer = web.Response(body=head + body[size:], headers=headers)
        if asked.get("id") == "chunked":
            answer.enable_chunked_encoding()
        return answer

    async def job():
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v2/models/{m}/infer", identity)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        transport = HttpTransport(parse_target(f"http://localhost:{port}"), MONOTONIC)
        bodies = {}
        transport.on_body = bodies.__setitem__
        await transport.open(told := Told(), 2)
        random = np.random.default_rng(1)
        asked = []
        for token, size in enumerate((0, 1, 1000, 70_000, 2_000_000)):
            data = random.bytes(size * 4)
            asked.append(Tensor("x", "FP32", (1, size), data))
            request_id = "chunked" if token % 2 else "plain"
            prepared = transport.prepare(infer_request("a/b", "", [asked[-1]], request_id=request_id))
            told.send(transport, token, prepared)
        replies = await told.wait(5)
        assert [r.outcome for r in replies] == [Outcome.OK] * 5, replies
        for token, tensor in enumerate(asked):
            (got,) = read_infer_response(*bodies[token])
            assert (got.name, got.shape, got.data) == ("yx", tensor.shape, tensor.data)
        await transport.close()
        await runner.cleanup()

    run(job())


def test_tls(run, tmp_path):
    authority = Authority(tmp_path)
    server = authority.server_context(authority.issue("loopback"))
    trusting = ssl.create_default_context(cafile=authority.cacert)

    async def job():
        async with serving(NullHttp, ssl=server) as port:
            target = parse_target(f"https://127.0.0.1:{port}")
            with pytest.raises(
                LoadgenError, match=r"certificate is not accepted: unable to get local issuer"
            ):
                await HttpTransport(target, MONOTONIC).open(Told(), 1)
            transport = HttpTransport(target, MONOTONIC, tls=trusting)
            await transport.open(told := Told(), 1)
            for token in range(3):
                transport.send(token, transport.prepare(REQUEST))
                await told.wait(token + 1)
            assert told.outcomes == {"OK": 3}
            assert transport.connections_opened == 1
            await transport.close()

    run(job())


@pytest.fixture
def unused_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]
