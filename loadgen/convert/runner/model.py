"""Serves an ONNX model from Triton's python backend: pads the requests of a batch, runs once, splits.

This file is copied beside model.onnx and runs in the server's environment, where there is only numpy and
onnxruntime: it must not import anything of the package it came from.  Padding never changes an answer,
and a request that cannot be served fails alone.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

try:
    import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]
except ImportError:  # outside Triton, where only the functions below are wanted
    pb_utils = None

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]
Run = Callable[[Feeds], Array]
Axes = Sequence[str | int]  # a size, or the name of a free axis; the first is the batch where there is one

TEXT: Axes = ("batch", "length")
CUDA = "CUDAExecutionProvider"


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """A request that this model cannot take; the text goes to its sender."""


class Limits:
    """What the model takes, from the parameters of its configuration.

    Without a parameter `axes` every input is [batch, length]; with it, what it says.
    """

    def __init__(self, parameters: Mapping[str, str]) -> None:
        told = json.loads(parameters.get("axes", "{}"))
        self.axes: Mapping[str, Axes] = told.get("inputs", {})
        self.batched = all(axes[:1] == ["batch"] for axes in self.axes.values())
        self.vocab_size = int(parameters.get("vocab_size", 0))
        self.max_length = int(parameters.get("max_length", 0))
        self.pad_token_id = int(parameters.get("pad_token_id", 0))
        self.type_vocab_size = int(parameters.get("type_vocab_size", 0))
        self.pads = {"input_ids": self.pad_token_id}  # every other input is padded with 0

    def of(self, name: str) -> Axes:
        """The axes of an input."""
        return self.axes.get(name, TEXT)

    def check_shape(self, feeds: Feeds) -> dict[str, int]:
        """The size of each free axis of a request; raises Refused unless its tensors fit, agree and are not empty."""
        sizes: dict[str, int] = {}
        for name, array in feeds.items():
            axes = self.of(name)
            if len(array.shape) != len(axes) or 0 in array.shape:
                words = ", ".join(str(axis) for axis in axes)
                raise Refused(
                    f"{name} has the shape {list(array.shape)}; allowed is [{words}], each 1 or more"
                )
            for axis, size in zip(axes, array.shape, strict=True):
                if (size if isinstance(axis, int) else sizes.setdefault(axis, size)) != (
                    axis if isinstance(axis, int) else size
                ):
                    first = next(iter(feeds))
                    raise Refused(
                        f"{name} has the shape {list(array.shape)}, {first} {list(feeds[first].shape)}; "
                        "they must agree"
                    )
        if self.max_length and sizes.get("length", 0) > self.max_length:
            raise Refused(f"length {sizes['length']} is beyond the model's maximum of {self.max_length}")
        return sizes

    def check_values(self, feeds: Feeds) -> None:
        """Raises Refused if an id is in no table: the lookup would fail, and with it the whole batch."""
        for name, size in (("input_ids", self.vocab_size), ("token_type_ids", self.type_vocab_size)):
            array = feeds.get(name)
            if array is None or array.size == 0 or not size:
                continue
            low, high = int(array.min()), int(array.max())
            if low < 0 or high >= size:
                raise Refused(f"{name} holds {low if low < 0 else high}; allowed is 0..{size - 1}")


def pad_concat(arrays: Sequence[Array], shape: Sequence[int], fill: int) -> Array:
    """Arrays one below the other, each padded behind its end to `shape` (of one row) with `fill`."""
    if all(array.shape[1:] == tuple(shape) for array in arrays):
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    out = np.full((sum(len(array) for array in arrays), *shape), fill, arrays[0].dtype)
    row = 0
    for array in arrays:
        out[(slice(row, row + len(array)), *(slice(size) for size in array.shape[1:]))] = array
        row += len(array)
    return out


def split(answer: Array, shapes: Sequence[tuple[int, int]], per_token: bool) -> list[Array]:
    """The answer of a whole batch cut back into each request's own [rows, length] of `shapes`."""
    parts: list[Array] = []
    row = 0
    for rows, length in shapes:
        part = answer[row : row + rows]
        if per_token and part.shape[1] != length:
            part = np.ascontiguousarray(part[:, :length])
        parts.append(part)
        row += rows
    return parts


def run_batch(run: Run, batch: Sequence[Feeds], limits: Limits, per_token: bool) -> list[Array]:
    """One run for all requests of `batch`, a list of {input name: array [rows, ...]}."""
    sizes = [limits.check_shape(feeds) for feeds in batch]
    if not limits.batched:
        return [run(feeds) for feeds in batch]
    joined = {}
    for name in batch[0]:
        arrays = [feeds[name] for feeds in batch]
        widest = [max(array.shape[at] for array in arrays) for at in range(1, arrays[0].ndim)]
        joined[name] = pad_concat(arrays, widest, limits.pads.get(name, 0))
    limits.check_values(joined)
    return split(run(joined), [(size["batch"], size.get("length", 1)) for size in sizes], per_token)


