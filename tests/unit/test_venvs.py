"""The environments of foreign test servers: made once, begun anew when half made, bounded, never taken from a user."""

import fcntl
import os

import pytest

from tests.support import venvs


@pytest.fixture
def made(tmp_path, monkeypatch):
    """What was made, in order; nothing is installed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(venvs, "_in_use", [])
    venvs.venv_with.cache_clear()
    log = []

    def make(folder, requirements, ours):
        log.append(requirements)
        (folder / "bin").mkdir(parents=True)
        (folder / venvs._STAMP).touch()

    monkeypatch.setattr(venvs, "_make", make)
    yield log
    venvs.venv_with.cache_clear()


def forget():
    """As a process that ends does."""
    for lock in venvs._in_use:
        lock.close()
    venvs._in_use.clear()
    venvs.venv_with.cache_clear()


def test_the_same_requirements_share_one(made, tmp_path):
    first = venvs.venv_with("a==1", "b==2")
    forget()
    assert venvs.venv_with("b==2", "a==1") == first
    assert made == [("a==1", "b==2")]
    assert venvs.venv_with("a==2") != first
    assert first.is_relative_to(tmp_path / "loadgen" / "tests" / "venvs")


def test_one_that_was_left_half_made_is_begun_anew(made):
    folder = venvs.venv_with("a==1").parent
    forget()
    (folder / venvs._STAMP).unlink()
    (folder / "bin").rmdir()
    venvs.venv_with("a==1")
    assert len(made) == 2


def test_the_oldest_go_but_not_one_in_use(made):
    folders = []
    for number in range(venvs._MOST):
        folders.append(venvs.venv_with(f"a=={number}").parent)
        os.utime(folders[-1] / venvs._STAMP, (number, number))
    forget()
    with venvs._lock_of(folders[0]).open("w") as lock:  # another process uses the oldest
        fcntl.flock(lock, fcntl.LOCK_SH)
        venvs.venv_with("b==1")
        venvs.venv_with("b==2")
    assert [folder.exists() for folder in folders] == [True, False, *[True] * (venvs._MOST - 2)]
