"""Some rows of a run, and the few selections that every figure is made from.

The rules that decide which request counts where stand here, once:

* `sent`: has a sent stamp: its bytes left, so the server may have seen it.
* `tried`: all but those dropped, and those given up before they were sent.  One for which no connection
  could be made, or that waited at the cap for its whole timeout, was tried and not sent.
  tried = ok + failed + rejected + timeout + cancelled after being sent.
* `cancelled`: given up by us because the run was interrupted.
* `planned_cancel`: given up by us because the profile asks for it: load, no failure, and in no percentile.
* `judged`: all but these two, of which nobody knows how they would have ended.
* A request belongs to the phase in which it was due, however late it ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.analysis.columns import Columns, Ints, Small, columns_of
from loadgen.records import Outcome
from loadgen.runread import Run

Bools = npt.NDArray[np.bool_]
BY_US = (Outcome.CANCELLED, Outcome.PLANNED_CANCEL)
NOT_FAILED = (Outcome.OK, Outcome.REJECTED, Outcome.TIMEOUT, Outcome.DROPPED, *BY_US)


@dataclass(frozen=True, slots=True)
class Frame:
    """Some rows of the columns; `keep` None: all.

    A selection copies nothing but its mask: a column is picked when it is asked for, so hold on to what is
    needed twice.
    """

    columns: Columns
    keep: Bools | None = None

    def __len__(self) -> int:
        return int(self.columns.due_ns.size if self.keep is None else np.count_nonzero(self.keep))

    def where(self, keep: Bools) -> "Frame":
        if keep.all():
            return self
        if self.keep is None:
            return Frame(self.columns, keep)
        both = self.keep.copy()
        both[self.keep] = keep
        return Frame(self.columns, both)

    def of_phases(self, places: Sequence[int]) -> "Frame":
        """The rows of these phases; of neighbours, in a whole run, a slice."""
        neighbours = places and list(places) == list(range(places[0], places[-1] + 1))
        if self.keep is None and neighbours:
            return Frame(self.columns.of_phases(places[0], places[-1]))
        return self.where(np.isin(self.phase, places))

    def of_phase(self, place: int) -> "Frame":
        return self.of_phases([place])

    def _picked(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return column if self.keep is None else column[self.keep]

    @property
    def phase(self) -> Small:
        return self._picked(self.columns.phase)

    @property
    def kind(self) -> Small:
        return self._picked(self.columns.kind)

    @property
    def due_ns(self) -> Ints:
        return self._picked(self.columns.due_ns)

    @property
    def sent_ns(self) -> Ints:
        return self._picked(self.columns.sent_ns)

    @property
    def done_ns(self) -> Ints:
        return self._picked(self.columns.done_ns)

    @property
    def length(self) -> Small:
        return self._picked(self.columns.length)

    @property
    def items(self) -> Small:
        return self._picked(self.columns.items)

    @property
    def outcome(self) -> Small:
        return self._picked(self.columns.outcome)

    @property
    def status(self) -> Small:
        return self._picked(self.columns.status)

    @property
    def detail(self) -> Small:
        """Places in `texts`."""
        return self._picked(self.columns.detail)

    @property
    def texts(self) -> tuple[str, ...]:
        return self.columns.texts

    def _ended(self, outcome: Outcome) -> Bools:
        return np.asarray(self.outcome == outcome, dtype=np.bool_)

    @property
    def sent(self) -> Bools:
        return self.sent_ns >= 0

    @property
    def ok(self) -> Bools:
        return self._ended(Outcome.OK)

    @property
    def rejected(self) -> Bools:
        return self._ended(Outcome.REJECTED)

    @property
    def timeout(self) -> Bools:
        return self._ended(Outcome.TIMEOUT)

    @property
    def dropped(self) -> Bools:
        return self._ended(Outcome.DROPPED)

    @property
    def planned_cancel(self) -> Bools:
        return self._ended(Outcome.PLANNED_CANCEL)

    @property
    def cancelled(self) -> Bools:
        return self._ended(Outcome.CANCELLED)

    @property
    def failed(self) -> Bools:
        """Every other way of not being ok."""
        return ~np.isin(self.outcome, NOT_FAILED)

    @property
    def tried(self) -> Bools:
        return ~self.dropped & (self.judged | self.sent)

    @property
    def judged(self) -> Bools:
        return ~(self.cancelled | self.planned_cancel)

    def stream(self, name: str) -> npt.NDArray[Any]:
        """A column of what came in pieces (analysis.streams); only of a run that has streams."""
        return self._picked(getattr(self.columns.streams, name))

    @property
    def streamed(self) -> Bools:
        """Whose answers came in pieces, or would have."""
        if self.columns.streams is None:
            return np.zeros(len(self), np.bool_)
        return np.asarray(self.stream("chunks") >= 0, np.bool_)

    @property
    def latency_ns(self) -> Ints:
        return self.done_ns - self.due_ns

    @property
    def service_ns(self) -> Ints:
        """Only meaningful where `sent`."""
        return self.done_ns - self.sent_ns

    @property
    def lag_ns(self) -> Ints:
        """Only meaningful where `sent`."""
        return self.sent_ns - self.due_ns


def frame_of(run: Run) -> Frame:
    """All rows of a run."""
    return Frame(columns_of(run))


def measured_phases(info: dict[str, Any]) -> list[int]:
    """The places of the phases whose figures count."""
    return [place for place, phase in enumerate(info.get("phases", [])) if phase.get("measured")]
