"""int8 on the real Triton, asked before it is published; MiniLM's real weights in int8."""

import json
from pathlib import Path

import numpy as np
import pytest

from loadgen.convert import ladder
from loadgen.convert.convert import convert
from loadgen.convert.encoder import load_encoder
from loadgen.convert.options import ConvertOptions
from loadgen.convert.parity import ParityError, make_feeds
from loadgen.convert.sources import find_source
from tests.bench.int8_speed import measure
from tests.support.encoder import write_encoder

PROFILES = Path(__file__).parents[2] / "traffic_profiles"
pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(folder, calibration rows) of a tiny encoder."""
    top = tmp_path_factory.mktemp("tiny")
    folder = write_encoder(top / "model", pooling="mean_tokens")
    encoder = load_encoder(find_source(str(folder)))
    np.savez(top / "rows.npz", **make_feeds(encoder, [40, 5, 17, 30] * 4, np.random.default_rng(0)))
    return folder, top / "rows.npz"


def options(tiny, repository):
    return ConvertOptions(
        name="q", repository=repository, precision="int8", calibration=tiny[1], max_batch=8, check_served=True
    )


def test_what_is_published_was_asked_over_both_protocols(tiny, tmp_path):
    asked = options(tiny, tmp_path)
    convert(str(tiny[0]), asked)
    told = json.loads((asked.version_folder / "convert.json").read_text())["served"]
    assert told["passed"]
    rungs = {step["rung"] for step in told["steps"]}
    assert rungs == {f"served, {p}{how}" for p in ("http", "grpc") for how in ("", ", at once")}
    assert {step["how"] for step in told["steps"]} == {"batched", "alone", "padded"}
    assert {step["length"] for step in told["steps"]} == {1, 8, 32, 48}
    assert [p.name for p in tmp_path.iterdir()] == ["q"]


def test_a_served_answer_beyond_its_limits_is_not_published(tiny, tmp_path, monkeypatch):
    from loadgen.convert import lowering

    real = lowering.climb_served

    def strict(*given):
        monkeypatch.setitem(ladder.LIMITS, "int8", ladder.LIMITS["fp32"])
        return real(*given)

    monkeypatch.setattr("loadgen.convert.lowering.climb_served", strict)
    with pytest.raises(
        ParityError, match=r"parity failed for int8 at .* first served, http, batched, length 1: "
    ):
        convert(str(tiny[0]), options(tiny, tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # it times: what shares the machine with it costs both alike, as they take turns
def test_minilm_in_int8_is_smaller_faster_and_close():
    told = measure(PROFILES / "mixed-lengths.yaml")
    assert told["size_ratio"] < 0.35
    assert (told["batch"], told["length"]) == (8, 64)
    assert told["times_faster_in_a_round"]["p50"] > 1
    assert told["passed"]
    assert min(told["ranks"].values()) > 0.93


def test_minilm_in_int8_is_a_quarter_and_keeps_its_order(tmp_path):
    asked = ConvertOptions(
        name="minilm-int8", repository=tmp_path, precision="int8",
        calibration=PROFILES / "mixed-lengths.yaml",
    )  # fmt: skip
    result = convert("minilm", asked)
    fp32_bytes = sum(file.stat().st_size for file in find_source("minilm").weights)
    assert result.files["1/model.onnx"] < 0.35 * fp32_bytes
    told = result.sidecar
    assert told["lowering"]["lowered"] == {"Gather": 2, "MatMul": 36}
    assert told["lowering"]["calibration"]["rows"] == 128
    ranks = [step["ranks"] for step in told["ladder"]["steps"] if step["ranks"] is not None]
    assert min(ranks) > 0.93
    assert min(step["cosine"] for step in told["ladder"]["steps"]) > 0.94
