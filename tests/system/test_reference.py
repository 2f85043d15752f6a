"""The wire transports held against other people's clients: same requests, same servers, same answers and outcomes."""

import asyncio
import statistics
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from independent import grpc_server, http_server
from null_server import (
    GRPC_HEAD,
    NullGrpc,
    NullHttp,
    ScriptedGrpc,
    ScriptedHttp,
    frame,
    grpc_message,
    serving,
)
from tls import Authority
from told import LOOPS, Told, until

from loadgen.clock import MONOTONIC
from loadgen.connect.options import ConnectOptions
from loadgen.records import LoadgenError, Outcome, Request, Tensor
from loadgen.target import parse_target
from loadgen.transport.grpc import GrpcTransport
from loadgen.transport.http import HttpTransport
from loadgen.transport.reference import ReferenceTransport
from loadgen.wire import kserve_grpc, kserve_http

PLAIN = ConnectOptions()
OVERHEAD_MS = (
    5.0  # what a median may differ by: tasks, protobuf, another library, on a machine that is shared
)


@pytest.fixture(params=sorted(LOOPS))
def run(request):
    return LOOPS[request.param]


@pytest.fixture(params=["http", "grpc"])
def protocol(request):
    return request.param


def infer(protocol, model="m", tensors=None):
    codec = kserve_grpc if protocol == "grpc" else kserve_http
    return codec.infer_request(model, "", tensors or [Tensor("x", "FP32", (1, 4), bytes(range(16)))])


def wire(target, options=PLAIN):
    make = GrpcTransport if target.protocol == "grpc" else HttpTransport
    return make(target, MONOTONIC, headers=options.headers_for(target), tls=options.tls_for(target))


def reference(target, options=PLAIN):
    return ReferenceTransport(target, MONOTONIC, options=options)


@contextmanager
def independent(protocol, **options):
    with (grpc_server if protocol == "grpc" else http_server)(**options) as server:
        yield parse_target(f"{server.url_scheme}://127.0.0.1:{server.port}"), server


async def talk(transport, requests, *, keep=False, timeout=20):  # noqa: ASYNC109 - a bound for the test
    """Sends all at once; (replies by token, bodies by token)."""
    bodies = {}
    if keep:
        transport.on_body = bodies.__setitem__
    try:
        await transport.open(told := Told(), 1)
        for token, request in enumerate(requests):
            told.send(transport, token, transport.prepare(request))
        return await told.wait(len(requests), timeout=timeout), bodies
    finally:
        await transport.close()


def both(run, target, requests, **options):
    """What the wire and the reference come to."""
    return run(talk(wire(target), requests, **options)), run(talk(reference(target), requests, **options))


def seen(replies):
    return [(r.outcome.name, r.status) for r in replies]


# -- answers ----------------------------------------------------------------------------------------------------------


def without_date(body):
    return ({k: v for k, v in body[0].items() if k != "date"}, body[1]) if isinstance(body, tuple) else body


def test_the_same_answers_to_the_bit(run, protocol):
    random = np.random.default_rng(3)
    kinds = [("FP32", 4), ("FP16", 2), ("INT64", 8), ("UINT8", 1), ("BOOL", 1)]
    requests = []
    for n in (0, 1, 7, 300, 20_000, 600_000):
        for kind, size in kinds:
            data = (
                random.integers(0, 2, n * size, np.uint8).tobytes()
                if kind == "BOOL"
                else random.bytes(n * size)
            )
            requests.append(infer(protocol, tensors=[Tensor("x", kind, (1, n), data)]))
    words = kserve_http.join_bytes(["模型".encode(), b"\xff\0", b""])
    requests.append(
        infer(protocol, tensors=[Tensor("a", "BYTES", (3,), words), Tensor("b", "FP32", (2, 2), bytes(16))])
    )
    with independent(protocol) as (target, _):
        (mine, my_bodies), (theirs, their_bodies) = both(run, target, requests, keep=True)
    assert seen(mine) == seen(theirs) == [("OK", 200 if protocol == "http" else 0)] * len(requests)
    assert len(my_bodies) == len(requests)
    for token in my_bodies:
        assert without_date(my_bodies[token]) == without_date(their_bodies[token])
        assert mine[token].bytes_in == theirs[token].bytes_in


def test_the_same_requests_as_the_server_reads_them(run, protocol):
    options = ConnectOptions(headers=(("Authorization", "Bearer t"), ("x-bin", "AAEC")))
    with independent(protocol) as (target, server):
        for transport in (wire(target, options), reference(target, options)):
            run(talk(transport, [infer(protocol)]))
    read = [
        (path, {(k.lower(), v) for k, v in headers if k.lower() != "user-agent"})
        for path, headers in server.seen
    ]
    assert ("authorization", "Bearer t") in read[0][1]
    assert ("x-bin", b"\0\1\2" if protocol == "grpc" else "AAEC") in read[0][1]
    assert read[0] == [one for one in read if one[0] == read[0][0]][1]


