"""Rows of files as the tensors of requests: in order or shuffled, checked, together where they belong together."""

import json
import struct
from math import gcd

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from loadgen.records import LoadgenError, ModelFacts, TensorSpec, Wanted
from loadgen.traffic.profile import ProfileError, parse_profile
from loadgen.workload.payloads import build, most_variants, pool_rng
from loadgen.workload.rows import read_data


def kind(text):
    whole = f"name: t\nkinds:\n  k: {text}\nphases:\n  - {{name: p, closed: {{users: 1, requests: 1}}}}\n"
    return parse_profile(whole, "t.yaml").kinds["k"]


def names(payload):
    return [tensor.name for tensor in payload.tensors]


def facts(*inputs, most=8, **parameters):
    return ModelFacts("m", "", ("1",), most, tuple(TensorSpec(*spec) for spec in inputs), (), parameters)


def made(text, model, folder, n=None, wanted=None):
    given = kind(text)
    data = read_data(given, model, folder)
    wanted = wanted or [Wanted(None)] * (n or most_variants(given, model, data))
    return build(given, model, wanted, pool_rng(1, "k"), data)


def refused(text, model, folder):
    with pytest.raises(LoadgenError) as caught:
        made(text, model, folder)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{folder}/", "")


def jsonl(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def firsts(payloads, dtype):
    return [np.frombuffer(p.tensors[0].data, dtype).tolist() for p in payloads]


@pytest.fixture
def words(tmp_path):
    """A tokenizer of four words that puts 1 before and 2 behind, pads to 9 and cuts to 3 by its own file."""
    vocab = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "one": 4, "two": 5, "three": 6, "four": 7}
    made = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    made.enable_padding(length=9)
    made.enable_truncation(3)
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def bert(**parameters):
    names = ("input_ids", "attention_mask", "token_type_ids")
    told = {"vocab_size": "8", "max_length": "6"} | parameters
    return facts(*((name, "INT64", (-1,)) for name in names), **told)


def test_npy_rows_in_the_files_order_start_over(tmp_path):
    array = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    np.save(tmp_path / "x.npy", array)
    model = facts(("x", "FP32", (2, 2)))
    got = made("{model: m, inputs: {x: {file: x.npy}}}", model, tmp_path)
    assert len(got) == 3
    assert [p.tensors[0].data for p in got] == [row.tobytes() for row in array]
    assert got[0].tensors[0].shape == (1, 2, 2)
    again = made("{model: m, inputs: {x: {file: x.npy}}}", model, tmp_path, n=7)
    assert [p.tensors[0].data for p in again] == [array[i % 3].tobytes() for i in range(7)]


def test_npy_is_converted_whatever_its_own_type_and_order(tmp_path):
    np.save(tmp_path / "x.npy", np.asfortranarray(np.arange(6, dtype=">f8").reshape(2, 3)))
    got = made("{model: m, inputs: {x: {file: x.npy}}}", facts(("x", "INT8", (3,)), most=0), tmp_path)
    assert firsts(got, "<i1") == [[0, 1, 2], [3, 4, 5]]
    assert got[0].tensors[0].shape == (3,)


def test_npy_is_mapped_not_read(tmp_path):
    """16 GiB on paper, none of it read: two rows of it are sent."""
    file = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype="<f4", shape=(2**20, 2**12))
    file[1] = 5
    del file
    got = made("{model: m, inputs: {x: {file: x.npy}}}", facts(("x", "FP32", (2**12,))), tmp_path, n=2)
    assert [set(row) for row in firsts(got, "<f4")] == [{0.0}, {5.0}]


