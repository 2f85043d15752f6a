"""OpenAI's dialect: what a streamed answer came to, the same however it was cut; and what requests look like."""

import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from sse_bodies import DONE, PLAIN, ROLE, STOP, body, chunk, cuttings, delta, said, usage

from loadgen.records import LoadgenError, Outcome
from loadgen.wire.finish import Finish, finish_of, finish_reason
from loadgen.wire.openai import (
    OpenAiReader,
    OpenAiWhole,
    make_request,
    may_refuse_usage,
    next_turn,
    without_usage,
)

BOM = b"\xef\xbb\xbf"
GOOD = ("OK", None, "Good day", 2, 3, 2, "usage", "stop")
ONE = ("OK", None, "x", 1, -1, 1, "chunks", "stop")
# name: (body, (outcome, detail, text of choice 0, chunks, tokens in, tokens out, source, finish))
ANSWERS = {
    "plain": (body(*PLAIN), GOOD),
    "CRLF": (body(*PLAIN, end="\r\n"), GOOD),
    "CR": (body(*PLAIN, end="\r"), GOOD),
    "no space": (body(*PLAIN, lead="data:"), GOOD),
    "two spaces": (body(*PLAIN, lead="data:  "), GOOD),
    "BOM": (BOM + body(*PLAIN), GOOD),
    "fields": (body(*PLAIN, lead="event: message\nid: 4\nretry: 100\ndata: "), GOOD),
    "an unknown event name": (body(*PLAIN, lead="event: completion.chunk\ndata: "), GOOD),
    "comments": (b":\n\n: hello\n" + body(*PLAIN, lead=": keep-alive\n\n: \ndata: "), GOOD),
    "pings": (b"event: ping\ndata: 12:00:01\n\ndata:\n\n" + body({"type": "ping"}, *PLAIN) + b"event: ping\ndata: {}\n\n", GOOD),
    "data in several lines": (body(*PLAIN).replace(b', "choices"', b'\ndata: , "choices"'), GOOD),
    "no newline in JSON": (body(*PLAIN).replace(b'"index": 0, ', b'"index": 0,\ndata:\t'), GOOD),
    "null content first": (body(chunk(delta(role="assistant", content=None)), *PLAIN[1:]), GOOD),
    "role with the first token": (body(chunk(delta(role="assistant", content="Good")), *PLAIN[2:]), GOOD),
    "finish with the last token": (body(ROLE, said("Good"), chunk(delta(content=" day", finish="length")), usage(3, 2), DONE),
                                   (*GOOD[:-1], "length")),
    "usage null until the end": (body(ROLE, said("Good", usage=None), said(" day", usage=None), STOP, usage(3, 2), DONE), GOOD),
    "usage while it comes": (body(usage(3, 0, delta(role="assistant", content="")), usage(3, 1, delta(content="Good")),
                                  usage(3, 2, delta(content=" day")), STOP, DONE), GOOD),
    "error null": (body(ROLE, said("Good", error=None), said(" day", error=None), STOP, usage(3, 2), DONE), GOOD),
    "several DONE": (body(*PLAIN, DONE, DONE), GOOD),
    "garbage after DONE": (body(*PLAIN) + b"\xff\x00 data: {{{\n\n", GOOD),
    "DONE with spaces": (body(*PLAIN[:-1]) + b"data:   [DONE]  \n\n", GOOD),
    "no DONE, but a finish": (body(*PLAIN[:-1]), GOOD),
    "no DONE, usage before the finish": (body(usage(3, 2), said("Good"), said(" day"), STOP), GOOD),
    "DONE without a finish": (body(said("x"), DONE), (*ONE[:-1], "")),
    "no usage": (body(ROLE, said("x"), STOP, DONE), ONE),
    "usage is believed, not the text": (body(said("seven or so tokens it looks like"), STOP, usage(5, 10), DONE),
                                        ("OK", None, "seven or so tokens it looks like", 1, 5, 10, "usage", "stop")),
    "usage of no tokens is not": (body(said("x"), STOP, usage(4, 0), DONE), ("OK", None, "x", 1, 4, 1, "chunks", "stop")),
    "many tokens a chunk": (body(said("a b c d"), said(" e f"), STOP, usage(3, 6), DONE),
                            ("OK", None, "a b c d e f", 2, 3, 6, "usage", "stop")),
    "escapes": (body(ROLE, DONE).replace(b'"content": ""', rb'"content": "\u4e2d\ud83d\ude42\"\\\n\u00e9"'),
                ("OK", None, '中🙂"\\\né', 1, -1, 1, "chunks", "")),
    "a surrogate pair in two chunks": (body(said("HIGH"), said("LOW"), STOP, DONE).replace(b"HIGH", rb"\ud83d").replace(b"LOW", rb"\ude42"),
                                       ("OK", None, "🙂", 2, -1, 2, "chunks", "stop")),
    "CJK and emoji": (body(ROLE, said("你好"), said("🙂é"), said("、世界"), STOP, usage(5, 3), DONE),
                      ("OK", None, "你好🙂é、世界", 3, 5, 3, "usage", "stop")),
    "bytes that are no UTF-8": (body(said("a"), said("bb"), STOP, DONE).replace(b"bb", b"\xff"),
                                ("OK", None, "a\ufffd", 2, -1, 2, "chunks", "stop")),
    "quotes in a text like others": (body(said("a"), said("b"), said('"}'), said("\\"), said("c"), STOP, DONE),
                                     ("OK", None, 'ab"}\\c', 5, -1, 5, "chunks", "stop")),
    "empty chunks between": (body(ROLE, said("a"), said(""), said("b"), said(""), STOP, DONE),
                             ("OK", None, "ab", 4, -1, 4, "chunks", "stop")),
    "half characters and special tokens are tokens": (
        body(ROLE, said(""), said(""), said("a"), said(""), said("b"), said(""), STOP, usage(3, 6), DONE), ("OK", None, "ab", 6, 3, 6, "usage", "stop")),
    "only special tokens": (body(ROLE, *[said("")] * 20, STOP, usage(3, 20), DONE), ("OK", None, "", 20, 3, 20, "usage", "stop")),
    "the end is a token when usage counts it": (body(*PLAIN[:-2], usage(3, 3), DONE), ("OK", None, "Good day", 3, 3, 3, "usage", "stop")),
    "the end is none where usage counts more": (body(*PLAIN[:-2], usage(3, 9), DONE), ("OK", None, "Good day", 2, 3, 9, "usage", "stop")),
    "the end has a token id": (body(ROLE, said("a"), chunk(delta(finish="stop", content="") | {"token_ids": [2]}), DONE),
                               ("OK", None, "a", 2, -1, 2, "chunks", "stop")),
    "keep-alives within choices": (body(ROLE, chunk(delta()), chunk(), chunk({"index": 0}), chunk(delta(content=None)), said("x"), STOP, DONE), ONE),
    "a keep-alive before the role": (body(chunk(delta()), ROLE, said("x"), STOP, DONE), ONE),
    "the role twice": (body(ROLE, ROLE, said("x"), STOP, DONE), ONE),
    "a role in every chunk": (body(*(chunk(delta(role="assistant", content=text)) for text in ("", "a", "", "b")), STOP, DONE),
                              ("OK", None, "ab", 3, -1, 3, "chunks", "stop")),
    "the other keys null": (body(chunk(delta(role="assistant", content="", refusal=None, tool_calls=None, reasoning_content=None)),
                                 said("x"), STOP, DONE), ONE),
    "typed blocks": (body(ROLE, said([{"type": "text", "text": "Go"}, {"type": "output_text", "text": "od"}]),
                          said([{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]),
                          said({"type": "text", "text": {"value": " day"}}), said(["!"]), said([]), STOP, DONE),
                     ("OK", None, "Good day!", 5, -1, 5, "chunks", "stop")),
    "blocks in blocks for ever": (body(said("x"), said(json.loads("[" * 300 + "]" * 300)), STOP, DONE), ("OK", None, "x", 2, -1, 2, "chunks", "stop")),
    "no token, by usage": (body(ROLE, STOP, usage(3, 0), DONE), ("OK", None, "", 0, 3, 0, "usage", "stop")),
    "no token but an empty text": (body(ROLE, said(""), STOP, usage(3, 0), DONE), ("OK", None, "", 0, 3, 0, "usage", "stop")),
    "tokens that were never seen": (body(ROLE, STOP, usage(3, 20), DONE), ("OK", None, "", 0, 3, 20, "usage", "stop")),
    "a new reason": (body(said("x"), chunk(delta(finish="bored")), DONE), (*ONE[:-1], "bored")),
    "no reason in a word": (body(said("x", ), chunk(delta(finish="None", content="y")), STOP, DONE), ("OK", None, "xy", 2, -1, 2, "chunks", "stop")),
    "a reason as an object": (body(said("x"), chunk(delta(finish={"type": "stop", "matched": 2})), DONE), ONE),
    "usage that is none": (body(said("x"), STOP, chunk(usage={"prompt_tokens": "7", "completion_tokens": float("nan"),
                           "prompt_tokens_details": {"cached_tokens": "NaN"}}), DONE), ONE),
    "usage out of all bounds": (body(said("x"), STOP, chunk(usage={"prompt_tokens": 10**30, "completion_tokens": 1e300,
                                "prompt_tokens_details": [3]}), DONE), ONE),
    "reasoning": (body(ROLE, chunk(delta(reasoning_content="Hm")), chunk(delta(reasoning="…")), said("x"), STOP, usage(3, 3), DONE),
                  ("OK", None, "x", 3, 3, 3, "usage", "stop")),
    "tool calls": (body(ROLE, chunk(delta(tool_calls=[{"index": 0, "function": {"name": "f"}}])),
                        chunk(delta(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}])),
                        chunk(delta(finish="tool_calls", tool_calls=[])), DONE),
                   ("OK", None, "", 2, -1, 2, "chunks", "tool_calls")),
    "two choices": (body(chunk(delta(1, content="B")), said("A"), chunk(delta(1, content="b")), said("a"), STOP,
                         chunk(delta(1, finish="length")), usage(3, 4)), ("OK", None, "Aa", 4, 3, 4, "usage", "stop")),
    "two choices in one chunk": (body(chunk(delta(content="A"), delta(1, content="B")), STOP, DONE),
                                 ("OK", None, "A", 2, -1, 2, "chunks", "stop")),
    "completions": (body({"choices": [{"index": 0, "text": "x", "finish_reason": None}]},
                         {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}, DONE), ONE),
    # failures
    "error in the stream": (body(ROLE, said("x"), {"error": {"message": "out of\nmemory", "code": 507}}, said("y"), DONE),
                            ("HTTP_5XX", "error 507 inside the stream: out of memory", "x", 1, -1, 1, "chunks", "")),
    "error as text": (body(said("x"), {"error": "died"}), ("HTTP_5XX", "error inside the stream: died", "x", 1, -1, 1, "chunks", "")),
    "error named": (body(said("x")) + b'event: error\ndata: {"message": "too long", "code": "400"}\n\n',
                    ("HTTP_4XX", "error 400 inside the stream: too long", "x", 1, -1, 1, "chunks", "")),
    "error named, no JSON": (body(said("x")) + b"event: error\ndata: it broke\n\n",
                             ("HTTP_5XX", "error inside the stream: it broke", "x", 1, -1, 1, "chunks", "")),
    "error by its type": (body({"error": {"message": "slow down", "type": "rate_limit", "code": None}}),
                          ("HTTP_5XX", "error rate_limit inside the stream: slow down", "", 0, -1, -1, "", "")),
    "error 429": (body({"object": "error", "message": "busy", "code": 429}),
                  ("REJECTED", "error 429 inside the stream: busy", "", 0, -1, -1, "", "")),
    "finish by error": (body(said("x"), chunk(delta(finish="error"))),
                        ("HTTP_5XX", "the server ended the answer with finish_reason error", "x", 1, -1, 1, "chunks", "error")),
    "given up": (body(ROLE, said("x"), chunk(delta(finish="abort")), usage(3, 1), DONE),
                 ("HTTP_5XX", "the server ended the answer with finish_reason abort", "x", 1, -1, 1, "chunks", "abort")),
    "another choice given up": (body(said("x"), chunk(delta(1, content="y")), STOP, chunk(delta(1, finish="timeout")), DONE),
                                ("HTTP_5XX", "the server ended the answer with finish_reason timeout", "x", 2, -1, 2, "chunks", "timeout")),
    "one of two given up at once": (body(chunk(delta(0, finish="cancelled"), delta(1, finish="stop")), DONE),
                                    ("HTTP_5XX", "the server ended the answer with finish_reason cancelled", "", 0, -1, -1, "", "cancelled")),
    "only empty texts, and nobody counted": (body(ROLE, said(""), STOP, DONE), ("PROTOCOL",
                                             "an answer without a single token (finish_reason stop)", "", 1, -1, 1, "chunks", "stop")),
    "cut": (body(ROLE, said("x")), ("STREAM_ENDED_EARLY",
            "the stream ended with neither [DONE] nor a finish_reason", "x", 1, -1, 1, "chunks", "")),
    "cut within the event that has the finish": (body(ROLE, said("x")) + body(STOP)[:-20], ("STREAM_ENDED_EARLY",
            "the stream ended with neither [DONE] nor a finish_reason", "x", 1, -1, 1, "chunks", "")),
    "one of two choices unended": (body(said("x"), chunk(delta(1, content="y")), STOP), ("STREAM_ENDED_EARLY",
            "the stream ended with neither [DONE] nor a finish_reason", "x", 2, -1, 2, "chunks", "stop")),
    "no token, and nobody counted": (body(ROLE, STOP, DONE),
                 ("PROTOCOL", "an answer without a single token (finish_reason stop)", "", 0, -1, -1, "", "stop")),
    "no token and no end": (body(ROLE, usage(3, 0), DONE), ("PROTOCOL", "an answer without a single token", "", 0, 3, 0, "usage", "")),
    "only DONE": (body(DONE), ("PROTOCOL", "an answer without a single token", "", 0, -1, -1, "", "")),
    "only pings": (b": ping\n\n" * 3, ("STREAM_ENDED_EARLY", "the stream ended before its first event", "", 0, -1, -1, "", "")),
    "empty": (b"", ("STREAM_ENDED_EARLY", "the answer was empty", "", 0, -1, -1, "", "")),
    "not JSON": (body(said("x"), "oops {"), ("PROTOCOL", "an event that is no JSON object: oops {", "x", 1, -1, 1, "chunks", "")),
    "too deep": (body("[" * 20_000), ("PROTOCOL", "an event that is no JSON object: " + "[" * 199 + "…", "", 0, -1, -1, "", "")),
    "a JSON error": (b'{"error": {"message": "no such model", "code": 404}}', ("HTTP_4XX",
                     'error 404 where a stream was asked: {"error": {"message": "no such model", "code": 404}}', "", 0, -1, -1, "", "")),
    "a JSON error as text": (b'\n{"error": "no such model"}', ("HTTP_5XX",
                             'error where a stream was asked: {"error": "no such model"}', "", 0, -1, -1, "", "")),
    "HTML": (b"<html><h1>It works</h1></html>", ("PROTOCOL",
             "no event stream, where one was asked: <html><h1>It works</h1></html>", "", 0, -1, -1, "", "")),
    "not streamed": (b'{"choices": [{"message": {"content": "x"}}]}', ("PROTOCOL",
             'no event stream, where one was asked: {"choices": [{"message": {"content": "x"}}]}', "", 0, -1, -1, "", "")),
}  # fmt: skip