def test_the_same_over_tls(run, protocol, tmp_path):
    authority = Authority(tmp_path)
    pair = authority.issue("loopback")
    secret = (
        {"tls": authority.server_context(pair)}
        if protocol == "http"
        else {"credentials": authority.grpc_credentials(pair)}
    )
    with independent(protocol, **secret) as (target, _):
        for options in (ConnectOptions(cacert=authority.cacert), ConnectOptions(insecure=True)):
            mine, my_bodies = run(talk(wire(target, options), [infer(protocol)], keep=True))
            theirs, their_bodies = run(talk(reference(target, options), [infer(protocol)], keep=True))
            assert seen(mine) == seen(theirs) == [("OK", mine[0].status)]
            assert without_date(my_bodies[0]) == without_date(their_bodies[0])
        for transport in (wire(target), reference(target)):
            with pytest.raises(LoadgenError, match=r"no server answers .*certificate is not accepted"):
                run(talk(transport, [infer(protocol)]))


# -- outcomes ---------------------------------------------------------------------------------------------------------


def test_refusals_over_http_come_to_the_same(run):
    statuses = [400, 401, 404, 409, 429, 500, 501, 503, 504, 524]
    requests = [infer("http", f"m{status}") for status in statuses]
    with independent("http", answer=lambda model: (int(model[1:]), f"no {model}")) as (target, _):
        (mine, _), (theirs, _) = both(run, target, requests, keep=True)
    assert seen(mine) == seen(theirs)
    assert [r.status for r in mine] == statuses
    assert {r.outcome.name for r in mine} == {"HTTP_4XX", "HTTP_5XX", "REJECTED"}
    assert [r.detail for r in mine] == [r.detail for r in theirs] == [f"no m{status}" for status in statuses]


def test_refusals_over_grpc_come_to_the_same(run):
    import grpc

    codes = {f"m{code.value[0]}": code for code in grpc.StatusCode if code is not grpc.StatusCode.OK}
    requests = [infer("grpc", model) for model in codes]
    with independent("grpc", answer=lambda model: (codes[model], f"no {model} é")) as (target, _):
        (mine, _), (theirs, _) = both(run, target, requests)
    assert seen(mine) == seen(theirs)
    assert [r.status for r in mine] == [code.value[0] for code in codes.values()]
    assert {r.outcome.name for r in mine} == {"GRPC_STATUS", "TIMEOUT", "REJECTED"}
    assert [r.detail for r in mine] == [r.detail for r in theirs] == [f"no {model} é" for model in codes]


def trailers(**fields):
    return b"".join(
        b"\0" + bytes([len(k)]) + k.encode() + bytes([len(v)]) + v
        for k, v in ((name.replace("_", "-"), value) for name, value in fields.items())
    )


