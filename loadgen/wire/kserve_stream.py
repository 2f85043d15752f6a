"""The answers of a decoupled model: ModelStreamInferResponse messages, each told as it comes, to a reader.

It must not know HTTP/2, connections or the clock: stamps are given.
"""

from loadgen.records import AnswerCheck, AnswerTemplate, Outcome, Streamed
from loadgen.wire.errors import ProtocolError, one_line
from loadgen.wire.known import SAMPLE, KnownAnswers
from loadgen.wire.protobuf import as_bytes, fields
from loadgen.wire.statuses import says_full

ASK_FINAL = "triton_enable_empty_final_response"
_FINAL = b"triton_final_response"


class StreamReader:
    """Reads the answers to one request: 0 to N, then the final flag, alone or in the last answer.

    Each answer with outputs is one chunk, and all we know to count: `tokens_out` is their number, and says so.
    A failure inside the stream ends the answer; it has words and no status.  `check` holds an answer against the
    model's outputs (records.Request); `known` is shared by all readers with the same `check`: answers that differ in
    their tensors' contents only are read once, but for one in SAMPLE + 1.
    """

    __slots__ = ("_check", "_chunk_ns", "_failure", "_known", "finished")

    def __init__(self, known: KnownAnswers, check: AnswerCheck) -> None:
        self.finished = False
        self._known, self._check = known, check
        self._chunk_ns: list[int] = []
        self._failure: tuple[Outcome, str] | None = None

    def feed(self, data: bytes, now_ns: int) -> None:
        """One message."""
        known = self._known.get(len(data))
        if known is not None and known.fits(data) and now_ns & SAMPLE:
            self._chunk_ns.append(now_ns)
            return
        try:
            answers, final, words, inner = read_stream_response(data)
            template = self._read(inner) if answers else None
        except ProtocolError as why:
            self._failure, self.finished = (Outcome.PROTOCOL, str(why)), True
            return
        if words is not None:
            self._failure = (Outcome.REJECTED if says_full(0, words) else Outcome.GRPC_STATUS, words)
            self.finished = True
            return
        if answers:
            self._chunk_ns.append(now_ns)
        if final:
            self.finished = True
        elif template is not None and data.endswith(inner):
            self._known.learn(data[: len(data) - len(inner)], len(data), template)

    def _read(self, inner: bytes) -> AnswerTemplate | None:
        """See records.Request.check.  Raises ProtocolError."""
        said = self._check({}, inner)
        if isinstance(said, str):
            raise ProtocolError(said)
        return said

    def end(self, *, complete: bool) -> tuple[Outcome, str | None]:
        """See records.AnswerReader: only the final flag makes it whole."""
        if self._failure is not None:
            return self._failure
        if self.finished:
            return Outcome.OK, None
        how = "the stream ended without a final response" if complete else "the stream broke off"
        return Outcome.STREAM_ENDED_EARLY, how

    def streamed(self) -> Streamed:
        """See records.AnswerReader."""
        stamps = self._chunk_ns
        return Streamed(
            stamps, first_content_ns=stamps[0] if stamps else 0, tokens_out=len(stamps), source="chunks"
        )


def read_stream_response(message: bytes) -> tuple[bool, bool, str | None, bytes]:
    """(has outputs, is the final one, words of a failure, the ModelInferResponse) of a ModelStreamInferResponse.

    Raises ProtocolError.
    """
    words: str | None = None
    has_outputs = final = False
    inner = b""
    for number, value in fields(message):
        if number == 1 and value:
            words = one_line(as_bytes(value).decode("utf-8", "replace")) or "a failure without words"
        elif number == 2:  # noqa: PLR2004 - infer_response
            inner = as_bytes(value)
            for field, part in fields(inner):
                if field == 5:  # noqa: PLR2004 - outputs
                    has_outputs = True
                elif field == 4:  # noqa: PLR2004 - parameters
                    final = _is_final(as_bytes(part), final=final)
    return has_outputs, final, words, inner


def _is_final(entry: bytes, *, final: bool) -> bool:
    """Whether the entry of the parameters sets the final flag, or leaves it as it was."""
    if _FINAL not in entry:
        return final
    key, told = b"", b""
    for number, value in fields(entry):
        if number == 1:
            key = as_bytes(value)
        elif number == 2:  # noqa: PLR2004 - the value of the map's entry
            told = as_bytes(value)
    if key != _FINAL:
        return final
    return any(number == 1 and bool(value) for number, value in fields(told))
