"""Models that do not say what they are: a torch module's factory, TorchScript, torch.export and ONNX files.

What they take is as the user described it, or as the file itself says.  Imports torch, so it is imported where
it is used.  It must not know Triton.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import torch

from loadgen.convert import wrappers
from loadgen.convert.encoder import Encoder, EncoderError, first_line, quiet
from loadgen.convert.inputs import (
    BATCH,
    DATATYPES,
    LENGTH,
    LONGEST,
    WIDEST_BATCH,
    Input,
    pick_sizes,
    require_axes,
    spans_of,
)
from loadgen.convert.session import open_session
from loadgen.convert.sources import Source

_LENGTHS = ("length", "sequence_length", "seq_length", "seq_len", "seq", "sequence")
_OUTPUT = "output"
_PARTS = 2


def load_module(source: Source, max_length: int | None) -> Encoder:
    """`module:factory` called, its module in eval mode.  Runs the user's own code; raises EncoderError."""
    factory = _factory(source)
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(source.random_seed or 0)
            module = factory()
    except Exception as why:  # noqa: BLE001 - the user's code may raise anything
        raise EncoderError(f"{source.label} cannot be made: {first_line(why)}") from None
    if not isinstance(module, torch.nn.Module):
        raise EncoderError(f"{source.label} gave a {type(module).__name__}; a torch.nn.Module is needed")
    taken = inspect.signature(module.forward).parameters
    names = [one.name for one in source.tensors]
    if not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        needed = [n for n, p in taken.items() if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
        unknown = [name for name in names if name not in taken]
        if unknown or (missing := [name for name in needed if name not in names]):
            what = f"no {unknown[0]}" if unknown else f"{missing[0]} too, which is not described"
            raise EncoderError(f"{source.label}: forward({', '.join(taken)}) takes {what}")
    return _encoder(source, module.float().eval(), source.tensors, max_length)


def _factory(source: Source) -> Callable[[], Any]:
    where, _, name = source.origin.rpartition(":")
    file = source.files[0]
    try:
        if where.endswith(".py"):
            loaded = ModuleType(file.stem)
            loaded.__file__ = str(file)
            sys.modules.setdefault(file.stem, loaded)  # dataclasses and pickles look their module up
            exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), loaded.__dict__)  # noqa: S102
        else:
            sys.path.insert(0, "")  # as `python -m` does
            try:
                loaded = importlib.import_module(where)
            finally:
                sys.path.remove("")
    except Exception as why:  # noqa: BLE001 - importing runs the user's code
        raise EncoderError(f"{source.label} cannot be imported: {first_line(why)}") from None
    found = getattr(loaded, name, None)
    if not callable(found):
        raise EncoderError(f"{source.label}: {where} has no function or class {name}")
    return found  # type: ignore[no-any-return]


def load_torchscript(source: Source, max_length: int | None) -> Encoder:
    """A TorchScript archive; raises EncoderError."""
    if not source.tensors:
        raise EncoderError(
            f"{source.label}: TorchScript does not say what shapes it takes; describe them with --inputs FILE or "
            "--input name:dtype:dims[:low..high]"
        )
    try:
        with quiet():
            jit: Any = torch.jit
            module = jit.load(str(source.files[0]), map_location="cpu").eval()
    except Exception:  # noqa: BLE001 - torch raises RuntimeError and more, in words about its zip reader
        raise EncoderError(
            f"{source.label} is no TorchScript; weights alone (a state_dict) have no code, give module:factory"
        ) from None
    taken = [argument.name for argument in module.forward.schema.arguments[1:]]
    names = [one.name for one in source.tensors]
    if set(names) - set(taken):
        raise EncoderError(f"{source.label} takes {', '.join(taken)}; described are {', '.join(names)}")
    return _encoder(source, module, source.tensors, max_length, "torchscript")


