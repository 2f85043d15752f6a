"""From verdicts and doubts to one exit code; `exits.ExitCode` has the table and the order of precedence.

A missed objective outranks doubts about how the server answered: failures, rejections, timeouts and drops are part of
why it was missed; of requests whose end is not known, an objective is missed only if no ending of theirs could have
saved it, and none is missed when not even their number is known.  It does not outrank doubts about what was measured:
a client at its limit, or a server that went away in the middle (`outage`).
"""

from collections.abc import Iterable
from typing import Any

from loadgen.analysis.slo import Verdict
from loadgen.exits import ExitCode

OF_THE_ANSWERS = frozenset({"failures", "rejected", "dropped", "interrupted", "unfinished", "unknown_ends"})


def exit_code(summary: dict[str, Any]) -> ExitCode:
    """Of a summary as `summarise` makes it."""
    return conclude((row["verdict"] for row in summary["slo"]), invalidating(summary))


def invalidating(summary: dict[str, Any]) -> list[str]:
    """The codes of the doubts for which a run is not valid."""
    return [doubt["code"] for doubt in summary["doubts"] if doubt["invalidates"]]


def believed(codes: Iterable[str]) -> bool:
    """Whether verdicts on such a run stand: all that makes it invalid is how a server that was there answered."""
    return OF_THE_ANSWERS.issuperset(codes)


def conclude(verdicts: Iterable[Verdict], codes: list[str]) -> ExitCode:
    """Of the verdicts on one or more runs and the codes of the doubts that make them invalid."""
    held = set(verdicts)
    if Verdict.FAIL in held and believed(codes):
        return ExitCode.MISSED
    if codes or Verdict.INCONCLUSIVE in held:
        return ExitCode.NOT_VALID
    return ExitCode.OK
