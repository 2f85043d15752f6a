"""An engine built by the converter's own builder and run on torch's memory and stream.

Never run by the tests of a machine without a GPU: what a context does there cannot be known.  It must not know
time.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.convert.parity import Feeds
from loadgen.enginebench.cells import Asked


def run_engine(
    builder: Any, ranges: type, file: Path, asked: Asked, feeds: Feeds
) -> Callable[[Feeds], Callable[[], Any]]:
    """Builds for every batch and length asked for, and gives what binds tensors to a call.

    `builder` is the module loadgen.convert.tensorrt, `ranges` its class of a profile, `feeds` any batch.
    """
    import torch

    found = builder.find_tensorrt()
    trt = found.module
    profile = ranges({name: _shapes(value, asked) for name, value in feeds.items()})
    plan = file.with_suffix(".plan")
    builder.build(found, file, plan, builder.BuildOptions(profiles=(profile,)))
    runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
    engine = runtime.deserialize_cuda_engine(plan.read_bytes())
    context = engine.create_execution_context()
    names = [engine.get_tensor_name(at) for at in range(engine.num_io_tensors)]
    outputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT]
    types = {
        trt.float32: torch.float32, trt.float16: torch.float16, trt.int64: torch.int64, trt.int32: torch.int32,
        trt.bfloat16: torch.bfloat16, trt.bool: torch.bool,
    }  # fmt: skip

    def bind(feeds: Feeds) -> Callable[[], Any]:
        # The context refers to the runtime and the engine, which nothing else keeps alive.
        held = {"runtime": runtime, "engine": engine}
        for name in (name for name in names if name not in outputs):
            value = np.ascontiguousarray(feeds[name])
            held[name] = torch.from_numpy(value).cuda().to(types[engine.get_tensor_dtype(name)])
            context.set_input_shape(name, tuple(value.shape))
            context.set_tensor_address(name, held[name].data_ptr())
        for name in outputs:
            shape = tuple(context.get_tensor_shape(name))
            held[name] = torch.empty(shape, dtype=types[engine.get_tensor_dtype(name)], device="cuda")
            context.set_tensor_address(name, held[name].data_ptr())

        def call() -> Any:
            context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
            return held[outputs[0]]

        return call

    return bind


def _shapes(value: Any, asked: Asked) -> tuple[tuple[int, ...], ...]:
    """(least, tuned for, largest) of an input whose axes are the batch, and its length if there is a second."""
    sizes = (
        (1, 1),
        (max(asked.batches), sorted(asked.lengths)[len(asked.lengths) // 2]),
        (max(asked.batches), max(asked.lengths)),
    )
    return tuple((batch, *((length,) if value.ndim > 1 else ()), *value.shape[2:]) for batch, length in sizes)
