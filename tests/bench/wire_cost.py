"""CPU per request of the client process in a closed loop against a null server of its own process.

    python tests/bench/wire_cost.py [--requests 200000] [--concurrency 32] [--loop uvloop] [--profile]
        [--unread] [--answers same,heads,cut]

Whole process, user + system, over the requests between the first and the last answer.  The receiver keeps
nothing, so this is the wire and the transport alone.  `--unread` shows beside it what answers cost that nobody
reads; `--answers` how they come: the same each time, with a head of its own each time, or cut (altered_null.py).
"""

import argparse
import asyncio
import cProfile
import gc
import pstats
import statistics
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from altered_null import HOW, altered_process
from null_server import null_process

from loadgen.clock import MONOTONIC
from loadgen.records import Tensor
from loadgen.target import parse_target
from loadgen.transport.grpc import GrpcTransport
from loadgen.transport.http import HttpTransport
from loadgen.transport.null import NullTransport
from loadgen.wire import kserve_grpc, kserve_http

TENSORS = (Tensor("x", "FP32", (1, 16), bytes(64)),)
OUTPUTS = {"y": ("FP32", (1, 16))}  # what the null server answers


class Loop:
    """Sends the next request when one ends, until all were sent."""

    def __init__(self, transport, prepared, requests):
        self.send = transport.send
        self.prepared = prepared
        self.left = requests
        self.open = 0
        self.failed = 0
        self.done = asyncio.get_running_loop().create_future()

    def on_streamed(self, *_):
        pass

    def start(self, users):
        for _ in range(users):
            self.next()

    def next(self):
        left = self.left
        self.left = left - 1
        self.open += 1
        self.send(left, self.prepared[left % 64])

    def on_reply(self, token, sent_ns, first_ns, done_ns, outcome, status, bytes_in, detail):
        if outcome:
            self.failed += 1
        self.open -= 1
        if self.left > 0:
            self.next()
        elif not self.open:
            self.done.set_result(None)


class Bare(asyncio.Protocol):
    """The floor: fixed bytes out, any bytes in, nothing looked at.  Only fair where one read is one answer."""

    def __init__(self, data, loop):
        self.data, self.loop = data, loop

    def connection_made(self, transport):
        self.write = transport.write

    def data_received(self, data):
        self.loop.left -= 1
        if self.loop.left > 0:
            self.write(self.data)
        elif self.loop.left == 0:
            self.loop.done.set_result(None)


async def measure_bare(port, requests, users):
    transport = HttpTransport(parse_target(f"http://127.0.0.1:{port}"), MONOTONIC)
    data = transport.prepare(kserve_http.infer_request("identity", "", TENSORS)).data
    loop = Loop(transport, (), requests)
    make = asyncio.get_running_loop().create_connection
    links = [await make(lambda: Bare(data, loop), "127.0.0.1", port) for _ in range(users)]
    wall, cpu = time.perf_counter(), time.process_time()
    for link, _ in links:
        link.write(data)
    await loop.done
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    for link, _ in links:
        link.abort()
    return cpu / requests * 1e6, requests / wall, 0


async def measure(kind, port, requests, users, connections, *, read):
    if kind == "bare":
        return await measure_bare(port, requests, users)
    if kind == "http":
        transport = HttpTransport(parse_target(f"http://127.0.0.1:{port}"), MONOTONIC)
        request = kserve_http.infer_request("identity", "", TENSORS)
    elif kind == "grpc":
        transport = GrpcTransport(parse_target(f"grpc://127.0.0.1:{port}"), MONOTONIC)
        request = kserve_grpc.infer_request("identity", "", TENSORS)
    else:
        transport = NullTransport(MONOTONIC)
        request = kserve_grpc.infer_request("identity", "", TENSORS)
    if read:
        wire = kserve_http if kind == "http" else kserve_grpc
        request = replace(request, check=partial(wire.check_answer, OUTPUTS))
    prepared = [transport.prepare(request) for _ in range(64)]
    loop = Loop(transport, prepared, requests)
    await transport.open(loop, connections)
    gc.collect()
    gc.freeze()
    gc.disable()
    wall, cpu = time.perf_counter(), time.process_time()
    loop.start(users)
    await loop.done
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    await transport.close()
    return cpu / requests * 1e6, requests / wall, loop.failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", default="bare,http,grpc,null")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--unread", action="store_true", help="beside it, with answers that nobody reads")
    parser.add_argument("--answers", default="same", help=f"of same, {', '.join(HOW)}")
    given = parser.parse_args()
    run = asyncio.run
    if given.loop == "uvloop":
        import uvloop

        run = uvloop.run
    for kind in given.kinds.split(","):
        for how in given.answers.split(",") if kind in ("http", "grpc") else ("same",):
            compare(given, run, kind, how)


def compare(given, run, kind, how):
    protocol = "grpc" if kind in ("null", "grpc") else "http"
    server = null_process(protocol) if how == "same" else altered_process(protocol, how)
    with server as port:
        connections = given.concurrency if kind == "http" else 1
        ways = {"": True, "unread": False} if given.unread and kind in ("http", "grpc") else {"": True}
        rounds = {way: [] for way in ways}
        for _ in range(given.rounds):
            for way, read in ways.items():  # interleaved: the machine drifts
                job = measure(kind, port, given.requests, given.concurrency, connections, read=read)
                if given.profile:
                    with cProfile.Profile() as profile:
                        run(job)
                    pstats.Stats(profile).sort_stats("tottime").print_stats(14)
                    return
                rounds[way].append(run(job))
    for way, found in rounds.items():
        cost, rate = (statistics.median(column) for column in list(zip(*found, strict=True))[:2])
        failed = sum(r[2] for r in found)
        came = "" if how == "same" else how
        print(
            f"{kind:5} {came:5} {way:6} {cost:6.2f} us CPU a request  {rate:8.0f} requests/s  {failed} failed"
        )


if __name__ == "__main__":
    main()
