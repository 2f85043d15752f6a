"""Every public format, with the traps that its files have; all rows here are made up."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.traffic.trace import Trace
from loadgen.traffic.traces.columns import NONE, times_ns
from loadgen.traffic.traces.json_rows import _fast, _slow
from loadgen.traffic.traces.read import read_trace
from loadgen.traffic.traces.source import TraceError

MS = 10**6
AZURE = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    b"2023-11-16 18:17:03.9799600,4808,10\r\n"
    b"2023-11-16 18:17:04.0319610,3180,8\r\n"
    b"2023-11-16 18:17:04.0319610,110,27"
)
BURST_1 = (
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    b"5,ChatGPT,40,18,58,Conversation log\n"
    b"45,GPT-4,107,230,337,Conversation log\n"
    b"45,ChatGPT,41,0,41,API log\n"
    b"118,GPT-4,0,0,0,API log\n"
)
BURST_3 = (
    b"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    b"19440110.0,aaaa,43,GPT-4,906,446,1352,Conversation log\n"
    b"19440161.5,,2,ChatGPT,36,29,65,API log\n"
)
MOONCAKE = [
    {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]},
    {"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [2]},
    {"timestamp": 2999, "input_length": 1025, "output_length": 7, "hash_ids": [0, 3, 4]},
]
BAILIAN = [
    {"timestamp": 61, "input_length": 33, "output_length": 4, "hash_ids": [1, 2, 3]},
    {"timestamp": 62, "input_length": 16, "output_length": 9, "hash_ids": [1]},
]
RAGPULSE = [
    {
        "timestamp": "82",
        "input_length": 300,
        "output_length": 20,
        "hash_ids": {"history": [1]},
        "session_id": "1",
    },
    {
        "timestamp": "90",
        "input_length": 310,
        "output_length": 21,
        "hash_ids": {"history": []},
        "session_id": "py",
    },
    {
        "timestamp": "0",
        "input_length": 320,
        "output_length": 22,
        "hash_ids": {"history": []},
        "session_id": "1",
    },
    {
        "timestamp": "4",
        "input_length": 330,
        "output_length": 23,
        "hash_ids": {"history": []},
        "session_id": "2",
    },
]
SHARE = [
    {"id": "a", "conversations": [{"from": "human", "value": "How now?"}, {"from": "gpt", "value": "Brown cow, é."}]},
    {"id": "b", "conversations": [{"from": "gpt", "value": "Nobody asked."}]},
    {"id": "c", "conversations": [{"from": "system", "value": "x"}, {"from": "user", "value": "日本"}, {"from": "chatgpt", "value": "ok"}]},
]  # fmt: skip
NGINX = (
    b'10.0.0.7 - - [16/Nov/2023:23:59:59 +0100] "POST /v2/models/a/infer HTTP/1.1" 200 512 "-" "curl/8.4"\n'
    b'10.0.0.8 - bob [17/Nov/2023:00:00:01 +0100] "GET /v2/health/ready HTTP/1.1" 200 0 "-" "probe"\n'
    b"a line of another kind\n"
    b'10.0.0.7 - - [16/Nov/2023:23:00:00 +0000] "POST /v2/models/b/infer HTTP/1.1" 503 - "-" "curl/8.4"\n'
)
TRITON = (
    b'I1231 23:59:59.900000 71 http_server.cc:4599] "HTTP request: 2 /v2/models/m/infer"\n'
    b'I1231 23:59:59.900010 71 infer_request.cc:905] "[request id: q] prepared: [0x0] request id: q, model: m, '
    b"requested version: -1, actual version: 1, flags: 0x0, correlation id: 0, batch size: 2, priority: 0, timeout (us): 0"
    b"\\noriginal inputs:\\n[0x0] input: mask, type: INT64, original shape: [2,17], batch + shape: [2,17], shape: [17]"
    b'\\n[0x0] input: ids, type: INT64, original shape: [2,17], batch + shape: [2,17], shape: [17]\\n"\n'
    b'I1231 23:59:59.900020 71 infer_request.cc:132] "[request id: q] Setting state from INITIALIZED to PENDING"\n'
    b"I0101 00:00:00.400010 71 infer_request.cc:905] [request id: <id_unknown>] prepared: [0x0x7f] request id: , "
    b"model: image, requested version: -1, actual version: 3, flags: 0x0, correlation id: 0, batch size: 1, priority: 2, "
    b"timeout (us): 0\noriginal inputs:\n[0x0x7f] input: x, type: FP32, original shape: [1,3,8,8]\n"
)


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def read(folder, content, name="t", block_bytes=1 << 20, **keys):
    (folder / name).write_bytes(content)
    return read_trace(Trace.model_validate({"file": name, **keys}), folder, block_bytes)


def due_ms(rows):
    return [int(ns) / MS for ns in rows.due_ns]


def test_azure_2023_seven_digits_crlf_and_no_last_line_end(tmp_path):
    rows = read(tmp_path, AZURE)
    assert rows.due_ns.tolist() == [0, 52_001_000, 52_001_000]
    assert (rows.length.tolist(), rows.output.tolist()) == ([4808, 3180, 110], [10, 8, 27])
    assert rows.kind.tolist() == [-1, -1, -1]
    assert rows.due_ns.dtype == "int64"
    assert (rows.length.dtype, rows.output.dtype, rows.kind.dtype) == ("int32", "int32", "int16")
    facts = rows.facts
    assert (facts["format"], facts["recognised"], facts["unit"], facts["rows_kept"]) == (
        "azure",
        True,
        "datetime",
        3,
    )
    assert "recognised" in facts["said"][0]
    assert facts["largest_burst"] == 2
    json.dumps(facts)


def test_azure_2024_zone_and_rows_without_fraction(tmp_path):
    text = (
        b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
        b"2024-05-12 00:00:19.999993+00:00,1,5\n2024-05-12 00:00:20+00:00,2,6\n2024-05-12 02:00:21+02:00,3,1\n"
    )
    rows = read(tmp_path, text, format="azure")
    assert rows.due_ns.tolist() == [0, 7000, 1_000_007_000]
    assert (rows.facts["recognised"], rows.output.tolist()) == (False, [5, 6, 1])


def test_azure_multimodal_inserts_a_column_and_is_gzipped(tmp_path):
    text = (
        b"TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
        b"2025-01-02 03:04:05.5,9,100,7\n2025-01-02 03:04:06,8,200,6\n"
    )
    for name, packed in (
        ("t.csv.gz", gzip.compress(text)),
        ("t.csv.zst", pa.compress(text, "zstd", asbytes=True)),
    ):
        rows = read(tmp_path, packed, name)
        assert (rows.length.tolist(), rows.output.tolist(), due_ms(rows)) == ([100, 200], [7, 6], [0, 500])
    assert rows.facts["compression"] == "zstd"


def test_a_damaged_gzip_is_one_error(tmp_path):
    packed = gzip.compress(AZURE * 50)
    with pytest.raises(TraceError, match=r"t\.gz: cannot be read: its gzip data is damaged or ends early"):
        read(tmp_path, packed[: len(packed) // 2], "t.gz")


def test_burstgpt_1_kinds_and_failures(tmp_path):
    kinds = {"column": "Model", "map": {"ChatGPT": "small", "GPT-4": "large"}}
    rows = read(tmp_path, BURST_1, kinds=kinds)
    assert due_ms(rows) == [0, 40_000, 40_000, 113_000]
    assert (rows.kinds, rows.kind.tolist()) == (("small", "large"), [0, 1, 0, 1])
    assert (rows.length.tolist(), rows.output.tolist()) == ([40, 107, 41, 1], [18, 230, 1, 1])  # never 0
    assert rows.facts["changed"] == {"0 tokens: sent as 1": 2}
    assert "2 rows: 0 tokens: sent as 1" in rows.facts["said"]
    dropped = read(tmp_path, BURST_1, zero="drop")
    assert (due_ms(dropped), dropped.facts["dropped"]) == ([0, 40_000], {"0 tokens": 2})
    kept = read(tmp_path, BURST_1, zero="keep")
    assert (kept.length.tolist(), kept.output.tolist()) == ([40, 107, 41, -1], [18, 230, -1, -1])


def test_burstgpt_3_is_read_by_its_names_and_starts_at_once(tmp_path):
    rows = read(tmp_path, BURST_3)
    assert (due_ms(rows), rows.length.tolist(), rows.output.tolist()) == ([0, 51_500], [906, 36], [446, 29])


def test_mooncake_is_ms_with_bursts_kept_in_file_order(tmp_path):
    rows = read(tmp_path, jsonl(MOONCAKE))
    assert (due_ms(rows), rows.length.tolist()) == ([0, 0, 2999], [700, 512, 1025])
    assert (rows.facts["format"], rows.facts["unit"], rows.facts["largest_burst"]) == ("mooncake", "ms", 2)


def test_case_55_a_mooncake_file_without_times_is_all_rows_in_order(tmp_path):
    """Field case 55: rows in file order, all of them; by their times when present, else by turns, and said."""
    bare = [{key: value for key, value in row.items() if key != "timestamp"} for row in MOONCAKE]
    rows = read(tmp_path, jsonl(bare))
    assert rows.due_ns is None
    assert (rows.length.tolist(), rows.output.tolist()) == ([700, 512, 1025], [5, 1, 7])
    assert (rows.facts["timed"], rows.facts["rows_kept"]) == (False, 3)
    assert rows.facts["said"][-1].startswith("it has no times")
    timed = read(tmp_path, jsonl(MOONCAKE))
    assert (len(timed.due_ns), timed.facts["timed"]) == (3, True)
    with pytest.raises(TraceError, match=r"t:2: timestamp: no time, but rows before it have one"):
        read(tmp_path, jsonl([MOONCAKE[0], bare[1]]))
    with pytest.raises(TraceError, match="has no times, so from and speed cannot be applied"):
        read(tmp_path, jsonl(bare), **{"from": "1s", "speed": 2})


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (BAILIAN, [0, 1000]),  # by its blocks of 16
        ([{**row, "hash_ids": [1], "turn": 1} for row in BAILIAN], [0, 1000]),  # by a key
        (
            [{**row, "timestamp": row["timestamp"] * 1.5, "hash_ids": [1]} for row in BAILIAN],
            [0, 1500],
        ),  # a fraction
    ],
)
def test_bailian_is_seconds(tmp_path, rows, what):
    read_rows = read(tmp_path, jsonl(rows))
    assert (read_rows.facts["format"], due_ms(read_rows)) == ("bailian", what)


def test_mooncake_or_bailian_is_asked_when_the_rows_do_not_tell(tmp_path):
    unclear = jsonl([{"timestamp": 5, "input_length": 9, "output_length": 1, "hash_ids": [1]}])
    with pytest.raises(TraceError, match="do not tell; write format: mooncake or format: bailian"):
        read(tmp_path, unclear)
    both = jsonl([{**MOONCAKE[0], "turn": 1}])
    with pytest.raises(TraceError, match="speak for both"):
        read(tmp_path, both)
    assert read(tmp_path, unclear, format="bailian").facts["unit"] == "s"


def test_ragpulse_weeks_follow_each_other(tmp_path):
    rows = read(tmp_path, jsonl(RAGPULSE) + b"\n")  # the file ends with an empty line
    assert (due_ms(rows), rows.length.tolist()) == ([0, 8000, 8000, 12_000], [300, 310, 320, 330])
    assert rows.facts["seams"] == [{"row": 3, "before_ns": 90 * 10**9, "after_ns": 0}]
    assert any("falls back 1 time, first at row 3" in line for line in rows.facts["said"])
    first = read(tmp_path, jsonl(RAGPULSE), seam="first")
    assert (due_ms(first), first.facts["stopped_at"], first.facts["rows_read"]) == ([0, 8000], "seam", 2)
    merged = read(tmp_path, jsonl(RAGPULSE), seam="sort")
    assert (due_ms(merged), merged.length.tolist()) == ([0, 4000, 82_000, 90_000], [320, 330, 300, 310])
    with pytest.raises(TraceError, match=r"t:3: time goes back by 90 s; write seam: sort"):
        read(tmp_path, jsonl(RAGPULSE), seam="refuse")


def test_sharegpt_has_lengths_and_no_times(tmp_path):
    for text in (json.dumps(SHARE, indent=1), "\n".join(map(json.dumps, SHARE))):
        rows = read(tmp_path, text.encode())
        assert rows.due_ns is None
        assert (rows.length.tolist(), rows.output.tolist()) == ([2, 2], [4, 1])  # UTF-8 bytes / 4
        assert rows.facts["dropped"] == {"no exchange": 1}
        assert "lengths are an estimate: UTF-8 bytes / 4" in rows.facts["said"]
    messages = [{"messages": [{"role": "user", "content": "a" * 9}, {"role": "assistant", "content": "b"}]}]
    assert read(tmp_path, jsonl(messages)).length.tolist() == [3]


def test_sharegpt_counts_with_a_tokenizer(tmp_path):
    vocabulary = {"[UNK]": 0, "How": 1, "now": 2, "?": 3}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    (tmp_path / "tok.json").write_text(
        json.dumps(
            {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
        )
    )
    rows = read(tmp_path, json.dumps(SHARE).encode(), tokenizer="tok.json")
    assert (rows.length.tolist(), rows.output.tolist()) == ([3, 1], [5, 1])
    assert rows.facts["lengths_from"] == "tokenizer"
    with pytest.raises(TraceError, match=r"none\.json: not a tokenizer\.json"):
        read(tmp_path, json.dumps(SHARE).encode(), tokenizer="none.json")


def test_nginx_combined(tmp_path):
    rows = read(tmp_path, NGINX)
    assert (rows.facts["format"], due_ms(rows)) == (
        "nginx_log",
        [0, 1000, 2000],
    )  # the last line was written late
    assert rows.facts["late_rows"] == 1
    assert rows.length.tolist() == [-1, -1, -1]
    posts = read(tmp_path, NGINX, where={"method": "POST"}, kinds={
        "column": "path", "map": {"/v2/models/a/infer": "a", "/v2/models/b/infer": "b"}})  # fmt: skip
    assert (due_ms(posts), posts.kind.tolist()) == ([0, 1000], [0, 1])
    assert read(tmp_path, NGINX, where={"status": 503, "bytes": {"max": 0}}).facts["rows_kept"] == 1


def test_lines_of_an_access_log_that_are_no_requests_are_counted(tmp_path):
    text = (
        NGINX.rstrip(b"\n")
        + b"\nbroken line\n\n2026/11/30 10:00:00 [error] 7#7: *1 upstream\n1.2.3.4 - - [cut\n"
    )
    rows = read(tmp_path, text)
    assert (rows.facts["rows_read"], rows.facts["rows_kept"]) == (7, 3)
    assert rows.facts["dropped"] == {"lines in another format": 4}
    assert rows.facts["said"][1] == "3 of 7 rows read are replayed (left out: lines in another format: 4)"
    assert "times in" not in rows.facts["said"][0]


def test_triton_verbose_log_across_new_year(tmp_path):
    rows = read(tmp_path, TRITON)
    assert (rows.facts["format"], due_ms(rows), rows.length.tolist()) == ("triton_log", [0, 500], [17, -1])
    assert read(tmp_path, TRITON, where={"model": "image", "version": 3}).facts["rows_kept"] == 1
    iso = TRITON.replace(b"I1231 23:59:59.900010", b"2026-12-31T23:59:58Z I").replace(
        b"I0101 00:00:00.400010", b"2027-01-01T00:00:01Z I"
    )
    assert due_ms(read(tmp_path, iso)) == [0, 3000]
    with pytest.raises(TraceError, match="no request in it; Triton logs them with --log-verbose=1"):
        read(tmp_path, TRITON.splitlines()[0])


def test_plain_csv_needs_names_and_a_unit(tmp_path):
    text = b'\xef\xbb\xbfid;sent at;in\n1;"1.25";3\n\n2;2.5;\n3; 4 ;5\n'
    rows = read(tmp_path, text, columns={"time": "sent at", "input": "in"}, unit="ms")
    assert (due_ms(rows), rows.length.tolist()) == ([0, 1.25, 2.75], [3, -1, 5])
    assert rows.facts["changed"] == {"input not in the trace": 1, "output not in the trace": 3}
    assert read(tmp_path, text, columns={"input": "in"}).due_ns is None
    quoted = b'note,t\n"two\nlines, and ""more""",1\nplain,3\n'
    assert due_ms(read(tmp_path, quoted, columns={"time": "t"}, unit="us")) == [0, 0.002]


