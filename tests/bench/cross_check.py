"""`make bench`: loadgen beside NVIDIA's perf_analyzer on one real Triton, in one run, rounds interleaved.

The same model, protocol and closed-loop concurrency through both.  perf_analyzer is found through the
environment variable PERF_ANALYZER or on PATH.  CPU a request is the whole client process (user + system,
start and end included) over the requests that the server counted in that time; for loadgen the loop alone
is shown too.  Ratios are medians over the rounds; the machine is shared, digits are not to be trusted.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from loadgen.triton.local import LocalTriton

MODEL = "identity"
MODELS = Path(__file__).parents[1] / "support" / "models"
PROFILE = """
name: cross-check
kinds:
  k: {model: %s, length: {fixed: 16}}
phases:
  - {name: warm-up, warmup: true, closed: {users: %d, duration: 1s}}
  - {name: load, closed: {users: %d, duration: %ds}}
"""


def successes(http_target: str) -> int:
    """Requests that the server has answered so far."""
    with urllib.request.urlopen(f"{http_target}/v2/models/{MODEL}/stats", timeout=10) as answer:
        return json.load(answer)["model_stats"][0]["inference_stats"]["success"]["count"]


def without_delay(server: LocalTriton) -> None:
    """Serves the model without batching delay: the client is to be seen, not the batcher's patience."""
    with urllib.request.urlopen(f"{server.http_target}/v2/models/{MODEL}/config", timeout=10) as answer:
        config = json.load(answer)
    server.load(MODEL, {**config, "dynamic_batching": {}})


def timed(command: list[str], http_target: str) -> tuple[float, int]:
    """CPU seconds of the command and its children, and the requests the server answered meanwhile."""
    before = successes(http_target)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 3):  # 3: a doubt, e.g. the client shares its cores with the server
            log.seek(0)
            sys.exit(f"{command[0]} exited with {process.returncode}:\n{log.read().decode(errors='replace')}")
    return usage.ru_utime + usage.ru_stime, successes(http_target) - before


def run_loadgen(server: LocalTriton, protocol: str, users: int, seconds: int, folder: Path) -> dict:
    profile = folder / "profile.yaml"
    profile.write_text(PROFILE % (MODEL, users, users, seconds))
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    target = server.grpc_target if protocol == "grpc" else server.http_target
    command = [
        sys.executable,
        "-m",
        "loadgen",
        "run",
        str(profile),
        "--target",
        target,
        "--out",
        str(out),
        "-q",
    ]
    cpu_s, count = timed(command, server.http_target)
    summary = json.loads((out / "summary.json").read_text())
    total = summary["total"]
    return {
        "rps": total["achieved_per_s"],
        "p50_us": total["latency_ns"]["p50"] / 1e3,
        "p99_us": total["latency_ns"]["p99"] / 1e3,
        "cpu_us": cpu_s / count * 1e6,
        "loop_us": summary["client"]["cpu_ns_per_request"] / 1e3,
        "failed": total["counts"]["failed"],
        "count": count,
    }


def run_perf_analyzer(
    tool: str, server: LocalTriton, protocol: str, users: int, seconds: int, folder: Path
) -> dict:
    table = folder / "pa.csv"
    port = server.facts.grpc_port if protocol == "grpc" else server.facts.http_port
    command = [tool, "-m", MODEL, "-i", protocol, "-u", f"127.0.0.1:{port}", "--shape", "INPUT:16",
               "--concurrency-range", str(users), "--measurement-interval", str(max(seconds * 1000 // 3, 1000)),
               "--stability-percentage", "999", "--max-trials", "3", "-f", str(table)]  # fmt: skip
    cpu_s, count = timed(command, server.http_target)
    row = next(csv.DictReader(table.open()))
    return {
        "rps": float(row["Inferences/Second"]),
        "p50_us": float(row["p50 latency"]),
        "p99_us": float(row["p99 latency"]),
        "cpu_us": cpu_s / count * 1e6,
        "loop_us": None,
        "failed": 0,
        "count": count,
    }


def median(rows: list[dict], key: str) -> float:
    return statistics.median(row[key] for row in rows)


def spread(rows: list[dict], key: str) -> str:
    values = sorted(row[key] for row in rows)
    return f"{values[0]:.4g}..{values[-1]:.4g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="3 s a cell, concurrency 8 and 32 only")
    parser.add_argument("--out", type=Path, default=Path("bench.json"))
    args = parser.parse_args()
    tool = os.environ.get("PERF_ANALYZER") or shutil.which("perf_analyzer")
    if tool is None:
        sys.exit(
            "perf_analyzer is not on PATH; set PERF_ANALYZER=/path/to/perf_analyzer (PyPI: perf-analyzer)"
        )
    seconds = 3 if args.quick else args.seconds
    cells = [(p, c) for p in ("http", "grpc") for c in ((8, 32) if args.quick else (1, 8, 32))]
    rows: dict[tuple, list[dict]] = {}
    with tempfile.TemporaryDirectory() as name, LocalTriton(MODELS, models=[MODEL]) as server:
        folder = Path(name)
        without_delay(server)
        for round_number in range(args.rounds):
            for protocol, users in cells:
                pair = [
                    ("loadgen", lambda p=protocol, u=users: run_loadgen(server, p, u, seconds, folder)),
                    ("perf_analyzer", lambda p=protocol, u=users: run_perf_analyzer(tool, server, p, u, seconds, folder)),
                ]  # fmt: skip
                for who, call in pair if round_number % 2 == 0 else reversed(pair):
                    rows.setdefault((who, protocol, users), []).append(call())
                sys.stderr.write(f"round {round_number + 1}/{args.rounds} {protocol} {users} done\n")
    report(rows, cells, args)


def report(rows: dict, cells: list, args: argparse.Namespace) -> None:
    print(
        f"{'client':14}{'proto':>6}{'users':>6}{'req/s':>9}{'P50 us':>9}{'P99 us':>9}{'CPU us/req':>11}{'loop us':>9}  req/s spread, P50 spread"
    )
    out: dict = {"rounds": args.rounds, "cells": []}
    for protocol, users in cells:
        for who in ("loadgen", "perf_analyzer"):
            r = rows[who, protocol, users]
            loop = f"{median(r, 'loop_us'):9.1f}" if who == "loadgen" else f"{'':9}"
            print(f"{who:14}{protocol:>6}{users:>6}{median(r, 'rps'):9.0f}{median(r, 'p50_us'):9.0f}{median(r, 'p99_us'):9.0f}"
                  f"{median(r, 'cpu_us'):11.1f}{loop}  {spread(r, 'rps')}, {spread(r, 'p50_us')} us")  # fmt: skip
        ours, theirs = rows["loadgen", protocol, users], rows["perf_analyzer", protocol, users]
        ratio = {
            key: statistics.median(a[key] / b[key] for a, b in zip(ours, theirs, strict=True))
            for key in ("rps", "p50_us", "p99_us", "cpu_us")
        }
        out["cells"].append(
            {"protocol": protocol, "users": users, "ratio": ratio, "loadgen": ours, "perf_analyzer": theirs}
        )
        print(
            f"{'ratio':14}{protocol:>6}{users:>6}{ratio['rps']:9.2f}{ratio['p50_us']:9.2f}{ratio['p99_us']:9.2f}{ratio['cpu_us']:11.2f}"
        )
    args.out.write_text(json.dumps(out, indent=1))
    print(f"written: {args.out}")


if __name__ == "__main__":
    main()
