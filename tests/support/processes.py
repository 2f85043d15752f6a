"""Servers that a test starts as processes of their own: on loopback, bounded in time, gone when the test is.

with serving([python, "-m", "uvicorn", "app:app", "--port", port], f"http://127.0.0.1:{port}/health", log):
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
import urllib.error
import urllib.request

_LIFE_S = 900  # whatever becomes of us


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def serving(command, ready_url, log, limit_s=120, **options):
    """Runs `command` until the block ends; enters once `ready_url` answers 200.  `log` takes what it says."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["timeout", "-k", "5", str(_LIFE_S), *map(str, command)], stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT, start_new_session=True, **options,
        )  # fmt: skip
    try:
        _wait(process, ready_url, log, limit_s)
        yield process
    finally:
        process.terminate()  # timeout hands it on
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process, url, log, limit_s):
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with contextlib.suppress(urllib.error.URLError, OSError):
            if urllib.request.urlopen(url, timeout=5).status == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"{url} is not ready:\n{log.read_text(errors='replace')[-3000:]}")