def read(pieces, *, complete=True, **options):
    reader = OpenAiReader(**{"keep_text": True, **options})
    for at, piece in enumerate(pieces):
        reader.feed(piece, 1000 + at)
    outcome, detail = reader.end(complete=complete)
    came = reader.streamed()
    told = (
        outcome.name,
        detail,
        came.text,
        len(came.chunk_ns),
        came.tokens_in,
        came.tokens_out,
        came.source,
        came.finish,
    )
    return told, came, reader


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_whole_by_bytes_by_sevens_and_by_twos(name):
    """Field cases 31, 32, 33, 36, 39 and 41, and their kind."""
    data, told = ANSWERS[name]
    for pieces in cuttings(data):
        assert read(pieces)[0] == told


@given(name=st.sampled_from(sorted(ANSWERS)), places=st.lists(st.integers(0, 2**16), max_size=12))
def test_an_answer_cut_anywhere(name, places):
    data, told = ANSWERS[name]
    edges = [0, *sorted({p % (len(data) + 1) for p in places}), len(data)]
    assert read([data[a:b] for a, b in pairwise(edges)])[0] == told


TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), min_size=1, max_size=8)


@given(TEXTS, st.booleans(), st.booleans(), st.integers(1, 9))
def test_any_text_comes_back_and_the_short_way_tells_the_same_as_parsing(texts, escaped, compact, step):
    events = [
        json.dumps(said(text), ensure_ascii=escaped, separators=(",", ":") if compact else None)
        for text in texts
    ]
    data = body(*events, STOP, DONE)
    told, came, _ = read([data[i : i + step] for i in range(0, len(data), step)])
    assert came.text == "".join(texts)
    assert len(came.chunk_ns) == len(texts)
    assert (told[0] == "OK") == any(texts)
    parsed = OpenAiReader(keep_text=True)
    parsed._tries = 0
    parsed.feed(data, 1)
    assert (parsed.streamed().text, len(parsed.streamed().chunk_ns)) == (came.text, len(came.chunk_ns))


