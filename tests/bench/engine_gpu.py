"""fp16 and bf16 on a GPU in one go: parity and speed of a real encoder, inference and training, under five minutes.

Needs torch, transformers, onnx, onnxscript and onnxruntime, and of this project only what imports with numpy:

    python3 -m tests.bench.engine_gpu MODEL_FOLDER [OUT_FOLDER]

Texts are sentences of Python's own documentation.  Without a GPU it runs on the CPU, which shows that it works
and nothing else.
"""

from __future__ import annotations

import json
import re
import sys
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.convert.calibration import Calibration, row_of
from loadgen.convert.encoder import load_encoder
from loadgen.convert.ladder import climb
from loadgen.convert.sources import find_source, numbers
from loadgen.enginebench.cells import Asked
from loadgen.enginebench.engines import open_torch
from loadgen.enginebench.facts import facts
from loadgen.enginebench.result import as_csv, summary
from loadgen.enginebench.run import find_device, measure, opened

QUICK = "--quick"


def sentences() -> list[str]:
    from pydoc_data.topics import topics

    text = " ".join(re.sub(r"\s+", " ", part) for part in topics.values())
    return [one for one in re.split(r"(?<=[.:]) ", text) if len(one) > 40]


def sampler(encoder: Any, folder: Path) -> Any:
    """(rows, length) of consecutive stretches of the text, each with its special tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    turn = cycle(sentences())

    def make(rows: int, length: int) -> dict[str, Any]:
        each = []
        for _ in range(rows):
            ids: list[int] = []
            while len(ids) < length:
                ids += tokenizer.encode(next(turn), add_special_tokens=bool(not ids)).ids
            each.append(row_of(encoder, [*ids[: length - 1], tokenizer.encode("").ids[-1]]))
        return {name: np.concatenate([row[name] for row in each]) for name in each[0]}

    return make


def show(told: dict[str, Any]) -> None:
    print(
        f"{'engine':22} {'batch':>5} {'len':>4} {'median us':>10} {'p99 us':>10} {'samples/s':>10} {'peak MiB':>9}  cosine    ranks"
    )
    for c in told["cells"]:
        name = f"{c['runtime']} {c['precision']}"
        if c["error"]:
            print(f"{name:22} {c['batch']:>5} {c['length']:>4}  {c['error'][:90]}")
            continue
        parts = " ".join(f"{k} {v / 1e3:.0f}" for k, v in c["parts"].items())
        peak = "-" if c["peak_bytes"] is None else f"{c['peak_bytes'] / 2**20:.1f}"
        agree = parts or f"{c['cosine']:.7f} {c['ranks'] if c['ranks'] is None else round(c['ranks'], 5)}"
        print(
            f"{name:22} {c['batch']:>5} {c['length']:>4} {c['median_ns'] / 1e3:>10.1f} {c['p99_ns'] / 1e3:>10.1f} "
            f"{c['samples_per_s']:>10,.0f} {peak:>9}  {agree}"
        )
    for one in told["memory_growth"]:
        if one["linear"] is False:
            print("memory grows faster than the batch:", one)


def parity(encoder: Any, samples: Any, device: str) -> dict[str, Any]:
    found = {}
    # Few processors multiply in fp16; the others take minutes for what a GPU does at once.
    for precision in ("fp32", "fp16", "bf16") if device == "cuda" else ("fp32", "bf16"):
        engine = open_torch(encoder, precision, device, compiled=False)
        climbed = climb(encoder, {f"torch {precision}, {device}": engine.answer}, precision, samples=samples)
        found[precision] = climbed.as_json()
        print(f"parity {precision}: {'passed' if climbed.passed else climbed.faults}")
        for s in climbed.steps:
            print(
                f"  {s.how:8} length {s.length:>4} cosine {s.cosine:.7f} max {s.max_abs:.2e} mean {s.mean_abs:.2e} "
                f"ranks {s.ranks} neighbours {s.neighbours}"
            )
    return found


def main() -> None:
    import torch

    arguments = [one for one in sys.argv[1:] if one != QUICK]
    folder, out = Path(arguments[0]), Path(arguments[1] if len(arguments) > 1 else "engine-gpu")
    quick = QUICK in sys.argv
    out.mkdir(parents=True, exist_ok=True)
    device = find_device("auto")
    torch.backends.cuda.matmul.allow_tf32 = False  # fp32 means fp32
    found = find_source(str(folder))
    encoder = load_encoder(found, 256)
    samples = sampler(encoder, found.folder)
    result: dict[str, Any] = facts(found, device)
    print(json.dumps(result))
    result["parity"] = parity(encoder, samples, device)
    low = ("fp32", "fp16", "bf16") if device == "cuda" else ("fp32", "bf16")
    sizes = ((1, 4), (16,)) if quick else ((1, 8, 64, 256), (16, 256))
    large, long = sizes[0][-2:], sizes[1][-1:]
    eager, others = ("torch",), ("torch-compile", "tensorrt")
    grids = {  # compiling takes most of a minute a size: it gets the large ones only
        "infer": Asked(*sizes, low, eager, device=device, seconds=0.3, rounds=20, warmup=5),
        "onnx": Asked(*sizes, low, ("onnxruntime",), device=device, seconds=0.3, rounds=20, warmup=5),
        "train": Asked(large[:1], long, low, eager, mode="train", device=device, seconds=0.3),
        "compiled": Asked(large[:1], long, low, others, device=device, seconds=0.3, rounds=20, warmup=5),
        # What the GPU machine's processor does with the same model: int8 needs no GPU.
        "cpu": Asked((1, 8), (64,), ("fp32", "int8"), ("torch", "onnxruntime"), device="cpu", seconds=0.5),
    }
    rows = Calibration(
        lambda: ({k: v[:1] for k, v in samples(1, n).items()} for n in islice(cycle((16, 64, 256)), 48)),
        {"source": "sentences", "rows": 48},
    )
    for name, asked in grids.items():
        print(f"== {name}")
        with opened(
            encoder, asked, samples=samples, calibration=rows, constants=numbers(found.config)
        ) as bench:
            cells = list(measure(bench))
        told = summary(asked, cells, facts(found, asked.device), finished=True)
        show(told)
        result[name] = told
        (out / f"{name}.csv").write_text(as_csv(cells), encoding="utf-8")
        (out / "engine-gpu.json").write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
