"""A model beyond 2 GiB, where protobuf ends: its weights lie beside the ONNX file, and every step takes them along.

Slow: about two minutes, 15 GB of memory and 5 GB of disk.
"""

import json

import numpy as np
import pytest

from loadgen.convert.convert import convert
from loadgen.convert.options import ConvertOptions, SourceOptions
from loadgen.convert.profiles import Ranges
from loadgen.convert.tensorrt import BuildOptions, build, find_tensorrt

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(900)]

VOCAB, WIDTH = 280_000, 2048
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
BEYOND = 2**31


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One wide layer under a very large vocabulary: 2.26 GiB of weights that take little time to run."""
    path = tmp_path_factory.mktemp("large")
    config = {
        "model_type": "bert", "vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": 1,
        "num_attention_heads": 16, "intermediate_size": 4096, "max_position_embeddings": 128, "type_vocab_size": 2,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    return path


def options(tmp_path, **more):
    source = SourceOptions(task="features", random_seed=1)
    return ConvertOptions(
        name="large", repository=tmp_path, max_batch=4, max_length=64, threads=1, source=source, **more
    )


def test_it_is_converted_served_and_built(folder, tmp_path):
    result = convert(str(folder), options(tmp_path / "repository", check_served=True))
    version = result.folder
    assert (version / "model.onnx.data").stat().st_size > BEYOND
    assert (version / "model.onnx").stat().st_size < 10**6
    assert sorted(result.sidecar["onnx"]["files"]) == ["model.onnx", "model.onnx.data"]
    assert result.sidecar["parity"]["passed"]
    assert result.sidecar["served"]["passed"]
    rungs = {step["rung"] for step in result.sidecar["served"]["steps"]}
    assert rungs >= {"served, http", "served, grpc"}
    ranges = Ranges(dict.fromkeys(INPUTS, ((1, 1), (2, 17), (4, 64))))
    plan = tmp_path / "large.plan"
    built = build(
        find_tensorrt("tensorrt_rtx"), version / "model.onnx", plan, BuildOptions((ranges,), target="8.9")
    )
    assert built.plan_bytes > BEYOND
    assert (built.facts.profiles, built.facts.profiles_from) == ((ranges,), "plan")


def test_it_is_quantised(folder, tmp_path):
    ids = np.random.default_rng(0).integers(5, VOCAB, (8, 64))
    rows = tmp_path / "rows.npz"
    np.savez(rows, input_ids=ids, attention_mask=np.ones_like(ids), token_type_ids=np.zeros_like(ids))
    result = convert(str(folder), options(tmp_path / "repository", precision="int8", calibration=rows))
    size = sum(file.stat().st_size for file in result.folder.glob("model.onnx*"))
    assert size < 0.26 * VOCAB * WIDTH * 4 * 1.1
    assert result.sidecar["ladder"]["passed"]
