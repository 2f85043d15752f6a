"""A proven FP32 ONNX file in a lower precision: which nodes stay FP32, and why, is chosen here and told.

Every type is written in the file (strongly typed): nothing is left to a runtime's flags.  It must not know
where the file goes, nor whether its answers are good enough: that is the ladder's question.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.convert.encoder import first_line
from loadgen.convert.options import PRECISIONS, QUANTIZED
from loadgen.records import LoadgenError

if TYPE_CHECKING:
    from loadgen.convert.calibration import Calibration

_ONE_FILE_BYTES = 1_500_000_000  # protobuf ends at 2 GiB

# Sums and powers leave FP16's range or lose their small addends; angles of late positions need their digits.
BY_OP = {
    **dict.fromkeys(
        ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "BatchNormalization",
         "GroupNormalization", "InstanceNormalization", "LpNormalization"), "norm"),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Exp", "Log", "ReduceLogSumExp"), "softmax"),
    **dict.fromkeys(("Pow", "Sqrt", "Reciprocal", "ReduceMean", "ReduceSum", "ReduceL2", "ReduceSumSquare",
                     "ReduceProd", "CumSum"), "sum or power"),
    **dict.fromkeys(("Sin", "Cos"), "position"),
}  # fmt: skip
_HEAVY = ("MatMul", "Gemm", "Conv", "ConvTranspose", "Gather", "Einsum")


class PrecisionError(LoadgenError):
    """A precision that cannot be made from this model, or not with what is installed."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A node that stays FP32 and the reason."""

    node: str
    op: str
    reason: str


@dataclass(frozen=True, slots=True)
class Lowered:
    """What was made.  `lowered` counts operators that run in the precision, `skipped` says what was not done."""

    precision: str
    kept: tuple[Kept, ...]
    lowered: Mapping[str, int]
    skipped: str | None = None
    calibration: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """As it stands in convert.json: kept nodes by reason and operator."""
        kept: dict[str, dict[str, list[str]]] = {}
        for one in self.kept:
            kept.setdefault(one.reason, {}).setdefault(one.op, []).append(one.node)
        return {
            "precision": self.precision,
            "lowered": dict(self.lowered),
            "kept_fp32": kept,
            "skipped": self.skipped,
            "calibration": dict(self.calibration) if self.calibration else None,
        }


def lower(
    source: Path,
    to: Path,
    precision: str,
    *,
    calibration: "Calibration | None" = None,
    skip_quant: bool = False,
    keep: Sequence[str] = (),
    tensorrt: bool = False,
) -> Lowered:
    """Writes the FP32 file `source` as `to` in a precision; `keep` names nodes or operators to leave FP32.

    int8 and fp8 need `calibration`; with `skip_quant` what lacks it is left FP32 and said so.  `tensorrt`: the file
    becomes an engine, which looks nothing up in 8 bits.  Raises
    PrecisionError; an OSError of the disk passes through.
    """
    if precision not in PRECISIONS:
        raise PrecisionError(f"precision {precision!r}: allowed are {', '.join(PRECISIONS)}")
    if precision == "fp32":
        raise PrecisionError("fp32 is what the export writes; there is nothing to lower")
    model = load(source)
    try:
        if precision in QUANTIZED:
            from loadgen.convert.quantize import quantize

            done = quantize(
                model, source, precision, calibration, skip_quant=skip_quant, keep=keep,
                lookups=precision == "int8" and not tensorrt,  # ONNX itself has none in FP8
            )  # fmt: skip
        else:
            from loadgen.convert.mixed import cast_down

            done = cast_down(model, precision, choose_kept(model, precision, keep))
    except LoadgenError:
        raise
    except Exception as why:  # noqa: BLE001 - onnx's and numpy's own
        raise PrecisionError(f"{source.name} cannot be made {precision}: {first_line(why)}") from None
    save(model, to)
    return done


def load(path: Path) -> Any:
    """The model with its weights in memory: every node has a name of its own, no weight is a Constant node."""
    import onnx

    model = onnx.load(str(path))
    nodes = [node for node in model.graph.node if not _is_constant(node)]
    for node in model.graph.node:
        if _is_constant(node):
            tensor = onnx.TensorProto()
            tensor.CopyFrom(node.attribute[0].t)
            tensor.name = node.output[0]
            model.graph.initializer.append(tensor)
    if len(nodes) < len(model.graph.node):
        del model.graph.node[:]
        model.graph.node.extend(nodes)
    seen: set[str] = set()
    for at, node in enumerate(model.graph.node):
        if not node.name or node.name in seen:
            node.name = f"{node.op_type}_{at}"
        seen.add(node.name)
    return model


def _is_constant(node: Any) -> bool:
    return bool(node.op_type == "Constant" and node.attribute[0].name == "value")


def save(model: Any, path: Path) -> None:
    """Drops weights that nothing reads and writes the file, its weights beside it beyond 1.5 GB; then checks it."""
    import onnx

    used = {name for node in all_nodes(model.graph.node) for name in node.input}
    used |= {value.name for value in model.graph.output}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    size = sum(len(tensor.raw_data) for tensor in kept)
    onnx.save(
        model, str(path), save_as_external_data=size > _ONE_FILE_BYTES, all_tensors_to_one_file=True,
        location=f"{path.name}.data",
    )  # fmt: skip
    try:
        onnx.checker.check_model(str(path))
    except Exception as why:  # noqa: BLE001 - the checker's own
        raise PrecisionError(f"{path.name} came out invalid: {first_line(why)}") from None


