"""A model to one ONNX file whose batch and lengths are free, proven on the file that was written.

It must not know Triton, nor whether the numbers are right: that is parity's question.
"""

import io
import re
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.convert.encoder import Encoder, first_line, quiet
from loadgen.convert.inputs import BATCH, LENGTH, WIDEST_BATCH, InputError, pick_sizes, require_axes, spans_of
from loadgen.records import LoadgenError

if TYPE_CHECKING:
    import torch

OPSET = 18  # the exporter's own; every onnxruntime since 1.15 runs it
_OPSETS = range(9, 22)  # of a file that is taken as it is
_NEWEST_IR = 10  # onnxruntime 1.18; the server's may be years older than the client's
_ONE_FILE_BYTES = 1_500_000_000  # protobuf ends at 2 GiB
AXES = (BATCH, LENGTH)
EXPORTERS = {
    "dynamo": "torch.onnx.export(dynamo=True)",
    "program": "torch.onnx.export(dynamo=True) of a torch.export program",
    "torchscript": "torch.onnx.export(dynamo=False) of a TorchScript module",
    "file": "none: an ONNX file as it was",
}
_PLACE = re.compile(r"# File: (\S+):(\d+) in \w+, code: (.*)")
_DATATYPES = {
    1: "FP32", 10: "FP16", 11: "FP64", 16: "BF16", 7: "INT64", 6: "INT32", 5: "INT16", 3: "INT8", 2: "UINT8",
    9: "BOOL",
}  # fmt: skip


class ExportError(LoadgenError):
    """A model that did not become an ONNX file with free batch and length."""


@dataclass(frozen=True, slots=True)
class OnnxTensor:
    """An input or output as the file declares it; a free axis is its name, a fixed one its size."""

    name: str
    datatype: str  # KServe v2: INT64, FP32
    axes: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class OnnxFacts:
    """What the written file says of itself."""

    opset: int
    ir_version: int
    inputs: tuple[OnnxTensor, ...]
    output: OnnxTensor


def export_any(
    encoder: Encoder, path: Path, *, constants: frozenset[int] = frozenset()
) -> tuple[Encoder, OnnxFacts]:
    """`export_onnx`; where the batch cannot be free, the same with one item at a time, and a note that says why.

    Raises the first ExportError if that does not work either.
    """
    try:
        return encoder, export_onnx(encoder, path, constants=constants)
    except ExportError as why:
        if not encoder.batched or encoder.exporter != "dynamo":
            raise
        one = encoder.one_at_a_time(str(why))
        try:
            facts = export_onnx(one, path, constants=constants)
            if facts.output.axes[:1] != (1,):
                raise why from None
        except ExportError:
            raise why from None
        return one, facts


def export_onnx(encoder: Encoder, path: Path, *, constants: frozenset[int] = frozenset()) -> OnnxFacts:
    """Writes `path` (with `path`.data beside it beyond 1.5 GB) and reads it back.

    `constants` are numbers of the model (heads, widths, layers): an example size equal to one of them could
    be taken for it.  Raises ExportError; an OSError of the disk passes through.
    """
    write = {"dynamo": _dynamo, "program": _program, "torchscript": _torchscript, "file": _file}
    said = io.StringIO()  # PyTorch prints the graph it could not make
    try:
        with quiet(), redirect_stderr(said), redirect_stdout(said):
            write[encoder.exporter](encoder, path, constants)
    except _Failed as why:
        raise ExportError(_explain(encoder, why.cause, said.getvalue())) from None
    return check_onnx(path, encoder)


