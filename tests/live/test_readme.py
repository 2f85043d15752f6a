"""What README.md tells a newcomer to type, typed."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.triton.install import ensure_installed

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]


def commands(section):
    text = (ROOT / "README.md").read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    block = re.search(r"```\n(.*?)```", text, re.DOTALL)[1]
    lines = [line.partition(" #")[0].strip() for line in block.splitlines()]
    return [line for line in lines if line]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def call(*args, cwd, home, ok=(0,)):
    environment = os.environ | {"LOADGEN_TRITON_HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "loadgen", *args]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode in ok, f"{args}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.fixture
def home(tmp_path):
    """A home of its own for servers, so that nobody's `default` is touched, with the installed Triton in it."""
    environment = ensure_installed(lambda _: None)
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / environment.folder.name).symlink_to(environment.folder)
    return folder


def test_the_commands_under_use(tmp_path, home):
    (tmp_path / "traffic_profiles").symlink_to(ROOT / "traffic_profiles")
    lines = commands("Use")
    assert lines.pop(0) == ". .venv/bin/activate"
    assert lines[-1] == "loadgen serve stop"
    ports = {"8000": free_port(), "8001": free_port()}  # on a machine that tests, those may be taken
    try:
        for line in lines:
            program, *words = shlex.split(line)
            assert program == "loadgen"
            words = [re.sub(r"\b800[01]\b", lambda found: str(ports[found[0]]), word) for word in words]
            out = call(*words, cwd=tmp_path, home=home)
            assert out.strip(), f"{line} printed nothing"
    finally:
        call("serve", "stop", cwd=tmp_path, home=home, ok=(0, 1, 2))
    snippet = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    code = snippet + "\nprint(table.num_rows)"
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    summary = json.loads((tmp_path / "runs" / "steady" / "summary.json").read_text())
    assert summary["valid"]
    assert summary["total"]["counts"]["ok"] == summary["total"]["counts"]["planned"] > 1000
    assert summary["server"]["mean_batch"] >= 1
    assert int(shown.stdout) == summary["total"]["counts"]["ok"] + summary["phases"][0]["counts"]["ok"]
    assert (tmp_path / "runs" / "steady" / "report.html").stat().st_size > 10_000
