"""The gRPC transport against a real gRPC server and scripted ones."""

import asyncio
import socket
import ssl
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from null_server import (
    GRPC_HEAD,
    INFER_REPLY,
    NullGrpc,
    NullHttp,
    ScriptedGrpc,
    frame,
    grpc_message,
    grpc_reply,
    serving,
)
from tls import Authority
from told import LOOPS, Told, until

from loadgen.clock import MONOTONIC
from loadgen.records import LoadgenError, Outcome, Request, Tensor
from loadgen.target import parse_target
from loadgen.transport.grpc import GrpcTransport
from loadgen.transport.null import NullTransport
from loadgen.wire.kserve_grpc import infer_request, read_infer_response

REQUEST = infer_request("m", "", [Tensor("x", "FP32", (1, 16), bytes(64))])
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@pytest.fixture(params=sorted(LOOPS))
def run(request):
    return LOOPS[request.param]


@asynccontextmanager
async def talking(handle, *, connections=1, hello=None, **options):
    made = []
    async with serving(lambda: ScriptedGrpc(handle, made, hello)) as port:
        transport = GrpcTransport(parse_target(f"grpc://127.0.0.1:{port}"), MONOTONIC, **options)
        told = Told()
        told.servers = made
        await transport.open(told, connections)
        try:
            yield transport, told
        finally:
            await transport.close()


def u32(value):
    return value.to_bytes(4, "big")


def setting(key, value):
    return frame(4, 0, 0, key.to_bytes(2, "big") + u32(value))


def goaway(last, code=0, words=b""):
    return frame(7, 0, 0, u32(last) + u32(code) + words)


def trailers(status, message=b""):
    def literal(name, value):
        return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value

    return literal(b"grpc-status", b"%d" % status) + (literal(b"grpc-message", message) if message else b"")


@contextmanager
def real_server(infer, *, workers=8, credentials=None, options=UNLIMITED):
    """grpcio's own server in threads, ModelInfer by the official messages; gives its port."""
    import grpc
    from tritonclient.grpc import service_pb2 as pb

    method = grpc.unary_unary_rpc_method_handler(
        infer, pb.ModelInferRequest.FromString, pb.ModelInferResponse.SerializeToString
    )
    server = grpc.server(ThreadPoolExecutor(workers), options=options)
    name = "inference.GRPCInferenceService"
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, {"ModelInfer": method})])
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def identity(request, context):
    from tritonclient.grpc import service_pb2 as pb

    if request.model_name == "fails":
        import grpc

        context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no 模型 of\nid {request.id} 100%")
    answer = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
    for one in request.inputs:
        answer.outputs.add(name="y" + one.name, datatype=one.datatype, shape=one.shape)
    answer.raw_output_contents.extend(request.raw_input_contents)
    return answer


def test_the_same_bytes_as_a_real_server_decodes_and_sends(run):
    async def job(port):
        transport = GrpcTransport(parse_target(f"grpc://localhost:{port}"), MONOTONIC)
        bodies = {}
        transport.on_body = bodies.__setitem__
        await transport.open(told := Told(), 2)
        random = np.random.default_rng(1)
        sizes = [0, 1, 16, 4000, 5000, 20_000, 100_000, 1_250_000, 16_000_000]  # up to 64 MB
        asked = [Tensor("x", "FP32", (1, size), random.bytes(size * 4)) for size in sizes]
        for token, tensor in enumerate(asked):
            told.send(transport, token, transport.prepare(infer_request("m", "1", [tensor])))
        replies = await told.wait(len(asked), timeout=30)
        assert [r.outcome for r in replies] == [Outcome.OK] * len(asked), replies
        for token, tensor in enumerate(asked):
            (got,) = read_infer_response(bodies[token])
            assert (got.name, got.datatype, got.shape) == ("yx", "FP32", tensor.shape)
            assert got.data == tensor.data
            assert replies[token].bytes_in == len(bodies[token]) + 5
        await transport.close()

    with real_server(identity) as port:
        run(job(port))


