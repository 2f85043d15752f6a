"""Whether an answer is a success in a profile's own terms; if not, what was found instead.

Status and JSON in, words out.  It must not know connections, outcomes or requests.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from loadgen.traffic.http_request import Condition, Step, Success, parse_path

_SHOWN = 160
_MOST = 1e300
_NOTHING = object()

Judge = Callable[[int, Mapping[str, str], bytes], str | None]


def judge_of(success: Success) -> Judge | None:
    """The judge of answers; None where the status alone decides in the usual way (200 to 299)."""
    if success == Success():
        return None
    conditions = [(condition, parse_path(condition.path)) for condition in success.json_]

    def judge(status: int, headers: Mapping[str, str], body: bytes) -> str | None:  # noqa: ARG001 - Request.judge
        if not any(status in allowed for allowed in success.status):
            wanted = ", ".join(show_range(allowed) for allowed in success.status)
            return f"status {status}, wanted {wanted}: {_shown(body)}"
        if not conditions:
            return None
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            return f"the answer is no JSON: {_shown(body)}"
        said = (_fault(condition, at(data, steps), body) for condition, steps in conditions)
        return next((words for words in said if words is not None), None)

    return judge


def show_range(statuses: range) -> str:
    """200, or 200-204."""
    first, last = statuses.start, statuses.stop - 1
    return str(first) if first == last else f"{first}-{last}"


def at(data: Any, steps: tuple[Step, ...]) -> Any:
    """What stands at a path in JSON data; `_NOTHING` when nothing does.  A place may count from the end."""
    for step in steps:
        try:
            found = isinstance(data, list if isinstance(step, int) else dict)
            data = data[step] if found else _NOTHING
        except (KeyError, IndexError):
            return _NOTHING
    return data


def _fault(condition: Condition, found: Any, body: bytes) -> str | None:
    path = condition.path
    if found is _NOTHING:
        return f"no {path} in the answer: {_shown(body)}" if condition.exists else None
    wanted = next(_wanted(condition, found), None) if condition.exists else "none"
    if wanted is None:
        return None
    number = isinstance(found, int | float) and not isinstance(found, bool)
    shown = _about(found) if number else _as_json(found)
    return f"{path} is {shown}, wanted {wanted}"


def _about(number: float) -> str:
    """A number to two digits: texts are grouped, and those of ten thousand numbers would be as many."""
    if abs(number) > _MOST:
        return f"a number beyond {_MOST:g}"
    if math.isnan(number):
        return "NaN"
    near = float(f"{number:.2g}")
    return f"{near:.10g}" if near == number else f"about {near:.10g}"


def _wanted(condition: Condition, found: Any) -> Iterator[str]:
    """What is asked for and not so."""
    number = found if isinstance(found, int | float) and not isinstance(found, bool) else math.nan
    equals = None if condition.equals == "{null}" else condition.equals
    if condition.equals is not None and not _equal(found, equals):
        yield _as_json(equals)
    if condition.min is not None and not number >= condition.min:
        yield f"{condition.min:g} or more"
    if condition.max is not None and not number <= condition.max:
        yield f"{condition.max:g} or less"
    text = found if isinstance(found, str) else json.dumps(found)
    if condition.matches is not None and re.search(condition.matches, text) is None:
        yield f"a match of {condition.matches}"


def _equal(found: Any, wanted: Any) -> bool:
    """As JSON has it: true is not 1, 1.0 is 1."""
    return bool(found == wanted) and isinstance(found, bool) == isinstance(wanted, bool)


def _as_json(data: Any) -> str:
    return _one_line(json.dumps(data, ensure_ascii=False))


def _shown(body: bytes) -> str:
    return _one_line(body[: 4 * _SHOWN].decode("utf-8", "replace")) or "it is empty"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
