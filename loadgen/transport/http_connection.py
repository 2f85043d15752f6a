"""One HTTP/1.1 connection: one request in flight at most, its reply found by framing.

A plain reply in one piece takes the short way; a streamed answer is handed to its reader as it comes.  It must
not know how connections are chosen or opened: that is its owner's business.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from loadgen.records import AnswerTemplate, Outcome, Request, Streamed
from loadgen.transport.dial import Link, direct_write, no_delay, unacknowledged
from loadgen.transport.outcomes import as_profile_has_it
from loadgen.wire.errors import ProtocolError
from loadgen.wire.http1 import Head, ResponseReader, compressed_words, failure_words, head_fields
from loadgen.wire.known import SAMPLE, KnownAnswers
from loadgen.wire.slot import put
from loadgen.wire.statuses import http_outcome

if TYPE_CHECKING:
    from loadgen.seams import AnswerReader
    from loadgen.transport.http import HttpTransport


class PreparedHttp:
    """Head and body as they go on the wire, who reads the answer, and the `known` answers (head and body), which
    need no reading: none where a reader or a judge has to see each.

    `slot` in the bytes may be patched.
    """

    __slots__ = ("bytes_out", "check", "data", "full", "judge", "known", "reader", "slot")

    def __init__(
        self, data: bytes, request: Request | None = None, known: KnownAnswers | None = None
    ) -> None:
        self.data = data
        self.bytes_out = len(data)
        self.reader = None if request is None else request.reader
        self.judge = None if request is None else request.judge
        self.check = None if request is None else request.check
        self.full = None if request is None else request.full
        self.known = KnownAnswers() if known is None else known
        self.slot: tuple[int, int] | None = None
        if request is not None and request.slot is not None:
            at = len(data) - len(request.body)
            self.slot = (request.slot[0] + at, request.slot[1] + at)

    def patched(self, piece: bytes) -> "PreparedHttp":
        """The same request with other bytes in its slot.  Raises ValueError unless they are as many."""
        other = PreparedHttp(put(self.data, piece, self.slot), None, self.known)
        other.slot, other.reader, other.judge, other.check = self.slot, self.reader, self.judge, self.check
        other.full = self.full
        return other


_NOTHING = PreparedHttp(b"")
_ANY_BODY = AnswerTemplate(b"")
_OK = Outcome.OK
NEW, AHEAD, PROVEN = range(3)  # opened for the request in flight; opened ahead of any; has answered one
AT_ONCE = "the server closed a new connection without an answer"
_HARDLY_S = 0.001  # a patience that is not worth a timer
_GRACE_S = 0.001  # most servers send the last bytes of framing at once, in a packet of their own


class Connection(Link):
    """`token` is -1 when no request is in flight.

    A streamed answer has its end when its reader says so; that moment and verdict are kept in `_over` while the
    rest of the framing is awaited for a little, so that the connection can be used again.
    """

    __slots__ = ("_answer", "_busy", "_draining", "_idle", "_legible", "_look", "_now", "_over", "_owner", "_timer", "_waiting", "bytes_in", "clogged",
                 "first_ns", "gone", "prepared", "reader", "sent_ns", "stage", "token", "transport",
                 "unwritten", "write")  # fmt: skip

    transport: asyncio.Transport
    write: Callable[[bytes], None]

    def __init__(self, owner: "HttpTransport") -> None:
        self.ready = None
        self._owner = owner
        self._now = owner.now_ns
        self._idle, self._busy, self._waiting = owner.idle, owner.busy, owner.queue
        self._look = owner.on_body is not None
        self.reader = ResponseReader(owner.heads)
        self.token = -1
        self.prepared = _NOTHING
        self.sent_ns = self.first_ns = self.bytes_in = self.opened_ns = 0
        self.stage = AHEAD
        self.clogged = False  # the kernel takes no more of our request for now
        self.gone = False
        self.unwritten = False  # the kernel took nothing of the request in flight: the connection had broken
        self._answer: AnswerReader | None = None
        self._legible = False  # the head of the answer was looked at: its body is not compressed
        self._over: tuple[int, Outcome, str | None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._draining = False  # the answer was told of, its framing is awaited

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        no_delay(transport)
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        self.write = direct_write(transport, self._refused)
        self._owner.made(self)

    def _refused(self) -> None:
        self.unwritten = True

    def look(self, at_all: bool) -> None:
        """Whether somebody wants to see every answer."""
        self._look = at_all

    def data_received(self, data: bytes) -> None:
        now = self._now()
        token = self.token
        known = self.prepared.known.get(len(data))
        if (
            known is not None
            and known.fits(data)
            and token >= 0
            and not self.first_ns
            and not self.clogged
            and not self._look
            and now & SAMPLE
        ):
            sent_ns = self.sent_ns
            self.token = -1
            del self._busy[token]
            if self.stage != PROVEN:
                self._prove()
            if self._waiting:
                self._owner.serve(self)
            else:
                self._idle.append(self)
            self._owner.on_reply(token, sent_ns, now, now, _OK, 200, len(data), None)
        else:
            self._read(data, now)

    def _prove(self) -> None:
        self.stage = PROVEN
        self._owner.dialer.answered()

    def _read(self, data: bytes, now: int) -> None:
        """Anything but a plain reply in one piece."""
        if self._draining:
            self._drain(data)
            return
        if self.token < 0:  # nothing was asked: a server's last words before it closes, or bytes too many
            self.drop()
            return
        if not self.first_ns:
            self._begin(now)
        self.bytes_in += len(data)
        try:
            done = self.reader.feed(data)
        except ProtocolError as why:
            self._stream(now)
            self.drop()
            if self._over is not None:
                self._conclude()
                return
            if self.stage != PROVEN:
                self._owner.dialer.ended(self, Outcome.CONNECT, str(why))
            self.end(now, Outcome.PROTOCOL, 0, str(why))
            return
        self._stream(now)
        if done:
            self._complete(now)
        elif self._over is not None and self._timer is None:
            self._wait()

    def _begin(self, now: int) -> None:
        self.first_ns = now
        self.bytes_in = 0
        prepared = self.prepared
        if prepared.reader is not None:
            self._answer = prepared.reader()
            self._legible = False
        self.reader.reset(
            keep_body=self._look or bool(prepared.reader or prepared.judge or prepared.check),
            keep_failure=prepared.judge is not None,
        )

    def _stream(self, now: int) -> None:
        """Hands to the answer's reader, if it has one, what came of the body."""
        answer, head = self._answer, self.reader.head
        if answer is None or head is None or http_outcome(head.status) is not _OK:
            return
        body = self.reader.take()
        if self._over is not None or not body:
            return
        if self.stage != PROVEN:
            self._prove()
        try:
            if not self._legible:
                self._look_legible(head)
            answer.feed(body, now)
        except ProtocolError as why:
            self._over = (now, Outcome.PROTOCOL, str(why))
        else:
            if answer.finished:
                self._over = (now, *self._ended(answer, complete=True))

    def _look_legible(self, head: Head) -> None:
        """Raises ProtocolError for a compressed body: that was not asked for."""
        self._legible = True
        compressed = compressed_words(dict(head.entity))
        if compressed is not None:
            raise ProtocolError(compressed)

    def _wait(self) -> None:
        """The answer is over, its framing is not: most servers send the rest at once, some never."""
        assert self.reader.head is not None  # noqa: S101 - nothing is over without one
        patience_s = self._owner.patience_s
        if not self.reader.head.keep_alive:  # nothing to be gained
            self._owner.reconnects += 1
            self.drop()
            self._conclude()
        elif patience_s < _HARDLY_S:
            self._give_up()
        else:
            self._timer = asyncio.get_running_loop().call_later(_GRACE_S, self._tell)

    def _tell(self) -> None:
        """Who asked is free now: the rest of the framing is this connection's business, not the next request's."""
        self._draining = True
        self._timer = asyncio.get_running_loop().call_later(self._owner.patience_s, self._give_up)
        self._conclude()

    def _give_up(self) -> None:
        owner = self._owner
        owner.patience_s /= 4
        owner.cut_short += 1
        self.drop()
        if self._draining:
            self._drained()
        else:
            self._conclude()

    def _drain(self, data: bytes) -> None:
        """More of the framing of an answer that was told of."""
        try:
            done = self.reader.feed(data)
            self.reader.take()
        except ProtocolError:  # the next answer told of early gets no more patience than this one had
            self.drop()
            self._drained()
            return
        if done:
            self._owner.patience_s = self._owner.PATIENCE_S
            if self.reader.excess or self.clogged:
                self.drop()
            self._drained()

    def _drained(self) -> None:
        """The connection is free, unless it was dropped."""
        self._draining = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            if not self.gone:
                self._idle.append(self)
        elif self.gone:
            self._owner.want()
        else:
            self._owner.serve(self)

    def _conclude(self) -> None:
        """Ends a request whose answer was over before."""
        assert self._over is not None  # noqa: S101 - asked by the callers
        assert self.reader.head is not None  # noqa: S101 - nothing is streamed without one
        done_ns, outcome, detail = self._over
        self.end(done_ns, outcome, self.reader.head.status, detail)

    def _complete(self, now: int) -> None:
        reader, owner, token = self.reader, self._owner, self.token
        head = reader.head
        assert head is not None  # noqa: S101 - a complete reply has one
        outcome = http_outcome(head.status)
        detail = None
        judge = self.prepared.judge
        if self._over is not None:
            now, outcome, detail = self._over
        elif judge is not None:
            detail = judge(head.status, head_fields(reader.block), reader.body)
            outcome = _OK if detail is None else self._failed(head.status)
        elif outcome is Outcome.PROTOCOL:
            detail = f"redirected to {head_fields(reader.block).get('location', '?')}, which is not followed"
        elif outcome is not _OK:
            outcome, detail = self._failed(head.status), failure_words(reader.body) or f"HTTP {head.status}"
        elif self._answer is not None:
            outcome, detail = self._ended(self._answer, complete=True)
        else:
            outcome, detail = self._check(head, now)
        if outcome is _OK and owner.on_body is not None and self._answer is None:
            owner.on_body(token, (head_fields(reader.block), reader.body))
        if self.stage != PROVEN:
            self._prove()
        if not head.keep_alive or reader.excess or self.clogged:
            owner.reconnects += not head.keep_alive
            self.drop()
        self.end(now, outcome, head.status, detail)

    def _check(self, head: Head, now: int) -> tuple[Outcome, str | None]:
        """Reads a whole answer with a good status; those like it need no reading, whatever their head."""
        reader, prepared = self.reader, self.prepared
        known, template = prepared.known, _ANY_BODY
        size = max(head.length, 0)
        if prepared.check is not None:
            body = reader.body
            size = len(body)
            key = (head.entity, size)
            alike = known.get(key)
            if alike is not None and now & SAMPLE and alike.fits(body):
                template = alike.template(body)
            else:
                said = prepared.check(dict(head.entity), body)
                if isinstance(said, str):
                    return Outcome.PROTOCOL, said
                if said is None:
                    return _OK, None
                known.learn(b"", key, template := said)
        # what the short way takes, but for an answer in several reads: the next one will be no other
        if head.status == 200 and head.keep_alive and head.length >= 0 and now == self.first_ns:  # noqa: PLR2004
            known.learn(reader.block, len(reader.block) + size, template)
        return _OK, None

    def _failed(self, status: int) -> Outcome:
        """What an answer with this status is called that is no success."""
        body = self.reader.body
        words = f"{failure_words(body)} {body.decode('utf-8', 'replace')}"
        retry_after = b"\r\nretry-after:" in self.reader.block.lower()
        outcome = http_outcome(status, words, retry_after=retry_after)
        outcome = Outcome.PROTOCOL if outcome is _OK else outcome
        return as_profile_has_it(outcome, status, words, self.prepared.full)

    def _ended(self, answer: "AnswerReader", *, complete: bool) -> tuple[Outcome, str | None]:
        outcome, words = answer.end(complete=complete)
        return as_profile_has_it(outcome, 0, words, self.prepared.full), words

    def end(self, now: int, outcome: Outcome, status: int, detail: str | None) -> None:
        """The request in flight is over; the connection, unless dropped, is free for the next."""
        token, sent_ns, first_ns, prepared = self.token, self.sent_ns, self.first_ns, self.prepared
        size = self.bytes_in if first_ns else 0
        streamed: Streamed | None = None
        if prepared.reader is not None:
            streamed = Streamed() if self._answer is None else self._answer.streamed()
            self._answer = self._over = None
            if self._timer is not None and not self._draining:
                self._timer.cancel()
                self._timer = None
        self.token = -1
        self.first_ns = 0
        self.prepared = _NOTHING
        del self._busy[token]
        if self._draining:
            pass  # not free yet
        elif not self.gone:
            if self._waiting:
                self._owner.serve(self)
            else:
                self._idle.append(self)
        elif self._waiting:
            self._owner.want()
        if streamed is not None:
            self._owner.on_streamed(token, sent_ns, outcome, streamed)
        self._owner.on_reply(token, sent_ns, first_ns, now, outcome, status, size, detail)

    def cancel(self, now: int, outcome: Outcome, words: str) -> None:
        """Ends the request in flight and the connection; an answer that was over before stays what it was."""
        self.drop()
        if self._over is not None:
            self._conclude()
        else:
            self.end(now, outcome, 0, words)

    def drop(self) -> None:
        """No further request on this connection."""
        if not self.gone:
            self.gone = True
            self.transport.abort()
            if self in self._idle:
                self._idle.remove(self)

    def eof_received(self) -> None:
        if self.token >= 0 and self.first_ns and self.reader.eof():
            self.gone = True  # the transport closes itself when this returns
            self._complete(self._now())
        elif self.token >= 0 and not self.first_ns:
            self._lost(unread=unacknowledged(self.transport) >= self.prepared.bytes_out)
        else:
            self._lost(unread=False)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - every loss is one
        self._lost(unread=self.unwritten)
        self._owner.forget(self)

    def _lost(self, *, unread: bool) -> None:
        """`unread`: no byte of the request in flight can have reached a program at the other end."""
        by_server = not self.gone
        self.gone = True
        if self._draining:
            self._drained()
        owner = self._owner
        token = self.token
        if token < 0 and self in self._idle:
            self._idle.remove(self)
        if by_server:
            owner.reconnects += 1
            if self.stage != PROVEN:
                owner.dialer.ended(self, Outcome.CONNECT, AT_ONCE)
        if token < 0:
            return
        if self.first_ns:
            self._broken_off()
        elif self.stage != NEW and unread:  # on a new one, so no request is sent a third time
            self.token = -1
            del self._busy[token]
            owner.send_again(token, self.prepared, self.sent_ns)
        else:
            words = "the connection ended before the answer began"
            self.end(self._now(), Outcome.CONNECTION, 0, words)

    def _broken_off(self) -> None:
        """The connection ended within an answer; a streamed one may have been whole but for its framing."""
        head = self.reader.head
        if self._over is not None:
            self._conclude()
            return
        words = "the connection ended within the answer"
        if self._answer is not None and head is not None and http_outcome(head.status) is _OK:
            outcome, why = self._answer.end(complete=False)
            if outcome is _OK:
                self.end(self._now(), _OK, head.status, None)
                return
            words += f": {why}"
        self.end(self._now(), Outcome.STREAM_ENDED_EARLY, 0, words)

    def pause_writing(self) -> None:
        self.clogged = True

    def resume_writing(self) -> None:
        self.clogged = False
