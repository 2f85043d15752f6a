"""Network conditions for a run, from the side of the run: starts the relay, measures its cost, ends it.

The load's connections go `via` the relay; the control plane (facts, statistics) goes straight to the server.
Loss is the kernel's work, by netem in a network namespace of the relay's own (lab.namespace), where delay and
jitter then are made too; where there is none it is refused with the reason.  It must not know how bytes are
delayed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.analysis.percentiles import quantile
from loadgen.lab.namespace import netem
from loadgen.records import LoadgenError, NotMeasuredError
from loadgen.transport.dial import Via

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from loadgen.target import Target
    from loadgen.traffic.network import Network

_START_S, _END_S = 20.0, 5.0
_PINGS, _WARM = 400, 50
_PING = b"x" * 256
_PROBE_S = 10.0


class RelayError(NotMeasuredError):
    """The relay is no more, or never was: what follows met no such network."""


class Relay:
    """A relay process.  `via` is for transports; `error` is set, and `died` called, when it ends unasked."""

    def __init__(self, died: Callable[[], None] = lambda: None) -> None:
        self.error: RelayError | None = None
        self.via = Via("", 0)
        self._died = died
        self._closing = False
        self._last: dict[str, Any] = {}

    async def start(
        self,
        network: Network | None,
        host: str,
        port: int,
        seed: int,
        discipline: Sequence[str] | None = None,
    ) -> None:
        """`network` None: no condition at all.  Raises LoadgenError when it cannot be had.

        `discipline`: what tc makes of the relay's own namespace; by default netem when packets get lost.
        """
        if discipline is None and network is not None and network.loss:
            discipline = netem(network.delay_ns, network.jitter_ns, network.loss)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "loadgen.lab.relay_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip - a session of its own: the terminal's Ctrl-C is for the run, which ends it when it is done
        ours = network if network and not discipline else None  # netem delays too, or it would lose on no way
        order = {
            "host": host, "port": port, "seed": seed, "delay_ns": ours.delay_ns if ours else 0,
            "jitter_ns": ours.jitter_ns if ours else 0, "bytes_per_s": network.bytes_per_s if network else None,
            "discipline": discipline,
        }  # fmt: skip
        assert self._process.stdin is not None  # noqa: S101 - asked for
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        try:
            first = await asyncio.wait_for(self._line(), _START_S)
        except TimeoutError:
            first = {"error": f"not ready within {_START_S:g} s"}
        if "port" not in first:
            await self.close()
            why = first.get("error", "it ended at once")
            if "loss" in first:
                raise LoadgenError(
                    f"network.loss: only the kernel's netem can lose packets, and {why}; leave loss out"
                )
            raise LoadgenError(f"network: the relay did not start: {why}")
        self.via = Via("127.0.0.1", int(first["port"]), network.round_trip_ns if network else 0)
        self._task = asyncio.get_running_loop().create_task(self._watch())

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    async def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101 - asked for
        line = await self._process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {}
        return found

    async def _watch(self) -> None:
        self._last = await self._line()
        code = await self._process.wait()
        if not self._closing:
            how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            self.error = RelayError(
                f"the relay that makes the network's conditions ended before the run did ({how}); what was recorded is kept"
            )
            self._died()

    async def close(self) -> dict[str, Any]:
        """Ends it; returns what it did (empty when it was killed)."""
        self._closing = True
        assert self._process.stdin is not None  # noqa: S101 - asked for
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _END_S)
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if hasattr(self, "_task"):
            await self._task
        return self._last


async def start_relay(
    network: Network, target: Target, seed: int, died: Callable[[], None]
) -> tuple[Relay, dict[str, Any]]:
    """A relay to the target, and facts for run.json: the conditions, and what a relay without any adds here.

    Raises LoadgenError when the conditions cannot be had.
    """
    relay = Relay(died)
    await relay.start(network, target.host, target.port, seed)
    facts = {
        "by": "netem" if network.loss else "relay", "delay_ns": network.delay_ns, "jitter_ns": network.jitter_ns,
        "bytes_per_s": network.bytes_per_s, "loss": network.loss, "round_trip_ns": network.round_trip_ns,
        "calibration": await calibrate(),
    }  # fmt: skip
    return relay, facts


async def calibrate() -> dict[str, Any]:
    """What a relay without conditions adds to a round trip of 256 bytes (two passages), and its CPU a passage.

    The same pings, one at a time, straight to an echo and through the relay; `added` is the difference of
    their percentiles, of `n` each.
    """
    with _echo() as port:
        relay = Relay()
        await relay.start(None, "127.0.0.1", port, 0)
        try:
            straight = await asyncio.to_thread(_pings, ("127.0.0.1", port), b"")
            through = await asyncio.to_thread(_pings, relay.via[:2], b"\0")
        except OSError as why:
            raise LoadgenError(f"network: the relay could not be measured: {why}") from None
        finally:
            facts = await relay.close()
    added = {
        f"added_{name}_ns": max(0, (quantile(through, q) or 0) - (quantile(straight, q) or 0))
        for name, q in (("p50", 0.5), ("p99", 0.99))
    }
    return {"n": _PINGS, **added, "cpu_ns_per_piece": facts["cpu_ns"] // max(1, facts["pieces"])}


@contextlib.contextmanager
def _echo() -> Iterator[int]:
    """An echo server in a thread, for one connection after the other; its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = server.accept()
                with link:
                    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    while data := link.recv(4096):
                        link.sendall(data)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(1)


def _pings(address: tuple[str, int], greeting: bytes) -> npt.NDArray[np.int64]:
    """Round trips, one after the other, after some that do not count."""
    times = []
    with socket.create_connection(address, _PROBE_S) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if greeting and link.recv(len(greeting)) != greeting:
            raise OSError("the relay reached no server")
        for _ in range(_WARM + _PINGS):
            began = time.monotonic_ns()
            link.sendall(_PING)
            held = 0
            while held < len(_PING):
                data = link.recv(len(_PING) - held)
                if not data:
                    raise OSError("the connection ended")
                held += len(data)
            times.append(time.monotonic_ns() - began)
    return np.array(times[_WARM:], np.int64)
