"""Conversations without times: ShareGPT's `conversations` of from/value, or `messages` of role/content.

A row is the first exchange of a conversation: what the human says first, and the answer to it; only its lengths are
replayed.  Read as one JSON list of any size or as one object a line, an object at a time.
"""

import codecs
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from loadgen.traffic.json_text import JsonError, unique
from loadgen.traffic.traces.source import BLOCK_BYTES, MOST_LINE_BYTES, Batch, Source, TraceError

Count = Callable[[str], int]
_ASKS = {"human", "user"}
_ANSWERS = {"gpt", "assistant", "chatgpt", "bing", "bard"}
_ROWS = 4096
_BETWEEN = " \t\r\n,[]"  # what may stand between two conversations
BYTES_A_TOKEN = 4
_EXCHANGE = 2  # turns
_READ = {"conversations", "messages", "id"}


class _Row(NamedTuple):
    """Tokens of an exchange, None where there is none, and what of the conversation is left out."""

    input: int | None
    output: int | None
    more_turns: bool
    other_blocks: bool
    keys: frozenset[str]


def estimate(text: str) -> int:
    """Tokens of a text when no tokenizer is given: UTF-8 bytes / 4, rounded up; 0 for none."""
    return -(-len(text.encode()) // BYTES_A_TOKEN)


def tokenizer(path: Path) -> Count:
    """Counts with a tokenizer.json, without special tokens.  Raises TraceError."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise TraceError(
            "tokenizer: needs the package tokenizers: pip install tokenizers, or leave it out"
        ) from None
    try:
        coder = Tokenizer.from_file(str(path))
    except Exception as why:  # noqa: BLE001 - the library raises bare Exception
        raise TraceError(f"{path}: not a tokenizer.json: {' '.join(str(why).split())[:120]}") from None
    return lambda text: len(coder.encode(text, add_special_tokens=False).ids)


def read_sharegpt(source: Source, count: Count, block_bytes: int = BLOCK_BYTES) -> Iterator[Batch]:
    """`input` and `output` in tokens; null where a conversation has no exchange.  Raises TraceError."""
    rows: list[_Row] = []
    past = 0
    for item in _items(source, block_bytes):
        try:
            rows.append(_exchange(item, count))
        except UnicodeEncodeError:
            where = f"{source.name}: conversation {past + len(rows) + 1}"
            raise TraceError(f"{where}: holds half a character, which has no UTF-8 form") from None
        if len(rows) == _ROWS:
            yield _batch(source, rows, past)
            past, rows = past + len(rows), []
    if rows:
        yield _batch(source, rows, past)
    elif not past:
        raise TraceError(f"{source.name}: no conversation in it")


def _batch(source: Source, rows: list[_Row], past: int) -> Batch:
    columns = {
        name: pa.array([getattr(row, name) for row in rows], pa.int64()) for name in ("input", "output")
    }
    notes = {
        "only its first exchange is replayed, its other turns are not": [row.more_turns for row in rows],
        "images and other blocks that are no text are not counted in its length": [
            row.other_blocks for row in rows
        ],
    }
    return Batch(
        columns,
        len(rows),
        lambda row: f"{source.name}: conversation {past + row + 1}",
        notes=notes,
        others=sorted(set().union(*(row.keys for row in rows)) - _READ),
    )


def _exchange(item: Mapping[str, Any], count: Count) -> _Row:
    turns = item.get("conversations", item.get("messages"))
    turns = [turn for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
    asked: str | None = None
    blocks = 0
    for turn in turns:
        who = turn.get("from", turn.get("role"))
        text, others = _text(turn.get("value", turn.get("content")))
        if asked is None and who in _ASKS and text is not None:
            asked, blocks = text, others
        elif asked is not None and who in _ANSWERS and text is not None:
            more = len(turns) > _EXCHANGE
            return _Row(count(asked), count(text), more, blocks + others > 0, frozenset(item))
    return _Row(None, None, more_turns=False, other_blocks=False, keys=frozenset(item))


def _text(content: Any) -> tuple[str | None, int]:
    """The text of a turn, and how many typed blocks of it are none."""
    if not isinstance(content, list):
        return (content, 0) if isinstance(content, str) else (None, 0)
    texts = [
        block["text"] for block in content if isinstance(block, dict) and isinstance(block.get("text"), str)
    ]
    return "".join(texts), len(content) - len(texts)


def _items(source: Source, block_bytes: int) -> Iterator[Mapping[str, Any]]:
    decoder, text, done = json.JSONDecoder(object_pairs_hook=unique), "", 0
    wanted = 1  # characters to have before the next try, so that a long object is not parsed over and over
    utf8 = codecs.getincrementaldecoder("utf-8-sig")()
    with source.stream() as stream:
        while True:
            new = stream.read(block_bytes)
            try:
                text += utf8.decode(new, final=not new)
            except UnicodeDecodeError:
                raise TraceError(f"{source.name}: is not UTF-8 text") from None
            at = 0
            while len(text) - at >= wanted or not new:
                at = _skip(text, at)
                if at == len(text):
                    break
                try:
                    item, at = decoder.raw_decode(text, at)
                except json.JSONDecodeError as why:
                    if not new or len(text) - at > MOST_LINE_BYTES:
                        said = f"conversation {done + 1} is not JSON: {why.msg}"
                        raise TraceError(f"{source.name}: {said}") from None
                    wanted = 2 * (len(text) - at)
                    break
                except JsonError as why:
                    raise TraceError(f"{source.name}: conversation {done + 1}: {why}") from None
                if not isinstance(item, dict):
                    raise TraceError(f"{source.name}: conversation {done + 1} is no object, {{...}}")
                yield item
                done, wanted = done + 1, 1
            text = text[at:]
            if not new:
                return


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BETWEEN:
        at += 1
    return at
