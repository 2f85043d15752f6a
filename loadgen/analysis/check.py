"""What `loadgen check` finds: runs held against objectives and against a baseline, as one typed result."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.analysis.baseline import BaselineRow, NoWorse, hold_against
from loadgen.analysis.comparability import Difference, Severity, Side, comparability
from loadgen.analysis.conclusion import believed, conclude
from loadgen.analysis.intervals import ALPHA
from loadgen.analysis.pool import WHOLE, pool
from loadgen.analysis.repeats import read_journal, runs_in
from loadgen.analysis.slo import Measured, SloRow, Verdict, judge, measured_of
from loadgen.analysis.summary import summary_of
from loadgen.exits import ExitCode
from loadgen.records import Doubt, LoadgenError


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """One run that was judged.  `duration_s`: from its start to its last request's end; null where nobody saw one."""

    path: str
    id: str
    status: str
    started_at: str | None
    host: str | None
    target: str
    profile: str
    seed: int | None
    duration_s: float | None
    doubts: tuple[Doubt, ...]

    @property
    def invalidating(self) -> tuple[Doubt, ...]:
        """The doubts for which it is not valid."""
        return tuple(doubt for doubt in self.doubts if doubt.invalidates)

    @property
    def valid(self) -> bool:
        """As summary.json has it."""
        return not self.invalidating

    def json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"valid": self.valid, **asdict(self)}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`objectives` are of all runs together but those that were killed or given up, `comparisons` of these against all of `baseline` together; `differences`
    have the baseline as their side `a`.
    """

    runs: tuple[CheckedRun, ...]
    objectives: tuple[SloRow, ...]
    baseline: tuple[CheckedRun, ...] = ()
    differences: tuple[Difference, ...] = ()
    comparisons: tuple[BaselineRow, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether all runs that were judged are."""
        return all(run.valid for run in self.runs)

    @property
    def believed(self) -> bool:
        """Whether verdicts on objectives stand."""
        return believed(self._codes)

    @property
    def comparable(self) -> bool:
        """Whether verdicts against the baseline stand."""
        return not any(one.severity is Severity.REFUSE for one in self.differences)

    @property
    def _codes(self) -> list[str]:
        return [doubt.code for run in self.runs for doubt in run.invalidating]

    @property
    def exit_code(self) -> ExitCode:
        """A baseline that cannot be compared with does not hide that an objective was missed."""
        verdicts = [row.verdict for row in self.objectives]
        verdicts += [row.verdict if self.comparable else Verdict.INCONCLUSIVE for row in self.comparisons]
        return conclude(verdicts, self._codes)

    def json(self) -> dict[str, Any]:
        """JSON-ready; where one run was judged, `valid`, `doubts` and `slo` are those of its summary.json."""
        return {
            "valid": self.valid,
            "exit_code": int(self.exit_code),
            "doubts": [asdict(doubt) for run in self.runs for doubt in run.doubts],
            "slo": [row.json() for row in self.objectives],
            "runs": [run.json() for run in self.runs],
            "baseline": {
                "comparable": self.comparable,
                "runs": [run.json() for run in self.baseline],
                "differences": [asdict(one) for one in self.differences],
                "comparisons": [asdict(row) for row in self.comparisons],
            }
            if self.baseline
            else None,
        }


def check(
    paths: Sequence[Path],
    objectives: list[str] | None = None,
    baseline: Sequence[Path] = (),
    no_worse: Sequence[NoWorse] = (),
) -> CheckResult:
    """Judges runs and folders of repeats, all together, against objectives (None: those of their profile) and a baseline.

    Raises LoadgenError where a folder is no run, runs do not go together, an objective cannot be read, or there is
    nothing to judge by.
    """
    runs, side = _read(paths, objectives)
    seen = side.pooled
    for one in side.runs:
        if one.objectives != seen.objectives:
            raise LoadgenError(
                f"{one.run.path}: its objectives are not those of {paths[0]}; give them with --objective"
            )
    if not seen.objectives and not baseline:
        raise LoadgenError(
            f"{paths[0]}: its profile states no objective; give one with --objective, e.g. "
            '"latency p99 < 250ms", or a run to compare with by --baseline'
        )
    rows = tuple(judge(list(dict.fromkeys(seen.objectives)), seen))
    if not baseline:
        return CheckResult(runs, rows)
    runs_in([*paths, *baseline])  # a run that is its own baseline is refused
    before, reference = _read(baseline, objectives)
    differences = comparability(reference, side)
    sides = [replace(one, pooled=replace(one.pooled, alpha=ALPHA)) for one in (reference, side)]
    comparisons = tuple(hold_against(one, *sides) for one in no_worse)
    return CheckResult(runs, rows, before, differences, comparisons)


def _read(paths: Sequence[Path], objectives: list[str] | None) -> tuple[tuple[CheckedRun, ...], Side]:
    """Each run for itself, and all of them together: with the intervals of the rule by which repeats were stopped."""
    folders = runs_in(paths)
    journal = read_journal(paths[0]) if len(paths) == 1 and objectives is None else None
    until = (journal or {}).get("until_sure") or {}
    alpha = until["alpha"] if until.get("looks") else ALPHA
    each = tuple(measured_of(run, objectives, alpha=alpha) for run in folders)
    runs = tuple(map(_checked, each))
    whole = [run for run in folders if run.info.get("status") in WHOLE] or folders[:1]
    pooled = each[0] if len(each) == 1 else measured_of(pool(whole), objectives, alpha=alpha)
    doubts = tuple(asdict(doubt) for run in runs for doubt in run.doubts)
    return runs, Side(paths[0].name, paths[0], each, pooled, doubts)


def _checked(seen: Measured) -> CheckedRun:
    info = seen.info
    ends = [phase.get("end_ns") or phase.get("load_end_ns") for phase in info["phases"]]
    known = [int(end) for end in ends if end is not None]
    return CheckedRun(
        path=str(seen.run.path),
        id=str(info.get("id")),
        status=str(info.get("status")),
        started_at=info.get("started_at"),
        host=(info.get("client") or {}).get("host"),
        target=str(info.get("target")),
        profile=str((info.get("profile") or {}).get("name")),
        seed=info.get("seed"),
        duration_s=max(known) / 1e9 if known else None,
        doubts=tuple(Doubt(**doubt) for doubt in summary_of(seen, [])["doubts"]),
    )
