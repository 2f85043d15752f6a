"""Conversations without times: ShareGPT's `conversations` of from/value, or `messages` of role/content.

A row is the first exchange of a conversation: what the human says first, and the answer to it.  Read as one
JSON list of any size or as one object a line, an object at a time.
"""

import codecs
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from loadgen.traffic.traces.source import BLOCK_BYTES, MOST_LINE_BYTES, Batch, Source, TraceError

Count = Callable[[str], int]
_ASKS = {"human", "user"}
_ANSWERS = {"gpt", "assistant", "chatgpt", "bing", "bard"}
_ROWS = 4096
_BETWEEN = " \t\r\n,[]"  # what may stand between two conversations
BYTES_A_TOKEN = 4


def estimate(text: str) -> int:
    """Tokens of a text when no tokenizer is given: UTF-8 bytes / 4, rounded up; 0 for none."""
    return -(-len(text.encode(errors="surrogatepass")) // BYTES_A_TOKEN)


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
    rows: list[tuple[int | None, int | None]] = []
    past = 0
    for item in _items(source, block_bytes):
        rows.append(_exchange(item, count))
        if len(rows) == _ROWS:
            yield _batch(source, rows, past)
            past, rows = past + len(rows), []
    if rows:
        yield _batch(source, rows, past)
    elif not past:
        raise TraceError(f"{source.name}: no conversation in it")


def _batch(source: Source, rows: list[tuple[int | None, int | None]], past: int) -> Batch:
    columns = {
        name: pa.array([row[at] for row in rows], pa.int64()) for at, name in enumerate(("input", "output"))
    }
    return Batch(columns, len(rows), lambda row: f"{source.name}: conversation {past + row + 1}")


def _exchange(item: Mapping[str, Any], count: Count) -> tuple[int | None, int | None]:
    turns = item.get("conversations", item.get("messages"))
    asked: str | None = None
    for turn in turns if isinstance(turns, list) else ():
        if not isinstance(turn, dict):
            continue
        who, text = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
        if asked is None and who in _ASKS and isinstance(text, str):
            asked = text
        elif asked is not None and who in _ANSWERS and isinstance(text, str):
            return count(asked), count(text)
    return None, None


def _items(source: Source, block_bytes: int) -> Iterator[Mapping[str, Any]]:
    decoder, text, done = json.JSONDecoder(), "", 0
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
