"""The null server with answers that no two reads bring alike, for the bench.

    python tests/bench/altered_null.py http|grpc heads|cut

heads: each answer's head has a value of its own.  cut: an answer comes in two reads (HTTP) or two frames (gRPC).
"""

import asyncio
import itertools
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from loadgen.lab import null_server

HOW = ("heads", "cut")
_CUT_S = 0.001  # between the two reads
_LINE = b"\r\nContent-Length"
_nth = itertools.count()


def _number():
    return b"%016d" % next(_nth)


class Altered(null_server.NullHttp):
    how = ""

    def connection_made(self, transport):
        super().connection_made(transport)
        self._whole, self._write = self._write, self._altered

    def _altered(self, data):
        if self.how == "heads":
            self._whole(data.replace(_LINE, b"\r\nx-request-id: " + _number() + _LINE, 1))
            return
        at = len(data) - 100
        self._whole(data[:at])
        asyncio.get_running_loop().call_later(_CUT_S, self._whole, data[at:])


def altered_reply(how):
    frame, message = null_server._frame, null_server.INFER_REPLY
    body = b"\0" + len(message).to_bytes(4, "big") + message

    def reply(stream):
        head = null_server.GRPC_HEAD
        parts = [body]
        if how == "heads":
            head += b"\0\x0cx-request-id\x10" + _number()
        else:
            parts = [body[:50], body[50:]]
        return (
            frame(1, 4, stream, head)
            + b"".join(frame(0, 0, stream, part) for part in parts)
            + frame(1, 5, stream, null_server.GRPC_TRAILERS)
        )

    return reply


@contextmanager
def altered_process(kind, how):
    """The server in a process of its own; gives its port."""
    command = [sys.executable, __file__, kind, how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()  # it ends when nobody holds its input


if __name__ == "__main__":
    Altered.how = sys.argv[2]
    null_server.NullHttp = Altered
    null_server._grpc_reply = altered_reply(sys.argv[2])
    null_server.main()
