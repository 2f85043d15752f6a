"""The trace that ships with the project, and that no file is held whole."""

import hashlib
from pathlib import Path

import numpy as np
import yaml

from loadgen.traffic.trace import Trace
from loadgen.traffic.traces.csv_rows import read_csv
from loadgen.traffic.traces.json_rows import read_jsonl
from loadgen.traffic.traces.read import read_trace
from loadgen.traffic.traces.source import open_source

PROFILES = Path(__file__).parents[2] / "traffic_profiles"


def test_every_row_of_azures_excerpt_is_replayed_ten_times_as_fast():
    profile = yaml.safe_load((PROFILES / "azure_conv_2023.yaml").read_text())
    trace = Trace.model_validate(profile["phases"][1]["trace"])
    rows = read_trace(trace, PROFILES)
    plain = read_trace(Trace(file=trace.file), PROFILES)
    assert (len(rows.due_ns), rows.facts["rows_kept"], rows.facts["dropped"]) == (400, 400, {})
    assert plain.due_ns[:3].tolist() == [0, 4_314_579_000, 4_541_877_000]
    assert np.abs(rows.due_ns - plain.due_ns / 10).max() <= 0.5
    assert (rows.kinds, set(rows.kind.tolist())) == (("chat",), {0})
    assert (rows.length.max(), rows.output.max()) == (128, 128)
    assert rows.facts["changed"]["input cut to 128"] == int((plain.length > 128).sum())
    assert rows.facts["sha256"] == hashlib.sha256((PROFILES / trace.file).read_bytes()).hexdigest()


def test_case_54_fifty_times_as_fast_lasts_a_fiftieth():
    """Field case 54: nothing adds up over the rows, so the whole is right to less than a nanosecond."""
    plain, fast = (read_trace(Trace(file="azure_conv_2023_head.csv", speed=s), PROFILES) for s in (1, 50))
    assert plain.due_ns[-1] == 106_330_212_000
    assert abs(fast.due_ns[-1] - plain.due_ns[-1] / 50) <= 0.5


def test_the_excerpt_is_unchanged_and_attributed():
    data = (PROFILES / "azure_conv_2023_head.csv").read_bytes()
    assert data.startswith(
        b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
    )
    assert data.count(b"\r\n") == 401
    said = (PROFILES / "ATTRIBUTION.md").read_text()
    for word in (
        "azure_conv_2023_head.csv",
        "Azure Public Dataset",
        "Microsoft",
        "CC-BY-4.0",
        "otherwise unchanged",
    ):
        assert word in said


def test_a_file_goes_through_a_block_at_a_time(tmp_path):
    rows, block = 40_000, 1 << 14
    (tmp_path / "t.csv").write_text("t,x\n" + "".join(f"{i},word\n" for i in range(rows)))
    (tmp_path / "t.jsonl").write_text("".join(f'{{"t": {i}}}\n' for i in range(rows)))
    for batches in (
        read_csv(open_source("t.csv", tmp_path), ["t"], block),
        read_jsonl(open_source("t.jsonl", tmp_path), ["t"], ["t"], block),
    ):
        sizes = [batch.rows for batch in batches]
        assert sum(sizes) == rows
        assert max(sizes) <= block / 6
