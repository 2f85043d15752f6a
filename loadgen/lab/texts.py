"""Kinds that send text, built to demand: what a profile says of a chat, and prompts, to requests.

It must not know connections or what came of a request.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from loadgen.records import LoadgenError, Message
from loadgen.traffic.chat import PLACE, Chat, Completion, Generate
from loadgen.wire.generate import generate_request
from loadgen.wire.openai import make_request
from loadgen.workload.prompts import counter, load_tokenizer, make_texts, pick_prompts, read_prompts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy as np

    from loadgen.records import Request, Wanted
    from loadgen.workload.prompts import Prompt, Tokenizer

TextPart = Chat | Completion | Generate


def build_texts(
    model: str,
    version: str,
    part: TextPart,
    wanted: Sequence[Wanted],
    rng: np.random.Generator,
    folder: Path,
    *,
    include_usage: bool = True,
) -> list[Message]:
    """One variant for each that is wanted; files count from `folder`.  Raises LoadgenError.

    Prompts of a file in the file's order are the variants in their order.
    """
    tokenizer = _tokenizer(part, folder)
    prompts = _prompts(part, [one.length for one in wanted], rng, folder, tokenizer)
    make = _maker(model, version, part, tokenizer, include_usage=include_usage)
    return [
        Message(make(prompt, max_tokens=one.output), one.length)
        for prompt, one in zip(prompts, wanted, strict=True)
    ]


def later_turns(
    part: Chat, wanted: Sequence[Wanted], rng: np.random.Generator, folder: Path
) -> list[list[str]]:
    """For each variant what the user says in turns 2, 3, ...: as long as the first, without the template."""
    tokenizer = _tokenizer(part, folder)
    lengths = [one.length or 1 for one in wanted for _ in range(part.turns - 1)]
    texts = iter(make_texts(lengths, rng, tokenizer))
    return [[next(texts) for _ in range(part.turns - 1)] for _ in wanted]


def prompt_count(part: TextPart, folder: Path) -> int | None:
    """How many prompts the part's file has; None when it makes its own.  Raises LoadgenError."""
    return None if part.prompts is None else len(read_prompts(part.prompts, folder))


def text_facts(part: TextPart) -> dict[str, Any]:
    """For run.json: where prompts come from and what a token of a prompt's length is."""
    source = "made" if part.prompts is None else f"{part.prompts.file}, {part.prompts.order}"
    return {
        "prompts": source,
        "tokens_in_by": f"tokenizer {part.tokenizer}" if part.tokenizer else "words (1 word ~ 1 token)",
    }


def _tokenizer(part: TextPart, folder: Path) -> Tokenizer | None:
    return None if part.tokenizer is None else load_tokenizer(folder / part.tokenizer)


def _prompts(
    part: TextPart,
    lengths: Sequence[int | None],
    rng: np.random.Generator,
    folder: Path,
    tokenizer: Tokenizer | None,
) -> Sequence[Prompt]:
    if part.prompts is None:
        return make_texts([length or 1 for length in lengths], rng, tokenizer, part.template)
    found = read_prompts(part.prompts, folder)
    if not isinstance(part, Chat) and not all(isinstance(prompt, str) for prompt in found):
        raise LoadgenError(f"prompts {part.prompts.file}: messages are for chat; a completion takes text")
    picked = pick_prompts(found, len(lengths), part.prompts.order, rng)
    return [part.template.replace(PLACE, prompt) if isinstance(prompt, str) else prompt for prompt in picked]


def _maker(
    model: str, version: str, part: TextPart, tokenizer: Tokenizer | None, *, include_usage: bool
) -> Callable[..., Request]:
    """Takes a prompt and max_tokens."""
    common: dict[str, Any] = {
        "stream": part.stream, "max_tokens_key": part.max_tokens_key, "extra": part.extra,
        "count": None if tokenizer is None else counter(tokenizer),
    }  # fmt: skip
    if isinstance(part, Generate):
        return partial(
            generate_request,
            model,
            version,
            text_input=part.text_input,
            text_output=part.text_output,
            **common,
        )
    common |= {"temperature": part.temperature, "ignore_eos": part.ignore_eos, "include_usage": include_usage}
    if not isinstance(part, Chat):
        return partial(make_request, model, **common)
    system = [] if part.system is None else [{"role": "system", "content": part.system}]

    def chat(prompt: Prompt, max_tokens: int | None) -> Request:
        turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return make_request(
            model, [*system, *turns], max_tokens=max_tokens, keep_text=part.turns > 1, **common
        )

    return chat
