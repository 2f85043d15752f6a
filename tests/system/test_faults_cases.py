"""Field cases of servers and clocks that misbehave, through the whole product over real sockets."""

import asyncio
import json
import time

import numpy as np
import pyarrow as pa
import pytest
from tritonclient.grpc import service_pb2 as pb

from loadgen.clock import MONOTONIC
from loadgen.engine.loop import Engine, Shot
from loadgen.engine.pacer import make_pacer
from loadgen.records import Plan, Request
from loadgen.transport.null import NullTransport
from tests.support.cli import loadgen
from tests.support.kserve_mock import Mock
from tests.support.scripted import GRPC_HEAD, Scripted, frame, grpc_message, refused, trailers
from tests.support.virtual import Rows, VirtualServer, open_phase, play, run_virtual

MS, S = 10**6, 10**9
PHASE = "  - {name: %s, open: {arrivals: uniform, rate: [{duration: %s, at: %s}]}}\n"


@pytest.fixture
def run(tmp_path):
    """Gives (answer, summary, rows)."""

    def go(text, server, *options):
        path, out = tmp_path / "p.yaml", tmp_path / "run"
        path.write_text(text)
        answer = loadgen("run", path, "--target", server.target, "--out", out, "--json", "-q", *options)
        rows = pa.ipc.open_stream((out / "records.arrow").read_bytes()).read_all().to_pylist()
        return answer, answer.json, rows, out

    return go


def profile(*phases, timeout="5s", more=""):
    return f"name: t\nkinds:\n  k: {{model: m, timeout: {timeout}}}\n{more}phases:\n" + "".join(phases)


# -- case 11 -------------------------------------------------------------------------------------------------------


def test_an_answer_above_grpcs_usual_4_mb_is_taken(run):
    """Case 11: 5 MB and 64 MB answers need no option."""
    sizes, sent = {1: 5 << 20, 2: 64 << 20}, []

    def fault(link, n, sid):
        answer = pb.ModelInferResponse(model_name="m", raw_output_contents=[bytes(sizes.get(n, 64))])
        answer.outputs.add(name="y", datatype="UINT8", shape=[1, sizes.get(n, 64)])
        message = grpc_message(answer.SerializeToString())
        sent.append(len(message))
        cut = [message[at : at + (1 << 20)] for at in range(0, len(message), 1 << 20)]
        link.write(
            frame(1, 4, sid, GRPC_HEAD),
            *(frame(0, 0, sid, one) for one in cut),
            frame(1, 5, sid, trailers(0)),
        )
        return True

    with Scripted("grpc", fault, output=("TYPE_UINT8", -1)) as server:
        _, summary, rows, _ = run(
            profile("  - {name: load, closed: {users: 1, requests: 3}}\n", timeout="20s"), server
        )
    assert summary["total"]["counts"]["ok"] == 3
    assert min(sent[1:3]) > 5 << 20
    assert [row["bytes_in"] for row in sorted(rows, key=lambda row: row["seq"])] == sent[1:]


def test_a_servers_own_size_limit_is_told_with_its_sizes(run):
    """Case 11: RESOURCE_EXHAUSTED keeps the server's words."""
    words = b"Received message larger than max (5000047 vs. 4194304)"

    def fault(link, n, sid):
        return (link.write(refused(sid, 8, words)) or True) if n else None

    with Scripted("grpc", fault) as server:
        answer, summary, _, out = run(profile("  - {name: load, closed: {users: 1, requests: 5}}\n"), server)
    error = summary["total"]["errors"]["grpc_status"]
    assert (error["n"], error["text"]) == (5, words.decode())
    assert "5000047 vs. 4194304" in loadgen("report", out).out
    assert answer.code == 3


