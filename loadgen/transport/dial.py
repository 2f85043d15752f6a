"""Opening connections: names, time limits, TLS.  It must not know requests.

Proxies are never used: a load test must not measure one.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Generic, TypeVar

from loadgen.connect.words import reason
from loadgen.records import LoadgenError, Outcome
from loadgen.target import Target
from loadgen.wire.errors import ProtocolError

CONNECT_TIMEOUT_NS = 5_000_000_000


class Link(asyncio.Protocol):
    """What the dialer asks of a connection: `ready`, when not None, is awaited before it counts as open."""

    __slots__ = ("ready",)

    ready: "asyncio.Future[None] | None"


LinkT = TypeVar("LinkT", bound=Link)


class Dialer(Generic[LinkT]):
    """Opens connections one by one.  The address that answered first is kept for all later ones."""

    __slots__ = (
        "_address",
        "_failed",
        "_make",
        "_opened",
        "_target",
        "_tasks",
        "_timeout_ns",
        "_tls",
        "opened",
    )

    def __init__(
        self,
        target: Target,
        tls: ssl.SSLContext | None,
        timeout_ns: int,
        make: Callable[[], LinkT],
        opened: Callable[[LinkT], None],
        failed: Callable[[Outcome, str], None],
        alpn: str,
    ) -> None:
        self._target = target
        self._tls = (tls or ssl.create_default_context()) if target.tls else None
        if self._tls is not None:
            self._tls.set_alpn_protocols([alpn])
        self._timeout_ns = timeout_ns
        self._make = make
        self._opened = opened
        self._failed = failed
        self._address: tuple[str, int] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.opened = 0

    @property
    def opening(self) -> int:
        """Attempts under way."""
        return len(self._tasks)

    def dial(self) -> None:
        """Starts an attempt; `opened` or `failed` is called from the loop, after `opening` went down."""
        task = asyncio.get_running_loop().create_task(self._attempt())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def first(self) -> None:
        """Opens one connection and waits for it.  Raises LoadgenError when no server answers."""
        try:
            link = await self._connect()
        except (OSError, ProtocolError) as why:
            words = reason(why, self._target, self._timeout_ns)[1]
            raise LoadgenError(f"no server answers at {self._target.url}: {words}") from None
        self._opened(link)

    async def settle(self) -> None:
        """Waits for the attempts that are under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Gives up the attempts that are under way."""
        for task in self._tasks:
            task.cancel()
        await self.settle()

    async def _attempt(self) -> None:
        me = asyncio.current_task()
        assert me is not None  # noqa: S101 - we are one
        try:
            link = await self._connect()
        except (OSError, ProtocolError) as why:
            self._tasks.discard(me)
            self._failed(*reason(why, self._target, self._timeout_ns))
        else:
            self._tasks.discard(me)
            self._opened(link)

    async def _connect(self) -> LinkT:
        async with asyncio.timeout(self._timeout_ns / 1e9):
            if self._address is not None:
                return await self._connect_to(*self._address)
            loop = asyncio.get_running_loop()
            target = self._target
            found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
            failure: OSError | None = None
            for *_, address in found:
                try:
                    link = await self._connect_to(str(address[0]), int(address[1]))
                except OSError as why:
                    failure = failure or why
                else:
                    self._address = (str(address[0]), int(address[1]))
                    return link
            raise failure or OSError("the name has no address")

    async def _connect_to(self, host: str, port: int) -> LinkT:
        loop = asyncio.get_running_loop()
        name = self._target.host if self._tls is not None else None
        transport, link = await loop.create_connection(
            self._make, host, port, ssl=self._tls, server_hostname=name
        )
        if link.ready is not None:
            try:
                await link.ready
            except BaseException:
                transport.abort()
                raise
        self.opened += 1
        return link


def no_delay(transport: asyncio.BaseTransport) -> None:
    """Small writes leave at once."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
