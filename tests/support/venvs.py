"""Virtual environments for servers that no one here wrote, made once a machine and kept in the user's cache.

    python = venv_with("fastapi==0.115.14", "uvicorn==0.54.0") / "python"

A folder is named by the hash of its requirements and this Python; it is made under a lock, and a stamp says that
it is whole, so several test processes may ask at once and a broken install is begun anew.  Those not used for
longest go when there are too many, never one that a live process uses.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

_MOST = 8  # folders that are kept
_LIMIT_S = 600
_STAMP = "complete"
_in_use = []  # open lock files: shared for as long as this process lives


def venvs_home() -> Path:
    """`loadgen/tests/venvs` in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "loadgen" / "tests" / "venvs"


@functools.cache
def venv_with(*requirements: str, on_ours: bool = False) -> Path:
    """The `bin` folder of a virtual environment with exactly these requirements (and what they need).

    `on_ours`: our own packages are there too, behind these, so that heavy ones are not installed twice.
    """
    home = venvs_home()
    home.mkdir(parents=True, exist_ok=True)
    ours = [sysconfig.get_path("purelib")] if on_ours else []
    told = "\n".join([*sorted(requirements), platform.python_version(), platform.machine(), str(home), *ours])
    folder = home / hashlib.sha256(told.encode()).hexdigest()[:16]
    lock = _lock_of(folder).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not (folder / _STAMP).exists():
        _make(folder, requirements, ours)
    (folder / _STAMP).touch()
    fcntl.flock(lock, fcntl.LOCK_SH)
    _in_use.append(lock)
    _drop_old(home, keep=folder)
    return folder / "bin"


def _lock_of(folder):
    return folder.with_name(f".{folder.name}.lock")


def _make(folder, requirements, ours):
    shutil.rmtree(folder, ignore_errors=True)
    _run(sys.executable, "-m", "venv", folder)
    if ours:
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "ours.pth").write_text("\n".join(ours) + "\n")
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    _run(*pip, "--progress-bar", "off", "--prefer-binary", *requirements)
    (folder / _STAMP).write_text("\n".join(requirements) + "\n")


def _run(*command):
    done = subprocess.run(
        [str(word) for word in command],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{(done.stdout + done.stderr)[-2000:]}")


def _drop_old(home, keep):
    stamps = sorted(home.glob(f"*/{_STAMP}"), key=lambda path: path.stat().st_mtime)
    for stamp in stamps[: max(0, len(stamps) - _MOST)]:
        if stamp.parent == keep:
            continue
        with _lock_of(stamp.parent).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(stamp.parent, ignore_errors=True)
