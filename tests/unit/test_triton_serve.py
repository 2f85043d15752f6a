"""`loadgen serve` and LocalTriton without a server: what is refused, what is said, who ends whom."""

import io
import json
import re
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from loadgen.records import LoadgenError
from loadgen.triton import local, named
from loadgen.triton.install import SIZES, Environment
from loadgen.triton.launch import check_model_name, check_options
from loadgen.triton.local import LocalTriton, check_repository
from loadgen.triton.process import same_process

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--http-port=18002", "loadgen sets --http-port itself; give loadgen's own --http-port"),
        ("--grpc-port", "loadgen sets --grpc-port itself"),
        ("--http-po=1", "loadgen sets --http-port itself"),  # the server takes short forms
        ("--model-store=/x", "loadgen sets --model-store itself; give loadgen's own --repository"),
        ("--load-model=*", "give loadgen's own --model"),
        ("--http-address=0.0.0.0", "listen on loopback only"),
        ("--allow-http=false", "loadgen needs that door"),
        ("--backend-config=python,shm-region-prefix-name=x", "the python backend's shm- values"),
    ],
)
def test_options_that_are_ours_are_refused_by_name_before_anything_starts(option, says, tmp_path):
    with pytest.raises(LoadgenError) as caught:
        LocalTriton(tmp_path, options=["--log-verbose=1", option]).start()
    assert str(caught.value).startswith(f"--option {option}: ")
    assert says in str(caught.value)


def test_options_of_the_server_pass():
    check_options(
        ["--log-verbose=1", "--http-thread-count=2", "--backend-config=python,stub-timeout-seconds=9"]
    )
    check_options(["--log-verbose", "1", "--metrics-interval-ms=50", "--exit-on-error=false", "--id=x", "--"])


def test_names_that_break_the_servers_shell_are_refused(tmp_path):
    check_model_name("a-b_c.d+1")
    for name in ("a b", "a;b", "mödel", "a'b"):
        (tmp_path / name).mkdir()
        with pytest.raises(LoadgenError, match="rename the folder"):
            check_repository(tmp_path, [name])


def ended(folder, code, log):
    """A server that is no more, as its keeper left it."""
    server = LocalTriton(folder, state_dir=folder)
    server._dir = folder
    (folder / "exit.json").write_text(json.dumps({"exit_code": code, "asked": False}))
    (folder / "server.log").write_text(log)
    return server


GPU = 'E1130 04:14:47.067455 1751 server.cc:241] "CudaDriverHelper has not been initialized."\n'
OLD = "E1130 04:15:00.0 1 model_lifecycle.cc:642] \"failed to load 'broken'\"\n"
LAST = "".join(f'I1130 04:15:0{i}.0 1 x.cc:1] "line {i}"\n' for i in range(1, 7))


def test_no_older_fault_passes_for_the_cause_of_a_kill(tmp_path):
    told = str(ended(tmp_path, -9, GPU + OLD + LAST).died())
    assert told.startswith("Triton was killed by signal 9; its last log lines:\n")
    assert "line 6" in told
    assert "broken" not in told
    told = str(ended(tmp_path, 1, GPU + OLD + LAST).died())
    assert told == f"Triton exited with code 1; its last log lines:\n  {OLD.strip()}"


def test_an_empty_log_is_said_to_be_empty(tmp_path):
    assert str(ended(tmp_path, 1, GPU).died()) == "Triton exited with code 1; its log is empty"


def test_out_of_time_tells_the_faults_in_the_log(tmp_path):
    server = ended(tmp_path, 0, "terminate called after throwing\n  what():  stol\n" + LAST)
    server._timeout_ns, server._deadline_ns = 10**9, time.monotonic_ns() - 1
    with pytest.raises(LoadgenError) as caught:
        server._pause("the server is not live")
    assert str(caught.value) == (
        "the server is not live after 1 s (--timeout); its last log lines:\n"
        "  terminate called after throwing\n    what():  stol"
    )


class FakeServer:
    """What `named.start` needs of a LocalTriton; `life` is what happened to it."""

    facts = "the facts"

    def __init__(self):
        self.life = []

    def start(self):
        self.life.append("start")

    def stop(self):
        self.life.append("stop")

    def detach(self):
        self.life.append("detach")


def test_a_server_is_let_go_only_when_its_addresses_were_told(monkeypatch, tmp_path):
    monkeypatch.setenv("LOADGEN_TRITON_HOME", str(tmp_path))
    server = FakeServer()
    named.start("one", server, server.life.append)
    assert server.life == ["start", "the facts", "detach"]

    def interrupted(_):
        raise KeyboardInterrupt

    server = FakeServer()
    with pytest.raises(KeyboardInterrupt):
        named.start("two", server, interrupted)
    assert server.life == ["start", "stop"]


@pytest.fixture
def shell(monkeypatch, tmp_path):
    """A LocalTriton with a shell in the place of Triton, and its temporary folder under `tmp_path`."""
    environment = Environment(tmp_path / "environment", tmp_path)
    environment.binary.parent.mkdir(parents=True)
    environment.binary.write_text("#!/bin/sh\nexec sleep 70\n")
    environment.binary.chmod(0o755)
    monkeypatch.setattr(local, "ensure_installed", lambda _: environment)
    monkeypatch.setattr(LocalTriton, "_wait_until_live", lambda _: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    server = LocalTriton(tmp_path)
    yield server
    server.stop()


def interrupted(*_):
    raise KeyboardInterrupt


def gone(running):
    """When server and keeper are both."""
    deadline = time.monotonic() + 20
    while running.alive() or same_process(running.keeper_pid, running.keeper_born):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_no_interrupt_leaves_a_temporary_folder(shell, tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt), shell:
        interrupted()
    assert not list((tmp_path / "temporary").iterdir())
    with pytest.raises(KeyboardInterrupt), shell:
        monkeypatch.setattr(shell._process, "wait", interrupted)  # the second one, while it ends
    gone(shell.facts)
    assert not list((tmp_path / "temporary").iterdir())
    monkeypatch.setattr(LocalTriton, "_wait_until_live", interrupted)
    real = LocalTriton._end
    monkeypatch.setattr(
        LocalTriton, "_end", lambda *args: (real(*args), interrupted())
    )  # the second one again
    with pytest.raises(KeyboardInterrupt):
        shell.start()
    monkeypatch.setattr(LocalTriton, "_end", real)
    assert not list((tmp_path / "temporary").iterdir())


def test_an_interrupt_before_the_keeper_has_told_its_facts_ends_it(shell, tmp_path, monkeypatch):
    real, seen = subprocess.Popen, []

    class Told(io.StringIO):
        readline = interrupted

    def popen(*args, **options):
        process = real(*args, **options)
        process.stdout.readline()
        process.stdout.close()
        process.stdout = Told()
        seen.append(process)
        return process

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(KeyboardInterrupt):
        shell.start()
    assert seen[0].returncode == 0
    assert not list((tmp_path / "temporary").iterdir())


def test_the_readme_and_the_installer_tell_the_same_sizes():
    assert SIZES in re.sub(r"\s+", " ", (ROOT / "README.md").read_text())
