"""Model families by precision: converted, served by the embedded Triton, held against PyTorch.  Writes docs/families.md.

python -m tests.bench.families [--only NAME] [--out FILE]
"""

import argparse
import sys
import tempfile
import time
from importlib.metadata import version
from itertools import product
from pathlib import Path

from loadgen.convert.ladder import LIMITS
from loadgen.triton.local import LocalTriton
from tests.support.families import ALLOWED, CASES, MAX_BATCH, convert_case, serve_case

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
* What is served is the python backend with onnxruntime on the CPU.
* Allowed: {allowed}; for int8 a cosine of {cosine} of every answer (the last column), and its ladder
  (loadgen/convert/ladder.py), at conversion.  A row within it passes; for one that does not, the reason stands in
  its place.
* int8 is calibrated with 32 random rows; products with weights are int8, the rest is FP32.

Versions: {versions}.

| family | task | weights | precision | ONNX Runtime | Triton alone, HTTP / gRPC | Triton together, HTTP / gRPC | batches | verdict | cosine |
|---|---|---|---|---|---|---|---|---|---|
"""
PRECISIONS = ("fp32", "int8")
_LIBRARIES = ("torch", "transformers", "onnx", "onnxruntime")


def show(figure):
    return "-" if figure is None else f"{figure:.1e}"


def pair(figures):
    return " / ".join(show(figures.get(protocol)) for protocol in ("http", "grpc"))


def line(cell):
    made = cell.batches.get("http", {})
    sizes = ", ".join(f"{size} x {count}" for size, count in sorted(made.items(), reverse=True))
    verdict = "passed" if cell.passed else f"failed: {cell.why or 'beyond what is allowed'}"
    parts = [
        cell.case.family, cell.case.task, cell.case.weights, cell.precision, show(cell.onnx), pair(cell.alone),
        pair(cell.batched), sizes or "-", verdict, f"{cell.cosine:.5f}",
    ]  # fmt: skip
    return "| " + " | ".join(parts) + " |"


def table(cells):
    """The whole document."""
    head = HEAD.format(
        max_batch=MAX_BATCH,
        allowed=", ".join(f"{name} {value:g}" for name, value in ALLOWED.items()),
        cosine=LIMITS["int8"].cosine,
        versions=", ".join(f"{name} {version(name)}" for name in _LIBRARIES),
    )
    return head + "\n".join(line(cell) for cell in cells) + "\n"


def measure(cases, say=lambda _text: None):
    """Every case at every precision: all converted first, then served by one server."""
    with tempfile.TemporaryDirectory() as top:
        repository = Path(top) / "repository"
        cells = []
        for case, precision in product(cases, PRECISIONS):
            start = time.monotonic()
            cells.append(convert_case(case, top, repository, precision))
            say(f"{cells[-1].name}: {cells[-1].why or 'converted'} in {time.monotonic() - start:.1f} s")
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
