"""The rows of a run as numpy columns, and the few selections that every figure is made from.

The rules that decide which request counts where stand here, once:

* `sent`: has a sent stamp: its bytes left, so the server may have seen it.
* `tried`: all but those dropped, and those given up before they were sent.  One for which no connection
  could be made, or that waited at the cap for its whole timeout, was tried and not sent.
  tried = ok + failed + rejected + timeout + cancelled after being sent.
* `judged`: all but the cancelled, of which nobody knows how they would have ended.
* A request belongs to the phase in which it was due, however late it ended.

This module must not know what is computed from the columns.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.records import Outcome
from loadgen.runfile import Run

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
NEVER = -1  # stands for null in sent_ns, first_ns and length


@dataclass(frozen=True, slots=True)
class Frame:
    """Columns of equal length.

    `phase` and `kind` index run.json's lists, `outcome` holds the numbers of records.Outcome.
    """

    phase: Ints
    kind: Ints
    due_ns: Ints
    sent_ns: Ints
    first_ns: Ints
    done_ns: Ints
    length: Ints
    items: Ints
    outcome: Ints
    status: Ints
    detail: npt.NDArray[np.object_]

    def __len__(self) -> int:
        return int(self.due_ns.size)

    def where(self, keep: Bools) -> "Frame":
        return Frame(*(getattr(self, field.name)[keep] for field in fields(self)))

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
    def cancelled(self) -> Bools:
        return self._ended(Outcome.CANCELLED)

    @property
    def failed(self) -> Bools:
        """Every other way of not being ok."""
        return ~(self.ok | self.rejected | self.timeout | self.dropped | self.cancelled)

    @property
    def tried(self) -> Bools:
        return ~self.dropped & (~self.cancelled | self.sent)

    @property
    def judged(self) -> Bools:
        return ~self.cancelled

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
    """The records of a run; null times and lengths become NEVER.  Rows of an unlisted phase are left out."""
    table = run.records

    def ints(name: str) -> Ints:
        return np.asarray(table.column(name).fill_null(NEVER).to_numpy(), dtype=np.int64)

    def codes(name: str, listed: list[str], otherwise: int) -> Ints:
        """Dictionary codes of the file turned into places in `listed`, without a string per row."""
        column = table.column(name).unify_dictionaries().combine_chunks()
        known = {text: place for place, text in enumerate(listed)}
        places = [known.get(text, otherwise) for text in column.dictionary.to_pylist()]
        indices = np.asarray(column.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
        return np.array([*places, otherwise], dtype=np.int64)[indices]

    outcomes = [outcome.name.lower() for outcome in sorted(Outcome)]
    frame = Frame(
        phase=codes("phase", [phase["name"] for phase in run.info.get("phases", [])], NEVER),
        kind=codes("kind", [kind["name"] for kind in run.info.get("kinds", [])], NEVER),
        outcome=codes("outcome", outcomes, int(Outcome.CLIENT)),
        detail=np.asarray(table.column("detail").to_numpy(zero_copy_only=False), dtype=np.object_),
        **{n: ints(n) for n in ("due_ns", "sent_ns", "first_ns", "done_ns", "length", "items", "status")},
    )
    return frame.where(frame.phase != NEVER)


def measured_phases(info: dict[str, Any]) -> list[int]:
    """The places of the phases whose figures count."""
    return [place for place, phase in enumerate(info.get("phases", [])) if phase.get("measured")]
