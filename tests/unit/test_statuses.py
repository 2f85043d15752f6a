"""What statuses with a server's words are called: a full queue apart from an outage."""

import pytest

from loadgen.records import Outcome, QueueFull
from loadgen.transport.outcomes import as_profile_has_it, grpc_outcome
from loadgen.wire.hpack_lite import Trailers
from loadgen.wire.statuses import grpc_status_outcome, http_outcome, says_full

TORCHSERVE_FULL = (
    'Model "m" has no worker to serve inference request. Please use scale workers API to add workers.'
)
TENSORFLOW_FULL = "The batch scheduling queue to which this task was submitted is full"
RAY_FULL = "Request dropped due to backpressure (num_queued_requests=2, max_queued_requests=2)."

HTTP = [
    (200, "", Outcome.OK),
    (302, "", Outcome.PROTOCOL),
    (429, "", Outcome.REJECTED),
    (429, "anything", Outcome.REJECTED),
    (404, "no such model", Outcome.HTTP_4XX),
    (500, "died", Outcome.HTTP_5XX),
    (503, "", Outcome.HTTP_5XX),
    (503, "<html><body><h1>503 Service Unavailable</h1>\nNo server is available", Outcome.HTTP_5XX),
    (
        503,
        '{"code": 503, "type": "InternalServerException", "message": "Prediction failed"}',
        Outcome.HTTP_5XX,
    ),
    (
        503,
        "upstream connect error or disconnect/reset before headers. reset reason: overflow",
        Outcome.REJECTED,
    ),
    (
        503,
        "upstream connect error or disconnect/reset before headers. reset reason: timeout",
        Outcome.HTTP_5XX,
    ),
    (503, "Loading model", Outcome.HTTP_5XX),
    (503, '{"error":"[request id: 7] Exceeds maximum queue size"}', Outcome.REJECTED),
    (400, '{"error":"Exceeds maximum queue size"}', Outcome.REJECTED),
    (503, "Request timeout expired", Outcome.REJECTED),
    (500, "Request timeout expired", Outcome.HTTP_5XX),
    (504, "Request timeout expired", Outcome.HTTP_5XX),
    (503, TORCHSERVE_FULL, Outcome.REJECTED),
    (503, TENSORFLOW_FULL, Outcome.REJECTED),
    (503, RAY_FULL, Outcome.REJECTED),
    (503, "The request queue is full.", Outcome.REJECTED),
    (503, "pending request queue full", Outcome.REJECTED),
    (502, "", Outcome.HTTP_5XX),
]
GRPC = [
    (14, "", Outcome.GRPC_STATUS),
    (14, "Exceeds maximum queue size", Outcome.REJECTED),
    (14, "Request timeout expired", Outcome.REJECTED),
    (14, "no healthy upstream", Outcome.GRPC_STATUS),
    (14, "upstream connect error or disconnect/reset before headers. reset reason: connection termination",
     Outcome.GRPC_STATUS),
    (14, "Request for unknown model: 'm' version 1 is not at ready state", Outcome.GRPC_STATUS),
    (14, "max connection age", Outcome.GRPC_STATUS),
    (14, TENSORFLOW_FULL, Outcome.REJECTED),
    (13, TORCHSERVE_FULL, Outcome.REJECTED),
    (13, "Prediction failed", Outcome.GRPC_STATUS),
    (8, "", Outcome.REJECTED),
    (8, "quota", Outcome.REJECTED),
    (8, "Received message larger than max (5000000 vs. 4194304)", Outcome.GRPC_STATUS),
    (8, "grpc: received message larger than max (5 vs. 4)", Outcome.GRPC_STATUS),
    (8, "CLIENT: Sent message larger than max (5 vs. 4)", Outcome.GRPC_STATUS),
    (8, "gRPC message exceeds maximum size 4194304: 4194305", Outcome.GRPC_STATUS),
    (8, "OOM when allocating tensor with shape[8,1024]", Outcome.GRPC_STATUS),
    (4, "", Outcome.TIMEOUT),
    (5, "no such model", Outcome.GRPC_STATUS),
]  # fmt: skip


@pytest.mark.parametrize(("status", "words", "outcome"), HTTP)
def test_an_http_status_with_words(status, words, outcome):
    assert http_outcome(status, words) is outcome


@pytest.mark.parametrize(("status", "words", "outcome"), GRPC)
def test_a_grpc_status_with_words(status, words, outcome):
    assert grpc_status_outcome(status, words) is outcome
    assert grpc_outcome(Trailers(200, status, words), got_data=False)[:2] == (outcome, status)


def test_retry_after_means_full_with_503_alone():
    assert http_outcome(503, retry_after=True) is Outcome.REJECTED
    assert http_outcome(500, retry_after=True) is Outcome.HTTP_5XX
    assert http_outcome(404, retry_after=True) is Outcome.HTTP_4XX
    for trailers, outcome in (
        (Trailers(503, None, "", retry_after=True), Outcome.REJECTED),
        (Trailers(503, None, ""), Outcome.HTTP_5XX),
        (Trailers(429, None, ""), Outcome.REJECTED),
    ):
        assert grpc_outcome(trailers, got_data=False)[0] is outcome


def test_without_a_status_the_words_alone_decide():
    assert says_full(0, "in ensemble e, Exceeds maximum queue size")
    assert not says_full(0, "the model is away")


@pytest.mark.parametrize(
    ("full", "outcome", "status", "words", "expected"),
    [
        (QueueFull(frozenset((503,))), Outcome.HTTP_5XX, 503, "x", Outcome.REJECTED),
        (QueueFull(frozenset((503,))), Outcome.HTTP_5XX, 500, "x", Outcome.HTTP_5XX),
        (QueueFull(frozenset((503,)), ("busy",)), Outcome.HTTP_5XX, 503, "I am BUSY", Outcome.REJECTED),
        (QueueFull(frozenset((503,)), ("busy",)), Outcome.HTTP_5XX, 503, "away", Outcome.HTTP_5XX),
        (QueueFull(words=("busy",)), Outcome.GRPC_STATUS, 13, "busy", Outcome.REJECTED),
        (QueueFull(frozenset((14,))), Outcome.GRPC_STATUS, 14, None, Outcome.REJECTED),
        # within a stream: no status, so words are needed
        (QueueFull(frozenset((503,))), Outcome.HTTP_5XX, 0, "busy", Outcome.HTTP_5XX),
        (QueueFull(frozenset((503,)), ("busy",)), Outcome.HTTP_5XX, 0, "busy", Outcome.REJECTED),
        # what came of no answer is none of a server's queue
        (QueueFull(words=("ended",)), Outcome.CONNECTION, 0, "the connection ended", Outcome.CONNECTION),
        (QueueFull(words=("x",)), Outcome.OK, 200, "x", Outcome.OK),
        (None, Outcome.HTTP_5XX, 503, "busy", Outcome.HTTP_5XX),
    ],
)
def test_a_profile_says_what_means_full(full, outcome, status, words, expected):
    assert as_profile_has_it(outcome, status, words, full) is expected
