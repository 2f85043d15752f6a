"""Frozen dataclasses to plain JSON values and back, by their type hints: strings, numbers, enums, tuples, maps.

It must not know what the classes mean.  A trailing underscore of a field (`global_`) is not part of its name.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from loadgen.records import LoadgenError

T = TypeVar("T")


class FormError(LoadgenError):
    """A value that does not have the form of its class; the text names the field."""


@functools.cache
def fields(kind: Any) -> Mapping[str, tuple[str, Any, Any]]:
    """(attribute, type, default) of a dataclass's fields by the name they are written under."""
    hints = typing.get_type_hints(kind)
    return {
        f.name.removesuffix("_"): (
            f.name,
            hints[f.name],
            f.default if f.default_factory is dataclasses.MISSING else f.default_factory(),
        )
        for f in dataclasses.fields(kind)
    }


def fields_of(value: Any) -> Mapping[str, tuple[str, Any, Any]]:
    """`fields` of a dataclass's instance."""
    kind: Any = type(value)
    return fields(kind)


def inner(hint: Any) -> Any:
    """The class of `X | None`, else the hint itself."""
    if isinstance(hint, types.UnionType):
        return next(arm for arm in typing.get_args(hint) if arm is not types.NoneType)
    return hint


def read(kind: type[T], value: Any, unknown: list[str] | None = None) -> T:
    """A `kind` of its JSON form.  What has no field is added to `unknown`, or refused when that is None."""
    found: T = _message(kind, value, "", unknown)
    return found


def write(value: Any) -> dict[str, Any]:
    """The JSON form of a dataclass, without what stands at its default."""
    return {
        name: _plain(getattr(value, attribute))
        for name, (attribute, _, default) in fields_of(value).items()
        if getattr(value, attribute) != default
    }


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return write(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value.value if isinstance(value, StrEnum) else value


def _message(kind: Any, value: Any, where: str, unknown: list[str] | None) -> Any:
    if not isinstance(value, Mapping):
        raise FormError(f"{where or 'the configuration'}: {value!r} is no object")
    known = fields(kind)
    given = {}
    for name, item in value.items():
        path = f"{where}.{name}" if where else name
        if name in known:
            attribute, hint, _ = known[name]
            given[attribute] = _value(inner(hint), item, path, unknown)
        elif unknown is not None:
            unknown.append(path)
        else:
            raise FormError(f"{path} is no field; {where or 'there'} are {', '.join(known)}")
    return kind(**given)


def _value(hint: Any, value: Any, where: str, unknown: list[str] | None) -> Any:
    origin = typing.get_origin(hint)
    if origin is tuple:
        item = typing.get_args(hint)[0]
        if not isinstance(value, list | tuple):
            raise FormError(f"{where}: {value!r} is no list")
        return tuple(_value(item, v, f"{where}[{i}]", unknown) for i, v in enumerate(value))
    if origin is not None:  # a Mapping
        keys, item = typing.get_args(hint)
        if not isinstance(value, Mapping):
            raise FormError(f"{where}: {value!r} is no object")
        return {_scalar(keys, k, where): _value(item, v, f"{where}[{k}]", unknown) for k, v in value.items()}
    if dataclasses.is_dataclass(hint):
        return _message(hint, value, where, unknown)
    return _scalar(hint, value, where)


def _scalar(kind: Any, value: Any, where: str) -> Any:
    fits = {
        bool: isinstance(value, bool),
        str: isinstance(value, str),
        int: isinstance(value, int | str) and not isinstance(value, bool),
        float: isinstance(value, int | float | str) and not isinstance(value, bool),
    }
    try:
        if fits.get(kind, isinstance(value, str)):
            return kind(value)
    except ValueError:
        pass
    allowed = f"; allowed: {', '.join(kind)}" if issubclass(kind, StrEnum) else f"; {kind.__name__} is wanted"
    raise FormError(f"{where}: {value!r} is not allowed{allowed}")
