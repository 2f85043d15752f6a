"""Streamed answers of the gRPC transport, against scripted servers and a real gRPC server."""

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from null_server import GRPC_TRAILERS, ScriptedGrpc, frame, grpc_message, serving
from streamed import ANSWER, EMPTY, LAST, data, head, refusal, response, trailers
from told import LOOPS, Told, until
from tritonclient.grpc import service_pb2 as pb

from loadgen.clock import MONOTONIC
from loadgen.records import LoadgenError, Outcome, Tensor
from loadgen.target import parse_target
from loadgen.transport.grpc import GrpcTransport
from loadgen.transport.reference import ReferenceTransport
from loadgen.wire.h2 import H2Connection
from loadgen.wire.kserve_grpc import infer_request, stream_infer_request

TENSORS = [Tensor("x", "FP32", (1, 16), bytes(64))]
REQUEST = stream_infer_request("m", "", TENSORS)


@pytest.fixture(params=sorted(LOOPS))
def run(request):
    return LOOPS[request.param]


@asynccontextmanager
async def talking(handle, *, hello=None):
    made = []
    async with serving(lambda: ScriptedGrpc(handle, made, hello)) as port:
        transport = GrpcTransport(parse_target(f"grpc://127.0.0.1:{port}"), MONOTONIC)
        told = Told()
        told.servers = made
        await transport.open(told, 1)
        try:
            yield transport, told
        finally:
            await transport.close()


async def ask(write, *, count=1, hello=None):
    """(reply, streamed) of `count` streams whose answers `write(connection, stream)` sends."""
    async with talking(write, hello=hello) as (transport, told):
        for token in range(count):
            told.send(transport, token, transport.prepare(REQUEST))
        replies = await told.wait(count)
        assert transport.in_flight == 0
    assert len(told.replies) == count
    return [(reply, told.streamed[reply.token]) for reply in replies]


