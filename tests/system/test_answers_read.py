"""A status that says 200 is no success: answers are read, on real sockets, in every transport and in a whole run."""

import asyncio
import gzip
import json
import re
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from answers import answers, as_grpc, as_http, corruptions, declared
from cli import loadgen
from in_memory import cuts, in_frames, over_grpc, over_http
from null_server import (
    GRPC_HEAD,
    GRPC_TRAILERS,
    HTTP_REPLY,
    INFER_REPLY,
    ScriptedGrpc,
    ScriptedHttp,
    frame,
    grpc_message,
    grpc_reply,
    serving,
)
from scripted import Scripted, http_reply
from told import Told

from loadgen.clock import MONOTONIC
from loadgen.records import Outcome, Request
from loadgen.target import parse_target
from loadgen.transport.grpc import GrpcTransport
from loadgen.transport.http import HttpTransport
from loadgen.transport.reference import ReferenceTransport
from loadgen.wire import kserve_grpc, kserve_http
from loadgen.wire.kserve_grpc import METHOD

DECLARED = {"y": ("FP32", (1, 16))}
BODY = HTTP_REPLY.partition(b"\r\n\r\n")[2]
JSON_SIZE = int(re.search(rb"Content-Length: (\d+)", HTTP_REPLY)[1])
BINARY = b"Inference-Header-Content-Length: %d" % JSON_SIZE
OTHER = BODY.replace(b"[1,16]", b"[2, 8]")  # as long, and no answer of this model


def as_json(**changes):
    output = {"name": "y", "datatype": "FP32", "shape": [1, 16], "data": [0.5] * 16} | changes
    return json.dumps({"model_name": "m", "outputs": [output]}).encode()


HTTP = {
    "a login page": (http_reply(200, b"<html>Please log in</html>"), "Please log in"),
    "nothing": (http_reply(200), "the body is empty"),
    "an error": (http_reply(200, b'{"error":"CUDA out of memory"}'), "CUDA out of memory"),
    "half a JSON": (http_reply(200, as_json()[:40]), "not a KServe v2 answer"),
    "a gzip body": (
        http_reply(200, gzip.compress(as_json()), b"Content-Encoding: gzip"),
        "'gzip' was not asked for",
    ),
    "another shape of its size": (http_reply(200, OTHER, BINARY), "declares FP32 [1, 16]"),
    "a short tensor": (http_reply(200, BODY[:-4], BINARY), "more than the reply holds"),
    "a long tensor": (http_reply(200, BODY + b"1234", BINARY), "after the last output"),
    "another type": (http_reply(200, as_json(datatype="INT32", data=[1] * 16)), "INT32"),
    "a page in chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nnope\r\n0\r\n\r\n",
        "nope",
    ),
    "zeros as long as an answer": (HTTP_REPLY[: -len(BODY)] + bytes(len(BODY)), "not a KServe v2 answer"),
}
GRPC = {
    "an empty message": (b"", "the message is empty"),
    "garbage": (b"\xde\xad\xbe\xef" * 4, "protobuf"),
    "a page": (b"<html>log in</html>", "log in"),
    "half a message": (INFER_REPLY[:40], "ends inside a field"),
    "another shape of its size": (
        INFER_REPLY.replace(b"\x02\x01\x10", b"\x02\x02\x08"),
        "declares FP32 [1, 16]",
    ),
    "no outputs": (pb.ModelInferResponse(model_name="m").SerializeToString(), "without outputs"),
    "as many zeros": (bytes(len(INFER_REPLY)), "outputs"),
}


def ask(make, serve, request, n):
    """Outcomes and details of n requests, one after the other."""

    async def job():
        async with serving(serve) as port:
            transport = make(port)
            told = Told()
            await transport.open(told, 1)
            prepared = transport.prepare(request)
            for token in range(n):
                told.send(transport, token, prepared)
                await told.wait(token + 1, timeout=10)
            replies = await told.wait(n, timeout=10)
            await transport.close()
            return [(reply.outcome, reply.detail) for reply in replies]

    return asyncio.run(job())


