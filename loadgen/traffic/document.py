"""From the text of a profile to plain data: YAML or JSON, bounded, without duplicate keys or empty values.

It remembers on which line a key stands.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loadgen.records import LoadgenError
from loadgen.traffic.json_text import JsonError, lone_surrogate, unique
from loadgen.traffic.words import show_value
from loadgen.units import show_bytes

MOST_BYTES = 256 * 1024
PROFILE_NEEDS = "a profile needs kinds and phases (see `loadgen profile keys`)"
_MOST_NODES = 20_000  # counted with every alias expanded, so that a small text cannot become a huge profile
_MOST_DEPTH = 30
_ESCAPES = {"\x85": "\\N", "\u2028": "\\L", "\u2029": "\\P"}
_OTHER_BREAKS = re.compile(f"[{''.join(_ESCAPES)}]")


class ProfileError(LoadgenError):
    """A profile that cannot be used: `problems` holds one line each."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data and, for YAML, the node tree it came from."""

    data: Any
    root: yaml.Node | None = None

    def line(self, path: Sequence[str | int]) -> int | None:
        """The line (from 1) of the deepest part of the path that the text has; None for JSON."""
        node, line = self.root, None
        for step in path:
            if isinstance(node, yaml.MappingNode):
                found = next(((k, v) for k, v in node.value if k.value == str(step)), None)
                if found is None:
                    break
                line, node = found[0].start_mark.line + 1, found[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                line = node.start_mark.line + 1
            else:
                break
        return line


def show_path(path: Sequence[str | int]) -> str:
    """("phases", 1, "open") as phases[1].open."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def read_text(path: Path, what: str = "traffic profile") -> str:
    """The text of a file that holds a `what`; ProfileError when there is none that can be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise ProfileError(f"{path}: no such file; name a {what} (YAML or JSON)") from None
    except IsADirectoryError:
        raise ProfileError(f"{path}: is a folder; name a {what} in it (YAML or JSON)") from None
    except (OSError, ValueError) as why:
        reason = why.strerror if isinstance(why, OSError) else str(why)
        raise ProfileError(f"{path}: cannot be read: {reason}") from None
    if len(raw) > MOST_BYTES:
        raise ProfileError(f"{path}: larger than {show_bytes(MOST_BYTES)}, which no {what} needs")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as why:
        raise ProfileError(f"{path}: not UTF-8 text (byte {why.start}); save it as UTF-8") from None


def read_document(text: str, name: str, needs: str = PROFILE_NEEDS) -> Document:
    """Parses and bounds a text; ProfileError says where it breaks, and what an empty one `needs`."""
    if len(text) > MOST_BYTES:
        raise ProfileError(f"{name}: larger than {show_bytes(MOST_BYTES)}, which no traffic profile needs")
    document = _read_json(text, name) if text.lstrip().startswith("{") else None
    document = document or _read_yaml(text, name)
    if document.data is None:
        raise ProfileError(f"{name}: empty; {needs}")
    _Walk(name, document).visit(document.data, ())
    return document


def _read_json(text: str, name: str) -> Document | None:
    """JSON proper, which YAML readers take only in part (tabs, 1e3); None leaves it to YAML."""
    try:
        return Document(json.loads(text, object_pairs_hook=unique))
    except JsonError as why:
        raise ProfileError(f"{name}: {why}") from None
    except (ValueError, RecursionError):
        return None


def _read_yaml(text: str, name: str) -> Document:
    if found := _OTHER_BREAKS.search(text):
        line, code = text.count("\n", 0, found.start()) + 1, ord(found[0])
        said = f"U+{code:04X}, at which YAML ends a line; write it in double quotes as {_ESCAPES[found[0]]}"
        raise ProfileError(f"{name}:{line}: holds {said}")
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return Document(None)
        _refuse_duplicates(root, name)
        return Document(loader.construct_document(root), root)
    except yaml.MarkedYAMLError as why:
        mark = why.problem_mark or why.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        what = " ".join(f"{why.problem or why.context}".split())
        raise ProfileError(f"{where}: not YAML: {what}") from None
    except RecursionError:
        raise ProfileError(f"{name}: nested too deep for a traffic profile") from None
    except (yaml.YAMLError, ValueError, OverflowError) as why:
        raise ProfileError(f"{name}: not YAML: {' '.join(str(why).split())[:200]}") from None
    finally:
        loader.dispose()


def _refuse_duplicates(root: yaml.Node, name: str) -> None:
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            first: dict[Any, int] = {}
            for key, value in node.value:
                line = key.start_mark.line + 1
                if isinstance(key, yaml.ScalarNode) and key.value in first:
                    earlier = first[key.value]
                    raise ProfileError(
                        f"{name}:{line}: the key {key.value!r} is given twice (also on line {earlier}); keep one"
                    )
                if isinstance(key, yaml.ScalarNode):
                    first[key.value] = line
                waiting.append(value)


class _Walk:
    """Counts what the text expands to and refuses keys without a value: an unfinished line is no default."""

    def __init__(self, name: str, document: Document) -> None:
        self._name, self._document, self._left = name, document, _MOST_NODES

    def visit(self, data: Any, path: tuple[str | int, ...]) -> None:
        self._left -= 1
        if self._left < 0 or len(path) > _MOST_DEPTH:
            raise ProfileError(
                f"{self._name}: expands to more than a traffic profile needs (aliases, nesting)"
            )
        if data is None:
            line = self._document.line(path)
            where = f"{self._name}:{line}" if line else self._name
            raise ProfileError(f"{where}: {show_path(path)}: has no value; give one or delete the line")
        if isinstance(data, str) and lone_surrogate(data) is not None:
            raise ProfileError(
                f"{self._name}: {show_path(path)}: {show_value(data)} holds half a character, which has no UTF-8 form"
            )
        if isinstance(data, dict):
            for key, value in data.items():
                self.visit(value, (*path, str(key)))
        elif isinstance(data, list):
            for index, value in enumerate(data):
                self.visit(value, (*path, index))
