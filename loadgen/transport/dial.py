"""Opening connections: names, time limits, TLS, and not knocking without end where nobody opens.

Proxies are never used: a load test must not measure one.  A relay that makes network conditions (`via`) is
none: the server's name, in headers and in TLS, stays the target's.  It must not know requests.
"""

import asyncio
import errno
import fcntl
import os
import resource
import socket
import ssl
import sys
import termios
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar, cast

from loadgen.connect.words import reason
from loadgen.records import LoadgenError, Outcome
from loadgen.seams import Clock
from loadgen.target import Target
from loadgen.wire.errors import ProtocolError

CONNECT_TIMEOUT_NS = 5_000_000_000
AT_ONCE_NS = 50_000_000  # a connection ended by the server this soon, unanswered, was never meant to serve
_FREE = 2  # failures in a row that are put down to chance
_FIRST_NS, _LONGEST_NS = 10_000_000, 1_000_000_000  # how long nobody dials after that: doubles up to this
_HANDSHAKES = 4  # round trips, at most
_KEPT_FILES = (
    32  # descriptors that no connection takes: the run's own files, reports and statistics need them
)


class Via(NamedTuple):
    """A relay that leads to the target (lab.relay_process), and what a round trip takes longer through it."""

    host: str
    port: int
    round_trip_ns: int = 0


class Link(asyncio.Protocol):
    """What the dialer asks of a connection: `ready`, when not None, is awaited before it counts as open.

    The dialer sets `opened_ns` when it counts as open.
    """

    __slots__ = ("opened_ns", "ready")

    ready: "asyncio.Future[None] | None"
    opened_ns: int  # 0 before


LinkT = TypeVar("LinkT", bound=Link)


class Dialer(Generic[LinkT]):
    """Opens connections one by one.  The address that answered first is kept for all later ones.

    While new connections come to nothing (refused, or closed at once without an answer), one attempt at a
    time is made, after pauses that double from 10 ms to 1 s.  A first answer on a new connection, or one that
    lasts, ends that.
    """

    __slots__ = (
        "_address",
        "_failed",
        "_make",
        "_opened",
        "_pause_until_ns",
        "_strikes",
        "_target",
        "_tasks",
        "_timeout_ns",
        "_timer",
        "_tls",
        "_trial",
        "_via",
        "_wanting",
        "_why",
        "now_ns",
        "opened",
    )

    def __init__(  # noqa: PLR0913 - whom to call, and how to connect
        self,
        target: Target,
        clock: Clock,
        tls: ssl.SSLContext | None,
        timeout_ns: int,
        make: Callable[[], LinkT],
        opened: Callable[[LinkT], None],
        failed: Callable[[Outcome, str], None],
        wanting: Callable[[], None],
        alpn: str,
        via: Via | None = None,
    ) -> None:
        """`wanting` is called when more attempts may be made than before: ask for those still needed.

        `timeout_ns` has room for round trips, not for those that a relay makes longer: TCP, TLS (two) and
        the server's greeting come on top.
        """
        self._target = target
        self._via = via
        self.now_ns = clock.now_ns
        self._tls = (tls or ssl.create_default_context()) if target.tls else None
        if self._tls is not None:
            self._tls.set_alpn_protocols([alpn])
        self._timeout_ns = timeout_ns + (_HANDSHAKES * via.round_trip_ns if via is not None else 0)
        self._make = make
        self._opened = opened
        self._failed = failed
        self._wanting = wanting
        self._address: tuple[str, int] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._strikes = 0  # rounds in a row that came to nothing
        self._pause_until_ns = 0
        self._why: tuple[Outcome, str] | None = None  # of the last failure; None after a success
        self._trial: LinkT | bool = False  # after a pause: the one new connection, True before it is open
        self._timer: asyncio.TimerHandle | None = None
        self.opened = 0

    @property
    def opening(self) -> int:
        """Attempts under way."""
        return len(self._tasks)

    def given_up(self, outcome: Outcome, words: str) -> tuple[Outcome, str]:
        """How a request ends that is given up unsent: out of time while nobody lets us in is the door's fault."""
        if outcome is Outcome.TIMEOUT and self._why is not None and self._strikes > _FREE:
            return self._why
        return outcome, words

    def want(self, attempts: int) -> None:
        """Brings the attempts under way to this number; while pausing to one, when the pause is over."""
        if self._strikes <= _FREE:
            while len(self._tasks) < attempts:
                self.dial()
        elif attempts > 0 and not (self._tasks or self._trial or self._timer):
            rest = self._pause_until_ns - self.now_ns()
            self._timer = asyncio.get_running_loop().call_later(max(0, rest) / 1e9, self._try_one)

    def _try_one(self) -> None:
        self._timer = None
        if not self._tasks:
            self._trial = True
            self.dial()

    def dial(self) -> None:
        """Starts an attempt; `opened` or `failed` is called from the loop, after `opening` went down."""
        task = asyncio.get_running_loop().create_task(self._attempt())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def ended(self, link: Link, outcome: Outcome, words: str) -> None:
        """The server ended a connection that had answered nothing; the rest is for those who wait for one."""
        if self.now_ns() - link.opened_ns < AT_ONCE_NS:
            self._strike()
            self._fail(outcome, words)

    def _fail(self, outcome: Outcome, words: str) -> None:
        self._why = outcome, words
        self._failed(outcome, words)

    def answered(self) -> None:
        """A new connection gave its first answer, or lasts: there is somebody."""
        paused = self._strikes > _FREE
        self._strikes, self._trial, self._why = 0, False, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if paused:
            self._wanting()

    def _strike(self) -> None:
        now = self.now_ns()
        self._trial = False
        if now < self._pause_until_ns:  # one of many that were under way
            return
        self._strikes += 1
        if self._strikes > _FREE:
            doubled = _FIRST_NS << min(self._strikes - _FREE - 1, 10)
            self._pause_until_ns = now + min(doubled, _LONGEST_NS)

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
        if self._timer is not None:
            self._timer.cancel()
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
            if not isinstance(why, TimeoutError):  # a silent server slows us down as it is
                self._strike()
            self._trial = False
            self._fail(*reason(why, self._target, self._timeout_ns))
        else:
            self._tasks.discard(me)
            if self._trial:
                self._trial = link
                asyncio.get_running_loop().call_later(AT_ONCE_NS / 1e9, self._lasts, link)
            self._opened(link)

    def _lasts(self, link: LinkT) -> None:
        if self._trial is link:
            self.answered()

    async def _connect(self) -> LinkT:
        async with asyncio.timeout(self._timeout_ns / 1e9):
            if self._via is not None:
                return await self._connect_to(self._via.host, self._via.port)
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
        _leave_room()
        if self._via is not None:
            sock = await _through(host, port)
            transport, link = await loop.create_connection(
                self._make, sock=sock, ssl=self._tls, server_hostname=name
            )
        else:
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
        link.opened_ns = self.now_ns()
        return link


