"""Scripted servers, in the test's own loop; those that answer at once with fixed bytes are the product's own."""

import asyncio
import re
from contextlib import asynccontextmanager, contextmanager
from struct import Struct

from loadgen.lab.ceiling import null_server
from loadgen.lab.null_server import GRPC_HEAD, GRPC_TRAILERS, HTTP_REPLY, INFER_REPLY, NullGrpc, NullHttp

__all__ = ["GRPC_HEAD", "GRPC_TRAILERS", "HTTP_REPLY", "INFER_REPLY", "NullGrpc", "NullHttp"]
HEAD = Struct(">IBI")


def frame(kind, flags, sid, payload=b""):
    return HEAD.pack(len(payload) << 8 | kind, flags, sid) + payload


def grpc_message(body):
    return b"\0" + len(body).to_bytes(4, "big") + body


def grpc_reply(sid, body, trailers=GRPC_TRAILERS):
    return (frame(1, 4, sid, GRPC_HEAD) + frame(0, 0, sid, grpc_message(body)) + frame(1, 5, sid, trailers))  # fmt: skip


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
            size = int((re.search(rb"content-length: (\d+)", self.held[:end].lower()) or (0, 0))[1])
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
    with null_server(kind) as target:
        yield target.port
