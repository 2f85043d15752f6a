"""A model's metadata and configuration, read into ModelFacts.

Pure: JSON forms in, nouns out.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from loadgen.records import LoadgenError, ModelFacts, TensorSpec
from loadgen.triton.shapes import CONFIGURATION, METADATA, fault


class FactsError(LoadgenError):
    """An answer of JSON that is no model's metadata or configuration: which of the two, and where in it."""

    def __init__(self, what: str, wrong: str) -> None:
        self.what, self.wrong = what, wrong
        super().__init__(f"the {what} is not one: {wrong}")


class ServerKind(StrEnum):
    """What answers at a target, where advice depends on it."""

    TRITON = "triton"
    OTHER = "other"


def server_kind(metadata: Any) -> ServerKind:
    """Of a server's KServe v2 metadata.  Only Triton has the schedule policy extension, whatever `--id` names it."""
    told = metadata if isinstance(metadata, Mapping) else {}
    extensions = told.get("extensions")
    listed = isinstance(extensions, list) and "schedule_policy" in extensions
    is_triton = told.get("name") == "triton" or listed
    return ServerKind.TRITON if is_triton else ServerKind.OTHER


def datatype(config_type: str) -> str:
    """KServe's name of a configuration's type: TYPE_INT64 is INT64, TYPE_STRING is BYTES."""
    name = config_type.removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def model_facts(version: str, metadata: Mapping[str, Any], config: Mapping[str, Any] | None) -> ModelFacts:
    """`version` is the one asked for.  Without a configuration the shapes are the full ones, as told.

    Raises FactsError.
    """
    _check("metadata", metadata, METADATA)
    if config is not None:
        _check("configuration", config, CONFIGURATION)
    versions = tuple(str(v) for v in metadata.get("versions") or ())
    if config is None:
        return ModelFacts(
            name=metadata["name"],
            version=version,
            versions=versions,
            max_batch_size=None,
            inputs=_told(metadata.get("inputs")),
            outputs=_told(metadata.get("outputs")),
        )
    texts = {
        key: value["string_value"]
        for key, value in (config.get("parameters") or {}).items()
        if value and value.get("string_value") is not None
    }
    return ModelFacts(
        name=metadata["name"],
        version=version,
        versions=versions,
        max_batch_size=int(config.get("max_batch_size") or 0),
        inputs=_configured(config.get("input")),
        outputs=_configured(config.get("output")),
        parameters=texts,
        config=config,
    )


def _check(what: str, answer: Any, shape: Any) -> None:
    if (wrong := fault(answer, shape)) is not None:
        raise FactsError(what, wrong)


def _told(tensors: Any) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(t["name"], t["datatype"], tuple(int(d) for d in t["shape"])) for t in tensors or ()
    )


def _configured(tensors: Any) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(
            t["name"],
            datatype(t["data_type"]),
            tuple(int(d) for d in t.get("dims") or ()),
            bool(t.get("optional")),
        )
        for t in tensors or ()
    )


def instance_count(config: Mapping[str, Any] | None) -> int | None:
    """Of all groups of a model; one on GPUs has its count on each of them.  None where the server does not tell."""
    groups = (config or {}).get("instance_group") or ()
    return sum(int(g.get("count") or 1) * max(1, len(g.get("gpus") or ())) for g in groups) or None


def steps_of(config: Mapping[str, Any] | None) -> Counter[tuple[str, str]]:
    """The composing models of an ensemble's configuration: (model, version) and in how many steps; version "" is the
    server's choice.  None of any other model: what a model calls by itself (BLS) no configuration tells.
    """
    steps = ((config or {}).get("ensemble_scheduling") or {}).get("step") or ()
    versions = [(step["model_name"], int(step.get("model_version") or -1)) for step in steps]
    return Counter((name, str(version) if version > 0 else "") for name, version in versions)


def is_ensemble(config: Mapping[str, Any] | None) -> bool:
    """Whether the model is executed by others alone: it has no queue, no instances and no batches of its own."""
    return bool(steps_of(config))


def composing(models: Iterable[str], configs: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
    """The models that these ensembles are made of, through ensembles within them too, in the order of their steps.

    `configs` by model; one that it does not have ends there.
    """
    found: dict[str, None] = {}
    waiting = list(models)
    while waiting:
        steps = [name for name, _ in steps_of(configs.get(waiting.pop(0)))]
        waiting += [name for name in steps if name not in found]
        found |= dict.fromkeys(steps)
    return list(found)
