"""The transports without a socket or a clock: bytes of answers in, as reads cut anywhere, outcomes out."""

import asyncio
from itertools import pairwise

from null_server import GRPC_HEAD, GRPC_TRAILERS, ScriptedGrpc, frame, grpc_message

from loadgen.target import parse_target
from loadgen.transport import grpc_connection, http_connection
from loadgen.transport.grpc import GrpcTransport
from loadgen.transport.http import HttpTransport
from loadgen.wire.h2_frames import Stream


class Ticks:
    """Each look is a nanosecond later; never one at which an answer is read in any case."""

    ns = 0

    def now_ns(self):
        self.ns += 1 + (self.ns % 4096 == 4095)
        return self.ns


class Pipe(asyncio.Transport):
    """Takes what is written."""

    def get_extra_info(self, name, default=None):
        return True if name == "ssl_object" else default

    def write(self, data):
        pass

    def is_closing(self):
        return False

    def close(self):
        pass

    abort = close


def cuts(data, at):
    """The data in pieces that end at `at`."""
    ends = sorted({0, *(n % (len(data) + 1) for n in at), len(data)})
    return [data[a:b] for a, b in pairwise(ends)]


def over_http(request, answers):
    """Outcomes of one request sent once for each answer: a list of reads."""
    transport, found = HttpTransport(parse_target("http://127.0.0.1:1"), Ticks()), []
    transport.on_reply = lambda *reply: found.append(reply[4])
    prepared = transport.prepare(request)
    for token, reads in enumerate(answers):
        link = http_connection.Connection(transport)
        link.connection_made(Pipe())
        transport.idle.append(link)
        transport.send(token, prepared)
        for read in reads:
            link.data_received(read)
        transport.idle.clear()
    return found


def over_grpc(request, answers):
    """The same for messages: (pieces that are DATA frames, where reads of the frames are cut)."""

    async def job():
        transport, found = GrpcTransport(parse_target("grpc://127.0.0.1:1"), Ticks()), []
        transport.on_reply = lambda *reply: found.append(reply[4])
        prepared = transport.prepare(request)
        link = grpc_connection.Connection(transport)
        link.connection_made(Pipe())
        link.data_received(ScriptedGrpc.hello)
        for token, (pieces, at) in enumerate(answers):
            stream = Stream(token, prepared)
            stream.link = link
            transport.flying[token] = stream
            link.h2.request(stream)
            sid = stream.id
            frames = [frame(0, 0, sid, piece) for piece in pieces]
            whole = b"".join((frame(1, 4, sid, GRPC_HEAD), *frames, frame(1, 5, sid, GRPC_TRAILERS)))
            for read in cuts(whole, at):
                link.data_received(read)
        return found

    return asyncio.run(job())


def in_frames(message, at):
    """A gRPC message as the pieces of its DATA frames."""
    return cuts(grpc_message(message), at)