class _Failed(Exception):  # noqa: N818 - not an error of ours
    """The exporter's own error, whatever its class."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


def _dynamo(encoder: Encoder, path: Path, constants: frozenset[int]) -> None:
    import torch

    spans = spans_of(encoder.specs)
    dims = {
        axis: torch.export.Dim(axis, min=low, max=WIDEST_BATCH if axis == BATCH else high)
        for axis, (low, high) in spans.items()
    }
    free = {
        one.name: {at: dims[axis] for at, axis in enumerate(one.axes) if isinstance(axis, str)}
        for one in encoder.specs
    }
    inner, _ = _inner(encoder)
    try:
        with torch.no_grad():
            program = torch.onnx.export(
                inner,
                kwargs=_example(encoder, _sizes(encoder, constants)),
                dynamic_shapes=free,
                dynamo=True,
                opset_version=OPSET,
                external_data=False,
                verbose=False,
            )
    except Exception as why:  # noqa: BLE001 - the exporter's errors have no common base
        raise _Failed(why) from None
    _save(program, encoder, path)


def _program(encoder: Encoder, path: Path, _constants: frozenset[int]) -> None:
    import torch

    try:
        loaded = torch.export.load(str(encoder.file))
        program = torch.onnx.export(
            loaded, dynamo=True, opset_version=OPSET, external_data=False, verbose=False
        )
    except Exception as why:  # noqa: BLE001 - the exporter's errors have no common base
        raise _Failed(why) from None
    _save(program, encoder, path)
    _rename(path, encoder)


def _torchscript(encoder: Encoder, path: Path, constants: frozenset[int]) -> None:
    import torch

    inner, at = _inner(encoder)
    free = {
        one.name: {n: axis for n, axis in enumerate(one.axes) if isinstance(axis, str)}
        for one in encoder.specs
    }
    names = [encoder.output if n == at else f"{encoder.output}_{n}" for n in range(at + 1)]
    free[encoder.output] = {n: axis for n, axis in enumerate(encoder.answer) if isinstance(axis, str)}
    example = _example(encoder, _sizes(encoder, constants))
    try:
        with torch.no_grad():
            torch.onnx.export(
                inner, tuple(example.values()), str(path), dynamo=False, opset_version=OPSET, dynamic_axes=free,
                input_names=list(example), output_names=names,
            )  # fmt: skip
    except OSError:
        raise
    except Exception as why:  # noqa: BLE001 - the exporter's errors have no common base
        raise _Failed(why) from None
    _rename(path, encoder)


def _file(encoder: Encoder, path: Path, _constants: frozenset[int]) -> None:
    """The source's own file, with its external data in one file beside it."""
    import onnx

    try:
        model = onnx.load(str(encoder.file))
    except FileNotFoundError as why:
        raise ExportError(f"{encoder.file}: its external data is missing: {why}") from None
    except OSError:
        raise
    except Exception as why:  # noqa: BLE001 - onnx and protobuf have errors of their own
        raise ExportError(f"{encoder.file} cannot be read: {first_line(why)}") from None
    model.ir_version = min(model.ir_version, _NEWEST_IR)
    large = model.ByteSize() > _ONE_FILE_BYTES
    onnx.save_model(model, str(path), save_as_external_data=large, location=f"{path.name}.data")
    _rename(path, encoder)


def _inner(encoder: Encoder) -> "tuple[torch.nn.Module, int]":
    """What is exported, and which of its outputs is meant."""
    from loadgen.convert.wrappers import Chosen

    module = encoder.module
    return (module.inner, module.at) if isinstance(module, Chosen) else (module, 0)


def _explain(encoder: Encoder, why: Exception, said: str) -> str:
    """One line: the exporter wraps what happened in pages of advice, the cause is below."""
    cause: BaseException = why
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if "data-dependent" in str(cause) or "DataDependent" in type(cause).__name__:
        place = _PLACE.findall(said)
        where = f" at {Path(place[-1][0]).name}:{place[-1][1]} `{place[-1][2].strip()}`" if place else ""
        return (
            f"PyTorch cannot export this model: it branches on the values of its inputs{where} (data-dependent "
            f"control flow); write torch.where or torch.cond instead ({first_line(cause)})"
        )
    free = " and ".join(spans_of(encoder.specs))
    return f"PyTorch cannot export this model{f' with free {free}' * bool(free)}: {first_line(cause)}"


def _save(program: Any, encoder: Encoder, path: Path) -> None:
    if program is None:
        raise ExportError("PyTorch's exporter gave no program")
    _, at = _inner(encoder)
    graph = program.model.graph
    kept = graph.outputs[at]
    graph.outputs[:] = [kept]
    _name_output(graph, encoder.output)
    size = sum(tensor.numel() * tensor.element_size() for tensor in encoder.module.state_dict().values())
    program.save(path, external_data=size > _ONE_FILE_BYTES)


def _sizes(encoder: Encoder, constants: frozenset[int]) -> dict[str, int]:
    fixed = {axis for one in encoder.specs for axis in one.axes if isinstance(axis, int)}
    try:
        return pick_sizes(spans_of(encoder.specs), constants | fixed)
    except InputError as why:
        raise ExportError(str(why)) from None


def example_sizes(positions: int, constants: frozenset[int]) -> tuple[int, int]:
    """An example batch and length: at least 2 (sizes 0 and 1 are special), unequal, no known constant."""
    try:
        sizes = pick_sizes({LENGTH: (1, positions), BATCH: (1, WIDEST_BATCH)}, constants)
    except InputError as why:
        raise ExportError(str(why)) from None
    return sizes[BATCH], sizes[LENGTH]


def _example(encoder: Encoder, sizes: dict[str, int]) -> "dict[str, torch.Tensor]":
    import numpy as np
    import torch

    rng = np.random.default_rng(0)
    return {one.name: torch.from_numpy(one.draw(sizes, {}, rng)) for one in encoder.specs}


def _name_output(graph: Any, wanted: str) -> None:
    """Names the output, avoiding every value inside the graph.

    ONNX has one namespace for values and weights, and the exporter does not look: an output called
    "embedding" on a BERT makes a file that onnxruntime refuses for its duplicate name.
    """
    taken = {value.name for node in graph for value in node.outputs}
    taken |= {value.name for value in graph.inputs} | set(graph.initializers)
    taken -= {graph.outputs[0].name}
    name = wanted
    while name in taken:
        name += "_out"
    graph.outputs[0].name = name


