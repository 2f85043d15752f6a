"""Objectives as text, `latency p99 < 250ms`, read into data that an analysis can judge.

It must not know how an objective is measured or what became of it.
"""

import re
from dataclasses import dataclass

from loadgen.records import LoadgenError
from loadgen.traffic.words import near
from loadgen.units import UnitError, parse_duration, parse_rate

STREAM_TIMES = ("ttft", "ttft from sent", "first content", "first content from sent", "tpot", "chunk gap")
TIMES = ("latency", "service", "lag", *STREAM_TIMES)
SHARES = ("failure rate", "rejection rate", "goodput")
RATES = ("requests/s", "items/s", "output tokens/s", "input tokens/s", "good requests/s", "good tokens/s")
METRICS = (*TIMES, *SHARES, *RATES, "mean batch")
OPERATORS = ("<", "<=", ">", ">=")
_ALSO = {"request goodput": "goodput", "first content token": "first content"}
_ALLOWED = (
    'allowed: "latency|service|lag pNN|mean|max < 250ms", the same of "ttft|ttft from sent|first content|first '
    'content from sent|tpot|chunk gap", "failure rate|rejection rate < 1%", "goodput > 95%", "requests/s|items/s|'
    'output tokens/s|input tokens/s|good requests/s|good tokens/s > 50", "mean batch > 2", each with an optional '
    '"kind: " in front and <, <=, > or >='
)


class ObjectiveError(LoadgenError):
    """A text that is no objective."""


@dataclass(frozen=True, slots=True)
class Objective:
    """One bound on one figure.

    `quantile` is 0 to 1 for pNN, 1.0 for max, and None for a mean and for every metric that is no time.
    `threshold` is in nanoseconds for times, a share of 1 for rates of failure, else a plain number.
    """

    text: str
    kind: str | None
    metric: str
    quantile: float | None
    op: str
    threshold: float

    def holds(self, observed: float) -> bool:
        """Whether an observed figure, in the threshold's unit, meets the bound."""
        if self.op == "<":
            return observed < self.threshold
        if self.op == "<=":
            return observed <= self.threshold
        return observed > self.threshold if self.op == ">" else observed >= self.threshold


def parse_objective(text: str) -> Objective:
    """Reads one objective; ObjectiveError says what is allowed."""
    whole = re.fullmatch(r"(?:([^:<>]+):)?([^:<>]+?)(<=|>=|<|>)([^<>=]+)", text.strip())
    if whole is None:
        raise ObjectiveError(f"objective {text!r}: cannot be read; {_ALLOWED}")
    kind, left, op, right = (part.strip() if part else None for part in whole.groups())
    assert left is not None and op is not None and right is not None  # noqa: S101, PT018 - the pattern's groups
    metric, statistic = _split(left, text)
    if metric == "mean batch" and kind is not None:
        raise ObjectiveError(
            f"objective {text!r}: the server counts batches by model, not by kind; drop {kind!r}"
        )
    return Objective(
        text=" ".join(text.split()),
        kind=kind,
        metric=metric,
        quantile=_quantile(statistic, text) if metric in TIMES else None,
        op=op,
        threshold=_threshold(metric, right, text),
    )


def _split(left: str, text: str) -> tuple[str, str]:
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
            raise ObjectiveError(
                f"objective {text!r}: {metric} needs one of pNN, mean, max, e.g. {metric} p99"
            )
    raise ObjectiveError(f"objective {text!r}: unknown metric {left!r}{near(name, METRICS)}; {_ALLOWED}")


def _quantile(statistic: str, text: str) -> float | None:
    """p50 is 0.5, p99.9 and p999 are 0.999."""
    if statistic == "mean":
        return None
    if statistic == "max":
        return 1.0
    number = re.fullmatch(r"p(\d+(?:\.\d+)?)", statistic)
    if number is None:
        raise ObjectiveError(
            f"objective {text!r}: {statistic!r} is none of pNN, mean, max, e.g. p99 or p99.9"
        )
    digits = number[1]
    if re.fullmatch(r"99\d+", digits):  # p999 is 99.9
        digits = f"{digits[:2]}.{digits[2:]}"
    value = round(float(digits) / 100, 9)
    if not 0.0 < value < 1.0:
        raise ObjectiveError(
            f"objective {text!r}: {statistic!r}: a percentile is above p0 and below p100; for the largest write max"
        )
    return value


def _threshold(metric: str, right: str, text: str) -> float:
    try:
        if metric in TIMES:
            return float(parse_duration(right))
        if metric in RATES and "/" in right:
            return parse_rate(right)
    except UnitError as why:
        raise ObjectiveError(f"objective {text!r}: {why}") from None
    number = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%?)", right)
    if number is None or (number[2] == "%") != (metric in SHARES):
        wanted = "a percentage, e.g. 1%" if metric in SHARES else "a plain number, e.g. 50"
        raise ObjectiveError(f"objective {text!r}: {right!r} is not {wanted}")
    value = float(number[1])
    if metric in SHARES and value > 100:  # noqa: PLR2004 - percent
        raise ObjectiveError(f"objective {text!r}: {right!r} is more than 100%")
    return value / 100 if metric in SHARES else value
