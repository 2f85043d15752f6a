"""What `loadgen check` found, as rows that each of its reports shows, and the text and annotations made of them."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum, auto
from typing import Any

from rich.console import Console
from rich.text import Text

from loadgen.analysis.baseline import BaselineRow
from loadgen.analysis.check import CheckedRun, CheckResult
from loadgen.analysis.comparability import Difference, Severity
from loadgen.analysis.compare import Basis, Scale
from loadgen.analysis.pool import WHOLE
from loadgen.analysis.slo import Reason, SloRow, Verdict
from loadgen.exits import ExitCode
from loadgen.records import Doubt
from loadgen.report.text import print_verdicts
from loadgen.report.words import NONE, figure, interval, method, note, observed, settling, timespan

_JOINER = "\u200d"  # keeps the parts of an emoji together


class Outcome(StrEnum):
    """What became of a row."""

    PASS = auto()
    FAIL = auto()
    INCONCLUSIVE = auto()
    NOT_VALID = "not valid"  # a verdict on such a measurement would be one on the client, or on nothing


_OF_VERDICT = {
    Verdict.PASS: Outcome.PASS,
    Verdict.FAIL: Outcome.FAIL,
    Verdict.INCONCLUSIVE: Outcome.INCONCLUSIVE,
}
_STYLE = {
    Outcome.PASS: "green",
    Outcome.FAIL: "bold red",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.NOT_VALID: "bold red",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that was checked.  All texts are of one line and printable."""

    name: str
    outcome: Outcome
    observed: str = ""
    interval: str = ""
    n: str = ""
    note: str = ""

    @property
    def text(self) -> str:
        """The figures and what is to be said of them, as one sentence without its full stop."""
        between = f" ({self.interval})" if self.interval else ""
        seen = f"observed {self.observed}{between}, n {self.n}" if self.observed else ""
        return "; ".join(part for part in (seen, self.note) if part)


@dataclass(frozen=True, slots=True)
class Group:
    """Cases under a name; `run` where they are of one run."""

    name: str
    cases: tuple[Case, ...]
    run: CheckedRun | None = None


def outcome(result: CheckResult) -> Outcome:
    """Of all of it, as the exit code says it."""
    if result.exit_code is ExitCode.OK:
        return Outcome.PASS
    if result.exit_code is ExitCode.MISSED:
        return Outcome.FAIL
    return Outcome.INCONCLUSIVE if result.valid and result.comparable else Outcome.NOT_VALID


def groups(result: CheckResult) -> list[Group]:
    """A group for each run, with the objectives where there is only one; then those of all runs and the baseline's.

    Some case is other than a pass exactly where the exit code is not 0.
    """
    runs, objectives = result.runs, tuple(_objective(row, result) for row in result.objectives)
    found = []
    for place, run in enumerate(runs):
        which = "measurement" if len(runs) == 1 else f"measurement {place + 1} of {len(runs)}"
        own = (_measurement(f"{which} is valid", run),)
        found.append(Group(clean(run.id), own + (objectives if len(runs) == 1 else ()), run))
    if len(runs) > 1 and objectives:
        whole = sum(run.status in WHOLE for run in runs)
        which = f"{len(runs)} runs" if whole == len(runs) else f"{whole} of {len(runs)} runs"
        found.append(Group(f"{which} together", objectives))
    if result.baseline:
        ids = ", ".join(clean(run.id) for run in result.baseline)
        found.append(Group(f"against baseline {ids}", tuple(_against_baseline(result))))
    return found


def clean(text: object) -> str:
    """On one line, with what is no printable character as an escape: control characters, lone surrogates."""
    return "".join(
        char if char.isprintable() or char == _JOINER
        else " " if char.isspace()
        else char.encode("unicode_escape").decode("ascii")
        for char in str(text)
    ).strip()  # fmt: skip


def doubt_text(doubt: Doubt) -> str:
    """A doubt with what to do about it."""
    return clean(f"{doubt.text} [{doubt.code}]" + (f": {doubt.hint}" if doubt.hint else ""))


def difference_text(one: Difference) -> str:
    """What two sides differ in."""
    what = clean(f"{one.aspect.replace('_', ' ')} {one.what}")
    return f"{what}: {clean(one.a or NONE)} in the baseline, {clean(one.b or NONE)} in the run"


def _measurement(name: str, run: CheckedRun) -> Case:
    doubts = sorted(run.doubts, key=lambda doubt: not doubt.invalidates)
    state = [] if run.status == "finished" else [f"the run is {clean(run.status)}"]
    said = "; ".join([*state, *map(doubt_text, doubts)])
    return Case(name, Outcome.PASS if run.valid else Outcome.NOT_VALID, note=said)


