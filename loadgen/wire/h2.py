"""HTTP/2 as a gRPC client frames it (prior knowledge): calls to bytes, bytes to ended streams, in any cutting.

Sans I/O: `request` and `receive` return, `take` hands over what must be written besides.  `stamp` is an
opaque number passed through.  It must not know sockets, time, protobuf or what an outcome is.
"""

from loadgen.wire import h2_frames as f
from loadgen.wire.errors import ProtocolError
from loadgen.wire.h2_frames import (
    DATA,
    FIRST_FRAME,
    HEAD,
    HEADERS,
    LAST_STREAM,
    OUR_FRAME,
    SAMPLED,
    WORD,
    Stream,
    frame,
)
from loadgen.wire.hpack_lite import ACCEPTED, BLOCK_LIMIT, SUCCESS, Blocks, Trailers
from loadgen.wire.known import rest_fits


class H2Connection:
    """One client connection: write `greeting()` first; `request` only while `len(streams) < limit`."""

    __slots__ = (
        "_blocks",
        "_careful",
        "_fragments",
        "_half",
        "_held",
        "_left",
        "_left_flags",
        "_left_id",
        "_next_id",
        "_parked",
        "_peer_frame",
        "_peer_limit",
        "_peer_window",
        "_small",
        "_stream_half",
        "_stream_window",
        "_unacked",
        "_window",
        "ended",
        "farewell",
        "limit",
        "our_window",
        "out",
        "ready",
        "retiring",
        "streams",
    )  # fmt: skip

    def __init__(
        self, blocks: Blocks, *, our_window: int = f.BIGGEST_WINDOW, stream_window: int = f.BIGGEST_WINDOW
    ) -> None:
        self._blocks = blocks
        self.our_window = our_window
        self._half = our_window // 2
        self._stream_window = stream_window
        self._stream_half = stream_window // 2
        self.streams: dict[int, Stream] = {}
        self.limit = 0  # streams that may be open now: 0 before the peer's SETTINGS and when retiring
        self._peer_limit = LAST_STREAM
        self.ended: list[Stream] = []  # what the last `receive` returned, or would have when it raised
        self.ready = False  # the peer's SETTINGS are here
        self.retiring = False  # no new streams: GOAWAY came, or the ids are used up
        self.farewell = ""  # what a GOAWAY said
        self._next_id = 1
        self._window = f.FIRST_WINDOW  # what we may still send
        self._peer_window = f.FIRST_WINDOW  # of a new stream
        self._peer_frame = FIRST_FRAME
        self._small = FIRST_FRAME  # a body up to this goes out whole; -1 while others wait for a window
        self._parked: dict[int, Stream] = {}
        self._unacked = 0
        self._held = b""
        self._left = 0  # bytes of a DATA frame still to come
        self._left_id = self._left_flags = 0
        self._careful = True  # every frame the slow way: before SETTINGS and between CONTINUATIONs
        self._fragments: tuple[int, int, bytearray] | None = None
        self.out: list[bytes | memoryview] = []

    def greeting(self) -> bytes:
        """The preface, our SETTINGS and our connection window."""
        settings = ((f.HEADER_TABLE_SIZE, 0), (f.ENABLE_PUSH, 0), (f.INITIAL_WINDOW_SIZE, self._stream_window),
                    (f.MAX_FRAME_SIZE, OUR_FRAME))  # fmt: skip
        told = f.PREFACE + frame(f.SETTINGS, 0, 0, b"".join(f.SETTING.pack(*s) for s in settings))
        more = self.our_window - f.FIRST_WINDOW
        return told + (frame(f.WINDOW_UPDATE, 0, 0, WORD.pack(more)) if more > 0 else b"")

    def request(self, stream: Stream) -> bytes:
        """Opens the stream and returns what to write now; the rest follows by `take` as windows open."""
        stream.id = sid = self._next_id
        self._next_id = sid + 2
        self.streams[sid] = stream
        if sid >= LAST_STREAM - 2:
            self._retire()
        call = stream.call
        size = call.size
        if size <= self._small and size <= self._window and len(call.block) <= FIRST_FRAME:
            self._window -= size
            packed = WORD.pack(sid)
            return b"".join((call.first, packed, call.joint, packed, call.body))
        return self._request_in_pieces(stream)

    def _retire(self) -> None:
        """No new streams from now on; those that are open go on."""
        self.retiring = True
        self.limit = 0

    def _request_in_pieces(self, stream: Stream) -> bytes:
        block, sid, step = stream.call.block, stream.id, self._peer_frame
        last = max(0, len(block) - 1) // step * step
        for at in range(0, len(block), step):
            self.out.append(frame(f.CONTINUATION if at else HEADERS, f.END_HEADERS if at == last else 0, sid,
                                   block[at : at + step]))  # fmt: skip
        stream.offset = 0
        stream.window = self._peer_window
        self._parked[sid] = stream
        self._pump()
        return self.take()

    def _pump(self) -> None:
        """Sends what the windows allow of the parked bodies, oldest first."""
        for sid, stream in list(self._parked.items()):
            if self._window <= 0:
                break
            body = memoryview(stream.call.body)
            at, size = stream.offset, stream.call.size
            while at < size:
                step = min(self._window, stream.window, self._peer_frame, size - at)
                if step <= 0:
                    break
                last = at + step == size
                self.out.append(HEAD.pack(step << 8 | DATA, f.END_STREAM if last else 0, sid))
                self.out.append(body[at : at + step])
                at += step
                self._window -= step
                stream.window -= step
            stream.offset = at
            if at == size:
                del self._parked[sid]
        self._small = -1 if self._parked else min(self._peer_window, self._peer_frame)

    def cancel(self, stream: Stream, code: int = f.CANCEL) -> None:
        """Breaks a stream off; the frame comes out of `take`."""
        if self.streams.pop(stream.id, None) is not None:
            self.out.append(frame(f.RST_STREAM, 0, stream.id, WORD.pack(code)))
            if self._parked.pop(stream.id, None) is not None:
                self._pump()

    def take(self) -> bytes:
        """Everything that must be written now; empty when there is nothing."""
        if not self.out:
            return b""
        out = b"".join(self.out)
        self.out.clear()
        return out

    def receive(self, data: bytes, stamp: int) -> list[Stream]:  # noqa: C901, PLR0912, PLR0915 - the hot loop, flat
        """Takes the next bytes; returns the streams that ended in them, `end` set.  Raises ProtocolError."""
        ended = self.ended = []
        if self._held:
            data = self._held + data
            self._held = b""
        pos = self._rest_of_data(data) if self._left else 0
        size = len(data)
        # frames that end up to here go the fast way
        whole = size if size <= OUR_FRAME and not self._careful else -1
        streams = self.streams
        unpack = HEAD.unpack_from
        while size - pos >= 9:  # noqa: PLR2004 - a frame's head
            word, flags, sid = unpack(data, pos)
            kind = word & 255
            start = pos + 9
            pos = start + (word >> 8)
            if pos > whole:
                if not self._begin(word, flags, sid, data, start, stamp):
                    pos = size if self._left else start - 9
                    break
                whole = size if size <= OUR_FRAME and not self._careful else -1
            elif kind == HEADERS and (flags == 5 or flags == 4) and sid in streams:  # noqa: PLR1714, PLR2004 - faster
                stream = streams[sid]
                told = self._blocks[data[start:pos]]
                if flags == 5:  # noqa: PLR2004 - END_STREAM and END_HEADERS
                    if told is SUCCESS and stream.end is ACCEPTED and stream.first_ns:
                        stream.end = told
                        del streams[sid]
                        ended.append(stream)
                    else:
                        self._headers(stream, told, stamp, last=True)
                elif stream.first_ns or told is not ACCEPTED:
                    self._headers(stream, told, stamp, last=False)
                else:
                    stream.first_ns = stamp
            elif kind == DATA and flags == 0 and sid in streams:
                stream = streams[sid]
                if not stream.first_ns:
                    raise ProtocolError("DATA before HEADERS")
                length = pos - start
                stream.bytes_in += length
                self._unacked += length
                if stream.body is not None:
                    stream.body.append(data[start:pos])
                elif not stream.read:  # the first of an answer that is to be read: mostly it is all of it
                    known = stream.call.known.get(length)
                    if (  # Known.fits, without a call: that would be 0.06 of the 0.3 us that reading may cost
                        known is not None
                        and data.startswith(known.prefixes, start)
                        and (known.rest is None or rest_fits(known.rest, data, start))
                        and sid & SAMPLED != 1
                    ):
                        stream.read = length
                    else:
                        stream.body = [data[start:pos]]
                if self._unacked > self._half or stream.bytes_in > self._stream_half:
                    self._replenish(stream)
            else:
                self._frame(kind, flags, sid, data[start:pos], stamp)
                if self._careful:
                    whole = -1
        if pos < size:
            self._held = data[pos:]
        return ended

    def _begin(self, word: int, flags: int, sid: int, data: bytes, start: int, stamp: int) -> bool:
        """The slow way into a frame that may not be whole; False: wait for more."""
        length, kind = word >> 8, word & 255
        if length > OUR_FRAME:
            what = "a frame" if self.ready else "not HTTP/2: a first frame"
            raise ProtocolError(f"{what} of {length} bytes, {OUR_FRAME} are allowed", f.FRAME_SIZE_ERROR)
        if not self.ready and kind != f.SETTINGS:
            raise ProtocolError(f"not HTTP/2: the first frame is of kind {kind}, not SETTINGS")
        end = start + length
        if end <= len(data):
            self._frame(kind, flags, sid, data[start:end], stamp)
            return True
        if kind == DATA and not flags & f.PADDED and self._fragments is None:
            self._left, self._left_id, self._left_flags = length, sid, flags
            self._rest_of_data(data[start:])
        return False

    def _rest_of_data(self, data: bytes) -> int:
        """Takes what is there of a DATA frame already begun; returns how much that was."""
        part = data if len(data) <= self._left else data[: self._left]
        self._left -= len(part)
        self._data(self._left_id, part, 0 if self._left else self._left_flags, len(part))
        return len(part)

    def _frame(  # noqa: C901, PLR0912 - the list of frames is what it is
        self, kind: int, flags: int, sid: int, payload: bytes, stamp: int
    ) -> None:
        sid &= LAST_STREAM
        if self._fragments is not None and (kind != f.CONTINUATION or sid != self._fragments[0]):
            raise ProtocolError("a header block was interrupted by another frame")
        if kind == DATA:
            self._data(sid, f.unpad(payload, flags), flags, len(payload))
        elif kind == HEADERS:
            self._fragments = (sid, flags, bytearray())
            self._more_headers(flags, f.header_part(payload, flags), stamp)
        elif kind == f.CONTINUATION:
            if self._fragments is None:
                raise ProtocolError("a CONTINUATION without HEADERS")
            self._more_headers(flags, payload, stamp)
        elif kind == f.SETTINGS:
            self._settings(flags, sid, payload)
        elif kind == f.WINDOW_UPDATE:
            self._window_update(sid, f.exactly(payload, 4, "WINDOW_UPDATE"))
        elif kind == f.PING:
            f.exactly(payload, 8, "PING")
            if sid:
                raise ProtocolError("a PING on a stream")
            if not flags & f.ACK:
                self.out.append(frame(f.PING, f.ACK, 0, payload))
        elif kind == f.RST_STREAM:
            code = int.from_bytes(f.exactly(payload, 4, "RST_STREAM"), "big")
            stream = self._stream(sid, "RST_STREAM")
            if stream is not None:
                self._end(stream, f.Reset(code))
        elif kind == f.GOAWAY:
            self._goaway(sid, payload)
        elif kind == f.PRIORITY:
            f.exactly(payload, 5, "PRIORITY")
        elif kind == f.PUSH_PROMISE:
            raise ProtocolError("a PUSH_PROMISE, though push is off")

    def _stream(self, sid: int, what: str) -> Stream | None:
        """The open stream, None for one that has ended.  Raises for one that never was."""
        stream = self.streams.get(sid)
        if stream is None and (sid % 2 == 0 or sid >= self._next_id):
            raise ProtocolError(f"{what} on a stream that was never opened")
        return stream

    def _data(self, sid: int, data: bytes, flags: int, size: int) -> None:
        stream = self._stream(sid & LAST_STREAM, "DATA")
        self._unacked += size
        if stream is not None:
            if not stream.first_ns:
                raise ProtocolError("DATA before HEADERS")
            stream.bytes_in += size
            if stream.body is not None:
                stream.body.append(data)
            elif not stream.read:
                stream.body = [data]
        if self._unacked > self._half or (stream is not None and stream.bytes_in > self._stream_half):
            self._replenish(stream)
        if flags & f.END_STREAM and stream is not None:
            self._end(stream, stream.end)

    def _replenish(self, stream: Stream | None) -> None:
        """Gives the peer back the windows that it has used more than half of."""
        if self._unacked > self.our_window:
            raise ProtocolError("the connection's window was overrun", f.FLOW_CONTROL_ERROR)
        if self._unacked > self._half:
            self.out.append(frame(f.WINDOW_UPDATE, 0, 0, WORD.pack(self._unacked)))
            self._unacked = 0
        if stream is None:
            return
        used = stream.bytes_in - stream.granted
        if used > self._stream_window:
            raise ProtocolError("a stream's window was overrun", f.FLOW_CONTROL_ERROR)
        if used > self._stream_half:
            self.out.append(frame(f.WINDOW_UPDATE, 0, stream.id, WORD.pack(used)))
            stream.granted = stream.bytes_in

    def _more_headers(self, flags: int, part: bytes, stamp: int) -> None:
        assert self._fragments is not None  # noqa: S101 - the callers set or checked it
        sid, first_flags, block = self._fragments
        block += part
        if len(block) > BLOCK_LIMIT:
            raise ProtocolError(f"a header block of more than {BLOCK_LIMIT} bytes")
        self._careful = not flags & f.END_HEADERS
        if self._careful:
            return
        self._fragments = None
        told = self._blocks[bytes(block)]
        stream = self._stream(sid, "HEADERS")
        if stream is not None:
            self._headers(stream, told, stamp, last=bool(first_flags & f.END_STREAM))

    def _headers(self, stream: Stream, told: Trailers, stamp: int, *, last: bool) -> None:
        if not stream.first_ns:
            if told.http_status is None:
                raise ProtocolError("an answer without :status")
            stream.first_ns = stamp
            if 100 <= told.http_status < 200 and not last:  # noqa: PLR2004 - interim: the answer is still to come
                stream.first_ns = 0
                return
            stream.end = told
        elif not last:
            raise ProtocolError("a second header block that does not end the stream")
        elif stream.end.http_status == 200:  # type: ignore[union-attr]  # noqa: PLR2004 - no Reset before the end
            stream.end = told
        if last:
            self._end(stream, stream.end)

    def _end(self, stream: Stream, end: f.End) -> None:
        stream.end = end
        del self.streams[stream.id]
        if self._parked.pop(stream.id, None) is not None:  # answered before it had read everything
            if not isinstance(end, f.Reset):
                self.out.append(frame(f.RST_STREAM, 0, stream.id, WORD.pack(f.NO_ERROR)))
            self._pump()
        self.ended.append(stream)

    def _settings(self, flags: int, sid: int, payload: bytes) -> None:
        pairs = f.read_settings(flags, sid, payload)
        if flags & f.ACK:
            if not self.ready:
                raise ProtocolError("not HTTP/2: SETTINGS were acknowledged before they were told")
            return
        for key, value in pairs:  # HEADER_TABLE_SIZE says what our encoder may use: it uses none
            if key == f.MAX_CONCURRENT_STREAMS:
                self._peer_limit = value
            elif key == f.INITIAL_WINDOW_SIZE:
                for stream in self._parked.values():
                    self._allow(stream, value - self._peer_window)
                self._peer_window = value
            elif key == f.MAX_FRAME_SIZE:
                self._peer_frame = value
        self.ready, self._careful = True, False
        self.limit = 0 if self.retiring else self._peer_limit
        self.out.append(frame(f.SETTINGS, f.ACK, 0))
        self._pump()

    def _allow(self, stream: Stream, more: int) -> None:
        stream.window += more
        if stream.window > f.BIGGEST_WINDOW:
            raise ProtocolError("a stream's window above 2^31-1", f.FLOW_CONTROL_ERROR)

    def _window_update(self, sid: int, payload: bytes) -> None:
        more = int.from_bytes(payload, "big") & LAST_STREAM
        if not more:
            raise ProtocolError("a WINDOW_UPDATE of 0")
        if not sid:
            self._window += more
            if self._window > f.BIGGEST_WINDOW:
                raise ProtocolError("the connection's window above 2^31-1", f.FLOW_CONTROL_ERROR)
        else:
            self._stream(sid, "WINDOW_UPDATE")
            stream = self._parked.get(sid)
            if stream is None:  # all its data is sent: nothing to allow
                return
            self._allow(stream, more)
        if self._parked:
            self._pump()

    def _goaway(self, sid: int, payload: bytes) -> None:
        last, self.farewell = f.read_goaway(sid, payload)
        self._retire()
        for stream in [s for s in self.streams.values() if s.id > last]:
            self._end(stream, f.UNPROCESSED)
