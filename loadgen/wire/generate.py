"""Triton's generate extension: JSON in, JSON out (`generate`) or JSON as server-sent events (`generate_stream`).

The stream has no [DONE]: it ends with the HTTP answer.  It must not know sockets, clocks or where prompts
come from.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

from loadgen.records import LoadgenError, Request, Streamed
from loadgen.wire.finish import finish_reason
from loadgen.wire.kserve_http import model_path
from loadgen.wire.openai import encode_json, output_limits
from loadgen.wire.stream import NO_LIMITS, Answer, EventReader, Limits, WholeReader

_AXES = 8  # of a tensor of texts


def generate_request(  # noqa: PLR0913 - one keyword a field
    model: str,
    version: str,
    text: str,
    *,
    stream: bool = True,
    text_input: str = "text_input",
    text_output: str = "text_output",
    max_tokens: int | None = None,
    max_tokens_key: str = "max_tokens",
    extra: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] | None = None,
    keep_text: bool = False,
    count: Callable[[str], int] | None = None,
) -> Request:
    """`text_input` and `text_output` name the model's tensors; `extra` goes in as it is, over this request's own `fields`.

    `max_tokens_key` may point into an object: `parameters.max_tokens` is where the vLLM backend has it.  Raises
    LoadgenError for a key that cannot be set.
    """
    body = _merged(fields or {}, extra or {})
    body[text_input] = text
    *outer, key = max_tokens_key.split(".")
    if max_tokens is not None and _find(fields or {}, max_tokens_key) is None:
        inner = body
        for name in outer:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise LoadgenError(f"{max_tokens_key}: {name} is no object in extra")
        inner[key] = max_tokens
    parameters = body.get("parameters")
    told = {**(parameters if isinstance(parameters, dict) else {}), **body, key: _find(body, max_tokens_key)}
    limits = output_limits(told, key)
    reader: type[GenerateReader | GenerateWhole] = GenerateReader if stream else GenerateWhole
    return Request(
        f"{model_path(model, version)}/generate{'_stream' if stream else ''}",
        (
            ("Content-Type", "application/json"),
            ("Accept", "text/event-stream" if stream else "application/json"),
        ),
        encode_json(body),
        reader=partial(reader, text_output=text_output, keep_text=keep_text, count=count, limits=limits),
    )


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both, objects key by key."""
    body: dict[str, Any] = deepcopy(dict(under))
    for key, value in over.items():
        inner = body.get(key)
        both = isinstance(inner, dict) and isinstance(value, Mapping)
        body[key] = _merged(inner, value) if both and inner is not None else deepcopy(value)
    return body


def _find(fields: Any, path: str) -> Any:
    """What a dotted path leads to, or None."""
    for name in path.split("."):
        fields = fields.get(name) if isinstance(fields, Mapping) else None
    return fields


def _text(value: Any, depth: int = _AXES) -> str:
    """A tensor's value as text; a list is a tensor of more than one element."""
    if isinstance(value, list):
        return "".join(_text(part, depth - 1) for part in value) if depth else ""
    return "" if value is None else str(value)


# What a row may have beside its text: fields of the vLLM and TensorRT-LLM backends.
GENERATE_FIELDS = frozenset(
    """parameters sampling_parameters exclude_input_in_output return_finish_reason return_cumulative_logprob
    return_logprobs return_num_input_tokens return_num_output_tokens image max_tokens min_tokens min_length bad_words
    stop_words end_id pad_id top_k top_p temperature length_penalty repetition_penalty presence_penalty
    frequency_penalty random_seed seed return_log_probs return_context_logits return_generation_logits beam_width
    early_stopping num_return_sequences embedding_bias_words embedding_bias_weights""".split()  # noqa: SIM905 - readable
)


class GenerateReader(EventReader):
    """An answer of generate_stream.  A chunk with an empty text is a token, but for the last one: that is the end."""

    __slots__ = ("_empty", "_key", "_output")

    empty_is_token = False  # nor any before the next one has come

    def __init__(
        self,
        *,
        text_output: str = "text_output",
        keep_text: bool = False,
        count: Callable[[str], int] | None = None,
        limits: Limits = NO_LIMITS,
    ) -> None:
        super().__init__(keep_text=keep_text, count=count, limits=limits)
        self._output = text_output
        self._key = f'"{text_output}"'.encode()
        self._empty: list[tuple[int, int]] = []  # (chunks before it, stamp) of those with an empty text

    def _chunk(self, chunk: dict[str, Any], event: bytes, now_ns: int) -> None:
        value = chunk.get(self._output)
        ended = self._ended(0, chunk.get("finish_reason"))
        if text := _text(value):
            self._token(0, now_ns, text)
            if isinstance(value, str) and not ended:
                self._learn(event, self._key, 0, value)
        elif value is not None and not ended:
            self._empty.append((self._chunk_count, now_ns))

    def _settle(self) -> None:
        empty, self._empty = self._empty, []
        if empty and empty[-1][0] == self._chunk_count:
            empty.pop()
        for place, stamp in reversed(empty):
            self._stamps.setdefault(0, []).insert(place, stamp)

    def _unended(self, *, complete: bool) -> str | None:
        return None if complete else "the stream broke off"


class GenerateWhole(WholeReader):
    """An answer of generate."""

    __slots__ = ("_output",)

    def __init__(
        self,
        *,
        text_output: str = "text_output",
        keep_text: bool = False,
        count: Callable[[str], int] | None = None,
        limits: Limits = NO_LIMITS,
    ) -> None:
        super().__init__(keep_text=keep_text, count=count, limits=limits)
        self._output = text_output

    def _answers(self, told: dict[str, Any], came: Streamed) -> list[Answer]:  # noqa: ARG002 - no usage
        text = _text(told.get(self._output))
        return [Answer(text, "", bool(text), finish_reason(told.get("finish_reason")))]
