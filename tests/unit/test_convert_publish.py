"""Publication: whole or not at all, and never over a version that may be served."""

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.convert import publish
from loadgen.convert.options import ConvertOptions
from loadgen.convert.publish import PublishError, staged
from loadgen.records import NotWrittenError


def put(options, text):
    publish.refuse_existing(options)
    with staged(options) as stage:
        (stage.version / "model.onnx").write_text(text)
        (stage.model / "config.pbtxt").write_text(f"config of {text}")
        publish.publish(stage, options)


def tree(folder):
    return {p.relative_to(folder).as_posix(): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def cannot_exchange(monkeypatch):
    """A kernel or disk that does not exchange two names at once."""
    monkeypatch.setattr(publish.ctypes, "CDLL", lambda *_, **__: object())


@pytest.fixture
def options(tmp_path):
    return ConvertOptions(name="m", repository=tmp_path / "repo")


def test_a_new_model_then_a_new_version(options):
    put(options, "one")
    assert tree(options.repository) == {"m/1/model.onnx": "one", "m/config.pbtxt": "config of one"}
    inode = (options.version_folder / "model.onnx").stat().st_ino
    put(replace(options, version=2), "two")
    assert tree(options.repository) == {
        "m/1/model.onnx": "one",
        "m/2/model.onnx": "two",
        "m/config.pbtxt": "config of two",
    }
    assert (options.version_folder / "model.onnx").stat().st_ino == inode
    assert [p.name for p in options.repository.iterdir()] == ["m"]


def test_the_warm_up_data_of_a_served_version_stays(options):
    def put_warm(options, text):
        with staged(options) as stage:
            (stage.version / "model.onnx").write_text(text)
            (stage.model / "config.pbtxt").write_text(text)
            (stage.model / "warmup").mkdir()
            (stage.model / "warmup" / f"{options.version}-ids").write_text(text)
            publish.publish(stage, options)

    put_warm(options, "one")
    put_warm(replace(options, version=2), "two")
    assert tree(options.model_folder / "warmup") == {"1-ids": "one", "2-ids": "two"}
    put_warm(replace(options, version=2, replace=True), "new")
    assert tree(options.model_folder / "warmup") == {"1-ids": "one", "2-ids": "new"}


def test_an_existing_version_needs_replace(options):
    put(options, "one")
    put(replace(options, version=4), "four")
    with pytest.raises(PublishError, match=r"exists; publish beside it with --version 5, or .* --replace"):
        put(options, "new")
    put(replace(options, replace=True), "new")
    assert tree(options.repository)["m/1/model.onnx"] == "new"
    assert tree(options.repository)["m/4/model.onnx"] == "four"


def test_the_config_comes_last(options, monkeypatch):
    put(options, "one")
    seen = []
    real = Path.replace

    def spy(self, target):
        seen.append((self.name, (options.model_folder / "2" / "model.onnx").read_text()))
        return real(self, target)

    monkeypatch.setattr(Path, "replace", spy)
    put(replace(options, version=2), "two")
    assert seen == [("config.pbtxt", "two")]


def test_ctrl_c_while_a_version_is_replaced_brings_the_old_one_back(options, monkeypatch):
    put(options, "one")
    before = tree(options.repository)

    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)  # the version is in its place, its config is not
        with pytest.raises(KeyboardInterrupt):
            put(replace(options, replace=True), "new")
    assert tree(options.repository) == before


@pytest.mark.parametrize("step", ["rename", "replace", "fsync"])
def test_a_failure_changes_nothing(options, monkeypatch, step):
    put(options, "one")
    before = tree(options.repository)

    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    target = {"rename": (Path, "rename"), "replace": (Path, "replace"), "fsync": (os, "fsync")}[step]
    if step == "rename":
        cannot_exchange(monkeypatch)
    for changes in ({"version": 2}, {"replace": True}):
        with monkeypatch.context() as patch:
            patch.setattr(*target, full)
            with pytest.raises(NotWrittenError, match="No space left on device; free some space") as why:
                put(replace(options, **changes), "new")
        assert "\n" not in str(why.value)
        assert tree(options.repository) == before


def test_the_old_version_comes_back_if_the_new_one_cannot_be_moved_in(options, monkeypatch):
    put(options, "one")
    before = tree(options.repository)
    cannot_exchange(monkeypatch)
    real, calls = Path.rename, []

    def second_fails(self, target):
        calls.append(self)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", second_fails)
        with pytest.raises(NotWrittenError):
            put(replace(options, replace=True), "new")
    assert tree(options.repository) == before


@pytest.mark.parametrize("can", [True, False])
def test_folders_change_places(tmp_path, monkeypatch, can):
    """At once where the kernel can: a process that looks all the while always finds a whole folder."""
    a, b = tmp_path / "stage" / "1", tmp_path / "1"
    for folder in (a, b):
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_text(folder.parent.name)
    if not can:
        cannot_exchange(monkeypatch)
    gone = []
    real = Path.rename

    def spy(self, target):
        real(self, target)
        gone.append(not b.exists())

    monkeypatch.setattr(Path, "rename", spy)
    publish.exchange(a, b)
    assert ((a / "model.onnx").read_text(), (b / "model.onnx").read_text()) == (tmp_path.name, "stage")
    assert any(gone) != can
    assert sorted(p.name for p in a.parent.iterdir()) == ["1"]
    with pytest.raises(FileNotFoundError):
        publish.exchange(a, tmp_path / "nothing")


def test_a_new_model_that_fails_is_not_seen(options, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(NotWrittenError):
        put(options, "one")
    assert list(options.repository.iterdir()) == []


def test_nothing_is_seen_before_the_rename(options):
    with pytest.raises(RuntimeError), staged(options) as stage:  # noqa: PT012 - what is seen meanwhile
        (stage.version / "model.onnx").write_text("half")
        assert not options.model_folder.exists()
        raise RuntimeError
    assert list(options.repository.iterdir()) == []


def test_a_repository_that_cannot_be_one(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for repository in (file, file / "deeper"):
        with (
            pytest.raises(NotWrittenError, match="; give another --repository"),
            staged(ConvertOptions(name="m", repository=repository)),
        ):
            pass


@pytest.mark.parametrize(
    ("number", "says"), [(errno.EACCES, "change its permissions"), (errno.EROFS, "give another --repository")]
)
def test_a_repository_that_may_not_be_written(options, monkeypatch, number, says):
    def denied(*_args, **_kwargs):
        raise OSError(number, "no")

    monkeypatch.setattr(publish.tempfile, "mkdtemp", denied)
    with pytest.raises(NotWrittenError, match=says), staged(options):
        pass


def test_too_little_room_is_said_before_the_work(options):
    with (
        pytest.raises(NotWrittenError, match=r"are free, about .* are needed"),
        staged(options, need_bytes=2**60),
    ):
        pass
    assert list(options.repository.iterdir()) == []


def test_the_stage_of_a_killed_conversion_is_swept(options):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    dead = options.repository / f".staging-{child.pid}-x"
    alive = options.repository / f".staging-{os.getpid()}-x"
    dead.mkdir(parents=True)
    alive.mkdir()
    put(options, "one")
    assert (dead.exists(), alive.exists()) == (False, True)
