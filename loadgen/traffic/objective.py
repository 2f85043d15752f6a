"""Objectives as text, `chat: latency p99 in phase peak < 250ms`, read into data that an analysis can judge."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loadgen.records import LoadgenError
from loadgen.traffic.words import near
from loadgen.units import UnitError, parse_duration, parse_rate

if TYPE_CHECKING:
    from pathlib import Path

STREAM_TIMES = ("ttft", "ttft from sent", "first content", "first content from sent", "tpot", "chunk gap")
TIMES = ("latency", "service", "lag", *STREAM_TIMES)
SHARES = ("failure rate", "rejection rate", "goodput")
RATES = ("requests/s", "items/s", "output tokens/s", "input tokens/s", "good requests/s", "good tokens/s")
SERVER_TIMES = ("server queue", "server compute")  # means of a request, by the server's counters
OF_MODELS = ("mean batch", *SERVER_TIMES)
STARTS = ("cold start live", "cold start ready", "cold start load", "cold start model ready")
RUN_TIMES = ("first request", *STARTS)
OF_RUNS = (*RUN_TIMES, "joules a request")  # one value a run: no phase has its own
DURATIONS = (*TIMES, *SERVER_TIMES, *RUN_TIMES)  # in ns
METRICS = (*TIMES, *SHARES, *RATES, *OF_MODELS, *OF_RUNS)
OPERATORS = ("<", "<=", ">", ">=")
_ALSO = {"request goodput": "goodput", "first content token": "first content"}
_QUALIFIERS = r"\s+(in all phases|in phase|at length|of model)(?=\s|$)"
_ALLOWED = (
    'allowed: "latency|service|lag pNN|mean|max < 250ms", the same of "ttft|ttft from sent|first content|first '
    'content from sent|tpot|chunk gap", "failure rate|rejection rate < 1%", "goodput > 95%", "requests/s|items/s|'
    'output tokens/s|input tokens/s|good requests/s|good tokens/s > 50", "mean batch > 2", "server queue|server '
    'compute|first request|cold start live|ready|load|model ready < 1s", "joules a request < 2", each with an '
    'optional "kind: " in front, "in phase NAME" or "in all phases", "at length 65-128" or "of model NAME" behind, '
    "and <, <=, > or >="
)


class ObjectiveError(LoadgenError):
    """A text that is no objective, or no figure."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A range of lengths of requests, both ends in it."""

    low: int
    high: int

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that a run has: what is measured, of which requests.

    `quantile` is 0 to 1 for pNN, 1.0 for max, and None for a mean and for every metric that is not in TIMES.
    `phase` None: all measured phases together; `kind` and `length` None: all requests; `model` None: all models.
    """

    metric: str
    quantile: float | None = None
    kind: str | None = None
    phase: str | None = None
    length: Lengths | None = None
    model: str | None = None

    def __str__(self) -> str:
        statistic = {None: "mean", 1.0: "max"}.get(self.quantile) or f"p{100 * (self.quantile or 0):.10g}"
        words = [self.metric, *([statistic] if self.metric in TIMES else [])]
        words += [f"in phase {self.phase}"] if self.phase is not None else []
        words += [f"at length {self.length}"] if self.length is not None else []
        words += [f"of model {self.model}"] if self.model is not None else []
        return (f"{self.kind}: " if self.kind is not None else "") + " ".join(words)


@dataclass(frozen=True, slots=True)
class Objective:
    """A bound on a figure.

    `threshold` is in ns for DURATIONS, a share of 1 for SHARES, else a plain number.  `each_phase`: it must hold in
    every measured phase by itself, which is what an objective without a phase means; "in all phases" pools them.
    """

    text: str
    figure: Figure
    op: str
    threshold: float
    each_phase: bool = True

    @property
    def kind(self) -> str | None:
        """The figure's."""
        return self.figure.kind

    @property
    def metric(self) -> str:
        """The figure's."""
        return self.figure.metric

    @property
    def quantile(self) -> float | None:
        """The figure's."""
        return self.figure.quantile

    @property
    def is_upper(self) -> bool:
        """Whether it bounds from above."""
        return self.op.startswith("<")

    def holds(self, observed: float) -> bool:
        """Whether an observed figure, in the threshold's unit, meets the bound."""
        if self.op == "<":
            return observed < self.threshold
        if self.op == "<=":
            return observed <= self.threshold
        return observed > self.threshold if self.op == ">" else observed >= self.threshold


def parse_objective(text: str) -> Objective:
    """Reads one objective; ObjectiveError says what is allowed."""
    whole = re.fullmatch(r"([^<>]+?)(<=|>=|<|>)([^<>=]+)", text.strip())
    if whole is None:
        raise ObjectiveError(f"objective {text!r}: cannot be read; {_ALLOWED}")
    left, op, right = (part.strip() for part in whole.groups())
    where = f"objective {text!r}"
    figure, pooled = _figure(left, where)
    return Objective(
        text=" ".join(text.split()),
        figure=figure,
        op=op,
        threshold=_threshold(figure.metric, right, where),
        each_phase=figure.phase is None and not pooled and figure.metric not in OF_RUNS,
    )


def parse_figure(text: str) -> Figure:
    """Reads the left side of an objective, e.g. `chat: ttft p95 in phase peak`; ObjectiveError says what is allowed."""
    return _figure(text.strip(), f"figure {text!r}")[0]


