"""What HTTP and gRPC statuses, with the server's own words, are called in the closed list of outcomes.

A full queue is a rejection and an outage is a failure; what cannot be told apart is a failure.
"""

import re

from loadgen.records import Outcome, QueueFull

TOO_MANY_REQUESTS, SERVICE_UNAVAILABLE = 429, 503
DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE = 4, 8, 13, 14  # of gRPC
_BUSY = frozenset((SERVICE_UNAVAILABLE, UNAVAILABLE))

# What each server writes, read from its source.  TorchServe says so of a full job queue; a handler's exception is a
# 503 too, in other words.  Triton answered 400 over HTTP before it answered 503.
KNOWN = {
    "Triton": QueueFull(_BUSY | {400}, ("exceeds maximum queue size", "request timeout expired")),
    "TensorFlow Serving": QueueFull(
        _BUSY, ("batch scheduling queue to which this task was submitted is full",)
    ),
    "TorchServe": QueueFull(_BUSY | {INTERNAL}, ("has no worker to serve inference request",)),
    "Ray Serve": QueueFull(_BUSY, ("request dropped due to backpressure",)),
    "BentoML": QueueFull(_BUSY, ("process is overloaded",)),
    "SGLang": QueueFull(_BUSY, ("the request queue is full",)),
    "Knative": QueueFull(_BUSY, ("pending request queue full", "activator overload")),
    "Envoy": QueueFull(_BUSY, ("reset reason: overflow",)),
}
# RESOURCE_EXHAUSTED that no pause mends: a message beyond a limit, memory that is used up
_TOO_LARGE = re.compile(
    r"\b(?:message|metadata|headers?|payload|request (?:body|size))\b.*(?:larger than|exceeds|too large|too big)"
    r"|\brequest (?:is )?too (?:large|big)|out of memory|\boom\b",
    re.IGNORECASE,
)


def says_full(status: int, words: str) -> bool:
    """Whether a known server says with this status (0: it came without one) that its queue is full."""
    text = words.lower()
    return any(one.matches(status, text) for one in KNOWN.values())


def http_outcome(status: int, words: str = "", *, retry_after: bool = False) -> Outcome:
    """What an HTTP status is called; `words`: of the body; `retry_after`: whether the answer has that header."""
    if status < 300:  # noqa: PLR2004 - success
        return Outcome.OK
    if status == TOO_MANY_REQUESTS or (status == SERVICE_UNAVAILABLE and retry_after):
        return Outcome.REJECTED
    if status < 400:  # noqa: PLR2004 - redirects are not followed
        return Outcome.PROTOCOL
    if says_full(status, words):
        return Outcome.REJECTED
    return Outcome.HTTP_5XX if status >= 500 else Outcome.HTTP_4XX  # noqa: PLR2004 - whose fault


def grpc_status_outcome(status: int, words: str) -> Outcome:
    """What a grpc-status is called; `words`: the grpc-message."""
    if status == 0:
        return Outcome.OK
    if status == DEADLINE_EXCEEDED:
        return Outcome.TIMEOUT
    if says_full(status, words):
        return Outcome.REJECTED
    if status == RESOURCE_EXHAUSTED and _TOO_LARGE.search(words) is None:
        return Outcome.REJECTED
    return Outcome.GRPC_STATUS
