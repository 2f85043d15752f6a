"""Requests to any HTTP server: bodies, variables, files, and the judging of answers."""

import io
import json
from email import message_from_bytes
from pathlib import Path
from urllib.parse import parse_qs

import numpy as np
import pytest

from loadgen.records import LoadgenError, Wanted
from loadgen.traffic.http_request import HttpRequest
from loadgen.workload.http_answer import judge_of
from loadgen.workload.http_body import build, most_variants
from loadgen.workload.words import text_of_bytes, words

ONE = (Wanted(None),)


def made(wanted=ONE, folder=Path(), seed=1, **http):
    http = HttpRequest.model_validate({"path": "/predict", **http})
    return build("k", http, list(wanted), np.random.default_rng(seed), folder)


def test_a_json_template_keeps_types():
    values = {
        "pixels": {"uniform": {"min": -1, "max": 1}, "shape": [2, "length"]},
        "seed": {"integers": {"min": 5, "max": 7}},
        "topic": {"choice": ["a", ["b", 1], True]},
        "big": {"integers": {"min": 2**63, "max": 2**64 - 1}},
    }
    template = {"t": "{text}", "n": "{length}", "out": "{output}", "none": "{null}", "p": "{pixels}", "s": "{seed}",
                "topic": "{topic}", "big": "{big}", "mixed": "{id}: {seed} of {topic}", "kept": ["{{text}}", 1.5, True],
                "{id}": {}}  # fmt: skip
    messages = made([Wanted(3, 9), Wanted(4, 1)], json=template, values=values)
    for number, (message, length) in enumerate(zip(messages, (3, 4), strict=True)):
        data = json.loads(message.request.body)
        assert len(data["t"].split(" ")) == length
        assert (data["n"], data["out"], data["none"]) == (length, (9, 1)[number], None)
        assert np.array(data["p"]).shape == (2, length)
        assert (np.abs(data["p"]) <= 1).all()
        assert type(data["s"]) is int
        assert 5 <= data["s"] <= 7
        assert data["topic"] in ("a", ["b", 1], True)
        assert 2**63 <= data["big"] < 2**64
        shown = data["topic"] if isinstance(data["topic"], str) else json.dumps(data["topic"])
        assert data["mixed"] == f"k-{number}: {data['s']} of {shown}"
        assert data["kept"] == ["{text}", 1.5, True]
        assert data[f"k-{number}"] == {}
        assert message.length == length
        assert dict(message.request.headers)["Content-Type"] == "application/json"
    assert messages[0].request.body != messages[1].request.body


def test_equal_seeds_give_equal_bytes_and_others_differ():
    one = {"json": {"t": "{text}"}}
    assert made([Wanted(8)] * 4, **one) == made([Wanted(8)] * 4, **one)
    assert made([Wanted(8)] * 4, **one) != made([Wanted(8)] * 4, seed=2, **one)
    bodies = {message.request.body for message in made([Wanted(8)] * 50, **one)}
    assert len(bodies) == 50


def test_path_and_headers_take_variables_and_are_escaped():
    [message] = made(
        method="GET", path="/v1/é b/{topic}?q={topic}&a=%20", headers={"X-Id": "{id}", "accept": "text/plain"},
        values={"topic": {"choice": ["a/b&c é"]}},
    )  # fmt: skip
    assert message.request.path == "/v1/%C3%A9%20b/a%2Fb%26c%20%C3%A9?q=a%2Fb%26c%20%C3%A9&a=%20"
    assert message.request.headers == (("X-Id", "k-0"), ("accept", "text/plain"))
    assert (message.request.method, message.request.body, message.request.judge) == ("GET", b"", None)


def test_a_content_type_of_ones_own_replaces_ours():
    [message] = made(json={}, headers={"content-type": "application/vnd.x+json"})
    assert message.request.headers == (("content-type", "application/vnd.x+json"),)


def test_text_bodies_and_units():
    [message] = made([Wanted(11)], text='{"inputs": {"x": "{text}"}}', unit="bytes")
    assert len(json.loads(message.request.body)["inputs"]["x"]) == 11
    assert dict(message.request.headers)["Content-Type"] == "text/plain; charset=utf-8"
    rng = np.random.default_rng(0)
    for size in [1, 2, 3, 10, 1000]:
        assert len(words(rng, size).split(" ")) == size
        for _ in range(50):
            text = text_of_bytes(rng, size)
            assert len(text.encode()) == size
            assert text == text.strip()


