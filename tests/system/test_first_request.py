"""The first request of a kind waits as long as that kind's timeout, and says so."""

import re
import time

import pytest

from tests.support.cli import loadgen
from tests.support.kserve_mock import Mock
from tests.support.scripted import Scripted

PROFILE = """
name: t
kinds: {a: {model: m%s, timeout: 10s}, b: {model: m%s, timeout: 700ms}}
phases: [{name: load, closed: {users: 1, requests: 4}}]
"""


def ended(tmp_path, target, length=", length: 4"):
    path, began = tmp_path / "p.yaml", time.monotonic()
    path.write_text(PROFILE % (length, length))
    answer = loadgen("run", path, "--target", target, "--out", tmp_path / "r")
    return answer, time.monotonic() - began


def check_silent(answer, took):
    assert (answer.code, len(answer.error_lines)) == (3, 1)
    assert 0.7 <= took < 5, "the second kind's own timeout, not the first's, not two minutes"
    for words in ("'b'", "timeout", "700 ms"):
        assert words in answer.error_lines[0]
    [said] = [line for line in answer.err.splitlines() if "first request of kind b" in line]
    assert "up to 700 ms" in said
    assert re.search(r"until \d\d:\d\d:\d\d$", said)


def test_a_server_that_never_answers(tmp_path):
    with Mock(lambda n: (0.001, 200, None) if n == 0 else (None, 200, None)) as mock:
        check_silent(*ended(tmp_path, mock.target))
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_over_both_protocols(tmp_path, protocol):
    with Scripted(protocol, lambda _, n, __: n > 0 or None) as server:
        check_silent(*ended(tmp_path, server.target, ""))


def test_a_cold_model_within_its_timeout_is_waited_for(tmp_path):
    """Longer than the other kind's, and not in the load's figures."""
    with Mock(lambda n: (1.5 if n == 0 else 0.001, 200, None)) as mock:
        answer, _ = ended(tmp_path, mock.target)
    assert answer.code == 0, answer
    assert "up to 10 s" in answer.err or "up to 10.0 s" in answer.err


def test_a_model_that_is_colder_than_its_timeout_is_said_to_be_perhaps_cold(tmp_path):
    """Case 21: the timeouts of a cold phase are labelled so, and are not the load's."""
    with Mock(lambda n: (1.5 if n == 1 else 0.001, 200, None)) as mock:
        answer, took = ended(tmp_path, mock.target)
        assert mock.requests == 2
    assert (answer.code, took < 5) == (3, True)
    assert "cold" in answer.error_lines[0]
