"""What went over loopback, and when: tcpdump around a client, and a small reader of what it wrote.

HTTP/1.1: a request begins with the packet that begins with its method, an answer is there with the last
packet before the next request.  gRPC: HTTP/2 frames are walked through on both sides of each connection; a
request is its HEADERS frame, an answer its frame with END_STREAM; calls whose message is not as long as most
are control, not load.  Stamps are the kernel's.  A connection of which a packet is missing is left out from
there on, and counted.
It must not know who sent, nor what was planned.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

Ints = npt.NDArray[np.int64]
_SETTLE_S = 1.2  # the kernel hands packets over in blocks, a block that is not full after a second
_MAGIC_NS, _ETHERNET, _IPV4, _TCP = 0xA1B23C4D, 1, 0x0800, 6
_RECORD = Struct("<IIII")
_PREFACE_BYTES, _FRAME_HEAD = 24, 9
_HEADERS, _END_STREAM = 1, 1
_METHODS = (b"POST ", b"GET ")


class Refused(Exception):  # noqa: N818 - a state, not a fault
    """tcpdump cannot capture here; the words are its own."""


class Capture:
    """Captures the TCP traffic of one loopback port while entered."""

    def __init__(self, path: Path, port: int, *, whole: bool) -> None:
        """`whole`: every byte, not the first 128 of a packet."""
        self.path, self.port = path, port
        self._command = ["tcpdump", "-i", "lo", "-n", "-s", "262144" if whole else "128", "-B", "131072",
                         "--time-stamp-precision=nano", "-w", "-", f"tcp port {port}"]  # fmt: skip
        self.dropped = 0

    def __enter__(self) -> Self:
        with self.path.open("wb") as out:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=subprocess.PIPE)
        assert self._process.stderr is not None
        said = b""
        while b"listening on" not in said:
            line = self._process.stderr.readline()
            if not line:
                self._process.wait()
                raise Refused(said.decode(errors="replace").strip()[-200:])
            said += line
        return self

    def __exit__(self, *why: object) -> None:
        time.sleep(_SETTLE_S)
        self._process.send_signal(signal.SIGINT)
        _, said = self._process.communicate(timeout=30)
        told = re.search(rb"(\d+) packets dropped by kernel", said)
        self.dropped = int(told[1]) if told else 0


def refusal() -> str | None:
    """Why nothing can be captured here, or None."""
    if not shutil.which("tcpdump"):
        return "tcpdump is missing (apt-get install tcpdump)"
    try:
        with Capture(Path("/dev/null"), 9, whole=False):
            pass
    except Refused as why:
        return f"tcpdump may not capture (it needs root or CAP_NET_RAW): {why}"
    return None


@dataclass
class Seen:
    """Requests whose answer was seen too, in order of sending; nanoseconds of the wall clock."""

    sent: Ints
    done: Ints
    broken: int = 0  # connections cut short by a missing packet


def packets(path: Path, port: int) -> Iterator[tuple[int, bool, int, int, int, bytes]]:
    """(stamp, from the server, client's port, sequence number, payload bytes on the wire, payload as captured)."""
    data = path.read_bytes()
    magic, *_, link = Struct("<IHHiIII").unpack_from(data)
    if magic != _MAGIC_NS or link != _ETHERNET:
        raise ValueError(f"{path}: not a nanosecond capture of Ethernet frames")
    pos, size, server = 24, len(data), port.to_bytes(2, "big")
    while pos + 16 <= size:
        seconds, nanos, kept, _ = _RECORD.unpack_from(data, pos)
        at = pos + 16
        pos = at + kept
        if pos > size:
            return
        if data[at + 12 : at + 14] != b"\x08\x00" or data[at + 23] != _TCP:
            continue
        ip = at + 14
        tcp = ip + (data[ip] & 15) * 4
        start = tcp + (data[tcp + 12] >> 4) * 4
        length = ip + (data[ip + 2] << 8 | data[ip + 3]) - start
        if length <= 0 and not data[tcp + 13] & 2:  # neither bytes nor SYN
            continue
        down = data[tcp : tcp + 2] == server
        client = int.from_bytes(data[tcp + 2 : tcp + 4] if down else data[tcp : tcp + 2], "big")
        sequence = int.from_bytes(data[tcp + 4 : tcp + 8], "big")
        yield (
            seconds * 1_000_000_000 + nanos,
            down,
            client,
            sequence,
            length,
            data[start : min(pos, start + length)],
        )


def http_pairs(path: Path, port: int, begins: bytes) -> Seen:
    """Requests that begin with `begins`, e.g. b"POST /v2/models/m"."""
    open_: dict[int, list[int]] = {}  # client port -> sent, done so far (0: none), of interest
    pairs: list[tuple[int, int]] = []
    for stamp, down, client, _, length, payload in packets(path, port):
        if length <= 0:
            continue
        state = open_.get(client)
        if down:
            if state is not None:
                state[1] = stamp
        elif payload.startswith(_METHODS):  # else more of a request; nginx answers before it has the body
            if state is not None and state[2] and state[1]:
                pairs.append((state[0], state[1]))
            open_[client] = [stamp, 0, payload.startswith(begins)]
    pairs += [(sent, done) for sent, done, wanted in open_.values() if wanted and done]
    return _seen(pairs)


@dataclass
class _Side:
    """One direction of one connection, between two frames or within one."""

    skip: int
    expected: int | None = None  # next sequence number
    held: bytes = b""
    lost: bool = False


@dataclass
class _Pair:
    up: _Side = field(default_factory=lambda: _Side(_PREFACE_BYTES))
    down: _Side = field(default_factory=lambda: _Side(0))
    sent: dict[int, list[int]] = field(default_factory=dict)  # stream -> stamp, bytes of its message


def grpc_pairs(path: Path, port: int) -> Seen:
    """Calls with a message of the commonest length.  Needs a capture of whole packets."""
    links: dict[int, _Pair] = {}
    broken = 0
    calls: list[tuple[int, int, int]] = []  # sent, done, bytes
    for stamp, down, client, sequence, length, payload in packets(path, port):
        if length <= 0:  # SYN: a connection from its first byte
            link = links.setdefault(client, _Pair())
            (link.down if down else link.up).expected = sequence + 1 & 0xFFFFFFFF
            continue
        link = links.get(client)  # type: ignore[assignment]
        if link is None:
            continue
        side = link.down if down else link.up
        if side.lost or side.expected is None or (sequence - side.expected) & 0x80000000:
            continue  # lost before, or a repetition
        if sequence != side.expected or len(payload) < length:
            side.lost = True
            broken += 1
            continue
        side.expected = sequence + length & 0xFFFFFFFF
        _walk(side, payload, stamp, link.sent, calls if down else None)
    usual = Counter(size for *_, size in calls).most_common(1)
    seen = _seen([(sent, done) for sent, done, size in calls if size == usual[0][0]])
    seen.broken = broken
    return seen


def _walk(
    side: _Side, data: bytes, stamp: int, sent: dict[int, list[int]], calls: list[tuple[int, int, int]] | None
) -> None:
    """Notes the frames that begin in this packet; `calls` takes the ended ones, None: the client's side."""
    pos = 0
    if side.held:
        data = side.held + data
    size = len(data)
    while True:
        pos += side.skip
        if pos > size:
            side.skip, side.held = pos - size, b""
            return
        side.skip = 0
        if size - pos < _FRAME_HEAD:
            side.held = data[pos:]
            return
        kind, flags = data[pos + 3], data[pos + 4]
        length = data[pos] << 16 | data[pos + 1] << 8 | data[pos + 2]
        if kind <= _HEADERS:
            stream = int.from_bytes(data[pos + 5 : pos + 9], "big")
            if calls is None:
                if kind == _HEADERS:
                    sent[stream] = [stamp, 0]
                elif stream in sent:
                    sent[stream][1] += length
            elif flags & _END_STREAM and stream in sent:
                began, asked = sent.pop(stream)
                calls.append((began, stamp, asked))
        side.skip = _FRAME_HEAD + length


def _seen(pairs: list[tuple[int, int]]) -> Seen:
    table = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    return Seen(table[:, 0], table[:, 1])


def lateness_of_records(sent: Ints, own_sent_ns: Ints, due_ns: Ints) -> Ints:
    """How late requests left against their due times, as the wire saw it.

    The run's clock is laid onto the capture's by the least distance between the run's own stamp (taken before
    the write) and the packet: what is lost is the cost of the cheapest write.  All in order of sending.
    """
    zero = int((sent - own_sent_ns).min())
    return sent - zero - due_ns


def lateness_of_grid(sent: Ints, rate: int) -> tuple[Ints, int]:
    """The same against an even grid whose origin nobody told: the one that makes the least late request
    punctual.  The step is a second over the rate, or that cut to whole nanoseconds, whichever fits better.
    """
    k = np.arange(sent.size)
    best: tuple[Ints, int] | None = None
    for step in (1e9 / rate, float(int(1e9 / rate))):
        late = sent - sent[0] - np.round(k * step).astype(np.int64)
        late -= late.min()
        if best is None or np.median(late) < np.median(best[0]):
            best = (late, round(step))
    assert best is not None
    return best
