"""A version of a model appears in the repository whole, or not at all.

Everything is written in a folder beside the destination, flushed to the disk, and renamed; config.pbtxt
comes last.  It must not know what the files hold.
"""

import ctypes
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadgen.convert.options import ConvertOptions
from loadgen.interrupts import held
from loadgen.records import LoadgenError, NotWrittenError
from loadgen.units import show_bytes

CONFIG = "config.pbtxt"
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
WARMUP = "warmup"  # Triton's own name for the folder of warm-up data


class PublishError(LoadgenError):
    """A repository that cannot be written, or that already holds the version."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A folder beside the destination, on the same disk: `model` will be renamed, or part of it."""

    model: Path
    version: Path

    def work(self) -> Path:
        """A folder for what is needed on the way and never published."""
        folder = self.model.parent / ".work"
        folder.mkdir(exist_ok=True)
        return folder


def refuse_existing(options: ConvertOptions) -> None:
    """Raises PublishError if the version is there and `replace` was not asked for."""
    if options.version_folder.exists() and not options.replace:
        versions = [int(p.name) for p in options.model_folder.iterdir() if p.name.isdigit()]
        raise PublishError(
            f"{options.version_folder} exists; publish beside it with --version {max(versions) + 1}, "
            "or overwrite it with --replace"
        )
    if options.model_folder.exists() and not options.model_folder.is_dir():
        raise PublishError(f"{options.model_folder} is a file; a model needs a folder of that name")


@contextmanager
def staged(options: ConvertOptions, need_bytes: int = 0) -> Iterator[Stage]:
    """A stage to write into, gone at the end whatever happened.

    Raises NotWrittenError now, not after a minute's export, if the repository is not writable or the disk has
    less than `need_bytes` free.
    """
    repository = options.repository
    with disk_errors(repository):
        repository.mkdir(parents=True, exist_ok=True)
        _sweep(repository)
        free = shutil.disk_usage(repository).free
        if free < need_bytes:
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            hint = f"{show_bytes(free)} are free, about {show_bytes(need_bytes)} are needed"
            raise NotWrittenError(repository, full, hint)
        top = Path(tempfile.mkdtemp(prefix=f".staging-{os.getpid()}-", dir=repository))
    try:
        model = top / options.name
        version = model / str(options.version)
        with disk_errors(repository):
            version.mkdir(parents=True)
        with disk_errors(repository):
            yield Stage(model, version)
    finally:
        shutil.rmtree(top, ignore_errors=True)


def publish(stage: Stage, options: ConvertOptions, moving: Callable[[], None] = lambda: None) -> None:
    """Moves what is staged into place.  Raises PublishError or NotWrittenError; then the repository is as it was.

    `moving` is told right before the first move: an interrupt from there on waits until all is in place.
    """
    with disk_errors(options.repository):
        _flush(stage.model)
        refuse_existing(options)  # again: somebody else may have published meanwhile
        moving()
        with held():
            if not options.model_folder.exists():
                stage.model.rename(options.model_folder)
            else:
                _add_version(stage, options)
            _sync_folder(options.model_folder)
            _sync_folder(options.repository)


def _add_version(stage: Stage, options: ConvertOptions) -> None:
    """Into a model that may be served right now: other versions are not touched, the config comes last."""
    there = options.version_folder.exists()
    if there:
        exchange(stage.version, options.version_folder)
    else:
        stage.version.rename(options.version_folder)
    try:
        _add_warmup(stage, options)
        (stage.model / CONFIG).replace(options.model_folder / CONFIG)
    except BaseException:  # Ctrl-C too
        if there:
            exchange(stage.version, options.version_folder)
        else:
            options.version_folder.rename(stage.version)
        raise


def exchange(a: Path, b: Path) -> None:
    """Two folders of one disk change places: at once where the kernel and the disk can, so that neither is ever gone."""
    try:
        failed = ctypes.CDLL(None, use_errno=True).renameat2(
            _HERE, os.fsencode(a), _HERE, os.fsencode(b), ctypes.c_uint(_EXCHANGE)
        )
    except AttributeError:  # an older or another libc
        failed, number = -1, errno.ENOSYS
    else:
        number = ctypes.get_errno()
    if not failed:
        return
    if number not in (errno.ENOSYS, errno.EINVAL):
        raise OSError(number, os.strerror(number), str(b))
    aside = a.with_name(f"{a.name}.aside")
    b.rename(aside)
    try:
        a.rename(b)
    except OSError:
        aside.rename(b)
        raise
    aside.rename(a)


def _add_warmup(stage: Stage, options: ConvertOptions) -> None:
    """File by file: their names are this version's own, and those of other versions stay."""
    new = stage.model / WARMUP
    if new.is_dir():
        there = options.model_folder / WARMUP
        there.mkdir(exist_ok=True)
        for file in sorted(new.iterdir()):
            file.replace(there / file.name)
        _sync_folder(there)


@contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """An OSError of the disk as one line that says what to do."""
    try:
        yield
    except OSError as why:
        hints = {
            errno.ENOSPC: "free some space or give another --repository",
            errno.EACCES: "give another --repository or change its permissions",
            errno.EPERM: "give another --repository or change its permissions",
        }
        hint = hints.get(why.errno or 0, "give another --repository")
        raise NotWrittenError(where, why, f"{hint}; nothing was published") from None


def _flush(folder: Path) -> None:
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        else:
            _sync_folder(file)
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep(repository: Path) -> None:
    """Removes stages of conversions that were killed: their process is gone."""
    for folder in repository.glob(".staging-*"):
        match = re.match(r"\.staging-(\d+)-", folder.name)
        if match is None:
            continue
        try:
            os.kill(int(match[1]), 0)
        except ProcessLookupError:
            shutil.rmtree(folder, ignore_errors=True)
        except PermissionError:
            continue  # somebody else's, and alive
