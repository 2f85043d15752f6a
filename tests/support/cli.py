"""Runs the command line as a person does: in this process for speed, as a process of its own for signals."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from loadgen.cli.main import main


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def error_lines(self):
        return [line for line in self.err.splitlines() if line.startswith("error:")]


def loadgen(*args, monkeypatch=None):
    """One call of the verb in this process."""
    out, err = io.StringIO(), io.StringIO()
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    handlers = {number: signal.getsignal(number) for number in ends}
    argv, sys.argv = sys.argv, ["loadgen", *map(str, args)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    finally:
        sys.argv = argv
        for number, handler in handlers.items():  # main's are for a process that ends with it
            signal.signal(number, handler)
    assert "Traceback" not in err.getvalue(), err.getvalue()
    return Answer(code, out.getvalue(), err.getvalue())


ROOT = Path(__file__).parents[2]


def spawn(*args, **options):
    """The same as a process of its own, with this checkout's code wherever it runs."""
    options["env"] = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-m", "loadgen", *map(str, args)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, **options)  # fmt: skip
