"""An ONNX file opened by onnxruntime, on the CPU or on CUDA: never all of it on the CPU in CUDA's name.

Single nodes stay on the CPU where onnxruntime thinks them better there, as it does for shapes.

It must not know what the file is run for.
"""

import contextlib
import sys
from pathlib import Path
from typing import Any

from loadgen.convert.encoder import first_line
from loadgen.records import LoadgenError

CUDA = "cuda"
_PROVIDER = "CUDAExecutionProvider"


class SessionError(LoadgenError):
    """A file that onnxruntime does not load, or not on that device."""


def open_session(file: Path, device: str = "cpu", options: Any = None) -> Any:
    """`device` is "cpu" or "cuda", where FP32 is multiplied without TF32.  Raises SessionError.

    A CUDA that does not load is one too: onnxruntime takes the CPU then, and tells its log alone.
    """
    import onnxruntime

    providers: list[Any] = ["CPUExecutionProvider"]
    if device == CUDA:
        if _PROVIDER not in onnxruntime.get_available_providers():
            raise SessionError("this onnxruntime has no CUDA: it is the CPU package, not onnxruntime-gpu")
        if hasattr(onnxruntime, "preload_dlls"):
            with contextlib.redirect_stdout(sys.stderr):  # where it says what it does not find
                onnxruntime.preload_dlls()  # from NVIDIA's packages, where they are
        providers = [(_PROVIDER, {"use_tf32": "0"})]
    if options is None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = (
            4  # what fails is raised, and that shapes are computed on the CPU is no news
        )
    try:
        session: Any = onnxruntime.InferenceSession(str(file), options, providers=providers)
    except Exception as why:  # noqa: BLE001 - onnxruntime's errors have no public base
        raise SessionError(f"onnxruntime does not load {file.name}: {first_line(why)}") from None
    if device == CUDA and _PROVIDER not in session.get_providers():
        raise SessionError(
            "onnxruntime-gpu cannot load its CUDA; its own line on stderr names the missing library"
        )
    return session