def stamped(*events, **options):
    """One event a read, at 0, 10, 20, … ns."""
    reader = OpenAiReader(**options)
    for at, event in enumerate(events):
        reader.feed(body(event), 10 * at)
    return reader


def test_the_role_chunk_is_no_token_and_stamps_are_those_of_the_reads():
    """Field case 37."""
    came = stamped(
        ROLE, chunk(delta(content=None)), said("a"), said(""), said("b"), STOP, usage(1, 3), DONE
    ).streamed()
    assert came.chunk_ns == [20, 30, 40]
    assert came.first_content_ns == 20


def test_the_first_token_is_not_the_first_visible_one():
    """A special token and half a character come before the first text, and the end-of-sequence token last of all."""
    events = (ROLE, said(""), said(""), said("é"), said(""), STOP, usage(1, 5), DONE)
    came = stamped(*events).streamed()
    assert (came.chunk_ns, came.first_content_ns) == ([10, 20, 30, 40, 50], 30)


def test_choices_keep_their_own_stamps():
    """n=2 in turns, a token each 20 ns a choice: no figure may take the 10 ns between the two for a time a token."""
    both = [chunk(delta(at % 2, content=f"{at}")) for at in range(6)]
    ends = [STOP, chunk(delta(1, finish="length"))]
    came = stamped(
        chunk(delta(role="assistant"), delta(1, role="assistant")), *both, *ends, usage(1, 6), DONE
    ).streamed()
    assert came.chunk_ns == [10, 30, 50, 20, 40, 60]
    assert came.choice_chunks == [3, 3]
    assert came.first_content_ns == 10