@pytest.mark.parametrize(("unit", "factor"), [("ns", 1), ("us", 10**3), ("ms", 10**6), ("s", 10**9)])
def test_units(tmp_path, unit, factor):
    text = b"t\n1700000000\n1700000003\n"
    assert read(tmp_path, text, columns={"time": "t"}, unit=unit).due_ns.tolist() == [0, 3 * factor]


def test_plain_jsonl_takes_odd_rows(tmp_path):
    text = b'{"t": 1, "n": 3, "x": {"deep": [1]}}\r\n{"t": "2.5", "n": 4.0}\n\n{"n": null, "t": 4, "who": true}\n'
    rows = read(tmp_path, text, columns={"time": "t", "input": "n"}, unit="s")
    assert (due_ms(rows), rows.length.tolist()) == ([0, 1500, 3000], [3, 4, -1])
    assert read(tmp_path, text, columns={"time": "t"}, unit="s", where={"who": True}).facts["rows_kept"] == 1
    dates = b'{"at": "2024-01-01T00:00:00Z"}\n{"at": "2024-01-01T00:00:00.25Z"}\n'
    assert due_ms(read(tmp_path, dates, columns={"time": "at"}, unit="datetime")) == [0, 250]


NUMBER = st.one_of(st.none(), st.integers(0, 10**6), st.floats(0, 1e6).map(lambda x: round(x, 3)))


