"""A network namespace of a process's own, whose loopback is a lossy network made by the kernel's netem.

The namespace ends with its process, and nothing outside it changes.  Linux, with the right to make one.  Packets
have 1500 bytes there, so that a share of packets is what it is on a wire.  This module must not know what is
carried.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_NEW_NET = 0x40000000  # CLONE_NEWNET
_LIMIT_S = 10.0
_MOST_PACKETS = "100000"  # under way: a second of a gigabit
_LO_UP = ("ip", "link", "set", "dev", "lo", "up", "mtu", "1500", "gso_max_segs", "1")


class NamespaceError(OSError):
    """Why there is no such network here, in words."""


def netem(delay_ns: int, jitter_ns: int, loss: float) -> list[str]:
    """What tc is told.  A loopback's packets pass once in each direction, so each way has the whole delay."""
    words = ["netem", "limit", _MOST_PACKETS]
    if delay_ns:
        words += ["delay", f"{delay_ns / 1000:.3f}us"]
        words += [f"{jitter_ns / 1000:.3f}us"] if jitter_ns else []
    return [*words, "loss", f"{loss * 100:.6f}%"]


class Namespace:
    """Made with the queueing discipline that tc is given for its loopback.  Raises NamespaceError.

    Only the thread that makes it may use it.
    """

    def __init__(self, discipline: Sequence[str]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        try:
            self._home = _current()
        except OSError:
            raise NamespaceError("this system has no network namespaces") from None
        if self._libc.unshare(_NEW_NET) != 0:
            why = os.strerror(ctypes.get_errno())
            raise NamespaceError(f"no network namespace can be made here (needs CAP_SYS_ADMIN): {why}")
        try:
            _tool(_LO_UP)
            _tool(("tc", "qdisc", "add", "dev", "lo", "root", *discipline))
            self._inside = _current()
        finally:
            self._enter(self._home)

    def _enter(self, handle: int) -> None:
        if self._libc.setns(handle, _NEW_NET) != 0:
            raise NamespaceError(
                f"the network namespace cannot be entered: {os.strerror(ctypes.get_errno())}"
            )

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Sockets made within belong to the namespace for good; nothing may be awaited within."""
        self._enter(self._inside)
        try:
            yield
        finally:
            self._enter(self._home)

    def socket(self) -> socket.socket:
        """A TCP socket of the namespace, not connected, that does not block."""
        with self.inside():
            made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setblocking(False)
        return made


def _current() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _tool(command: Sequence[str]) -> None:
    if shutil.which(command[0]) is None:
        raise NamespaceError(f"{command[0]} is not installed here (package iproute2)")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise NamespaceError(f"{command[0]} did not end within {_LIMIT_S:g} s") from None
    if done.returncode == 0:
        return
    words = " ".join(done.stderr.split())
    if command[0] == "tc" and ("unknown" in words.lower() or "no such file" in words.lower()):
        raise NamespaceError(f"this kernel has no {command[6]} (module sch_{command[6]})")
    if "permitted" in words.lower() or "denied" in words.lower():
        raise NamespaceError(f"{command[0]} is not permitted here (needs CAP_NET_ADMIN)")
    raise NamespaceError(f"{command[0]} does not work here: {words}")
