"""The slowest cell once more under a profiler: a trace for chrome://tracing or perfetto.

It must not know which cell, nor why.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadgen.enginebench.cells import Cell
from loadgen.enginebench.run import Bench, open_engine
from loadgen.enginebench.timing import wait
from loadgen.enginebench.training import Trainer

_ROUNDS = 3


def write_trace(bench: Bench, cell: Cell, file: Path) -> str:
    """Writes `file` and says which profiler wrote it: torch's, or onnxruntime's own, which torch cannot see into.

    Raises Unavailable.
    """
    if cell.runtime == "onnxruntime":
        engine = open_engine(bench, cell.runtime, cell.precision, profile=file.with_suffix(""))
        call = engine.bind(bench.samples(cell.batch, cell.length))
        for _ in range(_ROUNDS):
            call()
        Path(engine.profile() or "").rename(file)
        return "onnxruntime"
    _torch_trace(_call(bench, cell), bench.asked.device, file)
    return "torch.profiler"


def _call(bench: Bench, cell: Cell) -> Callable[[], Any]:
    feeds = bench.samples(cell.batch, cell.length)
    if bench.asked.mode != "train":
        return open_engine(bench, cell.runtime, cell.precision).bind(feeds)
    trainer = Trainer(
        bench.encoder, cell.precision, bench.asked.device, compiled=cell.runtime == "torch-compile"
    )
    parts = trainer.parts(feeds)

    def step() -> None:
        for _, part in parts:
            part()

    return step


def _torch_trace(call: Callable[[], Any], device: str, file: Path) -> None:
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    for _ in range(2):  # compiling and first allocations are not what is looked for
        call()
    wait(device)
    with profile(activities=activities, record_shapes=True) as profiler:
        for _ in range(_ROUNDS):
            call()
        wait(device)
    profiler.export_chrome_trace(str(file))
