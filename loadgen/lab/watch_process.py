"""The watch: a process that reads a server's counters along a run, out of the sending loop's way.

`python -m loadgen.lab.watch_process` reads its order (pickled) from standard input, appends a line to watch.jsonl
every so often, and ends when that input closes.  A question that fails is a line with its reason: nothing here can
fail a run.  It must not know what the figures mean.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import re
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.clock import MONOTONIC
from loadgen.connect.options import ConnectOptions
from loadgen.environment.nvml import Gpu, Nvml, open_nvml
from loadgen.records import LoadgenError
from loadgen.target import Target, parse_target
from loadgen.triton.control import Control
from loadgen.triton.links import HttpLink

_TIMEOUT_NS = 2 * 10**9
_OF_GPU = ("nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_gpu_power_usage", "nv_energy_consumption")
_METRICS = ("nv_inference_pending_request_count", "nv_inference_request_failure", *_OF_GPU)
_LINE = re.compile(r"^([\w:]+)(?:\{(.*)\})?\s+([-+\dNI][\w.+-]*)(?:\s+\d+)?\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class WatchOrder:
    """What is watched.  `pid` is the server's, when it is a process of this machine."""

    target: Target
    options: ConnectOptions
    models: list[tuple[str, str]]
    metrics_url: str | None
    pid: int | None
    path: Path
    origin_ns: int
    every_ns: int


def metrics_of(text: str) -> dict[str, float]:
    """The figures we keep of a Prometheus page, as "name{labels}"."""
    found = {}
    for name, labels, value in _LINE.findall(text):
        if name in _METRICS:
            with suppress(ValueError):
                found[f"{name}{{{labels}}}" if labels else name] = float(value)
    return found


class MetricsPage:
    """A Prometheus page of a server, read again and again."""

    def __init__(self, url: str) -> None:
        page = parse_target(url)
        base, _, last = page.base_path.rpartition("/")
        self._path = f"/{last or 'metrics'}"
        self.url = f"{replace(page, base_path=base).url}{self._path}"
        self._link = HttpLink(replace(page, base_path=base), ConnectOptions(), timeout_s=_TIMEOUT_NS / 1e9)

    async def read(self) -> dict[str, float]:
        """The figures we keep.  Raises LoadgenError where there are none: no answer, no such page, other figures."""
        try:
            status, text = await self._link.get(self._path)
        except OSError as why:
            raise LoadgenError(why.strerror or str(why)) from None
        if status != 200:  # noqa: PLR2004 - HTTP's OK
            raise LoadgenError(f"it answered with status {status}")
        if not _LINE.search(text):
            raise LoadgenError("what it answered is no page of metrics")
        if not (found := metrics_of(text)):
            raise LoadgenError(f"it has none of the figures read here, such as {_METRICS[0]}")
        return found

    async def close(self) -> None:
        await self._link.close()


def gpu_metrics(gpus: list[Gpu]) -> dict[str, float]:
    """What NVML told, under the names and in the units that Triton publishes."""
    found: dict[str, float] = {}
    for gpu in gpus:
        figures = (gpu.utilisation, gpu.memory_bytes, gpu.power_w, gpu.energy_j)
        for name, value in zip(_OF_GPU, figures, strict=True):
            if value is not None:
                found[f'{name}{{gpu_uuid="{gpu.uuid}"}}'] = value
    return found


def process_use(pid: int) -> tuple[int, int] | None:
    """CPU time in ns and resident memory in bytes of a process and its children; None where /proc has no word of it.

    Resident pages that several share count in each: telling them apart would hold the server up.  A child that ends
    takes its time along: what is summed can fall.
    """
    ticks, pages, waiting, seen = 0, 0, [pid], False
    while waiting:
        at = waiting.pop()
        try:
            fields = (
                Path(f"/proc/{at}/stat")
                .read_text(encoding="ascii", errors="replace")
                .rpartition(")")[2]
                .split()
            )
            ticks, pages, seen = ticks + int(fields[11]) + int(fields[12]), pages + int(fields[21]), True
            for task in Path(f"/proc/{at}/task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
        except (OSError, ValueError, IndexError):
            continue  # it ended meanwhile: the others are still there
    return (ticks * 10**9 // os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE")) if seen else None


async def sample(
    order: WatchOrder, control: Control, page: MetricsPage | None, nvml: Nvml | None = None
) -> dict[str, Any]:
    """One line.  Stamps are taken before each question.  One that fails leaves its reason, and the others are asked.

    The GPUs are NVML's where the server is of this machine and publishes none of its own.
    """
    line: dict[str, Any] = {"t_ns": MONOTONIC.now_ns() - order.origin_ns, "stats": []}
    for model, version in order.models:
        at = MONOTONIC.now_ns() - order.origin_ns
        try:
            stats = await control.statistics(model, version, timeout_ns=_TIMEOUT_NS)
        except (LoadgenError, OSError) as why:
            line["why"] = str(why)
            continue
        line["stats"].append(
            {"t_ns": at, "model": model, "version": str(stats.get("version", version)), "stats": stats}
        )
    if page is not None:
        try:
            line["metrics"] = await page.read()
        except LoadgenError as why:
            line["no_metrics"] = str(why)
    if nvml is not None and not any(key.startswith(_OF_GPU) for key in line.get("metrics", ())):
        line["metrics"] = line.get("metrics", {}) | gpu_metrics(nvml.read())
    if order.pid is not None and (use := process_use(order.pid)) is not None:
        line["cpu_ns"], line["memory_bytes"] = use
    return line


async def _main(order: WatchOrder) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    page = None if order.metrics_url is None else MetricsPage(order.metrics_url)
    nvml = open_nvml() if order.pid is not None or order.target.is_local else None
    async with Control(order.target, options=order.options, timeout_ns=_TIMEOUT_NS) as control:
        with order.path.open("a", encoding="utf-8") as file:
            while not ended.is_set():
                file.write(json.dumps(await sample(order, control, page, nvml)) + "\n")
                file.flush()
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), order.every_ns / 1e9)


def _order() -> WatchOrder:
    data = sys.stdin.buffer
    told: WatchOrder = pickle.loads(data.read(int.from_bytes(data.read(4), "big")))  # noqa: S301 - our parent's
    return told


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_main(_order()))
