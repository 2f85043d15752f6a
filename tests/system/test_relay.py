"""The relay, a real process: what it delays, passes on, and how it ends."""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import struct
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from null_server import NullGrpc, NullHttp
from tls import Authority
from told import Told, until

from loadgen.clock import MONOTONIC
from loadgen.lab import relay as relays
from loadgen.lab.loop import new_loop
from loadgen.lab.namespace import netem
from loadgen.lab.relay import Relay, start_relay
from loadgen.records import LoadgenError, Outcome, Request
from loadgen.target import parse_target
from loadgen.traffic.network import Network
from loadgen.transport.grpc import GrpcTransport
from loadgen.transport.http import HttpTransport

MS = 10**6
BODY = Request("/v2/models/m/infer", (), b"x" * 100)


def run(coroutine):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(asyncio.wait_for(coroutine, 60))


@contextlib.asynccontextmanager
async def relayed(factory, conditions, **options):
    """A server of `factory` in this loop with a relay before it; gives the relay and the server's port."""
    server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0, **options)
    relay = Relay()
    port = server.sockets[0].getsockname()[1]
    await relay.start(Network.model_validate(conditions) if conditions else None, "127.0.0.1", port, 0)
    try:
        yield relay, port
    finally:
        await relay.close()
        server.close()


async def connect(relay):
    """Streams through a relay, after its welcome."""
    reader, writer = await asyncio.open_connection(*relay.via[:2])
    return reader, writer, await reader.read(1)


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


@pytest.mark.parametrize(("kind", "factory"), [("http", NullHttp), ("grpc", NullGrpc)])
def test_a_request_and_a_connect_take_a_round_trip_more(kind, factory):
    """At least 2 x 40 ms, always; and no more than that by much, at best."""
    make = {"http": HttpTransport, "grpc": GrpcTransport}[kind]

    async def main():
        async with relayed(factory, {"delay": "40ms"}) as (relay, port):
            told = Told()
            transport = make(parse_target(f"{kind}://127.0.0.1:{port}"), MONOTONIC, via=relay.via)
            began = time.monotonic_ns()
            await transport.open(told, 1)
            connecting = time.monotonic_ns() - began
            prepared = transport.prepare(BODY)
            for token in range(15):
                told.send(transport, token, prepared)
                await told.wait(token + 1)
            await transport.close()
            return connecting, told.replies

    connecting, took = run(main())
    assert connecting >= 80 * MS
    assert all(reply.outcome is Outcome.OK for reply in took)
    services = sorted(reply.done_ns - reply.sent_ns for reply in took)
    assert services[0] >= 80 * MS
    assert services[0] < 84 * MS  # 5 %


def test_tls_passes_with_the_targets_own_name(tmp_path):
    """The certificate is for localhost; the relay's address is in nobody's certificate.

    TCP and TLS take 400 ms through the relay: its round trips do not count against the 300 ms to connect.
    """
    pair = Authority(tmp_path)
    server_tls = pair.server_context(pair.issue("server", "localhost"))

    async def main():
        async with relayed(NullHttp, {"delay": "100ms"}, ssl=server_tls) as (relay, port):
            told = Told()
            tls = ssl.create_default_context(cafile=pair.cacert)
            target = parse_target(f"https://localhost:{port}")
            transport = HttpTransport(target, MONOTONIC, tls=tls, connect_timeout_ns=300 * MS, via=relay.via)
            await transport.open(told, 1)
            told.send(transport, 1, transport.prepare(BODY))
            reply = (await told.wait(1))[0]
            await transport.close()
            return reply

    assert run(main()).outcome is Outcome.OK


def test_a_server_that_refuses_is_told_as_such_after_a_round_trip():
    async def main():
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]
            relay = Relay()
            await relay.start(Network.model_validate({"delay": "20ms"}), "127.0.0.1", port, 0)
            transport = HttpTransport(parse_target(f"http://127.0.0.1:{port}"), MONOTONIC, via=relay.via)
            began = time.monotonic_ns()
            try:
                with pytest.raises(LoadgenError, match="connection refused"):
                    await transport.open(Told(), 1)
                return time.monotonic_ns() - began
            finally:
                await relay.close()

    assert run(main()) >= 40 * MS


