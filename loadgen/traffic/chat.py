"""How a profile asks a model for text: `chat:`, `completion:` and `generate:` of a kind.

```yaml
chat:                       # OpenAI-compatible, POST chat/completions
  system: You are brief.    # optional: the first message
  stream: true              # default; false: one answer, one stamp
  temperature: 0
  ignore_eos: true          # where the server knows it: as many tokens as `output` says
  max_tokens_key: max_completion_tokens     # what `output` is called; default max_tokens
  extra: {top_p: 0.9}       # more of the body, as it is
  tokenizer: ./tokenizer    # a folder with tokenizer.json, or such a file; without it one word counts as a token
  template: "Say more about: {text}"
  prompts: {file: prompts.jsonl, order: drawn}   # instead of length: own texts, in the file's order or drawn
  # prompts: {file: log.jsonl, field: messages, send: [my_field], ignore: [id]}   keys of a row that are no fields of a
  #                                request known here are refused unless they are to be sent, or left out
  turns: 3                  # a conversation that resends its history; think: 2s between an answer and the next turn
completion: {...}           # POST completions: the same without system, turns and think
generate:                   # Triton's generate_stream (stream: false: generate)
  text_input: text_input    # names of the model's tensors
  text_output: text_output
  max_tokens_key: parameters.max_tokens      # a dot leads into an object
  extra: {parameters: {stream: true}}
```

A row of a prompts file may be an object with fields of its own request (tools, max_tokens, temperature, ...): they are
sent with it.  `extra` wins over a row's field, and a row's field over the kind's `output`, `temperature` and `ignore_eos`.
"""

import math
from collections.abc import Iterator
from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from loadgen.traffic.parts import Count, DurationOrZeroNs, FaultsError, Name, Part, as_tuple
from loadgen.traffic.words import show_value

PLACE = "{text}"


def _template(value: str) -> str:
    if value.count(PLACE) != 1:
        raise ValueError(f'{show_value(value)} needs {PLACE} once, e.g. "Translate: {PLACE}"')
    return value


def _json(value: Any) -> Any:
    """YAML knows dates and other keys than text; JSON does not."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _json(inner)
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        raise ValueError(f"{show_value(value)} has a key that is no text; quote it")
    if not isinstance(value, dict | list | str | int | float | None) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        raise ValueError(f"{show_value(value)} has no JSON form; quote it")
    return value


def _leads_to(data: Any, path: str) -> bool:
    """Whether there is a value under a key, or under a path of keys with dots between."""
    if isinstance(data, dict) and path in data:
        return True
    first, _, rest = path.partition(".")
    return bool(rest) and isinstance(data, dict) and _leads_to(data.get(first), rest)


Json = Annotated[dict[str, Any], AfterValidator(_json)]


_NO_LINES = (".json", ".csv", ".parquet", ".npy", ".npz", ".gz", ".zst")
_Keys = Annotated[tuple[Name, ...], BeforeValidator(as_tuple), Field(max_length=1000)]


class Prompts(Part):
    """Texts of a file: of .jsonl one text or object a line, of any other file one text a line.

    `field` is the key of an object's text or messages (default: prompt, or messages).  Its other keys are sent where
    they are fields of such a request, or `send` names them; those of `ignore` are left out; others are refused.
    """

    file: Name = Field(examples=["prompts.jsonl"])
    field: Name | None = None
    order: Literal["file", "drawn"] = "file"
    send: _Keys = ()
    ignore: _Keys = ()

    @property
    def is_json(self) -> bool:
        """Whether its lines are JSON."""
        return PurePath(self.file).suffix.lower() in (".jsonl", ".ndjson")

    @model_validator(mode="after")
    def _keys_of_rows(self) -> Self:
        if PurePath(self.file).suffix.lower() in _NO_LINES:
            raise FaultsError(
                (("file",), f"{self.file} is not one text a line; allowed: .jsonl, or lines of text (.txt)")
            )
        for key in ("field", "send", "ignore"):
            if key in self.model_fields_set and not self.is_json:
                raise FaultsError(
                    ((key,), f"is of the rows of a .jsonl file, and {self.file} is lines of text")
                )
        if both := sorted({*self.send} & {*self.ignore}):
            raise FaultsError((("ignore",), f"{both[0]!r} is to be sent too; keep one"))
        return self


class Texts(Part):
    """What all kinds that send text have in common."""

    stream: bool = True
    tokenizer: Name | None = None
    template: Annotated[str, AfterValidator(_template)] = PLACE
    prompts: Prompts | None = None
    max_tokens_key: Name = "max_tokens"
    extra: Json = Field(default_factory=dict)

    def extra_faults(self, *, has_output: bool) -> Iterator[tuple[tuple[str, str], str]]:
        """Keys of `extra` that the kind says too, in its own words: one of the two would be dropped."""
        given = dict.fromkeys(self._own_keys(), "is made by the kind")
        if has_output:
            given[self.max_tokens_key] = "is what output says"
        for key, said in given.items():
            if _leads_to(self.extra, key):
                yield ("extra", key), f"{said}; keep one of them"

    def _own_keys(self) -> list[str]:
        """The fields of a body that other keys of the profile give."""
        return []

    def length_fault(self, *, has_length: bool) -> str | None:
        """What is wrong with the kind's length (`length` or `lengths`), if anything."""
        if self.prompts is not None and has_length:
            return "takes its texts from prompts, so their length is given; take length out"
        if self.prompts is None and not has_length:
            return "needs the length of its prompts in tokens, e.g. length: 200, or prompts: {file: ...}"
        return None


class Completion(Texts):
    """OpenAI-compatible completions."""

    temperature: Annotated[float, Field(ge=0)] | None = None
    ignore_eos: bool | None = None

    def _own_keys(self) -> list[str]:
        given = [name for name in ("temperature", "ignore_eos") if getattr(self, name) is not None]
        return ["model", "prompt", "messages", "stream", *given]


class Chat(Completion):
    """OpenAI-compatible chat."""

    system: str | None = None
    turns: Annotated[Count, Field(le=1000)] = 1
    think_ns: DurationOrZeroNs = Field(0, alias="think")

    @model_validator(mode="after")
    def _think_between_turns(self) -> Self:
        if self.think_ns and self.turns == 1:
            raise FaultsError((("think",), "is between turns, and there is one; write turns: 2 or more"))
        return self


class Generate(Texts):
    """Triton's generate extension."""

    text_input: Name = "text_input"
    text_output: Name = "text_output"

    def _own_keys(self) -> list[str]:
        return [self.text_input]
