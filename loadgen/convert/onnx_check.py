"""A repository's configurations held against the ONNX files they serve: names, types, and where the batch axis is.

It must not know servers or conversions; a repository that others made is read the same way.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from loadgen.triton.config import Input, ModelConfig, Output
from loadgen.triton.config_check import Finding, backend_of, model_file
from loadgen.triton.repository import StoredModel

_ELEMENTS = {
    1: "FP32", 2: "UINT8", 3: "INT8", 4: "UINT16", 5: "INT16", 6: "INT32", 7: "INT64", 8: "STRING", 9: "BOOL",
    10: "FP16", 11: "FP64", 12: "UINT32", 13: "UINT64", 16: "BF16",
}  # fmt: skip
Axes = tuple[str | int, ...]


def against_files(model: StoredModel) -> Iterator[Finding]:
    """Of each version that onnxruntime would load; nothing without the onnx package, or for other backends."""
    config = model.config
    if config is None or backend_of(config) != "onnxruntime":
        return
    for version in model.versions:
        file = model.folder / str(version) / (model_file(config) or "model.onnx")
        if file.is_file():
            yield from _against(config, file, f"version {version}")


def _against(config: ModelConfig, file: Path, where: str) -> Iterator[Finding]:
    try:
        import onnx
    except ImportError:
        return
    try:
        graph = onnx.load(str(file), load_external_data=False).graph
    except Exception as why:  # noqa: BLE001 - protobuf's and onnx's errors have no common base
        yield Finding(True, where, f"{file.name} is no ONNX file: {' '.join(str(why).split())}")
        return
    weights = {value.name for value in graph.initializer}
    given = [value for value in graph.input if value.name not in weights]
    yield from compare(config, config.input, {v.name: _of(v) for v in given}, f"{where}, input")
    yield from compare(config, config.output, {v.name: _of(v) for v in graph.output}, f"{where}, output")


def _of(value: Any) -> tuple[str, Axes]:
    kind = value.type.tensor_type
    axes = tuple(
        axis.dim_param or (axis.dim_value if axis.HasField("dim_value") else -1) for axis in kind.shape.dim
    )
    return _ELEMENTS.get(kind.elem_type, f"element type {kind.elem_type}"), axes


def compare(
    config: ModelConfig, told: Sequence[Input | Output], there: dict[str, tuple[str, Axes]], where: str
) -> Iterator[Finding]:
    """Every tensor of a side: `there` is (data type, whole shape) by name, as the file has it."""
    named = {tensor.name for tensor in told}
    if named and "input" in where:
        for name in sorted(set(there) - named):
            yield Finding(
                True, f"{where} {name!r}", "the model needs it and the configuration has no such input"
            )
    for tensor in told:
        place = f"{where} {tensor.name!r}"
        if tensor.name not in there:
            yield Finding(True, place, f"the model has {', '.join(there) or 'none'}")
            continue
        datatype, axes = there[tensor.name]
        if tensor.data_type != f"TYPE_{datatype}":
            yield Finding(True, place, f"{tensor.data_type} where the model has {datatype}")
        yield from _shape(config, tensor, axes, place)


def _shape(config: ModelConfig, tensor: Input | Output, axes: Axes, place: str) -> Iterator[Finding]:
    shape = list(tensor.dims if tensor.reshape is None else tensor.reshape.shape)
    shown = f"[{', '.join(map(str, axes))}]"
    if config.max_batch_size:
        if not axes or (isinstance(axes[0], int) and axes[0] >= 0):
            text = f"the model's {shown} has no free batch axis; max_batch_size must be 0, not {config.max_batch_size}"
            yield Finding(True, place, text)
            return
        if len(shape) == len(axes):
            yield Finding(
                True, place, f"dims {shape} repeat the batch axis of the model's {shown}; leave it out"
            )
            return
        axes = axes[1:]
    fits = len(shape) == len(axes) and all(
        size in (-1, axis) or not isinstance(axis, int) or axis < 0
        for size, axis in zip(shape, axes, strict=True)
    )
    if not fits:
        yield Finding(True, place, f"dims {shape} where the model has {shown}")
