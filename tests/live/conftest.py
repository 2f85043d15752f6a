"""A real Triton for the live tests: one for the session, on free ports, with models of our own.

`triton` is a LiveTriton: `.http_target`, `.grpc_target`, `.metrics_url`, `.log_path`, `.load(model, config)`,
`.add_model(folder, name)`.
"""

import asyncio
import shutil
from pathlib import Path

import pytest

from loadgen.target import parse_target
from loadgen.triton.control import Control
from loadgen.triton.local import LocalTriton

MODELS = Path(__file__).parents[1] / "support" / "models"


class LiveTriton:
    """The session's server and its repository, a copy that tests may add to."""

    def __init__(self, server, repository):
        self.server = server
        self.repository = repository
        self.http_target = server.http_target
        self.grpc_target = server.grpc_target
        self.metrics_url = server.metrics_url
        self.log_path = server.log_path
        self.pid = server.pid

    def load(self, model, config=None):
        """Loads and waits; `config` (JSON form) is laid over what was configured."""
        self.server.load(model, config)

    def unload(self, model):
        asyncio.run(self._unload(model))

    async def _unload(self, model):
        async with Control(parse_target(self.http_target)) as control:
            await control.unload(model)

    def add_model(self, folder, name=None):
        """Copies a model folder (config.pbtxt, 1/...) into the repository and loads it under its name.

        Replaces one of that name.  Returns the name.
        """
        name = name or Path(folder).name
        target = self.repository / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder, target)
        config = target / "config.pbtxt"
        lines = config.read_text().splitlines()
        config.write_text(
            "\n".join(f'name: "{name}"' if line.startswith("name:") else line for line in lines)
        )
        self.load(name)
        return name


@pytest.fixture(scope="session")
def triton(tmp_path_factory):
    """A real Triton with every model of tests/support/models in its repository; identity and slow are loaded."""
    root = tmp_path_factory.mktemp("triton")
    shutil.copytree(MODELS, root / "repository", ignore=shutil.ignore_patterns("__pycache__"))
    with LocalTriton(root / "repository", models=["identity", "slow"], state_dir=root / "state") as server:
        yield LiveTriton(server, root / "repository")


@pytest.fixture(params=["http", "grpc"])
def target(request, triton):
    """The same server over each protocol in turn."""
    return parse_target(triton.http_target if request.param == "http" else triton.grpc_target)
