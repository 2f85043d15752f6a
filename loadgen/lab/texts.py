"""Kinds that send text, built to demand: what a profile says of a chat, and prompts, to requests."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from loadgen.records import LoadgenError, Message
from loadgen.traffic.chat import PLACE, Chat, Completion, Generate
from loadgen.traffic.words import show_value
from loadgen.wire.generate import GENERATE_FIELDS, generate_request
from loadgen.wire.openai import CHAT_FIELDS, COMPLETION_FIELDS, make_request
from loadgen.workload.prompts import (
    Prompt,
    counter,
    load_tokenizer,
    make_texts,
    pick_prompts,
    read_prompts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy as np

    from loadgen.records import Request, Wanted
    from loadgen.workload.prompts import Tokenizer

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
        Message(
            make(prompt.content, max_tokens=one.output, fields=_own_fields(prompt, model, part)), one.length
        )
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
    return None if part.prompts is None else len(_read(part, folder))


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
        made = make_texts([length or 1 for length in lengths], rng, tokenizer, part.template)
        return [Prompt(text) for text in made]
    found = _read(part, folder)
    picked = pick_prompts(found, len(lengths), part.prompts.order, rng)
    return [
        replace(prompt, content=part.template.replace(PLACE, prompt.content))
        if isinstance(prompt.content, str)
        else prompt
        for prompt in picked
    ]


def _read(part: TextPart, folder: Path) -> list[Prompt]:
    """The prompts of the part's file.  Raises LoadgenError for one that it cannot send."""
    assert part.prompts is not None  # noqa: S101 - asked for only then
    known = {Chat: CHAT_FIELDS, Completion: COMPLETION_FIELDS, Generate: GENERATE_FIELDS}[type(part)]
    found = read_prompts(part.prompts, folder, known)
    for prompt in found:
        if not isinstance(part, Chat) and not isinstance(prompt.content, str):
            raise LoadgenError(f"prompts {prompt.where}: messages are for chat; a completion takes text")
    return found


def _own_fields(prompt: Prompt, model: str, part: TextPart) -> dict[str, Any]:
    """A row's fields of its request, without those that say what the kind says too.  Raises LoadgenError."""
    fields = dict(prompt.fields)
    for name, ours in (("model", model), ("stream", part.stream)) if not isinstance(part, Generate) else ():
        if name in fields and (value := fields.pop(name)) != ours:
            raise LoadgenError(
                f"prompts {prompt.where}: {name} is {show_value(value)}, and the kind's is {show_value(ours)}; change one, "
                f"or leave the rows' out: prompts: {{ignore: [{name}]}}"
            )
    return fields


def shared_prefix(bodies: Sequence[bytes]) -> dict[str, Any] | None:
    """What all prompts of a kind begin with, a system prompt or a template: its bytes, and their share of a mean body.

    None for a single prompt, and where they differ from the first word on.
    """
    if len(set(bodies)) < 2:  # noqa: PLR2004 - one prompt shares nothing with another
        return None
    first, last = (_content(json.loads(body)) for body in (min(bodies), max(bodies)))
    alike = sum(
        len(a.encode()) for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    )
    around = len(min(bodies)) - len(first.encode())
    mean = max(sum(map(len, bodies)) / len(bodies) - around, 1)
    return {"bytes": alike, "share": round(min(alike / mean, 1.0), 4)} if alike else None


def _content(body: dict[str, Any]) -> str:
    """The texts of a body in their order."""
    turns = body.get("messages")
    if turns is None:
        return next((value for value in reversed(body.values()) if isinstance(value, str)), "")
    return "".join(c if isinstance(c := turn.get("content"), str) else json.dumps(c) for turn in turns)


def prompt_remarks(kind: str, part: TextPart, folder: Path, *, has_output: bool) -> list[str]:
    """Where a row's own field and the profile say two things: which one is sent.  Raises LoadgenError."""
    if part.prompts is None:
        return []
    rows = _read(part, folder)
    counts = Counter(name for row in rows for name in row.fields)
    where, n = f"kind {kind!r}: prompts {part.prompts.file}", len(rows)
    remarks = [
        f"{where}: {name} of {counts[name]:,} of {n:,} rows is not sent: extra has its own"
        for name in counts
        if name in part.extra
    ]
    named = {"temperature", "ignore_eos"} if isinstance(part, Completion) else set()
    given = {name for name in named if getattr(part, name) is not None}
    given |= {"max_tokens", "max_completion_tokens", part.max_tokens_key} if has_output else set()
    return remarks + [
        f"{where}: {counts[name]:,} of {n:,} rows have a {name} of their own, which is sent instead of the kind's"
        for name in counts
        if name in given and name not in part.extra
    ]


def _maker(
    model: str, version: str, part: TextPart, tokenizer: Tokenizer | None, *, include_usage: bool
) -> Callable[..., Request]:
    """Takes a prompt, max_tokens and the request's own fields."""
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

    def chat(prompt: str | list[dict[str, Any]], max_tokens: int | None, fields: dict[str, Any]) -> Request:
        turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return make_request(
            model, [*system, *turns], max_tokens=max_tokens, fields=fields, keep_text=part.turns > 1, **common
        )

    return chat
