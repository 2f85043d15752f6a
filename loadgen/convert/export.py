"""An encoder to one ONNX file whose batch and length are free, proven on the file that was written.

It must not know Triton, nor whether the numbers are right: that is parity's question.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.convert.encoder import Encoder, first_line, quiet
from loadgen.records import LoadgenError

if TYPE_CHECKING:
    import torch

OPSET = 18  # the exporter's own; every onnxruntime since 1.15 runs it
_NEWEST_IR = 10  # onnxruntime 1.18; the server's may be years older than the client's
_ONE_FILE_BYTES = 1_500_000_000  # protobuf ends at 2 GiB
AXES = ("batch", "length")


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


def export_onnx(encoder: Encoder, path: Path, *, constants: frozenset[int] = frozenset()) -> OnnxFacts:
    """Writes `path` (with `path`.data beside it beyond 1.5 GB) and reads it back.

    `constants` are numbers of the model (heads, widths, layers): an example size equal to one of them could
    be taken for it.  Raises ExportError; an OSError of the disk passes through.
    """
    import torch

    batch, length = example_sizes(encoder.positions, constants)
    free = {
        0: torch.export.Dim(AXES[0], min=1, max=65536),
        1: torch.export.Dim(AXES[1], min=1, max=encoder.positions),
    }
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                encoder.module,
                kwargs=_example(encoder, batch, length),
                dynamic_shapes=dict.fromkeys(encoder.inputs, free),
                dynamo=True,
                opset_version=OPSET,
                external_data=False,
                verbose=False,
            )
    except Exception as why:  # noqa: BLE001 - the exporter's errors have no common base
        raise ExportError(
            f"PyTorch cannot export this model with free batch and length: {first_line(why)}"
        ) from None
    if program is None:
        raise ExportError("PyTorch's exporter gave no program")
    _name_output(program.model.graph, encoder.output)
    size = sum(tensor.numel() * tensor.element_size() for tensor in encoder.module.state_dict().values())
    with quiet():
        program.save(path, external_data=size > _ONE_FILE_BYTES)
    return check_onnx(path, encoder)


def example_sizes(positions: int, constants: frozenset[int]) -> tuple[int, int]:
    """An example batch and length: at least 2 (sizes 0 and 1 are special), unequal, no known constant."""
    lengths = [size for size in (11, 13, 17, 19, 23, 7, 5, 3, 2) if size <= positions]
    if not lengths:
        raise ExportError(f"a model of {positions} position is too short to convert")
    length = next((size for size in lengths if size not in constants), lengths[0])
    batch = next(size for size in (3, 5, 7, 9, 21, 2, 3) if size != length and size not in constants)
    return batch, length


def _example(encoder: Encoder, batch: int, length: int) -> "dict[str, torch.Tensor]":
    import torch

    ones = torch.ones((batch, length), dtype=torch.int64)
    ids = torch.arange(batch * length, dtype=torch.int64).reshape(batch, length) % encoder.vocab_size
    values = {"input_ids": ids, "attention_mask": ones, "token_type_ids": torch.zeros_like(ones)}
    return {name: values[name] for name in encoder.inputs}


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


def check_onnx(path: Path, encoder: Encoder) -> OnnxFacts:
    """Reads a written file back: valid, runnable by an older server, batch and length free everywhere."""
    import onnx

    try:
        onnx.checker.check_model(str(path))
        model = onnx.load(str(path), load_external_data=False)
    except OSError:
        raise
    except Exception as why:  # noqa: BLE001 - onnx and protobuf have errors of their own
        raise ExportError(f"{path.name} is not valid ONNX: {first_line(why)}") from None
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if opset != OPSET or model.ir_version > _NEWEST_IR:
        raise ExportError(
            f"{path.name} came out with opset {opset}, IR {model.ir_version}; "
            f"servers are sure to run opset {OPSET} with IR up to {_NEWEST_IR}"
        )
    inputs = tuple(_tensor(value) for value in model.graph.input)
    outputs = [_tensor(value) for value in model.graph.output]
    if {value.name for value in inputs} != set(encoder.inputs) or len(outputs) != 1:
        names = ", ".join(value.name for value in inputs)
        raise ExportError(f"{path.name} takes {names} and gives {len(outputs)}; not what was exported")
    for value in (*inputs, outputs[0]):
        many = 1 if value is outputs[0] and not encoder.per_token else 2
        if value.axes[:many] != AXES[:many]:
            raise ExportError(
                f"{path.name}: {value.name} has the shape {list(value.axes)}; "
                f"{' and '.join(AXES[:many])} must be free, the export has frozen them"
            )
    return OnnxFacts(opset, model.ir_version, inputs, outputs[0])


def _tensor(value: Any) -> OnnxTensor:
    import onnx

    kind = value.type.tensor_type
    datatypes = {onnx.TensorProto.INT64: "INT64", onnx.TensorProto.FLOAT: "FP32"}
    axes = tuple(axis.dim_param or axis.dim_value for axis in kind.shape.dim)
    return OnnxTensor(value.name, datatypes.get(kind.elem_type, f"onnx type {kind.elem_type}"), axes)
