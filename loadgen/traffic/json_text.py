"""JSON of input files, read strictly: what Python's reader would lose or change silently is an error.

Python keeps the last of two equal keys, makes Infinity of 1e400, and rounds 9007199254740993.0.
"""

import json
from typing import Any

from loadgen.traffic.words import show_value

_EXACT = 2.0**53  # real numbers from here on may have been rounded
_DEEP = "nested too deep, or a number too long"


class JsonError(ValueError):
    """Text that is no JSON, or that says something twice or beyond what can be kept: one line of words."""


def parse_json(raw: bytes | str, *, exact: bool = False, finite: bool = False) -> Any:
    """The value of a JSON text.  Raises JsonError.

    `exact`: whole numbers written as real ones (1e18) come as int from 2^53 on.  `finite`: NaN and Infinity, which
    are no JSON, are refused.
    """
    text = raw if isinstance(raw, str) else decoded(raw)
    try:
        return json.loads(
            text,
            object_pairs_hook=unique,
            parse_float=_exact_number if exact else _number,
            parse_constant=_no_constant if finite else None,
        )
    except json.JSONDecodeError as why:
        at = f"line {why.lineno}, column {why.colno}" if "\n" in text else f"column {why.colno}"
        raise JsonError(f"not JSON: {why.msg} at {at}") from None
    except JsonError:
        raise
    except (ValueError, RecursionError):
        raise JsonError(f"not JSON that can be read: {_DEEP}") from None


def decoded(raw: bytes) -> str:
    """UTF-8 text.  Raises JsonError."""
    try:
        return raw.decode()
    except UnicodeDecodeError as why:
        raise JsonError(f"not UTF-8 (byte {why.start})") from None


def lone_surrogate(value: Any) -> str | None:
    r"""The first text in a JSON value that holds half a character ("\ud800"), which has no UTF-8 form."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value
        return None
    inner = [part for pair in value.items() for part in pair] if isinstance(value, dict) else value
    if not isinstance(inner, list):
        return None
    return next((found for part in inner if (found := lone_surrogate(part)) is not None), None)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `object_pairs_hook`: an object without equal keys.  Raises JsonError."""
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise JsonError(f"the key {show_value(twice)} is given twice in one object; keep one")
    return row


def _number(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise JsonError(f"the number {text[:40]} is beyond FP64; allowed: up to 1.8e308")
    return value


def _exact_number(text: str) -> int | float:
    value = _number(text)
    if abs(value) < _EXACT:
        return value
    from decimal import Decimal

    whole = Decimal(text)
    return int(whole) if whole == whole.to_integral_value() else value


def _no_constant(text: str) -> Any:
    raise JsonError(f"{text} is no JSON; allowed: numbers, or leave the key out")