def test_reasoning_is_the_first_token_but_not_the_first_content():
    came = stamped(
        ROLE, chunk(delta(reasoning_content="h")), chunk(delta(reasoning="m", content="")), said("a"), DONE
    ).streamed()
    assert (came.chunk_ns, came.first_content_ns) == ([10, 20, 30], 30)


def test_tool_calls_are_tokens_but_no_content():
    came = stamped(
        ROLE, chunk(delta(tool_calls=[{"function": {"arguments": "{"}}], content=None)), DONE
    ).streamed()
    assert (came.chunk_ns, came.first_content_ns) == ([10], 0)


def test_chunks_alike_are_not_parsed_and_still_told_apart_from_those_that_are_not(monkeypatch):
    parsed = []
    monkeypatch.setattr("loadgen.wire.stream._decode", lambda text: parsed.append(text) or json.loads(text))
    texts = ["a", "b", 'c"', "d", "中🙂", ""]
    reader = stamped(ROLE, *map(said, texts), STOP, DONE, keep_text=True)
    assert reader.streamed().text == 'abc"d中🙂'
    assert [json.loads(text)["choices"][0]["delta"].get("content") for text in parsed] == [
        "",
        "a",
        'c"',
        None,
    ]


def test_done_ends_the_answer_at_once():
    """Field case 36: what comes later, and when, is of no interest."""
    reader = stamped(said("a"), STOP)
    assert not reader.finished
    reader.feed(b"data: [DONE]\n", 50)
    assert not reader.finished
    reader.feed(b"\n", 60)
    assert reader.finished
    reader.feed(body(said("b")), 70)
    assert reader.streamed().chunk_ns == [0]