def test_npz_columns(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.array([[1], [2]]), other=np.array([[3], [4]]))
    model = facts(("x", "INT32", (1,)))
    assert firsts(made("{model: m, inputs: {x: {file: x.npz}}}", model, tmp_path), "<i4") == [[1], [2]]
    named = "{model: m, inputs: {x: {file: x.npz, column: other}}}"
    assert firsts(made(named, model, tmp_path), "<i4") == [[3], [4]]
    wrong = "{model: m, inputs: {x: {file: x.npz, column: othr}}}"
    assert (
        refused(wrong, model, tmp_path)
        == "x.npz: no column 'othr' (did you mean 'other'?); allowed: x, other"
    )


def test_a_batch_takes_the_rows_that_follow(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(5))
    got = made("{model: m, batch: 2, inputs: {x: {file: x.npy}}}", facts(("x", "INT16", (1,))), tmp_path)
    assert firsts(got, "<i2") == [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4]]
    assert {(p.tensors[0].shape, p.items) for p in got} == {((2, 1), 2)}
    assert len(got) == 5 // gcd(5, 2)


def test_shuffled_rows_come_each_once_before_any_comes_again(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(100))
    text = "{model: m, inputs: {x: {file: x.npy, order: random}}}"
    got = [row[0] for row in firsts(made(text, facts(("x", "INT16", (1,))), tmp_path, n=250), "<i2")]
    assert sorted(got[:100]) == sorted(got[100:200]) == list(range(100))
    assert got[:100] != list(range(100))
    assert len(set(got[200:])) == 50
    assert got == [row[0] for row in firsts(made(text, facts(("x", "INT16", (1,))), tmp_path, n=250), "<i2")]


def test_jsonl_entries_of_their_own_shapes(tmp_path):
    """Case 6: plain numbers for FP16, per-entry shapes checked against dims -1."""
    jsonl(
        tmp_path / "x.jsonl",
        [[1, 2, 3]],
        {"data": [1, 2, 3, 4, 5, 6], "shape": [2, 3]},
        {"b64": "AAAAPABA", "shape": [1, 3]},
    )
    model = facts(("x", "FP16", (-1, 3)))
    got = made("{model: m, inputs: {x: {file: x.jsonl}}}", model, tmp_path)
    assert [p.tensors[0].shape for p in got] == [(1, 1, 3), (1, 2, 3), (1, 1, 3)]
    assert [p.length for p in got] == [1, 2, 1]
    assert firsts(got, "<f2") == [[1, 2, 3], [1, 2, 3, 4, 5, 6], [0, 1, 2]]
    said = refused("{model: m, batch: 2, inputs: {x: {file: x.jsonl}}}", model, tmp_path)
    assert said == (
        "x.jsonl:2: input 'x' has shape [2, 3], but the first row of its batch (x.jsonl:1) has [1, 3]; "
        "allowed: one shape a batch, or batch: 1"
    )
    jsonl(tmp_path / "x.jsonl", [[1, 2, 3]], {"data": [1, 2], "shape": [1, 2]})
    said = refused("{model: m, inputs: {x: {file: x.jsonl}}}", model, tmp_path)
    assert said == "x.jsonl:2: input 'x': shape [1, 2] given; allowed: [any, 3]"


def test_json_as_other_tools_write_it(tmp_path):
    (tmp_path / "x.json").write_text('{"data": [{"x": {"content": [1, 2], "shape": [2]}}, {"x": [3, 4]}]}')
    got = made("{model: m, inputs: {x: {file: x.json}}}", facts(("x", "INT32", (2,))), tmp_path)
    assert firsts(got, "<i4") == [[1, 2], [3, 4]]


def test_text_lines_are_bytes_of_any_kind(tmp_path):
    """Case 7: not UTF-8, empty, characters of several bytes, 1 MB; counted in bytes."""
    lines = [b"\xff\xfe", b"", "中文🙂".encode(), b"x" * 2**20, b"tab\tand\0zero"]
    (tmp_path / "t.txt").write_bytes(b"\n".join(lines[:2]) + b"\r\n" + b"\n".join(lines[2:]) + b"\n")
    got = made("{model: m, inputs: {t: {file: t.txt}}}", facts(("t", "BYTES", (1,))), tmp_path)
    assert [p.tensors[0].data for p in got] == [struct.pack("<I", len(line)) + line for line in lines]
    assert {p.tensors[0].shape for p in got} == {(1, 1)}


