"""config.pbtxt: a ModelConfig as text a person can read, and back through Triton's own message definition.

Reading is protobuf's text_format; what is written is read back and compared before anyone sees it.
It must not know where the file is or how the model was made.
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from loadgen.records import LoadgenError
from loadgen.triton import forms
from loadgen.triton.config import ModelConfig

_LINE = 100  # a message whose fields fit into so many characters is written on one line
_APART = ("input", "output", "instance_group")  # begun after an empty line
_TEMPLATE = re.compile(r"\$\{\w+\}|\{\{ ?\w+ ?\}\}|(?<=TYPE_)#\w+|#\w+(?=[,\]])")


class ConfigError(LoadgenError):
    """A text that is no Triton model configuration, or one that does not read back as it was meant."""


def parse(text: str, name: str = "config.pbtxt") -> ModelConfig:
    """The configuration in a text; `name` is how an error calls the file.

    Raises ConfigError with the line and column of what cannot be read.
    """
    from google.protobuf import json_format, text_format
    from tritonclient.grpc import model_config_pb2

    message = model_config_pb2.ModelConfig()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as why:
        raise ConfigError(_refusal(text, name, why)) from None
    try:
        return ModelConfig.from_json(json_format.MessageToDict(message, preserving_proto_field_name=True))
    except forms.FormError as why:
        raise ConfigError(f"{name}: {why}") from None


def render(config: ModelConfig) -> str:
    """The text of a configuration.  Raises ConfigError if it would not read back as what was given."""
    text = "\n".join(_lines(config)) + "\n"
    found = parse(text)
    if found != config:
        was, now = config.to_json(), found.to_json()
        key = next(key for key in {**was, **now} if was.get(key) != now.get(key))
        raise ConfigError(f"config.pbtxt: {key} reads back as {now.get(key)!r}, meant was {was.get(key)!r}")
    return text


def _refusal(text: str, name: str, why: Any) -> str:
    line, column = why.GetLine(), why.GetColumn()
    if line is None:
        return f"{name} is not a Triton model configuration: {why}"
    said = re.sub(r"^\d+:\d+ : ", "", str(why))
    rows = text.split("\n")  # as protobuf counts them
    row = rows[line - 1].strip() if 0 < line <= len(rows) else ""
    said = said.removeprefix(f"'{rows[line - 1]}': ") if row else said
    blank = _TEMPLATE.search(row)
    hint = f"; {blank[0]} is a template's blank: fill it in first" if blank else ""
    return f"{name}, line {line}, column {column}: {said.rstrip('.')} (in {row!r}){hint}"


def _lines(value: Any) -> Iterator[str]:
    """A message's fields, one a line or block."""
    last = ""
    for name, (attribute, _, default) in forms.fields_of(value).items():
        found = getattr(value, attribute)
        if found == default:
            continue
        block = list(_field(name, found))
        if last and isinstance(value, ModelConfig) and (name in _APART or last in _APART):
            yield ""
        yield from block
        last = name


def _field(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _block(name, [f"key: {_scalar(key)}", *_field("value", item)])
    elif dataclasses.is_dataclass(value):
        yield from _block(name, list(_lines(value)))
    elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        for item in value:
            yield from _block(name, list(_lines(item)))
    elif isinstance(value, tuple):
        yield f"{name}: [ {', '.join(map(_scalar, value))} ]"
    else:
        yield f"{name}: {_scalar(value)}"


def _block(name: str, inside: list[str]) -> Iterator[str]:
    line = f"{name} {{ {' '.join(inside)} }}" if inside else f"{name} {{ }}"
    if len(line) <= _LINE:
        yield line
        return
    yield f"{name} {{"
    yield from (f"  {row}" if row else "" for row in inside)
    yield "}"


def _scalar(value: Any) -> str:
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _quoted(value)
    return repr(value)


def _quoted(text: str) -> str:
    r"""Octal escapes of UTF-8 for all but plain ASCII: the \u of JSON is UTF-16, that of protobuf is not."""
    plain = json.dumps(text)
    if text.isascii() and "\\u" not in plain:
        return plain
    return '"' + "".join(
        chr(b) if 32 <= b < 127 and chr(b) not in '"\\' else f"\\{b:03o}" for b in text.encode()  # noqa: PLR2004
    ) + '"'  # fmt: skip
