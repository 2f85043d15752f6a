"""The relay: a process on loopback that carries bytes between client and server as a slow network would.

`python -m loadgen.lab.relay_process` reads its order (a line of JSON) from standard input, prints {"port": n},
serves until that input closes, and then prints what it did.  Bytes pass as they are: TLS too, and the ends of
streams (half-closes, resets) with the same delay.

One byte stands before the server's own: whoever connects reads first whether the server let the relay in
(0, else the errno).  It comes a round trip after the connect, as the answer to a SYN would; the kernel alone
would have accepted at once.  What a real network has and this one has not: slow start, loss, packet sizes.

An order with a `discipline` has these: there the bytes cross the loopback of a network namespace, from this
relay to another one in the same process, and the kernel makes of them what tc was told.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import random
import socket
import struct
import sys
import time
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np

from loadgen.clock import MONOTONIC
from loadgen.engine.pacer import make_pacer
from loadgen.histogram import Histogram
from loadgen.lab.facts import raise_file_limit
from loadgen.lab.loop import new_loop
from loadgen.lab.namespace import Namespace, NamespaceError
from loadgen.lab.relay_link import Agenda, Lane, Way

_LOOPBACK = "127.0.0.1"
_BACKLOG = 4096
_CONNECT_S = 5.0
_LINGER_0 = struct.pack("ii", 1, 0)  # a close that the peer sees as a reset
_SAMPLES = 4096
_UNCHANGED = {"delay_ns": 0, "jitter_ns": 0, "bytes_per_s": None}
Act = Callable[[], None]


class _End(asyncio.Protocol):
    """One of a connection's two sockets; what it reads travels down `out` to its `peer`."""

    def __init__(self, relay: Relay, way: Way) -> None:
        self.relay, self.way = relay, way
        self.out: Lane[Act] = Lane()
        self.peer: _End | None = None
        self.transport: asyncio.Transport | None = None
        self.shut = False  # nothing more will be written to it
        self.gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self.relay.carry(self, data)

    def eof_received(self) -> bool:
        if self.peer is not None:
            self.relay.send(self, 0, self.peer.end_writing)
        return True  # half-closed: the other direction goes on

    def write(self, piece: bytes) -> None:
        """What has travelled."""
        if self.transport is not None and not self.gone:
            self.transport.write(piece)

    def read_on(self) -> None:
        """There is room again for what it sends."""
        if self.transport is not None and not self.gone:
            self.transport.resume_reading()

    def end_writing(self) -> None:
        """Passes the end of a direction on; when both are over, both sockets close."""
        self.shut = True
        peer = self.peer
        if self.transport is None or peer is None or self.gone:
            return
        if peer.shut:
            self.transport.close()
            if peer.transport is not None:
                peer.transport.close()
        else:
            self.transport.write_eof()

    def reset(self) -> None:
        """Ends at once; who is at the other side sees a reset."""
        if self.transport is not None and not self.gone:
            linger = socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0
            with contextlib.suppress(OSError):
                self.transport.get_extra_info("socket").setsockopt(*linger)
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        peer, self.peer = self.peer, None
        if peer is None:
            return
        peer.out.queue.clear()  # nobody is left to take it
        if exc is not None and not peer.gone:
            self.relay.send(self, 0, peer.reset)

    def pause_writing(self) -> None:
        if self.peer is not None:
            self.peer.out.clogged = True

    def resume_writing(self) -> None:
        if self.peer is not None:
            self.relay.unclog(self.peer)


class _Client(_End):
    """The end that connected to us."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.relay.knock(self)


class _Server(_End):
    """The end that we connected to the server."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.relay.welcome(self)


