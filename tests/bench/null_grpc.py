"""A KServe v2 server over gRPC that does nothing, for the bench: fixed answers, written a batch at a time.

    python -m tests.bench.null_grpc MODEL

prints its port, then the number of inferences so far for each line on standard input, until that closes.
Calls that come in one read are answered in one write, and a call framed like the last one costs a
comparison: a server that cost as much as the client would be what is measured.  It decodes header blocks
(clients may use HPACK's dynamic table) and honours the client's connection window; it must not be used for
anything but a well-behaved peer on loopback.
"""

from __future__ import annotations

import asyncio
import os
import sys
from struct import Struct

import numpy as np
from hpack import Decoder

HEAD = Struct(">IBI")
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 32
MARK = b"\xf5\xed\xfa\xce"  # stands for the stream in a framed answer
_OPENING = b"\x88\x0f\x10\x10application/grpc"  # :status 200; content-type, a literal that is not indexed
_CLOSING = b"\x00\x0bgrpc-status\x010"
_UNIMPLEMENTED = b"\x00\x0bgrpc-status\x0212"
_WINDOW = 2**31 - 1
_PREFACE_BYTES = 24
_MANY = 48  # calls from which on numpy is cheaper than a loop


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def framed_answer(message: bytes) -> bytes:
    """A whole answer, with MARK where the stream's id belongs."""
    mark = int.from_bytes(MARK, "big")
    body = b"\0" + len(message).to_bytes(4, "big") + message
    return (frame(HEADERS, END_HEADERS, mark, _OPENING) + frame(DATA, 0, mark, body)
            + frame(HEADERS, END_HEADERS | END_STREAM, mark, _CLOSING))  # fmt: skip


def refusal() -> bytes:
    """UNIMPLEMENTED without a body."""
    mark = int.from_bytes(MARK, "big")
    return frame(HEADERS, END_HEADERS | END_STREAM, mark, _OPENING + _UNIMPLEMENTED)


class Answers:
    """The framed answer of each method; those to ModelStatistics are made anew, with the count so far."""

    def __init__(self, model: str) -> None:
        from google.protobuf import text_format
        from tritonclient.grpc import service_pb2 as pb

        self._pb, self._model = pb, model
        self.inferences = 0
        tensor = 'name: "%s" datatype: "FP32" shape: -1 shape: -1'
        config = f"""name: "{model}" backend: "null" max_batch_size: 8
            input {{ name: "INPUT" data_type: TYPE_FP32 dims: -1 }}
            output {{ name: "OUTPUT" data_type: TYPE_FP32 dims: -1 }}"""
        metadata = f"""name: "{model}" versions: "1" platform: "null"
            inputs {{ {tensor % "INPUT"} }} outputs {{ {tensor % "OUTPUT"} }}"""
        infer = pb.ModelInferResponse(model_name=model, model_version="1", raw_output_contents=[bytes(64)])
        infer.outputs.add(name="OUTPUT", datatype="FP32", shape=[1, 16])
        messages = {
            "ServerLive": pb.ServerLiveResponse(live=True),
            "ServerReady": pb.ServerReadyResponse(ready=True),
            "ModelReady": pb.ModelReadyResponse(ready=True),
            "ServerMetadata": pb.ServerMetadataResponse(name="null", version="0", extensions=["statistics"]),
            "ModelMetadata": text_format.Parse(metadata, pb.ModelMetadataResponse()),
            "ModelConfig": text_format.Parse(f"config {{ {config} }}", pb.ModelConfigResponse()),
            "ModelInfer": infer,
        }
        self._framed = {
            name: framed_answer(message.SerializeToString()) for name, message in messages.items()
        }
        self.infer = self._framed["ModelInfer"]
        self.marks = [at for at in range(len(self.infer)) if self.infer.startswith(MARK, at)]
        self._refusal = refusal()

    def to(self, method: str) -> bytes:
        if method != "ModelStatistics":
            return self._framed.get(method, self._refusal)
        told = self._pb.ModelStatisticsResponse()
        row = told.model_stats.add(name=self._model, version="1", inference_count=self.inferences,
                                   execution_count=self.inferences)  # fmt: skip
        stats = row.inference_stats
        for part in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
            getattr(stats, part).count = self.inferences
        return framed_answer(told.SerializeToString())