def load_exported(source: Source, max_length: int | None) -> Encoder:
    """A torch.export archive: its own symbols are the free axes; raises EncoderError."""
    try:
        with quiet():
            program: Any = torch.export.load(str(source.files[0]))
            module = program.module()
    except Exception as why:  # noqa: BLE001 - zip, pickle and torch errors
        raise EncoderError(f"{source.label} is no torch.export archive: {first_line(why)}") from None
    found = {n.name: n.meta["val"] for n in program.graph.nodes if n.op == "placeholder" and "val" in n.meta}
    told: dict[str, Told] = {}
    for name in map(str, program.graph_signature.user_inputs):
        value = found.get(name)
        if not isinstance(value, torch.Tensor):
            raise EncoderError(f"{source.label}: its input {name} is no tensor")
        datatype = DATATYPES.get(str(value.dtype).removeprefix("torch."), str(value.dtype))
        told[name] = datatype, tuple(int(n) if str(n).isdigit() else str(n) for n in value.shape)
    bounds = {
        str(symbol): (int(span.lower), int(span.upper))
        for symbol, span in program.range_constraints.items()
        if str(span.upper).isdigit()
    }
    count = program.call_spec.in_spec.child(0).num_children
    called = wrappers.Positional(module, list(told)[:count])
    return _encoder(source, called, _fit(source, told, bounds), max_length, "program")


def load_onnx(source: Source, max_length: int | None) -> Encoder:
    """An ONNX file: it is its own reference, so parity shows that it runs at every size and that padding is safe."""
    import onnx

    try:
        proto = onnx.load(str(source.files[0]), load_external_data=False)
        session = open_session(source.files[0])
    except Exception as why:  # noqa: BLE001 - onnx, protobuf and onnxruntime have errors of their own
        raise EncoderError(f"{source.label} is no ONNX file that runs: {first_line(why)}") from None
    tables = _tables(proto)
    outputs = [value.name for value in proto.graph.output]
    output = source.output or (outputs[0] if len(outputs) == 1 else None)
    if output is None or output not in outputs:
        asked = f"no output {output}" if output else f"{len(outputs)} outputs"
        raise EncoderError(f"{source.label} has {asked}; choose with --output one of {', '.join(outputs)}")
    told: dict[str, Told] = {}
    for value in proto.graph.input:
        kind = value.type.tensor_type
        datatype = DATATYPES.get(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name, "?")
        axes = [d.dim_param or d.dim_value or f"{value.name}_{n}" for n, d in enumerate(kind.shape.dim)]
        told[value.name] = datatype, tuple(axes)
    inputs = _fit(source, told, {}, tables)
    module = wrappers.Session(session, output)
    encoder = _encoder(replace(source, output=output), module, inputs, max_length, "file")
    return replace(encoder, output=output)


Told = tuple[str, tuple[str | int, ...]]  # an input's data type and axes, as its file says


def _tables(proto: Any) -> dict[str, int]:
    """Rows of the table that an input indexes directly: what its values must stay below."""
    shapes = {value.name: list(value.dims) for value in proto.graph.initializer}
    return {
        node.input[1]: shapes[node.input[0]][0]
        for node in proto.graph.node
        if node.op_type == "Gather" and node.input[0] in shapes
    }


