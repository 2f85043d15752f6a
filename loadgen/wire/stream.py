"""What every answer of text over server-sent events has in common: tokens as JSON events, each with a stamp.

A token chunk that differs from the last one only in its text is not parsed: same bytes before, same bytes
behind, and between them no quote or backslash, so it is the same JSON with another string.  It must not know
sockets, clocks or HTTP; a dialect says what its chunks mean (`openai`, `generate`).
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from loadgen.records import Outcome, Streamed
from loadgen.wire.errors import ProtocolError, one_line
from loadgen.wire.finish import Finish, finish_of, finish_reason, gave_up, gravest
from loadgen.wire.http1 import WORDS_LIMIT, failure_words
from loadgen.wire.sse import EVENT_LIMIT, SseParser
from loadgen.wire.statuses import http_outcome, says_full

_SHOWN = 200  # characters of a body that is not what was asked for
_TRIES = 3  # chunks that are looked at for a likeness
_ERRORS = range(400, 600)
_IS_SSE = re.compile(rb"(?:\xef\xbb\xbf)?[\r\n]*(?:data|event|id|retry|:)")
_decode = json.JSONDecoder(strict=False).decode
Failure = tuple[Outcome, str]
Limits = tuple[int, int]  # (max_tokens, min_tokens) of a request, over all its choices; -1: not set
NO_LIMITS = (-1, -1)
_NO_TOKEN = "an answer without a single token"  # noqa: S105 - of text
# Of chunks that differ from one in their text only: the bytes before and behind the text, the places where these end
# and begin, the size of one whose text is empty and which is a token (-1: none is), where its stamp goes, and its text.
Alike = tuple[bytes, bytes, int, int, int, list[int], list[str] | None]
_NOTHING_ALIKE: Alike = (b"\r", b"", 1, 1, -1, [], None)  # no event's data has a CR in it


def read_json(data: bytes) -> Any:
    """Raises ValueError.  Bytes that are no UTF-8 become U+FFFD, as the standard has it for event streams."""
    try:
        return _decode(data.decode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def mended(parts: Sequence[str]) -> str:
    """Text from its pieces; halves of a surrogate pair that came apart are one character again."""
    text = "".join(parts)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def told_failure(told: Any, body: bytes, where: str) -> Failure:
    """An error object (or whatever stands for one) by its code, in the server's own words."""
    error = told.get("error") if isinstance(told, dict) else None
    source = error if isinstance(error, dict) else told if isinstance(told, dict) else {}
    code = next(
        (c for key in ("code", "status", "type") if (c := source.get(key)) and isinstance(c, int | str)), ""
    )
    number = int(code) if str(code).isdecimal() and len(str(code)) == 3 else 0  # noqa: PLR2004 - digits of a status
    words = failure_words(body)
    outcome = http_outcome(number, words)
    if number not in _ERRORS:
        outcome = Outcome.REJECTED if says_full(0, words) else Outcome.HTTP_5XX
    return outcome, f"error {one_line(str(code), 60)} {where}: {words}".replace("  ", " ")


def no_stream(body: bytes, *, complete: bool) -> Failure:
    """What to say of an answer in which no event was."""
    if not body.strip() or _IS_SSE.match(body):
        came = "the answer was empty" if not body.strip() else "the stream ended before its first event"
        return Outcome.STREAM_ENDED_EARLY, came + ("" if complete else ", and broke off")
    try:
        told = read_json(body)
    except ValueError:
        told = None
    start = one_line(body.decode("utf-8", "replace"), _SHOWN)
    if isinstance(told, dict) and (told.get("error") or told.get("object") == "error"):
        outcome, words = told_failure(told, body, "where a stream was asked")
        return outcome, f"{words.partition(':')[0]}: {start}"
    return Outcome.PROTOCOL, f"no event stream, where one was asked: {start}"


