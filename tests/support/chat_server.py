"""An OpenAI-compatible server that answers as each request scripts it, and keeps when it sent what.

    with ChatServer() as server: …      # server.target, server.log()

A process of its own, so that its stamps are its own.  A request's script is the field `script` of its body
(`extra: {script: {first_ms: 30, gap_ms: 5, chunks: 8}}` in a profile); see `Script`.  `log()` has one entry a POST
in order of arrival: path, body, arrived_ns, status, sent (the stamps of its events, by name), gone_ns (when the
client closed first); stamps are of CLOCK_MONOTONIC, taken right before the write.
"""

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

MODELS = ["scripted"]


@dataclass
class Script:
    """How one answer comes.  Counts of chunks are from the first with content on."""

    first_ms: float = 5  # from the request to the first chunk with content
    gap_ms: float = 2
    chunks: int = 4
    tokens: int | None = None  # that usage tells; None: it tells none, also when asked
    role: bool = True  # a chunk with the role comes at once
    reasoning: int = 0  # chunks of it, a gap each, before the content
    empty: int = 0  # chunks with an empty text, a gap each, before the content
    blocks: bool = False  # content is a list of typed blocks
    cached: int | None = None  # tokens of the prompt that usage tells were cached
    refuse_usage: bool = False  # 400 for stream_options
    refuse: int = 0  # this status, always
    error_after: int | None = None  # an error event instead of the rest
    cut_after: int | None = None  # the connection is closed instead of the rest
    hang_after: int | None = None  # nothing more comes
    calm: str = ""  # the first request with this word is answered well
    done: bool = True  # [DONE] at the end
    finish: str = "stop"


class _Answer:
    """Of one request."""

    def __init__(self, link, entry):
        self.link, self.entry, self.body = link, entry, entry["body"]
        known = Script.__dataclass_fields__
        self.script = Script(**{k: v for k, v in self.body.get("script", {}).items() if k in known})
        if self.script.calm not in link.calmed:
            link.calmed.add(self.script.calm)
            self.script = Script(first_ms=self.script.first_ms, chunks=self.script.chunks)
        self.chat = entry["path"].endswith("/chat/completions")

    def words(self, n):
        return f"a{self.entry['number']}w{n} "

    def said(self, text):
        return [{"type": "text", "text": text}] if self.script.blocks else text

    def choice(self, text=None, finish=None, **delta):
        if self.chat:
            return {
                "index": 0,
                "delta": delta | ({} if text is None else {"content": self.said(text)}),
                "finish_reason": finish,
            }
        return {"index": 0, "text": text or "", "finish_reason": finish}

    async def whole(self):
        s = self.script
        await asyncio.sleep((s.first_ms + s.gap_ms * (s.chunks - 1)) / 1000)
        text = "".join(self.words(n) for n in range(s.chunks))
        said = {"message": {"role": "assistant", "content": self.said(text)}} if self.chat else {"text": text}
        told = {
            "object": "chat.completion",
            "model": "scripted",
            "choices": [{"index": 0, "finish_reason": s.finish, **said}],
        }
        if s.tokens is not None:
            told["usage"] = self.usage()
        self.stamp("answer")
        self.link.reply(200, told)

    def usage(self):
        told = {"prompt_tokens": self.tokens_in(), "completion_tokens": self.script.tokens}
        cached = self.script.cached
        return told if cached is None else told | {"prompt_tokens_details": {"cached_tokens": cached}}

    def tokens_in(self):
        turns = self.body.get("messages") or [{"content": self.body.get("prompt", "")}]
        return sum(len(turn["content"].split()) for turn in turns)

    def stamp(self, name):
        self.entry["sent"].setdefault(name, []).append(time.monotonic_ns())

    def event(self, name, told):
        data = f"data: {told if isinstance(told, str) else json.dumps(told)}\n\n".encode()
        self.stamp(name)
        self.link.transport.write(b"%x\r\n%s\r\n" % (len(data), data))

    def chunk(self, name, *choices, **fields):
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        self.event(name, {"id": "x", "object": kind, "model": "scripted", "choices": list(choices), **fields})

    async def stream(self):
        s = self.script
        began = asyncio.get_running_loop().time()
        self.link.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        if s.role and self.chat:
            self.chunk("role", self.choice("", role="assistant"))
        for n in range(-s.empty, 0):
            await asyncio.sleep(s.first_ms / 1000 if n == -s.empty else s.gap_ms / 1000)
            self.chunk("empty", self.choice(""))
        began += s.empty * s.gap_ms / 1000
        for n in range(s.reasoning + s.chunks):
            at = began + (s.first_ms + n * s.gap_ms) / 1000
            await asyncio.sleep(max(0, at - asyncio.get_running_loop().time()))
            if n == s.error_after:
                self.event("error", {"error": {"message": "out of memory", "code": 500}})
                self.link.transport.write(b"0\r\n\r\n")
                return
            if n == s.cut_after:
                self.link.transport.close()
                return
            if n == s.hang_after:
                return
            if n < s.reasoning:
                self.chunk("reasoning", self.choice(reasoning_content=f"r{n} "))
            else:
                self.chunk("content", self.choice(self.words(n - s.reasoning)))
        self.chunk("finish", self.choice(finish=s.finish))
        if s.tokens is not None and (self.body.get("stream_options") or {}).get("include_usage"):
            self.chunk("usage", usage=self.usage())
        if s.done:
            self.event("done", "[DONE]")
        self.link.transport.write(b"0\r\n\r\n")


