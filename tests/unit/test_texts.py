"""`chat:`, `completion:` and `generate:` of a profile, and the requests that come of them."""

import json

import numpy as np
import pytest
from pydantic import ValidationError

from loadgen.lab.texts import build_texts, later_turns, prompt_count, prompt_remarks, text_facts
from loadgen.records import LoadgenError, Wanted
from loadgen.traffic.chat import Chat, Completion, Generate, Prompts


def build(part, *wanted, folder=None, **options):
    messages = build_texts("m", "", part, wanted, np.random.default_rng(3), folder, **options)
    return messages, [json.loads(message.request.body) for message in messages]


def test_a_chat():
    part = Chat(
        system="Be brief.",
        temperature=0,
        ignore_eos=True,
        extra={"top_p": 0.5},
        max_tokens_key="max_completion_tokens",
    )
    messages, bodies = build(part, Wanted(5, 7), Wanted(3, None))
    assert [message.length for message in messages] == [5, 3]
    assert [body.get("max_completion_tokens") for body in bodies] == [7, None]
    for body, length in zip(bodies, (5, 3), strict=True):
        system, user = body["messages"]
        assert system == {"role": "system", "content": "Be brief."}
        assert len(user["content"].split()) == length
        assert (body["temperature"], body["top_p"], body["ignore_eos"], body["stream"]) == (
            0,
            0.5,
            True,
            True,
        )
        assert body["stream_options"] == {"include_usage": True}
    assert messages[0].request.path == "chat/completions"


def test_usage_is_not_asked_for_where_the_server_refuses_it():
    """Field case 41."""
    assert "stream_options" not in build(Chat(), Wanted(5), include_usage=False)[1][0]


def test_a_completion_with_a_template():
    _, (body,) = build(Completion(template="Continue: {text} …", stream=False), Wanted(9, 4))
    assert body["prompt"].startswith("Continue: ")
    assert len(body["prompt"].split()) == 9
    assert (body["stream"], body["max_tokens"]) == (False, 4)


def test_a_generate():
    part = Generate(
        text_input="PROMPT", max_tokens_key="parameters.max_tokens", extra={"parameters": {"stream": True}}
    )
    (message,), (body,) = build(part, Wanted(4, 6))
    assert message.request.path == "v2/models/m/generate_stream"
    assert body["parameters"] == {"stream": True, "max_tokens": 6}
    assert len(body["PROMPT"].split()) == 4


def test_prompts_of_a_file_are_the_variants_in_their_order(tmp_path):
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, ["one", turns, "three"])))
    part = Chat(prompts=Prompts(file="p.jsonl"), template="> {text}", system="s")
    assert prompt_count(part, tmp_path) == 3
    _, bodies = build(part, *[Wanted(None)] * 4, folder=tmp_path)
    assert [body["messages"][1:] for body in bodies] == [
        [{"role": "user", "content": "> one"}], turns, [{"role": "user", "content": "> three"}],
        [{"role": "user", "content": "> one"}],
    ]  # fmt: skip
    with pytest.raises(LoadgenError, match="messages are for chat"):
        build(Completion(prompts=Prompts(file="p.jsonl")), Wanted(None), folder=tmp_path)


def test_the_same_seed_gives_the_same_bytes():
    wanted = [Wanted(n, n) for n in range(1, 40)]
    first, _ = build(Chat(), *wanted)
    assert [m.request.body for m in build(Chat(), *wanted)[0]] == [m.request.body for m in first]
    assert len({m.request.body for m in first}) == len(first)


def test_later_turns():
    part = Chat(turns=3, think="2s")
    assert part.think_ns == 2_000_000_000
    said = later_turns(part, [Wanted(4), Wanted(2)], np.random.default_rng(1), None)
    assert [[len(text.split()) for text in turn] for turn in said] == [[4, 4], [2, 2]]
    (message,), _ = build(part, Wanted(4))
    reader = message.request.reader()
    reader.feed(b'data: {"choices":[{"index":0,"delta":{"content":"kept"}}]}\n\n', 1)
    assert reader.streamed().text == "kept"


def test_facts_say_what_a_token_is():
    assert text_facts(Chat()) == {"prompts": "made", "tokens_in_by": "words (1 word ~ 1 token)"}
    part = Completion(prompts=Prompts(file="p.txt", order="drawn"), tokenizer="tok")
    assert text_facts(part) == {"prompts": "p.txt, drawn", "tokens_in_by": "tokenizer tok"}


