"""`loadgen serve` and LocalTriton on a real Triton: its life, its death, and what is said."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadgen.records import LoadgenError
from loadgen.triton.install import Environment, ensure_installed
from loadgen.triton.keeper import born
from loadgen.triton.launch import Running
from loadgen.triton.local import LocalTriton
from loadgen.triton.process import listening, same_process

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "tests" / "support" / "models"
NAMES = sorted(path.name for path in MODELS.iterdir() if (path / "config.pbtxt").exists())


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home of its own for servers, with the installed environment linked into it."""
    environment = ensure_installed(lambda _: None)
    folder = tmp_path_factory.mktemp("home")
    (folder / environment.folder.name).symlink_to(environment.folder)
    yield folder
    for file in folder.glob("servers/*/state.json"):  # of tests that failed in the middle
        Running(**json.loads(file.read_text())).end()


@pytest.fixture
def serve(home):
    def call(*arguments, check=None):
        done = subprocess.run(
            [sys.executable, "-m", "loadgen", "serve", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100,
            env=os.environ | {"LOADGEN_TRITON_HOME": str(home)}, check=False,
        )  # fmt: skip
        if check is not None:
            assert done.returncode == check, done.stderr
        return done

    return call


def until(condition, what, limit_s=30.0):
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return value


def stubs_of(pid):
    """The server's python stubs and itself, as (pid, birth)."""
    found = [pid]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f" {pid} " in process.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode():
                found.append(int(process.name))
        except OSError:
            continue
    return [(each, born(each)) for each in found]


def regions(state):
    """Shared memory of the server with that state file: the prefix is on its command line."""
    command = Path(f"/proc/{state['server_pid']}/cmdline").read_text()
    prefix = command.split("shm-region-prefix-name=")[1].split("\0")[0]
    return lambda: list(Path("/dev/shm").glob(f"{prefix}*"))


def test_start_status_logs_stop(serve):
    started = serve(
        "start", "--repository", str(MODELS), "--model", "identity", "--name", "life", "--json", check=0
    )
    facts = json.loads(started.stdout)
    try:
        assert facts["http"].startswith("http://127.0.0.1:")
        assert facts["grpc"].startswith("grpc://127.0.0.1:")
        assert same_process(facts["pid"], born(facts["pid"]))
        told = json.loads(serve("status", "--name", "life", "--json", check=0).stdout)
        assert (told["running"], told["live"], told["ready"], told["pid"]) == (True, True, True, facts["pid"])
        states = {row["name"]: row.get("state") for row in told["models"]}
        assert states == {name: "READY" if name == "identity" else None for name in NAMES}

        again = serve("start", "--repository", str(MODELS), "--name", "life", check=2)
        assert "error: a server named 'life' already runs at http://127.0.0.1:" in again.stderr
        assert serve("load", "slow", "--name", "life", check=0).stdout == "slow is ready\n"
        refused = serve("load", "misconfigured", "--name", "life", check=2)
        assert "preferred size must be <= max batch size" in refused.stderr
        assert "successfully loaded 'slow'" in serve("logs", "--name", "life", check=0).stdout
        assert len(serve("logs", "--name", "life", "--lines", "3", check=0).stdout.splitlines()) == 3
    finally:
        stopped = serve("stop", "--name", "life", check=0)
    assert stopped.stdout == f"stopped life (pid {facts['pid']})\n"
    assert born(facts["pid"]) is None
    told = json.loads(serve("status", "--name", "life", "--json", check=1).stdout)
    assert (told["running"], told["exit_code"]) == (False, 0)
    assert "no server named 'life' is running" in serve("stop", "--name", "life", check=2).stderr
    assert "successfully loaded" in serve("logs", "--name", "life", "--follow", check=0).stdout


def test_everything_listens_on_loopback_only_and_nothing_else_does(triton):
    inodes = set()
    for fd in Path(f"/proc/{triton.pid}/fd").iterdir():
        link = str(fd.readlink())
        if link.startswith("socket:["):
            inodes.add(link[8:-1])
    heard = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and fields[3] == "0A":  # listening
                heard.append(fields[1].rsplit(":", 1)[0])
    mapped = "0000000000000000FFFF00000100007F"
    assert sorted(heard, key=len) == ["0100007F", "0100007F", mapped]


def test_our_environment_is_on_no_command_line(monkeypatch, tmp_path):
    monkeypatch.setenv("SOME_TOKEN", "tok-123456")
    with LocalTriton(MODELS, state_dir=tmp_path) as server:
        for pid in (server.pid, server.facts.keeper_pid):
            assert b"tok-123456" not in Path(f"/proc/{pid}/cmdline").read_bytes()
            assert b"tok-123456" in Path(f"/proc/{pid}/environ").read_bytes()


def test_both_readinesses_are_written_down(triton):
    readiness = triton.server.readiness
    assert 0 < readiness.live_ns <= readiness.server_ready_ns < readiness.model_ready_ns["identity"]


def test_our_death_takes_the_server_its_stubs_and_its_shared_memory(tmp_path):
    script = (
        "import sys; from loadgen.triton.local import LocalTriton\n"
        "s = LocalTriton(sys.argv[1], models=['identity'], state_dir=sys.argv[2]).start()\n"
        "print('up', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(MODELS), str(tmp_path)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as ours:  # fmt: skip
        assert ours.stdout.readline() == "up\n"
        state = json.loads((tmp_path / "state.json").read_text())
        processes = stubs_of(state["server_pid"])
        shared = regions(state)
        assert len(processes) >= 2
        assert shared()
        ours.kill()
    until((tmp_path / "exit.json").exists, "the keeper ended the server")
    assert json.loads((tmp_path / "exit.json").read_text())["asked"] is True
    assert not any(same_process(*each) for each in processes)
    assert not shared()
    assert not listening(state["http_port"])


def test_a_killed_server_leaves_no_stub_and_is_told_with_its_signal(tmp_path):
    with LocalTriton(MODELS, models=["slow"], state_dir=tmp_path) as server:
        processes = stubs_of(server.pid)
        shared = regions(json.loads((tmp_path / "state.json").read_text()))
        os.kill(server.pid, signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL
        assert not any(same_process(*each) for each in processes)
        assert not shared()
        with pytest.raises(LoadgenError, match="Triton was killed by signal 9; its last log lines"):
            server.load("identity")


def test_ctrl_c_stops_a_foreground_server(home):
    with subprocess.Popen(
        [sys.executable, "-m", "loadgen", "serve", "start", "--repository", str(MODELS), "--name", "front", "--foreground", "--json"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=os.environ | {"LOADGEN_TRITON_HOME": str(home)},
    ) as ours:  # fmt: skip
        facts = json.loads(ours.stdout.readline())
        birth = born(facts["pid"])
        assert birth is not None
        ours.send_signal(signal.SIGINT)
        assert ours.wait(60) == 0
    assert not same_process(facts["pid"], birth)


def test_ctrl_c_while_starting_leaves_nothing(home):
    with subprocess.Popen(
        [sys.executable, "-m", "loadgen", "serve", "start", "--repository", str(MODELS), "--model", "slow", "--name", "early"],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"LOADGEN_TRITON_HOME": str(home)},
    ) as ours:  # fmt: skip
        assert any("loading slow" in line for line in ours.stderr)
        ours.send_signal(signal.SIGINT)
        assert ours.wait(60) != 0
    state = json.loads((home / "servers" / "early" / "state.json").read_text())
    assert not same_process(state["server_pid"], state["server_born"])


@pytest.fixture
def asleep(tmp_path):
    """A repository whose model takes a minute to load."""
    model = tmp_path / "repository" / "asleep" / "1" / "model.py"
    model.parent.mkdir(parents=True)
    model.write_text(
        "import time\nclass TritonPythonModel:\n    def initialize(self, args):\n        time.sleep(60)\n"
    )
    config = (MODELS / "broken" / "config.pbtxt").read_text().replace('"broken"', '"asleep"')
    (tmp_path / "repository" / "asleep" / "config.pbtxt").write_text(config)
    return tmp_path / "repository"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda n: n.name)
def test_no_signal_to_a_start_leaves_a_server(home, asleep, number):
    """Triton itself would go on for 10 s: it waits for the model that loads."""
    name = f"gone-{number.name}"
    with subprocess.Popen(
        [sys.executable, "-m", "loadgen", "serve", "start", "--repository", str(asleep), "--model", "asleep", "--name", name],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"LOADGEN_TRITON_HOME": str(home)},
    ) as ours:  # fmt: skip
        assert any("loading asleep" in line for line in ours.stderr)
        folder = home / "servers" / name
        state = json.loads((folder / "state.json").read_text())
        until(lambda: "loading: asleep" in (folder / "server.log").read_text(), "the model loads")
        processes = stubs_of(state["server_pid"])
        ours.send_signal(number)
        began = time.monotonic()
        assert ours.wait(60) == (-number if number == signal.SIGKILL else 130)
        assert ours.stdout.read() == ""
    until((folder / "exit.json").exists, "the keeper ended the server")
    assert time.monotonic() - began < 8
    assert json.loads((folder / "exit.json").read_text())["asked"] is True
    assert not any(same_process(*each) for each in processes)


def test_sigterm_stops_a_foreground_server(home):
    with subprocess.Popen(
        [sys.executable, "-m", "loadgen", "serve", "start", "--repository", str(MODELS), "--name", "term", "--foreground", "--json"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=os.environ | {"LOADGEN_TRITON_HOME": str(home)},
    ) as ours:  # fmt: skip
        facts = json.loads(ours.stdout.readline())
        birth = born(facts["pid"])
        ours.terminate()
        assert ours.wait(60) == 0
    assert not same_process(facts["pid"], birth)


def test_a_foreground_server_that_was_killed_is_told_with_its_signal_and_no_false_cause(home):
    with subprocess.Popen(
        [sys.executable, "-m", "loadgen", "serve", "start", "--repository", str(MODELS), "--name", "shot", "--foreground", "--json"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"LOADGEN_TRITON_HOME": str(home)},
    ) as ours:  # fmt: skip
        os.kill(json.loads(ours.stdout.readline())["pid"], signal.SIGKILL)
        told = ours.stderr.read()
        assert ours.wait(60) == 2
    assert "error: Triton was killed by signal 9; its last log lines:\n" in told
    assert "Started Metrics Service" in told
    assert "CudaDriverHelper" not in told


def test_paths_that_triton_cannot_pass_on_are_served_all_the_same(tmp_path):
    """It hands them to a shell unquoted, and to a Python that knows ASCII only."""
    folder = tmp_path / "a b; 'ü' $x"
    shutil.copytree(MODELS, folder / "models", ignore=shutil.ignore_patterns("__pycache__"))
    with LocalTriton(folder / "models", models=["identity"], state_dir=folder / "state") as server:
        assert server.facts.repository == str(folder / "models")
        shared = regions(json.loads((folder / "state" / "state.json").read_text()))
        assert any(region.is_symlink() for region in shared())
    assert not shared()


def test_a_models_fault_in_its_stub_is_told_when_the_time_is_over(tmp_path):
    """Triton waits for ever for a stub that crashed before it spoke."""
    environment = ensure_installed(lambda _: None)
    home = tmp_path / "home"
    shutil.copytree(environment.backends, home / "backends")
    stub = home / "backends" / "python" / "triton_python_backend_stub"
    stub.unlink()
    stub.write_text('#!/bin/sh\necho "  what():  stol" >&2\nexit 134\n')
    stub.chmod(0o755)
    ours = LocalTriton(MODELS, models=["identity"], state_dir=tmp_path / "state", timeout_ns=5 * 10**9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Environment, "backends", home / "backends")
        with pytest.raises(LoadgenError) as caught:
            ours.start()
    assert "did not answer POST /v2/repository/models/identity/load within 5 s (--timeout)" in str(
        caught.value
    )
    assert "what():  stol" in str(caught.value)


def test_what_cannot_be_started_is_told_and_leaves_nothing(serve):
    def refused(*arguments):
        done = serve("start", "--name", "never", *arguments, check=2)
        assert "Traceback" not in done.stderr
        assert done.stdout == ""
        return done.stderr.split("error: ", 1)[1]

    assert refused("--repository", "/nowhere").startswith("no model repository at /nowhere")
    missing = refused("--repository", str(MODELS), "--model", "nosuch")
    assert missing.startswith(f"no model 'nosuch' in {MODELS}; it has: {', '.join(NAMES)}")
    assert "made of cheese" in refused("--repository", str(MODELS), "--model", "broken")
    assert "preferred size must be <= max batch size" in refused(
        "--repository", str(MODELS), "--model", "misconfigured"
    )
    died = refused("--repository", str(MODELS), "--option=--nonsense")
    assert died.startswith("Triton exited with code 1; its last log lines:\n")
    assert "unrecognized option '--nonsense'" in died
    slow = refused("--repository", str(MODELS), "--model", "identity", "--timeout", "500ms")
    assert " 0.5 s (--timeout); its " in slow  # live in that time or not, as busy as this machine is
    assert refused("--repository", str(MODELS), "--timeout", "1ms") == (
        "the server is not live after 0.001 s (--timeout); its log is empty\n"
    )
    ours = refused("--repository", str(MODELS), "--option=--http-port=18002")
    assert ours == (
        "--option --http-port=18002: loadgen sets --http-port itself; give loadgen's own --http-port\n"
    )
    assert "--timeout" in refused("--repository", str(MODELS), "--timeout", "8")
    assert "allowed are letters" in refused("--repository", str(MODELS), "--name", "../x")
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        assert refused("--repository", str(MODELS), "--grpc-port", str(port)).startswith(
            f"port {port} is taken by another process; give --grpc-port a free one"
        )
    assert json.loads(serve("status", "--name", "never", "--json", check=1).stdout)["running"] is False


def test_a_free_port_that_is_snatched_is_chosen_anew(monkeypatch, tmp_path):
    from loadgen.triton import local

    with socket.socket() as thief:
        thief.bind(("127.0.0.1", 0))
        thief.listen()
        stolen = thief.getsockname()[1]
        real, calls = local.choose_ports, []

        def choose(asked):
            ports = real(asked)
            calls.append(ports)
            return ports | {"--grpc-port": stolen} if len(calls) == 1 else ports

        monkeypatch.setattr(local, "choose_ports", choose)
        with LocalTriton(MODELS, state_dir=tmp_path) as server:
            assert len(calls) == 2
            assert server.facts.grpc_port != stolen


def test_models_see_the_servers_packages_and_not_the_clients(triton, tmp_path):
    model = tmp_path / "looks" / "1" / "model.py"
    model.parent.mkdir(parents=True)
    model.write_text(
        "import importlib.util as u, numpy, onnxruntime\n"
        "class TritonPythonModel:\n"
        "    def initialize(self, args):\n"
        "        raise RuntimeError(f'numpy {numpy.__version__} ort {onnxruntime.__version__} {u.find_spec(\"typer\")}')\n"
    )
    (tmp_path / "looks" / "config.pbtxt").write_text((MODELS / "broken" / "config.pbtxt").read_text())
    with pytest.raises(LoadgenError) as caught:
        triton.add_model(tmp_path / "looks")
    assert "numpy 1.26.4 ort 1.23.2 None" in str(caught.value)


def test_the_repository_is_left_as_it_was(triton):
    assert not list(triton.repository.rglob("__pycache__"))


def test_starts_from_a_thread_that_ends(tmp_path):
    """The kernel's parent-death signal would fire at the end of the thread; ours must not."""
    import threading

    server = LocalTriton(MODELS, state_dir=tmp_path)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join(60)
    try:
        server.load("identity")
        assert server.facts.alive()
    finally:
        server.stop()
    assert not server.facts.alive()
    server.stop()  # again is no error
