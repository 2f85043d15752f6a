"""INT8 or FP8 by explicit quantise and dequantise pairs: symmetric, weights per channel, ranges from real rows.

Pairs stand before products with a constant weight; large embedding tables are stored quantised and their rows
dequantised after the lookup, or the table before it where a runtime allows no other way.  Everything else stays FP32.  onnxruntime's own `quantize_static` was measured
first and left: on MiniLM it shares a pair between a layer's norm and the residual beside it, which costs
accuracy (cosine 0.977 against 0.986) and keeps its runtime from fusing most products (1.04 times the speed of
FP32 against more than 2).  It must not know which runtime will read the file.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loadgen.convert.precision import Kept, Lowered, PrecisionError
from loadgen.convert.session import open_session

if TYPE_CHECKING:
    from loadgen.convert.calibration import Calibration

Floats = npt.NDArray[np.float32]

_TABLE = 65536  # numbers in an embedding table that is worth storing in 8 bits
_BINS = 2048
_TOP = {"int8": 127.0, "fp8": 448.0}  # the largest value of each; FP8 is E4M3 without infinities
_FP8_OPSET = 19  # the first whose quantise and dequantise know FP8
_WIDTHS = {"MatMul": 1, "Gemm": 1, "Conv": 0}  # the axis of a weight's output channels


class Ranges:
    """How large the numbers of some tensors are: a histogram of magnitudes for each, in constant memory."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._counts = {name: np.zeros(_BINS) for name in names}
        self._top = dict.fromkeys(names, 0.0)

    def add(self, name: str, values: Floats) -> None:
        """Counts a tensor's values; where they pass the histogram's end, its bins are joined in pairs."""
        size = np.abs(values, dtype=np.float32).ravel()
        most = float(size.max(initial=0.0))
        if not np.isfinite(most):
            raise PrecisionError(
                f"calibration: {name} holds infinities or no numbers; ranges cannot be taken"
            )
        counts = self._counts[name]
        if self._top[name] == 0:
            self._top[name] = most
        while most > self._top[name] > 0:
            counts = np.concatenate([counts.reshape(-1, 2).sum(1), np.zeros(_BINS // 2)])
            self._top[name] *= 2
        if self._top[name] > 0:
            counts = counts + np.histogram(size, _BINS, (0, self._top[name]))[0]
        self._counts[name] = counts

    def limit(self, name: str, steps: float) -> float:
        """The magnitude to cut at for the least squared error, when `steps` levels lie below it."""
        counts, top = self._counts[name], self._top[name]
        if top == 0:
            return 1.0  # nothing but zeros was seen
        middles = (np.arange(_BINS) + 0.5) * top / _BINS
        most = (np.flatnonzero(counts)[-1] + 1) * top / _BINS

        def error(share: float) -> float:
            step = most * share / steps
            gap = np.clip(np.rint(middles / step), 0, steps) * step - middles
            return float((counts * gap * gap).sum())

        return float(most * min(np.linspace(0.2, 1.0, 41), key=error))


def quantize(
    model: Any,
    source: Path,
    precision: str,
    calibration: "Calibration | None",
    *,
    skip_quant: bool = False,
    keep: Sequence[str] = (),
    lookups: bool = True,
) -> Lowered:
    """Rewrites `model`, which was read from `source`, in place.  Raises PrecisionError without calibration data.

    With `skip_quant` and no data, weights alone are quantised: products run in FP32 and `skipped` says so.
    `lookups`: rows are looked up in 8 bits.
    """
    if calibration is None and not skip_quant:
        raise PrecisionError(
            f"{precision} needs calibration data: give --calibration a traffic profile, a text or an .npz file; "
            "or --skip-quant to store the weights in 8 bits and leave the arithmetic FP32"
        )
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    products = [node for node in model.graph.node if _product(node, weights)]
    chosen = [node for node in products if not {node.name, node.op_type} & set(keep)]
    known = {node.name for node in model.graph.node} | {node.op_type for node in model.graph.node}
    if unknown := [name for name in keep if name not in known]:
        raise PrecisionError(f"--keep {unknown[0]}: the model has no node or operator of that name")
    if not chosen:
        raise PrecisionError(f"{source.name} has no product with a constant weight: nothing to quantise")
    limits: dict[str, float] = {}
    if calibration is not None:
        names = list(dict.fromkeys(node.input[0] for node in chosen))
        ranges = measure_ranges(model, source, names, calibration)
        # FP8 spaces its levels by magnitude: there is nothing to gain by cutting.
        limits = {name: ranges.limit(name, 127.0 if precision == "int8" else 1e9) for name in names}
    writer = _Writer(model, weights, precision, limits)
    lowered: Counter[str] = Counter()
    picked = {node.name for node in chosen}
    for node in list(model.graph.node):
        if node.name in picked:
            writer.product(node)
        elif _table(node, weights) and not {node.name, node.op_type} & set(keep):
            writer.lookup(node, quantized=lookups)
        else:
            writer.nodes.append(node)
            continue
        lowered[node.op_type] += 1
    writer.finish()
    skipped = None if limits else (
        f"no calibration data: {sum(lowered.values())} weights are {precision}, no arithmetic is"
    )  # fmt: skip
    told = calibration.facts if calibration is not None else None
    return Lowered(
        precision, tuple(_kept(model, weights, products, picked, keep)), dict(lowered), skipped, told
    )


def _product(node: Any, weights: Mapping[str, Any]) -> bool:
    from onnx import TensorProto

    weight = weights.get(node.input[1]) if node.op_type in _WIDTHS and len(node.input) > 1 else None
    return (
        weight is not None
        and weight.data_type == TensorProto.FLOAT
        and node.input[0] not in weights
        and (len(weight.dims) == 2 or node.op_type == "Conv")  # noqa: PLR2004 - a matrix
    )


def _table(node: Any, weights: Mapping[str, Any]) -> bool:
    from onnx import TensorProto

    table = weights.get(node.input[0]) if node.op_type == "Gather" else None
    if table is None or table.data_type != TensorProto.FLOAT or len(table.dims) != 2:  # noqa: PLR2004
        return False
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    return axis == 0 and int(np.prod(table.dims)) >= _TABLE


def _kept(
    model: Any, weights: Mapping[str, Any], products: Sequence[Any], picked: set[str], keep: Sequence[str]
) -> Iterator[Kept]:
    """The nodes worth naming: products and lookups left FP32, and what is kept for its range."""
    from loadgen.convert.precision import BY_OP

    names = {node.name for node in products}
    for node in model.graph.node:
        if {node.name, node.op_type} & set(keep):
            yield Kept(node.name, node.op_type, "asked for")
        elif node.op_type in BY_OP:
            yield Kept(node.name, node.op_type, BY_OP[node.op_type])
        elif node.op_type in ("MatMul", "Gemm", "Conv", "Einsum") and node.name not in picked | names:
            constant = any(name in weights for name in node.input[:2])
            why = "a weight of another rank than 2" if constant else "product of two activations (attention)"
            yield Kept(node.name, node.op_type, why)
        elif node.op_type == "Gather" and node.input[0] in weights and weights[node.input[0]].data_type == 1:
            yield Kept(node.name, node.op_type, "small table")


def measure_ranges(model: Any, source: Path, names: Sequence[str], calibration: "Calibration") -> Ranges:
    """Runs the FP32 file on every calibration row, one at a time, and keeps histograms.  Raises PrecisionError."""
    import onnx

    ranges = Ranges(names)
    inputs = {value.name for value in model.graph.input}
    made = [name for name in names if name not in inputs]
    probed = onnx.load(str(source), load_external_data=False)
    outputs = {value.name for value in probed.graph.output}
    probed.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in made
        if name not in outputs
    )
    file = source.with_name(f"{source.name}.probe")  # beside it: external weights are found by relative names
    try:
        file.write_bytes(probed.SerializeToString())
        session = open_session(file)
        for feeds in calibration.rows():
            for name, values in zip(made, session.run(made, dict(feeds)) if made else [], strict=True):
                ranges.add(name, values)
            for name in inputs.intersection(names):
                ranges.add(name, np.asarray(feeds[name], np.float32))
    finally:
        file.unlink(missing_ok=True)
    return ranges


class _Writer:
    def __init__(
        self, model: Any, weights: Mapping[str, Any], precision: str, limits: Mapping[str, float]
    ) -> None:
        from onnx import TensorProto

        self.model, self.weights, self.limits, self.precision = model, weights, limits, precision
        self.kind = TensorProto.INT8 if precision == "int8" else TensorProto.FLOAT8E4M3FN
        self.nodes: list[Any] = []
        self.extra: dict[str, Any] = {}
        self.times: Counter[str] = Counter()

    def product(self, node: Any) -> None:
        """A pair before each of its operands; the weight is stored quantised, so it needs only the second half."""
        x, w = node.input[0], node.input[1]
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        axis = 0 if transposed else _WIDTHS[node.op_type]
        if x in self.limits:
            node.input[0] = self._pair(node, x)
        node.input[1] = self._weight(node, w, axis)
        self.nodes.append(node)

    def lookup(self, node: Any, *, quantized: bool) -> None:
        table, out = node.input[0], node.output[0]
        if not quantized:
            self._node(
                "DequantizeLinear", [self._stored(table, None), *self._scale_names(table)], f"{out}__table"
            )
            node.input[0] = f"{out}__table"
            self.nodes.append(node)
            return
        node.input[0] = self._stored(table, None)
        node.output[0] = f"{out}__q"
        self.nodes.append(node)
        self._node("DequantizeLinear", [f"{out}__q", *self._scale_names(table)], out)

    def finish(self) -> None:
        graph = self.model.graph
        del graph.node[:], graph.value_info[:]
        graph.node.extend(self.nodes)
        graph.initializer.extend(self.extra.values())
        if self.precision == "fp8":
            for entry in self.model.opset_import:
                if entry.domain in ("", "ai.onnx"):
                    entry.version = max(entry.version, _FP8_OPSET)

    def _pair(self, node: Any, x: str) -> str:
        """Each consumer has a pair of its own, its scale a hair off the others'.

        onnxruntime fuses a product with a pair that nothing else reads, and first joins pairs that are equal:
        a scale that differs in its last bit keeps them apart, and a quantised value never shows it.
        """
        scale = np.float32(self.limits[x] / _TOP[self.precision])
        for _ in range(self.times[x]):
            scale = np.nextafter(scale, np.float32(np.inf))
        self.times[x] += 1
        name = f"{node.name}__x"
        self._add(f"{name}_scale", np.asarray(scale, np.float32))
        self._zero(f"{name}_zero", ())
        sides = [f"{name}_scale", f"{name}_zero"]
        self._node("QuantizeLinear", [x, *sides], f"{name}_q")
        self._node("DequantizeLinear", [f"{name}_q", *sides], name)
        return name

    def _weight(self, node: Any, w: str, axis: int) -> str:
        stored, out = self._stored(w, axis), f"{node.name}__w"
        self._node("DequantizeLinear", [stored, *self._scale_names(w)], out, axis=axis)
        return out

    def _stored(self, name: str, axis: int | None) -> str:
        """A weight in 8 bits, with a scale for each channel of `axis`, or one for all."""
        from onnx import numpy_helper

        stored = f"{name}__q"
        if stored in self.extra:
            return stored
        values = numpy_helper.to_array(self.weights[name]).astype(np.float32)
        others = None if axis is None else tuple(n for n in range(values.ndim) if n != axis)
        top = np.maximum(np.abs(values).max(axis=others, keepdims=True), 1e-12)
        scale = (top / _TOP[self.precision]).astype(np.float32)
        if self.precision == "int8":
            low = np.clip(np.rint(values / scale), -127, 127).astype(np.int8)
        else:
            low = (values / scale).astype(_fp8())
        self._add(stored, low)
        flat = scale.reshape(-1) if axis is not None else scale.reshape(())
        self._add(f"{name}__scale", flat)
        self._zero(f"{name}__zero", flat.shape)
        return stored

    def _scale_names(self, name: str) -> list[str]:
        return [f"{name}__scale", f"{name}__zero"]

    def _zero(self, name: str, shape: tuple[int, ...]) -> None:
        self._add(name, np.zeros(shape, np.int8 if self.precision == "int8" else _fp8()))

    def _add(self, name: str, values: npt.NDArray[Any]) -> None:
        from onnx import numpy_helper

        self.extra[name] = numpy_helper.from_array(values, name)

    def _node(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> None:
        from onnx import helper

        self.nodes.append(helper.make_node(op, list(inputs), [output], name=f"{output}_{op}", **attributes))


def _fp8() -> Any:
    from onnx import TensorProto, helper

    return helper.tensor_dtype_to_np_dtype(TensorProto.FLOAT8E4M3FN)