def test_a_real_server_under_many_calls_with_failures_between(run):
    async def job(port):
        transport = GrpcTransport(parse_target(f"grpc://127.0.0.1:{port}"), MONOTONIC)
        await transport.open(told := Told(), 1)
        good = transport.prepare(REQUEST)
        for token in range(600):
            bad = infer_request("fails", "", [], request_id=str(token))
            told.send(transport, token, transport.prepare(bad) if token % 3 == 0 else good)
        replies = await told.wait(600, timeout=30)
        assert told.outcomes == {"OK": 400, "GRPC_STATUS": 200}
        for told_reply in replies:
            assert 0 < told_reply.sent_ns <= told_reply.first_ns <= told_reply.done_ns
            if told_reply.outcome is Outcome.GRPC_STATUS:
                assert told_reply.status == 3
                assert told_reply.detail == f"no 模型 of id {told_reply.token} 100%"
        assert (transport.connections_opened, transport.in_flight, transport.resent) == (1, 0, 0)
        await transport.close()

    with real_server(identity) as port:
        run(job(port))


def test_metadata_reaches_a_real_server(run):
    seen = []

    def infer(request, context):
        seen.append(dict(context.invocation_metadata()))
        return identity(request, context)

    async def job(port):
        target = parse_target(f"grpc://127.0.0.1:{port}")
        transport = GrpcTransport(target, MONOTONIC, headers=[("Authorization", "Bearer t")])
        await transport.open(told := Told(), 1)
        long = Request(REQUEST.path, (("x-long", "v" * 5000),), REQUEST.body)
        transport.send(0, transport.prepare(long))
        assert (await told.wait(1))[0].outcome is Outcome.OK
        await transport.close()

    with real_server(infer) as port:
        run(job(port))
    assert (seen[0]["authorization"], seen[0]["x-long"]) == ("Bearer t", "v" * 5000)


def test_a_real_server_that_takes_no_message_of_this_size_says_so(run):
    async def job(port):
        transport = GrpcTransport(parse_target(f"grpc://127.0.0.1:{port}"), MONOTONIC)
        await transport.open(told := Told(), 1)
        big = infer_request("m", "", [Tensor("x", "UINT8", (5_000_000,), bytes(5_000_000))])
        transport.send(0, transport.prepare(big))
        transport.send(1, transport.prepare(REQUEST))
        refused, good = await told.wait(2)
        assert (refused.outcome, refused.status) == (Outcome.GRPC_STATUS, 8)
        assert f"{len(big.body)} vs. 4194304" in refused.detail
        assert good.outcome is Outcome.OK
        await transport.close()

    with real_server(identity, options=[]) as port:
        run(job(port))


def test_a_real_server_with_few_streams_gets_more_connections(run):
    together = threading.Barrier(12)

    def infer(request, context):
        together.wait(timeout=10)  # answers only when all twelve are in service at once
        return identity(request, context)

    async def job(port):
        transport = GrpcTransport(parse_target(f"grpc://127.0.0.1:{port}"), MONOTONIC)
        await transport.open(told := Told(), 1)
        for token in range(12):
            told.send(transport, token, transport.prepare(REQUEST))
        await told.wait(12, timeout=15)
        assert told.outcomes == {"OK": 12}
        assert transport.connections_opened == 4
        await transport.close()

    with real_server(infer, workers=12, options=[("grpc.max_concurrent_streams", 3)]) as port:
        run(job(port))


def test_tls_with_a_real_server(run, tmp_path):
    authority = Authority(tmp_path)
    trusting = ssl.create_default_context(cafile=authority.cacert)

    async def job(port):
        target = parse_target(f"grpcs://127.0.0.1:{port}")
        with pytest.raises(LoadgenError, match=r"certificate is not accepted: unable to get local issuer"):
            await GrpcTransport(target, MONOTONIC).open(Told(), 1)
        transport = GrpcTransport(target, MONOTONIC, tls=trusting)
        await transport.open(told := Told(), 1)
        for token in range(20):
            told.send(transport, token, transport.prepare(REQUEST))
        await told.wait(20)
        assert told.outcomes == {"OK": 20}
        await transport.close()

    with real_server(identity, credentials=authority.grpc_credentials(authority.issue("loopback"))) as port:
        run(job(port))