def http_request(**options):
    return Request("x", (), b"", check=partial(kserve_http.check_answer, DECLARED), **options)


GRPC_REQUEST = Request(METHOD, (), b"", check=partial(kserve_grpc.check_answer, DECLARED))


def in_turn(good, bad):
    """Good, bad and good ones: the third is known, whatever was between."""
    return [good, good, bad, good, bad, bad, good]


WRONG_AT = {2, 4, 5}


def judged(found, words):
    assert [outcome for outcome, _ in found] == [
        Outcome.PROTOCOL if n in WRONG_AT else Outcome.OK for n in range(7)
    ], found
    assert all(words in found[n][1] for n in WRONG_AT), found


@pytest.mark.parametrize("make", [HttpTransport, ReferenceTransport])
@pytest.mark.parametrize("case", HTTP)
def test_over_http_only_an_answer_is_a_success(case, make):
    bad, words = HTTP[case]
    replies, made = iter(in_turn(HTTP_REPLY, bad)), []
    found = ask(
        lambda port: make(parse_target(f"http://127.0.0.1:{port}"), MONOTONIC),
        lambda: ScriptedHttp(lambda link, _: link.write(next(replies)), made),
        http_request(),
        7,
    )
    judged(found, words)


@pytest.mark.parametrize("make", [GrpcTransport, ReferenceTransport])
@pytest.mark.parametrize("case", GRPC)
def test_over_grpc_only_an_answer_is_a_success(case, make):
    bad, words = GRPC[case]
    first = [b""] if make is ReferenceTransport else []  # the library asks whether the server lives
    replies, made = iter(first + in_turn(INFER_REPLY, bad)), []
    found = ask(
        lambda port: make(parse_target(f"grpc://127.0.0.1:{port}"), MONOTONIC),
        lambda: ScriptedGrpc(lambda link, sid: link.answer(sid, next(replies)), made),
        GRPC_REQUEST,
        7,
    )
    if make is GrpcTransport:
        judged(found, words)
    else:  # the official library does not parse some, and says so in its own words
        assert [n for n, (outcome, _) in enumerate(found) if outcome is not Outcome.OK] == sorted(WRONG_AT)


@pytest.mark.parametrize("size", [1, 7, 5000])
def test_an_answer_in_any_frames_is_read_alike(size):
    """Frames cut where they like; what follows a whole message is no answer any more."""
    message, made, asked = grpc_message(INFER_REPLY), [], []

    def reply(link, sid):
        asked.append(sid)
        data = message * (2 if len(asked) == 3 else 1)
        parts = [frame(0, 0, sid, data[at : at + size]) for at in range(0, len(data), size)]
        link.write(frame(1, 4, sid, GRPC_HEAD), *parts, frame(0, 0, sid), frame(1, 5, sid, GRPC_TRAILERS))

    found = ask(
        lambda port: GrpcTransport(parse_target(f"grpc://127.0.0.1:{port}"), MONOTONIC),
        lambda: ScriptedGrpc(reply, made),
        GRPC_REQUEST,
        4,
    )
    assert [o for o, _ in found] == [Outcome.OK, Outcome.OK, Outcome.PROTOCOL, Outcome.OK], found
    assert found[2][1] == "the answer is not one gRPC message"


@pytest.mark.parametrize("end", [b"Connection: close", b"X-Same: 1"])
def test_a_known_answer_is_no_reason_to_use_a_closed_connection(end):
    """Unread requests too: what the head says of the connection holds each time."""
    made = []
    body = b"ok"

    def reply(link, _):
        link.write(http_reply(200, body, end))
        if end == b"Connection: close":
            link.close()

    found = ask(
        lambda port: HttpTransport(parse_target(f"http://127.0.0.1:{port}"), MONOTONIC),
        lambda: ScriptedHttp(reply, made),
        Request("x", (), b""),
        5,
    )
    assert [outcome for outcome, _ in found] == [Outcome.OK] * 5
    assert len(made) == (5 if end == b"Connection: close" else 1)


