"""Stands between loadgen and a tritonserver: starts it, and never lets it outlive what it was started for.

Run as a script of its own (`python -I keeper.py '{json}'`), with nothing but the standard library.  It ends
the server (SIGTERM, then SIGKILL to its whole process group, python stubs included) when it gets SIGTERM
(a second one cuts the wait short), or, with little patience, when the process that started it goes away,
however that ends: its end of our standard input closes, or our parent changes.  A single byte "d" on standard input means: let go, this server is to stay.  Afterwards it
removes the server's shared memory, writes the exit code down and, when nobody is left who would read it, removes the
server's folder if that is a temporary one.  It must not know Triton's options.

The order (JSON; the environment is inherited): command, log, state (file to write, with the fields of `facts`), facts, exit (file),
shm_prefix, stop_s (patience when asked), haste_s (patience when orphaned), parent (the pid to outlive or not), temporary (the folder, or none).
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CHILDREN_S = 5.0
_PARENT_CHECK_S = 1.0  # only for the case that a fork of our parent still holds the pipe


def born(pid: int) -> str | None:
    """What tells this process from a later one with the same pid; None when there is none (or a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{boot}/{fields[19]}"


def write_json(path: str, value: dict[str, Any]) -> None:
    """A reader sees the old file or the new one, never half."""
    temporary = Path(f"{path}.tmp")
    temporary.write_text(json.dumps(value))
    temporary.rename(path)


def main(order: dict[str, Any]) -> int:
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # stubs of a dead server become our children, not init's
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    us = os.getpid()

    def in_the_child() -> None:
        # If we are killed outright the server must still hear of it.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != us:
            os._exit(1)

    with Path(order["log"]).open("ab") as log:
        server = subprocess.Popen(
            order["command"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            process_group=0, preexec_fn=in_the_child,  # noqa: PLW1509 - one thread here
        )  # fmt: skip
    facts = {
        "keeper_pid": us,
        "keeper_born": born(us),
        "server_pid": server.pid,
        "server_born": born(server.pid) or "gone",  # it may have ended already
    }
    write_json(order["state"], order["facts"] | facts)
    print(json.dumps(facts))  # noqa: T201 - our parent reads this line
    sys.stdout.close()

    patience = _wait(server.pid, order["parent"], wake_read)
    if patience is not None:
        _stop(server.pid, float(order[patience]), wake_read)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)  # before reaping: the group id is still the server's
    code = server.wait()
    _end_children()
    for region in Path("/dev/shm").glob(order["shm_prefix"] + "*"):  # noqa: S108 - Linux's shared memory
        region.unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):  # an impatient parent has removed the folder
        write_json(order["exit"], {"exit_code": code, "asked": patience is not None})
    if (folder := order.get("temporary")) is not None and _alone(order["parent"]):
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _alone(parent: int) -> bool:
    """Whether our parent is gone, or has closed the pipe: it wants nothing of us any more."""
    return os.getppid() != parent or (bool(select.select([0], [], [], 0)[0]) and os.read(0, 1) == b"")


def _ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _wait(server: int, parent: int, wake: int) -> str | None:
    """Until the server ended (None) or should end: the order's field with the patience to have."""
    watching: list[int] = [0]
    while not _ended(server):
        if watching and os.getppid() != parent:
            return "haste_s"
        readable, _, _ = select.select([wake, *watching], [], [], _PARENT_CHECK_S if watching else None)
        if wake in readable and signal.SIGTERM in os.read(wake, 64):
            return "stop_s"
        if 0 in readable:
            if os.read(0, 1) != b"d":
                return "haste_s"
            watching = []
    return None


def _end_children() -> None:
    """What a dead server left: its stubs (killed with the group), and what a model started on its own."""
    deadline = time.monotonic() + _CHILDREN_S
    while time.monotonic() < deadline:
        for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def _stop(server: int, patience_s: float, wake: int) -> None:
    """SIGTERM, then as much patience as there is; a second SIGTERM to us ends it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(server, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    pidfd = os.pidfd_open(server)
    try:
        while (left_s := deadline - time.monotonic()) > 0:
            readable, _, _ = select.select([pidfd, wake], [], [], left_s)
            if pidfd in readable or (wake in readable and signal.SIGTERM in os.read(wake, 64)):
                return
    finally:
        os.close(pidfd)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