def test_one_string_for_a_row_of_33(tmp_path):
    """Case 1: refused before sending; with shape 1 the batch axis comes by itself."""
    (tmp_path / "t.txt").write_text('{"a": 1}\n')
    model = facts(("x", "BYTES", (1,)))
    wide = "{model: m, inputs: {x: {file: t.txt, shape: [33]}}}"
    assert refused(wide, model, tmp_path) == "t.txt:1: input 'x': 1 value given, shape needs 33"
    assert refused("{model: m, inputs: {x: {file: t.txt}}}", facts(("x", "BYTES", (33,))), tmp_path) == (
        "t.txt:1: input 'x': 1 value given, shape needs 33"
    )
    for batch in (1, 4):
        text = f"{{model: m, batch: {batch}, inputs: {{x: {{file: t.txt, shape: [1]}}}}}}"
        (got,) = made(text, model, tmp_path)
        assert got.tensors[0].shape == (batch, 1)
        assert got.tensors[0].data == b'\x08\0\0\0{"a": 1}' * batch


def test_scalars(tmp_path):
    (tmp_path / "x.jsonl").write_text("3\n\n4\n")
    text = "{model: m, inputs: {x: {file: x.jsonl}}}"
    assert [p.tensors[0].shape for p in made(text, facts(("x", "FP64", ()), most=0), tmp_path)] == [(), ()]
    assert [p.tensors[0].shape for p in made(text, facts(("x", "FP64", (1,))), tmp_path)] == [(1, 1)] * 2
    assert (
        refused(text, facts(("x", "FP64", (2,))), tmp_path)
        == "x.jsonl:1: input 'x': 1 value given, shape needs 2"
    )


def test_joint_rows_stay_together(tmp_path):
    jsonl(tmp_path / "r.jsonl", *({"a": i, "b": f"row {i}", "extra": None} for i in range(50)))
    model = facts(("a", "INT32", (1,)), ("b", "BYTES", (1,)))
    for order in ("file", "random"):
        got = made(f"{{model: m, data: {{file: r.jsonl, order: {order}, ignore: [extra]}}}}", model, tmp_path)
        rows = [
            (int(np.frombuffer(p.tensors[0].data, "<i4")[0]), p.tensors[1].data[4:].decode()) for p in got
        ]
        assert all(text == f"row {number}" for number, text in rows)
        assert sorted(number for number, _ in rows) == list(range(50))
        assert ([number for number, _ in rows] == list(range(50))) == (order == "file")


def test_joint_columns_mapped_and_the_rest_by_law(tmp_path):
    jsonl(tmp_path / "r.jsonl", {"price": 1, "title": "x"}, {"price": 2, "title": "y"})
    model = facts(("a", "FP32", (1,)), ("noise", "FP32", (3,)))
    got = made(
        "{model: m, data: {file: r.jsonl, columns: {a: price}, ignore: [title]}, inputs: {noise: {constant: 7}}}",
        model,
        tmp_path,
    )
    assert firsts(got, "<f4") == [[1], [2]]
    assert got[0].tensors[1].data == np.full(3, 7, "<f4").tobytes()
    given = kind("{model: m, data: {file: r.jsonl, columns: {a: price}, ignore: [title]}}")
    told = read_data(given, model, tmp_path).told(requests=1, batch=1)
    assert told == [{"file": f"{tmp_path}/r.jsonl", "inputs": ["a"], "order": "file", "columns": ["price", "title"],
                     "rows": 2, "rows_built": 1}]  # fmt: skip


