"""Model families by precision and runtime: converted, served by the embedded Triton, held against PyTorch.

Writes docs/families.md.

python -m tests.bench.families [--only NAME] [--out FILE]
"""

import argparse
import sys
import tempfile
import time
from importlib.metadata import version
from itertools import product
from pathlib import Path

from loadgen.convert.flavours import require_flavour
from loadgen.convert.ladder import LIMITS
from loadgen.convert.options import ConvertOptions
from loadgen.convert.serve_options import Flavour, ServeOptions
from loadgen.records import LoadgenError
from loadgen.triton.install import BACKENDS
from loadgen.triton.local import LocalTriton
from tests.support.families import ALLOWED, CASES, MAX_BATCH, build_case, convert_case, serve_case

OUT = Path(__file__).parents[2] / "docs" / "families.md"
HEAD = """# Model families

Made by `make families`; do not edit.  Each row was converted (`loadgen convert`), published, served by the
embedded Triton and asked over HTTP and gRPC; every figure is the largest absolute difference from PyTorch in FP32
on the same tensors.  Models are small ones of their family (2 layers, width 32, random weights of seed 1) unless the
weights have a name: such a row proves the graph, its free axes and its padding, not the speed of the real model.

* *ONNX Runtime*: the written file in this process, at batches 1 to {max_batch} and lengths 1 to the longest, and each
  row alone against itself padded in a batch.
* *Triton alone*: one request at a time, one row and two rows.
* *Triton together*: seven requests of mixed lengths (eight rows) sent at once; the batches that the server made of
  them are in the last column but one, as rows x executions.
* What is served is the python backend with onnxruntime on the CPU; the other runtimes are in the second table.
* Allowed: {allowed}; for {cosines} of every answer (the last column), and its ladder
  (loadgen/convert/ladder.py), at conversion.  A row within it passes; for one that does not, the reason stands in
  its place.
* int8 is calibrated with 32 random rows; products with weights are int8, the rest is FP32.

Versions: {versions}.

| family | task | weights | precision | ONNX Runtime | Triton alone, HTTP / gRPC | Triton together, HTTP / gRPC | batches | verdict | cosine |
|---|---|---|---|---|---|---|---|---|---|
"""
RUNTIMES = """
## By runtime

The same rows by what runs them.  A figure is the largest absolute difference from PyTorch in FP32 on the same tensors,
and within what is allowed unless it says otherwise; a number in brackets is the reason below why there is none.

* *PyTorch*: each row alone against itself padded in a batch (it is the reference, so this is all that it can differ by).
* *TensorRT for RTX*: the file (for int8 in the form that engines want) really built into an engine for compute
  capability 8.9, its inputs' types read back from the builder's list of the finished engine, its profiles from the plan.

| family | task | weights | precision | PyTorch | ONNX Runtime | Triton, python | Triton, onnxruntime_onnx | TensorRT for RTX | Triton, tensorrt_plan |
|---|---|---|---|---|---|---|---|---|---|
"""
PRECISIONS = ("fp32", "fp16", "int8")
_LIBRARIES = ("torch", "transformers", "onnx", "onnxruntime")


def show(figure):
    return "-" if figure is None else f"{figure:.1e}"


class Reasons:
    """Why cells are empty: each reason once, numbered as it first comes."""

    def __init__(self):
        self.all = []

    def mark(self, why):
        """ "(2)" for a reason."""
        if why not in self.all:
            self.all.append(why)
        return f"({self.all.index(why) + 1})"

    def lines(self):
        return [f"({at + 1}) {why}" for at, why in enumerate(self.all)]


def pair(figures):
    return " / ".join(show(figures.get(protocol)) for protocol in ("http", "grpc"))


