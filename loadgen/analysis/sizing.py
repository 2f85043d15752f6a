"""How many servers serve a forecast: from the capacity of one, or of several counts, each with its interval.

`headroom` is the share of the capacity that stays free at the peak, `spare` the servers that may be lost: the fewest N
are wanted for which the capacity of N - spare servers, less the headroom, is the forecast's peak or more.

* The recommendation is for the low end of the capacity's interval and the high end of the forecast's.
* The interval of the number takes both ends together (interval arithmetic), so it holds the right number at least as
  often as the capacity's own interval holds the capacity.  The low end of a 95 % interval lies above the truth in 2.5 %
  of searches: so often the recommendation is too small.
* Several counts, at least `scaling.LEAST_COUNTS` of them: the Universal Scalability Law.  Fewer: capacity is taken to be
  proportional to the count, from the largest count measured.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, field
from enum import StrEnum, auto
from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.analysis import scaling
from loadgen.analysis.capacity import Answer
from loadgen.analysis.capacity_result import RESULT
from loadgen.analysis.forecast import Forecast, Source, Unit, parse_load
from loadgen.records import LoadgenError, NotMeasuredError
from loadgen.runread import read_run
from loadgen.triton.facts import instance_count
from loadgen.units import finite_only

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_FEW = 400  # requests in the fullest stretch of a trace: chance alone moves it by 10 %
_FAR = 2  # times the largest count measured
_LEAST_LOAD = 1e-6  # of a capacity: less is none
_MILLION_HOURS = 1e6 / 3600
_LOAD = r"\d+(?:\.\d+)?\s*(?:/\s*[smh]|users?)"


class Counted(StrEnum):
    """What a count is of."""

    REPLICAS = auto()
    INSTANCES = auto()  # of the model in one server, as its configuration has them


class Law(StrEnum):
    """How capacity was taken to grow with the count."""

    PROPORTIONAL = auto()
    USL = "universal scalability law"


class Caveat(StrEnum):
    """What to keep in mind."""

    PROPORTIONAL = auto()  # load balancing loses something that was not measured
    FAR_BEYOND = auto()  # the number is more than twice what was measured
    MISFIT = auto()  # the measured capacities do not follow the law
    NO_UNCERTAINTY = auto()  # a capacity without an interval
    LOWER_BOUND = auto()  # the capacity is at least so much; fewer may do
    UNDECIDED = auto()  # the search was not finished
    SHORT_FORECAST = auto()  # it is shorter than the stretch whose peak was wanted
    FEW_AT_PEAK = auto()  # the fullest stretch of a trace has few requests
    OTHER_OBJECTIVES = auto()  # capacities of different objectives
    UNREACHABLE = auto()  # no number is sure to be enough


@dataclass(frozen=True, slots=True)
class Capacity:
    """A measured capacity of `count` servers; an end of its 95 % interval that is not known is None."""

    source: str
    unit: Unit
    count: int
    value: float | None
    low: float | None
    high: float | None
    answer: Answer = Answer.FOUND
    objectives: tuple[str, ...] = ()
    target: str | None = None
    stated: bool = False  # on the command line


@dataclass(frozen=True, slots=True)
class Price:
    """Of one server an hour, in `currency` ("" where none was named)."""

    per_hour: float
    currency: str = ""


@dataclass(frozen=True, slots=True)
class Between:
    """A number with the ends of its interval; None: not known, or no number is enough."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Cost:
    """Of the recommended number of servers: an hour, and a million requests at the mean rate of the forecast.

    The interval is that of the forecast's mean.  `per_million_at_peak`: if the peak lasted.
    """

    currency: str
    per_hour: float
    per_million: Between | None
    per_million_at_peak: Between | None


@dataclass(frozen=True, slots=True)
class Sizing:
    """`servers`: how many are needed by the best estimate, with its interval; `recommended` is the upper end.

    `each`: the capacity of one, of the law's first server; `used_at_peak`: the share of the capacity's low end that the
    peak takes when `spare` of the recommended servers are lost.
    """

    forecast: Forecast
    capacities: tuple[Capacity, ...]
    counted: Counted
    law: Law
    headroom: float
    spare: int
    each: Between
    servers: Between
    recommended: int | None
    used_at_peak: float | None
    cost: Cost | None
    caveats: tuple[Caveat, ...]
    usl: scaling.Scaling | None = field(default=None, repr=False)

    def json(self) -> dict[str, Any]:
        """For scripts."""
        usl = self.usl
        document = {
            "format": 1,
            "forecast": asdict(self.forecast),
            "capacities": [asdict(one) for one in self.capacities],
            "counted": self.counted,
            "law": self.law,
            "headroom": self.headroom,
            "spare": self.spare,
            "capacity_of_one": asdict(self.each),
            "servers": asdict(self.servers),
            "recommended": self.recommended,
            "used_at_peak": self.used_at_peak,
            "cost": None if self.cost is None else asdict(self.cost),
            "caveats": list(self.caveats),
            "usl": usl
            and {
                "rate": asdict(usl.rate),
                "contention": asdict(usl.contention),
                "coherency": asdict(usl.coherency),
                "best": usl.best,
                "p_value": usl.p_value,
            },
        }
        checked: dict[str, Any] = finite_only(document)
        return checked