def test_bytes_come_whole_in_order_and_no_faster_than_the_bandwidth():
    """3 MB each way at 10 MB/s each way: the echo overlaps, so a bit more than 0.3 s; never less."""

    async def main():
        async with relayed(Echo, {"delay": "10ms", "jitter": "8ms", "bandwidth": "10MB/s"}) as (relay, _):
            reader, writer, welcome = await connect(relay)
            sent = b"".join(struct.pack(">I", i) for i in range(750_000))
            began = time.monotonic_ns()
            writer.write(sent)
            came = await reader.readexactly(len(sent))
            took = time.monotonic_ns() - began
            writer.close()
            return welcome, came == sent, took

    welcome, same, took = run(main())
    assert welcome == b"\0"
    assert same
    assert took >= 300 * MS


def test_a_receiver_that_does_not_read_stops_the_sender():
    """A window and the kernels' buffers may be under way; the rest stays with the sender, and comes when it is read."""

    class Slow(asyncio.Protocol):
        got, transport = 0, None

        def connection_made(self, transport):
            Slow.transport = transport
            asyncio.get_running_loop().call_soon(transport.pause_reading)  # uvloop starts to read after this

        def data_received(self, data):
            Slow.got += len(data)

    async def main():
        async with relayed(Slow, {"delay": "1ms"}) as (relay, _):
            _, writer, _ = await connect(relay)
            size, sent = 64 << 20, 0
            writer.transport.set_write_buffer_limits(high=1 << 16)
            with contextlib.suppress(TimeoutError):
                while sent < size:
                    writer.write(bytes(1 << 16))
                    sent += 1 << 16
                    await asyncio.wait_for(writer.drain(), 1)
            waiting = Slow.got
            Slow.transport.resume_reading()
            await until(lambda: Slow.got == sent, 20)
            writer.close()
            return waiting, sent, size

    waiting, sent, size = run(main())
    assert waiting == 0
    assert sent < size


def test_half_closes_and_resets_pass_with_the_delay():
    heard = []

    class Server(asyncio.Protocol):
        """Answers only when the request has ended; b"R" resets."""

        def connection_made(self, transport):
            self.transport, self.data = transport, b""

        def data_received(self, data):
            self.data += data
            if data == b"R":
                sock = self.transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.transport.abort()

        def eof_received(self):
            self.transport.write(b"got " + self.data)
            self.transport.close()

        def connection_lost(self, exc):
            heard.append(type(exc).__name__)

    async def main():
        async with relayed(Server, {"delay": "20ms"}) as (relay, _):
            reader, writer, _ = await connect(relay)
            began = time.monotonic_ns()
            writer.write(b"all")
            writer.write_eof()
            answer = await reader.read()
            took = time.monotonic_ns() - began
            writer.close()
            reader, writer, _ = await connect(relay)
            writer.write(b"R")
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()
            heard.clear()
            _, writer, _ = await connect(relay)
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.write(b"x")
            await asyncio.sleep(0.1)
            writer.transport.abort()
            await until(lambda: heard)
            return answer, took

    answer, took = run(main())
    assert answer == b"got all"
    assert took >= 40 * MS
    assert heard == ["ConnectionResetError"]


def test_a_thousand_connections_at_once():
    async def main():
        async with relayed(Echo, {"delay": "20ms"}) as (relay, _):
            links = await asyncio.gather(*(connect(relay) for _ in range(1000)))
            for n, (_, writer, _) in enumerate(links):
                writer.write(b"%04d" % n)
            answers = await asyncio.gather(*(reader.readexactly(4) for reader, _, _ in links))
            for _, writer, _ in links:
                writer.close()
            return answers, await relay.close()

    answers, facts = run(main())
    assert answers == [b"%04d" % n for n in range(1000)]
    assert facts["connections"] == 1000
    assert facts["bytes"] == 8000
    assert facts["late_ns"]["n"] >= 4000  # knocks, welcomes, and the bytes both ways