class NullGrpc(asyncio.Protocol):
    """One connection."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.held = b""
        self.greeted = False
        self.decoder = Decoder()
        self.known: dict[bytes, bytes] = {}  # header blocks that mean the same at any time -> answer
        self.open: dict[int, bytes] = {}  # streams whose request is not whole -> answer
        self.taken = 0  # bytes of DATA that the client has not been given back
        self.window = 65535
        self.parked: list[bytes] = []
        self.shape: tuple[Struct, bytes, bytes, bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.write = transport.write  # type: ignore[attr-defined]
        settings = b"\0\3\x7f\xff\xff\xff" + b"\0\4\x7f\xff\xff\xff" + b"\0\5\0\x10\0\0"
        self.write(frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, (_WINDOW - 65535).to_bytes(4, "big")))  # fmt: skip

    def data_received(self, data: bytes) -> None:
        if self.held:
            data = self.held + data
        pos = 0
        if not self.greeted:
            if len(data) < _PREFACE_BYTES:
                self.held = data
                return
            pos, self.greeted = _PREFACE_BYTES, True
        out: list[bytes] = []
        if self.shape is not None and not self.open:
            pos = self.alike(data, pos, out)
        size = len(data)
        while size - pos >= 9:
            word, flags, stream = HEAD.unpack_from(data, pos)
            end = pos + 9 + (word >> 8)
            if end > size:
                break
            self.frame(word & 255, flags, stream, data, pos, end, out)
            pos = end
        self.held = data[pos:]
        if self.taken > 1 << 28:
            out.append(frame(WINDOW_UPDATE, 0, 0, self.taken.to_bytes(4, "big")))
            self.taken = 0
        if out:
            self.write(b"".join(out))

    def alike(self, data: bytes, pos: int, out: list[bytes]) -> int:
        """Answers the run of inferences framed like the last one; returns where it ends."""
        assert self.shape is not None
        shape, head, block, body = self.shape
        answer, step = self.answers.infer, shape.size
        count = (len(data) - pos) // step
        if count >= _MANY and self.window > count * len(answer) and not self.parked:
            written = self.answer_many(data, pos, count, step)
            if written is not None:
                self.answers.inferences += count
                self.taken += count * int.from_bytes(body[:3], "big")
                self.window -= len(written)
                out.append(written)
                return pos + count * step
        more = []
        for _ in range(count):
            a, stream, b, c, again = shape.unpack_from(data, pos)
            if a != head or b != block or c != body or stream != again:
                break
            more.append(answer.replace(MARK, stream))
            pos += step
        count = len(more)
        if count:
            self.answers.inferences += count
            self.taken += count * (int.from_bytes(body[:3], "big"))
            if self.window > count * len(answer) and not self.parked:
                self.window -= count * len(answer)
                out += more
            else:
                for one in more:
                    self.tell(one, out)
        return pos

    def answer_many(self, data: bytes, pos: int, count: int, step: int) -> bytes | None:
        """The same for that many at once; None when one of them is framed otherwise."""
        assert self.shape is not None
        _, head, block, body = self.shape
        calls = np.frombuffer(data, np.uint8, count * step, pos).reshape(count, step)
        at = 9 + len(block)
        streams = calls[:, 5:9]
        for start, wanted in ((0, head), (9, block), (at, body)):
            if (calls[:, start : start + len(wanted)] != np.frombuffer(wanted, np.uint8)).any():
                return None
        if (streams != calls[:, at + 5 : at + 9]).any():
            return None
        written = np.empty((count, len(self.answers.infer)), np.uint8)
        written[:] = np.frombuffer(self.answers.infer, np.uint8)
        for place in self.answers.marks:
            written[:, place : place + 4] = streams
        return written.tobytes()

    def frame(
        self, kind: int, flags: int, stream: int, data: bytes, pos: int, end: int, out: list[bytes]
    ) -> None:
        if kind == DATA:
            self.taken += end - pos - 9
            if flags & END_STREAM:
                self.whole(stream, data, pos, end, out)
        elif kind == HEADERS:
            answer = self.method(self.unpadded(flags, data[pos + 9 : end]))
            self.open[stream] = answer
            self.last = (data[pos : pos + 5], data[pos + 9 : end], stream)
            if flags & END_STREAM:
                self.whole(stream, b"", 0, 0, out)
        elif kind == SETTINGS and not flags & ACK:
            out.append(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            out.append(frame(PING, ACK, 0, data[pos + 9 : end]))
        elif kind == WINDOW_UPDATE and not stream:
            self.window += int.from_bytes(data[pos + 9 : end], "big")
            parked, self.parked = self.parked, []
            for one in parked:
                self.tell(one, out)

    @staticmethod
    def unpadded(flags: int, payload: bytes) -> bytes:
        start, stop = 0, len(payload)
        if flags & PADDED:
            start, stop = 1, stop - payload[0]
        return payload[start + (5 if flags & PRIORITY else 0) : stop]

    def method(self, block: bytes) -> bytes:
        """The answer to a call with this header block."""
        known = self.known.get(block)
        if known is not None:
            return known
        table = self.decoder.header_table.dynamic_entries
        before = list(table)
        path = next(value for name, value in self.decoder.decode(block, raw=True) if name == b":path")
        answer = self.answers.to(bytes(path).rpartition(b"/")[2].decode())
        if list(self.decoder.header_table.dynamic_entries) != before:
            self.known.clear()  # indices have moved
            self.shape = None
        elif answer is self.answers.infer:
            self.known[block] = answer
        return answer

    def whole(self, stream: int, data: bytes, pos: int, end: int, out: list[bytes]) -> None:
        answer = self.open.pop(stream, None)
        if answer is None:
            return
        if answer is self.answers.infer:
            self.answers.inferences += 1
            head, block, last = self.last
            if block in self.known and last == stream and end:
                shape = Struct(f">5s4s{len(block)}s5s4s{end - pos - 9}x")
                self.shape = (shape, head, block, data[pos : pos + 5])
        self.tell(answer.replace(MARK, stream.to_bytes(4, "big")), out)

    def tell(self, answer: bytes, out: list[bytes]) -> None:
        """Headers are not under flow control, but counting them keeps the sums simple and errs on the safe side."""
        if self.parked or len(answer) > self.window:
            self.parked.append(answer)
        else:
            self.window -= len(answer)
            out.append(answer)


async def serve(model: str) -> None:
    loop = asyncio.get_running_loop()
    answers, done = Answers(model), loop.create_future()

    def asked() -> None:
        lines = os.read(0, 4096)
        for _ in range(lines.count(b"\n")):
            print(answers.inferences, flush=True)
        if not lines and not done.done():
            done.set_result(None)

    loop.add_reader(0, asked)
    server = await loop.create_server(lambda: NullGrpc(answers), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await done
    server.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(sys.argv[1]))
