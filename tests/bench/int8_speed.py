"""int8 MiniLM beside fp32 on this CPU: size on disk, and medians of rounds that take turns.

python -m tests.bench.int8_speed traffic_profiles/mixed-lengths.yaml
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.convert.calibration import open_calibration, text_samples
from loadgen.convert.encoder import load_encoder
from loadgen.convert.export import export_onnx
from loadgen.convert.ladder import climb
from loadgen.convert.parity import onnx_run
from loadgen.convert.precision import lower
from loadgen.convert.sources import find_source, numbers

BATCH, LENGTH, ROUNDS, WARMUP = 8, 64, 60, 5


def measure(profile: Path) -> dict[str, Any]:
    """Sizes, speeds and agreement of both; calibrated by a traffic profile."""
    found = find_source("minilm")
    encoder = load_encoder(found)
    samples = text_samples(encoder, found.folder)
    assert samples is not None, "MiniLM comes with its tokenizer"
    with tempfile.TemporaryDirectory() as folder:
        files = {"fp32": Path(folder) / "fp32.onnx", "int8": Path(folder) / "int8.onnx"}
        export_onnx(encoder, files["fp32"], constants=numbers(found.config))
        calibration = open_calibration(profile, encoder, found.folder)
        lower(files["fp32"], files["int8"], "int8", calibration=calibration)
        sizes = {name: file.stat().st_size for name, file in files.items()}
        runs = {name: onnx_run(file) for name, file in files.items()}
        feeds = samples(BATCH, LENGTH)
        taken: dict[str, list[int]] = {name: [] for name in runs}
        for at in range(WARMUP + ROUNDS):
            for name in (*runs,) if at % 2 else reversed(runs):
                start = time.monotonic_ns()
                runs[name](feeds)
                if at >= WARMUP:
                    taken[name].append(time.monotonic_ns() - start)
        climbed = climb(encoder, {"onnx int8": runs["int8"]}, "int8", samples=samples)
    median = {name: float(np.median(values)) for name, values in taken.items()}
    ratio = np.asarray(taken["fp32"]) / np.asarray(taken["int8"])
    return {
        "bytes": sizes, "size_ratio": sizes["int8"] / sizes["fp32"],
        "batch": BATCH, "length": LENGTH, "rounds": ROUNDS, "median_ms": {k: v / 1e6 for k, v in median.items()},
        "times_faster": median["fp32"] / median["int8"],
        "times_faster_in_a_round": {"p50": float(np.median(ratio)), "p10": float(np.quantile(ratio, 0.1)), "p90": float(np.quantile(ratio, 0.9))},
        "passed": climbed.passed,
        "ranks": {s.length: s.ranks for s in climbed.steps if s.ranks is not None and s.how == "batched"},
        "neighbours": {s.length: s.neighbours for s in climbed.steps if s.ranks is not None and s.how == "batched"},
        "cosine": {s.length: s.cosine for s in climbed.steps if s.how == "batched"},
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1])), indent=1))
