"""OpenAI-compatible chat and completions: a request to bytes, a streamed or whole answer to stamps and counts.

Tokens are chunks that bring content, reasoning, a tool call or a refusal; a chunk that brings a role or an
empty text is none.  It must not know sockets, clocks or where prompts come from.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from loadgen.records import LoadgenError, Outcome, Request, Streamed
from loadgen.wire.stream import EventReader, WholeReader

CHAT, COMPLETIONS = "chat/completions", "completions"
_OTHER = (
    "reasoning_content",
    "reasoning",
    "tool_calls",
    "function_call",
    "refusal",
)  # tokens, but no content
_REFUSED = (400, 422)
_MOST_TOKENS = ("max_tokens", "max_completion_tokens")
# What a body may have beside its prompt: OpenAI's own fields, and those that vLLM, SGLang and TensorRT-LLM add.
_OF_BOTH = frozenset(
    """model stream stream_options max_tokens max_completion_tokens temperature top_p n stop seed user frequency_penalty
    presence_penalty logit_bias logprobs response_format service_tier store metadata prompt_cache_key safety_identifier
    top_k min_p min_tokens ignore_eos repetition_penalty length_penalty best_of use_beam_search early_stopping
    stop_token_ids include_stop_str_in_output skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens
    prompt_logprobs allowed_token_ids bad_words add_special_tokens guided_json guided_regex guided_choice
    guided_grammar guided_decoding_backend structured_outputs logits_processors return_token_ids cache_salt priority
    request_id kv_transfer_params regex ebnf json_schema no_stop_trim lora_path return_hidden_states""".split()  # noqa: SIM905 - readable
)
CHAT_FIELDS = _OF_BOTH | frozenset(
    """tools tool_choice parallel_tool_calls functions function_call top_logprobs modalities audio prediction
    reasoning_effort reasoning verbosity web_search_options chat_template chat_template_kwargs add_generation_prompt
    continue_final_message documents mm_processor_kwargs media_io_kwargs separate_reasoning
    stream_reasoning thinking include_reasoning echo""".split()  # noqa: SIM905
)
COMPLETION_FIELDS = _OF_BOTH | {"suffix", "echo", "prompt_embeds"}
Turn = Mapping[str, Any]  # {"role": …, "content": …}


def make_request(  # noqa: PLR0913 - one keyword a field of the API
    model: str,
    prompt: str | Sequence[Turn],
    *,
    stream: bool = True,
    include_usage: bool = True,
    max_tokens: int | None = None,
    max_tokens_key: str = "max_tokens",
    temperature: float | None = None,
    ignore_eos: bool | None = None,
    extra: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] | None = None,
    keep_text: bool = False,
    count: Callable[[str], int] | None = None,
) -> Request:
    """A completion when the prompt is text, a chat when it is turns.

    `fields` are this request's own and win over what is named here; `extra` goes in as it is, and wins over all.  Raises
    LoadgenError when one has no JSON form or changes `stream`.
    """
    body: dict[str, Any] = {"model": model}
    body["prompt" if isinstance(prompt, str) else "messages"] = prompt
    body["stream"] = stream
    if stream and include_usage:
        body["stream_options"] = {"include_usage": True}
    fields = fields or {}
    if not fields.keys().isdisjoint({*_MOST_TOKENS, max_tokens_key}):
        max_tokens = None
    named = {max_tokens_key: max_tokens, "temperature": temperature, "ignore_eos": ignore_eos}
    body |= {key: value for key, value in named.items() if value is not None}
    if isinstance(options := fields.get("stream_options"), dict):
        fields = {**fields, "stream_options": {**body.get("stream_options", {}), **options}}
    body |= fields
    body |= extra or {}
    if body["stream"] is not stream:
        raise LoadgenError("extra: stream is not set here; write stream: beside extra")
    reader: type[OpenAiReader | OpenAiWhole] = OpenAiReader if stream else OpenAiWhole
    return Request(
        COMPLETIONS if isinstance(prompt, str) else CHAT,
        (
            ("Content-Type", "application/json"),
            ("Accept", "text/event-stream" if stream else "application/json"),
        ),
        encode_json(body),
        reader=partial(reader, keep_text=keep_text, count=count) if keep_text or count else reader,
    )


def encode_json(body: Mapping[str, Any]) -> bytes:
    """Raises LoadgenError."""
    try:
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as why:
        raise LoadgenError(f"a request that has no JSON form: {why}") from None


def may_refuse_usage(status: int, request: Request) -> bool:
    """Whether a refused request is worth another try `without_usage`: servers exist that know no stream_options."""
    return status in _REFUSED and b'"stream_options":{' in request.body


def without_usage(request: Request) -> Request:
    """The same request, not asking for usage: tokens are counted otherwise then."""
    body = json.loads(request.body)
    body.pop("stream_options", None)
    return replace(request, body=encode_json(body))


def next_turn(request: Request, answer: str, text: str) -> Request:
    """A chat's next request: the turns so far, what the model answered, and what the user says to that."""
    body = json.loads(request.body)
    body["messages"] += [{"role": "assistant", "content": answer}, {"role": "user", "content": text}]
    return replace(request, body=encode_json(body))


