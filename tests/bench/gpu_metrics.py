"""What a run says of the GPU, held against nvidia-smi on the same machine: use, memory, power, energy a request.

    python3 -m tests.bench.gpu_metrics                      # a server of ours computes with torch while a run loads it
    python3 -m tests.bench.gpu_metrics --metrics URL        # and what a Triton's metrics page tells of the GPU now

Needs a GPU, nvidia-smi and torch, and this project's own packages for the run.  First NVML idle and busy, each against
nvidia-smi at that moment; then a run of 20 s whose summary is held against nvidia-smi sampled five times a second over
the same stretch.  Exit code: 0 all agree, 1 something does not, 3 the run's packages are missing (the first part is
done all the same).
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.environment.nvml import Gpu, Nvml

if TYPE_CHECKING:
    from collections.abc import Iterator

ASKED = ("uuid", "utilization.gpu", "memory.used", "power.draw")
EVERY_S, USERS, SECONDS = 0.2, 4, 20
# what may lie between two readings that are not of the same instant: shares of the figure, and plainly
WITHIN = {"utilisation": (0.0, 0.25), "memory_bytes": (0.02, 64 * 2**20), "power_w": (0.15, 15.0)}
PROFILE = f"""
name: gpu
kinds: {{k: {{model: m, length: 8, timeout: 30s}}}}
phases:
  - {{name: warm-up, warmup: true, closed: {{users: {USERS}, duration: 3s}}}}
  - {{name: load, closed: {{users: {USERS}, duration: {SECONDS}s}}}}
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """All GPUs at one moment of the monotonic clock: the mean use, the sums of memory and power; NaN: not told."""

    t_ns: int
    utilisation: float
    memory_bytes: float
    power_w: float


def read_smi(text: str) -> list[Gpu]:
    """Of `nvidia-smi --query-gpu=uuid,utilization.gpu,memory.used,power.draw --format=csv,noheader,nounits`."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(ASKED):
            used, mib, watts = (_number(cell) for cell in cells[1:])
            memory = None if mib is None else round(mib * 2**20)
            found.append(Gpu(cells[0], None if used is None else used / 100, memory, watts, None))
    return found


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:  # [N/A], [Not Supported]
        return None


def total(gpus: list[Gpu], t_ns: int = 0) -> Sample:
    def summed(name: str) -> float:
        values = [getattr(gpu, name) for gpu in gpus]
        return math.nan if not values or None in values else float(sum(values))

    return Sample(t_ns, summed("utilisation") / max(1, len(gpus)), summed("memory_bytes"), summed("power_w"))


def smi() -> Sample:
    command = ["nvidia-smi", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader,nounits"]
    asked = time.monotonic_ns()
    told = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    return total(read_smi(told.stdout), (asked + time.monotonic_ns()) // 2)


def compare(what: str, ours: dict[str, float], theirs: dict[str, float]) -> bool:
    """Prints both, figure by figure; whether all lie as close as they must.  What nobody can tell is left out."""
    good = True
    for key, (share, plainly) in WITHIN.items():
        a, b = ours.get(key, math.nan), theirs.get(key, math.nan)
        if math.isnan(a) or math.isnan(b):
            print(f"{what}: {key}: ours {a}, nvidia-smi {b}: not compared")
            continue
        close = abs(a - b) <= max(share * abs(b), plainly)
        good &= close
        print(f"{what}: {key}: ours {a:.6g}, nvidia-smi {b:.6g}: {'agree' if close else 'DIFFER'}")
    return good


def figures(sample: Sample) -> dict[str, float]:
    return {key: getattr(sample, key) for key in WITHIN}


def mean(samples: list[Sample]) -> dict[str, float]:
    return {key: sum(getattr(one, key) for one in samples) / len(samples) for key in WITHIN}


def joules(samples: list[Sample], start_ns: int, end_ns: int) -> float:
    """Power over time, by trapezes between the samples, the first and last held to the ends of the stretch."""
    inside = [one for one in samples if start_ns <= one.t_ns <= end_ns]
    if not inside:
        return math.nan
    at = [start_ns, *(one.t_ns for one in inside), end_ns]
    watts = [inside[0].power_w, *(one.power_w for one in inside), inside[-1].power_w]
    return sum((b - a) * (p + q) / 2e9 for a, b, p, q in zip(at, at[1:], watts, watts[1:], strict=False))


def work() -> None:
    """About 10 ms of a GPU's time, waited for."""
    import torch

    one = work.__dict__.setdefault("matrix", torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16))
    for _ in range(7):
        one @ one
    torch.cuda.synchronize()


def serve() -> None:
    """A KServe server whose every answer is `work`; prints its target and ends with its standard input."""
    from tests.support.kserve_mock import Mock

    def answer(_: int) -> tuple[float, int, None]:
        work()
        return 0.0, 200, None

    work()
    with Mock(answer) as mock:
        print(mock.target, flush=True)
        sys.stdin.read()


