"""KServe v2 servers, HTTP and gRPC, whose inferences go wrong on command while their control plane keeps answering.

    with Scripted("grpc", fault) as server: …

`fault(link, n, stream)` is asked for the n-th inference (from 0; 0 is the one that loadgen sends alone before the
load).  With `until_asked` it is asked only during the first phase: until the counters are read after it.  It returns
None when the inference is to be answered properly, anything else when it has seen to it.
"""

import asyncio
import json
import re
import sys
import threading
from pathlib import Path

from hpack import Decoder

sys.path.insert(0, str(Path(__file__).parent))

from kserve_mock import Model
from null_server import (
    GRPC_HEAD,
    GRPC_TRAILERS,
    HEAD,
    HTTP_REPLY,
    INFER_REPLY,
    frame,
    grpc_message,
    grpc_reply,
)

MODEL = Model(dims=(4,), output="y", output_dims=(16,))  # what the null server answers


def u32(value):
    return value.to_bytes(4, "big")


def setting(key, value):
    return frame(4, 0, 0, key.to_bytes(2, "big") + u32(value))


def goaway(last, code=0, words=b""):
    return frame(7, 0, 0, u32(last) + u32(code) + words)


def trailers(status, message=b""):
    def literal(name, value):
        return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value

    return literal(b"grpc-status", b"%d" % status) + (literal(b"grpc-message", message) if message else b"")


def refused(sid, status, message):
    """A reply of trailers only."""
    return frame(1, 5, sid, GRPC_HEAD + trailers(status, message))


def http_reply(status, body=b"", *fields):
    return b"\r\n".join([b"HTTP/1.1 %d X" % status, b"Content-Length: %d" % len(body), *fields, b"", body])


class _Link(asyncio.Protocol):
    def __init__(self, server):
        self.server = server
        self.held = b""
        self.dripping = b""

    def connection_made(self, transport):
        self.transport = transport
        self.server.links.add(self)
        self.server.connections += 1

    def connection_lost(self, _):
        self.server.links.discard(self)

    def write(self, *pieces):
        data = b"".join(pieces)
        if self.dripping:
            self.dripping += data
        else:
            self.transport.write(data)

    def drip(self, data):
        """One byte a packet; what is written meanwhile follows the same way."""
        self.dripping += data
        if len(self.dripping) == len(data):
            self._drop()

    def _drop(self):
        if self.dripping and not self.transport.is_closing():
            self.transport.write(self.dripping[:1])
            self.dripping = self.dripping[1:]
            asyncio.get_running_loop().call_soon(self._drop)

    def counted(self):
        self.server.calm = self.server.calm or (self.server.until_asked and self.server.inferences > 1)

    def infer(self, stream):
        """Whatever the script says, else a proper answer."""
        server = self.server
        n, server.inferences = server.inferences, server.inferences + 1
        if server.calm or server.fault(self, n, stream) is None:
            server.ok += 1
            self.write(self.good(stream))


class HttpLink(_Link):
    def good(self, _):
        return HTTP_REPLY

    def data_received(self, data):
        self.held += data
        while (end := self.held.find(b"\r\n\r\n") + 4) > 3:
            head = self.held[:end].decode()
            size = int((re.search(r"content-length: (\d+)", head.lower()) or [0, 0])[1])
            if len(self.held) < end + size:
                return
            self.held = self.held[end + size :]
            path = head.split(" ")[1]
            self.server.hosts.append(re.search(r"host: (\S+)", head, re.IGNORECASE)[1])
            if path.endswith("/infer"):
                self.infer(None)
            else:
                self.write(http_reply(200, json.dumps(self.control(path)).encode()))

    def control(self, path):
        if path == "/v2":
            return {"name": "scripted", "version": "0", "extensions": ["statistics", "binary_tensor_data"]}
        if path.endswith("/config"):
            return MODEL.config("m")
        if path.endswith("/stats"):
            self.counted()
            n = self.server.ok
            each = {"count": n, "ns": n * 1000}
            names = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
            return {"model_stats": [{"name": "m", "version": "1", "inference_count": n, "execution_count": n,
                                     "inference_stats": dict.fromkeys(names, each), "batch_stats": []}]}  # fmt: skip
        return {} if path.endswith(("/ready", "/live")) else MODEL.metadata("m")


