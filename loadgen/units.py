"""Units at the doors: "250ms" to nanoseconds and back, "64KiB" to bytes, "200/s" to a rate.

Inside the package a quantity carries its unit in its name (`_ns`, `_bytes`, `_per_s`); this module is
the only place where a unit is read from, or written as, text.  It must not know what a quantity is for.
"""

import math
import re
from typing import Any

_NS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_PER_NS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"\s*(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*"


class UnitError(ValueError):
    """A text that is not a quantity of the asked unit; the message says what is allowed."""


def _split(text: str, units: dict[str, int], what: str, example: str) -> float:
    match = re.fullmatch(_NUMBER + r"([A-Za-zµμ]+)\s*", text)
    if match is None or match[2] not in units:
        allowed = ", ".join(unit for unit in units if unit.isascii())
        raise UnitError(f"{text!r} is not a {what}: write a number and one of {allowed}, e.g. {example}")
    return _finite(float(match[1]) * units[match[2]], text)


def _finite(value: float, text: str) -> float:
    if not math.isfinite(value):
        raise UnitError(f"{text!r} is beyond any use")
    return value


def parse_duration(text: str) -> int:
    """Nanoseconds of a text such as "250ms", "1.5s", "2m".  Never negative; raises UnitError."""
    return round(_split(str(text), _NS, "duration", '"250ms"'))


def parse_bytes(text: str) -> int:
    """Bytes of a text such as "64KiB" or "1MB"; raises UnitError."""
    return round(_split(str(text), _BYTES, "size", '"64KiB"'))


def parse_rate(text: str) -> float:
    """Events per second of a text such as "200/s", "90/m"; raises UnitError."""
    match = re.fullmatch(_NUMBER + r"/\s*(s|m|h)\s*", str(text))
    if match is None:
        raise UnitError(f'{text!r} is not a rate: write a number per s, m or h, e.g. "200/s"')
    return _finite(float(match[1]) / _PER_NS[match[2]], text)


def show_ns(ns: float) -> str:
    """Three significant digits with a unit a person reads: 950 ns, 12.3 us, 4.56 ms, 1.23 s."""
    size = abs(ns)
    for unit, scale in (("ns", 1), ("us", 10**3), ("ms", 10**6)):
        if size / scale < 999.5:  # noqa: PLR2004 - rounds to three digits
            return f"{ns / scale:.3g} {unit}"
    return f"{ns / 1e9:.3g} s" if size < 999.5e9 else f"{ns / 1e9:.0f} s"  # noqa: PLR2004


def show_bytes(n: float) -> str:
    """Bytes with a binary unit: 512 B, 64 KiB, 1.5 MiB."""
    for unit in ("B", "KiB", "MiB"):
        if abs(n) < 1024:  # noqa: PLR2004 - the binary step
            return f"{n:.4g} {unit}"
        n /= 1024
    return f"{n:.4g} GiB"


def finite_only(value: Any) -> Any:
    """The same as JSON can say it: a float that is no number is None, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite_only(one) for key, one in value.items()}
    return [finite_only(one) for one in value] if isinstance(value, list | tuple) else value