def _fit(
    source: Source,
    told: Mapping[str, Told],
    bounds: Mapping[str, tuple[int, int]],
    tables: Mapping[str, int] | None = None,
) -> tuple[Input, ...]:
    """What a file says of its inputs, with what the user described laid over it; raises EncoderError."""
    described = {one.name: one for one in source.tensors}
    if strange := sorted(set(described) - set(told)):
        raise EncoderError(f"{source.label} has no input {strange[0]}; it takes {', '.join(told)}")
    names = _axis_names(told)
    inputs = []
    for name, (datatype, axes) in told.items():
        given = described.get(name)
        if datatype not in DATATYPES.values():
            raise EncoderError(f"{source.label}: its input {name} has a type that cannot be served")
        if given is not None:
            fits = [a == b or (isinstance(a, str) and isinstance(b, str)) for a, b in zip(axes, given.axes)]  # noqa: B905
            if given.datatype != datatype or len(axes) != len(given.axes) or not all(fits):
                raise EncoderError(
                    f"{source.label}: its input {name} is {datatype} {list(axes)}; "
                    f"described is {given.datatype} {list(given.axes)}"
                )
            inputs.append(given)
            continue
        spans = {names[axis]: bounds[axis] for axis in axes if isinstance(axis, str) and axis in bounds}
        ours = tuple(axis if isinstance(axis, int) else names[axis] for axis in axes)
        mask = name == "attention_mask"
        high = 1 if mask else (tables or {}).get(name, 0) - 1
        whole = not datatype.startswith("FP")
        if whole and not mask and datatype != "BOOL" and high < 1:
            dims = ",".join(str(axis) for axis in ours)
            raise EncoderError(
                f"{source.label}: nothing tells the range of {name}; describe it, for example "
                f"--input {name}:{datatype}:{dims}:0..99"
            )
        capped = {axis: (low, min(most, LONGEST if axis != BATCH else WIDEST_BATCH))
                  for axis, (low, most) in spans.items()}  # fmt: skip
        low, top = (0, max(high, 1)) if whole else (-1, 1)
        inputs.append(Input(name, datatype, ours, low, top, mask=mask, spans=capped))
    return tuple(inputs)


def _axis_names(told: Mapping[str, Told]) -> dict[str, str]:
    """Our names for a file's free axes: the first of every input is the batch, that of token ids the length."""
    names = {axis: axis for _, axes in told.values() for axis in axes if isinstance(axis, str)}
    names |= {axis: LENGTH for axis in names if axis.lower() in _LENGTHS}
    firsts = {axes[0] if axes else None for _, axes in told.values()}
    ids = told.get("input_ids", ("", ()))[1]
    if len(ids) == _PARTS and isinstance(ids[1], str):
        names[ids[1]] = LENGTH
    first = next(iter(firsts))
    if len(firsts) == 1 and isinstance(first, str):
        names[first] = BATCH
    return {axis: f"axis_{name}" if not name.isidentifier() else name for axis, name in names.items()}


def _encoder(
    source: Source,
    module: torch.nn.Module,
    inputs: tuple[Input, ...],
    max_length: int | None,
    exporter: str = "dynamo",
) -> Encoder:
    """The module with the shape of its answer found by running it; raises EncoderError."""
    notes: tuple[str, ...] = ()
    batched = all(one.batched for one in inputs)
    if not batched:
        lacking = next(one for one in inputs if not one.batched)
        notes = (f"max_batch_size is 0: {lacking.name} {list(lacking.axes)} does not begin with {BATCH}",)
        require_axes(lacking.name, lacking.axes)
        inputs = tuple(
            replace(one, axes=tuple("rows" if axis == BATCH else axis for axis in one.axes)) for one in inputs
        )
    positions = spans_of(inputs).get(LENGTH, (1, 1))[1]
    limit = max_length or min(positions, LONGEST)
    if limit > positions:
        raise EncoderError(f"max length {limit}: {source.label} allows 1..{positions}")
    ids = next((one for one in inputs if one.name == "input_ids" and not one.datatype.startswith("FP")), None)
    encoder = Encoder(
        module=module,
        inputs=tuple(one.name for one in inputs),
        output=source.output if source.output and not source.output.isdigit() else _OUTPUT,
        width=0,
        per_token=False,
        vocab_size=int(ids.high) + 1 if ids else 0,
        pad_token_id=ids.fill if ids else 0,
        type_vocab_size=0,
        positions=positions,
        max_length=limit,
        given=inputs,
        batched=batched,
        padded=batched and any(one.mask and one.axes[-1] == LENGTH for one in inputs),
        exporter=exporter,
        file=source.files[0],
        notes=notes,
    )
    return probe(encoder, source)


