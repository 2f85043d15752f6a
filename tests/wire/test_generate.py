"""Triton's generate extension: requests, streamed and whole answers."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from sse_bodies import body, cuttings

from loadgen.records import LoadgenError
from loadgen.wire.generate import GenerateReader, GenerateWhole, generate_request


def part(text, **fields):
    return {"model_name": "llm", "model_version": "1", "text_output": text, **fields}


# name: (body, complete, (outcome, detail, text, chunks, tokens out, source))
ANSWERS = {
    "plain": (body(part("Good"), part(" day"), part("")), True, ("OK", None, "Good day", 2, 2, "chunks")),
    "tokens without text": (body(part(""), part("Good"), part(""), part(" day"), part(""), part("")), True,
                            ("OK", None, "Good day", 5, 5, "chunks")),
    "a reason at the end": (body(part("Good"), part(" day", finish_reason="None"), part("", finish_reason="stop")), True,
                            ("OK", None, "Good day", 2, 2, "chunks")),
    "given up": (body(part("x"), part("", finish_reason="abort")), True,
                 ("HTTP_5XX", "the server ended the answer with finish_reason abort", "x", 1, 1, "chunks")),
    "lists": (body(part(["Good"]), part([" d", "ay"]), part([])), True, ("OK", None, "Good day", 2, 2, "chunks")),
    "numbers": (body(part(0), part(1)), True, ("OK", None, "01", 2, 2, "chunks")),
    "escapes": (body(part("a"), part('"\\'), part("é🙂")), True, ("OK", None, 'a"\\é🙂', 3, 3, "chunks")),
    "broken off": (body(part("x")), False, ("STREAM_ENDED_EARLY", "the stream broke off", "x", 1, 1, "chunks")),
    "error": (body(part("x"), {"error": "out of blocks"}), True,
              ("HTTP_5XX", "error inside the stream: out of blocks", "x", 1, 1, "chunks")),
    "nothing": (body(part("")), True, ("PROTOCOL", "an answer without a single token", "", 0, -1, "")),
    "another output": (body({"OUT": "x"}), True, ("PROTOCOL", "an answer without a single token", "", 0, -1, "")),
    "a JSON error": (b'{"error":"unknown model"}', True,
                     ("HTTP_5XX", 'error where a stream was asked: {"error":"unknown model"}', "", 0, -1, "")),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_a_streamed_answer_in_any_cutting(name):
    data, complete, told = ANSWERS[name]
    for pieces in cuttings(data):
        reader = GenerateReader(keep_text=True)
        for at, piece in enumerate(pieces):
            reader.feed(piece, at + 1)
        outcome, detail = reader.end(complete=complete)
        came = reader.streamed()
        assert (outcome.name, detail, came.text, len(came.chunk_ns), came.tokens_out, came.source) == told


def test_a_request():
    request = generate_request("a/b", "2", "hi", max_tokens=9, max_tokens_key="parameters.max_tokens",
                               extra={"parameters": {"stream": True, "temperature": 0}})  # fmt: skip
    assert request.path == "v2/models/a%2Fb/versions/2/generate_stream"
    assert json.loads(request.body) == {
        "text_input": "hi", "parameters": {"stream": True, "temperature": 0, "max_tokens": 9}}  # fmt: skip
    assert isinstance(request.reader(), GenerateReader)


def test_a_request_that_is_not_streamed_with_names_of_its_own():
    request = generate_request(
        "m", "", "hi", stream=False, text_input="PROMPT", text_output="OUT", max_tokens=9
    )
    assert request.path == "v2/models/m/generate"
    assert json.loads(request.body) == {"PROMPT": "hi", "max_tokens": 9}
    reader = request.reader()
    assert isinstance(reader, GenerateWhole)
    reader.feed(b'{"OUT": "x"}', 5)
    assert reader.end(complete=True)[0].name == "OK"
    assert reader.streamed().chunk_ns == []


def test_a_request_leaves_extra_as_it_was():
    extra = {"parameters": {}}
    generate_request("m", "", "hi", max_tokens=9, max_tokens_key="parameters.max_tokens", extra=extra)
    assert extra == {"parameters": {}}
    with pytest.raises(LoadgenError, match=r"parameters\.max_tokens: parameters is no object in extra"):
        generate_request(
            "m", "", "hi", max_tokens=9, max_tokens_key="parameters.max_tokens", extra={"parameters": 1}
        )


def test_what_a_request_says_of_the_answers_length_goes_with_the_answer():
    told = {"max_tokens": 9, "max_tokens_key": "parameters.max_tokens"}
    for extra, limits in (
        ({}, (9, -1)),
        ({"parameters": {"ignore_eos": True}}, (9, 9)),
        ({"min_length": 9}, (9, 9)),
    ):
        came = generate_request("m", "", "hi", extra=extra, **told).reader().streamed()
        assert (came.max_tokens, came.min_tokens) == limits


def test_a_whole_answer_that_was_given_up():
    reader = GenerateWhole()
    reader.feed(b'{"text_output": "x", "finish_reason": "timeout"}', 5)
    assert reader.end(complete=True)[0].name == "HTTP_5XX"
