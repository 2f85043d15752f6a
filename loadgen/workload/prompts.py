"""Texts of so many tokens, all of them different from their first words on, so that no cache on the way helps.

With a tokenizer a text has exactly the tokens asked for when it is encoded again (special tokens not counted);
without one a word counts as a token.  Random words, the same for the same seed.  It reads files of the profile and
never fetches anything.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from loadgen.records import LoadgenError
from loadgen.traffic.chat import PLACE, Prompts
from loadgen.traffic.json_text import JsonError, decoded, lone_surrogate, parse_json
from loadgen.traffic.lines import LinesError, text_lines
from loadgen.traffic.words import near, show_value

_TRIES = 20  # for one text to be different from all others
_MENDS = 30  # for one text to have its tokens
_BATCH = 64
_MOST_WORDS = 4000
_PLAIN = re.compile(r"[Ġ▁]?([a-z]{2,12})")  # a vocabulary's entry that can stand as a word
_FEW = 16  # words that a vocabulary must offer
WORDS = tuple(
    """able about above act add after again age air all along also always and angle animal answer any area arm
    art ask away baby back ball bank base bear beat bed begin bell best big bird black blood blue board boat
    body bone book both bottom box boy bread break bright bring brother build burn busy buy call camp capital
    car care carry case catch cause cell center chair change check child choose circle city class clean clear
    climb clock close cloud coast cold color column come common contain cook cool copy corn cost cotton count
    country course cover cow create cross crowd cry current cut dance dark day dead deal dear decide deep desert
    design develop differ direct doctor dog dollar door double down draw dream dress drink drive drop dry duck
    early earth ease east eat edge effect egg eight electric else end enemy energy engine enough enter equal
    event ever every exact example eye face fact fair fall family famous far farm fast father favor fear feed
    feel feet fell few field fight figure fill final find fine finger finish fire first fish fit five flat floor
    flow flower fly follow food foot force forest form forward found four fraction free fresh friend front fruit
    full fun game garden gas gather general gentle get girl give glad glass go gold good govern grand grass gray
    great green ground group grow guess guide gun hair half hand happen happy hard hat have head hear heart heat
    heavy help high hill history hit hold hole home hope horse hot hour house huge human hunt hurry ice idea""".split()  # noqa: SIM905 - readable
)


class Tokenizer(Protocol):
    """What is used of the `tokenizers` library."""

    def encode_batch(self, texts: list[str], *, add_special_tokens: bool) -> Sequence[Any]: ...
    def get_vocab(self) -> dict[str, int]: ...


@lru_cache(8)
def load_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer.json, or the one in a folder.  Raises LoadgenError."""
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        from tokenizers import Tokenizer as Library
    except ImportError:
        raise LoadgenError(
            f"tokenizer {path}: needs the tokenizers library; pip install 'loadgen[tokenizer]'"
        ) from None
    if not file.is_file():
        raise LoadgenError(
            f"tokenizer {path}: there is no {file.name}; allowed: a local tokenizer.json or its folder"
        )
    try:
        tokenizer = Library.from_file(str(file))
    except Exception as why:  # noqa: BLE001 - the library raises bare Exception
        raise LoadgenError(f"tokenizer {file}: {why}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    whole: Tokenizer = tokenizer
    return whole


def counter(tokenizer: Tokenizer | None) -> Callable[[str], int]:
    """Tokens in a text; without a tokenizer its words."""
    if tokenizer is None:
        return lambda text: len(text.split())
    return lambda text: len(tokenizer.encode_batch([text], add_special_tokens=False)[0])


def make_texts(
    lengths: Sequence[int],
    rng: np.random.Generator,
    tokenizer: Tokenizer | None = None,
    template: str = PLACE,
) -> list[str]:
    """One text for each length, template and all.

    Raises LoadgenError for a length that the template alone passes, or that no words of this tokenizer add up to.
    """
    words, sizes = _words(tokenizer)
    texts: list[str] = []
    seen: set[str] = set()
    for start in range(0, len(lengths), _BATCH):
        for text, length in zip(
            _exact(lengths[start : start + _BATCH], rng, (words, sizes), tokenizer, template),
            lengths[start : start + _BATCH],
            strict=True,
        ):
            one = text
            for _ in range(_TRIES):
                if one not in seen:
                    break
                (one,) = _exact([length], rng, (words, sizes), tokenizer, template)
            seen.add(one)
            texts.append(one)
    return texts


def _words(tokenizer: Tokenizer | None) -> tuple[Sequence[str], Sequence[int]]:
    """Words that are one token each behind another word, as far as there are any, and how many tokens they are."""
    if tokenizer is None:
        return WORDS, (1,) * len(WORDS)
    entries = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    matches = (_PLAIN.fullmatch(entry) for entry, _ in entries)
    known = list(dict.fromkeys(match[1] for match in matches if match))[:_MOST_WORDS]
    alone, twice = _counts(known, tokenizer), _counts([f"{word} {word}" for word in known], tokenizer)
    words = [word for word, one, two in zip(known, alone, twice, strict=True) if two == one + 1]
    if len(words) >= _FEW:
        return words, (1,) * len(words)
    alone, twice = _counts(list(WORDS), tokenizer), _counts([f"{word} {word}" for word in WORDS], tokenizer)
    return WORDS, [max(1, two - one) for one, two in zip(alone, twice, strict=True)]


def _fill(tokens: int, rng: np.random.Generator, words: Sequence[str], sizes: Sequence[int]) -> list[int]:
    """Places of words of so many tokens in all, or a few more where none are so short."""
    least, most = min(sizes), max(sizes)
    if most == 1:
        return [int(i) for i in rng.integers(0, len(words), size=tokens)]
    found: list[int] = []
    while tokens > 0:
        if tokens > 2 * most:
            place = int(rng.integers(0, len(words)))
        else:  # the last two: what they leave must be nothing or a word
            last = [i for i, size in enumerate(sizes) if size == tokens or tokens - size >= least]
            place = int(rng.choice(last)) if last else sizes.index(least)
        found.append(place)
        tokens -= sizes[place]
    return found


def _exact(
    lengths: Sequence[int],
    rng: np.random.Generator,
    known: tuple[Sequence[str], Sequence[int]],
    tokenizer: Tokenizer | None,
    template: str,
) -> list[str]:
    words, sizes = known
    least = min(sizes)

    def text(places: list[int]) -> str:
        return template.replace(PLACE, " ".join(words[i] for i in places))

    drawn = [_fill(n, rng, words, sizes) for n in lengths]
    texts = [text(places) for places in drawn]
    wrong = list(range(len(lengths)))
    for _ in range(_MENDS):
        counts = _counts([texts[at] for at in wrong], tokenizer)
        off = [(at, lengths[at] - n) for at, n in zip(wrong, counts, strict=True) if n != lengths[at]]
        if not off:
            return texts
        for at, off_by in off:
            own, lacking = drawn[at], off_by
            while own and (lacking < 0 or 0 < lacking < least):
                lacking += sizes[own.pop()]
            own += _fill(max(lacking, 0 if own else 1), rng, words, sizes)
            texts[at] = text(own)
        wrong = [at for at, _ in off]
    shortest = min(_counts([template.replace(PLACE, word) for word in words], tokenizer))
    length = lengths[wrong[0]]
    if length < shortest:
        raise LoadgenError(
            f"a prompt of {length} tokens: the template with one word has {shortest}; allowed: {shortest} or more"
        )
    raise LoadgenError(
        f"a prompt of {length} tokens: words of this tokenizer do not add up to it; give another length"
    )


def _counts(texts: list[str], tokenizer: Tokenizer | None) -> list[int]:
    if tokenizer is None:
        return [len(text.split()) for text in texts]
    return [len(encoded) for encoded in tokenizer.encode_batch(texts, add_special_tokens=False)]


_TURNS = "messages"  # the key of a chat's turns where a row has none of the profile's


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text, or the messages of a chat; with the request fields that its row has beside it."""

    content: str | list[dict[str, Any]]
    fields: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""  # file and line, for errors


def read_prompts(prompts: Prompts, folder: Path, request_fields: Collection[str] = ()) -> list[Prompt]:
    """The prompts of a file; a relative path counts from `folder`.

    `request_fields` are the keys of a row that belong to its request.  Raises LoadgenError, naming file and line: also
    for a key that is neither such a field nor among `prompts.send` and `prompts.ignore`.  An empty line is no prompt.
    """
    path = folder / prompts.file
    try:
        lines = text_lines(path.read_bytes())
    except (OSError, LinesError) as why:
        raise LoadgenError(f"prompts {path}: {why.strerror if isinstance(why, OSError) else why}") from None
    allowed = {*request_fields, *prompts.send} - {*prompts.ignore}
    found = []
    for number, raw in enumerate(lines, 1):
        where = f"{path}:{number}"
        if raw.strip(b" \t") if prompts.is_json else raw:
            text = _decoded(raw, where)
            found.append(_from_json(text, prompts, allowed, where) if prompts.is_json else _line(text, where))
    if not found:
        raise LoadgenError(f"prompts {path}: there is no text in it")
    return found


def _decoded(raw: bytes, where: str) -> str:
    try:
        return decoded(raw)
    except JsonError as why:
        raise LoadgenError(f"prompts {where}: it is no UTF-8 text: {why}; save it as UTF-8") from None


def _line(text: str, where: str) -> Prompt:
    if "\0" in text:
        raise LoadgenError(f"prompts {where}: a zero byte; is it UTF-16? Save it as UTF-8, or write .jsonl")
    return Prompt(text, where=where)


def _from_json(line: str, prompts: Prompts, allowed: Collection[str], where: str) -> Prompt:
    try:
        row = parse_json(line, finite=True)
    except JsonError as why:
        raise LoadgenError(f"prompts {where}: no JSON: {why}") from None
    if (half := lone_surrogate(row)) is not None:
        raise LoadgenError(
            f"prompts {where}: {show_value(half)} holds half a character, which has no UTF-8 form"
        )
    name = prompts.field or "prompt"
    if isinstance(row, dict):
        key = name if name in row else _TURNS
        value = row.get(key)
        fields = _fields(row, key, prompts, allowed, where)
    else:
        value, fields = row, {}
    if isinstance(value, str) and value:
        return Prompt(value, fields, where)
    if isinstance(value, list) and value and all(isinstance(turn, dict) and "role" in turn for turn in value):
        return Prompt(value, fields, where)
    raise LoadgenError(
        f"prompts {where}: no text or messages under {name!r}; allowed: a text, or an object with {name!r}"
    )


def _fields(
    row: Mapping[str, Any], key: str, prompts: Prompts, allowed: Collection[str], where: str
) -> dict[str, Any]:
    """The row's own request fields.  Raises LoadgenError for a key that would be dropped."""
    if key not in row:
        return {}  # refused by who asked
    for name in row:
        if name != key and name not in allowed and name not in prompts.ignore:
            raise LoadgenError(
                f"prompts {where}: the key {name!r} is no field of a request that is known here{near(name, allowed)}; "
                f"write prompts: {{send: [{name}]}} to send it, or {{ignore: [{name}]}} to leave it out"
            )
    return {name: value for name, value in row.items() if name != key and name not in prompts.ignore}


def pick_prompts(found: Sequence[Prompt], n: int, order: str, rng: np.random.Generator) -> list[Prompt]:
    """`n` of them: in the file's order, round and round, or drawn with equal chances."""
    at = np.arange(n) % len(found) if order == "file" else rng.integers(0, len(found), size=n)
    return [found[i] for i in at]
