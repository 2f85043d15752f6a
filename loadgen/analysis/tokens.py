"""What is to be doubted of answers of text: who counted their tokens, how they ended, how long they were, caches."""

from typing import Any

from loadgen.analysis.words import amount
from loadgen.records import Doubt
from loadgen.wire.finish import Finish, finish_of

MOSTLY_CACHED = 0.5  # of the tokens in, over all
_REASONS = 5  # that are listed
OFTEN_CACHED = 0.1  # of the requests: those whose prompt was cached for more than half


def doubts(streaming: dict[str, Any]) -> list[Doubt]:
    """Of the figures of streams (analysis.streaming)."""
    if not streaming["n"]:
        return []
    rules = (_counted, _unseen, _ends, _short, _cached)
    return [doubt for rule in rules for doubt in rule(streaming)]


def _counted(streaming: dict[str, Any]) -> list[Doubt]:
    """Token figures are no better than who counted the tokens."""
    n, counted, unknown = (
        streaming["n"],
        streaming["tokens_from"]["chunks"],
        streaming["tokens_from"]["unknown"],
    )
    found = []
    if counted:
        text = (
            f"figures of tokens rest on counting chunks for {counted} of {amount(n, 'stream')}: a chunk may hold "
            "several tokens, or none that the server would count"
        )
        hint = "have the server tell its usage, or give a tokenizer; time to first token and chunk gaps stand"
        found.append(Doubt("tokens_from_chunks", text, hint))
    if unknown:
        text = f"{unknown} of {amount(n, 'stream')} told no number of tokens: they are in no figure of tokens"
        hint = "have the server tell its usage, or give a tokenizer"
        found.append(Doubt("no_usage", text, hint))
    return found


def _unseen(streaming: dict[str, Any]) -> list[Doubt]:
    unseen = streaming["unseen_tokens"]
    if not unseen["n"]:
        return []
    text = (
        f"{unseen['n']} of {amount(streaming['n'], 'stream')} told {amount(unseen['sum'], 'token')} in usage that they did "
        "not show: these are in the counts, and in no first token nor time per token"
    )
    hint = "see what the server leaves out of its answers (reasoning, special tokens) and have it sent"
    return [Doubt("tokens_unseen", text, hint)]


def _ends(streaming: dict[str, Any]) -> list[Doubt]:
    """A reason that is neither known as a normal end nor says that the server gave up."""
    new = {reason: n for reason, n in streaming["finish"].items() if finish_of(reason) is Finish.UNKNOWN}
    if not new:
        return []
    said = ", ".join(f"{reason} ({n})" for reason, n in list(new.items())[:_REASONS])
    text = f"{sum(new.values())} of {amount(streaming['n'], 'stream')} ended by a reason that is not known: {said}"
    hint = "they count as successes: see in the server's documentation whether such an answer is whole"
    return [Doubt("unknown_finish", text, hint)]


def _short(streaming: dict[str, Any]) -> list[Doubt]:
    lengths = streaming["output_lengths"]
    if not lengths["short"]:
        return []
    n, short = lengths["bound"], lengths["short"]
    text = (
        f"{short} of {amount(n, 'stream')} ({_percent(short / n)}) stopped short of the tokens that the profile asks for "
        f"(mean {lengths['short_mean']:.3g}): their latency is that of a shorter answer"
    )
    hint = "the server does not heed ignore_eos or min_tokens, or cuts answers (context length, limits): goodput leaves them out"
    return [Doubt("short_outputs", text, hint)]


def _cached(streaming: dict[str, Any]) -> list[Doubt]:
    cached = streaming["cached_tokens"]
    if not cached["n"] or (
        cached["share"] <= MOSTLY_CACHED and cached["mostly"] <= OFTEN_CACHED * cached["n"]
    ):
        return []
    text = (
        f"{_percent(cached['share'])} of the tokens in came from the server's prefix cache; of {cached['mostly']} of "
        f"{amount(cached['n'], 'stream')} more than half of the prompt"
    )
    hint = (
        "first tokens are those of cached prompts: send texts that do not repeat, or switch the prefix cache off, unless "
        "the users to come share prompts as these do (a chat's history, one system prompt)"
    )
    return [Doubt("prompts_cached", text, hint)]


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"