def test_an_error_ends_the_answer_at_once():
    reader = stamped(said("a"), {"error": {"message": "died", "code": 500}})
    assert reader.finished
    assert reader.end(complete=True) == (Outcome.HTTP_5XX, "error 500 inside the stream: died")


ABORTS = ["abort", "aborted", "error", "cancelled", "canceled", "timeout", "timed_out", "content_filter", "FINISH_ABORT",
          "insufficient_system_resource", "user_cancel", "ERROR_TOXIC", "internal error", "SAFETY", "oom"]  # fmt: skip
ENDS = ["stop", "length", "tool_calls", "function_call", "eos_token", "stop_sequence", "STOP", "FinishReason.LENGTH",
        "end_turn", "MAX_TOKENS", "model_length"]  # fmt: skip


def test_reasons_for_an_end():
    """What vLLM, SGLang, TensorRT-LLM, TGI, LMDeploy, llama.cpp and hosted services write."""
    assert {reason: finish_of(reason) for reason in ABORTS} == dict.fromkeys(ABORTS, Finish.GAVE_UP)
    assert {reason: finish_of(reason) for reason in ENDS} == dict.fromkeys(ENDS, Finish.NORMAL)
    assert finish_of("repetition") is Finish.UNKNOWN
    assert [finish_reason(told) for told in (None, "", "null", {"type": "abort"}, ["stop", "abort"], "a\ud800\n" * 99)] == [
        "", "", "", "abort", "abort", ("a " * 20)[:39] + "…"]  # fmt: skip


