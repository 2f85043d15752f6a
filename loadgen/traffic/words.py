"""The words that messages share: a value on one line, the near miss.  It must not know profiles."""

import difflib
from collections.abc import Iterable
from typing import Any

_MOST_SHOWN = 60


def show_value(value: Any) -> str:
    """A value as a person wrote it, on one line, cut when long."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 1] + "…"


def near(word: str, allowed: Iterable[str]) -> str:
    """' (did you mean 'x'?)' when a word of the list is close, else nothing."""
    close = difflib.get_close_matches(word.lower(), list(allowed), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""
