"""What machine and what software measured: written into every run, printed by `loadgen env`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from loadgen.environment.facts import machine, quick, version

_PACKAGES = (
    "numpy",
    "pyarrow",
    "uvloop",
    "hpack",
    "httptools",
    "hdrhistogram",
    "grpcio",
    "tritonclient",
    "aiohttp",
)
_POLICIES = {0: "SCHED_OTHER", 1: "SCHED_FIFO", 2: "SCHED_RR", 3: "SCHED_BATCH", 5: "SCHED_IDLE"}
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")


def client_facts() -> dict[str, Any]:
    """Host, cores, kernel, versions, scheduling: JSON-ready."""
    return {
        **machine(),
        "load_1m": round(os.getloadavg()[0], 2),
        "loadgen": version("loadgen"),
        "packages": {name: version(name) for name in _PACKAGES},
        "clock": "CLOCK_MONOTONIC",
        "scheduling": _POLICIES.get(os.sched_getscheduler(0)) if hasattr(os, "sched_getscheduler") else None,
        "proxies_ignored": sorted(n for n in (*_PROXIES, *map(str.upper, _PROXIES)) if os.environ.get(n)),
        "workers": 1,
        "environment": quick(),
    }


def cores_used() -> tuple[int, int] | None:
    """CPU time (busy, in all) of the cores that this process may use, in ticks since they started; whoever used them.

    None where /proc/stat does not tell.
    """
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        allowed = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    except (OSError, AttributeError, UnicodeDecodeError):
        return None
    # user nice system idle iowait irq softirq steal; guests are within user
    ticks = [list(map(int, line.split()[1:9])) for line in lines if line.split(" ", 1)[0] in allowed]
    whole = sum(map(sum, ticks))
    return (whole - sum(core[3] + core[4] for core in ticks), whole) if whole else None


def raise_file_limit() -> int:
    """Lifts the soft limit of open files to the hard one; returns what is allowed now."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
