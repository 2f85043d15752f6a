"""The facts that every run and conversion writes down: milliseconds, and no framework is imported for them.

Versions are read from the names of folders and from files.  It must not know runs, servers, or which facts go
together: `checks` has that.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import re
import resource
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARIES = (  # beside those of the client, which run.json has too
    "torch", "transformers", "tokenizers", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu", "nvidia-modelopt",
    "tensorrt", "tensorrt-cu12", "tensorrt-cu13", "tensorrt-rtx-cu13-libs", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13",
    "nvidia-pytriton", "protobuf", "scipy",
)  # fmt: skip
VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "CUDA_MODULE_LOADING", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS", "LD_LIBRARY_PATH", "LD_PRELOAD", "TRT_VERSION", "NVIDIA_TRITON_SERVER_VERSION",
    "PYTHONHASHSEED", "MALLOC_ARENA_MAX", "LOADGEN_TRITON_ONNXRUNTIME",
)  # fmt: skip
LIMITS = {"open_files": "RLIMIT_NOFILE", "locked_memory": "RLIMIT_MEMLOCK", "processes": "RLIMIT_NPROC"}


def machine() -> dict[str, Any]:
    """Host, processor, memory, kernel, C library and Python, JSON-ready."""
    return {
        "host": socket.gethostname(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cores_allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
    }


def available_memory() -> int | None:
    """Bytes that a new process could have: what the kernel counts as available, less where the control group ends."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", _text(Path("/proc/meminfo")), re.MULTILINE)
    group = Path("/sys/fs/cgroup")
    most, used = _whole(_text(group / "memory.max")), _whole(_text(group / "memory.current"))
    known = [int(found[1]) * 1024] if found else []
    if most is not None and used is not None:
        known.append(max(most - used, 0))
    return min(known, default=None)


def _cpu_model() -> str | None:
    if sys.platform != "linux":
        return platform.processor() or None
    return next((told for told in _cpuinfo("model name")), None)


def quick() -> dict[str, Any]:
    """Libraries, driver, GPU, limits, clock source, variables: a few milliseconds, JSON-ready."""
    return {
        "libraries": {name: found for name in LIBRARIES if (found := version(name)) is not None},
        "torch_cuda": torch_cuda(),
        "gpu": _driver(),
        "limits": _limits(),
        "processor": _processor(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


@functools.cache
def installed() -> dict[str, str]:
    """Version by name of everything that pip put on the path, read from the names of its folders."""
    found: dict[str, str] = {}
    for place in sys.path:
        try:
            names = os.listdir(place or ".")  # noqa: PTH208 - names are all that is wanted
        except OSError:
            continue
        for name in names:
            if name.endswith(".dist-info"):
                package, _, version = name.removesuffix(".dist-info").partition("-")
                found.setdefault(package.lower().replace("_", "-").replace(".", "-"), version)
    return found


def version(package: str) -> str | None:
    """Of an installed package, without importing it; None when it is not there."""
    return installed().get(package.lower().replace("_", "-").replace(".", "-"))


def torch_cuda() -> str | None:
    """The CUDA that torch was built for, read from its version file; None without torch, or built without CUDA."""
    spec = importlib.util.find_spec("torch")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        found = re.search(
            r"^cuda\b[^=\n]*= *['\"]([\d.]+)['\"]", _text(Path(place) / "version.py"), re.MULTILINE
        )
        return found[1] if found else None
    return None


def _driver() -> dict[str, Any]:
    """What the kernel's driver shows: no library is loaded."""
    told = re.search(r"Kernel Module.*?\s(\d+\.\d[\d.]*)", _text(Path("/proc/driver/nvidia/version")))
    models = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        name = re.search(r"^Model:\s*(.+)$", _text(file), re.MULTILINE)
        models.append(name[1].strip() if name else "unknown")
    return {"driver": told[1] if told else None, "models": models}


def _limits() -> dict[str, Any]:
    soft = {name: resource.getrlimit(getattr(resource, what))[0] for name, what in LIMITS.items()}
    return {
        **{name: None if value == resource.RLIM_INFINITY else value for name, value in soft.items()},
        "cpu_quota": _quota(),
        "memory_bytes": _whole(_text(Path("/sys/fs/cgroup/memory.max"))),
    }


def _quota() -> float | None:
    """Cores that the control group allows; None when it does not limit."""
    quota, _, period = _text(Path("/sys/fs/cgroup/cpu.max")).strip().partition(" ")
    return round(int(quota) / int(period), 2) if quota.isdecimal() and period.isdecimal() else None


def _whole(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def _processor() -> dict[str, Any]:
    cpufreq = Path("/sys/devices/system/cpu/cpu0/cpufreq")
    return {
        "cores": os.cpu_count(),
        "governor": _text(cpufreq / "scaling_governor").strip() or None,
        "max_khz": _whole(_text(cpufreq / "scaling_max_freq")),
        "clock_source": _text(
            Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        ).strip()
        or None,
        "flags": [f for f in ("avx2", "avx512f", "avx512_vnni", "amx_int8") if f in _flags()],
    }


def _flags() -> frozenset[str]:
    return frozenset(next((told for told in _cpuinfo("flags")), "").split())


def _cpuinfo(key: str) -> Iterator[str]:
    """What stands behind a key, for each core; read no further than is asked."""
    with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith(key):
                yield line.partition(":")[2].strip()


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
