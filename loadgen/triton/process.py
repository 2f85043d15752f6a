"""Processes that we started: are they still the same ones, end them, and free ports for new ones.

It must not know what the processes are for.
"""

import os
import select
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress

from loadgen.records import LoadgenError
from loadgen.triton.keeper import born

LOOPBACK = "127.0.0.1"


def same_process(pid: int, birth: str) -> bool:
    """True if `pid` is alive and is the process of that birth, not a later one that got its number."""
    return born(pid) == birth


def end_process(pid: int, birth: str, signal_number: int, wait_s: float) -> bool:
    """Sends the signal to that very process and waits; True when it is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        if not same_process(pid, birth):  # asked after opening: the number cannot change hands any more
            return True
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal_number)
        return bool(select.select([pidfd], [], [], wait_s)[0])
    finally:
        os.close(pidfd)


def listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((LOOPBACK, port)) == 0


def choose_ports(asked: Mapping[str, int | None]) -> dict[str, int]:
    """A loopback port for each option; None is a free one of the system's choice.

    Raises LoadgenError naming port and option when a given one is taken or given twice.
    """
    given = {option: port for option, port in asked.items() if port is not None}
    for option, port in given.items():
        twins = [other for other, its in given.items() if its == port and other != option]
        if twins:
            raise LoadgenError(f"port {port} is given to both {option} and {twins[0]}; they need one each")
    held: list[socket.socket] = []  # all at once, so that no free port is given out twice
    chosen: dict[str, int] = {}
    try:
        for option in (*given, *(o for o in asked if o not in given)):
            port = asked[option] or 0
            held.append(taken := socket.socket())
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                taken.bind((LOOPBACK, port))
            except PermissionError:
                raise LoadgenError(
                    f"port {port} ({option}) is not allowed to you; take one above 1023"
                ) from None
            except OverflowError:
                raise LoadgenError(f"port {port} ({option}) is no port; allowed: 1 to 65535") from None
            except OSError:
                raise LoadgenError(
                    f"port {port} is taken by another process; give {option} a free one, or leave it out"
                ) from None
            chosen[option] = taken.getsockname()[1]
    finally:
        for taken in held:
            taken.close()
    return chosen
