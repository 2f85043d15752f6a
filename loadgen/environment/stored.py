"""The environment that a run, a conversion, an engine benchmark or `loadgen env --json` left on the disk.

It must not know what else is in those files.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from loadgen.records import LoadgenError

if TYPE_CHECKING:
    from pathlib import Path

_HOLDERS = ("run.json", "convert.json", "engine.json")
_GROUPS = ("environment", "versions", "machine")


class StoredError(LoadgenError):
    """A path that holds no environment."""


def stored(path: Path) -> dict[str, Any]:
    """The facts of a run's or benchmark's folder, a converted model's folder or version folder, or a JSON file.

    A model's folder stands for its newest version.  Raises StoredError.
    """
    file = _file(path)
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as why:
        raise StoredError(f"{file} cannot be read: {why}") from None
    facts = told.get("client") or (told.get("environment") and told) if isinstance(told, dict) else None
    if not isinstance(facts, dict):
        raise StoredError(f"{file} tells nothing of an environment: no client as in run.json, no environment")
    for key in _GROUPS:
        if not isinstance(facts.get(key) or {}, dict):
            raise StoredError(f"{file} is no environment: its {key!r} is no object of names and values")
    if not isinstance((facts.get("environment") or {}).get("libraries") or {}, dict):
        raise StoredError(f"{file} is no environment: its 'libraries' are no object of names and versions")
    return _of_product(facts) if "versions" in facts else facts


def _of_product(told: dict[str, Any]) -> dict[str, Any]:
    """A conversion or a benchmark holds more than an environment.  In the words of a run: python and loadgen by themselves, the libraries it was made with among all."""
    versions = dict(told.get("versions") or {})
    own = {name: versions.pop(name) for name in ("python", "loadgen") if name in versions}
    environment = dict(told.get("environment") or {})
    environment["libraries"] = {**versions, **(environment.get("libraries") or {})}
    return {**own, **(told.get("machine") or {}), "environment": environment}


def _file(path: Path) -> Path:
    if path.is_file():
        return path
    for name in _HOLDERS:
        if (path / name).is_file():
            return path / name
    versions = sorted((f for f in path.glob("*/convert.json") if f.parent.name.isdecimal()), key=_number)
    if versions:
        return versions[-1]
    raise StoredError(
        f"{path} is no run (run.json), no converted model (convert.json), no benchmark (engine.json) and no JSON file"
    )


def _number(file: Path) -> int:
    return int(file.parent.name)
