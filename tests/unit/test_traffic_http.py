"""Requests to any HTTP server as a profile writes them: what is taken, what is refused and in which words."""

import pytest
from pydantic import ValidationError

from loadgen.traffic.document import Document
from loadgen.traffic.http_request import HttpRequest, parse_path, variables
from loadgen.traffic.problems import problems


def faults(**over):
    """The problems of a request, one line each."""
    with pytest.raises(ValidationError) as caught:
        HttpRequest.model_validate({"path": "/predict", **over})
    return problems(caught.value, HttpRequest, Document(None), "p")


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("$", ()),
        ("$.predictions[0].score", ("predictions", 0, "score")),
        ("predictions[-1]", ("predictions", -1)),
        ("$[2]['a.b'][\"c[0]\"]", (2, "a.b", "c[0]")),
        ("$.模型.x-y z", ("模型", "x-y z")),
    ],
)
def test_a_path_into_json(path, steps):
    assert parse_path(path) == steps


@pytest.mark.parametrize("path", ["$.", "$..a", "$[a]", "$[0", "a..b", "$.a[*]", "$a"])
def test_what_is_no_path_is_refused(path):
    [line] = faults(success={"json": {"path": path}})
    assert "is no path into JSON" in line
    assert "write e.g. $.predictions[0].score" in line


def test_variables_are_found_anywhere_but_not_in_doubled_braces():
    assert variables({"{a}": ["x{b}y", 1, {"k": "{{c}}"}], "t": '{"d": {e}}'}) == {"a", "b", "e"}


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"json": {"x": "{lenght}"}}, "p: json: no variable {lenght} (did you mean 'length'?); allowed: text, length"),
        ({"path": "/{q}"}, "p: path: no variable {q}"),
        ({"text": "a", "json": {}}, "takes one of json, text, binary, form; given: json and text"),
        ({"headers": {"Authorization": "Bearer x"}}, "headers.Authorization: credentials do not belong in a profile"),
        ({"headers": {"Content-Length": "3"}}, "headers.Content-Length: not a header that can be set"),
        ({"headers": {"a b": "3"}}, "headers.a b: not a header that can be set"),
        ({"method": "get"}, "method: 'get' is not one of: GET, POST"),
        ({"values": {"x": {"choice": ["a"]}}, "json": {}}, "values.x: the request does not use {x}"),
        ({"values": {"x": {}}}, "needs exactly one of integers, uniform, normal, text, choice, lines; given: none"),
        ({"values": {"x": {"choice": ["a"], "shape": [2]}}}, "a shape goes with integers, uniform or normal, not with choice"),
        ({"values": {"text": {"choice": ["a"]}}}, "values.text: is no name for a value"),
        ({"values": {"a-b": {"choice": ["a"]}}}, "values.a-b: is no name for a value"),
        ({"values": {"x": {"integers": {"min": -1, "max": 2**63}}}}, "spans more than 64 bits"),
        ({"binary": {}}, "needs exactly one of files, tensor, bytes; given: none"),
        ({"binary": {"tensor": {"datatype": "FP8", "shape": [1]}}}, "datatype: 'FP8' is not one of: BOOL"),
        ({"form": {}}, "form: is empty; give it fields or files"),
        ({"success": {"status": [99]}}, "99 is no status; allowed: 100 to 599, or a range such as 200-204"),
        ({"success": {"status": "204-200"}}, "'204-200' is no status"),
        ({"success": {"json": {"path": "$.a", "exists": False, "min": 1}}}, "exists: false and min cannot both be"),
        ({"success": {"json": {"path": "$.a", "matches": "("}}}, "is no regular expression"),
        ({"json": {"x": float("nan")}}, "nan has no JSON form"),
        ({"json": {"x": None}}, 'null is written "{null}" here'),
        ({"ready": {}}, "ready.path: is missing; write e.g. path: /health"),
    ],
)  # fmt: skip
def test_what_is_refused_and_how(over, said):
    lines = faults(**over)
    assert any(said in line for line in lines), lines


def test_lengths_and_what_uses_them_go_together():
    def said(length, output, **over):
        http = HttpRequest.model_validate({"path": "/", **over})
        return [text for _, text in http.length_faults(length=length, output=output)]

    assert said(True, True, json={"t": "{text}", "n": "{output}"}) == []
    assert said(False, False, json={"t": "fixed"}) == []
    shape = {"values": {"x": {"normal": {"mean": 0, "sd": 1}, "shape": [2, "length"]}}}
    assert said(True, False, json="{x}", **shape) == []
    assert said(True, False, binary={"tensor": {"datatype": "FP32", "shape": ["length"]}}) == []
    assert "take length out" in said(True, False, json={"t": "fixed"})[0]
    assert "give the kind one, e.g. length: 32" in said(False, False, text="{text}")[0]
    assert "give the kind one, e.g. output: 64" in said(False, False, path="/{output}")[0]
    assert "take output out" in said(False, True)[0]
