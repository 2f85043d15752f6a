"""The answers of a decoupled model: ModelStreamInferResponse messages, each told as it comes, to a reader.

It must not know HTTP/2, connections or the clock: stamps are given.
"""

from loadgen.records import Outcome, Streamed
from loadgen.wire.errors import ProtocolError, one_line
from loadgen.wire.protobuf import as_bytes, fields
from loadgen.wire.statuses import says_full

ASK_FINAL = "triton_enable_empty_final_response"
_FINAL = b"triton_final_response"
_KNOWN_LIMIT = 64
Known = dict[int, bytes]  # size of an answer that is no last one -> its bytes up to its one raw content


class StreamReader:
    """Reads the answers to one request: 0 to N, then the final flag, alone or in the last answer.

    Each answer with outputs is one chunk, and all we know to count: `tokens_out` is their number, and says so.
    A failure inside the stream ends the answer; it has words and no status.  `known` is shared by the readers of one request's sendings:
    answers that differ in their tensor's content only are read once.
    """

    __slots__ = ("_chunk_ns", "_failure", "_known", "finished")

    def __init__(self, known: Known) -> None:
        self.finished = False
        self._known = known
        self._chunk_ns: list[int] = []
        self._failure: tuple[Outcome, str] | None = None

    def feed(self, data: bytes, now_ns: int) -> None:
        """One message."""
        head = self._known.get(len(data))
        if head is not None and data.startswith(head):
            self._chunk_ns.append(now_ns)
            return
        try:
            answers, final, words, head = read_stream_response(data)
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
        elif answers and head is not None and len(self._known) < _KNOWN_LIMIT:
            self._known[len(data)] = head

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


def read_stream_response(message: bytes) -> tuple[bool, bool, str | None, bytes | None]:
    """(has outputs, is the final one, words of a failure, head) of a ModelStreamInferResponse.

    `head`: the bytes that tell all of this for any message of the same size that begins with them: given
    when there is one raw content and it comes last.  Raises ProtocolError.
    """
    words: str | None = None
    outputs = raws = 0
    final = False
    last = b""  # the raw content that the message ends with
    for number, value in fields(message):
        last = b""
        if number == 1 and value:
            words = one_line(as_bytes(value).decode("utf-8", "replace")) or "a failure without words"
        elif number == 2:  # noqa: PLR2004 - infer_response
            for inner, part in fields(as_bytes(value)):
                last = b""
                if inner == 5:  # noqa: PLR2004 - outputs
                    outputs += 1
                elif inner == 4:  # noqa: PLR2004 - parameters
                    final = _is_final(as_bytes(part), final=final)
                elif inner == 6:  # noqa: PLR2004 - raw_output_contents
                    raws += 1
                    last = as_bytes(part)
    head = message[: -len(last)] if last and raws == 1 else None
    return outputs > 0, final, words, head


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
