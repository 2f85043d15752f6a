"""Several runs of one profile in one folder: a number of them, or until every objective is decided."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from loadgen.analysis.repeats import FORMAT, JOURNAL, runs_in, summarise_runs
from loadgen.analysis.sequential import NAME, alpha_at
from loadgen.analysis.slo import Verdict
from loadgen.lab.run import Measured, Order, measure
from loadgen.records import LoadgenError
from loadgen.runfile import RUN, make_run_folder, write_atomic

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Look:
    """A judgement of the runs so far: `alpha` is the error it was allowed."""

    runs: int
    alpha: float
    verdicts: tuple[Verdict, ...]

    @property
    def is_decided(self) -> bool:
        """Whether every objective has passed or failed."""
        return all(verdict is not Verdict.INCONCLUSIVE for verdict in self.verdicts)


def repeat(order: Order, times: int | None, until_ns: int | None) -> Measured:
    """Runs the order `times` times, or until every objective is decided and at most for `until_ns`; the seed is
    another each time.

    Raises LoadgenError before anything was sent, and where no run was finished.
    """
    if until_ns is not None and not order.profile.objectives:
        raise LoadgenError(
            f'{order.profile.name}: --until-sure needs an objective, e.g. --objective "latency p99 < 250ms"'
        )
    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    path = make_run_folder(order.profile.name, order.out, started, JOURNAL)
    repeats = _Repeats(path, order, times, until_ns, started)
    try:
        return repeats.go()
    finally:
        if not repeats.runs:
            shutil.rmtree(path, ignore_errors=True)


class _Repeats:
    """The loop and what it writes down."""

    def __init__(
        self, path: Path, order: Order, times: int | None, until_ns: int | None, started: str
    ) -> None:
        self.path, self.order, self.times, self.until_ns, self.started = path, order, times, until_ns, started
        self.runs: list[str] = []
        self.looks: list[Look] = []
        self.status = "running"

    def go(self) -> Measured:
        began, before = time.monotonic_ns(), 0.0
        try:
            while self._goes_on(time.monotonic_ns() - began):
                number = len(self.runs) + 1
                self._say(number)
                if not self._run(number):
                    self._save("interrupted")
                    return Measured(self.path, interrupted=True)
                if self.until_ns is not None:
                    used = (time.monotonic_ns() - began) / self.until_ns
                    longest = (time.monotonic_ns() - began) / number / self.until_ns  # of a run
                    used = 1.0 if used + longest > 1 else used  # no other run fits: this is the last look
                    self._look(alpha_at(used, before))
                    before = used
                    if self.looks[-1].is_decided or used >= 1:
                        break
        except KeyboardInterrupt:
            if not self.runs:
                raise
            self._save("interrupted")
            return Measured(self.path, interrupted=True)
        except LoadgenError:
            if self.runs:
                self._save("broken")
            raise
        self._save("finished")
        return Measured(self.path, interrupted=False)

    def _goes_on(self, used_ns: int) -> bool:
        if self.times is not None:
            return len(self.runs) < self.times
        return self.until_ns is not None and (not self.runs or used_ns < self.until_ns)

    def _say(self, number: int) -> None:
        undecided = (
            sum(verdict is Verdict.INCONCLUSIVE for verdict in self.looks[-1].verdicts) if self.looks else 0
        )
        of = f" of {self.times}" if self.times is not None else ""
        left = f"; {undecided} of {len(self.looks[-1].verdicts)} objectives undecided" if self.looks else ""
        self.order.say(f"run {number}{of}{left}")

    def _run(self, number: int) -> bool:
        """One run; False when it was interrupted.  An interrupted first run counts: there is nothing else."""
        folder = self.path / str(number)
        order = replace(self.order, seed=self.order.seed + number - 1, out=folder)
        done = measure(order)
        if done.interrupted and self.runs:
            if (folder / RUN).exists():
                folder.rename(self.path / f"cut-{number}")  # kept, in no figure
            return False
        self.runs.append(folder.name)
        self._save("running")
        return not done.interrupted

    def _look(self, alpha: float) -> None:
        runs = runs_in([self.path])
        texts = [one.text for one in self.order.profile.objectives]
        rows = summarise_runs(runs, texts, alpha=alpha)["slo"]
        self.looks.append(Look(len(runs), alpha, tuple(Verdict(row["verdict"]) for row in rows)))

    def _save(self, status: str) -> None:
        journal: dict[str, Any] = {
            "format": FORMAT,
            "status": status,
            "started_at": self.started,
            "command": self.order.command,
            "profile": self.order.profile.name,
            "runs": self.runs,
            "until_sure": self.until_ns is not None
            and {
                "limit_s": self.until_ns / 1e9,
                "method": NAME,
                "looks": [asdict(look) for look in self.looks],
            },
        }
        write_atomic(self.path / JOURNAL, json.dumps(journal, indent=1) + "\n")
