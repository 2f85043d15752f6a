"""An engine run with a scripted TensorRT, in this process's memory: profiles, types and rows as the engine wants them."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from loadgen.convert import flavours, lowering, tensorrt
from loadgen.convert.convert import convert
from loadgen.convert.engine import TooFewRowsError, engine_run, profile_for
from loadgen.convert.options import ConvertOptions
from loadgen.convert.parity import ParityError, torch_run
from loadgen.convert.profiles import Ranges
from loadgen.convert.serve_options import Flavour, PlanOptions, ServeOptions
from loadgen.convert.tensorrt import BuildOptions, TensorRT, TensorRTError, build
from loadgen.environment.cuda import Device
from tests.support import fake_tensorrt as fake
from tests.support.encoder import write_encoder

H200 = Device("NVIDIA H200", "9.0", 2**37, "13.0")


def three(low, high):
    return Ranges({"x": ((low, 4), (low, 4), (high, 4))})


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """Builds a plan for these profiles and gives (the module's calls, the engine as a run)."""
    monkeypatch.setattr(tensorrt, "cuda_device", lambda: H200)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))

    def go(profiles, **script):
        made = TensorRT(fake.module("10.13.2.6", **script), "tensorrt", "10.13.2.6")
        build(made, tmp_path / "m.onnx", tmp_path / "m.plan", BuildOptions(profiles))
        return made.module.calls, engine_run(made, tmp_path / "m.plan", device="cpu")

    return go


def test_the_profile_is_the_first_that_takes_the_shapes(opened):
    calls, run = opened((three(1, 8), three(9, 16)))
    for rows, index in ((1, 0), (8, 0), (9, 1)):
        x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
        assert run({"x": x}).tolist() == x.tolist()
        assert calls[-1] == ("profile", index)
    with pytest.raises(TensorRTError, match=r"x \[17, 4\]: in no optimization profile of the engine"):
        run({"x": np.zeros((17, 4), np.float32)})
    with pytest.raises(TensorRTError, match=r"x \[2, 5\]: in no optimization profile"):
        run({"x": np.zeros((2, 5), np.float32)})


def test_a_batch_below_the_smallest_is_filled_up_and_cut_again(opened):
    _, run = opened((three(64, 300),))
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert run({"x": x}).tolist() == x.tolist()
    with pytest.raises(TooFewRowsError, match="the engine takes 64 rows at least"):
        profile_for({"x": (2, 4)}, (three(64, 300),))


def test_tensors_are_cast_to_the_engines_own_types(opened):
    engine = {
        "x": (fake.TensorIOMode.INPUT, fake.DataType.INT32, (-1, 4)),
        "y": (fake.TensorIOMode.OUTPUT, fake.DataType.INT32, (-1, 4)),
    }
    _, run = opened((three(1, 8),), engine=engine)
    assert run({"x": np.asarray([[1, 2, 3, 70000]], np.int64)}).tolist() == [[1, 2, 3, 70000]]


@pytest.mark.parametrize(
    ("tf32", "error", "fault"), [(False, 0.0, None), (True, 1e-3, None), (False, 1e-3, "engine, batched, length 1: max abs")]
)  # fmt: skip
def test_the_engine_is_a_rung_that_stops_publishing(tmp_path, monkeypatch, tf32, error, fault):
    """Its answers are scripted; fp32 is held to FP32's limits unless TF32 was asked for."""
    source = str(write_encoder(tmp_path / "source"))
    takes = (fake.TensorIOMode.INPUT, fake.DataType.INT64, (-1, -1))
    engine = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), takes)
    engine["last_hidden_state"] = (fake.TensorIOMode.OUTPUT, fake.DataType.FLOAT, (-1, -1, 32))
    monkeypatch.setattr(tensorrt, "cuda_device", lambda: H200)
    monkeypatch.setitem(sys.modules, "tensorrt", fake.module("10.13.2.6", engine=engine))
    monkeypatch.setattr(flavours, "home", lambda: tmp_path / "home" / "triton")
    asked = PlanOptions(server_tensorrt="10.13.2", tf32=tf32)
    options = ConvertOptions(
        name="m", repository=tmp_path / "repository", max_batch=4, max_length=24,
        serve=ServeOptions(flavour=Flavour.TENSORRT, plan=asked),
    )  # fmt: skip
    told = convert(source, options).sidecar
    assert told["engine"]["not_run"].startswith("torch ")
    assert told["serving"]["warnings"][-1].startswith("the engine was not run: torch ")

    real = lowering.climb

    def scripted(encoder, rungs, *rest, **more):
        def answer(feeds):
            return torch_run(encoder)(feeds) + np.float32(error)

        return real(encoder, dict.fromkeys(rungs, answer), *rest, **more)

    monkeypatch.setattr(lowering, "why_not_here", lambda: None)
    monkeypatch.setattr(lowering, "engine_run", lambda found, plan: plan.read_bytes)
    monkeypatch.setattr(lowering, "climb", scripted)
    again = replace(options, version=2)
    if fault is None:
        told = convert(source, again).sidecar
        assert (told["engine"]["passed"], told["engine"]["precision"]) == (True, "fp16" if tf32 else "fp32")
        assert {step["rung"] for step in told["engine"]["steps"]} == {"engine"}
    else:
        with pytest.raises(ParityError, match=fault):
            convert(source, again)
        assert not again.version_folder.exists()
