"""The clients that the bench compares, each as a command line and a reader of what it reports.

CPU is the whole process with its children, user + system, start and end included (os.wait4).  A cell is
what one run of one client gave; figures that a client does not report are None.  Nothing here interprets.
"""

from __future__ import annotations

import csv
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.records import Tensor
from loadgen.wire.kserve_http import infer_request
from tests.bench.servers import MODEL, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROFILE = """
name: bench
kinds:
  k: {model: %s, length: {fixed: 16}}
phases:
  - {name: warm-up, warmup: true, %s}
  - {name: load, %s}
"""
WARM_UP_S = 0.5
_DOUBTFUL = 3  # loadgen's exit code for a run with a doubt, e.g. the client shares its cores with the server


@dataclass(frozen=True)
class Job:
    """What one client is to do: `users` in a closed loop, or `rate` a second, evenly spaced, in an open one."""

    server: Server
    protocol: str
    users: int | None = None
    rate: int | None = None
    seconds: float = 5.0


@dataclass
class Cell:
    """One run.  Times in microseconds; `requests` is what the server counted, warm-up included."""

    requests: int
    cpu_us: float  # a request
    rps: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    cores: float = 0.0  # the client's CPU over the time it ran
    server_us: float = 0.0  # the server's CPU, a request
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Client:
    """`who` names its row.  `run` makes one cell; `detail` hands over what a capture is held against."""

    who: str
    protocols: tuple[str, ...]
    loops: tuple[str, ...]  # of closed, open
    run: Callable[[Job], Cell]


class FailedError(Exception):
    """A client that did not do its job, in its own last words."""


def timed(command: list[str], job: Job, allowed: tuple[int, ...] = (0,)) -> tuple[Cell, str]:
    """Runs the command to its end; its output too."""
    before, server_s = job.server.count(job.protocol), job.server.cpu_s(job.protocol)
    start = time.monotonic()
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        except OSError as why:
            raise FailedError(f"{command[0]} cannot be run: {why.strerror}") from None
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        process.returncode = code = os.waitstatus_to_exitcode(status)
        took = time.monotonic() - start
        log.seek(0)
        said = log.read().decode(errors="replace")
    if code not in allowed:
        raise FailedError(f"{Path(command[0]).name} exited with {code}: {' '.join(said.split())[-300:]}")
    requests = job.server.count(job.protocol) - before
    cpu_s, server_s = usage.ru_utime + usage.ru_stime, job.server.cpu_s(job.protocol) - server_s
    if requests <= 0:
        raise FailedError(f"{Path(command[0]).name}: the server counted no request")
    return Cell(
        requests, cpu_s / requests * 1e6, cores=cpu_s / took, server_us=server_s / requests * 1e6
    ), said


def address(job: Job) -> str:
    return f"127.0.0.1:{job.server.ports[job.protocol]}"


# -- loadgen ---------------------------------------------------------------------------------------


@functools.cache
def run_options() -> str:
    """The help of `loadgen run`: tells which options this loadgen has."""
    told = subprocess.run(
        [sys.executable, "-m", "loadgen", "run", "--help"], check=False, capture_output=True, text=True
    )
    return told.stdout


def loadgen(job: Job, options: tuple[str, ...] = ()) -> Cell:
    warm_up, load = (
        f"closed: {{users: {job.users}, duration: {seconds}s}}"
        if job.users
        else f"open: {{arrivals: uniform, rate: [{{duration: {seconds}s, at: {job.rate}/s}}]}}"
        for seconds in (WARM_UP_S, job.seconds)
    )
    with tempfile.TemporaryDirectory(prefix="loadgen-bench-") as folder:
        profile, out = Path(folder) / "profile.yaml", Path(folder) / "run"
        profile.write_text(PROFILE % (MODEL, warm_up, load))
        target = f"{job.protocol}://{address(job)}"
        command = [sys.executable, "-m", "loadgen", "run", str(profile), "--target", target, "--out", str(out), "-q", *options]  # fmt: skip
        cell, said = timed(command, job, (0, _DOUBTFUL))
        summary = json.loads((out / "summary.json").read_text())
        total = summary["total"]
        if total["counts"]["ok"] == 0:
            raise FailedError(f"loadgen: {total['counts']}")
        cell.rps = total["achieved_per_s"]
        cell.p50_us, cell.p99_us = (total["latency_ns"][q] / 1e3 for q in ("p50", "p99"))
        client = summary["client"]
        cell.more = {
            "loop_cpu_us": (client.get("cpu_ns_per_request") or 0) / 1e3,
            "lag_p50_us": total["lag_ns"]["p50"] / 1e3,
            "lag_p99_us": total["lag_ns"]["p99"] / 1e3,
            "failed": total["counts"]["failed"],
            "doubts": [doubt["code"] for doubt in summary["doubts"]],
            "stamps": stamps(out),
            "said": [line for line in said.splitlines() if "realtime" in line.lower() or "SCHED" in line],
        }
    return cell


def stamps(run: Path) -> dict[str, Any]:
    """Due and sent times of the measured phase's requests, by the run's own clock, in order of sending."""
    from loadgen.analysis.frame import frame_of, measured_phases
    from loadgen.runread import read_run

    read = read_run(run)
    frame = frame_of(read)
    frame = frame.where(np.isin(frame.phase, measured_phases(read.info)) & frame.sent)
    return {"due": np.sort(frame.due_ns), "sent": np.sort(frame.sent_ns)}