CASES = {
    "five answers": ([ANSWER] * 5 + [EMPTY], GRPC_TRAILERS, Outcome.OK, 5, None),
    "no answer but the flag": ([EMPTY], GRPC_TRAILERS, Outcome.OK, 0, None),
    "answer and flag in one": ([LAST], GRPC_TRAILERS, Outcome.OK, 1, None),
    "trailers after the end do not matter": ([LAST], refusal(13, b"late"), Outcome.OK, 1, None),
    "no flag": (
        [ANSWER] * 2, GRPC_TRAILERS, Outcome.STREAM_ENDED_EARLY, 2,
        "the stream ended without a final response (after answers)",
    ),
    "nothing at all": (
        [], GRPC_TRAILERS, Outcome.STREAM_ENDED_EARLY, 0,
        "the stream ended without a final response (before any answer)",
    ),
    "failure inside": (
        [ANSWER, response(0, error="no more")], GRPC_TRAILERS, Outcome.GRPC_STATUS, 1,
        "no more (after answers)",
    ),
    "failure in the trailers": (
        [ANSWER], refusal(3, b"no such"), Outcome.GRPC_STATUS, 1, "no such (after answers)",
    ),
    "busy": ([], refusal(14, b"away"), Outcome.GRPC_STATUS, 0, "away (before any answer)"),
    "what makes no sense": (
        [ANSWER, b"\x0a"], GRPC_TRAILERS, Outcome.PROTOCOL, 1, "a broken protobuf varint (after answers)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("cutting", ["frames", "one frame", "bytes"])
def test_how_a_stream_ends_however_it_is_cut(run, case, cutting):
    """Field case 42.  Frames: each message in one; one frame: all in one; bytes: a frame for each byte."""
    messages, end, outcome, answers, words = CASES[case]

    def write(link, sid):
        link.write(head(sid))
        if cutting == "frames":
            link.write(data(sid, *messages))
        else:
            whole = b"".join(map(grpc_message, messages))
            pieces = [whole] if cutting == "one frame" else [whole[i : i + 1] for i in range(len(whole))]
            link.write(b"".join(frame(0, 0, sid, piece) for piece in pieces))
        link.write(trailers(sid, end))

    [(reply, streamed)] = run(ask(write))
    assert (reply.outcome, reply.detail) == (outcome, words)
    assert len(streamed.chunk_ns) == answers
    assert all(reply.sent_ns < at <= reply.done_ns for at in streamed.chunk_ns)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_cut_anywhere_on_the_wire(run, size):
    async def job():
        async def drip(link, whole):
            for at in range(0, len(whole), size):
                link.write(whole[at : at + size])
                await asyncio.sleep(0)

        tasks = []
        return await ask(
            lambda link, sid: tasks.append(
                asyncio.ensure_future(
                    drip(link, head(sid) + data(sid, ANSWER, ANSWER, EMPTY) + trailers(sid))
                )
            )
        )

    [(reply, streamed)] = run(job())
    assert reply.outcome is Outcome.OK
    assert len(streamed.chunk_ns) == 2


def test_the_request_is_one_message_that_ends_our_side(run):
    async def job():
        async with talking(lambda link, sid: link.write(head(sid), data(sid, EMPTY), trailers(sid))) as (transport, told):  # fmt: skip
            told.send(transport, 0, transport.prepare(REQUEST))
            await told.wait(1)
            kinds = [(kind, flags, payload) for kind, flags, sid, payload in told.servers[0].frames if sid]
        assert [kind for kind, _, _ in kinds] == [1, 0]
        assert b"ModelStreamInfer" in kinds[0][2]
        assert kinds[1][1] & 1
        assert kinds[1][2] == grpc_message(REQUEST.body)

    run(job())


def test_the_request_ends_at_the_flag_and_not_at_the_trailers(run):
    """The next request goes out while the server still holds the first stream; late trailers are no second end."""

    async def job():
        def handle(link, sid):
            if sid == 1:
                link.write(head(sid), data(sid, ANSWER, EMPTY))
            else:
                link.write(trailers(1), head(sid), data(sid, LAST, ANSWER), trailers(sid))  # and one too many

        async with talking(handle) as (transport, told):
            told.send(transport, 0, transport.prepare(REQUEST))
            await told.wait(1)
            assert transport.in_flight == 0
            told.send(transport, 1, transport.prepare(REQUEST))
            replies = await told.wait(2)
            assert [r.outcome for r in replies] == [Outcome.OK] * 2
            assert [len(told.streamed[t].chunk_ns) for t in (0, 1)] == [1, 1]
            assert transport.connections_opened == 1

    run(job())


def test_a_server_that_never_ends_its_streams_does_not_fill_the_connection(run):
    async def job():
        async with talking(lambda link, sid: link.write(head(sid), data(sid, EMPTY))) as (transport, told):
            prepared = transport.prepare(REQUEST)
            for token in range(700):
                told.send(transport, token, prepared)
                await told.wait(token + 1)
            server = told.servers[0]
            await until(lambda: sum(kind == 3 for kind, *_ in server.frames) >= 400)
            (link,) = transport._links
            assert len(link.h2.streams) <= 260
            assert told.outcomes == {"OK": 700}

    run(job())


def test_a_compressed_answer_and_one_that_is_not_whole(run):
    def compressed(link, sid):
        link.write(head(sid), data(sid, ANSWER), frame(0, 0, sid, b"\1" + grpc_message(ANSWER)[1:]), trailers(sid))  # fmt: skip

    def cut_off(link, sid):
        link.write(head(sid), data(sid, ANSWER), frame(0, 0, sid, grpc_message(ANSWER)[:-1]), trailers(sid))

    [(reply, streamed)] = run(ask(compressed))
    assert (reply.outcome, len(streamed.chunk_ns)) == (Outcome.PROTOCOL, 1)
    assert reply.detail.startswith("an answer is compressed")
    [(reply, streamed)] = run(ask(cut_off))
    assert (reply.outcome, len(streamed.chunk_ns)) == (Outcome.PROTOCOL, 1)
    assert reply.detail.startswith("the stream ended inside a message")


def test_a_connection_that_ends_and_a_stream_that_is_reset(run):
    def hangs_up(link, sid):
        link.write(head(sid), data(sid, ANSWER, ANSWER))
        link.close()

    def resets(link, sid):
        link.write(head(sid), data(sid, ANSWER), frame(3, 0, sid, b"\0\0\0\2"))

    for write, answers in ((hangs_up, 2), (resets, 1)):
        [(reply, streamed)] = run(ask(write))
        assert (reply.outcome, len(streamed.chunk_ns)) == (Outcome.STREAM_ENDED_EARLY, answers)
        assert reply.detail.endswith("(after answers)" if answers else "(before any answer)")


def test_a_stream_that_was_refused_unprocessed_is_asked_for_again(run):
    def handle(link, sid):
        if sid == 1:
            link.write(frame(3, 0, sid, b"\0\0\0\7"))
        else:
            link.write(head(sid), data(sid, ANSWER, LAST), trailers(sid))

    [(reply, streamed)] = run(ask(handle))
    assert (reply.outcome, len(streamed.chunk_ns)) == (Outcome.OK, 2)


def test_given_up_it_tells_what_came(run):
    async def job():
        async with talking(lambda link, sid: link.write(head(sid), data(sid, ANSWER, ANSWER))) as (transport, told):  # fmt: skip
            told.send(transport, 0, transport.prepare(REQUEST))
            await until(lambda: transport.flying[0].body.reader.streamed().chunk_ns)
            transport.cancel(0, Outcome.CANCELLED)
            [reply] = await told.wait(1)
            assert reply.outcome is Outcome.CANCELLED
            assert reply.detail.endswith("(after answers)")
            assert len(told.streamed[0].chunk_ns) == 2
            await until(lambda: (3, 0, 1) in [f[:3] for f in told.servers[0].frames])

    run(job())


def test_what_was_never_sent_is_told_too(run):
    async def job():
        hello = frame(4, 0, 0, b"\0\3\0\0\0\1")  # one stream at a time
        async with talking(lambda link, sid: None, hello=hello) as (transport, told):
            for token in range(2):
                told.send(transport, token, transport.prepare(REQUEST))
            transport.cancel(1, Outcome.TIMEOUT)
            [reply] = await told.wait(1)
            assert (reply.token, reply.sent_ns, told.streamed[1].chunk_ns) == (1, 0, [])
            await transport.close()
            told.send(transport, 2, transport.prepare(REQUEST))
            await told.wait(3)
            assert told.streamed.keys() == {0, 1, 2}
            assert told.outcomes == {"TIMEOUT": 1, "CANCELLED": 1, "CLIENT": 1}

    run(job())


def test_unary_calls_beside_streams(run):
    plain = infer_request("m", "", TENSORS)

    async def job():
        def handle(link, sid):
            if sid % 4 == 1:
                link.write(head(sid), data(sid, ANSWER, ANSWER, EMPTY), trailers(sid))
            else:
                link.answer(sid)

        async with talking(handle) as (transport, told):
            stream, unary = transport.prepare(REQUEST), transport.prepare(plain)
            for token in range(100):
                told.send(transport, token, unary if token % 2 else stream)
            await told.wait(100)
        assert told.outcomes == {"OK": 100}
        assert sorted(told.streamed) == list(range(0, 100, 2))
        assert {len(s.chunk_ns) for s in told.streamed.values()} == {2}

    run(job())


@contextmanager
def real_server(stream):
    """grpcio's own server, ModelStreamInfer by the official messages; gives its port."""
    import grpc

    method = grpc.stream_stream_rpc_method_handler(
        stream, pb.ModelInferRequest.FromString, pb.ModelStreamInferResponse.SerializeToString
    )
    server = grpc.server(ThreadPoolExecutor(40))
    name = "inference.GRPCInferenceService"
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(name, {"ModelStreamInfer": method})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def answering(requests, context):
    """As many answers as the request's id says, of as many bytes as its version says."""
    for request in requests:
        count, size = int(request.id), int(request.model_version)
        for _ in range(count):
            yield pb.ModelStreamInferResponse.FromString(response(raw=bytes(size)))
        yield pb.ModelStreamInferResponse.FromString(EMPTY)


def wanting(count, size):
    return stream_infer_request("m", str(size), TENSORS, request_id=str(count))


def test_many_streams_of_a_real_server_on_one_connection(run):
    counts = [token % 13 for token in range(200)]

    async def job(port):
        transport = GrpcTransport(parse_target(f"grpc://127.0.0.1:{port}"), MONOTONIC)
        await transport.open(told := Told(), 1)
        for token, count in enumerate(counts):
            told.send(transport, token, transport.prepare(wanting(count, 64)))
        await told.wait(len(counts), timeout=30)
        assert told.outcomes == {"OK": 200}
        assert [len(told.streamed[token].chunk_ns) for token in range(200)] == counts
        assert transport.connections_opened == 1
        await transport.close()

    with real_server(answering) as port:
        run(job(port))


def test_long_streams_get_their_windows_back(run, monkeypatch):
    """20 MB through windows of 128 KiB: the server would stop if what was read were not given back."""
    init = H2Connection.__init__
    monkeypatch.setattr(
        H2Connection, "__init__",
        lambda self, blocks: init(self, blocks, our_window=2**17, stream_window=2**17),
    )  # fmt: skip

    async def job(port):
        transport = GrpcTransport(parse_target(f"grpc://127.0.0.1:{port}"), MONOTONIC)
        await transport.open(told := Told(), 1)
        for token in range(4):
            told.send(transport, token, transport.prepare(wanting(50, 100_000)))
        replies = await told.wait(4, timeout=30)
        assert told.outcomes == {"OK": 4}, replies
        assert {len(s.chunk_ns) for s in told.streamed.values()} == {50}
        assert all(r.bytes_in > 50 * 100_000 for r in replies)
        await transport.close()

    with real_server(answering) as port:
        run(job(port))


def test_a_real_server_sees_the_call_given_up(run):
    gone = threading.Event()

    def endless(requests, context):
        context.add_callback(gone.set)
        next(requests)
        yield pb.ModelStreamInferResponse.FromString(ANSWER)
        gone.wait(10)

    async def job(port):
        transport = GrpcTransport(parse_target(f"grpc://127.0.0.1:{port}"), MONOTONIC)
        await transport.open(told := Told(), 1)
        told.send(transport, 0, transport.prepare(REQUEST))
        await until(lambda: transport.flying[0].body.reader.streamed().chunk_ns)
        transport.cancel(0, Outcome.TIMEOUT)
        [reply] = await told.wait(1)
        assert reply.outcome is Outcome.TIMEOUT
        await until(gone.is_set)
        await transport.close()

    with real_server(endless) as port:
        run(job(port))


def test_the_reference_transport_says_that_it_reads_no_streams():
    with pytest.raises(LoadgenError, match="the reference transport reads no streamed answers"):
        ReferenceTransport(parse_target("grpc://127.0.0.1:1"), MONOTONIC).prepare(REQUEST)
