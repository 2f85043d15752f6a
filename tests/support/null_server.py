"""Servers that answer at once with fixed bytes, to keep the server out of the figures, and scripted ones.

`python null_server.py http|grpc` prints its port and serves until its standard input closes.
"""

import asyncio
import os
import re
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from struct import Struct

HEAD = Struct(">IBI")
REPLY_JSON = b'{"model_name":"m","outputs":[{"name":"y","datatype":"FP32","shape":[1,16],"parameters":{"binary_data_size":64}}]}'
HTTP_REPLY = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
    b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
    % (len(REPLY_JSON), len(REPLY_JSON) + 64)
) + REPLY_JSON + bytes(64)  # fmt: skip
GRPC_HEAD = bytes.fromhex("885f8b1d75d0620d263d4c4d6564")  # :status 200, content-type application/grpc
GRPC_TRAILERS = b"\x00\x0bgrpc-status\x010"


def frame(kind, flags, sid, payload=b""):
    return HEAD.pack(len(payload) << 8 | kind, flags, sid) + payload


def grpc_message(body):
    return b"\0" + len(body).to_bytes(4, "big") + body


def grpc_reply(sid, body, trailers=GRPC_TRAILERS):
    return (frame(1, 4, sid, GRPC_HEAD) + frame(0, 0, sid, grpc_message(body)) + frame(1, 5, sid, trailers))  # fmt: skip


INFER_REPLY = b"\x0a\x01m\x2a\x0d\x0a\x01y\x12\x04FP32\x1a\x02\x01\x10\x32\x40" + bytes(64)


class NullHttp(asyncio.Protocol):
    """Answers each request of a Content-Length with the same bytes."""

    def __init__(self):
        self.held = b""
        self.sizes = {}

    def connection_made(self, transport):
        self.write = transport.write

    def data_received(self, data):
        if self.held:
            data = self.held + data
        while True:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                break
            head = data[:end]
            size = self.sizes.get(head)
            if size is None:
                size = self.sizes[head] = int(re.search(rb"content-length: (\d+)", head.lower())[1])
            if len(data) < end + size:
                break
            self.write(HTTP_REPLY)
            data = data[end + size :]
        self.held = data


class NullGrpc(asyncio.Protocol):
    """Answers each stream that ends with the same message."""

    def __init__(self):
        self.held = b""
        self.greeted = False
        self.unacked = 0

    def connection_made(self, transport):
        self.write = transport.write
        settings = b"\0\4\x7f\xff\xff\xff" + b"\0\5\0\x10\0\0"
        self.write(frame(4, 0, 0, settings) + frame(8, 0, 0, (2**31 - 1 - 65535).to_bytes(4, "big")))

    def data_received(self, data):  # noqa: C901 - a flat loop
        if self.held:
            data = self.held + data
        pos = 0
        if not self.greeted:
            if len(data) < 24:
                self.held = data
                return
            pos, self.greeted = 24, True
        out = []
        size = len(data)
        while size - pos >= 9:
            word, flags, sid = HEAD.unpack_from(data, pos)
            end = pos + 9 + (word >> 8)
            if end > size:
                break
            kind = word & 255
            if kind == 0:
                self.unacked += word >> 8
            if kind < 2 and flags & 1:
                out.append(grpc_reply(sid, INFER_REPLY))
            elif kind == 4 and not flags & 1:
                out.append(frame(4, 1, 0))
            elif kind == 6 and not flags & 1:
                out.append(frame(6, 1, 0, data[pos + 9 : end]))
            pos = end
        self.held = data[pos:]
        if self.unacked > 1 << 28:
            out.append(frame(8, 0, 0, self.unacked.to_bytes(4, "big")))
            self.unacked = 0
        if out:
            self.write(b"".join(out))


class ScriptedHttp(asyncio.Protocol):
    """Calls `handle(connection, request)` for each whole request; `made` are all connections so far."""

    def __init__(self, handle, made):
        self.handle, self.made = handle, made
        self.held = b""
        self.requests = 0

    def connection_made(self, transport):
        self.transport = transport
        self.made.append(self)

    def data_received(self, data):
        self.held += data
        while (end := self.held.find(b"\r\n\r\n") + 4) > 3:
            size = int(re.search(rb"content-length: (\d+)", self.held[:end].lower())[1])
            if len(self.held) < end + size:
                return
            request, self.held = self.held[: end + size], self.held[end + size :]
            self.requests += 1
            self.handle(self, request)

    def write(self, *pieces):
        self.transport.write(b"".join(pieces))

    def close(self):
        self.transport.close()


class ScriptedGrpc(asyncio.Protocol):
    """Calls `handle(connection, stream_id)` when a call is whole; keeps every frame; may run over the greeting."""

    hello = frame(4, 0, 0) + frame(8, 0, 0, (1 << 30).to_bytes(4, "big"))

    def __init__(self, handle, made, hello=None):
        self.handle, self.made = handle, made
        self.hello = self.hello if hello is None else hello
        self.held = b""
        self.greeted = False
        self.frames = []
        self.open = set()

    def connection_made(self, transport):
        self.transport = transport
        self.made.append(self)
        self.write(self.hello)

    def data_received(self, data):
        self.held += data
        if not self.greeted:
            if len(self.held) < 24:
                return
            self.held, self.greeted = self.held[24:], True
        while len(self.held) >= 9:
            word, flags, sid = HEAD.unpack_from(self.held)
            end = 9 + (word >> 8)
            if len(self.held) < end:
                return
            payload, self.held = self.held[9:end], self.held[end:]
            self.frames.append((word & 255, flags, sid, payload))
            if word & 255 == 1:
                self.open.add(sid)
            if word & 255 == 0 and flags & 1:
                self.handle(self, sid)

    def write(self, *pieces):
        self.transport.write(b"".join(pieces))

    def answer(self, sid, body=INFER_REPLY, trailers=GRPC_TRAILERS):
        self.open.discard(sid)
        self.write(grpc_reply(sid, body, trailers))

    def close(self):
        self.transport.close()


@asynccontextmanager
async def serving(factory, **options):
    """A server in this loop; gives its port."""
    server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0, **options)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@contextmanager
def null_process(kind):
    """A null server in a process of its own; gives its port."""
    command = [sys.executable, str(Path(__file__).resolve()), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()
            process.wait(timeout=10)


async def _serve(kind):
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.add_reader(0, lambda: os.read(0, 100) or done.done() or done.set_result(None))
    async with serving(NullHttp if kind == "http" else NullGrpc, backlog=1024) as port:
        print(port, flush=True)
        await done


if __name__ == "__main__":
    try:
        import uvloop

        uvloop.run(_serve(sys.argv[1]))
    except ImportError:
        asyncio.run(_serve(sys.argv[1]))