def load_objectives(path: Path) -> list[str]:
    """The objectives of a YAML file: a list of texts, or the `objectives` of a mapping, such as a profile.

    Raises LoadgenError where the file is neither, or one of them cannot be read.
    """
    import yaml

    try:
        held: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as why:
        raise LoadgenError(f"{path}: cannot be read: {why.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as why:
        said = " ".join(str(why).split())
        raise LoadgenError(f"{path}: not YAML: {said}") from None
    texts = held.get("objectives") if isinstance(held, dict) else held
    if not isinstance(texts, list) or not texts or not all(isinstance(one, str) for one in texts):
        raise LoadgenError(
            f'{path}: holds no objectives; write a list of texts, e.g. - "latency p99 < 250ms", or a mapping with '
            "such a list as its objectives"
        )
    for one in texts:
        try:
            parse_objective(one)
        except ObjectiveError as why:
            raise LoadgenError(f"{path}: {why}") from None
    return texts


def _figure(left: str, where: str) -> tuple[Figure, bool]:
    """The figure, and whether all phases are to be pooled."""
    name, *qualifiers = re.split(_QUALIFIERS, left)
    kind, colon, name = name.rpartition(":")
    if colon and not kind.strip():
        raise ObjectiveError(f"{where}: names no kind in front of its colon; {_ALLOWED}")
    metric, statistic = _split(name, where)
    found = Figure(metric, _quantile(statistic, where) if metric in TIMES else None, kind.strip() or None)
    pairs = [(key, value.strip()) for key, value in zip(qualifiers[::2], qualifiers[1::2], strict=True)]
    for key, value in pairs:
        if (key == "in all phases") == bool(value):
            wanted = "nothing behind it" if value else "a name or a length behind it"
            raise ObjectiveError(f"{where}: {key!r} takes {wanted}; {_ALLOWED}")
        if key == "in phase":
            found = replace(found, phase=value)
        elif key == "at length":
            found = replace(found, length=_lengths(value, where))
        elif key == "of model":
            found = replace(found, model=value)
    _check(found, [key for key, _ in pairs], where)
    return found, any(key == "in all phases" for key, _ in pairs)


def _check(figure: Figure, qualifiers: list[str], where: str) -> None:
    """Refuses qualifiers that a metric cannot have."""
    metric = figure.metric
    if len(set(qualifiers)) < len(qualifiers) or {"in phase", "in all phases"} <= set(qualifiers):
        raise ObjectiveError(f"{where}: says twice which phase, length or model is meant")
    if metric in OF_MODELS and figure.kind is not None:
        raise ObjectiveError(
            f"{where}: the server counts by model, not by kind; drop {figure.kind!r} or write "
            f'"{metric} of model NAME"'
        )
    if metric not in OF_MODELS and figure.model is not None:
        raise ObjectiveError(f"{where}: only {', '.join(OF_MODELS)} are counted by model; drop its name")
    if metric in OF_RUNS and (qualifiers or (figure.kind is not None and metric != "first request")):
        raise ObjectiveError(f"{where}: a run has one {metric} only; drop kind, phase and length")
    if figure.length is not None and (metric in OF_MODELS or metric == "chunk gap"):
        raise ObjectiveError(f"{where}: {metric} is not known by length; drop it")


def _lengths(text: str, where: str) -> Lengths:
    ends = re.fullmatch(r"(\d+)(?:\s*-\s*(\d+))?", text)
    if ends is None or int(ends[2] or ends[1]) < int(ends[1]):
        raise ObjectiveError(f"{where}: {text!r} is not a range of lengths, e.g. 65-128")
    return Lengths(int(ends[1]), int(ends[2] or ends[1]))


def _split(left: str, where: str) -> tuple[str, str]:
    """Metric and statistic; the statistic is "" where the metric takes none."""
    words = left.lower().split()
    name = " ".join(words)
    for also, metric in _ALSO.items():
        if name == also or name.startswith(f"{also} "):
            name = name.replace(also, metric, 1)
    if name in METRICS and name not in TIMES:
        return name, ""
    for metric in sorted(TIMES, key=len, reverse=True):
        if name == metric or name.startswith(f"{metric} "):
            statistic = name[len(metric) + 1 :]
            if statistic and " " not in statistic:
                return metric, statistic
            raise ObjectiveError(f"{where}: {metric} needs one of pNN, mean, max, e.g. {metric} p99")
    raise ObjectiveError(f"{where}: unknown metric {left.strip()!r}{near(name, METRICS)}; {_ALLOWED}")


def _quantile(statistic: str, where: str) -> float | None:
    """p50 is 0.5, p99.9 and p999 are 0.999."""
    if statistic == "mean":
        return None
    if statistic == "max":
        return 1.0
    number = re.fullmatch(r"p(\d+(?:\.\d+)?)", statistic)
    if number is None:
        raise ObjectiveError(f"{where}: {statistic!r} is none of pNN, mean, max, e.g. p99 or p99.9")
    digits = number[1]
    if re.fullmatch(r"99\d+", digits):  # p999 is 99.9
        digits = f"{digits[:2]}.{digits[2:]}"
    value = round(float(digits) / 100, 9)
    if not 0.0 < value < 1.0:
        raise ObjectiveError(
            f"{where}: {statistic!r}: a percentile is above p0 and below p100; for the largest write max"
        )
    return value


def _threshold(metric: str, right: str, where: str) -> float:
    try:
        if metric in DURATIONS:
            return float(parse_duration(right))
        if metric in RATES and "/" in right:
            return parse_rate(right)
    except UnitError as why:
        raise ObjectiveError(f"{where}: {why}") from None
    number = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%?)", right)
    if number is None or (number[2] == "%") != (metric in SHARES):
        wanted = "a percentage, e.g. 1%" if metric in SHARES else "a plain number, e.g. 50"
        raise ObjectiveError(f"{where}: {right!r} is not {wanted}")
    value = float(number[1])
    if metric in SHARES and value > 100:  # noqa: PLR2004 - percent
        raise ObjectiveError(f"{where}: {right!r} is more than 100%")
    return value / 100 if metric in SHARES else value
