"""Ports, processes that must not be mixed up, and the keeper, with a shell in the place of Triton."""

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
from loadgen.triton import keeper
from loadgen.triton.keeper import born
from loadgen.triton.launch import Running
from loadgen.triton.process import choose_ports, end_process, same_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded Triton is for Linux")


def until(condition, what, limit_s=10.0):
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return value


def test_free_ports_differ_and_given_ones_are_kept():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    ports = choose_ports({"--http-port": None, "--grpc-port": free, "--metrics-port": None})
    assert ports["--grpc-port"] == free
    assert len(set(ports.values())) == 3
    assert all(1023 < port < 65536 for port in ports.values())


def test_a_taken_port_is_named_with_its_option():
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with pytest.raises(LoadgenError, match=rf"port {port} is taken .*--grpc-port"):
            choose_ports({"--http-port": None, "--grpc-port": port})


def test_impossible_ports_are_refused_in_words():
    with pytest.raises(LoadgenError, match="given to both --a and --b"):
        choose_ports({"--a": 8000, "--b": 8000})
    with pytest.raises(LoadgenError, match=r"70000 \(--a\) is no port; allowed: 1 to 65535"):
        choose_ports({"--a": 70000})


def test_a_recycled_pid_is_never_signalled():
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            assert same_process(other.pid, born(other.pid))
            assert not same_process(other.pid, "another-boot/1")
            assert end_process(other.pid, "another-boot/1", signal.SIGKILL, 1.0)
            assert other.poll() is None
        finally:
            assert end_process(other.pid, born(other.pid), signal.SIGKILL, 10.0)


def order(tmp_path, script, **changes):
    return {
        "command": ["/bin/sh", "-c", script],
        "log": str(tmp_path / "server.log"),
        "state": str(tmp_path / "state.json"),
        "exit": str(tmp_path / "exit.json"),
        "facts": {"http_port": 1, "grpc_port": 2, "metrics_port": 3, "repository": "r"},
        "shm_prefix": f"loadgen_test_{os.getpid()}_",
        "stop_s": 5.0,
        "haste_s": 5.0,
        "parent": os.getpid(),
    } | changes