def line(cell):
    made = cell.batches.get("http", {})
    sizes = ", ".join(f"{size} x {count}" for size, count in sorted(made.items(), reverse=True))
    verdict = "passed" if cell.passed else f"failed: {cell.why or 'beyond what is allowed'}"
    parts = [
        cell.case.family, cell.case.task, cell.case.weights, cell.precision, show(cell.onnx), pair(cell.alone),
        pair(cell.batched), sizes or "-", verdict, "-" if cell.cosine is None else f"{cell.cosine:.5f}",
    ]  # fmt: skip
    return "| " + " | ".join(parts) + " |"


def no_plan():
    """This machine's own refusal of the flavour."""
    try:
        require_flavour(ConvertOptions(name="m", serve=ServeOptions(flavour=Flavour.TENSORRT)))
    except LoadgenError as why:
        return str(why)
    return "not asked: this table has no rows of engines"


def by_runtime(cell, reasons, plan):
    """A row of the second table."""
    parts = [cell.case.family, cell.case.task, cell.case.weights, cell.precision]
    if cell.why:
        mark = reasons.mark(cell.why)
        return "| " + " | ".join([*parts, *[mark] * 6]) + " |"
    torch = reasons.mark(cell.torch) if isinstance(cell.torch, str) else show(cell.torch)
    served = [*cell.alone.values(), *cell.batched.values()]
    python = show(max(served, default=None)) + ("" if cell.passed else ", beyond what is allowed")
    backends = reasons.mark(
        f"The embedded Triton has {', '.join(BACKENDS)} alone; the configuration is rendered and read back by protobuf "
        "(tests/unit/test_convert_config.py), and the server's refusal is tested (tests/live/test_flavours.py)."
    )
    built = not cell.engine.startswith("failed")
    engine = f"{cell.engine} {reasons.mark(NOT_RUN)}" if built else reasons.mark(cell.engine)
    return (
        "| "
        + " | ".join([*parts, torch, show(cell.onnx), python, backends, engine, reasons.mark(plan)])
        + " |"
    )


NOT_RUN = "Not run: such engines run on RTX GPUs, and Triton does not load them."


def table(cells):
    """The whole document."""
    reasons, plan = Reasons(), no_plan()
    rows = [by_runtime(cell, reasons, plan) for cell in cells]
    head = HEAD.format(
        max_batch=MAX_BATCH,
        allowed=", ".join(f"{name} {value:g}" for name, value in ALLOWED.items()),
        cosines=" and ".join(f"{name} a cosine of {LIMITS[name].cosine}" for name in PRECISIONS[1:]),
        versions=", ".join(f"{name} {version(name)}" for name in _LIBRARIES),
    )
    parts = [line(cell) for cell in cells], rows
    first, second = ("\n".join(part) for part in parts)
    return f"{head}{first}\n{RUNTIMES}{second}\n\n" + "\n\n".join(reasons.lines()) + "\n"


def measure(cases, say=lambda _text: None):
    """Every case at every precision: all converted first, then served by one server."""
    with tempfile.TemporaryDirectory() as top:
        repository = Path(top) / "repository"
        cells = []
        for case, precision in product(cases, PRECISIONS):
            start = time.monotonic()
            cells.append(convert_case(case, top, repository, precision))
            say(f"{cells[-1].name}: {cells[-1].why or 'converted'} in {time.monotonic() - start:.1f} s")
            if not cells[-1].why:
                build_case(cells[-1], repository, top)
                say(f"{cells[-1].name}: TensorRT for RTX: {cells[-1].engine}")
        good = [cell for cell in cells if not cell.why]
        if not good:
            return cells
        with LocalTriton(repository, models=[cell.name for cell in good]) as server:
            for cell in good:
                serve_case(cell, server, top)
                say(f"{cell.name}: {'passed' if cell.passed else cell.why or 'beyond what is allowed'}")
        return cells


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="a case, family-task; may be repeated")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    cases = [case for case in CASES if not asked.only or case.name in asked.only]
    cells = measure(cases, say=lambda text: print(text, file=sys.stderr, flush=True))
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(table(cells), encoding="utf-8")
    return 0 if all(cell.passed for cell in cells) else 1


if __name__ == "__main__":
    sys.exit(main())