def direct_write(
    transport: asyncio.BaseTransport, refused: Callable[[], None] | None = None
) -> Callable[[bytes], None]:
    """A connection's `write` that goes straight to the kernel: half a microsecond less than by the event loop.

    What the kernel does not take at once, and everything after it, goes the usual way, so do errors and TLS.
    `refused` is called when the kernel took nothing because the connection is broken.
    """
    usual = cast("asyncio.Transport", transport)
    if transport.get_extra_info("ssl_object") is not None:
        return usual.write
    descriptor = transport.get_extra_info("socket").fileno()
    closing, through_loop, to_kernel = usual.is_closing, usual.write, os.write
    queued = False

    def write(data: bytes) -> None:
        nonlocal queued
        if queued or closing():  # a closed connection's descriptor may be another's by now
            through_loop(data)
            return
        try:
            taken = to_kernel(descriptor, data)
        except BlockingIOError:
            taken = 0
        except OSError:  # broken: the loop finds out how
            taken = 0
            if refused is not None:
                refused()
        if taken < len(data):
            queued = True
            through_loop(data[taken:])

    return write


def unacknowledged(transport: asyncio.Transport) -> int:
    """Bytes written that the peer's kernel has not acknowledged; 0 where the system does not tell (Linux does).

    When the peer's close arrives it acknowledges all that had reached the peer before: what is counted then, no
    program there can have read.  To be asked while the socket is open.
    """
    try:
        told = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError):
        return 0
    return int.from_bytes(told, sys.byteorder) + transport.get_write_buffer_size()


def _leave_room() -> None:
    """Raises OSError (EMFILE) when one more connection would take a descriptor that is kept for files of ours.

    The kernel gives out the lowest free number, so the next one tells how many are in use.
    """
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return
    following = os.open(os.devnull, os.O_RDONLY)
    os.close(following)
    if following >= allowed - min(_KEPT_FILES, allowed // 4):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


async def _through(host: str, port: int) -> socket.socket:
    """A socket to a relay that has reached the server.  Raises OSError with the errno of the relay's own attempt."""
    loop = asyncio.get_running_loop()
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, (host, port))
        answer = await loop.sock_recv(sock, 1)
    except BaseException:
        sock.close()
        raise
    if answer == b"\0":
        return sock
    sock.close()
    number = answer[0] if answer else errno.ECONNRESET
    raise OSError(number, os.strerror(number))


def no_delay(transport: asyncio.BaseTransport) -> None:
    """Small writes leave at once."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
