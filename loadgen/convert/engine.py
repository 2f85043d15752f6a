"""A TensorRT engine run on torch's memory and stream: tensors in, an answer out.

It must not know what is compared or timed, nor how an engine is built.  What a context does on a machine without a
GPU cannot be known: there, tests run it with a scripted TensorRT.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.convert.parity import Feeds, Floats, Run
from loadgen.convert.profiles import Ranges
from loadgen.convert.tensorrt import TensorRT, TensorRTError, ranges_of

Shape = tuple[int, ...]


def why_not_here() -> str | None:
    """Why no engine can be run in this process; None where one can."""
    import torch

    return None if torch.cuda.is_available() else f"torch {torch.__version__} has no GPU to run an engine on"


def open_engine(found: TensorRT, plan: Path, device: str = "cuda") -> Callable[[Feeds], Callable[[], Any]]:
    """What binds tensors to a call that gives the engine's first output, on `device`.

    Raises TensorRTError for a plan that does not load; the binding does for shapes in no optimization profile.
    """
    import torch

    trt = found.module
    runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
    engine = runtime.deserialize_cuda_engine(plan.read_bytes())
    if engine is None:
        raise TensorRTError(f"{found.title} does not load {plan.name}")
    context = engine.create_execution_context()
    names = [engine.get_tensor_name(at) for at in range(engine.num_io_tensors)]
    inputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
    outputs = [name for name in names if name not in inputs]
    profiles = ranges_of(engine, inputs)
    types = {name: _torch_type(name, engine.get_tensor_dtype(name)) for name in names}

    def bind(feeds: Feeds) -> Callable[[], Any]:
        at = profile_for({name: feeds[name].shape for name in inputs}, profiles)
        stream = torch.cuda.current_stream().cuda_stream
        context.set_optimization_profile_async(at, stream)
        # The context refers to the runtime and the engine, which nothing else keeps alive.
        held: dict[str, Any] = {"runtime": runtime, "engine": engine}
        for name in inputs:
            value = torch.from_numpy(np.ascontiguousarray(feeds[name]))
            held[name] = value.to(device=device, dtype=types[name])
            context.set_input_shape(name, tuple(value.shape))
            context.set_tensor_address(name, held[name].data_ptr())
        for name in outputs:
            held[name] = torch.empty(tuple(context.get_tensor_shape(name)), dtype=types[name], device=device)
            context.set_tensor_address(name, held[name].data_ptr())

        def call() -> Any:
            if not context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
                raise TensorRTError(f"{found.title} could not run {plan.name}")
            return held[outputs[0]]

        return call

    return bind


def engine_run(found: TensorRT, plan: Path, device: str = "cuda") -> Run:
    """The engine as a rung of the ladder.  A batch below its smallest is filled up with its last row."""
    bind = open_engine(found, plan, device)

    def run(feeds: Feeds) -> Floats:
        rows = len(next(iter(feeds.values())))
        try:
            answer = bind(feeds)()
        except TooFewRowsError as why:
            answer = bind(
                {n: np.concatenate([v, *[v[-1:]] * (why.least - rows)]) for n, v in feeds.items()}
            )()
        return np.asarray(answer.float().cpu().numpy(), np.float32)[:rows]

    return run


class TooFewRowsError(TensorRTError):
    """Fewer rows than any profile of that length takes; `least` is what one does."""

    def __init__(self, text: str, least: int) -> None:
        super().__init__(text)
        self.least = least


def profile_for(shapes: Mapping[str, Shape], profiles: tuple[Ranges, ...]) -> int:
    """The first profile that takes these shapes.  Raises TensorRTError, TooFewRowsError where only rows are missing."""
    fits = [[_holds(shapes[n], low, high) for n, (low, _, high) in p.shapes.items()] for p in profiles]
    for at, found in enumerate(fits):
        if all(axes and all(axes) for axes in found):
            return at
    told = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
    for profile, found in zip(profiles, fits, strict=True):
        least = max(low[0] for low, _, _ in profile.shapes.values())
        if all(axes and all(axes[1:]) for axes in found) and max(s[0] for s in shapes.values()) < least:
            raise TooFewRowsError(f"{told}: the engine takes {least} rows at least", least)
    raise TensorRTError(f"{told}: in no optimization profile of the engine")


def _holds(shape: Shape, low: Shape, high: Shape) -> list[bool]:
    if len(shape) != len(low):
        return []
    return [a <= size <= b for size, a, b in zip(shape, low, high, strict=True)]


def _torch_type(name: str, dtype: Any) -> Any:
    import torch

    types = {
        "FLOAT": torch.float32, "HALF": torch.float16, "BF16": torch.bfloat16, "INT64": torch.int64,
        "INT32": torch.int32, "INT8": torch.int8, "UINT8": torch.uint8, "BOOL": torch.bool,
    }  # fmt: skip
    kind = str(dtype).rpartition(".")[2]
    if kind not in types:
        raise TensorRTError(f"{name} is {kind}, which cannot be given to the engine from here")
    return types[kind]
