"""A model opened in one runtime and precision: tensors in, an answer out, on a CPU or a GPU.

Whatever cannot be opened is an Unavailable with the reason, and a cell of the result.  It must not know time
or memory.
"""

import importlib.util
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.convert.encoder import Encoder, first_line, quiet
from loadgen.convert.parity import Feeds
from loadgen.convert.profiles import Ranges
from loadgen.convert.session import SessionError, open_session
from loadgen.enginebench.cells import Asked
from loadgen.records import LoadgenError

Floats = npt.NDArray[np.float32]


FOR_TENSORRT = " for tensorrt"  # of a file that other runtimes have in another form


class Unavailable(LoadgenError):  # noqa: N818 - an answer, not a fault
    """A runtime or precision that is not to be had here; the text says why."""


@dataclass(frozen=True, slots=True)
class Engine:
    """`bind(feeds)` puts tensors where the runtime wants them and gives the call to measure, whose result
    `read` makes an array of.  `on_stream`: its work goes to torch's current CUDA stream.
    """

    bind: Callable[[Feeds], Callable[[], Any]]
    read: Callable[[Any], Floats]
    on_stream: bool
    profile: Callable[[], str | None] = lambda: None

    def answer(self, feeds: Feeds) -> Floats:
        return self.read(self.bind(feeds)())


def dtype_of(precision: str) -> Any:
    """The type that torch has for a precision; raises Unavailable for one it has no arithmetic of."""
    import torch

    found = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)
    if found is None:
        raise Unavailable(f"PyTorch runs no {precision} of an unquantised model; onnxruntime does")
    return found


def open_torch(encoder: Encoder, precision: str, device: str, *, compiled: bool) -> Engine:
    """A copy of the model in the precision, eager or by torch.compile (made for any batch and length)."""
    import copy

    import torch

    if compiled and device == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        raise Unavailable("torch.compile needs a C++ compiler, and none is on the PATH")
    module: Any = copy.deepcopy(encoder.module).to(device=device, dtype=dtype_of(precision)).eval()
    if compiled:
        torch._dynamo.reset()  # noqa: SLF001 - its only door: graphs of other models count against a limit
        module = torch.compile(module, dynamic=True)

    def bind(feeds: Feeds) -> Callable[[], Any]:
        held = {name: placed(value, device, dtype_of(precision)) for name, value in feeds.items()}

        def call() -> Any:
            with torch.inference_mode():
                return module(**held)

        return call

    return Engine(bind, lambda answer: np.asarray(answer.float().cpu().numpy(), np.float32), on_stream=True)


def placed(value: npt.NDArray[Any], device: str, dtype: Any) -> Any:
    """The array on a device; floats in the type, whole numbers as they are."""
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(value)).to(device)
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def open_onnxruntime(file: Path, device: str, threads: int | None, *, profile: Path | None = None) -> Engine:
    """A session on the CPU or, where onnxruntime has it, CUDA; tensors in and out stay on the device.

    With `profile`, `engine.profile()` writes it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads or 0
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    try:
        session = open_session(file, device, options)
    except SessionError as why:
        raise Unavailable(str(why)) from None

    def bind(feeds: Feeds) -> Callable[[], Any]:
        # Bound once: what a call costs is the model, as in torch, and no copy to a GPU and back.
        binding = session.io_binding()
        for name, value in feeds.items():
            held = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value), device, 0)
            binding.bind_ortvalue_input(name, held)
        for output in session.get_outputs():
            binding.bind_output(output.name, device)

        def call() -> Any:
            session.run_with_iobinding(binding)
            return binding

        return call

    return Engine(
        bind, lambda bound: np.asarray(bound.copy_outputs_to_cpu()[0], np.float32), on_stream=False,
        profile=lambda: str(session.end_profiling()),
    )  # fmt: skip


def open_tensorrt(file: Path, asked: Asked, feeds: Feeds) -> Engine:
    """An engine built here from the file, its types as written in it; runs on the GPU through torch's memory.

    `feeds` is any batch: its names and axes are what the engine's profile is made of.
    """
    import torch

    if not any(
        importlib.util.find_spec(name) for name in ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings")
    ):
        raise Unavailable("TensorRT is not installed")
    if not torch.cuda.is_available():
        raise Unavailable("TensorRT is installed, and there is no GPU to run an engine on")
    from loadgen.convert.engine import open_engine
    from loadgen.convert.tensorrt import BuildOptions, build, find_tensorrt

    try:
        found, plan = find_tensorrt(), file.with_suffix(".plan")
        profile = Ranges({name: _shapes(value, asked) for name, value in feeds.items()})
        build(found, file, plan, BuildOptions((profile,)))
        bind = open_engine(found, plan)
    except LoadgenError as why:
        raise Unavailable(str(why)) from None
    except Exception as why:  # noqa: BLE001 - TensorRT's own
        raise Unavailable(f"TensorRT: {first_line(why)}") from None
    return Engine(bind, lambda answer: np.asarray(answer.float().cpu().numpy(), np.float32), on_stream=True)


def _shapes(value: Any, asked: Asked) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(least, tuned for, largest) of an input whose axes are the batch, and its length if there is a second."""

    def shape(batch: int, length: int) -> tuple[int, ...]:
        return batch, *((length,) if value.ndim > 1 else ()), *value.shape[2:]

    most, typical = max(asked.batches), sorted(asked.lengths)[len(asked.lengths) // 2]
    return shape(1, 1), shape(most, typical), shape(most, max(asked.lengths))


def model_files(
    encoder: Encoder, folder: Path, precisions: Sequence[str], calibration: Any, constants: frozenset[int]
) -> dict[str, Path | str]:
    """{precision: its ONNX file in `folder`, or why there is none}; "int8 for tensorrt" is its own."""
    from loadgen.convert.export import export_any
    from loadgen.convert.precision import lower

    whole = folder / "fp32.onnx"
    try:
        with quiet():
            export_any(encoder, whole, constants=constants)
    except LoadgenError as why:
        return dict.fromkeys(precisions, str(why))
    found: dict[str, Path | str] = {"fp32": whole}
    for name in precisions:
        if name == "fp32":
            continue
        precision = name.removesuffix(FOR_TENSORRT)
        file = folder / f"{name.replace(' ', '-')}.onnx"
        try:
            lower(whole, file, precision, calibration=calibration, tensorrt=name != precision)
            found[name] = file
        except LoadgenError as why:
            found[name] = str(why)
    return found
