"""Several runs of one profile in one folder: a number of them, or until every objective is decided."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from loadgen.analysis.pool import pool
from loadgen.analysis.repeats import (
    FORMAT,
    JOURNAL,
    Look,
    Status,
    Stop,
    is_measured,
    look,
    read_journal,
)
from loadgen.analysis.sequential import NAME, design
from loadgen.analysis.slo import Verdict, measured_of
from loadgen.analysis.summary import summarise
from loadgen.lab.run import Order, measure
from loadgen.records import LoadgenError, NotWrittenError
from loadgen.runfile import make_run_folder, write_atomic
from loadgen.runread import read_run
from loadgen.units import show_ns

if TYPE_CHECKING:
    from pathlib import Path

    from loadgen.analysis.sequential import Design
    from loadgen.runread import Run

MOST_RUNS = 1000


@dataclass(frozen=True, slots=True)
class Repeats:
    """How many runs: `times`, or None for until every objective is decided and at most for `limit_ns`."""

    times: int | None
    limit_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Repeated:
    """Where the runs lie, whether they were cut short, and why no more could be made."""

    path: Path
    interrupted: bool
    error: LoadgenError | None = None


def repeat(order: Order, repeats: Repeats) -> Repeated:
    """Makes the runs, each with the next seed, or goes on with those that lie in `order.out` already.

    Raises LoadgenError before anything was sent, and where no run was finished.
    """
    if repeats.times is None and not order.profile.objectives:
        raise LoadgenError(
            f'{order.profile.name}: --until-sure needs an objective, e.g. --objective "latency p99 < 250ms"'
        )
    journal = None if order.out is None else read_journal(order.out)
    if order.out is not None and journal is not None:
        return _Repeats(order.out, order, repeats).resume(journal)
    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    path = make_run_folder(order.profile.name, order.out, started, JOURNAL)
    return _Repeats(path, order, repeats, started).go()


@dataclass(slots=True)
class _Repeats:
    """The loop and what it writes down: the journal is whole before and after every run."""

    path: Path
    order: Order
    repeats: Repeats
    started: str = ""
    runs: list[str] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    last: Look | None = None  # also one that is none of the design's: it decides nothing
    design: Design | None = None  # known once a run has shown how long it takes
    used_ns: int = 0  # of the limit
    longest_ns: int = 0  # of a run
    stop: Stop | None = None

    def resume(self, journal: dict[str, Any]) -> Repeated:
        """Goes on with runs of the same order.  Raises LoadgenError when they are of another."""
        for what, mine in self._identity().items():
            if journal.get(what) != mine:
                raise LoadgenError(
                    f"output {self.path}: holds runs with another {what.removesuffix('_ns')}; go on with the same command, or "
                    "choose another folder with --out"
                )
        self.started, self.runs = journal["started_at"], journal["runs"]
        if (
            self.runs and read_run(self.path / self.runs[-1]).info["status"] != "finished"
        ):  # the first, when nothing else was there
            self._set_aside(self.path / self.runs.pop())
        if (until := journal.get("until_sure")) is not None:
            self.used_ns, self.longest_ns = until["used_ns"], until["longest_ns"]
            self.design = until["most_runs"] and design(until["most_runs"])
            self.looks = [_look(one) for one in until["looks"]]
            self.stop = until["stop"] and Stop(until["stop"])
        self.order.say(f"going on in {self.path} after {len(self.runs)} of its runs")
        return self.go()

    def go(self) -> Repeated:
        """Runs until there are enough.  What was finished is kept, however it ends."""
        status, error, whole = Status.RUNNING, None, True
        try:
            while whole and not self._is_enough():
                whole = self._run()
            status = Status.FINISHED if whole else Status.INTERRUPTED
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        except NotWrittenError:
            raise  # then there is nothing to write about it either
        except LoadgenError as why:
            status, error = Status.FAILED, why
        if self.runs:
            self._save(status)
            return Repeated(self.path, status is Status.INTERRUPTED, error)
        with contextlib.suppress(OSError):  # a run that had to be given up stays in it
            (self.path / JOURNAL).unlink()
            self.path.rmdir()
        if error is not None:
            raise error
        raise KeyboardInterrupt

    def _is_enough(self) -> bool:
        if self.repeats.times is not None:
            return len(self.runs) >= self.repeats.times
        return self.stop is not None

    def _run(self) -> bool:
        """One run; False when it was interrupted.  An interrupted first run counts: there is nothing else."""
        number = len(self.runs) + 1
        folder = self.path / str(number)
        self._set_aside(folder)  # of a process that was killed
        self._save(Status.RUNNING)
        self.order.say(f"run {number}{self._state()}")
        began = time.monotonic_ns()
        measured = measure(replace(self.order, seed=self.order.seed + number - 1, out=folder))
        if measured.interrupted and self.runs:
            self._set_aside(folder)
            return False
        self.runs.append(folder.name)
        if measured.interrupted:
            return False
        if self.repeats.limit_ns is not None:
            took = time.monotonic_ns() - began
            self.used_ns, self.longest_ns = self.used_ns + took, max(self.longest_ns, took)
            self._judge(folder, self.repeats.limit_ns)
        return True

    def _judge(self, folder: Path, limit_ns: int) -> None:
        """Looks at all runs so far, where the design says so or no other run fits into the limit."""
        if self.design is None:
            self.design = design(min(MOST_RUNS, max(1, limit_ns // self.used_ns)))
            self.order.say(
                f"at most {self.design.looks[-1]} runs like this in {show_ns(limit_ns)}, judged by {100 * (1 - self.design.alpha):.4g} % "
                f"intervals: wrong in at most {100 * self.design.error:g} % of cases, all looks together"
            )
        n = len(self.runs)
        over = n >= self.design.looks[-1] or self.used_ns + self.longest_ns > limit_ns
        texts = [one.text for one in self.order.profile.objectives]
        self.last = look(texts, measured_of(pool(self._read()), texts, alpha=self.design.alpha))
        counts = n in self.design.looks or over
        if counts:
            self.looks.append(self.last)
        if not is_measured(summarise(folder)):
            self.stop = Stop.NOT_VALID
        elif self.last.undecidable and (counts or not self.last.decided):
            self.stop = Stop.UNDECIDABLE
        elif counts and self.last.is_decided:
            self.stop = Stop.DECIDED
        elif over:
            self.stop = Stop.TIME_LIMIT

    def _read(self) -> list[Run]:
        return [read_run(self.path / name) for name in self.runs]

    def _state(self) -> str:
        """How far it is, for the line that begins a run."""
        if self.repeats.times is not None:
            return f" of {self.repeats.times}"
        if self.last is None or self.design is None:
            return ""
        n, more = len(self.last.verdicts) - self.last.decided, self.last.more_runs
        if not n:
            due = next(look for look in self.design.looks if look > self.last.runs)
            return f"; decided so far, which counts after run {due}"
        would = f", about {more} more run{'' if more == 1 else 's'} would tell" if more else ""
        return f"; {n} of {len(self.last.verdicts)} objective{'' if len(self.last.verdicts) == 1 else 's'} undecided{would}"

    def _set_aside(self, folder: Path) -> None:
        """What was cut is kept under another name: it is in no figure."""
        if not folder.exists():
            return
        try:
            folder.rename(self.path / f"cut-{len(list(self.path.glob('cut-*'))) + 1}")
        except OSError as why:
            raise NotWrittenError(folder, why) from None

    def _identity(self) -> dict[str, Any]:
        """What must be the same for runs to lie in one folder."""
        order = self.order
        return {
            "profile": {"name": order.profile.name, "sha256": order.profile.sha256},
            "objectives": [one.text for one in order.profile.objectives],
            "target": order.target.url,
            "seed": order.seed,
            "limit_ns": self.repeats.limit_ns,
        }

    def _save(self, status: Status) -> None:
        until = None
        if self.repeats.limit_ns is not None:
            until = {
                "limit_ns": self.repeats.limit_ns, "used_ns": self.used_ns, "longest_ns": self.longest_ns,
                "method": NAME, "error_rate": self.design and self.design.error,
                "alpha": self.design and self.design.alpha, "most_runs": self.design and self.design.looks[-1],
                "stop": self.stop, "looks": [asdict(one) for one in self.looks],
            }  # fmt: skip
        journal = {
            "format": FORMAT, "status": status, "started_at": self.started, "command": self.order.command,
            **self._identity(), "runs": self.runs, "until_sure": until,
        }  # fmt: skip
        write_atomic(self.path / JOURNAL, json.dumps(journal, indent=1) + "\n")


def _look(told: dict[str, Any]) -> Look:
    return Look(**told | {"verdicts": tuple(map(Verdict, told["verdicts"]))})
