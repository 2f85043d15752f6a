"""A chat server that answers at once: a role, so many chunks, a finish, usage, [DONE], each event its own write.

    python tests/bench/instant_sse.py [--chunks 32]      prints its port; ends when its standard input does

Raw asyncio: what it costs is little beside any client.  A line on its input is answered with how many chats there were.
"""

import argparse
import asyncio
import json
import sys

import uvloop

MODEL = "instant"


def events(chunks):
    """The answer's events as HTTP chunks."""

    def event(choices, **fields):
        told = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": MODEL,
            "choices": choices,
            **fields,
        }
        return f"data: {json.dumps(told)}\n\n".encode()

    def delta(finish=None, **fields):
        return [{"index": 0, "delta": fields, "finish_reason": finish}]

    usage = {"prompt_tokens": 50, "completion_tokens": chunks, "total_tokens": 50 + chunks}
    plain = [event(delta(role="assistant", content="")), *(event(delta(content=f" word{n}")) for n in range(chunks)),
             event(delta("stop")), event([], usage=usage), b"data: [DONE]\n\n"]  # fmt: skip
    framed = [b"%x\r\n%s\r\n" % (len(data), data) for data in plain]
    framed[0] = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        + framed[0]
    )
    framed[-1] += b"0\r\n\r\n"
    return framed


class Chat(asyncio.Protocol):
    answer: tuple[bytes, ...] = ()
    count = 0

    def connection_made(self, transport):
        self.transport, self.held = transport, b""

    def data_received(self, data):
        self.held += data
        while (end := self.held.find(b"\r\n\r\n") + 4) > 3:
            head = self.held[:end].lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 : head.index(b"\r\n", at)]) if at >= 0 else 0
            if len(self.held) < end + size:
                return
            self.held = self.held[end + size :]
            if head.startswith(b"post"):
                Chat.count += 1
                for piece in self.answer:
                    self.transport.write(piece)
            else:
                body = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()
                status = b"200 OK" if b"/v1/models" in head else b"404 Not Found"
                self.transport.write(b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                                     % (status, len(body), body))  # fmt: skip


async def serve(chunks):
    Chat.answer = tuple(events(chunks))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Chat, "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    asked = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asked), sys.stdin)
    while await asked.readline():
        print(Chat.count, flush=True)
    server.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--chunks", type=int, default=32)
    uvloop.run(serve(parser.parse_args().chunks))
