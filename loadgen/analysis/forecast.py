"""How much load is to come: a number, a rate curve, the phases of a profile, or a recorded trace.

The peak is the largest mean rate over any stretch of a given length (`window_ns`), wherever it begins: of a curve its
expected arrivals, of a trace the requests counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum, auto
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from loadgen.records import LoadgenError
from loadgen.schedule import RateCurve, rate_curve
from loadgen.units import UnitError, parse_rate, show_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loadgen.traffic.phases import Phase
    from loadgen.traffic.trace import Trace

_MOST = 1e9  # of any load
_YAML = (".yaml", ".yml", ".json")
_ALLOWED = 'allowed: a rate ("900/s"), a range ("800/s to 1000/s"), users ("40 users"), a profile, a rate curve or a trace'


class Unit(StrEnum):
    """Of a load."""

    RATE = "requests/s"
    USERS = "users"


class Source(StrEnum):
    """What a forecast was made of."""

    NUMBER = auto()
    CURVE = auto()
    TRACE = auto()


@dataclass(frozen=True, slots=True)
class Forecast:
    """The load to be served, in `unit`.

    `low` and `high` bound the peak, `mean_low` and `mean_high` the mean; all are equal where one number is known.
    `window_ns`: the stretch that the peak is the mean of; None for a number.  `span_ns`: how long the curve or trace
    is.  `at_peak`: requests counted in that stretch of a trace.
    """

    text: str
    source: Source
    unit: Unit
    low: float
    high: float
    mean_low: float
    mean_high: float
    window_ns: int | None = None
    span_ns: int | None = None
    at_peak: int | None = None


@dataclass(frozen=True, slots=True)
class _Stretch:
    """One phase: the most requests in a window, that window, all requests, and how long it lasts."""

    most: float
    window_ns: int
    total: float
    span_ns: int
    source: Source

    @property
    def peak_per_s(self) -> float:
        return self.most * 1e9 / self.window_ns


def parse_load(text: str, what: str) -> tuple[float, Unit]:
    """Reads "900/s" or "40 users".  Raises LoadgenError, which begins with `what`."""
    users = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*users?\s*", text)
    if users is not None:
        value, unit = float(users[1]), Unit.USERS
    else:
        try:
            value, unit = parse_rate(text), Unit.RATE
        except UnitError as why:
            raise LoadgenError(f"{what}: {why}; or a number of users") from None
    if not 0 < value <= _MOST:
        raise LoadgenError(f"{what} {text}: allowed: above 0, at most {_MOST:g}")
    return value, unit


def read_forecast(text: str, window_ns: int, trace_keys: str = "{}") -> Forecast:
    """A forecast from the text of an option, which is a number, a range or the name of a file.

    `window_ns`: see Forecast; `trace_keys`: the keys of a trace as a profile has them, in YAML.
    Raises LoadgenError where it is neither, or the file has no rate.
    """
    path = Path(text)
    if path.is_file():
        phases = (
            [_trace(path, trace_keys, window_ns)] if path.suffix not in _YAML else _phases(path, window_ns)
        )
        return _joined(text, phases)
    ends = re.split(r"\s+to\s+", text.strip())
    if len(ends) > 2 or not re.match(r"\s*\d", text):  # noqa: PLR2004 - a range has two ends
        raise LoadgenError(f"{text}: neither a load nor a file that is there; {_ALLOWED}")
    (low, unit), (high, other) = (parse_load(end, "forecast") for end in (ends[0], ends[-1]))
    if unit is not other or low > high:
        raise LoadgenError(
            f"forecast {text}: allowed: a range of one unit, the lower end first, e.g. 800/s to 1000/s"
        )
    return Forecast(text, Source.NUMBER, unit, low, high, low, high)


def curve_peak(curve: RateCurve, window_ns: int) -> float:
    """The most arrivals that a curve expects in any stretch of this length; of a shorter curve, all.

    Between the moments at which either end of the stretch crosses a knot the count is a quadratic of its beginning, so
    three values of it give its top exactly.
    """
    end = float(curve.at_ns[-1])
    if window_ns >= end:
        return curve.total
    starts = np.concatenate([curve.at_ns, curve.at_ns - window_ns, [0.0, end - window_ns]])
    starts = np.unique(starts[(starts >= 0) & (starts <= end - window_ns)])

    def count(at: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return curve.counted(at + window_ns) - curve.counted(at)

    most = float(count(starts).max())
    left, right = starts[:-1], starts[1:]
    a, b, c = count(left), count((left + right) / 2), count(right)
    bend = a - 2 * b + c
    inside = (bend < 0) & (np.abs(a - c) < -2 * bend)  # the top lies between the two
    if inside.any():
        a, b, c, bend = a[inside], b[inside], c[inside], bend[inside]
        most = max(most, float((b - (a - c) ** 2 / (8 * bend)).max()))
    return most


def trace_peak(due_ns: npt.NDArray[np.int64], window_ns: int) -> int:
    """The most rows due in any half-open stretch of this length; `due_ns` ascends."""
    return int((np.searchsorted(due_ns, due_ns + window_ns, side="left") - np.arange(due_ns.size)).max())


def _joined(text: str, phases: Sequence[_Stretch]) -> Forecast:
    top = max(phases, key=lambda one: one.peak_per_s)
    span = sum(one.span_ns for one in phases)
    mean = sum(one.total for one in phases) * 1e9 / span
    return Forecast(
        text=text,
        source=top.source,
        unit=Unit.RATE,
        low=top.peak_per_s,
        high=top.peak_per_s,
        mean_low=mean,
        mean_high=mean,
        window_ns=top.window_ns,
        span_ns=span,
        at_peak=round(top.most) if top.source is Source.TRACE else None,
    )


def _curve(segments: RateCurve, window_ns: int) -> _Stretch:
    span = int(segments.at_ns[-1])
    window = min(window_ns, span)
    return _Stretch(curve_peak(segments, window), window, segments.total, span, Source.CURVE)


def _trace(path: Path, keys: str, window_ns: int) -> _Stretch:
    from loadgen.traffic.trace import parse_trace

    return _rows(parse_trace(str(path.absolute()), keys, "--trace-keys"), Path(), window_ns)


def _rows(trace: Trace, folder: Path, window_ns: int) -> _Stretch:
    from loadgen.traffic.traces.read import read_trace

    rows = read_trace(trace, folder)
    if rows.due_ns is None:
        raise LoadgenError(f"{trace.file}: its rows have no times, so they have no rate; {_ALLOWED}")
    window = min(window_ns, rows.duration_ns)
    return _Stretch(trace_peak(rows.due_ns, window), window, rows.due_ns.size, rows.duration_ns, Source.TRACE)


def _phases(path: Path, window_ns: int) -> list[_Stretch]:
    """Of a profile its measured phases; of a file that holds only `rate:` that curve."""
    from loadgen.traffic.document import read_document, read_text
    from loadgen.traffic.profile import parse_profile

    text = read_text(path)
    document = read_document(text, str(path))
    if isinstance(document.data, dict) and document.data.keys() <= {"rate", "arrivals"} and document.data:
        return [_curve(_rate_file(path), window_ns)]
    profile = parse_profile(text, str(path), path.parent)
    measured = [phase for phase in profile.phases if not phase.warmup]
    if not measured:
        raise LoadgenError(f"{path}: has no measured phase to take a rate from")
    return [_of_phase(phase, path, window_ns) for phase in measured]


def _of_phase(phase: Phase, path: Path, window_ns: int) -> _Stretch:
    if phase.open is not None:
        return _curve(rate_curve(phase.open.rate), window_ns)
    if phase.trace is None or phase.closed is not None:
        raise LoadgenError(
            f"{path}: phase {phase.name} is a closed loop: its rate is what the server makes of it, not a forecast; "
            f'name the load instead, e.g. "900/s" or "40 users"'
        )
    return _rows(phase.trace, path.parent, window_ns)


def _rate_file(path: Path) -> RateCurve:
    from pydantic import ValidationError

    from loadgen.traffic.document import ProfileError, read_document, read_text
    from loadgen.traffic.phases import Open
    from loadgen.traffic.problems import problems

    document = read_document(read_text(path, "rate curve"), str(path))
    try:
        return rate_curve(Open.model_validate(document.data).rate)
    except ValidationError as error:
        raise ProfileError(*problems(error, Open, document, str(path))) from None


def window_words(forecast: Forecast) -> str:
    """The stretch of a peak, e.g. 60 s; "" of a number."""
    return "" if forecast.window_ns is None else show_ns(forecast.window_ns)