STATUSES = [
    (3, b"bad", "GRPC_STATUS", "bad"),
    (4, b"", "TIMEOUT", "DEADLINE_EXCEEDED"),
    (8, b"full%21", "REJECTED", "full!"),
    (14, b"Exceeds maximum queue size", "REJECTED", "Exceeds maximum queue size"),
    (13, b"", "GRPC_STATUS", "INTERNAL"),
    (99, b"", "GRPC_STATUS", "grpc-status 99"),
]


@pytest.mark.parametrize("only", [True, False])
@pytest.mark.parametrize(("status", "message", "outcome", "detail"), STATUSES)
def test_statuses_are_classified_with_the_servers_words(run, status, message, outcome, detail, only):
    def handle(link, sid):
        if only:
            link.write(frame(1, 5, sid, b"\x88" + trailers(status, message)))
        else:
            link.write(frame(1, 4, sid, GRPC_HEAD), frame(1, 5, sid, trailers(status, message)))

    async def job():
        async with talking(handle) as (transport, told):
            for token in range(3):
                told.send(transport, token, transport.prepare(REQUEST))
            for told_reply in await told.wait(3):
                assert (told_reply.outcome.name, told_reply.status, told_reply.detail) == (
                    outcome,
                    status,
                    detail,
                )

    run(job())