def test_a_relay_that_is_killed_says_so_and_ends_the_connections():
    async def main():
        told = []
        server = await asyncio.get_running_loop().create_server(NullHttp, "127.0.0.1", 0)
        relay = Relay(lambda: told.append(relay.error))
        port = server.sockets[0].getsockname()[1]
        await relay.start(Network.model_validate({"delay": "10ms"}), "127.0.0.1", port, 0)
        reader, _, _ = await connect(relay)
        os.kill(relay.pid, signal.SIGKILL)
        await until(lambda: told)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        facts = await relay.close()
        server.close()
        return told, facts

    told, facts = run(main())
    assert (
        "the relay that makes the network's conditions ended before the run did (killed by signal 9)"
        in str(told[0])
    )
    assert told[0].exit_code == 3
    assert facts == {}


def test_it_ends_when_who_started_it_is_gone():
    code = (
        "import asyncio, os, signal\n"
        "from loadgen.lab.relay import Relay\n"
        "async def main():\n"
        "    relay = Relay()\n"
        "    await relay.start(None, '127.0.0.1', 9, 0)\n"
        "    print(relay.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    pid = int(done.stdout)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and Path(f"/proc/{pid}/stat").exists():
        if Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] == "Z":
            break
        time.sleep(0.02)
    else:
        assert not Path(f"/proc/{pid}").exists()


def test_its_own_cost_is_measured():
    facts = run(relays.calibrate())
    assert facts["n"] == 400
    assert 0 < facts["added_p50_ns"] <= facts["added_p99_ns"] + 10 * MS
    assert facts["cpu_ns_per_piece"] > 0


def test_loss_is_made_by_netem_or_refused_with_the_reason():
    """Which of the two is the kernel's: here is what holds in both."""
    network = Network.model_validate({"delay": "20ms", "loss": "0.1%"})

    async def main():
        server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
        target = parse_target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            relay, facts = await start_relay(network, target, 0, lambda: None)
        except LoadgenError as why:
            return str(why)
        reader, writer, _ = await connect(relay)
        began = time.monotonic_ns()
        writer.write(b"ping")
        await reader.readexactly(4)
        took = time.monotonic_ns() - began
        writer.close()
        await relay.close()
        return facts, took

    answer = run(main())
    if isinstance(answer, str):
        assert answer.startswith("network.loss: only the kernel's netem can lose packets, and ")
        assert answer.endswith("; leave loss out")
        assert any(
            words in answer for words in ("no netem", "needs CAP_", "not installed", "no network namespaces")
        )
    else:
        assert (answer[0]["by"], answer[0]["loss"]) == ("netem", pytest.approx(0.001))
        assert answer[1] >= 40 * MS


def test_bytes_cross_a_namespace_whose_loopback_the_kernel_slows_down():
    """2 MB there and back through 80 Mbit/s for both directions: 0.4 s.  Where it is not permitted, it says so."""

    async def main():
        server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
        relay = Relay()
        slow = ("tbf", "rate", "80mbit", "burst", "20kb", "latency", "50ms")
        try:
            await relay.start(None, "127.0.0.1", server.sockets[0].getsockname()[1], 0, slow)
        except LoadgenError as why:
            return str(why)
        reader, writer, welcome = await connect(relay)
        sent = os.urandom(2_000_000)
        began = time.monotonic_ns()
        writer.write(sent)
        came = await reader.readexactly(len(sent))
        took = time.monotonic_ns() - began
        writer.close()
        await relay.close()
        return welcome, came == sent, took

    answer = run(main())
    if isinstance(answer, str):
        assert any(
            words in answer for words in ("no tbf", "needs CAP_", "not installed", "no network namespaces")
        )
    else:
        assert answer[:2] == (b"\0", True)
        assert answer[2] >= 350 * MS


def test_what_tc_is_told():
    assert netem(100 * MS, 5 * MS, 0.001) == [
        "netem", "limit", "100000", "delay", "100000.000us", "5000.000us", "loss", "0.100000%",
    ]  # fmt: skip
    assert netem(0, 0, 0.5) == ["netem", "limit", "100000", "loss", "50.000000%"]


def test_a_host_nobody_knows_is_refused():
    async def main():
        await Relay().start(None, "no-such-host.invalid", 80, 0)

    with pytest.raises(LoadgenError, match=r"the relay did not start: no-such-host\.invalid"):
        run(main())
