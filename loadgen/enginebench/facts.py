"""What a result was measured on: the device, the libraries, the model.  It must not know the figures."""

from typing import Any

from loadgen.convert.sources import Source
from loadgen.environment.facts import machine, quick, version

_PACKAGES = (
    "torch",
    "transformers",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "tensorrt",
    "numpy",
    "loadgen",
)


def facts(found: Source, device: str) -> dict[str, Any]:
    """{"model", "device", "machine", "versions", "environment"} for the result."""
    here = machine()
    return {
        "model": {"label": found.label, "origin": found.origin, "model_type": found.config.get("model_type")},
        "device": _device(device, here),
        "machine": here,
        "versions": {name: version(name) for name in _PACKAGES},
        "environment": quick(),
    }


def _device(device: str, here: dict[str, Any]) -> dict[str, Any]:
    import torch

    told: dict[str, Any] = {"kind": device, "name": here["cpu"], "cores": here["cores_allowed"]}
    told["torch_threads"] = torch.get_num_threads()
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        told |= {
            "name": properties.name, "bytes": properties.total_memory,
            "compute": f"{properties.major}.{properties.minor}", "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
            "tf32": bool(torch.backends.cuda.matmul.allow_tf32),
        }  # fmt: skip
    return told