ODD = {
    "no message": (lambda sid: frame(1, 4, sid, GRPC_HEAD) + frame(1, 5, sid, trailers(0)), "PROTOCOL", "no message came"),
    "no status": (lambda sid: frame(1, 4, sid, GRPC_HEAD) + frame(0, 1, sid, grpc_message(b"x")), "STREAM_ENDED_EARLY", "without a grpc-status"),
    "http 503": (lambda sid: frame(1, 5, sid, b"\x48\x03503"), "HTTP_5XX", "HTTP 503"),
    "http 404": (lambda sid: frame(1, 5, sid, b"\x8d"), "HTTP_4XX", "HTTP 404"),
    "http 500": (lambda sid: frame(1, 5, sid, b"\x8e"), "HTTP_5XX", "HTTP 500"),
    "reset": (lambda sid: frame(3, 0, sid, u32(2)), "CONNECTION", "reset the stream: INTERNAL_ERROR"),
    "calm": (lambda sid: frame(3, 0, sid, u32(11)), "REJECTED", "ENHANCE_YOUR_CALM"),
    "refused": (lambda sid: frame(3, 0, sid, u32(7)), "REFUSED_STREAM", "reset the stream: REFUSED_STREAM, 6 times"),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_ends_of_a_call(run, name):
    data, outcome, words = ODD[name]

    async def job():
        async with talking(lambda link, sid: link.write(data(sid))) as (transport, told):
            told.send(transport, 0, transport.prepare(REQUEST))
            (only,) = await told.wait(1)
            assert only.outcome.name == outcome
            assert words in only.detail
            assert transport.resent == (5 if name == "refused" else 0)
            assert transport.in_flight == 0

    run(job())


def test_a_refused_stream_is_opened_again_after_pauses(run):
    """Each pause is twice as long as the one before: 10, 20, 40, 80 and 160 ms."""

    async def job():
        came = []

        def handle(link, sid):
            came.append(MONOTONIC.now_ns())
            link.write(frame(3, 0, sid, u32(7)))

        async with talking(handle) as (transport, told):
            told.send(transport, 0, transport.prepare(REQUEST))
            (only,) = await told.wait(1)
            assert only.outcome is Outcome.REFUSED_STREAM
            assert len(came) == 6
            pauses = [(b - a) / 1e6 for a, b in pairwise(came)]
            assert all(pause > 0.9 * 10 * 2**k for k, pause in enumerate(pauses)), pauses
            assert only.sent_ns <= came[0]

    run(job())


def test_a_stream_that_was_refused_twice_and_then_taken_is_a_success(run):
    async def job():
        def handle(link, sid):
            link.answer(sid) if sid > 4 else link.write(frame(3, 0, sid, u32(7)))

        async with talking(handle) as (transport, told):
            told.send(transport, 0, transport.prepare(REQUEST))
            (only,) = await told.wait(1)
            assert (only.outcome, transport.resent) == (Outcome.OK, 2)
            assert only.done_ns - only.sent_ns > 25_000_000, "latency counts from the first sending"

    run(job())


def test_a_call_is_given_up_while_it_pauses(run):
    async def job():
        async with talking(lambda link, sid: link.write(frame(3, 0, sid, u32(7)))) as (transport, told):
            told.send(transport, 0, transport.prepare(REQUEST))
            await until(lambda: transport.resent == 3)
            await until(lambda: transport.waiting == 1 and not transport.in_flight)
            transport.cancel(0, Outcome.TIMEOUT)
            (only,) = await told.wait(1)
            assert (only.outcome, only.detail) == (
                Outcome.TIMEOUT,
                "given up while the server refused the stream",
            )
            assert only.sent_ns > 0
            assert (transport.waiting, transport.in_flight) == (0, 0)
            told.send(transport, 1, transport.prepare(REQUEST))
            await until(lambda: transport.waiting == 1 and not transport.in_flight)
            await transport.close()
            assert told.outcomes == {"TIMEOUT": 1, "CANCELLED": 1}

    run(job())


def test_a_broken_message_is_seen_when_bodies_are_asked_for(run):
    def handle(link, sid):
        link.write(
            frame(1, 4, sid, GRPC_HEAD),
            frame(0, 0, sid, grpc_message(b"abc")[:-1]),
            frame(1, 5, sid, trailers(0)),
        )

    async def job():
        async with talking(handle) as (transport, told):
            transport.on_body = lambda *_: pytest.fail("no whole message came")
            told.send(transport, 0, transport.prepare(REQUEST))
            assert (await told.wait(1))[0].outcome is Outcome.PROTOCOL

    run(job())


def test_the_limit_of_streams_is_kept_on_every_connection(run):
    async def job():
        most, waiting = [], []

        def handle(link, sid):
            most.append(len(link.open))
            waiting.append((link, sid))

        async with talking(handle, hello=setting(3, 4) + ScriptedGrpc.hello) as (transport, told):
            prepared = transport.prepare(REQUEST)
            for token in range(40):
                told.send(transport, token, prepared)
            await until(lambda: len(waiting) == 40)
            assert (transport.connections_opened, transport.waiting, max(most)) == (10, 0, 4)
            for link, sid in waiting:
                link.answer(sid)
            await told.wait(40)
            assert told.outcomes == {"OK": 40}

    run(job())


def test_a_server_that_allows_no_stream_for_now_is_waited_for(run):
    async def job():
        hello = setting(3, 0) + ScriptedGrpc.hello
        async with talking(lambda link, sid: link.answer(sid), hello=hello) as (transport, told):
            for token in range(3):
                told.send(transport, token, transport.prepare(REQUEST))
            assert (transport.waiting, transport.in_flight) == (3, 0)
            told.servers[0].write(setting(3, 100))
            await told.wait(3)
            assert (told.outcomes, transport.connections_opened) == ({"OK": 3}, 1)

    run(job())


def test_goaway_in_flight_sends_again_what_was_not_processed(run):
    async def job():
        held = []

        def handle(link, sid):
            if link is not told.servers[0]:
                link.answer(sid)
                return
            held.append(sid)
            if len(held) == 3:
                link.write(goaway(1))

        async with talking(handle) as (transport, told):
            prepared = transport.prepare(REQUEST)
            for token in range(3):
                told.send(transport, token, prepared)
            await told.wait(2)
            assert {r.token for r in told.replies} == {1, 2}
            told.servers[0].answer(1)
            await told.wait(3)
            assert told.outcomes == {"OK": 3}
            assert (transport.resent, transport.connections_opened) == (2, 2)
            await until(told.servers[0].transport.is_closing)
            told.send(transport, 3, prepared)
            await told.wait(4)
            assert transport.connections_opened == 2

    run(job())


def test_goaway_and_the_end_of_the_others(run):
    async def job():
        def handle(link, sid):
            if sid == 3:
                link.write(goaway(3, 11, b"too_many_pings"))
                link.close()

        async with talking(handle) as (transport, told):
            for token in range(2):
                told.send(transport, token, transport.prepare(REQUEST))
            for lost in await told.wait(2):
                assert (lost.outcome, lost.detail) == (
                    Outcome.CONNECTION,
                    "GOAWAY ENHANCE_YOUR_CALM (too_many_pings)",
                )
            assert transport.resent == 0

    run(job())


@pytest.mark.parametrize("at_once", [True, False])
def test_a_storm_of_goaways_ends(run, at_once):
    async def job():
        def handle(link, sid):
            link.write(goaway(0))

        async with talking(handle) as (transport, told):
            if at_once:
                ScriptedGrpc.hello = hello + goaway(0)
            for token in range(20):
                told.send(transport, token, transport.prepare(REQUEST))
            await told.wait(20)
            assert told.outcomes == {"CONNECT" if at_once else "CONNECTION": 20}
            assert transport.connections_opened < 150
            assert (transport.waiting, transport.in_flight) == (0, 0)

    hello = ScriptedGrpc.hello
    try:
        run(job())
    finally:
        ScriptedGrpc.hello = hello


LOST = {
    "reset mid answer": (lambda link, sid: (link.write(frame(1, 4, sid, GRPC_HEAD)), link.transport.close()), "STREAM_ENDED_EARLY"),
    "aborted": (lambda link, sid: link.transport.abort(), "CONNECTION"),
    "half closed": (lambda link, sid: link.transport.write_eof(), "CONNECTION"),
    "garbage": (lambda link, sid: link.write(b"\xff" * 50), "PROTOCOL"),
    "http": (lambda link, sid: link.write(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "PROTOCOL"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_a_lost_connection_ends_its_calls_and_is_replaced(run, name):
    break_off, outcome = LOST[name]

    async def job():
        def handle(link, sid):
            if link is not told.servers[0]:
                link.answer(sid)
            elif sid == 5:
                break_off(link, sid)

        async with talking(handle) as (transport, told):
            prepared = transport.prepare(REQUEST)
            for token in range(3):
                told.send(transport, token, prepared)
            for lost in await told.wait(3):
                begun = lost.outcome.name == "STREAM_ENDED_EARLY"
                assert lost.outcome.name in (outcome, "CONNECTION")
                assert begun == (lost.first_ns > 0)
                assert lost.detail
            for token in range(3, 6):
                told.send(transport, token, prepared)
            await told.wait(6)
            alone = {outcome: 1, "CONNECTION": 2} if outcome == "STREAM_ENDED_EARLY" else {outcome: 3}
            assert told.outcomes == {**alone, "OK": 3}
            assert (transport.connections_opened, transport.resent) == (2, 0)

    run(job())


def test_a_server_that_works_and_then_hangs_up_has_failed(run):
    """A call without an answer is only sent again when the server said that it did not process it."""

    async def job():
        def handle(link, sid):
            if len(told.servers) == 1 and sid == 1:
                link.answer(sid)
            else:
                asyncio.get_running_loop().call_later(0.05, link.close)

        async with talking(handle) as (transport, told):
            prepared = transport.prepare(REQUEST)
            for token in range(4):
                told.send(transport, token, prepared)
                await told.wait(token + 1)
            assert told.outcomes == {"OK": 1, "CONNECTION": 3}
            assert told.replies[1].detail == "the connection ended before the answer did"
            assert (transport.resent, transport.reconnects) == (0, 3)

    run(job())


class Kept:
    """A server of one connection at a time, by hand: it does what it is told at once, not when a loop comes to it."""

    def __init__(self):
        self.door = socket.create_server(("127.0.0.1", 0))
        self.door.settimeout(5)
        self.port = self.door.getsockname()[1]

    def accept(self):
        self.link = self.door.accept()[0]
        self.link.settimeout(5)
        self.link.sendall(frame(4, 0, 0))

    def answer(self):
        """Reads until a call of a connection is whole, and answers it as the first."""
        held = b""
        while REQUEST.body not in held:
            held += self.link.recv(65536)
        self.link.sendall(
            frame(1, 4, 1, GRPC_HEAD) + frame(0, 0, 1, grpc_message(b"x")) + frame(1, 5, 1, trailers(0))
        )


def test_a_close_without_a_goaway_says_nothing_of_what_was_processed(run):
    """It lies in our kernel when the call is written: of HTTP/2, what the kernel has not delivered may be anything."""
    server = Kept()

    async def job():
        loop = asyncio.get_running_loop()
        transport = GrpcTransport(parse_target(f"grpc://127.0.0.1:{server.port}"), MONOTONIC)
        accepted = loop.run_in_executor(None, server.accept)
        await transport.open(told := Told(), 1)
        await accepted
        prepared = transport.prepare(REQUEST)
        for token in range(4):
            told.send(transport, token, prepared)
            if token % 2:
                await told.wait(token + 1)
                continue
            if token:
                await loop.run_in_executor(None, server.accept)
            await loop.run_in_executor(None, server.answer)
            await told.wait(token + 1)
            await loop.run_in_executor(None, time.sleep, 0.01)  # our answers to its frames have come
            server.link.close()
        assert [reply.outcome for reply in told.replies] == [Outcome.OK, Outcome.CONNECTION] * 2
        assert (transport.resent, transport.connections_opened) == (0, 2)
        await transport.close()

    try:
        run(job())
    finally:
        server.door.close()


def test_calls_without_room_on_a_connection_are_counted(run):
    async def job():
        hello = setting(3, 2) + ScriptedGrpc.hello
        async with talking(lambda link, sid: None, hello=hello) as (transport, told):
            for token in range(5):
                told.send(transport, token, transport.prepare(REQUEST))
            assert (transport.conn_waits, transport.in_flight) == (3, 2)
            await until(lambda: transport.in_flight == 5)
            assert transport.conn_waits == 3

    run(job())


def test_calls_sent_while_answers_are_read_are_stamped_when_they_leave(run):
    """40 answers come in one read, and each callback takes a millisecond: nobody waits for all of them."""

    async def job():
        calls = []

        def handle(link, sid):
            calls.append(sid)
            if len(calls) == 40:
                link.write(*(grpc_reply(one, INFER_REPLY) for one in calls))
            elif len(calls) > 40:
                seen[sid] = MONOTONIC.now_ns()
                link.answer(sid)

        seen, returned = {}, {}

        def again(told_reply):
            if told_reply.token < 40:
                end = MONOTONIC.now_ns() + 1_000_000
                while MONOTONIC.now_ns() < end:
                    pass
                transport.send(told_reply.token + 40, prepared)
                returned[told_reply.token + 40] = MONOTONIC.now_ns()

        async with talking(handle) as (transport, told):
            prepared = transport.prepare(REQUEST)
            for token in range(40):
                told.send(transport, token, prepared)
            told.then = again
            replies = await told.wait(80)
            sent = [reply.sent_ns for reply in replies if reply.token >= 40]
            assert sent == sorted(sent)
            assert len(set(sent)) == 3, "batches of 16, 16 and 8, each stamped once"
            assert all(
                returned[token + 40] <= sent[token] + 100_000 for token in range(40) if token % 16 != 15
            )
            assert sent[0] >= returned[40] + 14_000_000, "not when the first was handed over"
            assert sent[0] < returned[40 + 16], "nor after the last"

    run(job())


def test_a_call_given_up_before_it_left_has_left_first(run):
    async def job():
        def again(told_reply):
            if told_reply.token == 0:
                transport.send(1, prepared)
                transport.cancel(1, Outcome.CANCELLED)

        async with talking(lambda link, sid: link.answer(sid)) as (transport, told):
            prepared = transport.prepare(REQUEST)
            told.then = again
            transport.send(0, prepared)
            replies = await told.wait(2)
            assert replies[1].outcome is Outcome.CANCELLED
            assert replies[0].done_ns <= replies[1].sent_ns <= MONOTONIC.now_ns()
            await until(lambda: (3, 0, 3, u32(8)) in told.servers[0].frames)

    run(job())


def test_one_byte_per_packet(run):
    async def job():
        async def drip(link, sid):
            for byte in frame(6, 0, 0, bytes(8)) + b"".join(
                [
                    frame(1, 4, sid, GRPC_HEAD),
                    frame(0, 0, sid, grpc_message(INFER_REPLY)),
                    frame(1, 5, sid, trailers(0)),
                ]
            ):
                link.write(bytes([byte]))
                await asyncio.sleep(0)

        jobs = []
        async with talking(lambda *call: jobs.append(asyncio.ensure_future(drip(*call)))) as (
            transport,
            told,
        ):
            bodies = {}
            transport.on_body = bodies.__setitem__
            told.send(transport, 0, transport.prepare(REQUEST))
            assert (await told.wait(1))[0].outcome is Outcome.OK
            assert bodies == {0: INFER_REPLY}
            await until(lambda: (6, 1, 0, bytes(8)) in told.servers[0].frames)

    run(job())


def test_tiny_windows_of_the_server(run):
    async def job():
        def handle(link, sid):
            link.answer(sid)

        hello = setting(4, 7) + frame(8, 0, 0, u32(1 << 20))
        async with talking(handle, hello=hello) as (transport, told):
            for token in range(3):
                told.send(transport, token, transport.prepare(REQUEST))
            server = told.servers[0]
            await until(lambda: len(server.frames) >= 6)
            while len(told.replies) < 3:
                for sid in sorted(server.open):
                    server.write(frame(8, 0, sid, u32(13)))
                await asyncio.sleep(0.001)
            assert told.outcomes == {"OK": 3}
            parts = [p for kind, _, sid, p in server.frames if kind == 0 and sid == 3]
            assert max(map(len, parts)) <= 13
            assert b"".join(parts) == grpc_message(REQUEST.body)

    run(job())


def test_cancel_in_flight_waiting_and_unknown(run):
    async def job():
        def handle(link, sid):
            if sid > 3:
                link.answer(sid)

        async with talking(handle, hello=setting(3, 2) + ScriptedGrpc.hello) as (transport, told):
            prepared = transport.prepare(REQUEST)
            for token in range(3):
                told.send(transport, token, prepared)
            transport.cancel(2, Outcome.CANCELLED)
            transport.cancel(0, Outcome.TIMEOUT)
            transport.cancel(0, Outcome.TIMEOUT)
            transport.cancel(9, Outcome.TIMEOUT)
            given_up, never = await told.wait(2)
            assert (given_up.outcome, given_up.first_ns) == (Outcome.TIMEOUT, 0)
            assert given_up.detail == "given up before the answer began"
            assert (never.outcome, never.sent_ns) == (Outcome.CANCELLED, 0)
            await until(lambda: (3, 0, 1, u32(8)) in told.servers[0].frames)
            told.send(transport, 3, prepared)
            assert (await told.wait(3))[2][0] == 3
            assert transport.in_flight == 1

    run(job())


def test_close_ends_what_is_in_flight_once_and_says_goodbye(run):
    async def job():
        async with talking(lambda link, sid: None) as (transport, told):
            for token in range(4):
                told.send(transport, token, transport.prepare(REQUEST))
            await transport.close()
            assert told.outcomes == {"CANCELLED": 4}
            told.send(transport, 5, transport.prepare(REQUEST))
            await told.wait(5)
            assert told.outcomes == {"CANCELLED": 4, "CLIENT": 1}
            await until(lambda: any(kind == 7 for kind, *_ in told.servers[0].frames))

    run(job())


def test_what_is_no_grpc_server_is_told_in_words(run):
    class Silent(asyncio.Protocol):
        pass

    class Web(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, _):
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    class Closing(asyncio.Protocol):
        def connection_made(self, transport):
            transport.close()

    async def job(server, words):
        async with serving(server) as port:
            target = parse_target(f"grpc://127.0.0.1:{port}")
            transport = GrpcTransport(target, MONOTONIC, connect_timeout_ns=200_000_000)
            with pytest.raises(
                LoadgenError, match=f"no server answers at grpc://127.0.0.1:{port}: .*{words}"
            ):
                await transport.open(Told(), 2)

    run(job(Web, "speaks HTTP/1.1 here, not gRPC"))
    run(job(Silent, "no connection within 200 ms"))
    run(job(Closing, ""))


def test_a_server_that_goes_and_comes_back(run):
    async def job():
        made = []
        async with serving(lambda: ScriptedGrpc(lambda link, sid: link.answer(sid), made)) as port:
            transport = GrpcTransport(parse_target(f"grpc://127.0.0.1:{port}"), MONOTONIC)
            await transport.open(told := Told(), 1)
        made[0].close()
        await until(lambda: not transport._links)
        for token in range(3):
            told.send(transport, token, transport.prepare(REQUEST))
        for refused in await told.wait(3):
            assert (refused.outcome, refused.sent_ns, refused.detail) == (
                Outcome.CONNECT,
                0,
                "connection refused",
            )
        server = await asyncio.get_running_loop().create_server(NullGrpc, "127.0.0.1", port)
        told.send(transport, 3, transport.prepare(REQUEST))
        assert (await told.wait(4))[3].outcome is Outcome.OK
        assert transport.reconnects == 1
        await transport.close()
        server.close()

    run(job())


@pytest.mark.parametrize("kind", ["grpc", "http", "null"])
def test_a_closed_loop_from_within_the_reply(run, kind):
    from loadgen.transport.http import HttpTransport

    async def job():
        server = {"grpc": NullGrpc, "http": NullHttp, "null": asyncio.Protocol}[kind]
        async with serving(server) as port:
            if kind == "null":
                transport = NullTransport(MONOTONIC)
            else:
                make = GrpcTransport if kind == "grpc" else HttpTransport
                transport = make(parse_target(f"{kind}://127.0.0.1:{port}"), MONOTONIC)
            prepared = transport.prepare(REQUEST)
            told = Told(lambda r: r.token < 984 and transport.send(r.token + 16, prepared))
            await transport.open(told, 16 if kind == "http" else 2)
            for token in range(16):
                told.send(transport, token, prepared)
            replies = await told.wait(1000)
            assert told.outcomes == {"OK": 1000}
            assert [r.token for r in replies] == list(range(1000))
            assert all(0 < r.sent_ns <= r.first_ns <= r.done_ns for r in replies)
            assert transport.connections_opened == {"grpc": 2, "http": 16, "null": 0}[kind]
            await transport.close()

    run(job())


def test_the_null_transport_cancels():
    async def job():
        transport = NullTransport(MONOTONIC)
        await transport.open(told := Told(), 1)
        told.send(transport, 0, transport.prepare(REQUEST))
        told.send(transport, 1, transport.prepare(REQUEST))
        transport.cancel(0, Outcome.TIMEOUT)
        await told.wait(2)
        assert [r.outcome.name for r in sorted(told.replies)] == ["TIMEOUT", "OK"]

    asyncio.run(job())
