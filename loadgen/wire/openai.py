"""OpenAI-compatible chat and completions: a request to bytes, a streamed or whole answer to stamps and counts.

A token chunk is one that brings content, reasoning, a tool call or a refusal before its choice ends.  An empty text
is a token too: servers send it for special tokens, half a character or a held-back stop string.  No tokens are: a
role without text before the choice's first token (it comes before the prefill ends), an empty delta, a null, and
the end without text, unless usage counts just those ends besides the chunks (the end-of-sequence tokens).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from loadgen.records import LoadgenError, Request, Streamed
from loadgen.wire.finish import finish_reason
from loadgen.wire.stream import NO_LIMITS, Answer, EventReader, Limits, WholeReader

CHAT, COMPLETIONS = "chat/completions", "completions"
_REASONING = ("reasoning_content", "reasoning")
_MAX_TOKENS = ("max_completion_tokens", "max_tokens", "max_new_tokens")
_MIN_TOKENS = ("min_tokens", "min_new_tokens", "min_length")
_STOPS = ("stop", "stop_token_ids", "stop_words")  # may end an answer early whatever ignore_eos says
_CACHED = ("cached_tokens", "num_cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")
_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_PLAIN_USAGE = {"prompt_tokens", "completion_tokens", "total_tokens"}
_DEPTH = 4  # of blocks within blocks
_MOST = 2**31 - 1  # a server that counts more tokens counts wrongly
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
    limits = output_limits(body, max_tokens_key)
    plain = not keep_text and count is None and limits == NO_LIMITS
    return Request(
        COMPLETIONS if isinstance(prompt, str) else CHAT,
        (
            ("Content-Type", "application/json"),
            ("Accept", "text/event-stream" if stream else "application/json"),
        ),
        encode_json(body),
        reader=reader if plain else partial(reader, keep_text=keep_text, count=count, limits=limits),
    )


def output_limits(fields: Mapping[str, Any], max_tokens_key: str) -> Limits:
    """What the fields of a request say of the answer's length in tokens, over its `n` choices."""
    choices = max(_natural(fields.get("n")), 1)
    most = _first(fields, (max_tokens_key, *_MAX_TOKENS))
    least = _first(fields, _MIN_TOKENS)
    if fields.get("ignore_eos") is True and not any(fields.get(key) for key in _STOPS):
        least = max(most, least)
    return _over(choices, most), _over(choices, least)


def _over(choices: int, tokens: int) -> int:
    return min(choices * tokens, _MOST) if tokens >= 0 else -1


