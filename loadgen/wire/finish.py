"""What a server's reason for the end of an answer says.

Reasons that are known to be a normal end are listed; those in which a word of giving up stands (abort, error,
content_filter, ...) are failures; any other is a new one, which analysis.validity has to say.
"""

import re
from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from typing import Any

from loadgen.wire.errors import one_line

_LIMIT = 40  # characters of a reason that are kept
_NORMAL = frozenset({
    "stop", "stop_sequence", "stop_token", "stop_word", "stop_words", "stop_str", "matched_stop", "word", "string",
    "eos", "eos_token", "end", "end_id", "end_turn", "end_of_text", "end_of_sequence",
    "length", "limit", "max_tokens", "max_length", "max_new_tokens", "model_length", "max_output_tokens",
    "tool_calls", "tool_call", "tool_use", "function_call", "complete", "completed", "finished", "done", "success",
})  # fmt: skip
LENGTH = frozenset({"length", "limit", "max_tokens", "max_length", "max_new_tokens", "max_output_tokens"})
_NO_END = frozenset({"", "none", "null", "not_finished"})
_GAVE_UP = re.compile(
    "abort|error|exception|cancel|time_?d?_?out|deadline|expire|fail|crash|filter|safety|sensitive|moderat|block|"
    "prohibit|recitation|malformed|reject|interrupt|insufficient|overload|exhaust|preempt|evict|kill|terminat|"
    "shut_?down|disconnect|unavailable|out_of_memory|(?:^|_)oom(?:$|_)"
)


class Finish(IntEnum):
    """The graver is the larger."""

    NORMAL = 0
    UNKNOWN = 1
    GAVE_UP = 2


def _plain(reason: str) -> str:
    """FINISH_REASON_STOP, FinishReason.STOP and Stop are stop."""
    snake = re.sub(r"[^a-z0-9]+", "_", reason.lower()).strip("_")
    return re.sub("^finish_?reason_|^finish_", "", snake)


@lru_cache(256)
def finish_of(reason: str) -> Finish:
    """What a reason says."""
    plain = _plain(reason)
    if plain in _NORMAL:
        return Finish.NORMAL
    return Finish.GAVE_UP if _GAVE_UP.search(plain) else Finish.UNKNOWN


def is_length(reason: str) -> bool:
    """Whether the answer ended because it reached the length that was asked."""
    return _plain(reason) in LENGTH


def finish_reason(told: Any) -> str:
    """The reason as one short line; "" where there is none.  SGLang tells an object, Triton's tensors may be lists."""
    if isinstance(told, list):
        return gravest(map(finish_reason, told))
    if isinstance(told, dict):
        told = next((told[key] for key in ("type", "reason", "name") if told.get(key)), "unknown")
    return "" if told is None or told is False else _one_reason(str(told)[: 4 * _LIMIT])


@lru_cache(256)
def _one_reason(told: str) -> str:
    reason = one_line(told, _LIMIT)
    return "" if reason.lower() in _NO_END else reason


def gravest(reasons: Iterable[str]) -> str:
    """The first of the gravest; "" when there is none."""
    return max((reason for reason in reasons if reason), key=finish_of, default="")


def gave_up(reason: str) -> str:
    """The words of such a failure."""
    return f"the server ended the answer with finish_reason {reason}"