def test_a_length_or_prompts_but_not_both():
    assert Chat().length_fault(has_length=True) is None
    assert "needs the length" in Chat().length_fault(has_length=False)
    assert "their length is given" in Chat(prompts=Prompts(file="p")).length_fault(has_length=True)
    assert Chat(prompts=Prompts(file="p")).length_fault(has_length=False) is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"template": "no place"}, "needs {text} once"),
        ({"extra": {"a": {1: 2}}}, "a key that is no text"),
        ({"extra": {"a": [object()]}}, "has no JSON form"),
        ({"extra": {"a": float("nan")}}, "has no JSON form"),
        ({"turns": 0}, "greater than or equal to 1"),
        ({"think": 3}, "has no unit"),
        ({"temperature": -1}, "greater than or equal to 0"),
        ({"strem": True}, "Extra inputs are not permitted"),
    ],
)
def test_what_cannot_be_is_refused(given, says):
    with pytest.raises(ValidationError, match=says):
        Chat(**given)


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
IMAGE = [
    {"type": "text", "text": "What?"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
]


def rows_of(folder, *rows):
    (folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Prompts(file="p.jsonl")


def test_a_rows_own_request_fields_are_sent(tmp_path):
    turns = [{"role": "user", "content": IMAGE}]
    own = {
        "tools": TOOLS,
        "temperature": 0.7,
        "max_tokens": 5,
        "stop": ["x"],
        "seed": 3,
        "response_format": {"type": "json_object"},
    }
    prompts = rows_of(
        tmp_path,
        {"messages": turns, **own},
        {"messages": turns},
        {"messages": turns, "max_completion_tokens": 9},
    )
    part = Chat(prompts=prompts, temperature=0)
    _, bodies = build(part, *[Wanted(None, 16)] * 3, folder=tmp_path)
    assert bodies[0] == {
        "model": "m", "messages": turns, "stream": True, "stream_options": {"include_usage": True}, **own,
    }  # fmt: skip
    assert (bodies[1]["max_tokens"], bodies[1]["temperature"], "tools" in bodies[1]) == (16, 0, False)
    assert (bodies[2].get("max_tokens"), bodies[2]["max_completion_tokens"]) == (None, 9)
    said = prompt_remarks("k", part, tmp_path, has_output=True)
    assert [("temperature" in line, "max_tokens" in line, "1 of 3" in line) for line in said] == [
        (True, False, True), (False, True, True), (False, False, True),
    ]  # fmt: skip


def test_extra_wins_over_a_rows_field_and_that_is_said(tmp_path):
    part = Chat(prompts=rows_of(tmp_path, {"prompt": "a", "seed": 3, "top_p": 0.5}), extra={"seed": 7})
    _, (body,) = build(part, Wanted(None), folder=tmp_path)
    assert (body["seed"], body["top_p"]) == (7, 0.5)
    (said,) = prompt_remarks("k", part, tmp_path, has_output=False)
    assert "seed of 1 of 1 rows is not sent" in said


def test_a_row_may_repeat_what_the_kind_says_and_not_contradict_it(tmp_path):
    part = Chat(prompts=rows_of(tmp_path, {"prompt": "a", "model": "m", "stream": True}))
    assert build(part, Wanted(None), folder=tmp_path)[1][0]["model"] == "m"
    for row in ({"model": "other"}, {"stream": False}):
        part = Chat(prompts=rows_of(tmp_path, {"prompt": "a"}, {"prompt": "a", **row}))
        with pytest.raises(LoadgenError, match=rf"p\.jsonl:2: {next(iter(row))} is "):
            build(part, *[Wanted(None)] * 2, folder=tmp_path)


def test_rows_of_generate_have_fields_too(tmp_path):
    rows = {"prompt": "a", "parameters": {"max_tokens": 3, "top_k": 2}}, {"prompt": "b", "stop_words": ["x"]}
    part = Generate(
        prompts=rows_of(tmp_path, *rows),
        max_tokens_key="parameters.max_tokens",
        extra={"parameters": {"x": 1}},
    )
    _, bodies = build(part, *[Wanted(None, 8)] * 2, folder=tmp_path)
    assert bodies[0]["parameters"] == {"max_tokens": 3, "top_k": 2, "x": 1}
    assert (bodies[1]["parameters"], bodies[1]["stop_words"]) == ({"x": 1, "max_tokens": 8}, ["x"])
