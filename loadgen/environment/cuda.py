"""The GPU and its driver, asked through the driver's own library: no framework is imported.

It must not know what runs on the GPU.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_LIBRARY = "libcuda.so.1"


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU.  `compute` is its capability, "9.0"; `driver_cuda` the newest CUDA that the driver runs, "13.0"."""

    name: str
    compute: str
    memory_bytes: int
    driver_cuda: str


@dataclass(frozen=True, slots=True)
class Cuda:
    """What the driver tells; `why` says why there is nothing to tell."""

    driver_cuda: str | None = None
    devices: tuple[Device, ...] = ()
    why: str = ""


def cuda_device() -> Device | None:
    """The first GPU, which engines are built for; None when there is none."""
    found = ask().devices
    return found[0] if found else None


@functools.cache
def ask() -> Cuda:
    """Asks the driver, once.  Takes tenths of a second where there are GPUs."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as why:
        return Cuda(why=" ".join(str(why).split()))
    number = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(number)):
        return Cuda(why=f"{_LIBRARY} does not tell its version")
    version = f"{number.value // 1000}.{number.value % 1000 // 10}"
    failed = library.cuInit(0)
    if failed:
        return Cuda(version, why=f"cuInit failed: {_error(library, failed)}")
    library.cuDeviceGetCount(ctypes.byref(number))
    return Cuda(version, tuple(_device(library, i, version) for i in range(number.value)))


def _device(library: ctypes.CDLL, index: int, version: str) -> Device:
    handle, number = ctypes.c_int(), ctypes.c_int()
    name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
    library.cuDeviceGet(ctypes.byref(handle), index)
    library.cuDeviceGetName(name, len(name), handle)
    library.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    parts = []
    for attribute in (_MAJOR, _MINOR):
        library.cuDeviceGetAttribute(ctypes.byref(number), attribute, handle)
        parts.append(str(number.value))
    return Device(name.value.decode(errors="replace"), ".".join(parts), memory.value, version)


def _error(library: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    if library.cuGetErrorString(code, ctypes.byref(text)) or text.value is None:
        return f"error {code}"
    return f"{text.value.decode(errors='replace')} ({code})"
