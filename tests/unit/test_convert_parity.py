"""FP32 parity is judged by the size of the answers: neither large ones fail by it nor small ones pass."""

import numpy as np
import pytest

from loadgen.convert.convert import convert
from loadgen.convert.encoder import load_encoder
from loadgen.convert.options import ConvertOptions, SourceOptions
from loadgen.convert.parity import (
    LARGEST,
    ONNX_VS_TORCH,
    ParityMissedError,
    ParityPoint,
    allowed,
    measure,
    require,
    torch_run,
    verdict,
)
from loadgen.convert.sources import find_source

LARGE = ("tests.support.modules:Large", ("x:FP32:batch,64",))
TINY = ("tests.support.modules:Tiny", ("x:FP32:batch,64",))


def point(max_abs, peak):
    return ParityPoint(ONNX_VS_TORCH, 1, 1, 1.0, max_abs, max_abs, peak)


def encoder(source, tensors):
    return load_encoder(find_source(source, SourceOptions(tensors=tensors)), None)


def test_the_limit_is_a_share_of_the_largest_answer():
    points = [point(1e-7, 0.5), point(1e-7, 2.0), point(float("nan"), float("nan"))]
    assert allowed(points) == 2 * LARGEST
    assert allowed([]) == 0
    assert verdict(points[:2]) is None
    assert verdict([point(1e-7, 0.0), point(1e-7, 2.0)]) is None  # a point of zeros among others
    assert "allowed is max abs 0.0002, 0.0001 of the largest magnitude" in verdict(
        [*points, point(3e-4, 1.0)]
    )
    with pytest.raises(ParityMissedError, match=r"failed at 1 of 3 points, worst .* max abs nan"):
        require(points)


def test_answers_in_the_millions_may_differ_by_their_rounding(tmp_path):
    """By more than 0.0001, which is what reordering a sum of numbers of that size costs."""
    source, tensors = LARGE
    options = ConvertOptions(name="m", repository=tmp_path, source=SourceOptions(tensors=tensors))
    result = convert(source, options)
    assert max(p.peak for p in result.parity) > 1e6
    assert result.sidecar["parity"]["passed"]
    assert result.sidecar["parity"]["allowed_max_abs"] > 100


def test_answers_of_a_millionth_must_still_be_right():
    """All of them wrong, and none by more than 0.0001."""
    model = encoder(*TINY)
    right = torch_run(model)
    found = measure(model, lambda feeds: right(feeds) * np.float32(1.5), [(1, 1), (3, 1)])
    assert max(p.max_abs for p in found) < 1e-4
    with pytest.raises(ParityMissedError, match=r"worst 'onnx = torch' .* 0.0001 of the largest magnitude"):
        require(found)
    require(measure(model, right, [(1, 1), (3, 1)]))
