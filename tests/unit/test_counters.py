"""Reading the server's statistics before and after a phase."""

import asyncio

import pytest

from loadgen.lab.target import Counters
from loadgen.runfile import RunFolder
from loadgen.runread import read_run
from tests.support.runs import info, phase
from tests.support.virtual import VirtualLoop


class SlowControl:
    """Tells of each model after so many seconds."""

    def __init__(self, seconds):
        self.seconds = seconds

    async def settled_statistics(self, model, version):
        await asyncio.sleep(self.seconds[model])
        return {"name": model, "version": version}

    async def all_statistics(self):
        return []


@pytest.mark.parametrize(
    ("seconds", "told", "missing"),
    [
        ({"a": 0.7, "b": 0.7, "step": 0.7}, ["a", "b", "step"], None),  # 2.1 s in all
        ({"a": 0.7, "b": 1.5, "step": 0.7}, ["a"], "the server did not tell them within 1 s"),
    ],
)
def test_the_limit_is_of_each_model(tmp_path, seconds, told, missing):
    folder = RunFolder(tmp_path, info([phase()]))
    counters = Counters(SlowControl(seconds), [("a", "1"), ("b", "1")], folder, [("step", "1")])
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(counters.snapshot(0, "steady", "after", 1.0))
    assert ([line["model"] for line in read_run(tmp_path).server], counters.missing) == (told, missing)
