"""CPU per streamed answer of the client process: requests of 16 answers against a scripted server of its own process.

    python tests/bench/stream_cost.py [--requests 1000] [--answers 16] [--concurrency 64] [--kinds ours,official]

Whole process, user + system, between the first request and the last answer; every answer is stamped and kept
until its request ends.  `apart`: the server writes the nth answer of every open stream, then the next (a batch
that decodes); `at once`: all answers of a request in one write.  `official` is tritonclient.grpc.aio's
stream_infer, one stream a request too.
"""

import argparse
import asyncio
import gc
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from null_server import GRPC_HEAD, GRPC_TRAILERS, ScriptedGrpc, frame, grpc_message

from loadgen.clock import MONOTONIC
from loadgen.records import Tensor
from loadgen.target import parse_target
from loadgen.transport.grpc import GrpcTransport
from loadgen.wire.kserve_grpc import stream_infer_request

TENSORS = (Tensor("x", "FP32", (1, 16), bytes(64)),)


def response(final):
    from tritonclient.grpc import service_pb2 as pb

    message = pb.ModelStreamInferResponse()
    told = message.infer_response
    told.model_name, told.model_version = "model", "1"
    told.parameters["triton_final_response"].bool_param = final
    if not final:
        told.outputs.add(name="OUTPUT", datatype="FP32", shape=[1, 16])
        told.raw_output_contents.append(bytes(64))
    return grpc_message(message.SerializeToString())


async def serve(answers, apart):
    answer, last = response(final=False), response(final=True)
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    hello = frame(4, 0, 0, b"\0\3\0\1\0\0") + frame(8, 0, 0, (1 << 30).to_bytes(4, "big"))
    left = {}

    def turn(link):
        """The next answer of each open stream, in one write."""
        out, open_ = [], left[link]
        for sid in list(open_):
            if open_[sid]:
                open_[sid] -= 1
                out.append(frame(0, 0, sid, answer))
            else:
                del open_[sid]
                out.append(frame(0, 0, sid, last) + frame(1, 5, sid, GRPC_TRAILERS))
        link.write(*out)
        if open_:
            loop.call_later(0.001, turn, link)

    def handle(link, sid):
        if not apart:
            link.frames.clear()
            link.write(frame(1, 4, sid, GRPC_HEAD), frame(0, 0, sid, answer) * answers,
                       frame(0, 0, sid, last), frame(1, 5, sid, GRPC_TRAILERS))  # fmt: skip
            return
        link.frames.clear()
        open_ = left.setdefault(link, {})
        link.write(frame(1, 4, sid, GRPC_HEAD))
        if not open_:
            loop.call_later(0.001, turn, link)
        open_[sid] = answers

    loop.add_reader(0, done.set)
    server = await loop.create_server(lambda: ScriptedGrpc(handle, [], hello), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await done.wait()
    server.close()


@contextmanager
def served(answers, *, apart):
    with subprocess.Popen(
        [sys.executable, __file__, "--serve", "--answers", str(answers), *(["--apart"] if apart else [])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()


class Loop:
    """Sends the next request when one ends, until all were sent."""

    def __init__(self, transport, prepared, requests):
        self.send, self.prepared, self.left = transport.send, prepared, requests
        self.open = self.answers = self.failed = 0
        self.done = asyncio.get_running_loop().create_future()

    def next(self):
        self.left -= 1
        self.open += 1
        self.send(self.left, self.prepared)

    def on_streamed(self, token, sent_ns, outcome, streamed):
        self.answers += len(streamed.chunk_ns)

    def on_reply(self, token, sent_ns, first_ns, done_ns, outcome, status, bytes_in, detail):
        self.failed += bool(outcome)
        self.open -= 1
        if self.left > 0:
            self.next()
        elif not self.open:
            self.done.set_result(None)


async def ours(port, requests, users):
    transport = GrpcTransport(parse_target(f"grpc://127.0.0.1:{port}"), MONOTONIC)
    prepared = transport.prepare(stream_infer_request("model", "", TENSORS))
    loop = Loop(transport, prepared, requests)
    await transport.open(loop, 1)
    gc.collect()
    gc.disable()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(users):
        loop.next()
    await loop.done
    took = time.process_time() - cpu, time.perf_counter() - wall
    await transport.close()
    return *took, loop.answers, loop.failed


async def official(port, requests, users):
    import numpy as np
    from tritonclient.grpc import aio

    tensor = aio.InferInput("x", [1, 16], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 16), np.float32))
    left, answers = iter(range(requests)), []

    async def asking():
        yield {"model_name": "model", "inputs": [tensor], "enable_empty_final_response": True}

    async def user(client):
        for _ in left:
            async for result, error in client.stream_infer(asking()):
                assert error is None
                if result.get_response().outputs:
                    answers.append(time.monotonic_ns())

    async with aio.InferenceServerClient(f"127.0.0.1:{port}") as client:
        gc.collect()
        gc.disable()
        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(user(client) for _ in range(users)))
        return time.process_time() - cpu, time.perf_counter() - wall, len(answers), 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--answers", type=int, default=16)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", default="ours,official")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--apart", action="store_true")
    given = parser.parse_args()
    import uvloop

    if given.serve:
        uvloop.run(serve(given.answers, given.apart))
        return
    for kind in given.kinds.split(","):
        run = {"ours": uvloop.run, "official": asyncio.run}[kind]
        for apart in (False, True):
            with served(given.answers, apart=apart) as port:
                rounds = [
                    run(globals()[kind](port, given.requests, given.concurrency)) for _ in range(given.rounds)
                ]
            cpu, wall = (statistics.median(column) for column in list(zip(*rounds, strict=True))[:2])
            answers, failed = rounds[0][2], sum(r[3] for r in rounds)
            assert answers == given.requests * given.answers, answers
            how = "apart" if apart else "at once"
            print(f"{kind:8} {how:8} {cpu / answers * 1e6:7.2f} us CPU an answer  {cpu / given.requests * 1e6:8.1f} a request"
                  f"  {answers / wall:8.0f} answers/s  {failed} failed")  # fmt: skip


if __name__ == "__main__":
    main()