@contextmanager
def busy() -> Iterator[None]:
    """Another process that keeps the GPU at work."""
    code = "from tests.bench.gpu_metrics import work\nwork(); print(flush=True)\nwhile True: work()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(3)  # nvidia-smi's use is of the last second
        try:
            yield
        finally:
            process.kill()


def readings(metrics: str | None) -> bool:
    nvml = Nvml()
    good = compare("idle", figures(total(nvml.read())), figures(smi()))
    if metrics:
        from loadgen.lab.watch_process import gpu_metrics, metrics_of

        page = urllib.request.urlopen(metrics, timeout=10).read().decode()
        told, own = metrics_of(page), gpu_metrics(nvml.read())
        for key in sorted(k for k in {**told, **own} if k.startswith(("nv_gpu", "nv_energy"))):
            print(f"page: {key}: the server {told.get(key)}, NVML {own.get(key)}")
    with busy():
        before, started = nvml.read(), time.monotonic_ns()
        samples = [smi()]
        good &= compare("busy", figures(total(nvml.read())), figures(samples[0]))
        while time.monotonic_ns() < started + 5 * 10**9:
            time.sleep(EVERY_S)
            samples.append(smi())
        after, ended = nvml.read(), time.monotonic_ns()
    pairs = list(zip(before, after, strict=True))
    told = sum(b.energy_j - a.energy_j for a, b in pairs if a.energy_j is not None and b.energy_j is not None)
    return energy("busy, 5 s", told, joules(samples, started, ended)) and good


def energy(what: str, ours: float, theirs: float) -> bool:
    close = abs(ours - theirs) <= 0.15 * theirs
    print(
        f"{what}: energy: ours {ours:.1f} J, nvidia-smi's power over time {theirs:.1f} J: {'agree' if close else 'DIFFER'}"
    )
    return close


def run() -> bool:
    """A run against `serve`, its summary against nvidia-smi over the stretch that its looks cover."""
    from loadgen.analysis.summary import summarise
    from loadgen.lab.run import Order, measure
    from loadgen.report.words import use_line
    from loadgen.target import parse_target
    from loadgen.traffic.profile import parse_profile

    sampler = ["nvidia-smi", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader,nounits"]
    command = [sys.executable, "-m", "tests.bench.gpu_metrics", "serve"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(command, **pipes) as server:
        try:
            target, out = server.stdout.readline().strip(), Path(folder) / "run"
            # a process of its own: asking nvidia-smi must not sit in the loop that sends
            code = (f"import subprocess, time\nwhile True:\n    t = time.monotonic_ns()\n"
                    f"    s = subprocess.run({sampler!r}, capture_output=True, text=True).stdout\n"
                    f"    print((t + time.monotonic_ns()) // 2, repr(s), flush=True)\n    time.sleep({EVERY_S})")  # fmt: skip
            seen = Path(folder) / "seen"
            with seen.open("w") as file, subprocess.Popen([sys.executable, "-c", code], stdout=file) as other:
                try:
                    measure(Order(parse_profile(PROFILE, "gpu"), parse_target(target), 1, out, []))
                finally:
                    other.kill()
        finally:
            server.stdin.close()
        summary = summarise(out)
        looks = [json.loads(line) for line in (out / "watch.jsonl").read_text().splitlines()]
        info = json.loads((out / "run.json").read_text())
        samples = [total(read_smi(_unquoted(rest)), int(at))
                   for at, _, rest in (line.partition(" ") for line in seen.read_text().splitlines()[:-1])]  # fmt: skip
    phase, origin = info["phases"][1], info["origin_ns"]
    covered = [look["t_ns"] for look in looks if phase["start_ns"] <= look["t_ns"] <= phase["end_ns"]]
    start, end = origin + covered[0], origin + covered[-1]
    gpu = summary["server"]["watched"]["gpu"]
    print(f"run: {summary['total']['counts']['ok']} requests, {use_line(summary['server'])}")
    good = compare("run", gpu, mean([one for one in samples if start <= one.t_ns <= end]))
    theirs = joules(samples, start, end)
    rate = summary["total"]["achieved_per_s"]
    print(
        f"run: a request: ours {gpu['energy_j_per_request']:.4g} J, nvidia-smi {theirs * 1e9 / (end - start) / rate:.4g} J"
    )
    return energy("run", gpu["energy_j"], theirs) and good


def _unquoted(text: str) -> str:
    import ast

    return str(ast.literal_eval(text))


def main(words: list[str]) -> int:
    if words == ["serve"]:
        serve()
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--metrics", help="the metrics page of a Triton on this machine")
    asked = parser.parse_args(words)
    good = readings(asked.metrics)
    try:
        good &= run()
    except ImportError as why:
        print(f"no run: {why}")
        return 3
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