def read_capacity_file(path: Path, count: int | None = 1) -> Capacity:
    """The answer of a search: its folder or its result.json.

    `count` None takes the instances of the model that its server's configuration names.
    Raises LoadgenError where it is no result or names no instances, NotMeasuredError where it has no lower end.
    """
    file = path / RESULT if path.is_dir() else path
    try:
        result = finite_only(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        hint = f"; loadgen capacity show {path} writes it" if path.is_dir() else ""
        raise LoadgenError(
            f"{file}: there is no such file; name a search of loadgen capacity{hint}"
        ) from None
    except (OSError, ValueError) as why:
        raise LoadgenError(f"{file}: cannot be read: {why}") from None
    try:
        capacity = result["capacity"]
        unit, answer = Unit(capacity["unit"]), Answer(result["answer"])
        ends = [None if capacity[key] is None else float(capacity[key]) for key in ("value", "low", "high")]
        objectives, target = tuple(map(str, result["objectives"])), result.get("target")
        folders = [file.parent / str(probe["folder"]) for probe in result.get("probes", [])]
    except (KeyError, TypeError, ValueError):
        raise LoadgenError(f"{file}: no result of loadgen capacity (capacity, objectives, answer)") from None
    value, low, high = ends
    if low is None or low < _LEAST_LOAD:
        raise NotMeasuredError(
            f"{file}: the search has no lower end of its capacity ({answer}), so no number of servers is sure; loadgen capacity resume goes on"
        )
    count = count or _instances(folders)
    if count is None:
        raise LoadgenError(
            f"{path}: its probes do not tell one number of instances; write it in front, e.g. 2:{path}"
        )
    return Capacity(str(path), unit, count, value, low, high, answer, objectives, target)


def parse_capacity(text: str, count: int = 1) -> Capacity:
    """Reads "212/s (205 to 219)", "212/s" or "14 users (13 to 15)".  Raises LoadgenError."""
    whole = re.fullmatch(rf"\s*({_LOAD})\s*(?:\(\s*(.+?)\s+to\s+(.+?)\s*\))?\s*", text)
    if whole is None:
        raise LoadgenError(
            f'capacity {text!r}: cannot be read; allowed: "212/s", "212/s (205 to 219)", "14 users"'
        )
    value, unit = parse_load(whole[1], "capacity")
    low = high = value
    if whole[2] is not None:
        suffix = re.sub(r"^[\d.\s]+", "", whole[1])
        low, high = (
            parse_load(
                end if re.search(r"[a-z/]", end) else f"{end}{'' if suffix[0] == '/' else ' '}{suffix}",
                "capacity",
            )[0]
            for end in (whole[2], whole[3])
        )
    if not low <= value <= high:
        raise LoadgenError(
            f"capacity {text!r}: allowed: an interval that holds the capacity, e.g. 212/s (205 to 219)"
        )
    return Capacity(text, unit, count, value, low, high, stated=True)


def size(
    capacities: Sequence[Capacity],
    forecast: Forecast,
    *,
    headroom: float = 0.0,
    spare: int = 0,
    price: Price | None = None,
    counted: Counted = Counted.REPLICAS,
) -> Sizing:
    """How many servers; `headroom` is a share of 1, `spare` a number of servers.

    Raises LoadgenError where capacities and forecast have different units, or two capacities have one count.
    """
    _check(capacities, forecast, headroom, spare)
    low_load, high_load = (end / (1 - headroom) for end in (forecast.low, forecast.high))
    bounded = [
        one for one in capacities if one.value is not None and one.low is not None and one.high is not None
    ]
    usl = None
    if len(bounded) >= scaling.LEAST_COUNTS:
        usl = scaling.fit([scaling.Point(c.count, c.value or 0, c.low or 0, c.high or 0) for c in bounded])
        each = Between(usl.rate.value, usl.rate.low, usl.rate.high)
        servers = _by_law(usl, low_load, high_load, spare)
    else:
        base = max(capacities, key=lambda one: one.count)
        each = _each(base)
        servers = _proportional(each, low_load, high_load, spare)
    recommended = None if servers.high is None else int(servers.high)
    used = None
    if recommended is not None:
        lowest = _low_capacity(usl, each, recommended - spare)
        used = None if lowest is None else forecast.high / lowest
    return Sizing(
        forecast=forecast,
        capacities=tuple(capacities),
        counted=counted,
        law=Law.PROPORTIONAL if usl is None else Law.USL,
        headroom=headroom,
        spare=spare,
        each=each,
        servers=servers,
        recommended=recommended,
        used_at_peak=used,
        cost=None if price is None or recommended is None else _cost(price, recommended, forecast),
        caveats=tuple(_caveats(capacities, forecast, usl, recommended, spare)),
        usl=usl,
    )


def _check(capacities: Sequence[Capacity], forecast: Forecast, headroom: float, spare: int) -> None:
    if not capacities:
        raise LoadgenError(
            "no capacity is given; name a search of loadgen capacity, or --capacity '212/s (205 to 219)'"
        )
    if not 0 <= headroom < 1:
        raise LoadgenError(f"headroom {100 * headroom:g}%: allowed: 0% to less than 100%")
    if spare < 0:
        raise LoadgenError(f"spare {spare}: allowed: 0 or more")
    counts = [one.count for one in capacities]
    for one in capacities:
        if one.unit is not forecast.unit:
            raise LoadgenError(
                f"{one.source}: a capacity in {one.unit}, the forecast is in {forecast.unit}; allowed: both in the same"
            )
        if counts.count(one.count) > 1:
            raise LoadgenError(
                f"{one.source}: a second capacity of {one.count}; allowed: one of each count, e.g. 1:FOLDER 2:FOLDER"
            )


def _each(base: Capacity) -> Between:
    value, low, high = (
        None if end is None else end / base.count for end in (base.value, base.low, base.high)
    )
    return Between(low if value is None else value, low, high)


def _proportional(each: Between, low_load: float, high_load: float, spare: int) -> Between:
    def count(load: float, capacity: float | None) -> float | None:
        return None if not capacity else max(1, math.ceil(load / capacity - 1e-9)) + spare

    middle = (low_load + high_load) / 2
    return Between(count(middle, each.value), count(low_load, each.high), count(high_load, each.low))


def _by_law(usl: scaling.Scaling, low_load: float, high_load: float, spare: int) -> Between:
    tail = (1 - scaling.LEVEL) / 2
    law = np.array([[usl.rate.value, usl.contention.value, usl.coherency.value]])
    value = float(scaling.needed((low_load + high_load) / 2, law)[0])
    low = float(np.quantile(scaling.needed(low_load, usl.draws), tail, method="lower"))
    high = float(np.quantile(scaling.needed(high_load, usl.draws), 1 - tail, method="higher"))
    ends = (value, min(low, value), max(high, value))
    return Between(*(end + spare if math.isfinite(end) else None for end in ends))


def _low_capacity(usl: scaling.Scaling | None, each: Between, count: int) -> float | None:
    """The low end of the capacity of so many servers."""
    if usl is not None:
        return float(np.quantile(scaling.throughput(count, usl.draws), (1 - scaling.LEVEL) / 2))
    return None if each.low is None else each.low * count


def _cost(price: Price, recommended: int, forecast: Forecast) -> Cost:
    per_hour = recommended * price.per_hour

    def million(low: float, high: float) -> Between | None:
        if forecast.unit is not Unit.RATE or low <= 0:
            return None
        return Between(*(per_hour * _MILLION_HOURS / rate for rate in ((low + high) / 2, high, low)))

    return Cost(
        price.currency,
        per_hour,
        million(forecast.mean_low, forecast.mean_high),
        million(forecast.low, forecast.high),
    )


def _caveats(
    capacities: Sequence[Capacity],
    forecast: Forecast,
    usl: scaling.Scaling | None,
    recommended: int | None,
    spare: int,
) -> list[Caveat]:
    largest = max(one.count for one in capacities)
    serving = None if recommended is None else recommended - spare
    every = {
        Caveat.UNREACHABLE: recommended is None,
        Caveat.PROPORTIONAL: usl is None and serving is not None and serving > largest,
        Caveat.FAR_BEYOND: usl is not None and serving is not None and serving > _FAR * largest,
        Caveat.MISFIT: usl is not None and not usl.fits,
        Caveat.NO_UNCERTAINTY: any(one.low == one.value == one.high for one in capacities),
        Caveat.LOWER_BOUND: any(one.answer == Answer.AT_LEAST for one in capacities),
        Caveat.UNDECIDED: any(one.answer in {Answer.UNDECIDED, Answer.CLIENT} for one in capacities),
        Caveat.SHORT_FORECAST: forecast.window_ns is not None and forecast.window_ns == forecast.span_ns,
        Caveat.FEW_AT_PEAK: forecast.source is Source.TRACE and (forecast.at_peak or 0) < _FEW,
        Caveat.OTHER_OBJECTIVES: len({one.objectives for one in capacities if not one.stated}) > 1,
    }
    return [caveat for caveat, holds in every.items() if holds]


def _instances(folders: Sequence[Path]) -> int | None:
    """The instances of the models that the first probe asked for, where all of them have the same number."""
    try:
        info = read_run(folders[0]).info if folders else {}
    except LoadgenError:
        return None
    models = (info.get("server") or {}).get("models") or {}
    counts = {instance_count(facts.get("config")) for facts in models.values()}
    return counts.pop() if len(counts) == 1 else None
