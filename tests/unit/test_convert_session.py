"""An ONNX file is opened where it was asked for, or not at all."""

import onnxruntime
import pytest

from loadgen.convert.session import SessionError, open_session


class Session:
    """As onnxruntime-gpu without one of its libraries: made, on the CPU."""

    def __init__(self, *_args, **_kwargs):
        pass

    def get_providers(self):
        return ["CPUExecutionProvider"]


def test_the_cpu_under_cudas_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(SessionError, match="it is the CPU package, not onnxruntime-gpu"):
        open_session(tmp_path / "m.onnx", "cuda")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    with pytest.raises(SessionError, match="onnxruntime-gpu cannot load its CUDA"):
        open_session(tmp_path / "m.onnx", "cuda")
    assert isinstance(open_session(tmp_path / "m.onnx"), Session)


def test_a_file_that_does_not_load(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(SessionError, match=r"^onnxruntime does not load m.onnx: .*Protobuf parsing failed"):
        open_session(tmp_path / "m.onnx")
