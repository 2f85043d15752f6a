"""The facts that take seconds: what the driver tells, which libraries load, and the TensorRT of this machine's server.

Each library is imported in a process of its own: one that crashes is a finding.  It must not know runs.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from loadgen.environment import cuda, facts

_LOADS = {  # what is tried: the module, and what it can tell once it is there
    "torch": "{'cuda': m.version.cuda, 'cuda_works': m.cuda.is_available(), 'cudnn': m.backends.cudnn.version(),"
    " 'threads': m.get_num_threads()}",
    "onnxruntime": "{'providers': m.get_available_providers()}",
    "tensorrt": "{'version': m.__version__}",
    "tensorrt_rtx_bindings": "{'version': m.__version__}",
    "transformers": "{}",
    "tokenizers": "{}",
    "tritonclient.grpc": "{}",
}
_LOAD_S, _SMI_S = 120, 20
_SMI = ("name", "driver_version", "compute_cap", "memory.total", "persistence_mode", "clocks.sm", "clocks.max.sm",
        "clocks.mem", "power.limit", "ecc.mode.current", "mig.mode.current")  # fmt: skip


def full() -> dict[str, Any]:
    """`quick`, what the driver and nvidia-smi tell, and whether each installed library loads: seconds."""
    found = facts.quick()
    with ThreadPoolExecutor() as pool:
        loads = {name: pool.submit(_load, name) for name in _LOADS if _installed(name)}
        asked = cuda.ask()
        found["gpu"] |= {
            "driver_cuda": asked.driver_cuda,
            "why_none": asked.why or None,
            "devices": [
                {"name": d.name, "compute": d.compute, "memory_bytes": d.memory_bytes} for d in asked.devices
            ],
            "smi": _smi() if asked.devices else [],
        }
        found["server_tensorrt"] = server_tensorrt()
        found["loads"] = {name: future.result() for name, future in loads.items()}
    return found


def server_tensorrt() -> str | None:
    """The TensorRT of a server that runs in this very image, None when there is none to be seen.

    NVIDIA's images say it in TRT_VERSION; elsewhere libnvinfer itself does.
    """
    told = os.environ.get("TRT_VERSION", "").partition("+")[0]
    return told or _library_version()


def _library_version() -> str | None:
    for name in ("libnvinfer.so.11", "libnvinfer.so.10"):
        try:
            number = ctypes.CDLL(name).getInferLibVersion()
        except (OSError, AttributeError):
            continue
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return None


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a name with a dot whose package is not there
        return False


def _load(module: str) -> dict[str, Any]:
    """Imports it in a process of its own: what it tells, or why it does not load."""
    script = f"import importlib, json; m = importlib.import_module({module!r}); print(json.dumps({_LOADS[module]}))"
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script],
            capture_output=True,
            text=True,
            timeout=_LOAD_S,
            check=False,
        )
        if done.returncode == 0:
            return {"ok": True, **json.loads(done.stdout.splitlines()[-1])}
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        return {"ok": False, "why": f"did not load within {_LOAD_S} s"}
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    signal = f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return {"ok": False, "why": lines[-1].strip() if lines else signal}


def _smi() -> list[dict[str, str]]:
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(_SMI)}", "--format=csv,noheader"],  # noqa: S607 - wherever it is
            capture_output=True, text=True, timeout=_SMI_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    return [
        dict(zip(_SMI, (cell.strip() for cell in row.split(",")), strict=False))
        for row in done.stdout.splitlines()
    ]