def test_tensors_as_bytes():
    raw = {"datatype": "INT16", "shape": [2, "length"], "integers": {"min": -3, "max": 3}}
    [message] = made([Wanted(5)], binary={"tensor": raw})
    values = np.frombuffer(message.request.body, "<i2")
    assert values.shape == (10,)
    assert set(values.tolist()) <= set(range(-3, 4))
    assert dict(message.request.headers)["Content-Type"] == "application/octet-stream"
    npy = {"datatype": "FP32", "shape": [3, 4], "uniform": {"min": 2, "max": 3}, "as": "npy"}
    [message] = made(binary={"tensor": npy, "type": "application/x-npy"})
    array = np.load(io.BytesIO(message.request.body))
    assert (array.shape, array.dtype) == ((3, 4), np.dtype("<f4"))
    assert ((array >= 2) & (array <= 3)).all()
    assert dict(message.request.headers)["Content-Type"] == "application/x-npy"
    [message] = made(binary={"bytes": {"min": 7, "max": 7}})
    assert len(message.request.body) == 7


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8 one")
    (tmp_path / "b.jpg").write_bytes(b"\xff\xd8\r\n--two")
    (tmp_path / "q.txt").write_bytes("\ufeffwhat?\r\n\r\n  wo 模型\nlast".encode())
    return tmp_path


def test_files_take_turns(folder):
    messages = made([Wanted(None)] * 3, folder, binary={"files": ["a.jpg", "b.jpg"], "type": "image/jpeg"})
    assert [m.request.body for m in messages] == [b"\xff\xd8 one", b"\xff\xd8\r\n--two", b"\xff\xd8 one"]
    messages = made([Wanted(None)] * 4, folder, json="{q}", values={"q": {"lines": "q.txt"}})
    assert [json.loads(m.request.body) for m in messages] == ["what?", "  wo 模型", "last", "what?"]


def test_forms(folder):
    [message] = made(form={"fields": {"a": "{id}&=é", "b": ""}})
    assert dict(message.request.headers)["Content-Type"] == "application/x-www-form-urlencoded"
    assert parse_qs(message.request.body.decode(), keep_blank_values=True) == {"a": ["k-0&=é"], "b": [""]}
    files = {'im"age': {"files": ["b.jpg"], "type": "image/jpeg"},
             "x": {"tensor": {"datatype": "UINT8", "shape": [3], "integers": {"min": 1, "max": 1}}}}  # fmt: skip
    [message] = made(folder=folder, form={"fields": {"caption": "é {id}"}, "files": files})
    head = f"Content-Type: {dict(message.request.headers)['Content-Type']}\r\n\r\n".encode()
    parts = message_from_bytes(head + message.request.body).get_payload()
    told = [
        (p.get_param("name", header="content-disposition"), p.get_filename(), p.get_payload(decode=True))
        for p in parts
    ]
    assert told == [
        ("caption", None, "é k-0".encode()),
        ("im%22age", "b.jpg", b"\xff\xd8\r\n--two"),
        ("x", "tensor.bin", b"\1\1\1"),
    ]
    assert [part.get_content_type() for part in parts] == [
        "text/plain",
        "image/jpeg",
        "application/octet-stream",
    ]


@pytest.mark.parametrize(
    ("http", "said"),
    [
        ({"binary": {"files": ["none.jpg"]}}, "none.jpg cannot be read: No such file or directory"),
        ({"json": "{q}", "values": {"q": {"lines": "a.jpg"}}}, "a.jpg: not UTF-8 text (byte 0)"),
        ({"json": "{q}", "values": {"q": {"lines": "cr.txt"}}}, "cr.txt: its lines end with CR alone"),
        ({"json": "{q}", "values": {"q": {"lines": "blank.txt"}}}, "blank.txt has no line that is not empty"),
    ],
)
def test_files_that_cannot_be_used_are_named(folder, http, said):
    (folder / "cr.txt").write_bytes(b"a\rb\r")
    (folder / "blank.txt").write_text("\n\n")
    with pytest.raises(LoadgenError) as caught:
        made(folder=folder, **http)
    assert said in str(caught.value)
    assert str(caught.value).startswith("kind 'k': ")


