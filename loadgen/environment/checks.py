"""What of an environment is known not to go together, and what differs between two.

Pure: facts as `facts` gives them in, words out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Facts = Mapping[str, Any]
_FEW_FILES = 4096
_PASSING = ("load_1m", "workers", "smi", "mismatches")  # no two looks at a machine agree on them
_FULL = ("loads", "devices", "why_none", "driver_cuda", "server_tensorrt", "triton_home", "triton")


def mismatches(facts: Facts) -> list[str]:
    """One line each: what does not fit, and what would.  Facts that were not taken are not judged."""
    return [*_loads(facts), *_torch(facts), *_onnxruntime(facts), *_tensorrt(facts), *_machine(facts)]


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", (text or "").partition("+")[0])))


def _gpus(facts: Facts) -> list[str]:
    gpu = facts.get("gpu") or {}
    return [d["name"] for d in gpu.get("devices") or ()] or list(gpu.get("models") or ())


def _loads(facts: Facts) -> Iterator[str]:
    for name, told in (facts.get("loads") or {}).items():
        if not told["ok"]:
            yield f"{name} is installed and does not load: {told['why']}"
    gpu = facts.get("gpu") or {}
    if gpu.get("models") and gpu.get("why_none"):
        yield f"{gpu['models'][0]} is here and CUDA cannot use it: {gpu['why_none']}"


def _torch(facts: Facts) -> Iterator[str]:
    torch = (facts.get("libraries") or {}).get("torch")
    if torch is None:
        return
    gpu, built = facts.get("gpu") or {}, facts.get("torch_cuda")
    driver = gpu.get("driver_cuda")
    told = (facts.get("loads") or {}).get("torch") or {}
    if built is None:
        if _gpus(facts):
            yield f"torch {torch} is built without CUDA and cannot use {_gpus(facts)[0]}: install a CUDA build of it"
    elif driver is not None and _numbers(built)[:1] > _numbers(driver)[:1]:
        yield (
            f"torch {torch} is built for CUDA {built}, the driver {gpu.get('driver') or ''} runs CUDA up to {driver}: "
            f"update the driver, or install torch for CUDA {driver.partition('.')[0]}"
        )
    elif _gpus(facts) and told.get("ok") and told.get("cuda_works") is False:
        yield f"torch {torch} (CUDA {built}) does not find {_gpus(facts)[0]}; CUDA_VISIBLE_DEVICES may hide it"


def _onnxruntime(facts: Facts) -> Iterator[str]:
    libraries = facts.get("libraries") or {}
    plain, gpu = libraries.get("onnxruntime"), libraries.get("onnxruntime-gpu")
    if plain and gpu:
        yield (
            f"onnxruntime {plain} and onnxruntime-gpu {gpu} write into the same folder and the later one wins: "
            "uninstall both, then install one"
        )
    elif plain and _gpus(facts):
        yield f"onnxruntime {plain} runs on the CPU; onnxruntime-gpu can use {_gpus(facts)[0]}"


def _tensorrt(facts: Facts) -> Iterator[str]:
    told = (facts.get("loads") or {}).get("tensorrt") or {}
    mine = told.get("version") or next(
        (v for k, v in (facts.get("libraries") or {}).items() if re.fullmatch(r"tensorrt(-cu\d+)?", k)), None
    )
    server = facts.get("server_tensorrt")
    if mine and server and _numbers(mine)[:3] != _numbers(server)[:3]:
        yield (
            f"TensorRT {mine} builds engines that the server's {server} does not load: "
            "convert with the server's version"
        )


def _machine(facts: Facts) -> Iterator[str]:
    limits, processor = facts.get("limits") or {}, facts.get("processor") or {}
    cores = processor.get("cores")
    files, quota = limits.get("open_files"), limits.get("cpu_quota")
    if files is not None and files < _FEW_FILES:
        yield f"open files are limited to {files}: so many connections at most (ulimit -n)"
    if quota is not None and cores and quota < cores:
        yield f"the container may use {quota:g} of {cores} cores: it is stopped for the rest of each 100 ms"
    if processor.get("governor") == "powersave":
        yield "the CPU's governor is powersave: times depend on how busy it was before (performance holds them still)"


def differences(a: Facts, b: Facts) -> list[tuple[str, Any, Any]]:
    """(key, of a, of b) wherever they differ, keys as dotted paths; None where one has no such key.

    What only a full look or only a run takes is compared when both have it; what changes from look to look is left
    out.
    """
    return list(
        _differences({key: a[key] for key in a if key in b}, {key: b[key] for key in b if key in a}, "")
    )


def _differences(a: Facts, b: Facts, path: str) -> Iterator[tuple[str, Any, Any]]:
    for key in dict.fromkeys([*a, *b]):
        left, right = a.get(key), b.get(key)
        where = f"{path}.{key}" if path else str(key)
        if key in _PASSING or left == right or (key in _FULL and (key not in a or key not in b)):
            continue
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            yield from _differences(left, right, where)
        else:
            yield where, left, right
