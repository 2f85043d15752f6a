"""What `repository check` refuses the real Triton refuses, and what it lets pass the real Triton loads."""

import time
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


def killed(server):
    """Whether it ended by a fault of its own; its keeper writes that down in a moment."""
    for _ in range(100):
        if "killed by signal 11" in str(server.died()):
            return True
        time.sleep(0.1)
    return False


def test_the_real_server_agrees_on_every_case(tmp_path):
    """A case that Triton dies of is one that it does not load: 2.51 sometimes does, of a warm-up batch that is too large."""
    repository = write_repository(tmp_path / "repository")
    mine = {model.name: not model.refused for model in read_repository(repository)}
    took = {}
    while len(took) < len(CASES):
        with LocalTriton(repository, models=[]) as server:
            for name in [name for name in CASES if name not in took]:
                try:
                    took[name] = loads(server, name)
                except ConnectionError:
                    assert killed(server)
                    took[name] = False
                    break
    assert took == {name: mine[name] for name in CASES}