def test_as_many_variants_as_are_worth_building(folder):
    def most(longest=None, **http):
        return most_variants(HttpRequest.model_validate({"path": "/", **http}), Wanted(longest), folder)

    assert most(json={"fixed": 1}) == 1
    assert most(binary={"files": ["a.jpg"]}) == 1
    assert most(binary={"files": ["a.jpg", "b.jpg"]}) == 512
    assert most(5, json="{text}") == 512
    assert most(json="{x}", values={"x": {"uniform": {"min": 0, "max": 1}, "shape": [3, 100, 100]}}) < 300
    assert most(binary={"bytes": {"min": 1, "max": 10**7}}) >= 8


def judge(body, code=200, **success):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    [message] = made(success=success)
    return message.request.judge(code, {}, data)


ANSWER = {"predictions": [0.25, "cat", None, True, 1], "status": "ok", "n": 3}


@pytest.mark.parametrize(
    "condition",
    [
        {"path": "$.predictions[0]"},
        {"path": "$.predictions[2]"},  # null is there
        {"path": "$.predictions[2]", "equals": "{null}"},
        {"path": "$.predictions[-1]", "equals": 1},
        {"path": "$.predictions[0]", "min": 0, "max": 0.25},
        {"path": "$.status", "equals": "ok"},
        {"path": "status", "matches": "^o"},
        {"path": "$.error", "exists": False},
        {"path": "$", "exists": True},
        {"path": "$.predictions", "matches": "cat"},
        [{"path": "$.n", "equals": 3}, {"path": "$.status"}],
    ],
)
def test_an_answer_that_fits(condition):
    assert judge(ANSWER, json=condition) is None


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ({"path": "$.predictions[9]"}, 'no $.predictions[9] in the answer: {"predictions": [0.25'),
        ({"path": "$.predictions.x"}, "no $.predictions.x in the answer"),
        ({"path": "$[0]"}, "no $[0] in the answer"),
        ({"path": "$.predictions[0]", "min": 0.5}, "$.predictions[0] is 0.25, wanted 0.5 or more"),
        ({"path": "$.n", "max": 2}, "$.n is 3, wanted 2 or less"),
        ({"path": "$.status", "min": 0}, '$.status is "ok", wanted 0 or more'),
        ({"path": "$.status", "equals": "done"}, '$.status is "ok", wanted "done"'),
        ({"path": "$.predictions[3]", "equals": 1}, "$.predictions[3] is true, wanted 1"),
        ({"path": "$.predictions[3]", "max": 5}, "$.predictions[3] is true, wanted 5 or less"),
        ({"path": "$.status", "exists": False}, '$.status is "ok", wanted none'),
        ({"path": "$.status", "matches": "no"}, '$.status is "ok", wanted a match of no'),
        ([{"path": "$.n"}, {"path": "$.m"}], "no $.m in the answer"),
    ],
)
def test_what_was_found_instead_is_said(condition, said):
    assert judge(ANSWER, json=condition).startswith(said)


@pytest.mark.parametrize(
    ("number", "said"),
    [("-0.7312", "about -0.73"), ("12345", "about 12000"), ("45", "45"), ("-3", "-3"), ("1e400", "a number beyond 1e+300"),
     ("9" * 400, "a number beyond 1e+300"), ("NaN", "NaN")],
)  # fmt: skip
def test_which_number_it_was_is_said_to_two_digits(number, said):
    told = judge(b'{"score": %s}' % number.encode(), json={"path": "$.score", "equals": 0})
    assert told == f"$.score is {said}, wanted 0"


def test_statuses_and_answers_that_are_no_json():
    assert judge(b"", 204, status=[200, "202-204"]) is None
    assert judge(b"busy\nnow", 201, status=[200, "202-204"]) == "status 201, wanted 200, 202-204: busy now"
    assert judge(b"", 500, json={"path": "$"}) == "status 500, wanted 200-299: it is empty"
    assert judge(b"<html>\n" + b"x" * 999, json={"path": "$.a"}).startswith(
        "the answer is no JSON: <html> xxx"
    )
    assert len(judge(b"<html>\n" + b"x" * 999, json={"path": "$.a"})) < 200
    assert judge(b"[" * 100_000, json={"path": "$.a"}).startswith("the answer is no JSON: [[[")
    assert (
        judge_of(HttpRequest.model_validate({"path": "/"}).success) is None
    )  # left to the status: costs nothing
