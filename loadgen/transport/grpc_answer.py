"""One streamed answer of a call: DATA in any cutting to whole messages for its reader, stamped as they come.

It must not know frames, connections' lives or what a message means.
"""

from loadgen.records import AnswerReader, Outcome
from loadgen.transport.outcomes import as_profile_has_it
from loadgen.wire.h2_frames import Stream

_PREFIX = 5  # a message's compressed flag and its length


class Answer:
    """Stands where a unary call keeps its body (`Stream.body`): takes each DATA frame as it comes."""

    __slots__ = ("_broken", "_held", "_stream", "reader")

    def __init__(self, stream: Stream, reader: AnswerReader) -> None:
        self.reader = reader
        self._stream = stream
        self._held = bytearray()  # of a message that is not whole
        self._broken = ""

    def over(self) -> bool:
        """Its end was seen, or it makes no sense any more: the call ends here, whatever its trailers say."""
        return self.reader.finished or bool(self._broken)

    def append(self, data: bytes) -> None:
        """The next bytes.  The stream is called ended as soon as its reader has seen the end of the answer."""
        if self.over():  # what comes after the end is none of ours
            return
        reader = self.reader
        link = self._stream.link
        if not self._held and len(data) >= _PREFIX and not data[0]:
            size = int.from_bytes(data[1:5], "big") + _PREFIX
            if size == len(data):  # as it nearly always is: one message, one frame
                reader.feed(data[_PREFIX:], link.now)
                if reader.finished:
                    link.h2.ended.append(self._stream)
                return
        self._held += data
        self._cut(link.now)
        if self.over():
            link.h2.ended.append(self._stream)

    def _cut(self, now: int) -> None:
        held, at = self._held, 0
        while len(held) - at >= _PREFIX and not self.reader.finished:
            if held[at]:
                self._broken = "an answer is compressed, which was not asked for"
                break
            start = at + _PREFIX
            end = start + int.from_bytes(held[at + 1 : start], "big")
            if end > len(held):
                break
            self.reader.feed(bytes(held[start:end]), now)
            at = end
        del held[:at]

    def end(self) -> tuple[Outcome, str | None]:
        """What became of it when it is over, or when the server ended the call with grpc-status OK."""
        if self._broken:
            return Outcome.PROTOCOL, self._broken
        if self._held and not self.reader.finished:
            return Outcome.PROTOCOL, "the stream ended inside a message"
        outcome, words = self.reader.end(complete=True)
        return as_profile_has_it(outcome, 0, words, self._stream.call.full), words
