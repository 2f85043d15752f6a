"""The nouns: what is planned, what came back, what a server says of itself, what we conclude.

Frozen and slotted.  A request that was sent is no object but a row of records.arrow (runfile.schema):
`lag = sent - due`, `service = done - sent`, `latency = done - due = lag + service`.  Times are ints in nanoseconds of one monotonic clock, counted from the start of the
run; quantiles are 0 to 1.  This module must not know how anything is sent, stored or shown.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from loadgen.exits import ExitCode


class Outcome(IntEnum):
    """How a request ended: a closed list.  `OK` is the only one whose latency enters success percentiles."""

    OK = 0
    CONNECT = 1  # no connection could be made
    TIMEOUT = 2  # no complete answer within the kind's timeout, counted from sent
    REJECTED = 3  # the server said that its queue is full (wire.statuses); an outage is no rejection
    HTTP_4XX = 4
    HTTP_5XX = 5
    GRPC_STATUS = 6  # any other grpc-status; the number is in `status`
    PROTOCOL = 7  # bytes that break the protocol
    STREAM_ENDED_EARLY = 8  # the answer began, and its connection or stream ended before it did
    CANCELLED = 9  # given up by us because the run was interrupted
    DROPPED = 10  # never sent: the cap was full and the profile says drop
    CLIENT = 11  # our own fault
    PLANNED_CANCEL = 12  # given up by us because the profile asks for it: load, not a failure
    CONNECTION = 13  # the connection or stream was lost before any of the answer came
    REFUSED_STREAM = 14  # HTTP/2 REFUSED_STREAM, also after several tries


@dataclass(frozen=True, slots=True)
class QueueFull:
    """How a server says that its queue is full: one of `statuses` (HTTP 100 to 599, gRPC 1 to 16; empty: any)
    with one of `words` (in lower case; empty: any) in its text.
    """

    statuses: frozenset[int] = frozenset()
    words: tuple[str, ...] = ()

    def matches(self, status: int, text: str) -> bool:
        """Whether a failure says that; `text` in lower case.  Status 0: it came without one, the words decide."""
        if not status:
            return any(word in text for word in self.words)
        return (not self.statuses or status in self.statuses) and (
            not self.words or any(word in text for word in self.words)
        )


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model.  `shape` is without the batch axis; -1 is a free dimension."""

    name: str
    datatype: str  # KServe v2: FP32, INT64, BYTES, ...
    shape: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the server says of a model before the run.

    `max_batch_size` is 0 when the model takes no batch axis, None when the server does not tell
    (a KServe v2 server without the configuration extension: `shape` then is the full shape as told).
    `parameters` are the string parameters of the configuration, e.g. vocab_size and max_length.
    `binary` is False when tensors over HTTP must go as JSON: the server lacks the binary extension.
    """

    name: str
    version: str  # the version asked for; "" leaves the choice to the server
    versions: tuple[str, ...]
    max_batch_size: int | None
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None  # the configuration as served, JSON form
    binary: bool = True


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a request: `data` is its KServe v2 raw form (little endian, row-major)."""

    name: str
    datatype: str
    shape: tuple[int, ...]  # with the batch axis
    data: bytes


@dataclass(frozen=True, slots=True)
class Region:
    """A place in a shared memory region that the server knows by `name`; offset and size in bytes."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor of a request whose raw form lies in shared memory."""

    name: str
    datatype: str
    shape: tuple[int, ...]  # with the batch axis
    region: Region


@dataclass(frozen=True, slots=True)
class Payload:
    """One variant of a kind: its tensors, its length (tokens a row; None when the kind has none), its rows."""

    tensors: tuple[Tensor, ...]
    length: int | None
    items: int  # batch rows; 1 when the model takes no batch axis


@dataclass(frozen=True, slots=True)
class Wanted:
    """One payload variant to be built: what the plan asks of a kind.  None: the kind has no such length."""

    length: int | None  # tokens (or bytes of text) in, a row
    output: int | None = None  # tokens out


@dataclass(slots=True)
class Streamed:
    """What came of one streamed answer, also of one that failed or was given up.  Stamps are absolute.

    A chunk is a piece of one choice that carried tokens of any kind: content, also when it has no visible text,
    reasoning, a tool call.
    """

    chunk_ns: list[int] = field(
        default_factory=list
    )  # in order of arrival; choice after choice where several are
    first_content_ns: int = 0  # the first chunk with visible content; 0: none
    tokens_in: int = -1  # as the server counted them; -1: unknown
    tokens_out: int = -1
    source: str = ""  # where tokens_out comes from: "usage", "tokenizer" or "chunks"
    finish: str = ""  # the server's reason for the end; of several choices the gravest
    text: str = ""  # the content of the first choice, where somebody asked for it
    cached_tokens: int = -1  # of tokens_in, those that a prefix cache answered; -1: not told
    max_tokens: int = -1  # what the request said of the answer's length, over all choices; -1: nothing
    min_tokens: int = -1
    unseen: int = 0  # tokens that usage told and the answer did not show: all, or hidden reasoning
    choice_chunks: Sequence[int] = ()  # how many of chunk_ns each choice has; empty: there is one choice


