"""Servers that break, through the whole product: nothing hangs, nothing is lost from the count, everything has a name.

Each run is 120 arrivals at 400/s and then 4 users with 40 requests.  The faults fall into the first phase, so
the second one shows that the run goes on.
"""

import asyncio
import json
import os
import signal
import threading
import time
from collections import Counter

import pyarrow as pa
import pytest

from loadgen.records import Outcome
from tests.support.cli import loadgen
from tests.support.scripted import (
    GRPC_HEAD,
    GRPC_TRAILERS,
    HTTP_REPLY,
    INFER_REPLY,
    Scripted,
    frame,
    goaway,
    grpc_message,
    http_reply,
    refused,
    trailers,
    u32,
)
from tests.support.tls import Authority

PROFILE = """
name: faults
kinds:
  k: {model: m, timeout: 800ms}
phases:
  - {name: load, open: {arrivals: uniform, rate: [{duration: 300ms, at: 400/s}]}}
  - {name: after, closed: {users: 4, requests: 40}}
"""
MANY_USERS = PROFILE.replace("users: 4", "users: 20")  # who wait together, where each has to wait long
PLANNED = {"load": 120, "after": 40}
CLOSED_LIST = {outcome.name for outcome in Outcome}


class Ran:
    """A finished run: rows of its records by phase, the summary, the exit code."""

    def __init__(self, answer, folder):
        self.code, self.summary = answer.code, answer.json
        rows = pa.ipc.open_stream((folder / "records.arrow").read_bytes()).read_all().to_pylist()
        self.rows = {name: [row for row in rows if row["phase"] == name] for name in PLANNED}

    def outcomes(self, phase):
        return Counter(row["outcome"].upper() for row in self.rows[phase])

    def details(self, outcome):
        return {
            row["detail"] for rows in self.rows.values() for row in rows if row["outcome"].upper() == outcome
        }


@pytest.fixture
def run(tmp_path):
    """Runs the profile against a server; checks what holds of every run, whatever the server does."""

    def go(server, *options, profile=PROFILE, limit_s=10, codes=(0, 3)):
        path, out = tmp_path / "p.yaml", tmp_path / "run"
        path.write_text(profile)
        hung = threading.Timer(limit_s, os.kill, (os.getpid(), signal.SIGINT))
        hung.start()
        began = time.monotonic()
        try:
            answer = loadgen("run", path, "--target", server.target, "--out", out, "--json", "-q", *options)
        finally:
            hung.cancel()
        assert time.monotonic() - began < limit_s
        assert answer.code in codes, answer.err
        ran = Ran(answer, out)
        check(ran)
        return ran

    return go


def check(ran):
    phases = {phase["name"]: phase["counts"] for phase in ran.summary["phases"]}
    for name, planned in PLANNED.items():
        rows, counts = ran.rows[name], phases[name]
        assert sorted(row["seq"] for row in rows) == list(range(planned)), "each arrival ended, once"
        told = ran.outcomes(name)
        assert set(told) <= CLOSED_LIST - {"CLIENT"}
        assert counts["planned"] == planned
        assert (counts["ok"], counts["rejected"], counts["timeout"], counts["dropped"]) == (
            told["OK"], told["REJECTED"], told["TIMEOUT"], told["DROPPED"],
        )  # fmt: skip
        assert sum(counts[k] for k in ("ok", "failed", "rejected", "timeout", "dropped")) == planned
        for row in rows:
            came = [row["due_ns"], row["sent_ns"], row["first_ns"], row["done_ns"]]
            came = [ns for ns in came if ns is not None]
            assert came == sorted(came), row
            good = row["outcome"].upper() == "OK"
            assert good or row["detail"], "no failure without words"
            assert not good or (row["detail"] is None and len(came) == 4)
            assert row["sent_ns"] is not None or row["outcome"].upper() in ("CONNECT", "TIMEOUT", "REJECTED")
    assert ran.summary["run"]


def some(then):
    """A script: `then` for every third inference from the 20th to the 79th, 20 in all."""

    def fault(link, n, stream):
        return (then(link, stream) or True) if 20 <= n < 80 and n % 3 == 0 else None

    return fault


def later(delay_s, call, *args):
    asyncio.get_running_loop().call_later(delay_s, call, *args)


