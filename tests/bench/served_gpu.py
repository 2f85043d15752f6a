"""MiniLM on a GPU behind the embedded Triton, in FP32, FP16 and BF16: converted, proven as served, and loaded.

    LOADGEN_TRITON_ONNXRUNTIME=onnxruntime-gpu==1.31.1 python3 -m tests.bench.served_gpu OUT [SOURCE]

Needs a GPU, onnxruntime-gpu for convert too, and CUDA's and cuDNN's libraries on LD_LIBRARY_PATH.  Exit code: 0 all
were published and every run was valid, 1 otherwise.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from loadgen.triton.local import LocalTriton

PRECISIONS = ("fp32", "fp16", "bf16")
LENGTH, USERS = 128, (1, 64)


def loadgen(*arguments: object) -> bool:
    """Runs the command with its output shown; whether it ended with 0."""
    print("$ loadgen", *arguments, flush=True)
    return (
        subprocess.run([sys.executable, "-m", "loadgen", *map(str, arguments)], check=False).returncode == 0
    )


def publish(source: str, precision: str, repository: Path) -> bool:
    good = loadgen(
        "convert", source, "--precision", precision, "--name", precision, "--repository", repository,
        "--max-batch", 64, "--max-length", 256, "--gpus", 0, "--check-served", "--replace",
    )  # fmt: skip
    if good:
        told = json.loads((repository / precision / "1" / "convert.json").read_text())
        for key in ("ladder", "served"):
            steps = told.get(key, {}).get("steps", ())
            for rung in sorted({step["rung"] for step in steps}):
                of = [step for step in steps if step["rung"] == rung]
                cosine, gap = min(s["cosine"] for s in of), max(s["max_abs"] for s in of)
                print(f"{rung}: worst cosine {cosine:.7f}, largest difference {gap:.1e}")
    return good


def main() -> int:
    out, source = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "minilm"
    out.mkdir(parents=True, exist_ok=True)
    repository = out / "repository"
    ready = [precision for precision in PRECISIONS if publish(source, precision, repository)]
    good = len(ready) == len(PRECISIONS)
    with LocalTriton(repository, models=ready) as server:
        for users in USERS:
            for precision in ready:
                profile = out / f"{precision}-{users}.yaml"
                profile.write_text(
                    f"name: {precision}\nkinds: {{k: {{model: {precision}, length: {LENGTH}}}}}\nphases:\n"
                    f"  - {{name: warm-up, warmup: true, closed: {{users: {users}, duration: 3s}}}}\n"
                    f"  - {{name: load, closed: {{users: {users}, duration: 8s}}}}\n"
                )
                run = out / f"{precision}-{users}"
                good &= loadgen("run", profile, "--target", server.grpc_target, "--out", run)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