class AnswerReader(Protocol):
    """Reads one streamed answer while it comes; made anew for each request.  It knows no clock."""

    @property
    def finished(self) -> bool:
        """The answer's own end was seen: the request ends here, whatever the connection does next."""

    def feed(self, data: bytes, now_ns: int) -> None:
        """HTTP: bytes of the entity as they come; gRPC: one whole message a call."""

    def end(self, *, complete: bool) -> tuple[Outcome, str | None]:
        """How the request ended, once: `complete` when the framing ended as it should."""

    def streamed(self) -> Streamed:
        """What came so far."""


class AnswerTemplate(NamedTuple):
    """What answers alike have in common.  Offsets count from the body's start.

    `prefix`: how each begins; `pieces`: (offset, bytes) that stand further on; `texts`: (start, stop, elements)
    of BYTES tensors, each element behind its length in 4 bytes.
    """

    prefix: bytes
    pieces: tuple[tuple[int, bytes], ...] = ()
    texts: tuple[tuple[int, int, int], ...] = ()


AnswerCheck = Callable[[Mapping[str, str], bytes], AnswerTemplate | str | None]


class AnyRank(tuple[int, ...]):
    """A declared shape to which an answer is only held where it has as many dimensions."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Request:
    """A protocol message ready to be framed: HTTP body or one gRPC message (without its 5-byte prefix).

    `reader` makes the reader of a streamed answer; None: the answer is read whole, by its framing.
    `judge`, for HTTP servers of any kind, is asked (status, headers, body) whether an answer is a success:
    None, or the words of the failure; None leaves it to the status.
    `check` reads (header fields, body) of a whole answer with a good status: a template of answers alike, None when
    hardly any will be, or the words of what is wrong with it.  Of the fields it reads `wire.http1.ENTITY` at most.
    Without one nothing but the status is judged.
    `slot` (start, stop) in the body are bytes that each sending may replace by as many others.
    `full`: how this server, besides the known ones, says that its queue is full.
    """

    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    method: str = "POST"
    reader: Callable[[], AnswerReader] | None = None
    judge: Callable[[int, Mapping[str, str], bytes], str | None] | None = None
    check: AnswerCheck | None = None
    slot: tuple[int, int] | None = None
    full: QueueFull | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One variant of a kind whose requests are no tensors: the request itself, its length, its rows."""

    request: Request
    length: int | None
    items: int = 1


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """One phase, planned in full before the first byte is sent.

    Open loop: `due_ns` has one entry an arrival, ascending, counted from the phase's start.
    Closed loop: `due_ns` is None; each of `users` sends its next request when its last one ended, until
    `duration_ns` has passed or `requests` were sent, whichever is set (both: whichever comes first).
    `kind` indexes the profile's kinds; `length` and `output` are the tokens in (a row) and the tokens out
    that are asked for, -1 where the kind has none; `draw` chooses among payload variants of one kind and
    length.  In a closed loop these four are cycled.
    """

    name: str
    loop: str  # "open" | "closed"
    measured: bool
    duration_ns: int | None
    due_ns: npt.NDArray[np.int64] | None
    kind: npt.NDArray[np.int16]
    draw: npt.NDArray[np.uint32]
    length: npt.NDArray[np.int32] | None = None  # None: -1 throughout
    output: npt.NDArray[np.int32] | None = None
    users: int = 0
    requests: int | None = None
    think_ns: int = 0
    facts: Mapping[str, Any] | None = None  # of the trace or file that it was read from, for run.json


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a run will send: the same profile and seed give the same plan, on any machine."""

    seed: int
    kinds: tuple[str, ...]
    phases: tuple[PhasePlan, ...]


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason not to take a figure at face value, with what to do about it."""

    code: str
    text: str
    hint: str
    invalidates: bool = False


class LoadgenError(Exception):
    """An error that a user can act on: one line saying what, where, and what is allowed.

    `exit_code` is USAGE (the run never started) unless the measurement itself is at fault.
    """

    exit_code = ExitCode.USAGE


class NotMeasuredError(LoadgenError):
    """The run could not measure anything that can be believed."""

    exit_code = ExitCode.NOT_VALID


class NotWrittenError(NotMeasuredError):
    """A file or folder that cannot be made or written: a full disk, no permission, no such folder."""

    def __init__(self, path: object, why: OSError, hint: str = "") -> None:
        """`hint`: what to do about it."""
        self.why = why
        super().__init__(f"cannot write {path}: {why.strerror or why}" + (f"; {hint}" if hint else ""))
