"""How transports knock where nobody opens: not without end, and with the reason for those who wait."""

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from null_server import NullGrpc, NullHttp, ScriptedGrpc, ScriptedHttp
from told import LOOPS, Told, until

from loadgen.clock import MONOTONIC
from loadgen.records import Outcome, Request
from loadgen.target import parse_target
from loadgen.transport.grpc import GrpcTransport
from loadgen.transport.http import HttpTransport

KINDS = {"http": (HttpTransport, NullHttp), "grpc": (GrpcTransport, NullGrpc)}
SECOND = 10**9


@pytest.fixture(params=sorted(LOOPS))
def run(request):
    return LOOPS[request.param]


class Slammer(asyncio.Protocol):
    """Accepts, and closes: at once, or when the first bytes of a request are there."""

    accepted = 0

    def __init__(self, at_once, hello):
        self.at_once, self.hello = at_once, hello

    def connection_made(self, transport):
        Slammer.accepted += 1
        self.transport = transport
        if self.at_once:
            transport.close()
        else:
            transport.write(self.hello)

    def data_received(self, data):
        if not self.hello or b"ModelInfer" in data:
            self.transport.abort()


class Shop:
    """One port; what serves there may change."""

    def __init__(self):
        self.made = []

    async def open(self, factory, port=0):
        def make():
            self.made.append(factory())
            return self.made[-1]

        self.server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", port)
        self.port = self.server.sockets[0].getsockname()[1]

    def shut(self):
        self.server.close()
        for link in self.made:
            transport = getattr(link, "transport", None)
            if transport is not None:
                transport.abort()
        self.made.clear()


def factory(kind, made):
    if kind == "http":
        return lambda: ScriptedHttp(
            lambda link, _: link.write(b"HTTP/1.1 200 X\r\nContent-Length: 0\r\n\r\n"), made
        )
    return lambda: ScriptedGrpc(lambda link, sid: link.answer(sid), made)


REQUEST = Request("inference.GRPCInferenceService/ModelInfer", (), b"body")


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("manner", ["refuses", "closes at once", "closes unanswered"])
def test_a_server_that_slams_the_door_is_not_hammered(monkeypatch, kind, manner):  # noqa: C901, PLR0915 - one story
    """32 users who ask again as soon as they were told, for two seconds: a bounded number of connections."""
    run = LOOPS["uvloop"]

    async def job():  # noqa: PLR0915 - one story
        make, _ = KINDS[kind]
        shop = Shop()
        await shop.open(factory(kind, []))
        transport = make(parse_target(f"{kind}://127.0.0.1:{shop.port}"), MONOTONIC)
        attempts = 0
        attempt = transport.dialer._attempt

        def counted():
            nonlocal attempts
            attempts += 1
            return attempt()

        await transport.open(told := Told(), 4)
        monkeypatch.setattr(type(transport.dialer), "_attempt", lambda _: counted())
        shop.shut()
        Slammer.accepted = 0
        hello = b"" if kind == "http" else ScriptedGrpc.hello
        if manner != "refuses":
            await shop.open(lambda: Slammer(manner == "closes at once", hello), shop.port)
        await until(lambda: not transport._links)
        prepared = transport.prepare(REQUEST)
        attempts = 0
        end = MONOTONIC.now_ns() + 2 * SECOND
        opened = transport.connections_opened

        def again(reply):
            if MONOTONIC.now_ns() < end:
                transport.send(reply.token + 32, prepared)

        told.then = again
        started = MONOTONIC.now_ns()
        for token in range(32):
            told.send(transport, token, prepared)
        async with asyncio.timeout(10):
            while MONOTONIC.now_ns() < end or transport.waiting or transport.in_flight:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert MONOTONIC.now_ns() - started < 4 * SECOND
        # all that were under way when it began, then one after each pause: 10, 20, 40 … 640 ms
        assert 3 <= attempts <= 32 + 3 + 9
        if manner == "refuses":
            assert transport.connections_opened == opened
        else:
            assert 3 <= Slammer.accepted <= attempts
        asked = kind == "grpc" and manner == "closes unanswered"  # one connection takes all who wait
        kinds = {"CONNECT"} if manner == "refuses" else {"CONNECT", "CONNECTION"}
        assert set(told.outcomes) <= kinds
        assert told.outcomes["CONNECTION" if asked else "CONNECT"] > 30
        assert all(reply.detail for reply in told.replies)
        assert len(told.replies) < 32 * 60, "nobody is told at once, to ask again at once"
        for reply in told.replies:
            assert (reply.sent_ns > 0) or reply.outcome is Outcome.CONNECT
        # and when somebody serves there again, all are served, within the longest pause and a little
        shop.shut()
        await shop.open(factory(kind, []), shop.port)
        told.then = None
        before = len(told.replies)
        for token in range(32):
            told.send(transport, 10**6 + token, prepared)
        replies = (await told.wait(before + 32))[-32:]
        assert {reply.outcome.name for reply in replies} == {"OK"}
        # no pause is left
        told.send(transport, 2 * 10**6, prepared)
        await told.wait(before + 33)
        await transport.close()
        shop.shut()

    run(job())


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_one_closed_connection_among_good_ones_makes_nobody_wait(run, kind):
    async def job():
        make, _ = KINDS[kind]
        numbers = iter(range(10**6))
        shop = Shop()

        def flaky():
            if next(numbers) % 3 == 2:
                return Slammer(at_once=False, hello=b"" if kind == "http" else ScriptedGrpc.hello)
            return factory(kind, [])()

        await shop.open(flaky)
        transport = make(parse_target(f"{kind}://127.0.0.1:{shop.port}"), MONOTONIC)
        await transport.open(told := Told(), 1)
        prepared = transport.prepare(REQUEST)
        started = MONOTONIC.now_ns()
        for token in range(60):
            told.send(transport, token, prepared)
            await told.wait(token + 1)
            for link in shop.made:  # each connection serves one request
                link.transport.close()
            await until(lambda: not transport._links)
            shop.made.clear()
        assert MONOTONIC.now_ns() - started < SECOND
        assert "CONNECT" not in told.outcomes
        assert told.outcomes["CONNECTION"] >= 15
        assert transport.dialer._strikes <= 1
        await transport.close()
        shop.shut()

    run(job())


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_slow_server_that_came_back_serves_all_at_once(run, kind):
    """After a pause one connection goes ahead; the others must not wait for its answer."""

    async def job():
        make, _ = KINDS[kind]
        shop = Shop()
        await shop.open(factory(kind, []))
        transport = make(parse_target(f"{kind}://127.0.0.1:{shop.port}"), MONOTONIC)
        await transport.open(told := Told(), 1)
        shop.shut()
        await until(lambda: not transport._links)
        prepared = transport.prepare(REQUEST)
        for token in range(4):
            told.send(transport, token, prepared)
        await told.wait(4)
        assert told.outcomes == {"CONNECT": 4}
        held = []
        slow = ScriptedHttp if kind == "http" else ScriptedGrpc
        await shop.open(lambda: slow(lambda *call: held.append(call), []), shop.port)
        for token in range(4, 12):
            told.send(transport, token, prepared)
        await until(lambda: len(held) == 8, timeout=1)
        assert transport.waiting == 0
        await transport.close()
        shop.shut()

    run(job())
