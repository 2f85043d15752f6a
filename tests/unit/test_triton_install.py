"""The embedded Triton's environment, without fetching anything."""

import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from loadgen.records import LoadgenError
from loadgen.triton import install

STUB = f"python_backend_stubs/{sys.version_info[0]}.{sys.version_info[1]}/triton_python_backend_stub"


def unpack(temporary: Path) -> None:
    server = temporary / "site" / "pytriton" / "tritonserver"
    for name in (STUB, "bin/tritonserver", "backends/python/libtriton_python.so"):
        (server / name).parent.mkdir(parents=True, exist_ok=True)
        (server / name).write_text(name)
        (server / name).chmod(0o600)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADGEN_TRITON_HOME", str(tmp_path / "triton"))
    monkeypatch.setattr(install, "check_platform", lambda: None)
    monkeypatch.setattr(install, "_libdir", lambda: Path("/lib/python"))
    return tmp_path / "triton"


def test_where_it_lives(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LOADGEN_TRITON_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert install.home() == tmp_path / ".cache/loadgen/triton"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the specification
    assert install.home() == tmp_path / ".cache/loadgen/triton"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    assert install.home() == tmp_path / "c/loadgen/triton"
    monkeypatch.setenv("LOADGEN_TRITON_HOME", "~/t")
    assert install.home() == tmp_path / "t"


def test_a_folder_that_cannot_be_written_names_the_override(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOADGEN_TRITON_HOME", str(tmp_path / "file" / "x"))
    with pytest.raises(LoadgenError, match=r"cannot write .*set LOADGEN_TRITON_HOME"):
        install.writable_home()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("system", lambda: "Darwin"), "runs on Linux x86_64 and aarch64, this is Darwin"),
        (("machine", lambda: "riscv64"), "this is Linux riscv64"),
        (("libc_ver", lambda: ("glibc", "2.31")), r"needs glibc 2\.35 or newer .*found 2\.31"),
        (("libc_ver", lambda: ("", "")), "has another C library"),
        (("python_implementation", lambda: "PyPy"), "CPython 3.11 or 3.12, this is PyPy"),
    ],
)
def test_machines_that_cannot_are_told(monkeypatch, change, words):
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    install.check_platform()
    monkeypatch.setattr(platform, *change)
    with pytest.raises(LoadgenError, match=words):
        install.check_platform()


def test_installed_once_with_the_stub_in_place_and_runnable(home, monkeypatch):
    calls = []
    monkeypatch.setattr(install, "_pip", lambda temporary, say: (calls.append(temporary), unpack(temporary)))
    told = []
    assert install.installed() is None
    environment = install.ensure_installed(told.append)
    assert install.ensure_installed(told.append) == environment == install.installed()
    assert len(calls) == 1
    assert environment.folder.parent == home
    stub = environment.backends / "python" / "triton_python_backend_stub"
    assert stub.read_text() == STUB
    assert os.access(stub, os.X_OK)
    assert os.access(environment.binary, os.X_OK)
    assert str(environment.folder) in told[0]
    assert not list(home.glob(".tmp-*"))


def test_an_interrupted_install_is_done_again(home, monkeypatch):
    def interrupted(temporary, say):
        unpack(temporary)
        raise KeyboardInterrupt

    monkeypatch.setattr(install, "_pip", interrupted)
    with pytest.raises(KeyboardInterrupt):
        install.ensure_installed(lambda _: None)
    assert install.installed() is None
    # What a kill -9 leaves: a temporary folder, and a final one without its stamp.
    (home / ".tmp-old" / "site").mkdir(parents=True)
    (home / install.environment_name() / "site").mkdir(parents=True)
    monkeypatch.setattr(install, "_pip", lambda temporary, say: unpack(temporary))
    assert install.ensure_installed(lambda _: None).binary.exists()
    assert not list(home.glob(".tmp-*"))


def test_two_at_once_install_once(home, monkeypatch):
    calls, both = [], threading.Barrier(2, timeout=10)
    waiting = threading.Event()

    def slowly(temporary, say):
        calls.append(temporary)
        assert waiting.wait(10)  # until the other one is told to wait
        unpack(temporary)

    def say(line):
        if line.startswith("waiting for another"):
            waiting.set()

    def use():
        both.wait()
        results.append(install.ensure_installed(say))

    results = []
    monkeypatch.setattr(install, "_pip", slowly)
    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(calls) == 1
    assert len(results) == 2
    assert results[0] == results[1]


def test_packages_that_cannot_be_had_are_told_with_pips_words(home, monkeypatch, tmp_path):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(LoadgenError, match="is the package index reachable") as caught:
        install.ensure_installed(lambda _: None)
    assert "nvidia-pytriton==0.7.0" in str(caught.value)
    assert "No matching distribution found" in str(caught.value)
    assert [p for p in home.iterdir() if p.suffix != ".lock"] == []


def test_a_full_disk_is_told_in_one_line_without_pips_traceback(home, monkeypatch):
    script = "import errno, os; raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))"
    monkeypatch.setattr(install, "_pip_command", lambda *_: [sys.executable, "-c", script])
    with pytest.raises(LoadgenError) as caught:
        install.ensure_installed(lambda _: None)
    told = str(caught.value)
    assert told.startswith(f"cannot write {home}: No space left on device; ")
    assert "set LOADGEN_TRITON_HOME or TMPDIR" in told
    assert "\n" not in told
    assert [p for p in home.iterdir() if p.suffix != ".lock"] == []


def test_the_servers_python_sees_the_servers_packages_and_no_others(home, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/cuda")
    environment = install.Environment(home, Path("/lib/python"))
    environment.site.mkdir(parents=True)
    (environment.site / "sitecustomize.py").write_text(install._SITECUSTOMIZE)
    (environment.site / "theirs.py").write_text("where = 'the server'")
    for _ in range(2):  # a folder may be used again
        variables = environment.variables(tmp_path / "state")
    assert variables["LD_LIBRARY_PATH"] == "/lib/python:/cuda"
    assert not [name for name in variables if name.startswith("PYTHON")]
    asked = (
        "import sys, theirs, importlib.util as u; "
        "print(theirs.where, sys.dont_write_bytecode, u.find_spec('pytest'), sys.prefix != sys.base_prefix)"
    )
    shown = subprocess.run(
        ["python3", "-I", "-c", asked], env=variables, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "the server True None True"


def test_a_python_without_numpy_1_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 13, 0, "final", 0))
    with pytest.raises(LoadgenError, match=r"CPython 3\.11 or 3\.12, this is CPython 3\.13"):
        install.check_platform()
    assert install.NUMPY.startswith("numpy==1.")


def test_another_onnxruntime_has_a_folder_of_its_own(home, monkeypatch):
    usual = install.environment_name()
    monkeypatch.setenv(install.ONNX_RUNTIME_VARIABLE, "onnxruntime-gpu==1.31.1")
    assert install.packages()[-1] == "onnxruntime-gpu==1.31.1"
    assert install.environment_name() == usual.replace("onnxruntime1.23.2", "onnxruntime-gpu1.31.1")
    for wrong in ("onnxruntime-gpu", "--index-url=http://x", "onnxruntime==1; rm", "torch==2.0"):
        monkeypatch.setenv(install.ONNX_RUNTIME_VARIABLE, wrong)
        with pytest.raises(
            LoadgenError, match="is not allowed; onnxruntime==VERSION or onnxruntime-gpu==VERSION is"
        ):
            install.packages()