class EventReader:
    """See seams.AnswerReader.  A dialect gives `_chunk` and `_unended`.

    `keep_text` keeps the text of the answer; `count` counts tokens in a text, for servers that tell no usage;
    `limits` are what the request says of the answer's length.
    """

    __slots__ = ("_alike", "_came", "_count", "_done", "_failure", "_head", "_parser",
                 "_reasons", "_seen", "_stamps", "_texts", "_tries", "_used", "finished")  # fmt: skip

    empty_is_token = True  # whether a chunk like others that brought text is a token when its text is empty

    def __init__(
        self,
        *,
        keep_text: bool = False,
        count: Callable[[str], int] | None = None,
        limits: Limits = NO_LIMITS,
    ) -> None:
        self.finished = False
        self._parser = SseParser()
        self._stamps: dict[int, list[int]] = {}  # of the token chunks of each choice
        self._came = Streamed(max_tokens=limits[0], min_tokens=limits[1])
        self._head: bytes | None = b""  # the answer's start, until its first event
        self._done = False  # the dialect's own end was seen
        self._reasons: dict[int, str] = {}  # why each choice ended
        self._failure: Failure | None = None
        self._count = count
        self._texts: dict[tuple[int, str], list[str]] | None = {} if keep_text or count else None
        self._alike = _NOTHING_ALIKE
        self._seen = False  # tokens that show: content with a text, reasoning, a tool call
        self._tries = _TRIES
        self._used = -1

    def feed(self, data: bytes, now_ns: int) -> None:
        """See seams.AnswerReader."""
        if self.finished:
            return
        if self._head is not None and len(self._head) < WORDS_LIMIT:
            self._head += data[: WORDS_LIMIT - len(self._head)]
        prefix, suffix, start, stop, bare, stamps, into = self._alike
        for name, event in self._parser.feed(data):
            if event[:start] == prefix and event[stop:] == suffix and not name:
                text = event[start:stop]
                if (text or len(event) == bare) and b'"' not in text and b"\\" not in text:
                    stamps.append(now_ns)
                    if into is not None:
                        into.append(text.decode("utf-8", "replace"))
                    continue
            self._event(name, event, now_ns)
            if self._done or self._failure is not None:
                return
            prefix, suffix, start, stop, bare, stamps, into = self._alike

    def _event(self, name: bytes, event: bytes, now_ns: int) -> None:
        self._head = None
        event = event.strip()
        if not event:
            return
        if event == b"[DONE]":
            self._done = self.finished = True
            return
        try:
            chunk = read_json(event)
        except ValueError:
            chunk = None
        if name == b"error" or (
            isinstance(chunk, dict) and (chunk.get("error") or chunk.get("object") == "error")
        ):
            self._fail(*told_failure(chunk, event, "inside the stream"))
        elif isinstance(chunk, dict):
            self._chunk(chunk, event, now_ns)
        elif name in (b"", b"message"):  # another name may be another protocol's, a ping for one
            shown = one_line(event.decode("utf-8", "replace"), _SHOWN)
            self._fail(Outcome.PROTOCOL, f"an event that is no JSON object: {shown}")

    def _fail(self, outcome: Outcome, words: str) -> None:
        self._failure = (outcome, words)
        self.finished = True

    def _chunk(self, chunk: dict[str, Any], event: bytes, now_ns: int) -> None:
        """One event's JSON: what it brings is stamped."""
        raise NotImplementedError

    def _unended(self, *, complete: bool) -> str | None:
        """Why the answer is not whole, though neither [DONE] nor an error came; None when it is."""
        raise NotImplementedError

    def _settle(self) -> None:
        """What only the whole answer tells of its chunks; called when nothing more comes, perhaps twice."""
        if not self._used and not self._seen:  # what had no text was no token either
            self._stamps.clear()

    def _token(self, index: int, now_ns: int, text: str, *, more: bool = False) -> None:
        """A chunk of that choice which brought tokens: content with this text, or `more` that can be seen."""
        self._stamps.setdefault(index, []).append(now_ns)
        self._seen = self._seen or more or bool(text)
        if text:
            self._came.first_content_ns = self._came.first_content_ns or now_ns
        self._keep(index, "content", text)

    def _ended(self, index: int, told: Any) -> bool:
        """Whether the choice ends with this finish_reason; one that says the server gave up fails the answer."""
        if not (reason := finish_reason(told)):
            return False
        self._reasons[index] = reason
        if finish_of(reason) is Finish.GAVE_UP:
            self._fail(Outcome.HTTP_5XX, gave_up(reason))
        return True

    @property
    def _chunk_count(self) -> int:
        return sum(map(len, self._stamps.values()))

    def _keep(self, index: int, what: str, text: str) -> None:
        """Text of one choice; `what` keeps content and reasoning apart."""
        if self._texts is not None:
            self._texts.setdefault((index, what), []).append(text)

    def _learn(self, event: bytes, key: bytes, index: int, text: str) -> None:
        """Remembers what stands around the text (of that key) of a token chunk that brought this text and nothing else."""
        if not self._tries or b"\\" in event or event.count(key) != 1:
            return
        self._tries -= 1
        colon = event.index(key) + len(key)
        start = event.find(b'"', colon) + 1
        end = start + len(raw := text.encode("utf-8", "replace"))
        if (
            event[colon : start - 1].strip() == b":"
            and event[start:end] == raw
            and event[end : end + 1] == b'"'
        ):
            prefix, suffix = event[:start], event[end:]
            bare = len(prefix) + len(suffix) if self.empty_is_token else -1
            into = None if self._texts is None else self._texts[index, "content"]
            self._alike = (prefix, suffix, start, -len(suffix), bare, self._stamps[index], into)

    def end(self, *, complete: bool) -> tuple[Outcome, str | None]:
        """See seams.AnswerReader."""
        if self._failure is not None:
            return self._failure
        if self._head is not None:
            return no_stream(self._head, complete=complete)
        if not self._done and (why := self._unended(complete=complete)) is not None:
            return Outcome.STREAM_ENDED_EARLY, why
        self._settle()
        if not self._seen and not (self._used >= 0 and self._reasons):
            reason = gravest(self._reasons.values())
            return Outcome.PROTOCOL, f"{_NO_TOKEN} (finish_reason {reason})" if reason else _NO_TOKEN
        return Outcome.OK, None

    def streamed(self) -> Streamed:
        """See seams.AnswerReader.  Tokens out: by usage, else by `count`, else as many as chunks."""
        self._settle()
        came, by_choice = self._came, [self._stamps[index] for index in sorted(self._stamps)]
        if len(by_choice) == 1:
            came.chunk_ns = by_choice[0]
        elif by_choice:
            came.chunk_ns = [stamp for stamps in by_choice for stamp in stamps]
            came.choice_chunks = [len(stamps) for stamps in by_choice]
        if self._reasons:
            came.finish = gravest(self._reasons[index] for index in sorted(self._reasons))
        if self._texts is not None:
            came.text = mended(self._texts.get((0, "content"), ()))
        if self._used > 0 or not came.chunk_ns:
            came.tokens_out, came.source = self._used, "usage" if self._used >= 0 else ""
            came.unseen = came.unseen if came.chunk_ns else max(0, self._used)
        elif self._count is not None and self._texts is not None:
            came.tokens_out = sum(self._count(mended(parts)) for parts in self._texts.values())
            came.source = "tokenizer"
        else:
            came.tokens_out, came.source = len(came.chunk_ns), "chunks"
        return came


