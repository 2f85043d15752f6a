"""What the reference transport and its two carriers hand to each other.  It must not know any library."""

from typing import TYPE_CHECKING, Any, NamedTuple

from loadgen.records import Outcome

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from loadgen.records import Request


class PreparedReference:
    """A request in the library's own terms."""

    __slots__ = ("bytes_out", "check", "full", "judge", "patched", "request")

    patched: "Callable[[bytes], PreparedReference]"  # see seams.Prepared

    def __init__(self, request: Any, bytes_out: int, asked: "Request") -> None:
        self.request = request
        self.bytes_out = bytes_out
        self.check, self.full, self.judge = asked.check, asked.full, asked.judge


class Flight:
    """One request on its way; a stamp is 0 until its moment came."""

    __slots__ = ("first_ns", "prepared", "sent_ns", "task", "token")

    def __init__(self, token: int, prepared: PreparedReference) -> None:
        self.token = token
        self.prepared = prepared
        self.sent_ns = self.first_ns = 0
        self.task: asyncio.Task[None] | None = None


class Ended(NamedTuple):
    """How it ended; `body` only if it was to be kept."""

    outcome: Outcome
    status: int
    bytes_in: int
    detail: str | None
    body: Any = None