def all_nodes(nodes: Iterable[Any]) -> Iterable[Any]:
    """Those nodes and the ones inside them, branches and loops."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from all_nodes(attribute.g.node)


def value_types(model: Any) -> dict[str, int]:
    """The ONNX element type of every value that is known to have one."""
    import onnx

    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for (
        tensor
    ) in bare.graph.initializer:  # their types and shapes are enough, and their bytes may be gigabytes
        if len(tensor.raw_data) > 2**16:
            tensor.raw_data = b""
    try:
        graph = onnx.shape_inference.infer_shapes(bare).graph
    except Exception:  # noqa: BLE001 - a shape that contradicts itself: what the file says of itself must do
        graph = model.graph
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    for value in (*model.graph.value_info, *graph.value_info, *graph.input, *graph.output):
        types[value.name] = value.type.tensor_type.elem_type
    return types


def choose_kept(model: Any, precision: str, keep: Sequence[str] = ()) -> dict[str, str]:
    """{name: reason} of nodes with floats that must stay FP32.

    Norms, softmax, sums, masks (floats made of whole numbers alone) and what they are added to, constants that
    the precision cannot hold, operators that ONNX does not define in it, and light nodes fed by those alone.
    Raises PrecisionError for a name in `keep` that the model does not have.
    """
    from onnx import TensorProto

    types = value_types(model)
    floats = {name for name, kind in types.items() if kind == TensorProto.FLOAT}
    known = {node.name for node in model.graph.node} | {node.op_type for node in model.graph.node}
    if unknown := [name for name in keep if name not in known]:
        raise PrecisionError(f"--keep {unknown[0]}: the model has no node or operator of that name")
    look = _Look(model, precision, floats)
    reasons: dict[str, str] = {}
    high: set[str] = set()
    for node in model.graph.node:
        if not floats.intersection((*node.input, *node.output)):
            continue
        told = "asked for" if {node.name, node.op_type} & set(keep) else look.reason(node)
        fed = [name for name in node.input if name in floats and name not in look.constants]
        if told is None and fed and node.op_type not in _HEAVY and all(name in high for name in fed):
            told = "between kept nodes"
        if told is not None:
            reasons[node.name] = told
            high.update(node.output)
    return reasons


class _Look:
    """What must be known of a graph to judge its nodes one after the other."""

    def __init__(self, model: Any, precision: str, floats: set[str]) -> None:
        from onnx import TensorProto, numpy_helper

        low = {"fp16": "tensor(float16)", "bf16": "tensor(bfloat16)"}[precision]
        most, least = {"fp16": (65504.0, 6.1e-5), "bf16": (3.3895e38, 1.2e-38)}[precision]
        self.low, self.floats = low, floats
        self.opsets = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
        self.constants: set[str] = set()
        self.beyond: set[str] = set()
        self.masks: set[str] = set()
        for tensor in model.graph.initializer:
            self.constants.add(tensor.name)
            if tensor.data_type != TensorProto.FLOAT:
                continue
            values = abs(numpy_helper.to_array(tensor))
            top = float(values.max(initial=0.0))
            if not top <= most or (values.size == 1 and 0 < top < least):
                self.beyond.add(tensor.name)
            if values.size == 1:
                self.masks.add(tensor.name)  # of itself neither mask nor weight

    def reason(self, node: Any) -> str | None:
        tests: tuple[Callable[[Any], str | None], ...] = (
            self._branch,
            self._mask, lambda node: BY_OP.get(node.op_type), self._range, self._undefined
        )  # fmt: skip
        return next((told for told in (test(node) for test in tests) if told), None)

    def _branch(self, node: Any) -> str | None:
        return "control flow" if any(attribute.HasField("g") for attribute in node.attribute) else None

    def _mask(self, node: Any) -> str | None:
        """Floats that come from whole numbers and scalars alone, and the first node that meets one."""
        fed = [name for name in node.input if name in self.floats]
        mixed = any(name in self.masks and name not in self.constants for name in fed)
        if all(name in self.masks for name in fed) and node.op_type != "Gather":
            made = [name for name in node.output if name in self.floats]
            self.masks.update(made)
            return "mask" if made or mixed else None
        return "mask" if mixed else None

    def _range(self, node: Any) -> str | None:
        return "constant out of range" if any(name in self.beyond for name in node.input) else None

    def _undefined(self, node: Any) -> str | None:
        """Whether ONNX defines the operator with every float of this node in the low type."""
        import onnx

        if node.op_type == "Cast" and node.output[0] not in self.floats:
            return "cast to whole numbers"
        domain = node.domain or "ai.onnx"
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opsets[domain], domain.removeprefix("ai.onnx"))
        except Exception:  # noqa: BLE001 - an operator of another domain
            return "not a standard operator"
        allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
        for formal, names in ((schema.inputs, node.input), (schema.outputs, node.output)):
            for at, name in enumerate(names):
                kind = formal[min(at, len(formal) - 1)].type_str
                if name in self.floats and self.low not in allowed.get(kind, (kind,)):
                    return "not defined in this precision"
        return None