@given(stamps=st.lists(st.one_of(NUMBER, NUMBER.map(str)), min_size=1, max_size=8))
def test_alike_and_odd_rows_of_json_mean_the_same(stamps):
    block = "".join(
        json.dumps({"x": [1], "t": stamp} if stamp else {"t": stamp}) + "\n" for stamp in stamps
    ).encode()
    stamps = [None if stamp == "None" else stamp for stamp in stamps]
    block = block.replace(b'"None"', b"null")
    slow = _slow("t", 1, block, ["t"], set())["t"]
    expected = [NONE if stamp is None else round(float(stamp) * 1e9) for stamp in stamps]
    assert times_ns(slow, "s").tolist() == expected
    fast = _fast(block, ["t"], len(stamps))
    if fast is not None:
        assert times_ns(fast["t"], "s").tolist() == expected
    else:
        assert len({type(stamp) for stamp in stamps} - {type(None)}) > 1 or stamps[0] is None


def test_parquet(tmp_path):
    table = pa.table(
        {
            "when": pa.array([0, 1500, 1500], pa.timestamp("ms", "UTC")),
            "n": pa.array([5, 6, 7], pa.uint16()),
            "who": pa.array(["a", "b", "a"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    keys = {"file": "t.parquet", "columns": {"time": "when", "input": "n"}, "unit": "datetime"}
    rows = read_trace(Trace.model_validate({**keys, "where": {"who": "a"}}), tmp_path)
    assert (rows.facts["format"], due_ms(rows), rows.length.tolist()) == ("parquet", [0, 1500], [5, 7])
    with pytest.raises(TraceError, match=r"t\.parquet: there is no column 'wann'.*it has: when, n, who"):
        read_trace(Trace.model_validate({**keys, "columns": {"time": "wann"}}), tmp_path)


@pytest.mark.parametrize(
    ("content", "keys"),
    [
        (b"\xef\xbb\xbf" + AZURE, {}),
        (BURST_1, {"where": {"Model": "GPT-4"}}),
        (jsonl(MOONCAKE) * 3, {}),
        (jsonl(RAGPULSE) + b"\n", {}),
        (json.dumps(SHARE, ensure_ascii=False).encode(), {}),
        (NGINX, {}),
        (TRITON, {}),
        (b'a,t\n"x\n,y",1\r\n\r\nz,2', {"columns": {"time": "t"}, "unit": "s"}),
    ],
    ids=["azure", "burstgpt", "mooncake", "ragpulse", "sharegpt", "nginx", "triton", "csv"],
)
@settings(max_examples=25, deadline=None)
@given(block=st.integers(1, 400))
def test_rows_do_not_depend_on_where_the_file_is_cut(tmp_path_factory, content, keys, block):
    folder = tmp_path_factory.mktemp("cut")
    whole, cut = (read(folder, content, block_bytes=size, **keys) for size in (1 << 20, block))
    for name in ("due_ns", "length", "output", "kind"):
        one, other = getattr(whole, name), getattr(cut, name)
        assert (one is None and other is None) or one.tolist() == other.tolist()
    assert whole.facts == cut.facts