def test_texts_become_token_ids_by_the_models_tokenizer(words):
    """Special tokens are in; the tokenizer's own padding and cutting are not: the model's limits count."""
    (words / "t.txt").write_text("one two\nthree\nfour four four four four four\n")
    text = "{model: m, inputs: {input_ids: {file: t.txt, tokenizer: .}}}"
    got = made(text, bert(), words)
    assert firsts(got, "<i8") == [[1, 4, 5, 2], [1, 6, 2], [1, 7, 7, 7, 7, 2]]
    assert [p.length for p in got] == [4, 3, 6]
    assert [np.frombuffer(p.tensors[1].data, "<i8").tolist() for p in got] == [[1] * 4, [1] * 3, [1] * 6]
    assert read_data(kind(text), bert(), words).told(3, 1)[0]["texts_cut"] == 1


def test_a_batch_of_texts_is_padded_and_masked(words):
    (words / "t.txt").write_text("one two\nthree\n")
    text = "{model: m, batch: 2, inputs: {input_ids: {file: t.txt, tokenizer: tokenizer.json}}}"
    ids, mask, types = made(text, bert(pad_token_id="3"), words)[0].tensors
    assert (ids.shape, mask.shape, types.shape) == ((2, 4),) * 3
    assert np.frombuffer(ids.data, "<i8").tolist() == [1, 4, 5, 2, 1, 6, 2, 3]
    assert np.frombuffer(mask.data, "<i8").tolist() == [1, 1, 1, 1, 1, 1, 1, 0]


def test_texts_fill_a_fixed_width(words):
    (words / "t.txt").write_text("one two\n")
    model = facts(
        ("input_ids", "INT32", (5,)), ("attention_mask", "INT32", (5,)), vocab_size="8", max_length="6"
    )
    (got,) = made("{model: m, inputs: {input_ids: {file: t.txt, tokenizer: .}}}", model, words)
    assert np.frombuffer(got.tensors[0].data, "<i4").tolist() == [1, 4, 5, 2, 0]
    assert np.frombuffer(got.tensors[1].data, "<i4").tolist() == [1, 1, 1, 1, 0]


def test_texts_follow_one_another_up_to_a_length(words):
    (words / "t.txt").write_text("one two\nthree\n")
    text = "{model: m, length: {uniform: {min: 2, max: 6}}, inputs: {input_ids: {file: t.txt, tokenizer: .}}}"
    got = made(text, bert(), words, wanted=[Wanted(2), Wanted(6), Wanted(5)])
    assert firsts(got, "<i8") == [[1, 4], [1, 6, 2, 1, 4, 5], [1, 4, 5, 2, 1]]
    assert [p.length for p in got] == [2, 6, 5]