def _rename(path: Path, encoder: Encoder) -> None:
    """Gives free axes our names, wherever the file says theirs, and drops the outputs that are not meant."""
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    graph = model.graph
    ours: dict[str, str] = {}
    axes = {one.name: one.axes for one in encoder.specs}
    for value in graph.input:
        for dim, axis in zip(value.type.tensor_type.shape.dim, axes.get(value.name, ()), strict=False):
            if isinstance(axis, str):
                if not dim.dim_param and not dim.HasField("dim_value"):
                    dim.dim_param = axis
                ours[dim.dim_param] = axis
    kept = [value for value in graph.output if value.name == encoder.output] or [graph.output[-1]]
    del graph.output[:]
    graph.output.extend(kept[:1])
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in ours:
                dim.dim_param = ours[dim.dim_param]
    if not graph.output[0].type.tensor_type.HasField("shape") or encoder.exporter == "file":
        _declare(graph.output[0], encoder.answer)
    onnx.save(model, str(path))


def _declare(value: Any, answer: tuple[str | int, ...]) -> None:
    """The shape of an output as running it has shown: many files leave it out, or name its axes anew."""
    del value.type.tensor_type.shape.dim[:]
    for axis in answer:
        dim = value.type.tensor_type.shape.dim.add()
        if isinstance(axis, int):
            dim.dim_value = axis
        else:
            dim.dim_param = axis


def check_onnx(path: Path, encoder: Encoder) -> OnnxFacts:
    """Reads a written file back: valid, runnable by an older server, free where it should be, fixed elsewhere."""
    import onnx

    try:
        onnx.checker.check_model(str(path))
        model = onnx.load(str(path), load_external_data=False)
    except OSError:
        raise
    except Exception as why:  # noqa: BLE001 - onnx and protobuf have errors of their own
        raise ExportError(f"{path.name} is not valid ONNX: {first_line(why)}") from None
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    allowed = _OPSETS if encoder.exporter == "file" else (OPSET,)
    if opset not in allowed or model.ir_version > _NEWEST_IR:
        raise ExportError(
            f"{path.name} came out with opset {opset}, IR {model.ir_version}; "
            f"servers are sure to run opset {allowed[0]}..{allowed[-1]} with IR up to {_NEWEST_IR}"
        )
    weights = {value.name for value in model.graph.initializer}
    inputs = tuple(_tensor(value) for value in model.graph.input if value.name not in weights)
    outputs = [_tensor(value) for value in model.graph.output]
    if {value.name for value in inputs} != set(encoder.inputs) or len(outputs) != 1:
        names = ", ".join(value.name for value in inputs)
        if given := [one for one in encoder.inputs if f"{one}_orig" in names.split(", ")]:
            raise ExportError(f"the answer is the input {given[0]} as it is: there is nothing to serve")
        gone = sorted(set(encoder.inputs) - {value.name for value in inputs})
        hint = f"; {gone[0]} decides nothing and was left out of the graph" if gone else ""
        raise ExportError(f"{path.name} takes {names} and gives {len(outputs)}; not what was exported{hint}")
    require_axes(outputs[0].name, outputs[0].axes)
    for value, wanted in _wanted(inputs, outputs[0], encoder):
        if value.axes[: len(wanted)] != wanted:
            free = [axis for axis in wanted if isinstance(axis, str)]
            if any(isinstance(axis, str) and re.fullmatch(r"u\d+", axis) for axis in value.axes):
                raise ExportError(
                    f"{path.name}: {value.name} has the shape {list(value.axes)}: how much it answers depends on the "
                    f"values of its inputs, and {' and '.join(free)} must be the inputs' own"
                )
            raise ExportError(
                f"{path.name}: {value.name} has the shape {list(value.axes)}; "
                f"{' and '.join(free)} must be free, the export has frozen them"
            )
    return OnnxFacts(opset, model.ir_version, inputs, outputs[0])


def _wanted(
    inputs: tuple[OnnxTensor, ...], output: OnnxTensor, encoder: Encoder
) -> Iterator[tuple[OnnxTensor, tuple[str | int, ...]]]:
    """Each tensor with the axes it must begin with."""
    axes = {one.name: one.axes for one in encoder.specs}
    for value in inputs:
        yield value, axes[value.name]
    if encoder.batched:
        yield output, AXES if encoder.per_token else AXES[:1]


def _tensor(value: Any) -> OnnxTensor:
    kind = value.type.tensor_type
    axes = tuple(axis.dim_param or axis.dim_value for axis in kind.shape.dim)
    return OnnxTensor(value.name, _DATATYPES.get(kind.elem_type, f"onnx type {kind.elem_type}"), axes)
