"""What a person gets wrong: one line, no traceback, exit code 2, and nothing was sent."""

import socket
import subprocess
import sys

import pytest

from tests.support.cli import loadgen
from tests.support.kserve_mock import Mock, Model

PROFILE = """
name: t
kinds:
  k: {model: m, length: 4%s}
phases:
  - {name: load, closed: {users: 2, requests: 10}}
"""


@pytest.fixture
def profile(tmp_path):
    def write(text=PROFILE % "", name="p.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def refused(answer, *words, code=2):
    assert answer.code == code, answer
    assert len(answer.error_lines) == 1, answer.err
    for word in words:
        assert word in answer.error_lines[0]
    assert answer.out == ""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_no_server(profile, tmp_path, scheme):
    target = f"{scheme}://127.0.0.1:{free_port()}"
    answer = loadgen("run", profile(), "--target", target, "--out", tmp_path / "run")
    refused(answer, target, "refused")
    assert not (tmp_path / "run").exists()


def test_unknown_model(profile, tmp_path):
    with Mock(models={"other": Model()}) as mock:
        refused(loadgen("run", profile(), "--target", mock.target, "--out", tmp_path / "r"), "'m'", "other")
        assert mock.requests == 0


def test_model_that_is_not_loaded(profile, tmp_path):
    with Mock(models={"m": Model(ready=False)}) as mock:
        answer = loadgen("run", profile(), "--target", mock.target, "--out", tmp_path / "r")
        refused(answer, "'m'", "UNAVAILABLE")


def test_unknown_key(profile, tmp_path):
    answer = loadgen(
        "run", profile(PROFILE % ", lenght: 5"), "--target", "http://127.0.0.1:1", "--out", tmp_path / "r"
    )
    refused(answer, "kinds.k", "lenght", "length")


def test_length_beyond_the_models_maximum(profile, tmp_path):
    with Mock(models={"m": Model(parameters={"max_length": "3"})}) as mock:
        refused(
            loadgen("run", profile(), "--target", mock.target, "--out", tmp_path / "r"), "k", "'m'", "4", "3"
        )
        assert mock.requests == 0


@pytest.mark.parametrize("limit", [0, 2])
def test_batch_beyond_max_batch_size(profile, tmp_path, limit):
    """Case 2: the configuration is read first; 32 users would have been told the same 32 times."""
    text = (PROFILE % ", batch: 16").replace("users: 2, requests: 10", "users: 32, requests: 64")
    with Mock(models={"m": Model(max_batch_size=limit)}) as mock:
        answer = loadgen("run", profile(text), "--target", mock.target, "--out", tmp_path / "r")
        refused(answer, "16", "max_batch_size", str(limit))
        assert mock.requests == 0


def test_output_folder_that_exists(profile, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("precious")
    with Mock() as mock:
        refused(
            loadgen("run", profile(), "--target", mock.target, "--out", tmp_path / "run"), "exists", "--out"
        )
    assert (tmp_path / "run" / "mine").read_text() == "precious"


def test_read_only_folder(profile, tmp_path):
    """Root may write anywhere but to a read-only mount: /proc is one for everybody."""
    with Mock() as mock:
        refused(
            loadgen("run", profile(), "--target", mock.target, "--out", "/proc/loadgen-run"),
            "/proc",
            "--out",
            code=3,
        )


def test_file_in_the_way(profile, tmp_path):
    (tmp_path / "file").write_text("")
    with Mock() as mock:
        refused(
            loadgen("run", profile(), "--target", mock.target, "--out", tmp_path / "file" / "run"),
            "file",
            "--out",
            code=3,
        )


def test_no_target(profile):
    refused(loadgen("run", profile()), "--target")


def test_a_scheme_that_is_none_of_ours(profile):
    refused(loadgen("run", profile(), "--target", "ftp://127.0.0.1:8000"), "ftp", "grpc://")


def test_a_profile_that_is_not_there(tmp_path):
    refused(loadgen("run", tmp_path / "absent.yaml", "--target", "http://127.0.0.1:1"), "absent.yaml")


def test_grpc_spoken_to_an_http_server(profile, tmp_path):
    with Mock() as mock:
        answer = loadgen(
            "run", profile(), "--target", f"grpc://127.0.0.1:{mock.port}", "--out", tmp_path / "r"
        )
        refused(answer, "grpc://127.0.0.1")


def test_a_server_that_refuses_the_first_request_is_quoted(profile, tmp_path):
    with Mock(lambda _: (0, 400, "unexpected shape for input 'INPUT'")) as mock:
        answer = loadgen("run", profile(), "--target", mock.target, "--out", tmp_path / "r")
        refused(answer, "'k'", "unexpected shape for input 'INPUT'", code=3)
        assert mock.requests == 1
    assert not (tmp_path / "r").exists()


def test_a_disk_that_takes_no_more_ends_the_run_in_words(profile, tmp_path):
    """A limit on the size of files stands for the full disk: the same error, at the same place, for anybody."""
    text = (PROFILE % "").replace("users: 2, requests: 10", "users: 8, duration: 20s")

    with Mock() as mock:
        command = ["bash", "-c", 'ulimit -f 2000; exec "$@"', "-", sys.executable, "-m", "loadgen", "run",
                   profile(text), "--target", mock.target, "--out", tmp_path / "run"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    out, err = done.stdout, done.stderr
    last = err.splitlines()[-1]
    assert (done.returncode, out) == (3, ""), err
    assert last.startswith(f"error: cannot write {tmp_path / 'run'}: File too large")
    assert "Traceback" not in err
    kept = loadgen("report", tmp_path / "run", "--json")
    assert 0 < kept.json["total"]["counts"]["ok"] < mock.requests
    assert kept.json["valid"] is False
