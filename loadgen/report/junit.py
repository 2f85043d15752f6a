"""JUnit XML of what `loadgen check` found, for the test reports of Jenkins, GitLab, GitHub and others.

A missed objective is a `failure`; what is undecided or not valid is an `error`: the test did not come to a verdict.
Both are red wherever JUnit is read, as the exit code is, while `skipped` would be green.  The message is an attribute
and the element's text as well: Jenkins shows both, GitLab the text only.
"""

import contextlib
from datetime import UTC, datetime
from io import BytesIO

from junitparser import Error, Failure, JUnitXml, TestCase, TestSuite

from loadgen.analysis.check import CheckedRun, CheckResult
from loadgen.report.check import Case, Group, Outcome, clean, groups


def junit(result: CheckResult) -> str:
    """The file's text: a testsuite for each run with the case that its measurement is valid, which has the run's
    duration, and a testcase for each objective and comparison.
    """
    every = groups(result)
    profile = clean(result.runs[0].profile)
    root = JUnitXml("loadgen check")
    for group in every:
        root.append(_suite(group, profile, result.runs[0]))
    root.update_statistics()
    file = BytesIO()
    root.write(file)
    return file.getvalue().decode("utf-8") + "\n"


def _suite(group: Group, profile: str, first: CheckedRun) -> TestSuite:
    run = group.run or first
    suite = TestSuite(group.name)
    suite.hostname = clean(run.host or "unknown")
    with contextlib.suppress(TypeError, ValueError):  # an older run, or one made by hand
        started = datetime.fromisoformat(run.started_at or "").astimezone(UTC)
        suite.timestamp = started.strftime("%Y-%m-%dT%H:%M:%S")  # the format has no zone
    if group.run is not None:
        told = {"run": run.id, "path": run.path, "status": run.status, "target": run.target, "profile": run.profile,
                "seed": run.seed, "valid": str(run.valid).lower()}  # fmt: skip
        for name, value in told.items():
            suite.add_property(name, clean(value))
    for place, case in enumerate(group.cases):
        duration_s = group.run.duration_s if group.run is not None and place == 0 else None
        suite.append(_case(case, profile, duration_s or 0.0))
    return suite


def _case(case: Case, profile: str, duration_s: float) -> TestCase:
    found = TestCase(case.name, profile, round(duration_s, 3))  # to ms, as the library sums them
    if case.outcome is not Outcome.PASS:
        kind = Failure if case.outcome is Outcome.FAIL else Error
        why = kind(case.text, str(case.outcome))
        why.text = case.text
        found.result = [why]
    elif case.text:
        found.system_out = case.text
    return found
