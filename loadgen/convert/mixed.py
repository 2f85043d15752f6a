"""An FP32 graph in FP16 or BF16, with casts where the chosen FP32 nodes begin and end.

Inputs and outputs keep their types, so a server's config does not change.  `rounded` writes the same graph for
a runtime without kernels for the type: FP32 arithmetic, each result rounded to it.  It must not know why a node
is kept.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from loadgen.convert.precision import Kept, Lowered, all_nodes, value_types

_SUFFIX = {"fp16": "__fp16", "bf16": "__bf16"}


def cast_down(model: Any, precision: str, kept: Mapping[str, str]) -> Lowered:
    """Rewrites `model` in place; nodes of `kept` (name to reason) stay FP32."""
    writer = _Writer(model, precision)
    lowered: Counter[str] = Counter()
    for node in list(model.graph.node):
        if not writer.has_floats(node):
            writer.nodes.append(node)
        elif node.name in kept:
            writer.high(node)
        else:
            writer.low(node)
            lowered[node.op_type] += 1
    writer.finish()
    told = tuple(
        Kept(node.name, node.op_type, kept[node.name]) for node in model.graph.node if node.name in kept
    )
    return Lowered(precision, told, dict(lowered))


def rounded(model: Any, precision: str, kept: Mapping[str, str]) -> None:
    """Rewrites `model` in place: what is not `kept` computes in FP32 on values rounded to the precision.

    Close to what a tensor core does (products of low values summed in FP32), and runs wherever a Cast does.
    """
    writer = _Writer(model, precision)
    for node in list(model.graph.node):
        if writer.has_floats(node) and node.name not in kept:
            writer.round(node)
        else:
            writer.nodes.append(node)
    writer.finish()


class _Writer:
    """The nodes written so far.  A value keeps its name in FP32; its low form has the suffix."""

    def __init__(self, model: Any, precision: str) -> None:
        from onnx import TensorProto

        self.model, self.suffix = model, _SUFFIX[precision]
        self.float, self.type = (
            TensorProto.FLOAT,
            {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}[precision],
        )
        self.floats = {name for name, kind in value_types(model).items() if kind == self.float}
        self.weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self.nodes: list[Any] = []
        self.extra: list[Any] = []
        self.there = {*self.weights, *(value.name for value in model.graph.input)}

    def has_floats(self, node: Any) -> bool:
        inner = any(attribute.HasField("g") for attribute in node.attribute)
        return inner or not self.floats.isdisjoint((*node.input, *node.output))

    def high(self, node: Any) -> None:
        for name in {name for one in all_nodes([node]) for name in one.input}:
            self._want(name, low=False)
        self.nodes.append(node)
        self.there.update(node.output)

    def low(self, node: Any) -> None:
        for at, name in enumerate(node.input):
            if name in self.floats:
                node.input[at] = self._want(name, low=True)
        for at, name in enumerate(node.output):
            if name in self.floats:
                node.output[at] = name + self.suffix
        self.there.update(node.output)
        self._attributes(node)
        self.nodes.append(node)

    def round(self, node: Any) -> None:
        from onnx import helper

        for at, name in enumerate(node.input):
            if name in self.weights and name in self.floats:
                node.input[at] = self._rounded_weight(name)
        made = [name for name in node.output if name in self.floats]
        for at, name in enumerate(node.output):
            if name in self.floats:
                node.output[at] = name + "__exact"
        self.nodes.append(node)
        for name in made:
            low = name + self.suffix
            self.nodes.append(
                helper.make_node("Cast", [name + "__exact"], [low], name=f"{low}_cast", to=self.type)
            )
            self.nodes.append(helper.make_node("Cast", [low], [name], name=f"{name}_back", to=self.float))

    def finish(self) -> None:
        for value in self.model.graph.output:
            self._want(value.name, low=False)
        graph = self.model.graph
        del graph.node[:], graph.value_info[:]
        graph.node.extend(self.nodes)
        graph.initializer.extend(self.extra)

    def _want(self, name: str, *, low: bool) -> str:
        """The name of a value in the type asked for, made now if it is not there yet."""
        from onnx import helper

        wanted, other = (name + self.suffix, name) if low else (name, name + self.suffix)
        if name not in self.floats or wanted in self.there or other not in self.there:
            return wanted if name in self.floats else name
        if low and name in self.weights:
            self.extra.append(self._lowered(name, wanted))
        else:
            kind = self.type if low else self.float
            self.nodes.append(helper.make_node("Cast", [other], [wanted], name=f"{wanted}_cast", to=kind))
        self.there.add(wanted)
        return wanted

    def _lowered(self, name: str, wanted: str) -> Any:
        from onnx import helper, numpy_helper

        values = numpy_helper.to_array(self.weights[name])
        return numpy_helper.from_array(values.astype(helper.tensor_dtype_to_np_dtype(self.type)), wanted)

    def _rounded_weight(self, name: str) -> str:
        from onnx import numpy_helper

        wanted = name + self.suffix
        if wanted not in self.there:
            low = numpy_helper.to_array(self._lowered(name, wanted))
            self.extra.append(numpy_helper.from_array(low.astype("float32"), wanted))
            self.there.add(wanted)
        return wanted

    def _attributes(self, node: Any) -> None:
        """Types that stand in attributes: a Cast's target, a filling value."""
        from onnx import helper, numpy_helper

        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == self.float:
                attribute.i = self.type
            elif attribute.HasField("t") and attribute.t.data_type == self.float:
                values = numpy_helper.to_array(attribute.t)
                low = values.astype(helper.tensor_dtype_to_np_dtype(self.type))
                attribute.t.CopyFrom(numpy_helper.from_array(low, attribute.t.name))
