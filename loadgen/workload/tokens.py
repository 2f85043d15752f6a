"""Texts to token ids by a model's own tokenizer, from a local tokenizer.json.

The library `tokenizers` is optional: imported only where a profile names a tokenizer.  It must not know
models, tensors or files of rows.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadgen.records import LoadgenError

FILE = "tokenizer.json"


class TokenizerError(LoadgenError):
    """A tokenizer that is not there or cannot be read."""


def load_tokenizer(path: Path) -> Any:
    """A `tokenizers.Tokenizer` from a tokenizer.json or the folder that holds one.  Raises TokenizerError."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise TokenizerError(
            "tokenizer: needs a library that is not installed; run: pip install tokenizers"
        ) from None
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        said = f"no {FILE} in this folder" if path.is_dir() else "no such file"
        raise TokenizerError(f"{path}: {said}; allowed: a {FILE} or the folder that holds one")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as why:  # noqa: BLE001 - the library raises a bare Exception
        reason = " ".join(str(why).split())[:200]
        raise TokenizerError(f"{file}: no tokenizer that can be read: {reason}") from None


def token_ids(tokenizer: Any, texts: Sequence[str], most: int | None) -> tuple[list[list[int]], int]:
    """The ids of each text, its special tokens with them, and how many texts were cut to `most` tokens."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if most is not None:
        tokenizer.enable_truncation(most)
    encoded = tokenizer.encode_batch(list(texts))
    return [list(one.ids) for one in encoded], sum(bool(one.overflowing) for one in encoded)