class Relay:
    """Carries between those who connect and the server at `addresses`, under an order's conditions."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        order: dict[str, Any],
        addresses: list[tuple[str, int]],
        space: Namespace | None = None,
    ) -> None:
        """`space`: the addresses are in there, and another relay, whose answers are passed on as they are."""
        self._space = space
        conditions = order["delay_ns"], order["jitter_ns"], order["bytes_per_s"]
        chance = random.Random(order["seed"]).random  # noqa: S311 - no secret
        self._up, self._down = Way(*conditions, chance), Way(*conditions, chance)
        self._loop, self._addresses = loop, addresses
        self._agenda: Agenda[Act] = Agenda()
        self._pacer, self._pacing = make_pacer(loop, MONOTONIC)
        self._armed_ns: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._late, self._samples = Histogram(), array("q")
        self._bytes = self._pieces = self._connections = 0
        self._began_cpu_ns = time.process_time_ns()  # its start is no cost of a run

    def client(self) -> asyncio.Protocol:
        """For the next one who connects."""
        return _Client(self, self._up)

    def knock(self, client: _End) -> None:
        """Somebody connects: the server hears of it after the delay; what follows waits for its answer."""
        self._connections += 1
        server = _Server(self, self._down)
        client.peer, server.peer = server, client
        self.send(client, 0, partial(self._dial, client, server))

    def _dial(self, client: _End, server: _End) -> None:
        client.out.clogged = True
        task = self._loop.create_task(self._connect(client, server))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, client: _End, server: _End) -> None:
        failure = errno.ECONNREFUSED
        for address in list(self._addresses):
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await self._open(server, address)
            except OSError as why:  # TimeoutError is one
                failure = why.errno or errno.ETIMEDOUT
                continue
            self._addresses.sort(key=lambda other: other != address)  # the next ones go there first
            return
        client.peer = server.peer = None
        self.send(server, 0, partial(_refuse, client, failure))

    async def _open(self, server: _End, address: tuple[str, int]) -> None:
        if self._space is None:
            await self._loop.create_connection(lambda: server, *address)
            return
        sock = self._space.socket()
        try:
            await self._loop.sock_connect(sock, address)
        except BaseException:
            sock.close()
            raise
        await self._loop.create_connection(lambda: server, sock=sock)

    def welcome(self, server: _End) -> None:
        """The server took us: its answer travels before anything that it says."""
        client = server.peer
        if client is None or client.gone:
            server.reset()
        else:
            if self._space is None:
                self.send(server, 0, partial(client.write, b"\0"))
            self.unclog(client)

    def carry(self, end: _End, data: bytes) -> None:
        """What an end has read goes on its way."""
        way, lane, peer = end.way, end.out, end.peer
        if peer is None:
            return
        self._bytes += len(data)
        self._pieces += 1
        if way.instant and not lane.queue and not lane.clogged:
            peer.write(data)
            return
        now = MONOTONIC.now_ns()
        for at in range(0, len(data), way.piece):
            piece = data[at : at + way.piece]
            self._agenda.enter(lane, way, now, len(piece), partial(peer.write, piece))
        if lane.held > way.window and lane.low is None and end.transport is not None:
            end.transport.pause_reading()
            lane.low = end.read_on
        self._arm()

    def send(self, end: _End, size: int, act: Act) -> None:
        """Does `act` when what `end` sends now has travelled."""
        self._agenda.enter(end.out, end.way, MONOTONIC.now_ns(), size, act)
        self._arm()

    def unclog(self, end: _End) -> None:
        """Who receives from it takes more."""
        end.out.clogged = False
        end.out.free_ns = MONOTONIC.now_ns()
        self._agenda.list(end.out)
        self._arm()

    def _arm(self) -> None:
        next_ns = self._agenda.next_ns
        if next_ns is not None and (self._armed_ns is None or next_ns < self._armed_ns):
            self._armed_ns = next_ns
            self._pacer.arm(next_ns, self._run)

    def _run(self) -> None:
        self._armed_ns = None
        for lane in self._agenda.due(now := MONOTONIC.now_ns()):
            while not lane.clogged and (head := lane.take(now)) is not None:
                leaves_ns, act = head
                self._samples.append(MONOTONIC.now_ns() - max(leaves_ns, lane.free_ns))
                act()
            if lane.low is not None and lane.held < self._up.window // 2:
                read_on, lane.low = lane.low, None
                read_on()
            if not lane.clogged:
                self._agenda.list(lane)
        if len(self._samples) > _SAMPLES:
            self._count()
        self._arm()

    def _count(self) -> None:
        self._late.record_many(np.maximum(np.array(self._samples, np.int64), 0))
        self._samples = array("q")

    def facts(self) -> dict[str, Any]:
        """What it did, JSON-ready; `late_ns` is how much later than it should have anything left."""
        self._count()
        late = self._late
        return {
            "connections": self._connections, "bytes": self._bytes, "pieces": self._pieces, "pacer": self._pacing,
            "cpu_ns": time.process_time_ns() - self._began_cpu_ns,
            "late_ns": {"n": late.n, "p50": late.quantile(0.5), "p99": late.quantile(0.99), "max": late.max},
        }  # fmt: skip


def _refuse(client: _End, number: int) -> None:
    client.write(bytes([min(number, 255)]))
    if client.transport is not None and not client.gone:
        client.transport.close()


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    order = json.loads(await reader.readline())
    raise_file_limit()
    try:
        found = await loop.getaddrinfo(order["host"], order["port"], type=socket.SOCK_STREAM)
    except OSError as why:
        _say({"error": f"{order['host']}: {why.strerror}"})
        return
    addresses, space = [(str(at[0]), int(at[1])) for *_, at in found], None
    if order["discipline"]:
        try:
            space = Namespace(order["discipline"])
        except NamespaceError as why:
            _say({"error": str(why), "loss": True})
            return
        far = Relay(loop, order | _UNCHANGED, addresses)  # at the other end of the namespace's network
        with space.inside():
            listening = socket.create_server((_LOOPBACK, 0), backlog=_BACKLOG)
        inner = await loop.create_server(far.client, sock=listening)
        addresses = [inner.sockets[0].getsockname()[:2]]
    relay = Relay(loop, order, addresses, space)
    server = await loop.create_server(relay.client, _LOOPBACK, 0, backlog=_BACKLOG)
    _say({"port": server.sockets[0].getsockname()[1]})
    gc.collect()
    gc.freeze()
    while await reader.read(1024):
        pass
    server.close()
    _say(relay.facts())


def _say(value: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()


def main() -> None:
    """`python -m loadgen.lab.relay_process`, started by lab.relay."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve())


if __name__ == "__main__":
    main()
