"""What machine and what software measured: written into every run, printed by `loadgen env`."""

from __future__ import annotations

import os
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
        "loadgen": version("loadgen"),
        "packages": {name: version(name) for name in _PACKAGES},
        "clock": "CLOCK_MONOTONIC",
        "scheduling": _POLICIES.get(os.sched_getscheduler(0)) if hasattr(os, "sched_getscheduler") else None,
        "proxies_ignored": sorted(n for n in (*_PROXIES, *map(str.upper, _PROXIES)) if os.environ.get(n)),
        "workers": 1,
        "environment": quick(),
    }


def raise_file_limit() -> int:
    """Lifts the soft limit of open files to the hard one; returns what is allowed now."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
