"""How fast can this machine send?  The client's own ceiling, measured against a target that does nothing.

A rate is not to be believed near it: `loadgen bench client` measures and stores it, runs compare what they
ask for with it before they start.  The figure is requests a second of one worker in a closed loop of 32
users with small tensors, records written, the null server on another core if there is one.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from loadgen.clock import MONOTONIC
from loadgen.engine.loop import Engine
from loadgen.engine.pacer import make_pacer
from loadgen.engine.parts import Shot
from loadgen.lab.loop import new_loop
from loadgen.lab.target import make_transport
from loadgen.planstory import fullest_per_s
from loadgen.records import LoadgenError, NotWrittenError, PhasePlan, Plan, Tensor
from loadgen.runfile import RecordWriter, write_atomic
from loadgen.target import Target, parse_target
from loadgen.wire import kserve_grpc, kserve_http

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SAFE_SHARE = 0.7  # of the ceiling: above it lag grows before anything else tells
_USERS = 32
_VARIANTS = 64
_PROTOCOLS = ("http", "grpc")


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One protocol's: requests a second of one worker, and its CPU nanoseconds (user and system) a request."""

    protocol: str
    per_s: float
    cpu_ns_per_request: float
    requests: int


def ceiling_path() -> Path:
    """Where it is stored: loadgen/ceiling.json in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME")
    base = Path(cache) if cache and Path(cache).is_absolute() else Path.home() / ".cache"
    return base / "loadgen" / "ceiling.json"


def read_ceilings() -> dict[str, float]:
    """Requests a second by protocol, as stored on this host; empty when never measured."""
    try:
        stored = json.loads(ceiling_path().read_text(encoding="utf-8"))
        if stored["host"] != os.uname().nodename:
            return {}
        return {row["protocol"]: float(row["per_s"]) for row in stored["ceilings"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def store_ceilings(ceilings: Sequence[Ceiling]) -> Path:
    """Writes them for later runs.  Raises NotWrittenError."""
    path = ceiling_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as why:
        raise NotWrittenError(
            path.parent,
            why,
            "the figures are not stored for later runs: set XDG_CACHE_HOME to a writable folder",
        ) from None
    content = {"host": os.uname().nodename, "ceilings": [asdict(c) for c in ceilings]}
    write_atomic(path, json.dumps(content, indent=1) + "\n")
    return path


def measure_ceiling(protocol: str, seconds: float) -> Ceiling:
    """Sends for that long to a null server of its own."""
    with null_server(protocol) as target, asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_measure(target, seconds))


@contextmanager
def null_server(protocol: str) -> Iterator[Target]:
    """A process that answers every request at once with the same bytes, on loopback."""
    command = [sys.executable, "-m", "loadgen.lab.null_server", protocol]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # noqa: S101 - asked for
        assert process.stdin is not None  # noqa: S101 - asked for
        try:
            yield parse_target(f"{protocol}://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.stdin.close()  # it ends when nobody holds its input


async def _measure(target: Target, seconds: float) -> Ceiling:
    rng = np.random.default_rng(0)
    tensors = [
        Tensor("INPUT", "FP32", (1, 16), rng.random(16, np.float32).tobytes()) for _ in range(_VARIANTS)
    ]
    transport = make_transport(target)
    encode = (kserve_grpc if target.protocol == "grpc" else kserve_http).infer_request
    shots = [Shot(transport.prepare(encode("null", "", (tensor,))), 0, 16, 1) for tensor in tensors]
    phases = tuple(_phase(name, s) for name, s in (("warm-up", 0.3), ("load", seconds)))
    plan = Plan(0, ("k",), phases)
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory() as folder:
        writer = RecordWriter(Path(folder) / "records.arrow", [p.name for p in phases], ["k"], None)
        engine = Engine(
            plan,
            shots,
            [np.arange(_VARIANTS, dtype=np.int32)] * 2,
            [10 * 10**9],
            transport,
            writer,
            MONOTONIC,
            lambda: make_pacer(loop, MONOTONIC)[0],
        )
        await transport.open(engine, _USERS if target.protocol == "http" else 1)
        await engine.run_phase(0)
        before = engine.counts.ok
        result = await engine.run_phase(1)
        done = engine.counts.ok - before
        engine.close()
        await transport.close()
        writer.close()
    if not done:
        raise LoadgenError(f"the null server answered nothing over {target.protocol}")
    span_s = (result.end_ns - result.start_ns) / 1e9
    return Ceiling(target.protocol, done / span_s, result.cpu_ns / done, done)


def _phase(name: str, seconds: float) -> PhasePlan:
    return PhasePlan(
        name=name, loop="closed", measured=True, duration_ns=round(seconds * 1e9), due_ns=None,
        kind=np.zeros(_VARIANTS, np.int16), draw=np.arange(_VARIANTS, dtype=np.uint32), users=_USERS,
    )  # fmt: skip


def headroom_warning(
    peak_per_s: float, protocol: str, workers: int, ceilings: dict[str, float]
) -> str | None:
    """A line when a rate is more than 70 % of what the stored ceiling allows; None when it is not, or unknown."""
    ceiling = ceilings.get(protocol)
    if ceiling is None or peak_per_s <= SAFE_SHARE * ceiling * workers:
        return None
    return (
        f"the profile asks for up to {peak_per_s:.0f} requests/s, more than {SAFE_SHARE:.0%} of this client's ceiling of "
        f"{ceiling * workers:.0f}/s over {protocol} with {workers} worker{'s' if workers > 1 else ''} "
        "(loadgen bench client): use more workers, or do not believe the tail"
    )


def peak_per_s(plan: Plan) -> float:
    """The fullest second of any open phase; 0 for closed loops, whose rate is the server's choice."""
    return fullest_per_s(plan, 10**9)