HTTP_ENDS = {
    "cut short": (lambda link: (link.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nabc"), link.close()), "STREAM_ENDED_EARLY"),
    "chunk cut short": (lambda link: (link.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"), link.close()), "STREAM_ENDED_EARLY"),
    "bad chunk": (lambda link: link.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab"), "PROTOCOL"),
    "no answer": (lambda link: link.close(), "CONNECTION"),
    "reset": (lambda link: link.transport.abort(), "CONNECTION"),
    "garbage": (lambda link: link.write(b"\xff\0garbage\r\n\r\n"), "PROTOCOL"),
    "redirect": (lambda link: link.write(b"HTTP/1.1 307 X\r\nLocation: http://b/\r\nContent-Length: 0\r\n\r\n"), "PROTOCOL"),
    "no content": (lambda link: link.write(b"HTTP/1.1 204 X\r\n\r\n"), "OK"),
    "chunked": (lambda link: link.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"), "OK"),
    "to the end": (lambda link: (link.write(b"HTTP/1.1 200 OK\r\n\r\nab"), link.close()), "OK"),
    "after 100": (lambda link: link.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"), "OK"),
}  # fmt: skip
GRPC_ENDS = {
    "closed": (lambda link, sid: link.close(), "CONNECTION"),
    "reset": (lambda link, sid: link.write(frame(3, 0, sid, (2).to_bytes(4, "big"))), "CONNECTION"),
    "refused": (lambda link, sid: link.write(frame(3, 0, sid, (7).to_bytes(4, "big"))), "REFUSED_STREAM"),
    "calm": (lambda link, sid: link.write(frame(3, 0, sid, (11).to_bytes(4, "big"))), "REJECTED"),
    "mid answer": (lambda link, sid: (link.write(frame(1, 4, sid, GRPC_HEAD), frame(0, 0, sid, grpc_message(b"abc")[:-1])), link.close()), "STREAM_ENDED_EARLY"),
    "http 503": (lambda link, sid: link.write(frame(1, 5, sid, b"\x48\x03503")), "HTTP_5XX"),
    "trailers only": (lambda link, sid: link.write(frame(1, 5, sid, GRPC_HEAD + trailers(grpc_status=b"14", grpc_message=b"Exceeds%20maximum%20queue%20size"))), "REJECTED"),
    "away": (lambda link, sid: link.write(frame(1, 5, sid, GRPC_HEAD + trailers(grpc_status=b"14", grpc_message=b"no%20healthy%20upstream"))), "GRPC_STATUS"),
    "after the head": (lambda link, sid: link.write(frame(1, 4, sid, GRPC_HEAD), frame(1, 5, sid, trailers(grpc_status=b"8"))), "REJECTED"),
}  # fmt: skip


@pytest.mark.parametrize("name", HTTP_ENDS)
def test_odd_ends_over_http_come_to_the_same(run, name):
    act, outcome = HTTP_ENDS[name]
    compare_ends(run, "http", lambda: ScriptedHttp(lambda link, _: act(link), []), outcome)


@pytest.mark.parametrize("name", GRPC_ENDS)
def test_odd_ends_over_grpc_come_to_the_same(run, name):
    act, outcome = GRPC_ENDS[name]

    def handle(link, sid):
        if sid > 1 or link.greeted_first:
            act(link, sid)
        else:  # the reference asks whether the server lives before the load; both get an answer to that
            link.greeted_first = True
            link.answer(sid, b"")

    class Server(ScriptedGrpc):
        greeted_first = False

    async def job(make, warm):
        async with serving(lambda: Server(handle, [])) as port:
            transport = make(parse_target(f"grpc://127.0.0.1:{port}"))
            try:
                await transport.open(told := Told(), 1)
                if warm:
                    told.send(transport, 9, transport.prepare(infer("grpc")))
                    await told.wait(1)
                told.send(transport, 0, transport.prepare(infer("grpc")))
                await told.wait(2 if warm else 1)
                return told.replies[-1]
            finally:
                await transport.close()

    mine, theirs = run(job(wire, True)), run(job(reference, False))
    expected = "CONNECTION" if name == "mid answer" else outcome  # the library does not tell of a first byte
    assert (theirs.outcome.name, theirs.status) == (expected, mine.status)
    assert mine.outcome.name == outcome
    assert bool(mine.detail) == bool(theirs.detail)


def compare_ends(run, protocol, server, outcome):
    async def job(make):
        async with serving(server) as port:
            return (await talk(make(parse_target(f"{protocol}://127.0.0.1:{port}")), [infer(protocol)]))[0][0]

    mine, theirs = run(job(wire)), run(job(reference))
    assert (mine.outcome.name, mine.status) == (theirs.outcome.name, theirs.status)
    assert mine.outcome.name == outcome
    assert bool(mine.detail) == bool(theirs.detail)
    assert bool(mine.first_ns) == bool(theirs.first_ns)


def test_who_gives_up_gets_the_same(run, protocol):
    async def job(transport):
        try:
            await transport.open(told := Told(), 1)
            for token in range(3):
                told.send(transport, token, transport.prepare(infer(protocol)))
            await until(lambda: transport.in_flight == 3)
            transport.cancel(0, Outcome.TIMEOUT)
            transport.cancel(0, Outcome.TIMEOUT)
            transport.cancel(7, Outcome.TIMEOUT)
            assert [r.outcome.name for r in told.replies] == ["TIMEOUT"]
            assert transport.in_flight == 2
        finally:
            await transport.close()
        told.send(transport, 3, transport.prepare(infer(protocol)))
        return await told.wait(4)

    with independent(protocol, answer=lambda _: 0.3) as (target, _):
        mine, theirs = run(job(wire(target))), run(job(reference(target)))
    assert seen(mine) == seen(theirs)
    assert [r.outcome.name for r in mine] == ["TIMEOUT", "CANCELLED", "CANCELLED", "CLIENT"]
    for replies in (mine, theirs):
        assert all(r.sent_ns > 0 and r.first_ns == 0 and r.done_ns >= r.sent_ns for r in replies[:3])
        assert replies[0].detail == "given up before the answer began"
        assert (replies[3].sent_ns, replies[3].detail) == (0, "the transport is closed")


def test_a_server_that_goes_and_comes_back(run, protocol):
    null = NullGrpc if protocol == "grpc" else NullHttp

    async def job(make):
        made = []

        class Server(null):
            def connection_made(self, transport):
                made.append(transport)
                super().connection_made(transport)

        async with serving(Server) as port:
            transport = make(parse_target(f"{protocol}://127.0.0.1:{port}"))
            await transport.open(told := Told(), 1)
            told.send(transport, 0, transport.prepare(infer(protocol)))
            await told.wait(1)
        for connection in made:
            connection.close()
        await asyncio.sleep(0.05)  # a close has to cross the loopback, and nothing tells when it has
        told.send(transport, 1, transport.prepare(infer(protocol)))
        await told.wait(2)
        server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", port)
        token = 2
        async with asyncio.timeout(5):
            while (
                told.replies[-1].outcome is not Outcome.OK
            ):  # the official library waits before it tries again
                told.send(transport, token, transport.prepare(infer(protocol)))
                await told.wait(token + 1)
                token += 1
                await asyncio.sleep(0.02)
        await transport.close()
        server.close()
        return told.replies

    mine, theirs = run(job(wire)), run(job(reference))
    for replies in (mine, theirs):
        assert [r.outcome.name for r in replies][:2] == ["OK", "CONNECT"]
        assert (replies[1].sent_ns, replies[1].detail) == (0, "connection refused")


def test_nobody_there_is_said_in_the_same_words(run, protocol):
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        target = parse_target(f"{protocol}://127.0.0.1:{probe.getsockname()[1]}")
        for transport in (wire(target), reference(target)):
            with pytest.raises(
                LoadgenError, match=f"^no server answers at {target.url}: connection refused$"
            ):
                run(talk(transport, [infer(protocol)]))


def test_a_grpc_target_that_speaks_http_is_refused_by_both(run):
    with independent("http") as (target, _):
        wrong = parse_target(f"grpc://{target.authority}")
        for transport in (wire(wrong), reference(wrong)):
            with pytest.raises(LoadgenError, match=f"no server answers at {wrong.url}: "):
                run(talk(transport, [infer("grpc")]))


# -- what is its own ----------------------------------------------------------------------------------------------------


def test_a_connection_lost_over_a_request_that_was_read_is_a_failure(run):
    async def job(make):
        made = []

        def handle(link, _):
            if link.requests == 2:
                link.close()
            else:
                link.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        async with serving(lambda: ScriptedHttp(handle, made)) as port:
            transport = make(parse_target(f"http://127.0.0.1:{port}"))
            await transport.open(told := Told(), 1)
            for token in range(3):
                told.send(transport, token, transport.prepare(infer("http")))
                await told.wait(token + 1)
            resent = transport.resent
            await transport.close()
            return told.outcomes, resent

    assert run(job(wire)) == run(job(reference)) == ({"OK": 2, "CONNECTION": 1}, 0)


def test_many_at_once_have_no_hidden_cap(run, protocol):
    """150 at a time against a server that answers only when all are there."""
    import threading

    together = threading.Barrier(150)

    def answer(_):
        together.wait(timeout=20)

    more = {"workers": 150} if protocol == "grpc" else {}
    with independent(protocol, answer=answer, **more) as (target, _):
        replies, _ = run(talk(reference(target), [infer(protocol)] * 150))
    assert {r.outcome.name for r in replies} == {"OK"}


def test_what_cannot_be_sent_is_refused_before():
    transport = reference(parse_target("grpc://127.0.0.1:1"))
    with pytest.raises(LoadgenError, match=r"knows only inference\.GRPCInferenceService/ModelInfer"):
        transport.prepare(Request("other.Service/Call", (), b""))
    with pytest.raises(LoadgenError, match="not a name that can be set"):
        reference(parse_target("http://127.0.0.1:1")).prepare(Request("p", (("a b", "c"),), b""))


# -- time ---------------------------------------------------------------------------------------------------------------


def test_latencies_differ_by_no_more_than_the_stated_overhead(run, protocol):
    """A service of 20 ms, asked by both in turns, so that what else the machine does meets both alike."""

    async def job(target):
        transports = [wire(target), reference(target)]
        tolds = [Told(), Told()]
        for transport, told in zip(transports, tolds, strict=True):
            await transport.open(told, 1)
        prepared = [transport.prepare(infer(protocol)) for transport in transports]
        for turn in range(60):
            for transport, told, one in zip(transports, tolds, prepared, strict=True):
                told.send(transport, turn, one)
                await told.wait(turn + 1)
        for transport in transports:
            await transport.close()
        return [[(r.done_ns - r.sent_ns) / 1e6 for r in told.replies] for told in tolds]

    with independent(protocol, answer=lambda _: 0.02) as (target, _):
        mine, theirs = run(job(target))
    assert min(mine) >= 20
    assert min(theirs) >= 20
    assert abs(statistics.median(theirs) - statistics.median(mine)) < OVERHEAD_MS
    lower, upper = (statistics.quantiles(sample, n=4)[::2] for sample in (mine, theirs))
    assert abs(upper[0] - lower[0]) < OVERHEAD_MS
    assert abs(upper[1] - lower[1]) < 2 * OVERHEAD_MS
