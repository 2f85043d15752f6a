"""What a result was measured on: the device, the libraries, the model.  It must not know the figures."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from loadgen.convert.sources import Source

_PACKAGES = ("torch", "transformers", "onnx", "onnxruntime", "onnxruntime-gpu", "tensorrt", "numpy")


def facts(found: Source, device: str) -> dict[str, Any]:
    """{"model", "device", "versions"} for the result."""
    return {
        "model": {"label": found.label, "origin": found.origin, "model_type": found.config.get("model_type")},
        "device": _device(device),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
    }


def _device(device: str) -> dict[str, Any]:
    import torch

    told: dict[str, Any] = {"kind": device, "name": _cpu(), "cores": len(os.sched_getaffinity(0))}
    told["torch_threads"] = torch.get_num_threads()
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        told |= {
            "name": properties.name, "bytes": properties.total_memory,
            "compute": f"{properties.major}.{properties.minor}", "cuda": torch.version.cuda,
            "tf32": bool(torch.backends.cuda.matmul.allow_tf32),
        }  # fmt: skip
    return told


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