# -- case 18 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_full_queue_is_rejection_apart_from_errors_and_never_asked_again(run, protocol):
    """Case 18: one in service for 20 ms, one in the queue, the rest refused in no time; per load step."""
    words = "Exceeds maximum queue size"

    class Queue:
        until = 0.0

    def fault(link, n, stream):
        loop = asyncio.get_running_loop()
        now = loop.time()
        free = max(Queue.until, now)
        if n and free - now > 0.02:
            if protocol == "http":
                body = json.dumps({"error": words}).encode()
                link.write(b"HTTP/1.1 503 X\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            else:
                link.write(refused(stream, 14, words.encode()))
            return True
        Queue.until = free + 0.02
        loop.call_at(Queue.until, lambda: link.write(link.good(stream)))
        return True

    with Scripted(protocol, fault) as server:
        _, summary, rows, _ = run(
            profile(PHASE % ("calm", "1s", "20/s"), PHASE % ("rush", "1s", "150/s")), server
        )
    calm, rush = (phase["counts"] for phase in summary["phases"])
    assert server.inferences == 1 + 20 + 150, "what was refused is not asked again"
    assert calm["rejected"] <= 3
    assert 75 <= rush["rejected"] <= 125
    assert rush["ok"] + rush["rejected"] == 150
    assert rush["failed"] == 0
    error = summary["phases"][1]["errors"]["rejected"]
    assert (error["n"], error["text"]) == (rush["rejected"], words)
    good = [
        row["done_ns"] - row["due_ns"]
        for row in rows
        if row["phase"] == "rush" and row["outcome"].lower() == "ok"
    ]
    latency = summary["phases"][1]["latency_ns"]
    assert latency["n"] == len(good)
    assert latency["p50"] >= 19 * MS, "quick refusals are in no percentile"


# -- case 44 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_timeouts_are_a_class_with_their_value_and_their_own_times(run, protocol):
    """Case 44: never answers, and answers with an error after a while."""

    def fault(link, n, stream):
        if n % 4 == 1:
            return True
        if n % 4 == 3:
            told = (
                b"HTTP/1.1 524 X\r\nContent-Length: 0\r\n\r\n"
                if protocol == "http"
                else refused(stream, 13, b"late")
            )
            asyncio.get_running_loop().call_later(0.1, link.write, told)
            return True
        return None

    with Scripted(protocol, fault) as server:
        answer, summary, rows, out = run(
            profile("  - {name: load, closed: {users: 4, requests: 40}}\n", timeout="250ms"), server
        )
    total = summary["total"]
    late = "http_5xx" if protocol == "http" else "grpc_status"
    assert set(total["errors"]) == {"timeout", late}
    assert total["counts"]["timeout"] == 10
    assert total["latency_ns"]["n"] == total["counts"]["ok"] == 20
    assert total["latency_ns"]["p99"] < 90 * MS, "failures are in no success percentile"
    for name, least in (("timeout", 250 * MS), (late, 100 * MS)):
        error = total["errors"][name]
        times = error.get("service_ns") or error.get("latency_ns")
        assert error["n"] == times["n"] == 10
        assert error["text"]
        assert least <= times["p50"] < least + 120 * MS, "from sent to the error, not 0 and not garbage"
    assert all(row["detail"] for row in rows if row["outcome"].lower() != "ok")
    assert [kind["timeout_ns"] for kind in json.loads((out / "run.json").read_text())["kinds"]] == [250 * MS]
    html = (out / "report.html").read_text()
    assert "timeout: 250ms" in html or "250 ms" in html
    assert answer.code == 3


# -- cases 45 and 46 -----------------------------------------------------------------------------------------------


def test_441_quick_refusals_beside_160_slow_answers(run):
    """Cases 45 and 46: the median is that of the answers, the failure rate that of the requests."""
    refusals = iter(range(10**6))

    def answer(n):
        # 160 of 601, evenly: refusals in one block would say little about any other run
        slow = n == 0 or next(refusals) * 160 % 601 < 160
        return (0.15, 200, None) if slow else (0.0, 429, "slow down")

    with Mock(answer) as mock:
        text = "name: t\nkinds:\n  k: {model: m, length: 4}\nobjectives: ['rejection rate < 10%']\nphases:\n"
        result, summary, _, _ = run(text + "  - {name: load, closed: {users: 160, requests: 601}}\n", mock)
    total = summary["total"]
    assert (total["counts"]["ok"], total["counts"]["rejected"]) == (160, 441)
    assert total["latency_ns"]["p50"] >= 150 * MS
    [objective] = summary["slo"]
    assert (objective["observed"], objective["n"]) == (pytest.approx(441 / 601), 601)
    assert not summary["valid"]
    assert result.code == 1, "missed for certain, however little the rest is to be believed"


def test_no_request_at_all_is_no_success(run):
    """Case 46: zero answers are a failure."""
    with Scripted("http", lambda link, n, _: (link.transport.abort() or True) if n else None) as server:
        answer, summary, _, _ = run(profile("  - {name: load, closed: {users: 2, requests: 6}}\n"), server)
    assert summary["total"]["counts"]["ok"] == 0
    assert summary["total"]["latency_ns"]["p50"] is None
    assert (summary["valid"], answer.code) == (False, 3)


# -- case 50 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("protocol", "cap"), [("http", ""), ("grpc", ""), ("http", "cap: {in_flight: 5}\n")])
def test_a_frozen_server_shows_in_the_median_from_due(run, protocol, cap):
    """Case 50, at a third: frozen 2 s of 3.3, 50/s.  Three in five were due meanwhile, so P50 is a sixth of it."""

    def fault(link, n, _):
        if n == 15:
            time.sleep(2)  # the whole server: nothing is read, accepted or answered

    with Scripted(protocol, fault) as server:
        _, summary, rows, _ = run(profile(PHASE % ("load", "3300ms", "50/s"), more=cap), server)
    assert summary["total"]["counts"]["ok"] == 165
    latency = summary["total"]["latency_ns"]
    assert latency["p50"] >= 250 * MS
    assert latency["p99"] >= 1900 * MS
    service = sorted(row["done_ns"] - row["sent_ns"] for row in rows)
    lag = sorted(row["sent_ns"] - row["due_ns"] for row in rows)
    if cap:  # five wait at the server, all others here: only the due time tells
        assert service[82] < 100 * MS
        assert lag[82] >= 200 * MS
        assert summary["phases"][0]["cap_waits"] >= 80
    else:
        assert service[82] >= 200 * MS


# -- case 54 -------------------------------------------------------------------------------------------------------


def test_100001_arrivals_50_us_apart_take_5_s():
    """Case 54: absolute times from one origin; gaps slept one after the other would add up.  In virtual time."""

    async def main(loop):
        server = VirtualServer(loop, service_ns=0)
        return await play(loop, server, [open_phase(np.arange(100_001) * 50e-6, 5.00005)])

    rows, _, _ = run_virtual(main)
    sent = np.sort(rows.column("sent_ns"))
    assert len(sent) == 100_001
    assert sent[-1] - sent[0] == pytest.approx(5 * S, rel=0.001)


def test_lateness_does_not_add_up_in_real_time():
    """Case 54 on this machine's clock and pacer: 4,001 arrivals 500 us apart."""

    async def main():
        loop = asyncio.get_running_loop()
        transport, rows = NullTransport(MONOTONIC), Rows()
        phase = open_phase(np.arange(4001) * 500e-6, 2.001)
        shot = Shot(transport.prepare(Request("x", (), b"")), 0, -1, 1)
        engine = Engine(
            Plan(0, ("k",), (phase,)),
            [shot],
            [np.zeros(len(phase.kind), np.int32)],
            [S],
            transport,
            rows,
            MONOTONIC,
            lambda: make_pacer(loop, MONOTONIC)[0],
        )
        await transport.open(engine, 1)
        await engine.run_phase(0)
        engine.close()
        return rows

    rows = asyncio.run(main())
    due, sent = rows.column("due_ns"), rows.column("sent_ns")
    assert len(sent) == 4001
    assert sent.max() - sent.min() == pytest.approx(2 * S, rel=0.01)
    lag = (sent - due)[np.argsort(due)]
    first, last = np.percentile(lag[:800], 25), np.percentile(lag[-800:], 25)
    assert last - first < 2 * MS, "the last are no later than the first"