@pytest.mark.parametrize(("events", "told", "unseen"), [
    ((said("a"), said("b")), 40, 40), ((chunk(delta(reasoning="hm")), said("b")), 40, 0), ((said("a"), said("b")), 50, 40),
    ((), 40, 42), ((said("a"), said("b")), "40", 0),
])  # fmt: skip
def test_hidden_reasoning(events, told, unseen):
    """Of 42 tokens; no more than are missing."""
    told = {"completion_tokens": 42, "completion_tokens_details": {"reasoning_tokens": told}}
    assert stamped(*events, STOP, chunk(usage=told), DONE).streamed().unseen == unseen


CACHED = {
    "vLLM, SGLang, OpenAI": ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 7, "audio_tokens": 1}}}, 7),
    "none": ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}}, 0),
    "not told": ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": None}}, -1),
    "DeepSeek": ({"usage": {"prompt_tokens": 9, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 5}}, 4),
    "flat": ({"usage": {"prompt_tokens": 9, "cached_tokens": 3}}, 3),
    "llama.cpp": ({"usage": {"prompt_tokens": 9}, "timings": {"cache_n": 5, "prompt_n": 4}}, 5),
    "words": ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": "7"}}}, -1),
    "huge": ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 2**70}}}, -1),
    "negative": ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": -7}}}, -1),
    "true": ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": True}}}, -1),
}  # fmt: skip


@pytest.mark.parametrize("name", CACHED)
def test_tokens_from_a_prefix_cache(name):
    told, cached = CACHED[name]
    assert stamped(said("x"), STOP, chunk(**told), DONE).streamed().cached_tokens == cached
    whole = OpenAiWhole()
    whole.feed(json.dumps({"choices": [{"text": "x", "finish_reason": "stop"}], **told}).encode(), 1)
    assert whole.end(complete=True)[0] is Outcome.OK
    assert (whole.streamed().cached_tokens, whole.streamed().tokens_in) == (cached, 9)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(["text", "type", "content", "cached_tokens", "name"]), inner, max_size=3)))  # fmt: skip
def test_whatever_stands_in_a_field_is_no_crash(value):
    usage_of = {
        "prompt_tokens": value,
        "completion_tokens": value,
        "prompt_tokens_details": value,
        "cached_tokens": value,
    }
    choice = {
        "index": value,
        "delta": {"content": value, "role": value, "reasoning": value, "tool_calls": value},
    }
    events = [
        chunk(choice),
        chunk(choice | {"finish_reason": value, "token_ids": value}),
        chunk(usage=usage_of, timings=value),
    ]
    events += [chunk({"index": 0, "delta": value, "message": value, "text": value}), chunk(usage=value)]
    (outcome, *_), came, _ = read([body(*(json.dumps(event) for event in events), DONE)], count=len)
    assert outcome in {kind.name for kind in Outcome}
    for number in (came.tokens_in, came.tokens_out, came.cached_tokens):
        assert -1 <= number < 2**31
    assert came.finish.isprintable()
    whole = OpenAiWhole(keep_text=True, count=len)
    whole.feed(
        json.dumps(
            {"choices": [{"message": {"content": value}, "finish_reason": value}, value], "usage": usage_of}
        ).encode(),
        1,
    )
    whole.end(complete=True)
    assert isinstance(whole.streamed().text, str)