@pytest.fixture
def keep(tmp_path):
    """Starts keepers, and sees to it that none outlives its test."""
    started = []

    def start(script, **changes):
        process = subprocess.Popen(
            [sys.executable, "-I", keeper.__file__, json.dumps(order(tmp_path, script, **changes))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        process.stdout.readline()
        running = Running(**json.loads((tmp_path / "state.json").read_text()))
        return process, running

    yield start
    for process in started:
        process.stdin.close()
        process.stdout.close()
        process.terminate()
        process.wait(10)


def exit_facts(tmp_path):
    return json.loads((tmp_path / "exit.json").read_text())


def test_the_keeper_writes_the_exit_code_down(tmp_path, keep):
    process, running = keep("echo last words; exit 7")
    assert process.wait(10) == 0
    assert exit_facts(tmp_path) == {"exit_code": 7, "asked": False}
    assert (tmp_path / "server.log").read_text() == "last words\n"
    assert not running.alive()


def test_sigterm_to_the_keeper_ends_the_server_politely(tmp_path, keep):
    process, running = keep("trap 'echo bye; exit 0' TERM; while :; do sleep 0.05; done")
    assert running.alive()
    until(lambda: "TERM" in Path(f"/proc/{running.server_pid}/cmdline").read_text(), "the shell runs")
    process.terminate()
    assert process.wait(10) == 0
    assert exit_facts(tmp_path)["asked"] is True
    assert not running.alive()


def test_a_server_that_will_not_go_is_killed_with_its_children(tmp_path, keep):
    script = "trap '' TERM; sleep 61 & echo $! > stub; setsid sleep 62 & echo $! > stray; while :; do sleep 0.05; done"
    process, running = keep(f"cd {tmp_path}; {script}", stop_s=0.3)
    pids = [
        int(until(lambda f=f: f.exists() and f.read_text(), "the children run"))
        for f in (tmp_path / "stub", tmp_path / "stray")
    ]
    births = [born(pid) for pid in pids]
    process.terminate()
    process.wait(10)
    assert exit_facts(tmp_path) == {"exit_code": -signal.SIGKILL, "asked": True}
    assert not running.alive()
    assert not any(same_process(pid, birth) for pid, birth in zip(pids, births, strict=True))


def test_asked_twice_the_keeper_waits_no_more(tmp_path, keep):
    process, running = keep("trap '' TERM; echo up; while :; do sleep 0.05; done", stop_s=1000.0)
    until(lambda: (tmp_path / "server.log").read_text() == "up\n", "the shell runs")
    process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    process.terminate()
    process.wait(10)
    assert exit_facts(tmp_path) == {"exit_code": -signal.SIGKILL, "asked": True}
    assert not running.alive()


def test_the_server_goes_when_our_end_of_the_pipe_closes(tmp_path, keep):
    process, running = keep("exec sleep 63")
    process.stdin.close()
    process.wait(10)
    assert exit_facts(tmp_path) == {"exit_code": -signal.SIGTERM, "asked": True}
    assert not running.alive()


def test_an_orphan_is_given_little_time(tmp_path, keep):
    process, running = keep("trap '' TERM; echo up; while :; do sleep 0.05; done", stop_s=1000.0, haste_s=0.2)
    until(lambda: (tmp_path / "server.log").read_text() == "up\n", "the shell runs")
    process.stdin.close()  # as by kill -9 of the starter
    process.wait(10)
    assert exit_facts(tmp_path) == {"exit_code": -signal.SIGKILL, "asked": True}
    assert not running.alive()


def test_the_server_goes_when_its_starter_is_not_our_parent_any_more(tmp_path, keep):
    process, running = keep("exec sleep 64", parent=1)  # as if our parent had died and we were adopted
    process.wait(10)
    assert not running.alive()


def test_let_go_the_server_stays_until_it_is_ended(tmp_path, keep):
    process, running = keep("exec sleep 65")
    process.stdin.write("d")
    process.stdin.close()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.2)  # longer than the keeper's own look at its parent
    assert running.alive()
    running.end()
    assert process.wait(10) == 0
    assert not running.alive()


def test_a_temporary_folder_goes_with_the_server_when_nobody_waits(tmp_path, keep):
    folder = tmp_path / "temporary"
    folder.mkdir()
    inside = {key: str(folder / f"{key}.json") for key in ("exit", "log")}
    process, _ = keep("exec sleep 67", temporary=str(folder), **inside)
    process.stdin.close()  # as by kill -9 of the starter
    assert process.wait(10) == 0
    assert not folder.exists()
    folder.mkdir()
    process, _ = keep("exec sleep 68", temporary=str(folder), **inside)
    process.terminate()  # by a starter that waits, and reads
    assert process.wait(10) == 0
    assert json.loads((folder / "exit.json").read_text())["asked"] is True


def test_a_keeper_whose_folder_was_removed_meanwhile_ends_as_it_should(tmp_path, keep):
    folder = tmp_path / "temporary"
    folder.mkdir()
    inside = {key: str(folder / f"{key}.json") for key in ("exit", "log")}
    process, running = keep("exec sleep 69", temporary=str(folder), **inside)
    shutil.rmtree(folder)
    process.stdin.close()
    assert process.wait(10) == 0
    assert not running.alive()


def test_a_killed_keeper_takes_the_server_along(keep):
    process, running = keep("exec sleep 66")
    process.kill()
    process.wait(10)
    until(lambda: not running.alive(), "the kernel tells the server")


def test_shared_memory_of_the_server_is_removed_and_no_other(tmp_path, keep):
    prefix = f"loadgen_test_{os.getpid()}_"
    mine, foreign = Path(f"/dev/shm/{prefix}a"), Path(f"/dev/shm/other_{os.getpid()}")
    foreign.touch()
    try:
        process, _ = keep(f"touch {mine}; exit 0")
        process.wait(10)
        assert not mine.exists()
        assert foreign.exists()
    finally:
        foreign.unlink()
