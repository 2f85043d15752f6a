"""The grid, cell by cell: opened once a runtime and precision, measured at every batch and length.

It must not know how a runtime works or a result is drawn.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.convert.encoder import Encoder, first_line
from loadgen.convert.ladder import compare
from loadgen.convert.parity import Feeds, make_feeds
from loadgen.enginebench import memory
from loadgen.enginebench.cells import Asked, BenchError, Cell
from loadgen.enginebench.engines import (
    FOR_TENSORRT,
    Engine,
    Unavailable,
    model_files,
    open_onnxruntime,
    open_tensorrt,
    open_torch,
)
from loadgen.enginebench.timing import time_calls, time_parts, wait
from loadgen.enginebench.training import Trainer

_BLOCK = 2
_ACCURACY_ROWS = 16  # compared with FP32 at each length

Say = Callable[[str], None]
Samples = Callable[[int, int], Feeds]


@dataclass(frozen=True, slots=True)
class Bench:
    """What is measured: a model, the files made of it, its rows and their FP32 answers by length."""

    asked: Asked
    encoder: Encoder
    files: Mapping[str, Path | str]
    samples: Samples
    truth: Mapping[int, tuple[Feeds, Any]]


def find_device(text: str) -> str:
    """What "auto" stands for: "cuda" where torch has a GPU, else "cpu".  Raises BenchError for a GPU that is not there."""
    import torch

    if text not in ("auto", "cpu", "cuda"):
        raise BenchError(f"device {text!r}: allowed are auto, cpu, cuda")
    if text == "cuda" and not torch.cuda.is_available():
        raise BenchError("device cuda: PyTorch sees no GPU here")
    return "cuda" if text != "cpu" and torch.cuda.is_available() else "cpu"


@contextmanager
def opened(
    encoder: Encoder,
    asked: Asked,
    *,
    samples: Samples | None = None,
    calibration: Any = None,
    constants: frozenset[int] = frozenset(),
    say: Say = lambda _: None,
) -> Iterator[Bench]:
    """A bench with its ONNX files, which last as long as it.  Raises BenchError for sizes beyond the model."""
    import torch

    if max(asked.lengths) > encoder.max_length:
        raise BenchError(f"lengths {max(asked.lengths)}: the model takes 1..{encoder.max_length}")
    rng = np.random.default_rng(0)
    samples = samples or (lambda rows, length: make_feeds(encoder, [length] * rows, rng))
    if asked.threads:
        torch.set_num_threads(asked.threads)
    with tempfile.TemporaryDirectory(prefix="loadgen-bench-") as folder:
        files: Mapping[str, Path | str] = {}
        if asked.mode == "infer" and {"onnxruntime", "tensorrt"} & set(asked.runtimes):
            import onnxruntime  # noqa: F401 - now: its libraries are in no runtime's memory

            say(f"making ONNX files: {', '.join(asked.precisions)}")
            wanted = list(asked.precisions)
            if "tensorrt" in asked.runtimes and "int8" in wanted:
                wanted.append(f"int8{FOR_TENSORRT}")
            files = model_files(encoder, Path(folder), wanted, calibration, constants)
        truth: dict[int, tuple[Feeds, Any]] = {}
        if asked.mode == "infer":
            say("FP32 answers to compare with")
            exact = open_torch(encoder, "fp32", "cpu", compiled=False)
            for length in sorted(set(asked.lengths)):
                feeds = samples(_ACCURACY_ROWS, length)
                truth[length] = feeds, exact.answer(feeds)
        yield Bench(asked, encoder, files, samples, truth)


def measure(bench: Bench, say: Say = lambda _: None) -> Iterator[Cell]:
    """Each cell when it is measured."""
    for runtime, precision in bench.asked.engines():
        yield from _engine(bench, runtime, precision, say)


def open_engine(bench: Bench, runtime: str, precision: str, *, profile: Path | None = None) -> Engine:
    """Raises Unavailable."""
    asked = bench.asked
    if runtime in ("torch", "torch-compile"):
        return open_torch(bench.encoder, precision, asked.device, compiled=runtime == "torch-compile")
    own = f"{precision}{FOR_TENSORRT}" if runtime == "tensorrt" else precision
    file = bench.files.get(own, bench.files[precision])
    if isinstance(file, str):
        raise Unavailable(file)
    if runtime == "tensorrt":
        return open_tensorrt(file, asked, bench.samples(1, min(asked.lengths)))
    return open_onnxruntime(file, asked.device, asked.threads, profile=profile)


def _engine(bench: Bench, runtime: str, precision: str, say: Say) -> Iterator[Cell]:
    asked = bench.asked
    memory.tidy(asked.device)
    before, taken = memory.rss()[0], memory.device_used(asked.device)
    sizes = list(asked.sizes())
    say(f"{runtime}, {precision}: opening")
    start = time.monotonic_ns()
    try:
        measure_one = _opened_one(bench, runtime, precision)
    except Unavailable as why:
        yield from (Cell(runtime, precision, b, n, error=str(why)) for b, n in sizes)
        return
    except Exception as why:  # noqa: BLE001 - whatever a runtime raises, the other runtimes are still measured
        yield from (Cell(runtime, precision, b, n, error=first_line(why)) for b, n in sizes)
        return
    opened_at, open_ns = memory.rss()[0], float(time.monotonic_ns() - start)
    for at, (batch, length) in enumerate(sizes):
        say(f"{runtime}, {precision}: batch {batch}, length {length} ({at + 1} of {len(sizes)})")
        cell = Cell(runtime, precision, batch, length, open_ns=open_ns, tokens=bench.encoder.has_length)
        if batch > 1 and not bench.encoder.batched:
            yield replace(cell, error="the model takes one item at a time: its batch is not free")
            continue
        fresh = memory.reset_peak(asked.device)
        try:
            cell = measure_one(cell)
        except Exception as why:  # noqa: BLE001 - out of memory, above all
            memory.tidy(asked.device)
            yield replace(cell, error=first_line(why))
            continue
        told = memory.peaks(
            asked.device, before=before, taken=taken, fresh=fresh, torch_runs=runtime.startswith("torch"),
            opened=opened_at if runtime == "onnxruntime" else None,
        )  # fmt: skip
        yield replace(cell, memory=told)


def _opened_one(bench: Bench, runtime: str, precision: str) -> Callable[[Cell], Cell]:
    """Opens, and gives what measures a cell.  Raises Unavailable."""
    if bench.asked.mode == "train":
        if runtime in ("onnxruntime", "tensorrt"):
            raise Unavailable(f"{runtime} does not train")
        trainer = Trainer(bench.encoder, precision, bench.asked.device, compiled=runtime == "torch-compile")
        return lambda cell: _trained(bench, trainer, cell)
    engine = open_engine(bench, runtime, precision)
    accuracy = _accuracy(bench, engine, f"{runtime} {precision}")
    return lambda cell: replace(_inferred(bench, engine, cell), **accuracy.get(cell.length, {}))


def _inferred(bench: Bench, engine: Engine, cell: Cell) -> Cell:
    asked = bench.asked
    call = engine.bind(bench.samples(cell.batch, cell.length))
    told = time_calls(
        call, device=asked.device, seconds=asked.seconds, rounds=asked.rounds, warmup=asked.warmup,
        on_stream=engine.on_stream,
    )  # fmt: skip
    return replace(cell, **told)


def _trained(bench: Bench, trainer: Trainer, cell: Cell) -> Cell:
    asked = bench.asked
    parts = trainer.parts(bench.samples(cell.batch, cell.length))
    told = time_parts(
        parts, device=asked.device, seconds=asked.seconds, rounds=asked.rounds, warmup=asked.warmup
    )
    return replace(cell, **told)


def _accuracy(bench: Bench, engine: Engine, rung: str) -> dict[int, dict[str, Any]]:
    """By length, against FP32 in torch on the CPU."""
    found: dict[int, dict[str, Any]] = {}
    for length, (feeds, want) in bench.truth.items():
        # A few rows at a time: what this leaves allocated must not hide what the cells need.
        got = np.concatenate([
            engine.answer({name: value[at : at + _BLOCK] for name, value in feeds.items()})
            for at in range(0, len(want), _BLOCK)
        ])  # fmt: skip
        step = compare(rung, "batched", length, bench.encoder, want, got)
        found[length] = {"cosine": step.cosine, "max_abs": step.max_abs, "ranks": step.ranks}
    wait(bench.asked.device)
    return found
