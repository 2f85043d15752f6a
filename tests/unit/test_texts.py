"""`chat:`, `completion:` and `generate:` of a profile, and the requests that come of them."""

import json

import numpy as np
import pytest
from pydantic import ValidationError

from loadgen.lab.texts import build_texts, later_turns, prompt_count, text_facts
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