def _natural(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else -1


class OpenAiReader(EventReader):
    """A streamed chat or completion.  Choices are kept apart: text and finish are those of choice 0."""

    __slots__ = ("_begun", "_ended")

    def __init__(self, *, keep_text: bool = False, count: Callable[[str], int] | None = None) -> None:
        super().__init__(keep_text=keep_text, count=count)
        self._begun: set[int] = set()
        self._ended: set[int] = set()

    def _chunk(self, chunk: dict[str, Any], event: bytes, now_ns: int) -> None:
        usage, choices = chunk.get("usage"), chunk.get("choices")
        if isinstance(usage, dict):
            self._came.tokens_in = max(_natural(usage.get("prompt_tokens")), self._came.tokens_in)
            self._used = max(_natural(usage.get("completion_tokens")), self._used)
        if not isinstance(choices, list):
            return
        brought = False
        for choice in choices:
            if isinstance(choice, dict):
                brought |= self._choice(choice, event, now_ns, alone=len(choices) == 1 and not usage)
        if brought:
            self._chunks.append(now_ns)

    def _choice(self, choice: dict[str, Any], event: bytes, now_ns: int, *, alone: bool) -> bool:
        """Whether it brings tokens."""
        index = max(_natural(choice.get("index")), 0)
        delta = choice.get("delta")
        if isinstance(delta, dict):
            text = delta.get("content")
            others = [value for key in _OTHER if (value := delta.get(key))]
        else:
            text, others = choice.get("text"), []
        self._begun.add(index)
        if finish := choice.get("finish_reason"):
            self._ended.add(index)
            if index == 0:
                self._came.finish = str(finish)
            if finish == "error":
                self._fail(Outcome.HTTP_5XX, "the server ended the answer with finish_reason error")
        if others:
            self._keep(index, "reasoning", others[0])
        if text:
            self._came.first_content_ns = self._came.first_content_ns or now_ns
            self._keep(index, "content", text)
            if alone and not others and not finish and isinstance(text, str):
                self._learn(event, b'"content"' if isinstance(delta, dict) else b'"text"', index, text)
        return bool(text or others)

    def _unended(self, *, complete: bool) -> str | None:  # noqa: ARG002 - a finish_reason says more than framing
        if self._begun and self._begun <= self._ended:
            return None
        return f"the stream ended after {len(self._chunks)} chunks with neither [DONE] nor a finish_reason"


class OpenAiWhole(WholeReader):
    """A chat or completion that was not streamed."""

    __slots__ = ()

    def _brings(self, told: dict[str, Any], came: Streamed) -> tuple[list[str], bool]:
        usage, choices = told.get("usage"), told.get("choices")
        if isinstance(usage, dict):
            came.tokens_in = _natural(usage.get("prompt_tokens"))
            came.tokens_out = _natural(usage.get("completion_tokens"))
        texts, others = [], False
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            message = choice.get("message")
            told_text = message.get("content") if isinstance(message, dict) else choice.get("text")
            if told_text:
                texts.append(str(told_text))
            others |= isinstance(message, dict) and any(message.get(key) for key in _OTHER)
            came.finish = came.finish or str(choice.get("finish_reason") or "")
        return texts, bool(texts) or others
