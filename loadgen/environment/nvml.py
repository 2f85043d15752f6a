"""What the GPUs of this machine do right now, asked through NVML, the library behind nvidia-smi.

Where a server publishes nothing of its GPUs (DCGM is not there, another agent has them, it is no Triton) this tells
the same four figures.  It must not know what runs on a GPU: the figures are of all that does.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; each figure is None where the driver does not tell it (energy before Volta, use of a MIG slice).

    `utilisation` is the share of the last moments in which any kernel ran; `energy_j` counts since the driver was
    loaded.
    """

    uuid: str
    utilisation: float | None
    memory_bytes: int | None
    power_w: float | None
    energy_j: float | None


class _Memory(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")),
    )


class Nvml:
    """The open library.  Raises OSError where there is none, or no GPU that it can tell of."""

    def __init__(self, library: Any = None) -> None:
        self._nvml = ctypes.CDLL(_LIBRARY) if library is None else library
        count = ctypes.c_uint()
        if code := self._nvml.nvmlInit_v2():
            raise OSError(f"nvmlInit failed: error {code}")
        if self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) or not count.value:
            raise OSError("NVML tells of no GPU")
        self._handles = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if not self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
                self._handles.append(handle)

    def read(self) -> list[Gpu]:
        """All GPUs that this process may see, as they are now.  Takes about a millisecond each."""
        return [self._gpu(handle) for handle in self._handles]

    def _gpu(self, handle: ctypes.c_void_p) -> Gpu:
        used = self._told("nvmlDeviceGetUtilizationRates", handle, (ctypes.c_uint * 2)())  # GPU, memory; in %
        memory = self._memory(handle)
        power = self._told("nvmlDeviceGetPowerUsage", handle, ctypes.c_uint())  # mW
        energy = self._told("nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.c_ulonglong())  # mJ
        name = ctypes.create_string_buffer(96)
        self._nvml.nvmlDeviceGetUUID(handle, name, ctypes.c_uint(len(name)))
        return Gpu(
            uuid=name.value.decode(errors="replace"),
            utilisation=None if used is None else used[0] / 100,
            memory_bytes=memory,
            power_w=None if power is None else power.value / 1e3,
            energy_j=None if energy is None else energy.value / 1e3,
        )

    def _memory(self, handle: ctypes.c_void_p) -> int | None:
        """In use; what the driver keeps for itself is apart, as nvidia-smi has it, where the driver tells it apart."""
        newer = _Memory(version=ctypes.sizeof(_Memory) | 2 << 24)
        if self._told("nvmlDeviceGetMemoryInfo_v2", handle, newer) is not None:
            return int(newer.used)
        older = self._told("nvmlDeviceGetMemoryInfo", handle, (ctypes.c_ulonglong * 3)())  # total, free, used
        return None if older is None else int(older[2])

    def _told(self, question: str, handle: ctypes.c_void_p, answer: Any) -> Any:
        """The answer, filled in; None where this GPU has none, or this driver does not know the question."""
        function = getattr(self._nvml, question, None)
        return None if function is None or function(handle, ctypes.byref(answer)) else answer


def open_nvml() -> Nvml | None:
    """None on a machine without a GPU, or whose driver cannot be asked."""
    with suppress(OSError, AttributeError):
        return Nvml()
    return None
