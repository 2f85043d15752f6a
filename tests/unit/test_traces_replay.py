"""Which rows of a trace are sent, when, and what is said of the rest."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from loadgen.traffic.document import ProfileError
from loadgen.traffic.trace import Trace, parse_trace
from loadgen.traffic.traces.read import read_trace
from loadgen.traffic.traces.source import TraceError
from loadgen.traffic.traces.timeline import StepBackError, Timeline, due, fullest

S = 10**9
STAMPS = st.lists(st.integers(0, 10**6), min_size=1, max_size=60)


def table(folder, rows, header="t,in,out,who", **keys):
    text = header + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
    (folder / "t.csv").write_text(text)
    columns = {"time": "t", "input": "in", "output": "out"}
    return read_trace(
        Trace.model_validate({"file": "t.csv", "columns": columns, "unit": "s", **keys}), folder
    )


TEN = [(100 + 10 * i, 10 * i + 1, i + 1, "ab"[i % 2]) for i in range(10)]


def due_s(rows):
    return (rows.due_ns / S).tolist()


def test_slices_by_rows_and_by_trace_time(tmp_path):
    rows = table(tmp_path, TEN, skip=2, first=3)
    assert (due_s(rows), rows.length.tolist()) == ([0, 10, 20], [21, 31, 41])
    assert (rows.facts["rows_read"], rows.facts["stopped_at"], rows.facts["dropped"]) == (
        5,
        "first",
        {"skip": 2},
    )
    rows = table(
        tmp_path, TEN, **{"from": "20s", "to": "50s"}
    )  # 0 is the file's first row, not 0 s of its clock
    assert (due_s(rows), rows.length.tolist()) == ([0, 10, 20], [21, 31, 41])
    assert rows.facts["dropped"] == {"at or after to": 5, "before from": 2}
    assert table(tmp_path, TEN, skip=2, **{"from": "20s"}).length.tolist() == [41, 51, 61, 71, 81, 91]
    with pytest.raises(TraceError, match=r"no row is left of 10 \(skip: 10\)"):
        table(tmp_path, TEN, skip=10)


def test_what_stands_after_to_is_not_read(tmp_path):
    (tmp_path / "t.csv").write_text("t\n" + "".join(f"{i}\n" for i in range(1000)) + "no number\n")
    keys = {"file": "t.csv", "columns": {"time": "t"}, "unit": "s", "to": "5s"}
    rows = read_trace(Trace.model_validate(keys), tmp_path, block_bytes=100)
    assert (len(rows.due_ns), rows.facts["stopped_at"]) == (5, "to")
    assert rows.facts["rows_read"] < 100


def test_filters(tmp_path):
    assert table(tmp_path, TEN, where={"who": "b"}).length.tolist() == [11, 31, 51, 71, 91]
    assert table(tmp_path, TEN, where={"who": ["b", "z"], "out": {"min": 4, "max": 8}}).output.tolist() == [
        4,
        6,
        8,
    ]
    assert table(tmp_path, TEN, where={"out": [1, 3.0]}).output.tolist() == [1, 3]
    mixed = [(1, 1, 1, "x"), (2, 2, 2, 7), (3, 3, 3, ""), (4, 4, 4, "7.0")]
    assert table(tmp_path, mixed, where={"who": ["x", 7]}).length.tolist() == [1, 2, 4]
    with pytest.raises(TraceError, match=r"t\.csv:2: 'x' is no number"):
        table(tmp_path, mixed, where={"who": {"min": 3}})
    with pytest.raises(
        TraceError, match=r"there is no column 'whom' \(did you mean 'who'\?\); it has: t, in, out, who"
    ):
        table(tmp_path, TEN, where={"whom": "b"})


def test_kinds_by_a_column(tmp_path):
    rows = table(tmp_path, TEN, kind="only")
    assert (rows.kinds, set(rows.kind.tolist())) == (("only",), {0})
    rows = table(tmp_path, TEN, kinds={"column": "who", "map": {"b": "y"}, "other": "drop"})
    assert (rows.kinds, rows.kind.tolist(), rows.facts["dropped"]) == (("y",), [0] * 5, {"other who": 5})
    with pytest.raises(
        TraceError, match=r"t\.csv:2: who is 'a', which kinds\.map does not have; add it, or write other"
    ):
        table(tmp_path, TEN, kinds={"column": "who", "map": {"b": "y"}})
    # a row that a filter leaves out needs no kind
    assert len(table(tmp_path, TEN, where={"who": "b"}, kinds={"column": "who", "map": {"b": "y"}}).kind) == 5


def test_lengths_are_scaled_then_cut_and_both_are_said(tmp_path):
    rows = table(tmp_path, TEN, scale={"input": 0.5, "output": 2}, clamp={"input": 20, "output": 19})
    assert rows.length.tolist() == [1, 6, 10, 16, 20, 20, 20, 20, 20, 20]  # rint, and never 0
    assert rows.output.tolist() == [2, 4, 6, 8, 10, 12, 14, 16, 18, 19]
    assert rows.facts["changed"] == {"input cut to 20": 5, "output cut to 19": 1}
    assert "5 rows: input cut to 20" in rows.facts["said"]
    assert rows.facts["scale"] == {"input": 0.5, "output": 2}


def test_a_gap_is_cut_in_trace_time_and_then_sped_up(tmp_path):
    rows = [(0, 1, 1, "a"), (10, 1, 1, "a"), (500, 1, 1, "a"), (510, 1, 1, "a")]
    assert due_s(table(tmp_path, rows, speed=10)) == [0, 1, 50, 51]
    capped = table(tmp_path, rows, speed=10, max_gap="30s")
    assert due_s(capped) == [0, 1, 4, 5]  # 10 s, 30 s for 490 s, 10 s; all ten times as fast
    assert (capped.facts["gaps_cut"], capped.facts["gaps_cut_ns"], capped.facts["span_ns"]) == (
        1,
        460 * S,
        5 * S,
    )
    assert capped.facts["trace_span_ns"] == 510 * S
    assert any("cut to 30 s of trace time, before speed" in line for line in capped.facts["said"])


def test_case_54_many_small_gaps_add_up_to_the_whole(tmp_path):
    """Field case 54: 100,001 rows 50 us apart last 5 s, also at another speed: times are absolute, not summed gaps."""
    (tmp_path / "t.csv").write_text("t\n" + "".join(f"{50 * i}\n" for i in range(100_001)))
    keys = {"file": "t.csv", "columns": {"time": "t"}, "unit": "us"}
    rows = read_trace(Trace.model_validate(keys), tmp_path)
    assert np.array_equal(rows.due_ns, np.arange(100_001) * 50_000)
    fast = read_trace(Trace.model_validate({**keys, "speed": 3}), tmp_path)
    assert np.abs(fast.due_ns - np.arange(100_001) * 50_000 / 3).max() <= 0.5


def test_a_phase_of_a_trace_lasts_one_mean_gap_longer(tmp_path):
    assert table(tmp_path, TEN).duration_ns == 100 * S
    assert table(tmp_path, TEN, speed=3).duration_ns == pytest.approx(100 * S / 3, abs=10)
    assert table(tmp_path, TEN[:1]).duration_ns == S
    assert table(tmp_path, [(7, 1, 1, "a")] * 3).duration_ns == S


def test_rows_written_late_are_put_in_their_place(tmp_path):
    rows = [(0, 1, 1, "a"), (10, 2, 1, "a"), (30, 3, 1, "a"), (20, 4, 1, "a"), (30, 5, 1, "a")]
    sorted_ = table(tmp_path, rows)
    assert (due_s(sorted_), sorted_.length.tolist()) == ([0, 10, 20, 30, 30], [1, 2, 4, 3, 5])
    assert (sorted_.facts["late_rows"], sorted_.facts["latest_ns"], sorted_.facts["seams"]) == (1, 10 * S, [])


def test_shuffled_rows_are_no_recordings(tmp_path):
    order = np.random.default_rng(5).permutation(5000)
    rows = [(int(i), 1, 1, "a") for i in order]
    with pytest.raises(TraceError, match=r"time falls back for the 1,001th time.*write seam: sort"):
        table(tmp_path, rows)
    assert due_s(table(tmp_path, rows, seam="sort")) == list(range(5000))


@given(
    stamps=STAMPS,
    cuts=st.lists(st.integers(0, 60), max_size=4),
    policy=st.sampled_from(["concat", "first", "sort"]),
)
def test_trace_time_does_not_depend_on_the_pieces_and_never_goes_wrong(stamps, cuts, policy):
    stamps = np.array(stamps, np.int64)
    whole, pieces = Timeline(policy), Timeline(policy)
    times = whole.place(stamps)
    split = np.split(stamps, sorted(min(cut, len(stamps)) for cut in cuts))
    parts = [pieces.place(part) for part in split if not pieces.ended]
    assert np.concatenate(parts).tolist() == times.tolist()
    assert (pieces.seams, pieces.late, pieces.latest_ns) == (whole.seams, whole.late, whole.latest_ns)
    if policy == "sort":
        assert (times - times[0]).tolist() == (stamps - stamps[0]).tolist()
        return
    assert times[0] == 0
    assert len(times) == (whole.seams[0][0] if policy == "first" and whole.seams else len(stamps))
    edges = [0, *(row for row, _, _ in whole.seams), len(times)]
    low = 0
    for start, end in itertools.pairwise(edges):  # each part lies after all of the one before, as it was
        part = times[start:end]
        if len(part):
            assert part.min() >= low
            assert np.diff(part).tolist() == np.diff(stamps[start:end]).tolist()
            low = part.max()


def test_refuse_takes_no_step_back():
    with pytest.raises(StepBackError, match="goes back by 1e-09 s") as caught:
        Timeline("refuse").place(np.array([5, 9, 9, 8]))
    assert caught.value.row == 3


@given(
    gaps=st.lists(st.integers(0, 10**12), max_size=40),
    cap=st.integers(1, 10**12),
    speed=st.floats(0.01, 1000),
)
def test_due_times(gaps, cap, speed):
    times = np.cumsum([7, *gaps])
    ns, cut, cut_ns = due(times, cap, speed)
    assert ns[0] == 0
    assert (np.diff(ns) >= 0).all()
    assert np.abs(np.diff(ns) - np.minimum(gaps, cap) / speed).max(initial=0) <= 1
    assert (cut, cut_ns) == (sum(gap > cap for gap in gaps), sum(max(gap - cap, 0) for gap in gaps))


@given(times=st.lists(st.integers(0, 50), min_size=1), width=st.integers(1, 9))
def test_fullest(times, width):
    times = np.sort(np.array(times))
    assert fullest(times, width) == np.bincount(times // width).max()


WRONG = [  # the file's text, keys, what the error must say
    ("t,in\n1,5\n2\n", {}, r"t\.csv:3: 1 cells where the header has 2"),
    ("t,in\n1,5\n\n2,six\n", {}, r"t\.csv:4: 'six' is no input: a whole number of 0 or more is needed"),
    ("t,in\n1,5\n2,-6\n", {}, r"t\.csv:3: -6 is no input"),
    ("t,in\n1,5\n2,6.5\n", {}, r"t\.csv:3: 6.5 is no input"),
    ("t,in\n1,5\nsoon,6\n", {}, r"t\.csv:3: 'soon' is no time in s"),
    ("t,in\n1,5\n,6\n", {}, r"t\.csv:3: t: no time, but rows before it have one"),
    ("t,in\n1,5\nnan,6\n", {}, r"t\.csv:3: nan is no time"),
    ("t,in\n1,5\n1e12,6\n", {}, r"t\.csv:3: .* s is beyond any calendar; is the unit right\?"),
    ("t,in\n1,99999999\n", {}, r"t\.csv:2: input of 99,999,999 tokens; allowed: 10,000,000 at most, or a clamp"),
    ("t,in\n", {}, "has a header and no rows"),
    ("t,t,in\n1,2,3\n", {}, "'t' names two columns"),
    ('t,in\n1,"5\n', {}, r"t\.csv:2: a quote that is never closed"),
    ("", {}, "is empty; a trace needs rows"),
    ("t,in\n2024-01-01,5\nyesterday,6\n", {"unit": "datetime"}, r"t\.csv:3: 'yesterday' is no date and time such as"),
    ("t,in\n2024-01-01T00:00:00Z,5\n2024-01-01T00:00:00,6\n", {"unit": "datetime"}, r"t\.csv:3: .*some rows have a zone"),
    ('{"t": 1, "in": 5}\n{"t": 2 "in": 6}\n', {}, r"t\.csv:2: not a line of JSON: "),
    ('{"t": 1, "in": 5}\n[1]\n', {}, r"t\.csv:2: list where an object"),
    ('{"t": 1, "inn": 5}\n', {}, r"no row has the key 'in' \(did you mean 'inn'\?\)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "keys", "said"), WRONG)
def test_what_is_wrong_is_named_by_file_and_line(tmp_path, text, keys, said):
    (tmp_path / "t.csv").write_text(text)
    trace = {"file": "t.csv", "columns": {"time": "t", "input": "in"}, "unit": "s", **keys}
    with pytest.raises(TraceError, match=said) as caught:
        read_trace(Trace.model_validate(trace), tmp_path)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_are_named_by_their_line(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"t,in,note\n1,5,a\n2,6,\xff\n3,x,b\n")
    trace = {"file": "t.csv", "columns": {"time": "t", "input": "in"}, "unit": "s"}
    for more in ({}, {"where": {"note": "a"}}):
        with pytest.raises(TraceError, match=r"t\.csv:3: is not UTF-8 text"):
            read_trace(Trace.model_validate({**trace, **more}), tmp_path)


_CSV = "t,in,note\n1,5,a\n2,6,b\n"
_PLAIN = {"columns": {"time": "t", "input": "in"}, "unit": "s"}
_JSONL = '{"t": 1, "in": 5}\n{"t": 2, "in": 6}\n'
_LOG = '1.1.1.1 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 23\n'
_TALK = '[{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes"}]}]'


@pytest.mark.parametrize(
    ("text", "keys"),
    [(_CSV, _PLAIN), (_JSONL, _PLAIN), (_LOG, {}), (_TALK, {})],
    ids=["csv", "jsonl", "log", "talk"],
)
def test_another_encoding_and_lines_of_cr_are_refused_by_name(tmp_path, text, keys):
    trace = Trace.model_validate({"file": "x", **keys})
    for raw, said in (
        (text.encode("utf-16"), r"x: is UTF-16"),
        (text.encode("utf-16-be"), r"x:1: a zero byte; is it UTF-16"),
        (text.replace("\n", "\r").encode(), r"x: its lines end with CR alone"),
    ):
        (tmp_path / "x").write_bytes(raw)
        if b"\r" in raw or "CR" not in said:
            with pytest.raises(TraceError, match=said):
                read_trace(trace, tmp_path)
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert read_trace(trace, tmp_path).facts["rows_kept"] == max(text.count("\n") - (text is _CSV), 1)


def test_latin_1_is_refused_by_line_wherever_it_stands(tmp_path):
    for at, text in (
        (1, _CSV.replace("note", "nöte")),
        (3, _CSV.replace("b", "ö")),
        (2, _JSONL.replace("6}", '6, "n": "ö"}')),
    ):
        (tmp_path / "x").write_bytes(text.encode("latin-1"))
        with pytest.raises(TraceError, match=rf"x:{at}: is not UTF-8 text"):
            read_trace(Trace.model_validate({"file": "x", **_PLAIN}), tmp_path)


def test_a_key_given_twice_is_refused(tmp_path):
    cases = (
        (_JSONL + '{"t": 3, "in": 7, "in": 8}\n', _PLAIN, r"x:3: .*key 'in' is given twice"),
        (_JSONL + '{"t": 3, "in": 7, "in": null}\n', _PLAIN, r"x:3: .*key 'in' is given twice"),
        (
            _TALK.replace('"value": "yes"', '"value": "yes", "value": "no"'),
            {},
            r"conversation 1: the key 'value'",
        ),
    )
    for text, keys, said in cases:
        (tmp_path / "x").write_text(text)
        with pytest.raises(TraceError, match=said):
            read_trace(Trace.model_validate({"file": "x", **keys}), tmp_path)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_conditions_on_numbers_of_64_bits_are_exact(tmp_path, form):
    ids = [2**53, 2**53 + 1, 2**53 + 2]
    text = (
        "t,in,id\n" + "".join(f"{at},5,{n}\n" for at, n in enumerate(ids))
        if form == "csv"
        else "".join(json.dumps({"t": at, "in": 5, "id": n}) + "\n" for at, n in enumerate(ids))
    )
    (tmp_path / "x").write_text(text)
    rows = read_trace(Trace.model_validate({"file": "x", **_PLAIN, "where": {"id": [2**53 + 1]}}), tmp_path)
    assert rows.facts["rows_kept"] == 1


def test_columns_that_are_not_read_are_said(tmp_path):
    (tmp_path / "x").write_text(_CSV)
    assert read_trace(Trace.model_validate({"file": "x", **_PLAIN}), tmp_path).facts["columns_unread"] == [
        "note"
    ]
    (tmp_path / "x").write_text(_JSONL + '{"t": 3, "in": 7, "tools": [{"in_it": 1}], "temperature": 0.5}\n')
    facts = read_trace(Trace.model_validate({"file": "x", **_PLAIN}), tmp_path).facts
    assert sorted(facts["columns_unread"]) == ["temperature", "tools"]
    assert any("temperature" in said and "tools" in said for said in facts["said"])


def test_what_of_a_conversation_is_not_replayed_is_said(tmp_path):
    image = [{"type": "text", "text": "four letters"}, {"type": "image_url", "image_url": {"url": "x"}}]
    talks = [
        {
            "messages": [{"role": "user", "content": image}, {"role": "assistant", "content": "yes"}],
            "tools": [],
        },
        {
            "messages": [
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": "two"},
                {"role": "user", "content": "three"},
            ]
        },
    ]
    (tmp_path / "x").write_text(json.dumps(talks))
    rows = read_trace(Trace(file="x"), tmp_path)
    assert rows.length.tolist() == [3, 1]
    assert rows.facts["columns_unread"] == ["tools"]
    assert sorted(rows.facts["changed"].values()) == [1, 1]
    (tmp_path / "x").write_text(_TALK.replace("hi", "\\ud800"))
    with pytest.raises(TraceError, match="conversation 1: holds half a character"):
        read_trace(Trace(file="x"), tmp_path)


def test_files_that_cannot_be_read(tmp_path):
    for file, said in (("no.csv", "no such trace"), (".", "is a folder")):
        with pytest.raises(TraceError, match=said):
            read_trace(Trace(file=file), tmp_path)
    (tmp_path / "x").write_bytes(b"\x00\x01binary")
    with pytest.raises(TraceError, match=r"x:1: a zero byte"):
        read_trace(Trace(file="x"), tmp_path)
    (tmp_path / "x").write_bytes(b"\x02\x01binary")
    with pytest.raises(TraceError, match=r"its format is not recognised .*allowed formats: azure, mooncake"):
        read_trace(Trace(file="x"), tmp_path)
    (tmp_path / "x").write_text(json.dumps({"a": 1}))
    with pytest.raises(TraceError, match=r"not recognised \(keys: a\)"):
        read_trace(Trace(file="x"), tmp_path)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("{format: csv}", "--keys:1: format: csv needs columns"),
        (
            "{columns: {time: t}}",
            "--keys:1: columns: a time column needs its unit: ns, us, ms, s or datetime",
        ),
        ("{columns: {input: n}, unit: s}", "--keys:1: unit: belongs to columns.time"),
        ("{format: azure, columns: {time: t}}", "--keys:1: columns: the columns of azure are known"),
        (
            "{format: azure, unit: s}",
            "--keys:1: unit: belongs to columns.time; the other formats have theirs",
        ),
        (
            "{format: azura}",
            "--keys:1: format: 'azura' (did you mean 'azure'?) is not one of: azure, mooncake",
        ),
        ("{speed: 0}", "--keys:1: speed: 0 is not allowed; allowed: 0.001 or more"),
        ("{from: 10}", "--keys:1: from: 10 has no unit; write e.g. 10m"),
        ("{from: 10s, to: 10s}", "--keys:1: to: is not after from"),
        ("{kind: a, kinds: {column: m, map: {x: b}}}", "--keys:1: kinds: kind says it already"),
        ("{where: {m: {min: 3, max: 2}}}", "--keys:1: where.m: min 3 is more than max 2; swap them"),
        ("{where: {m: {}}}", "--keys:1: where.m: needs a value"),
        ("{where: {m: []}}", "allowed: a value, a list of values"),
        ("{format: azure, tokenizer: t.json}", "--keys:1: tokenizer: azure has lengths of its own"),
        ("{clamp: {input: 0}}", "--keys:1: clamp.input: 0 is not allowed; allowed: 1 or more"),
        ("7", "--keys: 7 where a trace's keys are needed"),
    ],
)
def test_keys_that_do_not_go_together(keys, said):
    with pytest.raises(ProfileError) as caught:
        parse_trace("t.csv", keys, "--keys")
    assert said in str(caught.value)


def test_a_trace_is_frozen_and_long_times_are_allowed():
    trace = parse_trace("t.csv", "{from: 2000h}", "--keys")
    assert trace.from_ns == 2000 * 3600 * S
    with pytest.raises(ValidationError):
        trace.speed = 3.0