@pytest.mark.parametrize(
    ("files", "text", "model", "says"),
    [
        ({}, "{model: m, inputs: {x: {file: no.npy}}}", facts(("x", "FP32", (1,))), "no.npy: no such file; a profile names files from its own folder"),
        ({"x.npy": "text"}, "{model: m, inputs: {x: {file: x.npy}}}", facts(("x", "FP32", (1,))), "x.npy: no numpy file of numbers or text; allowed: what numpy.save writes (no pickled objects)"),
        ({"x.jsonl": ""}, "{model: m, inputs: {x: {file: x.jsonl}}}", facts(("x", "FP32", (1,))), "x.jsonl: has no rows; allowed: at least one"),
        ({"x.jsonl": "1\n\n[2\n"}, "{model: m, inputs: {x: {file: x.jsonl}}}", facts(("x", "FP32", (1,))), "x.jsonl:3: not JSON: Expecting ',' delimiter at column 3"),
        ({"x.jsonl": '1\n"a"\n'}, "{model: m, inputs: {x: {file: x.jsonl}}}", facts(("x", "FP32", (1,))), "x.jsonl:2: input 'x': 'a' is no FP32; allowed: numbers"),
        ({"x.jsonl": '{"a": 1}\n{"b": 2}\n'}, "{model: m, inputs: {x: {file: x.jsonl}}}", facts(("x", "FP32", (1,))), "x.jsonl: no column 'x'; allowed: a, b"),
        ({"x.jsonl": '{"a": 1}\n5\n'}, "{model: m, inputs: {x: {file: x.jsonl}}}", facts(("x", "FP32", (1,))), "x.jsonl:2: 5; allowed: an object of named columns, as in x.jsonl:1"),
        ({"x.jsonl": "1\n70000\n"}, "{model: m, inputs: {x: {file: x.jsonl}}}", facts(("x", "FP16", (1,))), "x.jsonl:2: input 'x': 70000 is beyond FP16; allowed: -65504 to 65504"),
        ({"x.json": "5"}, "{model: m, inputs: {x: {file: x.json}}}", facts(("x", "FP16", (1,))), 'x.json: 5; allowed: a list of rows, or {"data": [rows]}'),
        ({"r.jsonl": '{"a": 1}\n'}, "{model: m, data: {file: r.jsonl}}", facts(("x", "FP32", (1,))), "r.jsonl: no column bears the name of an input of model 'm' (x); its columns: a; map them: data: {columns: {INPUT: COLUMN}}"),
        ({"r.jsonl": '{"a": 1}\n'}, "{model: m, data: {file: r.jsonl, columns: {y: a}}}", facts(("x", "FP32", (1,))), "kind 'k', model 'm': data: no input 'y'; allowed: x"),
        ({"r.jsonl": '{"x": 1}\n'}, "{model: m, data: {file: r.jsonl}, inputs: {x: {constant: 1}}}", facts(("x", "FP32", (1,))), "kind 'k', model 'm': data: input 'x' is filled by inputs too; take one out"),
        ({"t.txt": "one\n"}, "{model: m, inputs: {input_ids: {file: t.txt}}}", bert(), "t.txt:1: input 'input_ids' is text, and the input takes token ids; add tokenizer: the folder of the model's tokenizer.json"),
        ({"t.txt": "one\n"}, "{model: m, inputs: {input_ids: {file: t.txt, tokenizer: .}}}", bert(vocab_size="3"), "t.txt:1: input 'input_ids': 4 leaves the vocabulary; allowed: 0 to 2; is it the model's own tokenizer?"),
        ({"t.txt": "one\n"}, "{model: m, inputs: {input_ids: {file: t.txt, tokenizer: gone.json}}}", bert(), "gone.json: no such file; allowed: a tokenizer.json or the folder that holds one"),
        ({"t.txt": "one\n", "bad.json": "{}"}, "{model: m, inputs: {input_ids: {file: t.txt, tokenizer: bad.json}}}", bert(), "bad.json: no tokenizer that can be read: "),
        ({"x.jsonl": "[1, 2]\n[1, 8]\n"}, "{model: m, inputs: {input_ids: {file: x.jsonl}}}", bert(), "x.jsonl:2: input 'input_ids': 8 leaves the vocabulary; allowed: 0 to 7"),
        ({"x.jsonl": "[1, 2, 3, 4, 5, 6, 7]\n"}, "{model: m, inputs: {input_ids: {file: x.jsonl}}}", bert(), "x.jsonl:1: input 'input_ids': 7 tokens; the model takes at most 6"),
        ({"x.jsonl": "[1, 2]\n"}, "{model: m, length: 4, inputs: {input_ids: {file: x.jsonl}}}", bert(), "kind 'k', model 'm': has a length, but the rows of input 'input_ids' have their own; take length out"),
        ({"t.txt": "one\n"}, "{model: m, inputs: {y: {file: t.txt}}}", facts(("x", "BYTES", (1,))), "kind 'k', model 'm': no input 'y'; allowed: x"),
    ],
)  # fmt: skip
def test_refused_before_anything_is_sent(words, files, text, model, says):
    for name, content in files.items():
        (words / name).write_text(content)
    assert refused(text, model, words).startswith(says)


