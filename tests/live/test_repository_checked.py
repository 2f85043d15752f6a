"""What `repository check` refuses the real Triton refuses, and what it lets pass the real Triton loads."""

import urllib.error
import urllib.request

import pytest

from loadgen.triton.local import LocalTriton
from loadgen.triton.repository import read_repository
from tests.support.configs import CASES, write_repository

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(300)]


def loads(server, model):
    url = f"{server.http_target}/v2/repository/models/{model}/load"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, b"{}", method="POST"), timeout=60):
            return True
    except urllib.error.HTTPError:
        return False


def test_the_real_server_agrees_on_every_case(tmp_path):
    repository = write_repository(tmp_path / "repository")
    mine = {model.name: not model.refused for model in read_repository(repository)}
    with LocalTriton(repository, models=[]) as server:
        assert {name: loads(server, name) for name in CASES} == {name: mine[name] for name in CASES}
