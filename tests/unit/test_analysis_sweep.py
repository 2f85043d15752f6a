"""What a sweep's folder says, from blocks made by hand."""

import json

import pytest

from loadgen.analysis.sweep import BLOCKS, FORMAT, JOURNAL, read_sweep
from loadgen.report.sweep import conclusion
from tests.support import runs

MS = 10**6
TEXT = """
name: s
profile: p.yaml
loads: [{users: 4}]
repeats: 3
configurations: [{name: slow, delay: 2ms}, {name: fast, delay: 1ms}]
"""


def sweep(path, blocks, **journal):
    """`blocks`: {name: ms between two answers}."""
    path.mkdir()
    text = {"name": "s", "text": TEXT, "folder": str(path)}
    told = {
        "format": FORMAT, "status": "finished", "sweep": text, "profile": text, "model": "m", "target": None,
        "protocol": "grpc", "repository": None, "base": {}, "command": [], "visits": [], **journal,
    }  # fmt: skip
    (path / JOURNAL).write_text(json.dumps(told))
    for name, gap in blocks.items():
        load = runs.phase(
            "load", loop="closed", users=4, duration_ns=2000 * MS, load_end_ns=2000 * MS, end_ns=2000 * MS
        )
        rows = [runs.row(at * MS, 5 * MS) for at in range(0, 2000, gap)]
        runs.build(path / BLOCKS / name, rows, [load])
    return path


ALL = {"r1-c1-l1": 20, "r2-c1-l1": 20, "r3-c1-l1": 21, "r1-c2-l1": 10, "r2-c2-l1": 10, "r3-c2-l1": 11}


def test_the_faster_one_wins(tmp_path):
    result = read_sweep(sweep(tmp_path / "s", ALL))
    assert result["best"]["configuration"] == "fast"
    assert result["best"]["probability"] > 0.9
    cells = {cell["configuration"]: cell for cell in result["cells"]}
    ratio = cells["fast"]["achieved_per_s"] / cells["slow"]["achieved_per_s"]
    assert ratio == pytest.approx((2 * 2 * 21 / 11) ** (1 / 3), rel=0.02)


def test_a_configuration_that_was_left_out_does_not_win_by_the_blocks_before(tmp_path):
    some = {name: gap for name, gap in ALL.items() if name != "r3-c2-l1"}
    result = read_sweep(sweep(tmp_path / "s", some, failed={"fast": "out of memory"}))
    assert result["best"]["configuration"] == "slow"
    assert "left out: fast: out of memory" in conclusion(result)
    rows = {row["name"]: row for row in result["configurations"]}
    assert rows["fast"]["score"] is None
    assert next(c for c in result["cells"] if c["configuration"] == "fast")["blocks"] == 2  # still shown
