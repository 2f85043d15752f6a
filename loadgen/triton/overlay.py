"""A model's configuration under changes, and what Triton would refuse of it, said before it is asked.

The server answers an invalid configuration with "failed to poll" and keeps the reason in its log; so each one is
read here by Triton's own message (tritonclient's model_config_pb2) and held against the rules of its batcher.
Pure: JSON forms in and out.  It must not know servers or files.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from loadgen.records import LoadgenError
from loadgen.traffic.changes import Changes, Queue
from loadgen.traffic.words import near, show_value

Config = dict[str, Any]
_DYNAMIC, _SIZES = "dynamic_batching", "preferred_batch_size"


class OverlayError(LoadgenError):
    """A configuration that Triton would refuse."""


def overlaid(base: Mapping[str, Any], changes: Changes) -> Config:
    """`base` as the server tells it, with `changes` over it.  Raises OverlayError for a path that leads nowhere."""
    config = copy.deepcopy(dict(base))
    batcher = config.get(_DYNAMIC)
    if batcher and batcher.get(_SIZES) == [config.get("max_batch_size")]:
        del batcher[
            _SIZES
        ]  # what the server puts there when none is named; of another size it would be refused
    if changes.max_batch_size is not None:
        config["max_batch_size"] = changes.max_batch_size
    _batcher(config, changes)
    if changes.instances is not None:
        for group in config.setdefault("instance_group", [{}]):
            group["count"] = changes.instances
    if changes.ragged is not None:
        for tensor in config.get("input", ()):
            tensor["allow_ragged_batch"] = changes.ragged
    for path, value in changes.set.items():
        _put(config, path, value)
    return config


def _batcher(config: Config, changes: Changes) -> None:
    if changes.batching is False:
        config.pop(_DYNAMIC, None)
        return
    fields = {
        _SIZES: None if changes.preferred is None else list(changes.preferred),
        "max_queue_delay_microseconds": None if changes.delay_ns is None else changes.delay_ns // 1000,
        "priority_levels": changes.priorities,
        "default_priority_level": changes.priorities and (changes.priorities + 1) // 2,
        "preserve_ordering": changes.preserve_ordering,
        "default_queue_policy": changes.queue and _policy(changes.queue),
    }
    told = {key: value for key, value in fields.items() if value is not None}
    if told or changes.batching:
        config[_DYNAMIC] = {**(config.get(_DYNAMIC) or {}), **told}


def _policy(queue: Queue) -> Config:
    fields = {
        "timeout_action": queue.action and queue.action.upper(),
        "default_timeout_microseconds": queue.timeout_ns and queue.timeout_ns // 1000,
        "allow_timeout_override": queue.override,
        "max_queue_size": queue.max_size,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _put(config: Config, path: str, value: Any) -> None:
    """Sets dynamic_batching.max_queue_delay_microseconds, instance_group.0.count and the like."""
    *way, last = path.split(".")
    at: Any = config
    for step in way:
        at = at.setdefault(step, {}) if isinstance(at, dict) else at[_place(at, step, path)]
        if not isinstance(at, dict | list):
            raise OverlayError(f"set: {path}: {step} is {show_value(at)}, which has no parts")
    at[last if isinstance(at, dict) else _place(at, last, path)] = value


def _place(rows: list[Any], step: str, path: str) -> int:
    if not step.isdecimal() or int(step) >= len(rows):
        allowed = f"0 to {len(rows) - 1}" if rows else "none: the list is empty"
        raise OverlayError(f"set: {path}: {step!r} is no place in the list; allowed: {allowed}")
    return int(step)


def check(config: Mapping[str, Any]) -> None:
    """Raises OverlayError, with every reason, for what Triton would refuse to load."""
    faults = list(_faults(_message(config)))
    if faults:
        raise OverlayError("; ".join(faults))


def _message(config: Mapping[str, Any]) -> Any:
    from google.protobuf import json_format
    from tritonclient.grpc import model_config_pb2

    try:
        return json_format.ParseDict(dict(config), model_config_pb2.ModelConfig())
    except json_format.ParseError as why:
        said = " ".join(str(why).split()).partition(" Available Fields")[0]
        fields = [field.name for field in model_config_pb2.ModelConfig.DESCRIPTOR.fields]
        wrong = next((key for key in config if key not in fields), None)
        hint = f"{near(wrong, fields)}; allowed: {', '.join(fields)}" if wrong else ""
        raise OverlayError(f"not a Triton model configuration: {said}{hint}") from None


def _faults(message: Any) -> Iterator[str]:
    if message.max_batch_size < 0:
        yield f"max_batch_size {message.max_batch_size} is negative"
    yield from _instance_faults(message)
    if message.HasField(_DYNAMIC):
        yield from _batcher_faults(message.dynamic_batching, message.max_batch_size)


def _batcher_faults(batcher: Any, most: int) -> Iterator[str]:
    if most == 0:
        yield "dynamic_batching needs a max_batch_size of 1 or more; it is 0"
    for size in batcher.preferred_batch_size:
        if size < 1:
            yield f"preferred_batch_size {size} is not a size; allowed: 1 or more"
        elif most and size > most:
            yield f"preferred_batch_size {size} is more than max_batch_size {most}"
    yield from _policy_faults(batcher)


def _policy_faults(batcher: Any) -> Iterator[str]:
    levels = batcher.priority_levels
    if levels and not 1 <= batcher.default_priority_level <= levels:
        yield f"default_priority_level {batcher.default_priority_level} is none of the {levels} priority_levels"
    policies = [batcher.default_queue_policy, *batcher.priority_queue_policy.values()]
    delays = any(policy.timeout_action == type(policy).DELAY for policy in policies)
    if batcher.preserve_ordering and (levels > 1 or delays):
        yield "preserve_ordering goes with neither several priority_levels nor the timeout_action DELAY"
    for level in batcher.priority_queue_policy:
        if not 1 <= level <= levels:
            yield f"priority_queue_policy names level {level}, there are {levels} priority_levels"


def _instance_faults(message: Any) -> Iterator[str]:
    for place, group in enumerate(message.instance_group):
        if group.count < 0:
            yield f"instance_group[{place}]: count {group.count} is negative"
        if group.kind == type(group).KIND_CPU and group.gpus:
            yield f"instance_group[{place}]: KIND_CPU names gpus"


def only_instances_differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether going from one to the other is a resize, which the server does live and without new counters."""
    mine, theirs = ({k: v for k, v in c.items() if k != "instance_group"} for c in (one, other))
    return mine == theirs and one.get("instance_group") != other.get("instance_group")
