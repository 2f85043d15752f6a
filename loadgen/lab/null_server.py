"""A server that answers every inference request at once with the same bytes: the client's own ceiling.

`python -m loadgen.lab.null_server http|grpc` prints its port (on loopback) and serves until its standard
input closes.  It understands just enough framing to find where a request ends.
"""

from __future__ import annotations

import asyncio
import re
import sys
from struct import Struct
from typing import TYPE_CHECKING, cast

from loadgen.lab.loop import new_loop

if TYPE_CHECKING:
    from collections.abc import Callable

_HEAD = Struct(">IBI")
_REPLY_JSON = (
    b'{"model_name":"m","outputs":[{"name":"y","datatype":"FP32","shape":[1,16],'
    b'"parameters":{"binary_data_size":64}}]}'
)
HTTP_REPLY = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
    b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
    % (len(_REPLY_JSON), len(_REPLY_JSON) + 64)
) + _REPLY_JSON + bytes(64)  # fmt: skip
GRPC_HEAD = bytes.fromhex("885f8b1d75d0620d263d4c4d6564")  # :status 200, content-type application/grpc
GRPC_TRAILERS = b"\x00\x0bgrpc-status\x010"
INFER_REPLY = b"\x0a\x01m\x2a\x0d\x0a\x01y\x12\x04FP32\x1a\x02\x01\x10\x32\x40" + bytes(64)
_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 4, 6, 8
_END_STREAM = 1
_PREFACE_BYTES = 24


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return _HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def _grpc_reply(stream: int) -> bytes:
    message = b"\0" + len(INFER_REPLY).to_bytes(4, "big") + INFER_REPLY
    return (
        _frame(_HEADERS, 4, stream, GRPC_HEAD)
        + _frame(_DATA, 0, stream, message)
        + _frame(_HEADERS, 4 | _END_STREAM, stream, GRPC_TRAILERS)
    )


class NullHttp(asyncio.Protocol):
    """Answers each request of a Content-Length."""

    def __init__(self) -> None:
        self._held = b""
        self._sizes: dict[bytes, int] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast("asyncio.Transport", transport).write

    def data_received(self, data: bytes) -> None:
        if self._held:
            data = self._held + data
        while True:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:  # noqa: PLR2004 - not found
                break
            head = data[:end]
            size = self._sizes.get(head)
            if size is None:
                found = re.search(rb"content-length: (\d+)", head.lower())
                size = self._sizes[head] = int(found[1]) if found else 0
            if len(data) < end + size:
                break
            self._write(HTTP_REPLY)
            data = data[end + size :]
        self._held = data


class NullGrpc(asyncio.Protocol):
    """Answers each stream that ends."""

    def __init__(self) -> None:
        self._held = b""
        self._greeted = False
        self._unacked = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast("asyncio.Transport", transport).write
        settings = b"\0\4\x7f\xff\xff\xff" + b"\0\5\0\x10\0\0"  # wide windows, large frames
        self._write(_frame(_SETTINGS, 0, 0, settings))
        self._write(_frame(_WINDOW_UPDATE, 0, 0, (2**31 - 1 - 65535).to_bytes(4, "big")))

    def data_received(self, data: bytes) -> None:
        if self._held:
            data = self._held + data
        at = 0
        if not self._greeted:
            if len(data) < _PREFACE_BYTES:
                self._held = data
                return
            at, self._greeted = _PREFACE_BYTES, True
        out = []
        while len(data) - at >= _HEAD.size:
            word, flags, stream = _HEAD.unpack_from(data, at)
            end = at + _HEAD.size + (word >> 8)
            if end > len(data):
                break
            out.append(self._answer(word & 255, flags, stream, data[at + _HEAD.size : end]))
            at = end
        self._held = data[at:]
        if self._unacked > 1 << 28:
            out.append(_frame(_WINDOW_UPDATE, 0, 0, self._unacked.to_bytes(4, "big")))
            self._unacked = 0
        if any(out):
            self._write(b"".join(out))

    def _answer(self, kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        if kind == _DATA:
            self._unacked += len(payload)
        if kind in (_DATA, _HEADERS):
            return _grpc_reply(stream) if flags & _END_STREAM else b""
        if kind == _SETTINGS and not flags & 1:
            return _frame(_SETTINGS, 1, 0)
        if kind == _PING and not flags & 1:
            return _frame(_PING, 1, 0, payload)
        return b""


async def _serve(factory: Callable[[], asyncio.Protocol]) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(factory, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(1024):
        pass
    server.close()


def main() -> None:
    """`python -m loadgen.lab.null_server http|grpc`."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve({"http": NullHttp, "grpc": NullGrpc}[sys.argv[1]]))


if __name__ == "__main__":
    main()