@pytest.mark.parametrize(("fields", "limits"), [
    ({}, (-1, -1)), ({"max_tokens": 50}, (50, -1)), ({"max_tokens": 50, "ignore_eos": True}, (50, 50)),
    ({"max_tokens": 50, "ignore_eos": False}, (50, -1)), ({"max_tokens": 50, "extra": {"min_tokens": 50}}, (50, 50)),
    ({"max_tokens": 50, "extra": {"min_tokens": 20, "n": 3}}, (150, 60)),
    ({"max_tokens": 50, "ignore_eos": True, "extra": {"stop": ["."]}}, (50, -1)),
    ({"max_tokens": 50, "max_tokens_key": "max_completion_tokens", "extra": {"ignore_eos": True}}, (50, 50)),
    ({"extra": {"max_tokens": 9}}, (9, -1)),
])  # fmt: skip
def test_what_a_request_says_of_the_answers_length_goes_with_the_answer(fields, limits):
    for stream in (True, False):
        came = make_request("m", "p", stream=stream, **fields).reader().streamed()
        assert (came.max_tokens, came.min_tokens) == limits


@pytest.mark.parametrize("complete", [True, False])
def test_a_finish_reason_says_more_than_framing(complete):
    assert read([body(said("x"), STOP)], complete=complete)[0][0] == "OK"
    assert read([body(said("x"))], complete=complete)[0][0] == "STREAM_ENDED_EARLY"


def test_tokens_are_counted_by_a_tokenizer_when_the_server_does_not():
    """Field case 41."""
    events = (chunk(delta(reasoning="think hard")), said("one two"), said(" three"), STOP)
    words = {"count": lambda text: len(text.split())}
    assert read([body(*events, DONE)], **words)[0][5:7] == (5, "tokenizer")
    assert read([body(*events, usage(1, 9), DONE)], **words)[0][5:7] == (9, "usage")


def test_a_chunk_of_megabytes():
    text = "x" * 3_000_000
    data = body(said(text), said(text), STOP, DONE)
    told, came, _ = read([data[i : i + 65_536] for i in range(0, len(data), 65_536)])
    assert (told[0], len(came.text)) == ("OK", 6_000_000)


# -- whole answers ---------------------------------------------------------------------------------

