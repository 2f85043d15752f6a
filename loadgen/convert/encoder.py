"""A source loaded in PyTorch, wrapped so that tensors go in and one plain tensor comes out.

Local files only, and never code that comes with a model.  It must not know ONNX or Triton.
"""

import importlib.util
import inspect
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loadgen.convert.sources import Source
from loadgen.records import LoadgenError

if TYPE_CHECKING:
    import torch

_LONGEST = 512  # the default ceiling where a model allows more: attention grows with its square
_NEEDED = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")


class EncoderError(LoadgenError):
    """A model that cannot be loaded, or is not the kind that can be converted."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """What is exported and compared: `module(**{name: int64 tensor for name in inputs})` is the answer.

    `positions` is the longest input the weights allow, `max_length` the longest that will be served.
    `output` is the name to publish; `per_token` tells [batch, length, width] from [batch, width].
    """

    module: "torch.nn.Module"
    inputs: tuple[str, ...]
    output: str
    width: int
    per_token: bool
    vocab_size: int
    pad_token_id: int
    type_vocab_size: int
    positions: int
    max_length: int


def require_libraries() -> None:
    """Raises EncoderError naming what is not installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise EncoderError(f"converting needs {', '.join(missing)}: pip install 'loadgen[convert]'")


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps the libraries' progress bars and advice off the user's screen; errors still raise."""
    import logging

    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read once, when transformers is first imported
    names = ("torch.onnx", "torch._dynamo", "torch.export", "onnxscript", "onnx_ir", "transformers")
    loggers = {name: logging.getLogger(name) for name in names}
    before = {name: logger.level for name, logger in loggers.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch  # noqa: F401 - it sets its own log levels while it is imported
        from transformers.utils import logging as hf

        bars = hf.is_progress_bar_enabled()
        hf.disable_progress_bar()  # type: ignore[no-untyped-call]
        for logger in loggers.values():
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, logger in loggers.items():
                logger.setLevel(before[name])
            if bars:
                hf.enable_progress_bar()  # type: ignore[no-untyped-call]


def load_encoder(source: Source, max_length: int | None = None) -> Encoder:
    """Loads the weights on the CPU in FP32 and wraps them.

    Raises EncoderError: unreadable weights, weights that do not fill the model, code that would have to be
    run, a model that takes no tokens, a `max_length` beyond the model's positions.
    """
    require_libraries()
    with quiet():
        model = _load(source)
    accepted = inspect.signature(model.forward).parameters
    wanted = [name for name in ("input_ids", "attention_mask") if name not in accepted]
    vocab_size = getattr(model.config, "vocab_size", None)
    if wanted or not isinstance(vocab_size, int):
        raise EncoderError(
            f"{source.folder}: not a text encoder, it takes no {' or '.join(wanted) or 'tokens'}"
        )
    types = getattr(model.config, "type_vocab_size", 0) or 0
    # A table of one type (RoBERTa) is a leftover: nothing could be said with it.
    inputs = ["input_ids", "attention_mask"] + ["token_type_ids"] * (
        types > 1 and "token_type_ids" in accepted
    )
    positions = _positions(model)
    limit = max_length or min(source.max_length or _LONGEST, positions)
    if limit > positions:
        raise EncoderError(
            f"max length {limit}: {source.label} has {positions} positions, allowed is 1..{positions}"
        )
    pad = getattr(model.config, "pad_token_id", None)
    return Encoder(
        module=_wrap(model, source.pooling, source.normalize),
        inputs=tuple(inputs),
        output="last_hidden_state" if source.pooling is None else "sentence_embedding",
        width=_width(model),
        per_token=source.pooling is None,
        vocab_size=vocab_size,
        pad_token_id=pad if isinstance(pad, int) and 0 <= pad < vocab_size else 0,
        type_vocab_size=types,
        positions=positions,
        max_length=limit,
    )


def _load(source: Source) -> Any:
    import torch
    from transformers import AutoModel

    try:
        model, told = AutoModel.from_pretrained(
            str(source.folder),
            local_files_only=True,
            trust_remote_code=False,
            dtype=torch.float32,
            # Fewer nodes than "sdpa" and no branch on the mask that an export can freeze.
            attn_implementation="eager",
            output_loading_info=True,
        )
    except Exception as why:  # noqa: BLE001 - whatever a broken folder makes the library raise
        if "auto_map" in source.config:
            raise EncoderError(
                f"{source.folder}: the model needs code of its own, which is never run"
            ) from None
        raise EncoderError(f"{source.folder} cannot be loaded: {first_line(why)}") from None
    # A pooler is a head that the exported answer does not use; anything else would be random numbers.
    missing = sorted(key for key in told["missing_keys"] if "pooler" not in key)
    wrong = missing or sorted(str(key) for key in told.get("mismatched_keys", ()))
    if wrong:
        raise EncoderError(
            f"{source.folder}: the weights do not fill the model, {len(wrong)} are missing, first {wrong[0]}"
        )
    return model.eval()


def _positions(model: Any) -> int:
    """Usable positions: RoBERTa-like tables start counting behind the padding id."""
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    declared = getattr(model.config, "max_position_embeddings", None)
    if not isinstance(declared, int) or declared < 1:
        return _LONGEST
    return declared - (0 if padding is None else padding + 1)


def _width(model: Any) -> int:
    import torch

    with torch.no_grad():
        ids = torch.zeros((1, 2), dtype=torch.int64)
        answer = model(input_ids=ids, attention_mask=torch.ones_like(ids), return_dict=False)[0]
    return int(answer.shape[-1])


def _wrap(model: Any, pooling: str | None, normalize: bool) -> "torch.nn.Module":
    import torch

    class Wrapped(torch.nn.Module):
        """Named tensors in, one tensor out: what an export and a comparison both need."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(
            self,
            input_ids: torch.Tensor,
            attention_mask: torch.Tensor,
            token_type_ids: torch.Tensor | None = None,
        ) -> torch.Tensor:
            more = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
            answer = self.model(
                input_ids=input_ids, attention_mask=attention_mask, return_dict=False, **more
            )[0]  # fmt: skip
            return answer if pooling is None else pool(answer, attention_mask, pooling, normalize)

    return Wrapped().eval()


def pool(
    hidden: "torch.Tensor", mask: "torch.Tensor", pooling: str, normalize: bool
) -> "torch.Tensor":  # fmt: skip
    """One vector a row: the mean over real tokens, or the first token; to length one if asked."""
    import torch

    if pooling == "cls":
        row = hidden[:, 0]
    else:
        keep = mask.unsqueeze(-1).to(hidden.dtype)
        row = (hidden * keep).sum(1) / keep.sum(1).clamp(min=1e-9)
    return torch.nn.functional.normalize(row, p=2.0, dim=1) if normalize else row


def first_line(why: BaseException) -> str:
    """An exception of a library, short enough for a one-line message."""
    lines = str(why).strip().splitlines()
    return f"{type(why).__name__}: {lines[0][:300]}" if lines else type(why).__name__