def test_files_that_nobody_read_are_never_replaced_by_random_values():
    for text in ("{model: m, inputs: {x: {file: x.npy}}}", "{model: m, data: {file: x.npy}}"):
        with pytest.raises(LoadgenError, match="its files were not read"):
            build(kind(text), facts(("x", "FP32", (1,))), [Wanted(None)], pool_rng(1, "k"))


def test_pickled_arrays_are_not_opened(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object))
    said = refused("{model: m, inputs: {x: {file: x.npy}}}", facts(("x", "FP32", (1,))), tmp_path)
    assert said.endswith("(no pickled objects)")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{model: m, inputs: {x: {file: x.csv}}}", "kinds.k.inputs.x.file: 'x.csv' is no file of rows; allowed: .npy, .npz, .json, .jsonl, .txt"),
        ("{model: m, inputs: {x: {file: a.npy, constant: 1}}}", "takes one of integers, uniform, normal, text, constant, file; given: constant and file"),
        ("{model: m, inputs: {x: {constant: 1, order: random}}}", "order goes with file only"),
        ("{model: m, inputs: {x: {file: a.npy, order: shuffled}}}", "'shuffled' is not one of: file, random"),
        ("{model: m, data: {column: x}}", "unknown key (did you mean 'columns'?)"),
    ],
)  # fmt: skip
def test_refused_by_the_profile(text, says):
    with pytest.raises(ProfileError) as caught:
        kind(text)
    assert says in str(caught.value)


OPT = facts(("x", "FP32", (2,)), ("bias", "FP32", (1,), True), ("mode", "BYTES", (1,), True))


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_each_row_brings_its_own_set_of_optional_inputs(tmp_path, form):
    rows = [{"x": [1, 2]}, {"x": [3, 4], "bias": [5]}, {"mode": ["fast"], "x": [5, 6]}, {"x": [7, 8]}]
    if form == "json":
        (tmp_path / "d.json").write_text(json.dumps({"data": rows}))
    else:
        jsonl(tmp_path / "d.jsonl", *rows)
    got = made(f"{{model: m, data: {{file: d.{form}}}}}", OPT, tmp_path)
    assert [names(p) for p in got] == [["x"], ["x", "bias"], ["x", "mode"], ["x"]]
    assert firsts(got, "<f4") == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert np.frombuffer(got[1].tensors[1].data, "<f4").tolist() == [5]
    assert got[2].tensors[1].data == b"\4\0\0\0fast"
    told = read_data(kind(f"{{model: m, data: {{file: d.{form}}}}}"), OPT, tmp_path).told(4, 1)
    assert told[0]["rows_without"] == {"bias": 3, "mode": 3}


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sets(st.sampled_from(["bias", "mode"])), min_size=1, max_size=12), st.data())
def test_any_mix_of_optional_inputs_is_sent_as_written(tmp_path, sets, data):
    values = {"bias": [1.5], "mode": ["m"], "x": [1, 2]}
    rows = [
        {name: values[name] for name in data.draw(st.permutations(["x", *sorted(chosen)]))} for chosen in sets
    ]
    jsonl(tmp_path / "d.jsonl", *rows)
    got = made("{model: m, data: {file: d.jsonl}}", OPT, tmp_path, n=len(rows))
    assert [set(names(p)) for p in got] == [set(row) for row in rows]


