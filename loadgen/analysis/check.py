"""What `loadgen check` finds: runs held against objectives and against a baseline, as one typed result."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadgen.analysis.baseline import BaselineRow, NoWorse, compare
from loadgen.analysis.conclusion import believed, conclude
from loadgen.analysis.pool import pool
from loadgen.analysis.slo import Measured, SloRow, judge, measured_of
from loadgen.analysis.summary import summary_of
from loadgen.exits import ExitCode
from loadgen.records import Doubt, LoadgenError
from loadgen.runread import read_run


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
    """`objectives` are of all runs together, `comparisons` of these against all of `baseline` together."""

    runs: tuple[CheckedRun, ...]
    objectives: tuple[SloRow, ...]
    baseline: tuple[CheckedRun, ...] = ()
    comparisons: tuple[BaselineRow, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether all runs that were judged, and the baseline's, are."""
        return all(run.valid for run in (*self.runs, *self.baseline))

    @property
    def believed(self) -> bool:
        """Whether verdicts on objectives stand."""
        return believed(_codes(self.runs))

    @property
    def comparable(self) -> bool:
        """Whether verdicts against the baseline stand."""
        return self.believed and all(run.valid for run in self.baseline)

    @property
    def exit_code(self) -> ExitCode:
        """A baseline that is not valid does not hide that an objective was missed."""
        objectives = [row.verdict for row in self.objectives]
        codes = _codes(self.runs)
        ends = [conclude(objectives, codes)]
        if self.baseline:
            ends.append(conclude([row.verdict for row in self.comparisons], codes + _of_baseline(self.baseline)))
        return next((code for code in (ExitCode.MISSED, ExitCode.NOT_VALID) if code in ends), ExitCode.OK)

    def json(self) -> dict[str, Any]:
        """JSON-ready; `valid`, `doubts` and `slo` are those of summary.json where one run was judged."""
        return {
            "valid": self.valid,
            "exit_code": int(self.exit_code),
            "verdict": self.exit_code.name.lower(),
            "doubts": [asdict(doubt) for run in self.runs for doubt in run.doubts],
            "slo": [row.json() for row in self.objectives],
            "runs": [run.json() for run in self.runs],
            "baseline": [run.json() for run in self.baseline],
            "comparisons": [row.json() for row in self.comparisons],
        }


def _codes(runs: Sequence[CheckedRun]) -> list[str]:
    return [doubt.code for run in runs for doubt in run.invalidating]


def _of_baseline(runs: Sequence[CheckedRun]) -> list[str]:
    """Even a baseline that is not valid only for its answers is none to compare with."""
    return [f"baseline {code}" for code in _codes(runs)]


def check(
    paths: Sequence[Path],
    objectives: list[str] | None = None,
    baseline: Sequence[Path] = (),
    no_worse: Sequence[NoWorse] = (),
) -> CheckResult:
    """Judges one or more runs, these pooled, against objectives (None: those of their profile) and a baseline.

    Raises LoadgenError where a folder is no run, runs do not go together, an objective cannot be read, or there is
    nothing to judge by.
    """
    runs, seen = _read(paths, objectives)
    if not seen.objectives and not baseline:
        raise LoadgenError(
            f"{paths[0]}: its profile states no objective; give one with --objective, e.g. "
            '"latency p99 < 250ms", or a run to compare with by --baseline'
        )
    rows = tuple(judge(list(dict.fromkeys(seen.objectives)), seen))
    if not baseline:
        return CheckResult(runs, rows)
    before, reference = _read(baseline, objectives)
    return CheckResult(runs, rows, before, tuple(compare(one, reference, seen) for one in no_worse))


def _read(paths: Sequence[Path], objectives: list[str] | None) -> tuple[tuple[CheckedRun, ...], Measured]:
    """Each run for itself, and all of them together."""
    each = [measured_of(path, objectives) for path in paths]
    for one in each[1:]:
        if one.objectives != each[0].objectives:
            raise LoadgenError(
                f"{one.run.path}: its objectives are not those of {each[0].run.path}; give them with --objective"
            )
    runs = tuple(map(_checked, each))
    if len(each) == 1:
        return runs, each[0]
    return runs, measured_of(pool([read_run(path) for path in paths]), objectives)


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