def _objective(row: SloRow, result: CheckResult) -> Case:
    told = row.json()
    codes = sorted({doubt.code for run in result.runs for doubt in run.invalidating})
    spoilt = [] if result.believed else [f"no verdict, as the measurement is not valid ({', '.join(codes)})"]
    return Case(
        clean(row.objective),
        _OF_VERDICT[row.verdict] if result.believed else Outcome.NOT_VALID,
        observed(told),
        interval(told),
        _n(str(row.n), told),
        "; ".join([*spoilt, *([clean(more)] if (more := note(told)) else [])]),
    )


def _n(n: str, row: dict[str, Any]) -> str:
    """With what the interval rests on."""
    return f"{n} ({said})" if (said := method(row)) else n


def _against_baseline(result: CheckResult) -> Iterator[Case]:
    told = [difference_text(one) for one in result.differences if one.severity is not Severity.NOTE]
    ends = Outcome.PASS if result.comparable else Outcome.NOT_VALID
    yield Case("comparable with the baseline", ends, note="; ".join(told))
    for row in result.comparisons:
        stands = result.comparable and result.believed
        paired = ", paired" if row.basis is Basis.PAIRED_REQUESTS else ""
        notes = [] if stands else ["no verdict, as the runs cannot be compared"]
        notes += [f"in {clean(row.phase)}, the worst of {row.phases} phases"] if row.phases > 1 else []
        yield Case(
            clean(row.text),
            _OF_VERDICT[row.verdict] if stands else Outcome.NOT_VALID,
            f"{_value(row, row.run, row.n)}, baseline {_value(row, row.baseline, row.baseline_n)}: {_change(row, row.change)}",
            _between(row),
            _n(f"{row.n} and {row.baseline_n}{paired}", asdict(row)),
            "; ".join([*notes, *_settling(row)]),
        )


def _value(row: BaselineRow, value: float | None, n: int) -> str:
    return "no answer" if value is None and n else figure(row.metric, value)


def _change(row: BaselineRow, change: float | None) -> str:
    if change is None:
        return NONE
    return f"{100 * (change - 1):+.3g} %" if row.scale is Scale.RATIO else f"{100 * change:+.3g} points"


def _between(row: BaselineRow) -> str:
    """The interval of the change, and the worst that is allowed."""
    allowed = f"allowed {_change(row, row.limit)}"
    if row.interval is None:
        return allowed
    low, high = row.interval
    if low is None and high is None:
        return f"unbounded; {allowed}"
    if low is None or high is None:
        return f"95 %: {'at most' if low is None else 'at least'} {_change(row, high if low is None else low)}; {allowed}"
    return f"95 %: {_change(row, low)} to {_change(row, high)}; {allowed}"


def _settling(row: BaselineRow) -> list[str]:
    if row.reason is Reason.MORE_DATA and row.more_s:
        return [f"about {timespan(row.more_s)} more of the run and of its baseline would tell"]
    return settling(asdict(row))


def print_check(result: CheckResult, console: Console) -> None:
    """Each run with its doubts, then the verdicts."""
    only = len(result.runs) == 1
    for place, run in enumerate(result.runs):
        if place:
            console.print()
        told = asdict(run)
        print_verdicts(
            {
                "run": told,
                "valid": run.valid,
                "doubts": told["doubts"],
                "slo": [row.json() for row in result.objectives] if only else [],
            },
            console,
        )
    for group in groups(result)[len(result.runs) :]:
        console.print()
        console.print(Text(_in(console, group.name)))
        for case in group.cases:
            said = _in(console, f"{case.name}: {case.text}" if case.text else case.name)
            console.print(Text.assemble((f"{case.outcome:<12}", _STYLE[case.outcome]), f" {said}"))


def _in(console: Console, text: str) -> str:
    return text.encode(console.encoding, "replace").decode(console.encoding)


def annotations(result: CheckResult) -> Iterator[str]:
    """Workflow commands of GitHub Actions, a line each: an error for all that did not pass, a warning for each doubt
    that does not make a run invalid.  GitHub shows ten of a kind for each step.
    """
    for group in groups(result):
        for case in group.cases:
            if case.outcome is not Outcome.PASS:
                yield _command("error", f"loadgen {case.outcome}: {case.name}", case.text)
    for run in result.runs:
        for doubt in run.doubts:
            if not doubt.invalidates:
                yield _command("warning", f"loadgen doubt: {doubt.code}", doubt_text(doubt))


def _command(level: str, title: str, text: str) -> str:
    """Escaped as the runner decodes it: of a property also the colon and comma that would end it."""
    data = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    name = title.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{level} title={name.replace(':', '%3A').replace(',', '%2C')}::{data}"
