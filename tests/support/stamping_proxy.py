"""A proxy in front of an HTTP server that keeps when each request came in, as the wire had it.

    with StampingProxy("http://127.0.0.1:8000") as proxy: …      # proxy.target, proxy.log()

A process of its own.  `log()` has one entry a request in order of arrival: its stamp of CLOCK_MONOTONIC, taken when
its first bytes were read, its path, and the JSON at the start of its body.
"""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit


class _Server(asyncio.Protocol):
    def __init__(self, client):
        self.client = client

    def data_received(self, data):
        self.client.transport.write(data)

    def connection_lost(self, _):
        self.client.transport.close()


class _Client(asyncio.Protocol):
    log: list = []  # noqa: RUF012 - of the process
    upstream = ("", 0)

    def connection_made(self, transport):
        self.transport, self.server, self.held, self.stamp = transport, None, b"", 0
        self.opening = asyncio.get_running_loop().create_task(self.open())

    async def open(self):
        server, _ = await asyncio.get_running_loop().create_connection(lambda: _Server(self), *self.upstream)
        self.server = server
        server.write(self.waiting)

    waiting = b""

    def data_received(self, data):
        now = time.monotonic_ns()
        if self.server is None:
            self.waiting += data
        else:
            self.server.write(data)
        self.stamp = self.stamp or now
        self.held += data
        end = self.held.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        head = self.held[:end].decode("latin-1").lower()
        size = int(head.partition("content-length:")[2].partition("\r\n")[0] or 0)
        if len(self.held) >= end + size:
            told = None
            if size:
                told, _ = json.JSONDecoder().raw_decode(self.held[end : end + size].decode("latin-1"))
            self.log.append({"ns": self.stamp, "path": head.split(" ")[1], "body": told})
            self.held, self.stamp = self.held[end + size :], 0

    def connection_lost(self, _):
        if self.server is not None:
            self.server.close()


async def serve(host, port):
    _Client.upstream = (host, int(port))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Client, "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    asked = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asked), sys.stdin)
    while await asked.readline():
        print(json.dumps(_Client.log), flush=True)
    server.close()


class StampingProxy:
    """The process; it ends with its standard input."""

    def __init__(self, target):
        self.upstream = urlsplit(target)

    def __enter__(self):
        command = [sys.executable, str(Path(__file__)), self.upstream.hostname, str(self.upstream.port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.target = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(10)

    def log(self):
        self._process.stdin.write("log\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(*sys.argv[1:]))