def half(link, *pieces):
    link.write(*pieces)
    link.transport.write_eof()


def reset(link, *pieces):
    """Bytes, then a reset once they have left."""
    link.write(*pieces)
    later(0.005, link.transport.abort)


# what the server does to an inference; the outcome; what its words have in them
HTTP = {
    "reset mid-reply": (lambda link, _: reset(link, http_reply(200, bytes(50))[:-9]), "STREAM_ENDED_EARLY", "within the answer"),
    "half-close mid-reply": (lambda link, _: half(link, http_reply(200, bytes(50))[:-9]), "STREAM_ENDED_EARLY", "within the answer"),
    "half-close after 20 ms": (lambda link, _: later(0.02, half, link), "CONNECTION", "before the answer began"),
    "work, then close": (lambda link, _: later(0.05, link.transport.close), "CONNECTION", "before the answer began"),
    "work, then reset": (lambda link, _: later(0.05, link.transport.abort), "CONNECTION", "before the answer began"),
    "stall": (lambda *_: None, "TIMEOUT", "given up before the answer began"),
    "stall mid-reply": (lambda link, _: link.write(http_reply(200, bytes(50))[:-9]), "TIMEOUT", "given up within the answer"),
    "garbage": (lambda link, _: link.write(b"\x16\x03\x01\x02\0\xff what is this"), "PROTOCOL", "not an HTTP/1 reply"),
    "Content-Length too long": (lambda link, _: half(link, b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nabc"), "STREAM_ENDED_EARLY", "within the answer"),
    "broken chunks": (lambda link, _: link.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "PROTOCOL", "chunked"),
    "503 from a proxy": (lambda link, _: link.write(http_reply(503, b"<h1>503</h1> No server is available")), "HTTP_5XX", "No server"),
    "503 flood": (lambda link, _: link.write(http_reply(503, b'{"error":"exceeds maximum queue size"}')), "REJECTED", "exceeds maximum queue size"),
}  # fmt: skip


def head(stream):
    return frame(1, 4, stream, GRPC_HEAD)


GRPC = {
    "reset mid-reply": (lambda link, sid: link.write(head(sid), frame(3, 0, sid, u32(2))), "STREAM_ENDED_EARLY", "INTERNAL_ERROR"),
    "connection reset mid-reply": (lambda link, sid: reset(link, head(sid)), "STREAM_ENDED_EARLY", "before the answer did"),
    "half-close": (lambda link, sid: half(link, head(sid)), "STREAM_ENDED_EARLY", "before the answer did"),
    "work, then close": (lambda link, _: later(0.05, link.transport.close), "CONNECTION", "before the answer did"),
    "stall": (lambda *_: None, "TIMEOUT", "given up before the answer began"),
    "stall mid-reply": (lambda link, sid: link.write(head(sid), frame(0, 0, sid, b"\0")), "TIMEOUT", "given up within the answer"),
    "garbage": (lambda link, _: link.write(b"\xff" * 60), "PROTOCOL", "bytes"),
    "garbage header block": (lambda link, sid: link.write(frame(1, 4, sid, b"\xff\xff\xff\xff\xff\xff")), "PROTOCOL", "header block"),
    "RESOURCE_EXHAUSTED flood": (lambda link, sid: link.write(refused(sid, 8, b"too many")), "REJECTED", "too many"),
    "GOAWAY, then the end": (lambda link, sid: reset(link, goaway(sid, 2, b"out of luck")), "CONNECTION", "out of luck"),
}  # fmt: skip
# one broken connection takes the calls beside it along
SHARED = {"connection reset mid-reply", "half-close", "work, then close", "garbage", "garbage header block",
          "GOAWAY, then the end"}  # fmt: skip
# these leave the connection, or the calls beside them, alone: all of them in one run
MANY = {
    "http": {
        "garbage in the head": (lambda link, _: link.write(b"HTTP/1.1 200 OK\r\nA b c\r\n\r\n"), "PROTOCOL", "malformed header"),
        "Content-Length too long, kept open": (lambda link, _: link.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nabc"), "TIMEOUT", "given up within the answer"),
        "Content-Length no number": (lambda link, _: link.write(b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\nabc"), "PROTOCOL", "Content-Length"),
        "503 with retry-after": (lambda link, _: link.write(http_reply(503, b"later", b"Retry-After: 1")), "REJECTED", "later"),
        "429 flood": (lambda link, _: link.write(http_reply(429)), "REJECTED", "HTTP 429"),
        "500": (lambda link, _: link.write(http_reply(500, b"boom")), "HTTP_5XX", "boom"),
        "404": (lambda link, _: link.write(http_reply(404, b'{"error":"no such model"}')), "HTTP_4XX", "no such model"),
        "redirect": (lambda link, _: link.write(http_reply(302, b"", b"Location: /x")), "PROTOCOL", "redirected to /x"),
    },
    "grpc": {
        "message without trailers": (lambda link, sid: link.write(head(sid), frame(0, 1, sid, grpc_message(INFER_REPLY))), "STREAM_ENDED_EARLY", "without a grpc-status"),
        "no message": (lambda link, sid: link.write(head(sid), frame(1, 5, sid, GRPC_TRAILERS)), "PROTOCOL", "no message"),
        "UNAVAILABLE flood": (lambda link, sid: link.write(refused(sid, 14, b"exceeds maximum queue size")), "REJECTED", "exceeds maximum queue size"),
        "ENHANCE_YOUR_CALM": (lambda link, sid: link.write(frame(3, 0, sid, u32(11))), "REJECTED", "ENHANCE_YOUR_CALM"),
        "UNAVAILABLE from a proxy": (lambda link, sid: link.write(refused(sid, 14, b"no healthy upstream")), "GRPC_STATUS", "no healthy upstream"),
        "message too large": (lambda link, sid: link.write(refused(sid, 8, b"Received message larger than max (5 vs. 4)")), "GRPC_STATUS", "larger than max"),
        "INTERNAL": (lambda link, sid: link.write(head(sid), frame(1, 5, sid, trailers(13, b"boom"))), "GRPC_STATUS", "boom"),
        "DEADLINE_EXCEEDED": (lambda link, sid: link.write(refused(sid, 4, b"")), "TIMEOUT", "DEADLINE_EXCEEDED"),
        "HTTP 502 from a gateway": (lambda link, sid: link.write(frame(1, 5, sid, b"\x48\x03502")), "HTTP_5XX", "HTTP 502"),
    },
}  # fmt: skip
CASES = [("http", name, *case) for name, case in HTTP.items()] + [
    ("grpc", name, *case) for name, case in GRPC.items()
]


@pytest.mark.parametrize(
    ("protocol", "name", "fault", "outcome", "words"), CASES, ids=[f"{c[0]}: {c[1]}" for c in CASES]
)
def test_a_fault_is_counted_named_and_survived(run, protocol, name, fault, outcome, words):
    with Scripted(protocol, some(fault), until_asked=True) as server:
        ran = run(server)
    told = ran.outcomes("load")
    if name in SHARED and protocol == "grpc":  # of the calls beside it some had no answer yet
        assert {"OK", outcome} <= set(told) <= {"OK", outcome, "CONNECTION"}
        assert told[outcome] >= 5
    else:
        assert set(told) == {"OK", outcome}
        assert told[outcome] == 20
    assert all(words in detail for detail in ran.details(outcome)), ran.details(outcome)
    assert ran.outcomes("after") == {"OK": 40}
    assert (ran.code, ran.summary["valid"]) == (3, False), "a sixth of the answers failed"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_many_faults_in_one_run_are_told_apart(run, protocol):
    cases = list(MANY[protocol].values())

    def fault(link, n, stream):
        if not 20 <= n < 20 + 10 * len(cases):
            return None
        return cases[n % len(cases)][0](link, stream) or True

    with Scripted(protocol, fault) as server:
        ran = run(server)
    expected = Counter()
    for _, outcome, words in cases:
        expected[outcome] += 10
        assert any(words in detail for detail in ran.details(outcome)), words
    assert ran.outcomes("load") == expected | {"OK": 120 - sum(expected.values())}
    assert ran.outcomes("after") == {"OK": 40}
    assert ran.code == 3


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_one_byte_a_packet_is_an_answer_like_any_other(run, protocol):
    def fault(link, n, stream):
        return (link.drip(link.good(stream)) or True) if n % 40 == 5 else None

    with Scripted(protocol, fault) as server:
        ran = run(server)
    assert (ran.outcomes("load"), ran.outcomes("after")) == ({"OK": 120}, {"OK": 40})
    assert server.connections <= (3 if protocol == "grpc" else 40)


def test_an_answer_longer_than_its_length_costs_the_connection_alone(run):
    with Scripted("http", some(lambda link, _: link.write(HTTP_REPLY, b"and more"))) as server:
        ran = run(server)
    assert (ran.outcomes("load"), ran.outcomes("after")) == ({"OK": 120}, {"OK": 40})


def test_tiny_windows(run):
    """A server that takes 7 bytes of a message, and then 5 more for each frame: slow, and nothing else."""
    with Scripted("grpc", sips=7) as server:
        ran = run(server)
    assert (ran.outcomes("load"), ran.outcomes("after")) == ({"OK": 120}, {"OK": 40})


def test_a_server_that_reads_slowly(run):
    """HTTP has no windows but TCP's."""

    def fault(link, n, _):
        if n % 4 == 1:
            link.transport.pause_reading()
            later(0.02, link.transport.resume_reading)

    with Scripted("http", fault) as server:
        ran = run(server)
    assert (ran.outcomes("load"), ran.outcomes("after")) == ({"OK": 120}, {"OK": 40})


def test_a_connection_that_ends_over_a_request_that_was_read_is_a_failure(run):
    """The server read the request and ended the connection: it may have worked on it, so it is not sent again."""

    def fault(link, n, _):
        served = link.__dict__.setdefault("served", [])
        served.append(n)
        if len(served) > 1 and n > 20 and n % 5 == 0:
            link.transport.abort()
            return True
        return None

    with Scripted("http", fault) as server:
        ran = run(server)
    lost = ran.outcomes("load")["CONNECTION"]
    assert ran.outcomes("load") == {"OK": 120 - lost, "CONNECTION": lost}
    assert 10 <= lost <= 24
    assert server.inferences == 1 + 160
    assert ran.summary["total"]["errors"]["connection"]["different_texts"] == 1


@pytest.mark.parametrize("last", ["nothing", "everything"])
def test_storms_of_goaways(run, last):
    """Calls that the server did not take are sent again, those that it took are answered: no failure at all."""

    def fault(link, n, stream):
        if not 20 <= n < 60 or n % 2:
            return None
        if last == "everything":
            link.write(goaway(stream))
            return None
        return link.write(goaway(0)) or True

    with Scripted("grpc", fault) as server:
        ran = run(server)
    assert ran.outcomes("load")["OK"] >= 115
    assert set(ran.outcomes("load")) <= {"OK", "CONNECTION"}
    assert ran.outcomes("after") == {"OK": 40}
    assert 4 <= server.connections < 60
    assert last == "everything" or server.inferences > 161, "what was not taken is sent again"


def test_nothing_but_goaways_ends_too(run):
    with Scripted("grpc", lambda link, n, _: (link.write(goaway(0)) or True) if n else None) as server:
        ran = run(server, profile=MANY_USERS)
    assert "CONNECT" in ran.outcomes("load")
    assert set(ran.outcomes("load") | ran.outcomes("after")) <= {"CONNECT", "CONNECTION"}
    assert server.connections < 200
    assert ran.code == 3


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_server_that_restarts(run, protocol):
    def fault(link, n, _):
        if n == 40:
            later(0.03, link.server.restart, 0.1)
            return True
        return None

    with Scripted(protocol, fault) as server:
        # a question to the server's counters that falls into the restart may wait its whole 30 s
        ran = run(server, limit_s=60)
    told = ran.outcomes("load")
    assert {"OK", "CONNECTION"} <= set(told) <= {"OK", "CONNECT", "CONNECTION"}
    assert told["OK"] >= 40
    assert 1 <= told["CONNECTION"] <= 10
    assert ran.details("CONNECT") <= {"connection refused", "connection reset"}
    assert ran.outcomes("after") == {"OK": 40}
    assert ran.code == 3


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_server_that_never_comes_back(run, protocol):
    def fault(link, n, _):
        if n == 40:
            link.server.restart(3600)
            return True
        return None

    with Scripted(protocol, fault) as server:
        ran = run(server, profile=MANY_USERS, limit_s=20)
    assert set(ran.outcomes("after")) == {"CONNECT"}
    assert 39 <= ran.outcomes("load")["OK"] <= 41
    assert (ran.code, ran.summary["valid"]) == (3, False)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tls_that_breaks(run, protocol, authority):
    """Bytes that are no TLS record, in the middle of a connection."""

    def fault(link, _):
        record = b"\x17\x03\x03\x00\x20" + bytes(32)
        later(0.02, lambda: link.transport._ssl_protocol._transport.write(record))

    tls = authority.server_context(authority.issue("loopback"))
    with Scripted(protocol, some(fault), tls=tls) as server:
        ran = run(server, "--cacert", authority.cacert)
    told = ran.outcomes("load")
    assert set(told) == {"OK", "CONNECTION"}
    assert told["CONNECTION"] >= 10
    assert ran.outcomes("after") == {"OK": 40}
    assert ran.code == 3


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_certificate_that_changes_for_the_worse(run, protocol, authority, tmp_path_factory):
    other = Authority(tmp_path_factory.mktemp("other"))
    bad = other.server_context(other.issue("loopback"))

    def fault(link, n, _):
        if n == 60:
            link.server.restart(0.02, tls=bad)
            return True
        return None

    with Scripted(protocol, fault, tls=authority.server_context(authority.issue("loopback"))) as server:
        ran = run(server, "--cacert", authority.cacert, profile=MANY_USERS, limit_s=20)
    assert set(ran.outcomes("after")) == {"CONNECT"}
    assert any("certificate is not accepted" in detail for detail in ran.details("CONNECT"))
    assert ran.outcomes("load")["OK"] >= 55
    assert ran.code == 3


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_host_of_ones_own_reaches_every_request(run, protocol):
    """Gateways route by it."""
    with Scripted(protocol) as server:
        ran = run(server, "-H", "Host: model.example.org")
    assert (ran.outcomes("load"), ran.outcomes("after")) == ({"OK": 120}, {"OK": 40})
    assert set(server.hosts) == {"model.example.org"}
    assert len(server.hosts) > 165
    assert json.dumps(ran.summary).count("model.example.org") == 0


FULL = "k: {model: m, timeout: 800ms, full: {status: [%d], words: [Try Again]}}"
SAID = {
    "http": (503, lambda link, words: link.write(http_reply(503, words))),
    "grpc": (13, lambda link, words, sid: link.write(refused(sid, 13, words))),
}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(("words", "full"), [(b"please try again", True), (b"it broke", False)])
def test_a_profile_says_which_failures_mean_a_full_queue(run, protocol, words, full):
    status, answer = SAID[protocol]
    failure = "HTTP_5XX" if protocol == "http" else "GRPC_STATUS"

    def fault(link, sid):
        return answer(link, words) if protocol == "http" else answer(link, words, sid)

    with Scripted(protocol, some(fault), until_asked=True) as server:
        ran = run(server, profile=PROFILE.replace("k: {model: m, timeout: 800ms}", FULL % status))
    assert ran.outcomes("load") == {"OK": 100, "REJECTED" if full else failure: 20}
    counts = ran.summary["total"]["counts"]
    assert (counts["failed"], counts["rejected"]) == ((0, 20) if full else (20, 0))


@pytest.mark.parametrize(("words", "outcome"), [("", "failed"), ("Exceeds maximum queue size", "rejected")])
def test_a_failure_rate_counts_an_outage_and_not_a_full_queue(run, words, outcome):
    """20 of 120 are answered with UNAVAILABLE: an objective on failures is missed only by an outage."""
    objective = 'objectives: ["failure rate < 1%"]\n'
    fault = some(lambda link, sid: link.write(refused(sid, 14, words.encode())))
    with Scripted("grpc", fault, until_asked=True) as server:
        ran = run(server, profile=PROFILE + objective, codes=(1, 3))
    assert ran.summary["total"]["counts"][outcome] == 20
    (objective_row,) = ran.summary["slo"]
    assert objective_row["observed"] == (20 / 120 if outcome == "failed" else 0)  # of the phase that has them
    assert (objective_row["verdict"] == "fail") == (outcome == "failed")
    hints = {doubt["code"]: doubt["hint"] for doubt in ran.summary["doubts"]}
    assert ("ask for less" in hints.get("rejected", "")) == (outcome == "rejected")
    assert ("outage" in hints.get("failures", "")) == (outcome == "failed")
