"""Families and modules in the real Triton: served is what PyTorch says, alone and batched, over HTTP and gRPC."""

import numpy as np
import pytest

from loadgen.convert.convert import convert
from loadgen.convert.options import ConvertOptions, SourceOptions
from loadgen.triton.local import LocalTriton
from tests.support.families import CASES, QUICK, convert_case, serve_case
from tests.support.infer import ASK, executions, new_executions, together
from tests.support.modules import Mixed

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

MODULES = "tests.support.modules:"


@pytest.fixture(scope="module")
def top(tmp_path_factory):
    return tmp_path_factory.mktemp("families")


@pytest.fixture(scope="module")
def served(top):
    """The quick families and three modules, on one server."""
    repository = top / "repository"
    cells = {case.name: convert_case(case, top, repository) for case in QUICK}
    modules = {
        "scalars": ("Scalars", ("x:FP32:batch",)),
        "mixed": ("Mixed", ("x:FP32:batch,3", "weights:FP32:3,2")),
        "scores": ("Scores", ("frames:FP32:batch,frames=2..9,4", "extra:FP32:batch,4")),
    }
    for name, (module, tensors) in modules.items():
        options = ConvertOptions(
            name=name, repository=repository, max_batch=8, delay_ns=200_000_000, threads=1,
            source=SourceOptions(tensors=tensors),
        )  # fmt: skip
        convert(MODULES + module, options)
    with LocalTriton(repository, models=[*cells, *modules]) as server:
        yield server, cells


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_a_family_is_served_as_pytorch_says(served, top, case):
    server, cells = served
    cell = serve_case(cells[case.name], server, top)
    assert cell.why == ""
    assert cell.onnx < 1e-5
    assert max(*cell.alone.values(), *cell.batched.values()) < 2e-5
    assert cell.batches == {"http": {8: 1}, "grpc": {8: 1}}, "mixed lengths are one batch"
    assert cell.passed


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_family_is_served_as_pytorch_says(tmp_path):
    from tests.bench.families import measure, table

    rest = [case for case in CASES if case not in QUICK]
    cells = measure(rest)
    assert [(cell.name, cell.why) for cell in cells if not cell.passed and cell.precision == "fp32"] == []
    assert [(cell.name, cell.engine) for cell in cells if not cell.engine.startswith("built, ")] == []
    assert table(cells).count("\n| ") == 2 * (len(cells) + 1), "a line each in both tables, under the heads"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_number_an_item_is_asked_as_batch_by_one(served, protocol):
    """Field case 10: a tensor of shape [batch] has dims [1] in the configuration, reshaped to nothing."""
    server, _ = served
    before = executions(server, "scalars")
    x = np.array([[1.5], [-2.0], [4.0]], np.float32)
    requests = [{"x": x}, {"x": x[:1]}]
    whole, one = together(server, protocol, "scalars", requests)
    assert whole.tolist() == [[4.0], [-3.0], [9.0]]
    assert one.tolist() == [[4.0]]
    assert new_executions(server, "scalars", before, 4) == {4: 1}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_mixed_batch_is_served_whole(served, protocol):
    """Field case 29: one input with a batch, one without: max_batch_size 0, every axis in dims."""
    server, _ = served
    rng = np.random.default_rng(4)
    weights = rng.standard_normal((3, 2)).astype(np.float32)
    for rows in (1, 5):
        x = rng.standard_normal((rows, 3)).astype(np.float32)
        got = ASK[protocol](server, "mixed", {"x": x, "weights": weights})
        np.testing.assert_allclose(got, Mixed()(x, weights), rtol=0, atol=1e-6)


def test_sizes_that_nothing_masks_are_not_mixed(served):
    """Padding a free axis without a mask would change the answer: such requests are batched by equal shape."""
    server, _ = served
    rng = np.random.default_rng(5)
    requests = [
        {
            "frames": rng.standard_normal((1, n, 4)).astype(np.float32),
            "extra": rng.standard_normal((1, 4)).astype(np.float32),
        }
        for n in (2, 9, 5)
    ]
    before = executions(server, "scores")
    alone = [ASK["grpc"](server, "scores", feeds) for feeds in requests]
    for got, want in zip(together(server, "grpc", "scores", requests), alone, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
    assert new_executions(server, "scores", before, 6) == {1: 6}
    refused = ASK["http"](
        server, "scores", {"frames": requests[0]["frames"], "extra": np.ones((2, 4), np.float32)}
    )
    assert isinstance(refused, str)