def _first(fields: Mapping[str, Any], keys: Sequence[str]) -> int:
    """The first of these fields that is a number of tokens; -1 when none is."""
    return next((number for key in keys if (number := _natural(fields.get(key))) >= 0), -1)


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
    """A number of tokens as a server may tell it; -1 for what is none."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST else -1


def _read_usage(told: Mapping[str, Any], came: Streamed) -> int:
    """Fills `came` with what usage tells of the prompt; the tokens out, -1 when there is no usage."""
    usage, timings = told.get("usage"), told.get("timings")
    if isinstance(timings, dict):  # llama.cpp
        came.cached_tokens = max(came.cached_tokens, _natural(timings.get("cache_n")))
    if not isinstance(usage, dict):
        return -1
    came.tokens_in = max(came.tokens_in, _natural(usage.get("prompt_tokens")))
    if not usage.keys() <= _PLAIN_USAGE:
        _read_details(usage, came)
    return _natural(usage.get("completion_tokens"))


def _read_details(usage: Mapping[str, Any], came: Streamed) -> None:
    places = [usage, *(part for key in _DETAILS if isinstance(part := usage.get(key), dict))]
    came.cached_tokens = max(came.cached_tokens, *(_first(place, _CACHED) for place in places))
    details = usage.get("completion_tokens_details")
    if isinstance(details, dict):  # until the answer shows some reasoning
        came.unseen = max(came.unseen, _natural(details.get("reasoning_tokens")))


def read_content(value: Any, depth: int = _DEPTH) -> tuple[str, str]:
    """(text, reasoning) of a content: a text, blocks with a type and a text, or nothing."""
    if isinstance(value, str):
        return value, ""
    text, thought = "", ""
    if not depth:
        return text, thought
    for block in value if isinstance(value, list) else (value,):
        if isinstance(block, str):
            text += block
        elif isinstance(block, dict):
            said, inner = read_content(_inner(block), depth - 1)
            thinks = block.get("type") in ("thinking", "reasoning")
            text, thought = (text, thought + said + inner) if thinks else (text + said, thought + inner)
    return text, thought


def _inner(block: Mapping[str, Any]) -> Any:
    """What a block says: {"text": ...}, {"text": {"value": ...}}, {"thinking": [{"text": ...}]}."""
    return next(
        (block[key] for key in ("text", "value", "content", "thinking", "reasoning") if block.get(key)), None
    )


def _read_message(message: Mapping[str, Any], key: str) -> tuple[str, str, bool]:
    """(text, reasoning, whether it brings more than these) of a message or delta whose content has that key."""
    content = message.get(key)
    text, thought = (content, "") if type(content) is str else read_content(content)
    if len(message) == 1 and content is not None:  # as most are
        return text, thought, False
    get = message.get
    if reasoning := get("reasoning_content") or get("reasoning"):
        thought = thought or "".join(read_content(reasoning))
    return text, thought, bool(get("tool_calls") or get("function_call") or get("refusal") or get("audio"))


def _is_said(message: Mapping[str, Any], key: str) -> bool:
    """Whether there is a text, be it empty."""
    if isinstance(message.get(key), str | list):
        return True
    return any(isinstance(message.get(name), str | list) for name in _REASONING)


class OpenAiReader(EventReader):
    """A streamed chat or completion.  Choices are kept apart; the text is that of choice 0."""

    __slots__ = ("_begun", "_ends", "_thinks")

    def __init__(
        self,
        *,
        keep_text: bool = False,
        count: Callable[[str], int] | None = None,
        limits: Limits = NO_LIMITS,
    ) -> None:
        super().__init__(keep_text=keep_text, count=count, limits=limits)
        self._begun: set[int] = set()
        self._ends: dict[int, int] = {}  # stamps of ends without text
        self._thinks = False  # reasoning was shown

    def _chunk(self, chunk: dict[str, Any], event: bytes, now_ns: int) -> None:
        choices = chunk.get("choices")
        if "usage" in chunk or "timings" in chunk:
            self._used = max(_read_usage(chunk, self._came), self._used)
        if not isinstance(choices, list):
            return
        alone = len(choices) == 1 and not chunk.get("usage")
        for choice in choices:
            if isinstance(choice, dict):
                index, delta = max(_natural(choice.get("index")), 0), choice.get("delta")
                self._begun.add(index)
                if isinstance(delta, dict):
                    text = self._choice(index, choice, delta, now_ns)
                else:
                    text = self._choice(index, choice, choice, now_ns)
                if text and alone:
                    self._learn(event, b'"content"' if isinstance(delta, dict) else b'"text"', index, text)

    def _choice(self, index: int, choice: dict[str, Any], said: dict[str, Any], now_ns: int) -> str:
        """Takes one choice of a chunk, whose delta or text is in `said`; its text if it brought nothing else."""
        key = "text" if said is choice else "content"
        text, thought, more = _read_message(said, key)
        ended = (reason := choice.get("finish_reason")) is not None and self._ended(index, reason)
        if thought:
            self._thinks = True
            self._keep(index, "reasoning", thought)
        if text or thought or more or choice.get("token_ids"):
            self._token(index, now_ns, text, more=bool(thought) or more)
            return text if isinstance(said.get(key), str) and not (thought or more or ended) else ""
        if ended:
            self._ends.setdefault(index, now_ns)
        elif _is_said(said, key) and not (said.get("role") and index not in self._stamps):
            self._token(index, now_ns, "")
        return ""

    def _settle(self) -> None:
        """Ends without text were tokens when usage counts just as many more than came in chunks."""
        super()._settle()
        ends, came, chunks = self._ends, self._came, self._chunk_count
        if came.unseen:
            came.unseen = 0 if self._thinks else max(0, min(came.unseen, self._used - chunks))
        if ends and chunks and self._used - came.unseen - chunks == len(ends):
            for index, stamp in ends.items():
                self._token(index, stamp, "")
        self._ends = {}

    def _unended(self, *, complete: bool) -> str | None:  # noqa: ARG002 - a finish_reason says more than framing
        if self._begun and self._begun <= self._reasons.keys():
            return None
        return "the stream ended with neither [DONE] nor a finish_reason"


class OpenAiWhole(WholeReader):
    """A chat or completion that was not streamed."""

    __slots__ = ()

    def _answers(self, told: dict[str, Any], came: Streamed) -> list[Answer]:
        came.tokens_out = _read_usage(told, came)
        choices, found = told.get("choices"), []
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                message = choice.get("message")
                said, key = (message, "content") if isinstance(message, dict) else (choice, "text")
                text, thought, more = _read_message(said, key)
                reason = finish_reason(choice.get("finish_reason"))
                came.unseen = 0 if thought else came.unseen
                found.append(Answer(text, thought, bool(text or thought) or more, reason))
        came.unseen = max(0, min(came.unseen, came.tokens_out))
        return found