CUTS = st.lists(st.integers(0, 400), max_size=3)
SENT = 6


@st.composite
def bodies(draw, make):
    """(fields, body) of answers to one request, with what the model declares: right ones and corrupted ones."""
    outputs = draw(answers())
    fields, body = make(outputs)
    found = []
    for _ in range(SENT):
        other, told = body, dict(fields)
        how = draw(st.sampled_from(["same", "same", "other content", "corrupted", "other fields"]))
        if how == "other content":
            told, other = make([(n, d, s, raw[::-1]) for n, d, s, raw in outputs])
        elif how == "corrupted":
            other = draw(corruptions(body))
        elif how == "other fields":
            told = draw(
                st.dictionaries(st.just("content-encoding"), st.sampled_from(["", "identity", "gzip"]))
                | st.builds(lambda n: {"inference-header-content-length": str(n)}, st.integers(0, len(body)))
            )
        found.append((told, other))
    return declared(outputs), found


def as_reply(fields, body, nth):
    """With a head of its own."""
    head = [f"{name}: {value}" for name, value in fields.items()]
    head += [f"Content-Length: {len(body)}", *([] if nth is None else [f"x-request-id: {nth}"])]
    return "\r\n".join(("HTTP/1.1 200 OK", *head, "", "")).encode() + body


def verdicts(check, found):
    return [
        Outcome.PROTOCOL if isinstance(check(fields, body), str) else Outcome.OK for fields, body in found
    ]


@given(bodies(as_http), st.lists(CUTS, min_size=SENT, max_size=SENT), st.booleans())
def test_over_http_the_verdict_is_that_of_reading_each_answer(given_, at, heads_change):
    """In one read, cut anywhere, and with a head that is never the same."""
    outputs, found = given_
    check = partial(kserve_http.check_answer, outputs)
    replies = [as_reply(*one, n if heads_change else None) for n, one in enumerate(found)]
    reads = [cuts(reply, where) for reply, where in zip(replies, at, strict=True)]
    assert over_http(Request("x", (), b"", check=check), reads) == verdicts(check, found)


@given(bodies(as_grpc), st.lists(CUTS, min_size=2 * SENT, max_size=2 * SENT))
def test_over_grpc_the_verdict_is_that_of_reading_each_answer(given_, at):
    """In one frame and read, or in frames and reads that are cut anywhere."""
    outputs, found = given_
    check = partial(kserve_grpc.check_answer, outputs)
    sent = [(in_frames(body, at[2 * n]), at[2 * n + 1]) for n, (_, body) in enumerate(found)]
    assert over_grpc(Request(METHOD, (), b"", check=check), sent) == verdicts(check, found)


class Counting:
    """How often a check was asked."""

    def __init__(self, check):
        self.check, self.asked = check, 0

    def __call__(self, *answer):
        self.asked += 1
        return self.check(*answer)


REPLY_HEAD = {"inference-header-content-length": str(JSON_SIZE)}


@pytest.mark.parametrize("heads_change", [False, True])
@pytest.mark.parametrize("at", [[], [len(BODY)], [1], [1, 30, 170]])
def test_an_answer_in_several_reads_or_with_a_head_of_its_own_is_decoded_once(at, heads_change):
    check = Counting(partial(kserve_http.check_answer, DECLARED))
    replies = [
        cuts(as_reply(REPLY_HEAD, BODY[:-1] + bytes([n]), n if heads_change else None), at) for n in range(50)
    ]
    assert over_http(Request("x", (), b"", check=check), replies) == [Outcome.OK] * 50
    assert check.asked == 1