class _Link(asyncio.Protocol):
    log: list = []  # noqa: RUF012 - of the process
    calmed = {""}  # noqa: RUF012

    def connection_made(self, transport):
        self.transport, self.held, self.task, self.entry = transport, b"", None, None

    def connection_lost(self, _):
        if self.task is not None and not self.task.done():
            self.task.cancel()
        if self.entry is not None and "done" not in self.entry["sent"] and "answer" not in self.entry["sent"]:
            self.entry["gone_ns"] = time.monotonic_ns()

    def reply(self, status, told):
        body = json.dumps(told).encode()
        self.transport.write(b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                             % (status, len(body), body))  # fmt: skip

    def data_received(self, data):
        now = time.monotonic_ns()
        self.held += data
        end = self.held.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        head = self.held[:end].decode().lower()
        size = int(head.partition("content-length:")[2].partition("\r\n")[0] or 0)
        if len(self.held) < end + size:
            return
        body, self.held = self.held[end : end + size], self.held[end + size :]
        method, path, _ = self.held_line(head)
        if method == "get":
            listed = {"object": "list", "data": [{"id": name} for name in MODELS]}
            self.reply(200, {"log": self.log} if path == "/log" else listed)
        else:
            self.asked(path, json.loads(body), now)

    @staticmethod
    def held_line(head):
        return head.partition("\r\n")[0].split(" ")

    def asked(self, path, body, now):
        entry = self.entry = {"number": len(self.log), "path": path, "body": body, "arrived_ns": now, "status": 200,
                              "sent": {}, "gone_ns": 0}  # fmt: skip
        self.log.append(entry)
        answer = _Answer(self, entry)
        script = answer.script
        if script.refuse or (script.refuse_usage and "stream_options" in body):
            entry["status"] = script.refuse or 400
            self.reply(
                entry["status"],
                {"error": {"message": "no stream_options here" if not script.refuse else "no"}},
            )
        else:
            work = answer.stream() if body.get("stream") else answer.whole()
            self.task = asyncio.get_running_loop().create_task(work)


async def serve():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Link, "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    ends = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(ends), sys.stdin)
    await ends.read()
    server.close()


class ChatServer:
    """The process; it ends with its standard input."""

    def __enter__(self):
        self._process = subprocess.Popen([sys.executable, str(Path(__file__))], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)  # fmt: skip
        self.port = int(self._process.stdout.readline())
        self.target = f"openai+http://127.0.0.1:{self.port}/v1"
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(10)

    def log(self):
        """What was asked since the start."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.port}/log", timeout=10) as answer:
            return json.load(answer)["log"]


def script(**fields):
    """For a profile: `extra: {script: …}` in YAML's flow style."""
    plain = asdict(Script())
    return json.dumps({"script": {k: v for k, v in (plain | fields).items() if plain[k] != v or k in fields}})


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve())