@pytest.mark.parametrize(
    ("rows", "text", "says"),
    [
        ([{"x": [1, 2]}, {"bias": [5]}], "{model: m, data: {file: d.jsonl}}", "d.jsonl:2: input 'x' is missing in this row"),
        ([{"x": [1, 2]}, {"x": [3, 4], "bais": [5]}], "{model: m, data: {file: d.jsonl}}", "d.jsonl:2: column 'bais' fills no input of model 'm' (did you mean 'bias'?)"),
        ([{"x": [1, 2], "bias": [1]}, {"x": [3, 4], "bias": None}], "{model: m, data: {file: d.jsonl}}", "d.jsonl:2: input 'bias' is null"),
        ([{"x": [1, 2], "bias": [1]}, {"x": [3, 4]}], "{model: m, batch: 2, data: {file: d.jsonl}}", "d.jsonl:2: input 'bias' is missing, but another row of its batch (d.jsonl:1) has it"),
        ([{"x": [1, 2]}], "{model: m, data: {file: d.jsonl, ignore: [label]}}", "d.jsonl: data.ignore: no column 'label'"),
        ([{"x": [1, 2]}], "{model: m, data: {file: d.jsonl, tokenizer: t.json}}", "d.jsonl: tokenizer 't.json' has nothing to do"),
    ],
)  # fmt: skip
def test_a_row_that_lacks_or_brings_too_much_is_named(tmp_path, rows, text, says):
    jsonl(tmp_path / "d.jsonl", *rows)
    assert refused(text, OPT, tmp_path).startswith(says)


def test_tokens_come_and_go_by_row(words):
    jsonl(words / "d.jsonl", {"x": 1}, {"x": 2, "input_ids": "one two"}, {"x": 3})
    model = facts(("x", "FP32", (1,)), ("input_ids", "INT64", (-1,), True), vocab_size="8", max_length="6")
    got = made("{model: m, data: {file: d.jsonl, tokenizer: .}}", model, words)
    assert [names(p) for p in got] == [["x"], ["x", "input_ids"], ["x"]]
    assert np.frombuffer(got[1].tensors[1].data, "<i8").tolist() == [1, 4, 5, 2]


def test_an_input_may_be_called_data(tmp_path):
    jsonl(tmp_path / "d.jsonl", {"data": [1, 2]}, {"data": [3, 4], "mask": [1]})
    model = facts(("data", "FP32", (2,)), ("mask", "INT32", (1,), True))
    got = made("{model: m, data: {file: d.jsonl}}", model, tmp_path)
    assert [names(p) for p in got] == [["data"], ["data", "mask"]]


def test_texts_of_one_number_a_row_keep_their_zero_bytes_or_are_refused(tmp_path):
    """A row of a list of numpy texts is a scalar, which numpy cuts by itself."""
    np.save(tmp_path / "s.npy", np.array([b"abc", b"a\0\0"]))
    np.save(tmp_path / "v.npy", np.array([b"abc", b"a\0\0"]).view("V3"))
    model = facts(("t", "BYTES", (1,)))
    assert refused("{model: m, inputs: {t: {file: s.npy}}}", model, tmp_path).startswith(
        "s.npy: row 2: input 't'"
    )
    got = made("{model: m, inputs: {t: {file: v.npy}}}", model, tmp_path)
    assert [p.tensors[0].data for p in got] == [b"\3\0\0\0abc", b"\3\0\0\0a\0\0"]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5), st.booleans())
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whole_numbers_of_64_bits_come_through_json_digit_by_digit(tmp_path, values, real):
    text = ", ".join(f"{value}.0" if real else str(value) for value in values)
    (tmp_path / "x.json").write_text(f"[[{text}]]")
    (got,) = made("{model: m, inputs: {x: {file: x.json}}}", facts(("x", "INT64", (len(values),))), tmp_path)
    assert np.frombuffer(got.tensors[0].data, "<i8").tolist() == values


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.jsonl", b'{"x": 1}\n{"x": 2, "x": 3}\n', "x.jsonl:2: the key 'x' is given twice"),
        ("x.json", b'{"data": [{"x": 1}], "validation_data": [{"y": 1}]}', "x.json: the key 'validation_data' is not read"),
        ("x.json", b'{"data": [{"x": {"content": [1], "shape": [1], "dtype": "FP32"}}]}', "x.json: row 1: input 'x': keys content, shape, dtype"),
        ("x.json", b'{"data": [[{"x": 1}, {"x": 2}], [{"x": 3}]]}', "x.json: row 1: a list of rows in place of a row"),
        ("x.jsonl", b'{"x": 1}\n{"x": 1e400}\n', "x.jsonl:2: the number 1e400 is beyond FP64"),
        ("x.jsonl", '{"x": 1}\n'.encode("utf-16"), "x.jsonl: is UTF-16"),
        ("x.json", '[{"x": 1}]'.encode("utf-16"), "x.json: is UTF-16"),
        ("x.jsonl", b'{"x": 1}\r{"x": 2}\r', "x.jsonl: its lines end with CR alone"),
        ("x.txt", "1\n2\n".encode("utf-16"), "x.txt: is UTF-16"),
        ("x.txt", b"1\r2\r", "x.txt: its lines end with CR alone"),
        ("x.npy", np.array([(1.0,)], "f4,"), "x.npy: has rows of named fields (f0)"),
    ],
)  # fmt: skip
def test_files_that_would_lose_something_are_refused(tmp_path, name, content, says):
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        np.save(tmp_path / name, content)
    where = f"inputs: {{x: {{file: {name}}}}}" if name.endswith(("txt", "npy")) else f"data: {{file: {name}}}"
    assert refused(f"{{model: m, {where}}}", facts(("x", "FP32", (1,))), tmp_path).startswith(says)