@pytest.mark.parametrize("frames", [[], [60]])
@pytest.mark.parametrize("at", [[], [40], [1, 30, 100]])
def test_a_message_in_several_frames_or_reads_is_decoded_once(at, frames):
    """But for the first stream of 4096, which is decoded in any case."""
    check = Counting(partial(kserve_grpc.check_answer, DECLARED))
    sent = [(in_frames(INFER_REPLY[:-1] + bytes([n]), frames), at) for n in range(50)]
    assert over_grpc(Request(METHOD, (), b"", check=check), sent) == [Outcome.OK] * 50
    assert check.asked == 1


def test_what_is_known_of_one_length_of_the_json_is_not_of_another():
    """The same body is another answer when its head says where its JSON ends."""
    check = partial(kserve_http.check_answer, DECLARED)
    found = [
        (REPLY_HEAD, BODY),
        (REPLY_HEAD | {"inference-header-content-length": str(JSON_SIZE - 1)}, BODY),
    ] * 3
    found += [
        (REPLY_HEAD | {"content-encoding": "gzip"}, BODY),
        (REPLY_HEAD | {"content-encoding": ""}, BODY),
    ]
    replies = [cuts(as_reply(*one, n), [20]) for n, one in enumerate(found)]
    outcomes = [Outcome.OK, Outcome.PROTOCOL] * 3 + [Outcome.PROTOCOL, Outcome.OK]
    assert over_http(Request("x", (), b"", check=check), replies) == outcomes


PROFILE = """
name: read
kinds: {k: {model: m, timeout: 2s}}
phases: [{name: load, closed: {users: 2, requests: 40}}]
objectives: ["failure rate < 1%"]
"""


PAGE = b"<html><body>Please log in</body></html>"


def run(tmp_path, server, profile=PROFILE):
    path, out = tmp_path / "p.yaml", tmp_path / "run"
    path.write_text(profile)
    return loadgen("run", path, "--target", server.target, "--out", out, "--json", "-q")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_run_counts_what_is_no_answer_as_a_failure(protocol, tmp_path):
    """Of the 40 after the first request every even one from the sixth on is a page with status 200."""

    def fault(link, n, sid):
        if n < 6 or n % 2:
            return None
        link.write(http_reply(200, PAGE) if protocol == "http" else grpc_reply(sid, PAGE))
        return True

    with Scripted(protocol, fault) as server:
        done = run(tmp_path, server)
    total = done.json["total"]
    assert (total["counts"]["ok"], total["counts"]["failed"]) == (22, 18)
    [(kind, errors)] = total["errors"].items()
    assert (kind, errors["n"]) == ("protocol", 18)
    assert "log in" in errors["text"]
    assert done.json["slo"][0]["verdict"] == "fail"


def test_a_first_request_that_is_no_answer_refuses_the_run(tmp_path):
    with Scripted("http", lambda link, *_: link.write(http_reply(200, PAGE)) or True) as server:
        done = run(tmp_path, server)
    assert done.code == 3
    assert "Please log in" in done.err


PLAIN = """
name: plain
kinds: {k: {http: {path: /a/infer, json: {x: 1}SUCCESS}, timeout: 2s}}
phases: [{name: load, closed: {users: 2, requests: 20}}]
"""


@pytest.mark.parametrize(
    ("success", "ok", "said"),
    [("", 20, True), (", success: {status: [200]}", 20, True), (", success: {json: {path: $.y}}", 10, False)],
)
def test_a_plain_kind_says_when_only_the_status_was_judged(success, ok, said, tmp_path):
    """Every other answer after the first request is a page with status 200."""

    def fault(link, n, _):
        link.write(http_reply(200, b'{"y":1}' if n == 0 or n % 2 else PAGE))
        return True

    with Scripted("http", fault) as server:
        done = run(tmp_path, server, PLAIN.replace("SUCCESS", success))
    assert done.json["total"]["counts"]["ok"] == ok
    assert ("status_only" in {doubt["code"] for doubt in done.json["doubts"]}) == said