WHOLE = {
    "chat": ({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
             ("OK", None, [], 0, 3, 2, "usage", "stop", "Hi")),
    "completion": ({"choices": [{"text": "Hi", "finish_reason": "length"}]}, ("OK", None, [], 0, -1, -1, "", "length", "Hi")),
    "tool call": ({"choices": [{"message": {"content": None, "tool_calls": [{}]}}]}, ("OK", None, [], 0, -1, -1, "", "", "")),
    "nothing": ({"choices": [{"message": {"content": ""}}], "usage": {"completion_tokens": 0}},
                ("PROTOCOL", "an answer without a single token", [], 0, -1, 0, "", "", "")),
    "nothing, with an end": ({"choices": [{"message": {"content": ""}, "finish_reason": "stop"}], "usage": {"completion_tokens": 0}},
                             ("OK", None, [], 0, -1, 0, "usage", "stop", "")),
    "nothing, and nobody counted": ({"choices": [{"text": "", "finish_reason": "stop"}]},
                                    ("PROTOCOL", "an answer without a single token", [], 0, -1, -1, "", "stop", "")),
    "blocks": ({"choices": [{"message": {"content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}, "finish_reason": "stop"}]},
               ("OK", None, [], 0, -1, -1, "", "stop", "Hi")),
    "the first choice is empty": ({"choices": [{"text": "", "finish_reason": "stop"}, {"text": "b", "finish_reason": "stop"}]},
                                  ("OK", None, [], 0, -1, -1, "", "stop", "")),
    "given up": ({"choices": [{"message": {"content": "Hi"}, "finish_reason": "abort"}], "usage": {"completion_tokens": 1}},
                 ("HTTP_5XX", "the server ended the answer with finish_reason abort", [], 0, -1, 1, "", "abort", "")),
    "another choice given up": ({"choices": [{"text": "Hi", "finish_reason": "stop"}, {"text": "", "finish_reason": "ERROR_LIMIT"}]},
                                ("HTTP_5XX", "the server ended the answer with finish_reason ERROR_LIMIT", [], 0, -1, -1, "", "ERROR_LIMIT", "")),
    "error": ({"error": {"message": "died", "code": 503}}, ("HTTP_5XX", "error 503 in the answer: died", [], 0, -1, -1, "", "", "")),
    "a list": ([1], ("PROTOCOL", "no JSON answer: [1]", [], 0, -1, -1, "", "", "")),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_an_answer_that_is_not_streamed_has_tokens_but_no_chunks(name):
    told, (outcome, detail, *came) = WHOLE[name]
    data = json.dumps(told).encode()
    reader = OpenAiWhole(keep_text=True)
    reader.feed(data[:9], 3)
    reader.feed(data[9:], 7)
    assert not reader.finished
    ended = reader.end(complete=True)
    got = reader.streamed()
    assert (ended[0].name, ended[1]) == (outcome, detail)
    assert [
        got.chunk_ns,
        got.first_content_ns,
        got.tokens_in,
        got.tokens_out,
        got.source,
        got.finish,
        got.text,
    ] == came


def test_a_whole_answer_that_broke_off_or_is_empty():
    reader = OpenAiWhole()
    reader.feed(b"{", 1)
    assert reader.end(complete=False) == (
        Outcome.STREAM_ENDED_EARLY,
        "the answer ended within its body",
    )
    assert OpenAiWhole().end(complete=True) == (Outcome.PROTOCOL, "the answer was empty")


# -- requests --------------------------------------------------------------------------------------


def test_a_chat_request():
    turns = [{"role": "user", "content": "hé"}]
    request = make_request("m", turns, max_tokens=5, max_tokens_key="max_completion_tokens", temperature=0,
                           ignore_eos=True, extra={"top_p": 0.5, "stop": ["\n"]})  # fmt: skip
    assert (request.path, request.method) == ("chat/completions", "POST")
    assert dict(request.headers) == {"Content-Type": "application/json", "Accept": "text/event-stream"}
    assert json.loads(request.body) == {
        "model": "m", "messages": turns, "stream": True, "stream_options": {"include_usage": True},
        "max_completion_tokens": 5, "temperature": 0, "ignore_eos": True, "top_p": 0.5, "stop": ["\n"],
    }  # fmt: skip
    assert "hé".encode() in request.body
    assert isinstance(request.reader(), OpenAiReader)


def test_a_completion_request_that_is_not_streamed():
    request = make_request("m", "once", stream=False, max_tokens=5)
    assert request.path == "completions"
    assert json.loads(request.body) == {"model": "m", "prompt": "once", "stream": False, "max_tokens": 5}
    assert dict(request.headers)["Accept"] == "application/json"
    assert isinstance(request.reader(), OpenAiWhole)


def test_extra_wins_but_for_stream():
    assert json.loads(make_request("m", "p", extra={"model": "other"}).body)["model"] == "other"
    with pytest.raises(LoadgenError, match="extra: stream is not set here"):
        make_request("m", "p", extra={"stream": False})
    with pytest.raises(LoadgenError, match="no JSON form"):
        make_request("m", "p", temperature=float("nan"))


def test_a_server_that_knows_no_stream_options_is_asked_without():
    """Field case 41."""
    request = make_request("m", "p")
    assert may_refuse_usage(400, request)
    assert may_refuse_usage(422, request)
    assert not may_refuse_usage(500, request)
    again = without_usage(request)
    assert json.loads(again.body) == {"model": "m", "prompt": "p", "stream": True}
    assert not may_refuse_usage(400, again)
    assert again.reader is request.reader


def test_the_next_turn_resends_the_history():
    first = make_request(
        "m", [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}], keep_text=True
    )
    second = next_turn(first, "b", "c")
    assert [t["content"] for t in json.loads(second.body)["messages"]] == ["s", "a", "b", "c"]
    assert [t["role"] for t in json.loads(second.body)["messages"]] == ["system", "user", "assistant", "user"]
    assert (second.path, second.headers, second.reader) == (first.path, first.headers, first.reader)