class GrpcLink(_Link):
    def __init__(self, server):
        super().__init__(server)
        self.greeted = False
        self.decoder = Decoder()
        self.paths = {}
        self.bodies = {}

    def connection_made(self, transport):
        super().connection_made(transport)
        self.write(self.server.hello)

    def good(self, stream):
        return grpc_reply(stream, INFER_REPLY)

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
            self.frame(word & 255, flags, sid, payload)

    def frame(self, kind, flags, sid, payload):
        if kind in (4, 6) and not flags & 1:
            self.write(frame(kind, 1, 0, payload if kind == 6 else b""))
        elif kind == 1:
            fields = dict(self.decoder.decode(payload[5:] if flags & 0x20 else payload))
            self.paths[sid], self.bodies[sid] = fields[":path"].rpartition("/")[2], b""
            self.server.hosts.append(fields[":authority"])
        elif kind == 0 and sid in self.paths:
            self.bodies[sid] += payload
        if kind in (0, 1) and flags & 1 and sid in self.paths:
            path, body = self.paths.pop(sid), self.bodies.pop(sid)
            if path == "ModelInfer":
                self.infer(sid)
            else:
                self.write(grpc_reply(sid, self.control(path, body[5:]).SerializeToString()))
        elif kind in (0, 1) and self.server.sips:
            self.write(frame(8, 0, sid, u32(self.server.sips)), frame(8, 0, 0, u32(1000)))

    def control(self, path, _):
        if path == "ModelStatistics":
            self.counted()
        from tritonclient.grpc import model_config_pb2 as config
        from tritonclient.grpc import service_pb2 as pb

        n = self.server.ok
        each = pb.StatisticDuration(count=n, ns=n * 1000)
        names = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
        tensor = pb.ModelMetadataResponse.TensorMetadata(name="INPUT", datatype="FP32", shape=[-1, 4])
        out = pb.ModelMetadataResponse.TensorMetadata(name="y", datatype="FP32", shape=[-1, 16])
        one = config.ModelInput(name="INPUT", data_type="TYPE_FP32", dims=[4])
        datatype, dim = self.server.output
        other = config.ModelOutput(name="y", data_type=datatype, dims=[dim])
        return {
            "ServerLive": lambda: pb.ServerLiveResponse(live=True),
            "ServerReady": lambda: pb.ServerReadyResponse(ready=True),
            "ModelReady": lambda: pb.ModelReadyResponse(ready=True),
            "ServerMetadata": lambda: pb.ServerMetadataResponse(name="scripted", version="0", extensions=["statistics"]),
            "ModelMetadata": lambda: pb.ModelMetadataResponse(name="m", versions=["1"], platform="x", inputs=[tensor], outputs=[out]),
            "ModelConfig": lambda: pb.ModelConfigResponse(
                config=config.ModelConfig(name="m", backend="python", max_batch_size=8, input=[one], output=[other])
            ),
            "ModelStatistics": lambda: pb.ModelStatisticsResponse(model_stats=[pb.ModelStatistics(
                name="m", version="1", inference_count=n, execution_count=n,
                inference_stats=pb.InferStatistics(**dict.fromkeys(names, each)))]),
        }[path]()  # fmt: skip


class Scripted:
    """Serves in a thread.  `sips`: bytes that a gRPC client gets its window widened by, a frame (0: wide windows)."""

    def __init__(
        self,
        protocol,
        fault=lambda *_: None,
        *,
        sips=0,
        tls=None,
        until_asked=False,
        output=("TYPE_FP32", 16),
    ):
        self.output = output  # of the model over gRPC: datatype and dims
        self.protocol, self.fault, self.sips, self.tls = protocol, fault, sips, tls
        wide = frame(4, 0, 0) + frame(8, 0, 0, u32(1 << 30))
        self.hello = setting(4, sips) if sips else wide
        self.until_asked, self.calm = until_asked, False
        self.links = set()
        self.hosts = []  # what every request said it was for
        self.connections = self.inferences = self.ok = 0

    def __enter__(self):
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    async def _serve(self, ready):
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        await self._listen(0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.target = f"{self.protocol}{'s' if self.tls else ''}://127.0.0.1:{self.port}"
        ready.set()
        await self._end.wait()
        self._shut()

    async def _listen(self, port):
        make = {"http": HttpLink, "grpc": GrpcLink}[self.protocol]
        self._server = await self._loop.create_server(
            lambda: make(self), "127.0.0.1", port, ssl=self.tls, backlog=256
        )

    def _shut(self):
        self._server.close()
        for link in list(self.links):
            link.transport.abort()

    def restart(self, down_s, tls=None):
        """Called by a script: nobody listens for that long; comes back on the same port, maybe with other TLS."""

        async def back():
            await asyncio.sleep(down_s)
            self.tls = tls or self.tls
            await self._listen(self.port)

        self._shut()
        self._back = self._loop.create_task(back())


__all__ = ["GRPC_HEAD", "GRPC_TRAILERS", "INFER_REPLY", "Scripted", "frame", "goaway", "grpc_message", "http_reply", "refused", "setting", "trailers", "u32"]  # fmt: skip
