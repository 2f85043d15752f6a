"""What goes into the loop and what comes out of it, besides records.  No behaviour here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loadgen.records import Streamed
    from loadgen.seams import Prepared


class Shot(NamedTuple):
    """One payload variant, ready to be sent: framed bytes, its kind, its length (-1: has none) and rows.

    `care` is for those that are more than one sending and one answer; None keeps the hot path short.
    """

    prepared: Prepared
    kind: int
    length: int
    items: int
    care: Care | None = None


class Dialogue(Protocol):
    """Requests that follow one another, each made when the one before was answered.  Their care is the opening's."""

    def first(self) -> Shot: ...

    def after(self, streamed: Streamed | None, *, last: bool) -> Shot | None:
        """The next request, given what came of the one before; None when that was the end.

        `last`: the load is over; what follows may only bring the dialogue to its end.
        """


@dataclass(frozen=True, slots=True)
class Care:
    """What a variant needs besides being sent.

    `begin(n)` makes the n-th dialogue of the run, which this variant opens; each later request is due
    `think_ns` after the answer to the one before.
    """

    cancel_ns: int = 0  # the client gives it up so long after sending; 0: never
    begin: Callable[[int], Dialogue] | None = None
    think_ns: int = 0


@dataclass(frozen=True, slots=True)
class Cap:
    """At most `in_flight` requests at once (None: no cap); beyond it an arrival waits or is dropped."""

    in_flight: int | None = None
    drop: bool = False


NO_CAP = Cap()


@dataclass(slots=True)
class Counts:
    """The run so far, for a progress line.  `ok` and `failed` are all that ended; `sent` those that left."""

    due: int = 0
    sent: int = 0
    ok: int = 0
    failed: int = 0
    dropped: int = 0
    cap_waits: int = 0


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """What the loop saw of one phase besides its records; times from the start of the run."""

    start_ns: int
    load_end_ns: int  # the planned end; else when the last request was sent, or when it was stopped
    end_ns: int  # drained
    max_in_flight: int
    cap_waits: int
    conn_waits: int  # requests that no open connection could take at once
    resent: int
    reconnects: int
    cut_short: int  # connections closed because a streamed answer was over and its framing did not end
    begun: int  # arrivals that were due, later requests of dialogues not counted
    followed: int  # requests of dialogues after their first: they were due besides those planned
    cpu_ns: int  # until the load's end: user and system, of all processes that send
    cpu_max_ns: int  # of the busiest of them
    loop_lag_ns: dict[str, int | None]


def merge_results(parts: Sequence[PhaseResult]) -> PhaseResult:
    """One phase, sent by several processes: sums, but the busiest's CPU and the worst event loop's lag.

    `max_in_flight` adds up maxima that need not have come at one time: an upper bound.
    """
    return PhaseResult(
        start_ns=min(p.start_ns for p in parts),
        load_end_ns=max(p.load_end_ns for p in parts),
        end_ns=max(p.end_ns for p in parts),
        max_in_flight=sum(p.max_in_flight for p in parts),
        cap_waits=sum(p.cap_waits for p in parts),
        conn_waits=sum(p.conn_waits for p in parts),
        resent=sum(p.resent for p in parts),
        reconnects=sum(p.reconnects for p in parts),
        cut_short=sum(p.cut_short for p in parts),
        begun=sum(p.begun for p in parts),
        followed=sum(p.followed for p in parts),
        cpu_ns=sum(p.cpu_ns for p in parts),
        cpu_max_ns=max(p.cpu_max_ns for p in parts),
        loop_lag_ns=max((p.loop_lag_ns for p in parts), key=lambda lag: lag["p99"] or 0),
    )
