"""From a summary to one exit code; `exits.ExitCode` has the table and the order of precedence.

A missed objective outranks doubts about how the server answered: failures, rejections, timeouts and drops are part of
why it was missed; of requests whose end is not known, an objective is missed only if no ending of theirs could have
saved it, and none is missed when not even their number is known.  It does not outrank doubts about what was measured:
a client at its limit, or a server that went away in the middle (`outage`).
"""

from typing import Any

from loadgen.analysis.slo import Verdict
from loadgen.exits import ExitCode

OF_THE_ANSWERS = frozenset({"failures", "rejected", "dropped", "interrupted", "unfinished", "unknown_ends"})


def exit_code(summary: dict[str, Any]) -> ExitCode:
    """Of a summary as `summarise` makes it."""
    verdicts = {row["verdict"] for row in summary["slo"]}
    believed = all(d["code"] in OF_THE_ANSWERS for d in summary["doubts"] if d["invalidates"])
    if Verdict.FAIL in verdicts and believed:
        return ExitCode.MISSED
    if not summary["valid"] or Verdict.INCONCLUSIVE in verdicts:
        return ExitCode.NOT_VALID
    return ExitCode.OK