@pytest.mark.parametrize("suffix", ["npy", "npz"])
@pytest.mark.parametrize(
    ("array", "told", "says"),
    [
        (np.array([[1.0, 2.0]] * 600_000 + [[3.0, 1e39]]), ("x", "FP32", (2,)), "row 600001: input 'x': 1e+39 is beyond FP32"),
        (np.array([1.0, 2.5]), ("x", "INT32", (1,)), "row 2: input 'x': 2.5 is no whole number, as INT32 needs"),
        (np.array([[[1, 1], [1, 1]], [[1, 2], [1, 1]]]), ("x", "BOOL", (4,)), "row 1: input 'x': shape"),
        (np.array([[1, 1, 1, 1], [1, 2, 1, 1]]), ("x", "BOOL", (2, 2)), "row 2: input 'x': 2 is no BOOL"),
        (np.array([[1, 2], [3, 999]]), ("input_ids", "INT64", (-1,)), "row 2: input 'input_ids': 999 leaves the vocabulary"),
        (np.array([b"a", b"b\0c", b"cd"], "S3"), ("x", "BYTES", (1,)), "row 1: input 'x': numpy type S3 pads"),
        (np.array(["a", "\ud800"]), ("x", "BYTES", (1,)), "row 2: input 'x': '\\ud800' is half a character"),
    ],
)  # fmt: skip
def test_every_row_of_an_array_is_checked_before_anything_is_sent(tmp_path, suffix, array, told, says):
    file = tmp_path / f"a.{suffix}"
    if suffix == "npz":
        np.savez(file, **{told[0]: array})
    else:
        np.save(file, array)
    with pytest.raises(LoadgenError) as caught:
        read_data(
            kind(f"{{model: m, inputs: {{{told[0]}: {{file: a.{suffix}}}}}}}"),
            facts(told, vocab_size="100"),
            tmp_path,
        )
    assert str(caught.value).startswith(f"{file}: {says}")


_LINES = st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=6)


@given(_LINES, st.booleans())
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_texts_written_as_jsonl_come_back_whole(tmp_path, texts, ascii_only):
    whole = "".join(json.dumps(text, ensure_ascii=ascii_only) + "\n" for text in texts)
    (tmp_path / "t.jsonl").write_bytes(whole.encode())
    got = made("{model: m, inputs: {t: {file: t.jsonl}}}", facts(("t", "BYTES", (1,))), tmp_path)
    assert [p.tensors[0].data[4:].decode() for p in got] == texts
