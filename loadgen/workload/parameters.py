"""Triton's request parameters of a kind: priority, the server's own timeout, and any others.

What the server would take and silently not do is refused or remarked on here.  It must not know how
parameters are encoded.
"""

from collections.abc import Mapping
from typing import Any

from loadgen.records import ModelFacts
from loadgen.workload.fit import FitError

Value = bool | int | float | str
_INT64 = range(-(2**63), 2**63)  # Triton refuses more over gRPC, and rounds it over HTTP
_OWN = {
    "priority": "use the kind's priority",
    "timeout": "use the kind's server_timeout",
    "sequence_id": "use the kind's sequence",
    "sequence_start": "use the kind's sequence",
    "sequence_end": "use the kind's sequence",
    "binary_data_output": "answers always come in binary",
    "triton_enable_empty_final_response": "streams always ask for it",
}


def request_parameters(
    kind: str,
    facts: ModelFacts,
    *,
    priority: int | None = None,
    server_timeout_ns: int | None = None,
    parameters: Mapping[str, Value] | None = None,
) -> tuple[dict[str, Value], list[str]]:
    """What a request of the kind carries, and remarks: one line each on what the server will not do.

    Priority 0 is the model's default and is not sent.  Raises FitError for a priority that the model's
    configuration does not have, and for a parameter that another key stands for.
    """
    where = f"kind {kind!r}, model {facts.name!r}"
    told: dict[str, Value] = {}
    for name, value in (parameters or {}).items():
        if name in _OWN:
            raise FitError(f"{where}: parameter {name!r} is loadgen's own; {_OWN[name]}")
        if isinstance(value, int) and value not in _INT64:
            raise FitError(f"{where}: parameter {name!r} is {value}; allowed: -2^63 to 2^63-1, or text")
        told[name] = value
    if priority:
        _check_priority(facts, priority, where)
        told["priority"] = priority
    if not server_timeout_ns:
        return told, []
    timeout_us = told["timeout"] = -(-server_timeout_ns // 1000)  # never shorter than asked
    remark = _timeout_remark(facts, priority or 0, timeout_us)
    return told, [f"{where}: server_timeout of {timeout_us} us {remark}"] if remark else []


def _check_priority(facts: ModelFacts, priority: int, where: str) -> None:
    if facts.config is None:  # a server that does not tell: it may know better
        return
    levels = _whole(_batching(facts), "priority_levels")
    if not levels:
        raise FitError(
            f"{where}: priority {priority}, but the model has no priority levels"
            " (dynamic_batching.priority_levels); leave priority out"
        )
    if not 0 < priority <= levels:
        raise FitError(
            f"{where}: priority {priority}, but the model has {levels} levels;"
            f" allowed: 1 (first) to {levels}, 0 for the model's default"
        )


def _timeout_remark(facts: ModelFacts, priority: int, timeout_us: int) -> str | None:
    """Why the server's queue will not keep to it (the model itself may still read it)."""
    if facts.config is None:
        return None
    batching = _batching(facts)
    level = priority or _whole(batching, "default_priority_level")
    policies = batching.get("priority_queue_policy") or {}
    policy = policies.get(str(level)) or policies.get(level) or batching.get("default_queue_policy") or {}
    if not policy.get("allow_timeout_override"):
        return "will not be kept: its queue policy does not allow it (allow_timeout_override)"
    default_us = _whole(policy, "default_timeout_microseconds")
    if timeout_us >= default_us:
        said = f"{default_us} us" if default_us else "none"
        return f"will not be kept: a request may only shorten the policy's own timeout, which is {said}"
    return None


def _batching(facts: ModelFacts) -> Mapping[str, Any]:
    told = (facts.config or {}).get("dynamic_batching")
    return told if isinstance(told, Mapping) else {}


def _whole(told: Mapping[str, Any], key: str) -> int:
    return int(told.get(key) or 0)  # protobuf's JSON form writes 64-bit numbers as text
