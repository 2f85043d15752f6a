"""What every part of a profile has in common: strict, frozen, no unknown keys, quantities with units.

It must not know any particular key.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from loadgen.traffic.words import show_value
from loadgen.units import parse_duration, parse_rate

_LONGEST_NS = 31 * 24 * 3600 * 10**9
_LONGEST_TRACE_NS = 87_600 * 3600 * 10**9  # what was recorded may have lasted longer than what is sent
_FASTEST_PER_S = 1e9
_Item = TypeVar("_Item")


class FaultsError(ValueError):
    """Faults that only a whole shows: each with the path, from there, of the key to change."""

    def __init__(self, *faults: tuple[tuple[str | int, ...], str]) -> None:
        super().__init__("; ".join(text for _, text in faults))
        self.faults = faults


class Part(BaseModel):
    """A mapping of a profile."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Written(Part):
    """A part that is a file of its own."""

    _text: str = PrivateAttr("")
    _folder: Path = PrivateAttr(Path())

    @property
    def text(self) -> str:
        """The text it was read from."""
        return self._text

    @property
    def folder(self) -> Path:
        """What the files it names are relative to."""
        return self._folder

    @property
    def sha256(self) -> str:
        """Of the text, in UTF-8."""
        return hashlib.sha256(self._text.encode()).hexdigest()


def _text(value: Any, example: str) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"{value!r} has no unit; write e.g. {example}")  # noqa: TRY004 - pydantic's way
    if not isinstance(value, str):
        raise ValueError(f"{show_value(value)} where {example} or the like is needed")  # noqa: TRY004
    if value.lstrip().startswith("-"):
        raise ValueError(f"{show_value(value)} is negative; write e.g. {example}")
    return value


def _trace_time(value: Any) -> int:
    ns = parse_duration(_text(value, "10m"))
    if ns > _LONGEST_TRACE_NS:
        raise ValueError(f"{show_value(value)} is longer than 10 years (87600h)")
    return ns


def _duration(value: Any) -> int:
    ns = parse_duration(_text(value, "250ms"))
    if ns > _LONGEST_NS:
        raise ValueError(f"{show_value(value)} is longer than 31 days (744h)")
    return ns


def _positive_duration(value: Any) -> int:
    if (ns := _duration(value)) == 0:
        raise ValueError(f"{show_value(value)} is no time at all; allowed: more than 0, e.g. 30s")
    return ns


def _rate(value: Any) -> float:
    per_s = parse_rate(_text(value, "100/s"))
    if per_s > _FASTEST_PER_S:
        raise ValueError(f"{show_value(value)} is more than 1e9/s")
    return per_s


def printable(value: str) -> str:
    if not value.isprintable() or value != value.strip():
        raise ValueError(f"{show_value(value)} has spaces at an end or characters that cannot be printed")
    return value


def as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


DurationNs = Annotated[int, BeforeValidator(_positive_duration)]
DurationOrZeroNs = Annotated[int, BeforeValidator(_duration)]
TraceTimeNs = Annotated[int, BeforeValidator(_trace_time)]
RatePerS = Annotated[float, BeforeValidator(_rate)]
Name = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(printable)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Many = Annotated[tuple[_Item, ...], BeforeValidator(as_tuple), Field(min_length=1, max_length=1000)]


def exactly_one(part: Part, keys: Sequence[str]) -> str:
    """The one of these keys that is given; ValueError when none or several are."""
    given = [key for key in keys if getattr(part, key) is not None]
    if len(given) == 1:
        return given[0]
    said = "none" if not given else " and ".join(given)
    raise ValueError(f"needs exactly one of {', '.join(keys)}; given: {said}")