# -- perf_analyzer ---------------------------------------------------------------------------------


def perf_analyzer_path() -> str | None:
    return os.environ.get("PERF_ANALYZER") or shutil.which("perf_analyzer")


def perf_analyzer(job: Job) -> Cell:
    """Three windows, whatever their spread; it rests a fifth of a window between them."""
    tool = perf_analyzer_path()
    assert tool is not None
    load = (["--concurrency-range", str(job.users)] if job.users else
            ["--request-rate-range", str(job.rate), "--request-distribution", "constant"])  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="loadgen-bench-") as folder:
        table = Path(folder) / "pa.csv"
        command = [tool, "-m", MODEL, "-x", "1", "-i", job.protocol, "-u", address(job), "--shape", "INPUT:16", *load,
                   "--measurement-interval", str(round(job.seconds * 1000 / 3.6)), "--stability-percentage", "999",
                   "--max-trials", "3", "-f", str(table)]  # fmt: skip
        cell, said = timed(command, job)
        row = next(csv.DictReader(table.open()))
    cell.rps, cell.p50_us, cell.p99_us = (
        float(row[k]) for k in ("Inferences/Second", "p50 latency", "p99 latency")
    )
    cell.more = {"said": [line.strip() for line in said.splitlines() if "WARNING" in line]}
    return cell


# -- wrk -------------------------------------------------------------------------------------------

WRK = """
wrk.method = "POST"
wrk.body = %s
%s
function done(summary, latency, requests)
  io.write(string.format("\\ntold %%d %%d %%d %%d %%d\\n", latency:percentile(50), latency:percentile(99),
    summary.requests, summary.duration, summary.errors.status + summary.errors.read + summary.errors.timeout))
end
"""


def wrk(job: Job) -> Cell:
    """One thread; keeps a histogram, no record."""
    request = infer_request(MODEL, "", [Tensor("INPUT", "FP32", (1, 16), bytes(np.arange(16, dtype="<f4")))])
    body = '"' + "".join(f"\\{byte:03d}" for byte in request.body) + '"'
    headers = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in request.headers)
    with tempfile.TemporaryDirectory(prefix="loadgen-bench-") as folder:
        script = Path(folder) / "post.lua"
        script.write_text(WRK % (body, headers))
        command = ["wrk", "-t", "1", "-c", str(job.users), "-d", f"{max(1, round(job.seconds))}s", "-s", str(script),
                   f"http://{address(job)}/{request.path.lstrip('/')}"]  # fmt: skip
        cell, said = timed(command, job)
    told = next((line.split()[1:] for line in said.splitlines() if line.startswith("told ")), None)
    if told is None or int(told[4]):
        raise FailedError(f"wrk: {' '.join(said.split())[-300:]}")
    cell.p50_us, cell.p99_us = float(told[0]), float(told[1])
    cell.rps = int(told[2]) / int(told[3]) * 1e6
    return cell


# -- which of them are here ------------------------------------------------------------------------


def clients() -> Iterator[Client]:
    """Those that can run on this machine, loadgen first."""
    both, loops = ("http", "grpc"), ("closed", "open")
    yield Client("loadgen", both, loops, loadgen)
    if "--workers" in run_options():
        yield Client("loadgen -w2", both, ("closed",), functools.partial(loadgen, options=("--workers", "2")))
    if "--realtime" in run_options():
        yield Client(
            "loadgen -rt", both, ("open", "closed"), functools.partial(loadgen, options=("--realtime",))
        )
    if perf_analyzer_path():
        yield Client("perf_analyzer", both, loops, perf_analyzer)
    if shutil.which("wrk"):
        yield Client("wrk", ("http",), ("closed",), wrk)


def missing() -> list[str]:
    """What is not here, what that leaves out, and how to get it."""
    lines = []
    if not perf_analyzer_path():
        lines.append("perf_analyzer is missing: no comparison with it "
                     "(pip install perf-analyzer, then PERF_ANALYZER=/path/to/perf_analyzer)")  # fmt: skip
    elif not os.access(perf_analyzer_path() or "", os.X_OK):
        lines.append(f"PERF_ANALYZER={perf_analyzer_path()} cannot be run")
    for tool, package, lost in (("wrk", "wrk", "its rows"), ("nginx", "nginx-light", "the null HTTP server"),
                                ("tcpdump", "tcpdump", "every figure on the wire")):  # fmt: skip
        if not shutil.which(tool):
            lines.append(f"{tool} is missing: {lost} left out (apt-get install {package})")
    if "--workers" not in run_options():
        lines.append("this loadgen has no --workers: its rows are left out")
    if "--realtime" not in run_options():
        lines.append("this loadgen has no --realtime: its rows are left out")
    return lines


@contextmanager
def no_proxy() -> Iterator[None]:
    """Clients go straight to loopback."""
    held = {name: os.environ.pop(name) for name in list(os.environ) if name.lower() in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")}  # fmt: skip
    try:
        yield
    finally:
        os.environ.update(held)
