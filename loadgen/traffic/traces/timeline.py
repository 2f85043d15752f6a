"""Trace time: where a file's stamps lie from its first row on, and when the rows that are left are due.

A *seam* is a row whose time falls back by more than half of what its part of the file has lasted so far: another
recording begins.  A smaller step back is a row written late: it stays in its part and is put in its place at the
end, rows of equal time in file order.  It must not know files or columns.
"""

from dataclasses import dataclass, field

import numpy as np

from loadgen.traffic.trace import Seam
from loadgen.traffic.traces.columns import Ints

MOST_SEAMS = 1000
_STRETCH = 1 << 20


class StepBackError(ValueError):
    """Time that goes back and may not; `row` counts within the rows given."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row


@dataclass(slots=True)
class Timeline:
    """Carries stamps to trace time, a stretch of rows after the other.

    `concat` starts each part where the one before ended; `first` ends the file at the first seam; `refuse`
    takes no step back at all; `sort` knows no seams.  Times are ns; 0 is the file's first row.
    """

    policy: Seam
    seams: list[tuple[int, int, int]] = field(
        default_factory=list
    )  # row, time before, time after: as stamped
    late: int = 0
    latest_ns: int = 0
    ended: bool = False
    rows: int = 0
    _start: int | None = None  # the part's first stamp, its latest so far, and what is added to a stamp
    _top: int = 0
    _shift: int = 0

    def place(self, stamps: Ints) -> Ints:
        """Trace times of the next rows; fewer than given when `first` ends the file there.

        Raises StepBackError.
        """
        if self._start is None and len(stamps):
            self._start = self._top = int(stamps[0])
            self._shift = -self._start
        placed: list[Ints] = []
        at = 0
        while at < len(stamps):
            at = self._stretch(stamps, at, placed)
            if self.ended:
                break
        times = np.concatenate(placed) if placed else stamps[:0]
        self.rows += len(times)
        return times

    def _stretch(self, stamps: Ints, at: int, placed: list[Ints]) -> int:
        """Rows up to the next seam."""
        assert self._start is not None  # noqa: S101 - set by the first row
        rest = stamps[at:]
        before = np.maximum.accumulate(np.concatenate(([self._top], rest[:-1])))
        back = before - rest
        if self.policy == "refuse" and (back > 0).any():
            row = int(np.argmax(back > 0))
            raise StepBackError(at + row, f"time goes back by {back[row] * 1e-9:g} s")
        fell = (back > 0) & (back > (before - self._start) // 2)
        n = int(np.argmax(fell)) if self.policy != "sort" and fell.any() else len(rest)
        behind = back[:n] > 0
        if behind.any():
            self.late += int(behind.sum())
            self.latest_ns = max(self.latest_ns, int(back[:n].max()))
        placed.append(rest[:n] + self._shift)
        if n:
            self._top = max(self._top, int(rest[:n].max()))
        if n < len(rest):
            self._seam(at + n, int(rest[n]))
        return at + n

    def _seam(self, row: int, stamp: int) -> None:
        self.seams.append((self.rows + row, self._top, stamp))
        if len(self.seams) > MOST_SEAMS:
            raise StepBackError(
                row,
                f"time falls back for the {len(self.seams):,}th time; if the rows are merely out of order",
            )
        if self.policy == "first":
            self.ended = True
            return
        self._shift += self._top - stamp
        self._start = self._top = stamp


def due(times: Ints, max_gap_ns: int | None, speed: float) -> tuple[Ints, int, int]:
    """When rows of ascending trace time are due, the first at 0; how many gaps were cut, by how much in all.

    A gap longer than `max_gap_ns` of trace time lasts `max_gap_ns`; then all is divided by `speed`.  The given
    array becomes the due times: there may be tens of millions.
    """
    since = times
    since -= int(times[0])
    cut = cut_ns = 0
    if max_gap_ns is not None:
        gaps = np.diff(since)
        long = gaps > max_gap_ns
        cut, cut_ns = int(long.sum()), int((gaps[long] - max_gap_ns).sum())
        np.cumsum(np.minimum(gaps, max_gap_ns, out=gaps), out=since[1:])
    for at in range(0, len(since) if speed != 1 else 0, _STRETCH):
        part = since[at : at + _STRETCH]
        part[:] = np.rint(part / speed)
    return since, cut, cut_ns


def fullest(due_ns: Ints, width_ns: int) -> int:
    """The most rows due in one stretch of this width, the first beginning at 0; 1 ns: at the same instant."""
    most = run = 0
    last = None
    for at in range(0, len(due_ns), _STRETCH):  # by the stretch: a week's plan is large
        bins = due_ns[at : at + _STRETCH] // width_ns
        edges = np.concatenate(([0], np.flatnonzero(np.diff(bins)) + 1, [len(bins)]))
        runs = np.diff(edges)
        runs[0] += run if bins[0] == last else 0
        most, run, last = max(most, int(runs.max())), int(runs[-1]), bins[-1]
    return most
