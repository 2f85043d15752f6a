"""Markdown of what `loadgen check` found, for a pull request's comment or a job's summary (GitHub and GitLab)."""

import re

from loadgen.analysis.check import CheckResult
from loadgen.analysis.comparability import Severity
from loadgen.report.check import Case, clean, difference_text, doubt_text, groups, outcome

_HEAD = ("verdict", "what", "observed", "interval", "n", "note")


def markdown(result: CheckResult) -> str:
    """A heading, a line for each run, a table, and the doubts."""
    lines = [f"### loadgen check: {outcome(result)}", ""]
    lines += [
        f"- {_code(run.profile)} on {_code(run.target)}, run {_code(run.id)}, seed {run.seed}: "
        f"{'valid' if run.valid else '**not valid**'}"
        for run in result.runs
    ]
    lines += [f"- baseline: run {_code(run.id)}" for run in result.baseline]
    cases = [case for group in groups(result) for case in group.cases if case.observed]
    if cases:
        lines += ["", _row(_HEAD), _row(["---"] * len(_HEAD)), *map(_case, cases)]
    doubts = sorted((doubt for run in result.runs for doubt in run.doubts), key=lambda d: not d.invalidates)
    said = [("**not valid:** " if doubt.invalidates else "") + _plain(doubt_text(doubt)) for doubt in doubts]
    said += [
        ("**not comparable:** " if one.severity is Severity.REFUSE else "") + _plain(difference_text(one))
        for one in result.differences
    ]
    if said:
        lines += ["", *(f"- {one}" for one in said)]
    return "\n".join(lines) + "\n"


def _case(case: Case) -> str:
    return _row(
        [
            f"**{case.outcome}**",
            _code(case.name),
            *map(_plain, (case.observed, case.interval, case.n, case.note)),
        ]
    )


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(text: object) -> str:
    """A code span, in which nothing but the bar of a table has a meaning; its fence is longer than any run inside."""
    inner = clean(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", inner)), default=0))
    pad = " " if inner.startswith("`") or inner.endswith("`") or not inner else ""
    return f"{fence}{pad}{inner}{pad}{fence}".replace("|", "\\|")


def _plain(text: str) -> str:
    """Text that is shown as it is: no markup, no HTML, no mention of anybody."""
    escaped = re.sub(r"([\\`*_{}\[\]<>#|~$&])", r"\\\1", text)
    return escaped.replace("@", "@<!-- -->")