def answer_all(
    run: Run, batch: Sequence[Feeds | Exception], limits: Limits, per_token: bool
) -> list[Array | Exception]:
    """An array or an exception for each request, in order.

    Values are checked once for the whole batch.  Only if that, or the run, fails is each request tried on
    its own, so that one bad request costs the others time and nothing else.
    """
    answers: dict[int, Array | Exception] = {}
    good: dict[int, Feeds] = {}
    for at, feeds in enumerate(batch):
        if isinstance(feeds, Exception):
            answers[at] = feeds
            continue
        try:
            limits.check_shape(feeds)
            good[at] = feeds
        except Refused as why:
            answers[at] = why
    try:
        parts = run_batch(run, list(good.values()), limits, per_token) if good else []
        answers.update(zip(good, parts, strict=True))
    except Exception as why:  # noqa: BLE001 - whatever it is, its sender hears it
        if len(good) == 1:
            answers.update(dict.fromkeys(good, why))
        else:
            answers.update((at, answer_all(run, [feeds], limits, per_token)[0]) for at, feeds in good.items())
    return [answers[at] for at in range(len(batch))]


def default_threads(instances: int) -> int:
    """The cores this process may use, shared among the instances; at least one each."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, instances))


def open_session(path: Path, threads: int, gpu: int | None = None) -> Any:
    """An onnxruntime session; its idle threads sleep, since client and server may share the machine.

    With `gpu` it runs there, FP32 without TF32.  Raises RuntimeError where onnxruntime would take the CPU instead.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if gpu is None:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    if CUDA in onnxruntime.get_available_providers():
        if hasattr(onnxruntime, "preload_dlls"):
            onnxruntime.preload_dlls()  # from NVIDIA's packages, if they are installed
        providers = [(CUDA, {"device_id": str(gpu), "use_tf32": "0"})]
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        if CUDA in session.get_providers():
            return session
    raise RuntimeError(
        f"this instance is for GPU {gpu}, and onnxruntime {onnxruntime.__version__} in the server's Python has no "
        "CUDA that loads: install onnxruntime-gpu and its libraries there, or serve on the CPU"
    )


class TritonPythonModel:
    """The three calls that Triton makes."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Reads the configuration and loads model.onnx from this version's folder."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self.limits = Limits(parameters)
        self.inputs = [(tensor["name"], tensor.get("optional", False)) for tensor in config["input"]]
        output = config["output"][0]
        self.output = output["name"]
        axes = json.loads(parameters.get("axes", "{}"))
        # Of a text encoder [length, width] beside the batch axis; others say it.
        self.per_token = axes.get("per_token", len(output["dims"]) > 1)
        instances = sum(group.get("count", 1) for group in config.get("instance_group", [])) or 1
        threads = int(parameters.get("threads", 0)) or default_threads(instances)
        folder = Path(args["model_repository"]) / args["model_version"]
        on_gpu = args.get("model_instance_kind") == "GPU"
        gpu = int(args["model_instance_device_id"]) if on_gpu else None
        self.session = open_session(folder / "model.onnx", threads, gpu)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response a request, in order."""
        batch = [self.read(request) for request in requests]
        answers = answer_all(self.run, batch, self.limits, self.per_token)
        return [self.respond(answer) for answer in answers]

    def run(self, feeds: Feeds) -> Array:
        """The model, once."""
        answer: Array = self.session.run([self.output], feeds)[0]
        return answer

    def read(self, request: Any) -> Feeds | Exception:
        """{name: array}, an optional input that was left out as zeros; or the reason why not."""
        feeds: dict[str, Array] = {}
        try:
            for name, optional in self.inputs:
                tensor = pb_utils.get_input_tensor_by_name(request, name)
                if tensor is not None:
                    feeds[name] = tensor.as_numpy()
                elif optional:
                    feeds[name] = np.zeros_like(feeds["input_ids"])
                else:
                    return Refused(f"the input {name} is missing")
        except Exception as why:  # noqa: BLE001 - this request's, not the batch's
            return why
        return feeds

    def respond(self, answer: Array | Exception) -> Any:
        """An array as the output tensor, an exception as this request's error."""
        if isinstance(answer, Exception):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(answer)))
        return pb_utils.InferenceResponse([pb_utils.Tensor(self.output, answer)])

    def finalize(self) -> None:
        """Lets the session go."""
        self.session = None
