"""TLS for the official gRPC library: a Unix socket of our own, and behind it Python's TLS to the target.

grpcio's own TLS cannot be told to skip verification, trusts a list of authorities of its own instead of the
system's, and does not say why a handshake failed.  Behind this bridge `--cacert`, `--insecure` and a client
certificate mean exactly what they mean to the load, in the same words.  It costs some tens of microseconds a
message, so it is for the control plane and the reference transport.  It must not know gRPC or HTTP/2.
"""

import asyncio
import shutil
import ssl
import tempfile
from pathlib import Path

from loadgen.connect.options import ConnectOptions
from loadgen.connect.words import reason
from loadgen.target import Target

_PIECE = 256 * 1024
_CONNECT_S = 5.0


class Bridge:
    """`failure` is why the last attempt to reach the target failed; None once one succeeded."""

    def __init__(self, target: Target, options: ConnectOptions) -> None:
        self._target = target
        self._tls = options.ssl_context()
        self._tls.set_alpn_protocols(["h2"])
        self._folder: Path | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: BaseException | None = None
        self.opened = 0  # connections to the target

    async def open(self) -> str:
        """Listens; gives the address for a channel without TLS.  Only this user can connect to it."""
        self._folder = Path(tempfile.mkdtemp(prefix="loadgen-"))  # mode 0700
        path = self._folder / "s"
        self._server = await asyncio.start_unix_server(self._serve, path)
        return f"unix:{path}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def words(self) -> str | None:
        """`failure` for a person."""
        return None if self.failure is None else reason(self.failure, self._target, int(_CONNECT_S * 1e9))[1]

    async def _serve(self, near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        me = asyncio.current_task()
        assert me is not None  # noqa: S101 - start_unix_server makes one
        self._tasks.add(me)
        me.add_done_callback(self._tasks.discard)
        far_out: asyncio.StreamWriter | None = None
        try:
            target = self._target
            async with asyncio.timeout(_CONNECT_S):
                far, far_out = await asyncio.open_connection(
                    target.host, target.port, ssl=self._tls, server_hostname=target.host
                )
            self.failure = None
            self.opened += 1
            ways = [
                asyncio.create_task(self._pump(near, far_out)),
                asyncio.create_task(self._pump(far, near_out)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError as why:  # also TimeoutError and ssl.SSLError
            self.failure = why
        except asyncio.CancelledError:
            pass  # closing; a cancelled handler would be logged as a fault
        finally:
            for writer in (near_out, far_out):
                if writer is not None:
                    writer.close()  # what is buffered still leaves

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(_PIECE):
                sink.write(data)
                await sink.drain()
        except ssl.SSLError as why:  # an alert after the handshake: our certificate was not liked
            self.failure = why
        except OSError:
            pass  # the other way ends too
