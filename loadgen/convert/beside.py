"""Whether a model's other versions still fit the configuration of a new one: all versions share one config.pbtxt.

It must not know how a version is made or published.
"""

from pathlib import Path

from loadgen.records import LoadgenError
from loadgen.triton.config import ModelConfig
from loadgen.triton.repository import read_model

_OWN = (
    "max_length",
    "threads",
    "intra_op_thread_count",
)  # parameters that a version's file does not depend on


class BesideError(LoadgenError):
    """A configuration that would take a served version's place without fitting it."""


def unfit_beside(folder: Path, version: int, new: ModelConfig) -> str | None:
    """Why the versions beside `version` in a model's folder will not load with `new`; None where they will.

    Raises BesideError where they are served: the policy of `new` keeps more than the newest.
    """
    if not folder.is_dir():
        return None
    there = read_model(folder)
    others = [number for number in there.versions if number != version]
    differs = _differs(there.config, new) if there.config is not None else None
    if not others or differs is None:
        return None
    told = (
        f"version {', '.join(map(str, others))} of {new.name} was made for another configuration: {differs}"
    )
    if _serves_more(new, others):
        raise BesideError(f"{told}; it would be served with this one: publish under another --name")
    return f"{told}; it does not load with this one, which replaces it"


def _differs(old: ModelConfig, new: ModelConfig) -> str | None:
    for key in ("backend", "platform"):
        if getattr(old, key) != getattr(new, key):
            return f"{key} {getattr(old, key)!r}, not {getattr(new, key)!r}"
    fixed = new.platform == "tensorrt_plan"
    if old.max_batch_size != new.max_batch_size and (fixed or not old.max_batch_size * new.max_batch_size):
        return f"max_batch_size {old.max_batch_size}, not {new.max_batch_size}"
    if fixed and [g.profile for g in old.instance_group] != [g.profile for g in new.instance_group]:
        return "another number of optimization profiles"
    for side in ("input", "output"):
        was, now = ({t.name: (t.data_type, t.dims) for t in getattr(one, side)} for one in (old, new))
        if was != now:
            name = next(n for n in {**was, **now} if was.get(n) != now.get(n))
            return f"{side} {name!r} is another"
    before, after = ({k: v for k, v in one.texts.items() if k not in _OWN} for one in (old, new))
    changed = [k for k in {**before, **after} if before.get(k) != after.get(k)]
    return f"{changed[0]} {before.get(changed[0])}, not {after.get(changed[0])}" if changed else None


def _serves_more(config: ModelConfig, others: list[int]) -> bool:
    policy = config.version_policy
    if policy is None:
        return False
    if policy.specific is not None:
        return bool(set(policy.specific.versions) & set(others))
    return policy.all is not None or (policy.latest is not None and policy.latest.num_versions > 1)
