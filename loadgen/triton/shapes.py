"""The shapes of a control plane's answers, as far as they are read: metadata, configuration, statistics.

A shape is a type; [the shape of each]; or {key: shape}, where a key with "!" must be there and "*" stands for all.
A null is an absent value.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any


class Whole:
    """The shape of a whole number, or of a text of one: protobuf's JSON form writes 64-bit numbers as text."""


_TENSOR = {"name!": str, "datatype!": str, "shape!": [Whole]}
METADATA = {"name!": str, "versions": [object], "inputs": [_TENSOR], "outputs": [_TENSOR]}

_CONFIGURED = {"name!": str, "data_type!": str, "dims": [Whole]}
_POLICY = {"default_timeout_microseconds": Whole, "max_queue_size": Whole}
_BATCHER = {
    "preferred_batch_size": [Whole],
    "max_queue_delay_microseconds": Whole,
    "priority_levels": Whole,
    "default_priority_level": Whole,
    "default_queue_policy": _POLICY,
    "priority_queue_policy": {"*": _POLICY},
}
CONFIGURATION = {
    "platform": str,
    "backend": str,
    "max_batch_size": Whole,
    "input": [_CONFIGURED],
    "output": [_CONFIGURED],
    "instance_group": [{"count": Whole, "gpus": [Whole]}],
    "dynamic_batching": _BATCHER,
    "sequence_batching": {},
    "ensemble_scheduling": {"step": [{"model_name!": str, "model_version": Whole}]},
    "parameters": {"*": {"string_value": str}},
    "model_transaction_policy": {},
    "response_cache": {},
    "model_warmup": [{}],
}

_TALLY = {"count": Whole, "ns": Whole}
_COMPUTE = {f"compute_{part}": _TALLY for part in ("input", "infer", "output")}
STATISTICS = {
    "version!": object,
    "inference_count": Whole,
    "execution_count": Whole,
    "inference_stats": dict.fromkeys(("success", "fail", "queue", "cache_hit", "cache_miss"), _TALLY)
    | _COMPUTE,
    "batch_stats": [{"batch_size!": Whole} | _COMPUTE],
}


def fault(value: Any, shape: Any, place: str = "") -> str | None:
    """Where a value is not of its shape, as a path of keys; None if it is."""
    if isinstance(shape, list):
        if not isinstance(value, list):
            return place or "no list"
        return next(
            filter(None, (fault(one, shape[0], f"{place}[{i}]") for i, one in enumerate(value))), None
        )
    if isinstance(shape, Mapping):
        if not isinstance(value, Mapping):
            return place or "no object"
        return next(_faults(value, shape, place), None)
    return None if _is(value, shape) else place


def _faults(value: Mapping[str, Any], shape: Mapping[str, Any], place: str) -> Iterator[str]:
    of_key = {str(key): shape["*"] for key in value} if "*" in shape else shape
    for key, inner in of_key.items():
        name = key.removesuffix("!")
        path = f"{place}.{name}" if place else name
        found = value.get(name)
        if found is None:
            if key != name:
                yield f"no {path}"
        elif (wrong := fault(found, inner, path)) is not None:
            yield wrong


def _is(value: Any, shape: type) -> bool:
    if shape is not Whole:
        return isinstance(value, shape)
    if isinstance(value, str):
        with suppress(ValueError):
            int(value)
            return True
        return False
    return isinstance(value, int) and not isinstance(value, bool)
