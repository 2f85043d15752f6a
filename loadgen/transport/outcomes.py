"""What the end of a gRPC stream is called in the closed list of outcomes.  It must not know connections."""

from loadgen.records import Outcome
from loadgen.wire.hpack_lite import Trailers
from loadgen.wire.statuses import http_outcome

_NAMES = ("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
          "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
          "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED")  # fmt: skip
_OUTCOMES = {0: Outcome.OK, 4: Outcome.TIMEOUT, 8: Outcome.REJECTED, 14: Outcome.REJECTED}


def grpc_outcome(end: Trailers, *, got_data: bool) -> tuple[Outcome, int, str | None]:
    """The closed list's word for how a stream ended, its status and its cause."""
    http, status = end.http_status, end.grpc_status
    if http is not None and http != 200:  # noqa: PLR2004 - OK
        outcome = http_outcome(http)
        if outcome is Outcome.OK:
            outcome = Outcome.PROTOCOL
        return outcome, http, f"HTTP {http} where a gRPC answer was expected"
    if status is None:
        return Outcome.STREAM_ENDED_EARLY, 0, "the stream ended without a grpc-status"
    if status == 0:
        if got_data:
            return Outcome.OK, 0, None
        return Outcome.PROTOCOL, 0, "grpc-status OK, but no message came"
    outcome = _OUTCOMES.get(status, Outcome.GRPC_STATUS)
    name = _NAMES[status] if 0 < status < len(_NAMES) else f"grpc-status {status}"
    return outcome, status, end.message or name
