"""From a summary to one word and one exit code.

0: the run is valid and every objective passed (also: there were none).  1: an objective was missed.
3: the run is not valid, or an objective is inconclusive.  A missed objective outranks doubts about what
the server answered (failures, rejections, drops: they are part of why it was missed; requests whose end is not
known: an objective is missed only if no ending of theirs could have saved it, and none is missed when not even
their number is known), but not doubts about whether the client measured at all.  This module must not know how either is shown.
"""

from typing import Any

OK, MISSED, NOT_VALID = 0, 1, 3
OF_THE_ANSWERS = frozenset({"failures", "rejected", "dropped", "interrupted", "unfinished", "unknown_ends"})


def exit_code(summary: dict[str, Any]) -> int:
    """Of a summary as `summarise` makes it."""
    verdicts = {row["verdict"] for row in summary["slo"]}
    believed = all(d["code"] in OF_THE_ANSWERS for d in summary["doubts"] if d["invalidates"])
    if "fail" in verdicts and believed:
        return MISSED
    if not summary["valid"] or "inconclusive" in verdicts:
        return NOT_VALID
    return OK
