"""Says in one line each what a profile's keys lack: the path, the value, what is allowed, the near miss.

Turns pydantic's errors into our words.  It must not know any particular key.
"""

import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from loadgen.traffic.document import Document, show_path
from loadgen.traffic.parts import FaultsError
from loadgen.traffic.words import near, show_value


def problems(error: ValidationError, root: type[BaseModel], document: Document, name: str) -> list[str]:
    """One line an error, in the order of the text."""
    lines = []
    for item in error.errors(include_url=False):
        at = tuple(step for step in item["loc"] if step != "[key]")
        cause = (item.get("ctx") or {}).get("error")
        if isinstance(cause, FaultsError):
            said = [((*at, *path), text) for path, text in cause.faults]
        else:
            said = [(at, _say(item["type"], item["input"], item.get("ctx") or {}, item["msg"], root, at))]
        for path, text in said:
            line, key = document.line(path), show_path(path)
            where = f"{name}:{line}" if line else name
            lines.append((line or 0, f"{where}: {key}: {text}" if key else f"{where}: {text}"))
    return [text for _, text in sorted(lines, key=lambda pair: pair[0])]


def _say(
    kind: str,
    value: Any,
    ctx: dict[str, Any],
    fallback: str,
    root: type[BaseModel],
    path: Sequence[str | int],
) -> str:
    if kind == "value_error":
        return str(ctx["error"])
    if kind == "missing":
        return f"is missing; write e.g. {_example(root, path)}"
    if kind == "extra_forbidden":
        allowed = _keys(_model_at(root, path[:-1]))
        return f"unknown key{near(str(path[-1]), allowed)}; allowed: {', '.join(allowed)}"
    if kind in {"model_type", "model_attributes_type", "dict_type"}:
        keys = _keys(_model_at(root, path)) if kind != "dict_type" else []
        return f"{show_value(value)} where keys are needed" + (f": {', '.join(keys)}" if keys else "")
    if kind == "literal_error":
        allowed = [word.strip(" '") for word in ctx["expected"].replace(" or ", ", ").split(",")]
        return f"{show_value(value)}{near(str(value), allowed)} is not one of: {', '.join(allowed)}"
    plain = _PLAIN.get(kind)
    return plain(value, ctx) if plain else fallback


_PLAIN: dict[str, Callable[[Any, dict[str, Any]], str]] = {
    "int_type": lambda v, _: f"{show_value(v)} is not a whole number{_quoted(v)}",
    "int_from_float": lambda v, _: f"{show_value(v)} is not a whole number",
    "float_type": lambda v, _: f"{show_value(v)} is not a number{_quoted(v)}",
    "finite_number": lambda v, _: f"{show_value(v)} is not a finite number",
    "string_type": lambda v, _: f"{show_value(v)} is not text; put it in quotes",
    "bool_type": lambda v, _: f"{show_value(v)} is neither true nor false",
    "tuple_type": lambda v, _: f"{show_value(v)} where a list is needed",
    "too_short": lambda _, c: f"is empty; allowed: at least {c['min_length']}",
    "too_long": lambda _, c: f"has more than {c['max_length']} entries",
    "string_too_short": lambda _v, _c: "is empty; give it a text",
    "string_too_long": lambda v, c: f"{show_value(v)} is longer than {c['max_length']} characters",
    "greater_than": lambda v, c: f"{show_value(v)} is not allowed; allowed: more than {c['gt']:g}",
    "greater_than_equal": lambda v, c: f"{show_value(v)} is not allowed; allowed: {c['ge']:g} or more",
    "less_than": lambda v, c: f"{show_value(v)} is not allowed; allowed: less than {c['lt']:g}",
    "less_than_equal": lambda v, c: f"{show_value(v)} is not allowed; allowed: {c['le']} or less",
    "invalid_key": lambda _v, _c: "this key is not text; put it in quotes",
}


def _quoted(value: Any) -> str:
    """YAML 1.1 reads 1e3 and "5" as text; say how to write the number."""
    try:
        return f"; write {float(value):g} without quotes" if isinstance(value, str) else ""
    except ValueError:
        return ""


def _keys(model: type[BaseModel] | None) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()] if model else []


def _example(root: type[BaseModel], path: Sequence[str | int]) -> str:
    model, key = _model_at(root, path[:-1]), path[-1]
    for name, field in model.model_fields.items() if model else ():
        if (field.alias or name) == key and field.examples:
            return f"{key}: {field.examples[0]}"
    return f"{key}: …"


def _model_at(root: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel] | None:
    """The model whose keys stand at a path; follows fields, lists and mappings by their annotations."""
    at: Any = root
    for step in path:
        if isinstance(at, type) and issubclass(at, BaseModel):
            at = next((f.annotation for n, f in at.model_fields.items() if (f.alias or n) == step), None)
        else:  # a list's index or a mapping's key: on to what it holds
            held = [arg for arg in typing.get_args(at) if arg is not Ellipsis]
            at = held[-1] if held else None
        at = _bare(at)
    return at if isinstance(at, type) and issubclass(at, BaseModel) else None


def _bare(annotation: Any) -> Any:
    """Without Annotated and without None."""
    while True:
        origin = typing.get_origin(annotation)
        if origin is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif origin in (typing.Union, types.UnionType):
            annotation = next(arg for arg in typing.get_args(annotation) if arg is not type(None))
        else:
            return annotation