def probe(encoder: Encoder, source: Source) -> Encoder:
    """Runs twice at different sizes: which output is meant, and which of its axes follow which of the inputs'."""
    try:
        return _probed(encoder, source)
    except EncoderError as why:
        if not encoder.batched:
            raise
        try:
            one = _probed(encoder.one_at_a_time(str(why)), source)
        except EncoderError:
            raise why from None
        if one.answer[:1] != (1,):
            raise why from None
        return one


def _probed(encoder: Encoder, source: Source) -> Encoder:
    spans = spans_of(encoder.specs)
    first = pick_sizes(spans, frozenset())
    second = pick_sizes(spans, frozenset(first.values()))
    encoder = replace(encoder, module=_choose(encoder, source, first))
    answers = [_answer(encoder, source, sizes) for sizes in (first, second)]
    if answers[0].is_complex() or answers[0].dtype is torch.bfloat16:
        kind = str(answers[0].dtype).removeprefix("torch.")
        raise EncoderError(
            f"{source.label} answers in {kind}, which NumPy or servers do not have; end it with another"
        )
    shapes = [tuple(answer.shape) for answer in answers]
    if any(0 in shape for shape in shapes):
        raise EncoderError(
            f"{source.label} answers without a number: its answer has the shape {list(shapes[0])}"
        )
    if len(shapes[0]) != len(shapes[1]):
        raise EncoderError(f"{source.label}: the rank of its answer depends on the size of its input")
    axes: list[str | int] = []
    for at, (a, b) in enumerate(zip(*shapes, strict=True)):
        named = [axis for axis in first if (first[axis], second[axis]) == (a, b)]
        axes.append(named[0] if named and a != b else a if a == b else f"{encoder.output}_{at}")
    return replace(
        encoder,
        answer=tuple(axes),
        width=axes[-1] if axes and isinstance(axes[-1], int) else 1,
        per_token=encoder.batched and axes[:2] == [BATCH, LENGTH],
    )


def _answer(encoder: Encoder, source: Source, sizes: Mapping[str, int]) -> Any:
    rng = np.random.default_rng(0)
    feeds = {one.name: torch.from_numpy(one.draw(sizes, {}, rng)) for one in encoder.specs}
    try:
        with quiet(), torch.no_grad():
            return encoder.module(**feeds)
    except Exception as why:  # noqa: BLE001 - the user's code may raise anything
        at = ", ".join(f"{axis} {size}" for axis, size in sizes.items()) or "its sizes"
        hint = "an axis that has one size is written as it"
        if "FP64" in {one.datatype for one in encoder.specs}:
            hint = "weights are made FP32, so declare FP32"
        raise EncoderError(f"{source.label} does not run at {at}: {first_line(why)}; {hint}") from None


def _choose(encoder: Encoder, source: Source, sizes: Mapping[str, int]) -> torch.nn.Module:
    """The module itself if its answer is a tensor, else one that gives the output that was asked for."""
    answer = _answer(encoder, source, sizes)
    if isinstance(answer, torch.Tensor):
        return encoder.module
    if isinstance(answer, Mapping):
        found = {str(key): value for key, value in answer.items()}
    elif isinstance(answer, Sequence) and not isinstance(answer, str | bytes):
        found = {str(n): value for n, value in enumerate(answer)}
    else:
        raise EncoderError(f"{source.label} answers with a {type(answer).__name__}; a tensor is needed")
    key = source.output if source.output in found else next(iter(found)) if len(found) == 1 else None
    if isinstance(answer, Mapping) and source.output not in (None, key):
        key = None
    if key is None or not isinstance(found[key], torch.Tensor):
        raise EncoderError(
            f"{source.label} gives {len(found)} output{'s' * (len(found) != 1)}; choose with --output one of "
            f"{', '.join(found)}"
        )
    return wrappers.Chosen(encoder.module, list(found).index(key))