class Answer(NamedTuple):
    """One choice of an answer that was not streamed."""

    text: str
    thought: str  # reasoning
    brings: bool  # tokens of any kind
    reason: str  # its finish_reason


class WholeReader:
    """An answer in one JSON body: tokens, but no chunks and no first one, for nobody saw them come.  A dialect
    gives its `_answers`.
    """

    __slots__ = ("_count", "_keep_text", "_parts", "_size", "_streamed", "finished")

    def __init__(
        self,
        *,
        keep_text: bool = False,
        count: Callable[[str], int] | None = None,
        limits: Limits = NO_LIMITS,
    ) -> None:
        self.finished = False
        self._parts: list[bytes] = []
        self._size = 0
        self._keep_text, self._count = keep_text, count
        self._streamed = Streamed(max_tokens=limits[0], min_tokens=limits[1])

    def feed(self, data: bytes, now_ns: int) -> None:  # noqa: ARG002 - see seams.AnswerReader
        """See seams.AnswerReader."""
        self._size += len(data)
        if self._size > EVENT_LIMIT:
            raise ProtocolError(f"a JSON answer of more than {EVENT_LIMIT} bytes")
        self._parts.append(data)

    def end(self, *, complete: bool) -> tuple[Outcome, str | None]:
        """See seams.AnswerReader."""
        body = b"".join(self._parts)
        if not complete:
            return Outcome.STREAM_ENDED_EARLY, "the answer ended within its body"
        try:
            told = read_json(body)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            start = one_line(body.decode("utf-8", "replace"), _SHOWN)
            return Outcome.PROTOCOL, f"no JSON answer: {start}" if start else "the answer was empty"
        if told.get("error") or told.get("object") == "error":
            return told_failure(told, body, "in the answer")
        return self._judged(told, self._streamed)

    def _judged(self, told: dict[str, Any], came: Streamed) -> tuple[Outcome, str | None]:
        answers = self._answers(told, came)
        came.finish = gravest(answer.reason for answer in answers)
        if finish_of(came.finish) is Finish.GAVE_UP:
            return Outcome.HTTP_5XX, gave_up(came.finish)
        if not any(answer.brings for answer in answers):
            if came.tokens_out < 0 or not came.finish:
                return Outcome.PROTOCOL, _NO_TOKEN
            came.source, came.unseen = "usage", came.tokens_out
        elif came.tokens_out > 0:
            came.source = "usage"
        elif self._count is not None:
            texts = [text for answer in answers for text in (answer.text, answer.thought)]
            came.tokens_out, came.source = sum(self._count(mended((text,))) for text in texts), "tokenizer"
        else:
            came.tokens_out = -1  # told as none, which is not so
        if self._keep_text and answers:
            came.text = mended((answers[0].text,))
        return Outcome.OK, None

    def _answers(self, told: dict[str, Any], came: Streamed) -> list[Answer]:
        """The choices in their order; fills `came` with what the server counted."""
        raise NotImplementedError

    def streamed(self) -> Streamed:
        """See seams.AnswerReader."""
        return self._streamed
