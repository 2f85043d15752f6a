"""What the end of a gRPC stream is called in the closed list of outcomes.  It must not know connections."""

from loadgen.records import Outcome, QueueFull
from loadgen.wire.hpack_lite import Trailers
from loadgen.wire.statuses import grpc_status_outcome, http_outcome

_NAMES = ("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
          "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
          "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED")  # fmt: skip
_ANSWERED = (Outcome.HTTP_4XX, Outcome.HTTP_5XX, Outcome.GRPC_STATUS, Outcome.PROTOCOL, Outcome.TIMEOUT)


def as_profile_has_it(outcome: Outcome, status: int, words: str | None, full: QueueFull | None) -> Outcome:
    """The outcome of an answer, or REJECTED where the profile says that such a failure means a full queue.

    `status` 0: the failure came without one, within a stream.
    """
    if full is not None and outcome in _ANSWERED and full.matches(status, (words or "").lower()):
        return Outcome.REJECTED
    return outcome


def grpc_outcome(
    end: Trailers, *, got_data: bool, full: QueueFull | None = None
) -> tuple[Outcome, int, str | None]:
    """The closed list's word for how a stream ended, its status and its cause."""
    http, status = end.http_status, end.grpc_status
    if http is not None and http != 200:  # noqa: PLR2004 - OK
        outcome = http_outcome(http, retry_after=end.retry_after)
        if outcome is Outcome.OK:
            outcome = Outcome.PROTOCOL
        words = f"HTTP {http} where a gRPC answer was expected"
        return as_profile_has_it(outcome, http, words, full), http, words
    if status is None:
        return Outcome.STREAM_ENDED_EARLY, 0, "the stream ended without a grpc-status"
    if status == 0:
        if got_data:
            return Outcome.OK, 0, None
        return Outcome.PROTOCOL, 0, "grpc-status OK, but no message came"
    outcome = as_profile_has_it(grpc_status_outcome(status, end.message), status, end.message, full)
    name = _NAMES[status] if 0 < status < len(_NAMES) else f"grpc-status {status}"
    return outcome, status, end.message or name
