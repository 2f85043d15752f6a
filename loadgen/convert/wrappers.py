"""Torch modules that take named tensors and give one plain tensor: what an export and a comparison both need.

Imports torch when imported, so it is imported where it is used.  It must not know where a model came from.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

Tensor = torch.Tensor


class Text(torch.nn.Module):
    """Token ids to the model's first answer, pooled to one vector a row where `pooling` says how."""

    def __init__(self, model: Any, pooling: str | None, normalize: bool) -> None:
        super().__init__()
        self.model, self.pooling, self.normalize = model, pooling, normalize
        self.uncached = (
            {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
        )

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        answer: Tensor = self.model(
            input_ids=input_ids, attention_mask=attention_mask, return_dict=False, **types, **self.uncached
        )[0]
        return answer if self.pooling is None else pool(answer, attention_mask, self.pooling, self.normalize)


class Decoder(torch.nn.Module):
    """The second half of an encoder-decoder: what it would say after each of its tokens so far."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, encoder_hidden_states: Tensor, encoder_attention_mask: Tensor
    ) -> Tensor:
        answer: Tensor = self.model(
            decoder_input_ids=input_ids,
            encoder_outputs=(encoder_hidden_states,),
            attention_mask=encoder_attention_mask,
            use_cache=False,
            return_dict=False,
        )[0]
        return answer


class Image(torch.nn.Module):
    """Pixels to the model's first answer; pooling counts every patch."""

    def __init__(self, model: Any, pooling: str | None, normalize: bool) -> None:
        super().__init__()
        self.model, self.pooling, self.normalize = model, pooling, normalize

    def forward(self, pixel_values: Tensor) -> Tensor:
        answer: Tensor = self.model(pixel_values=pixel_values, return_dict=False)[0]
        if self.pooling is None:
            return answer
        return pool(answer, torch.ones_like(answer[..., 0]), self.pooling, self.normalize)


def pool(hidden: Tensor, mask: Tensor, pooling: str, normalize: bool) -> Tensor:
    """One vector a row: the mean over real tokens, the first token or the last real one; to length one if asked."""
    if pooling == "cls":
        row = hidden[:, 0]
    elif pooling == "last":
        last = (mask.sum(1).long() - 1).clamp(min=0).reshape(-1, 1, 1).expand(-1, 1, hidden.shape[-1])
        row = hidden.gather(1, last).squeeze(1)
    else:
        keep = mask.unsqueeze(-1).to(hidden.dtype)
        row = (hidden * keep).sum(1) / keep.sum(1).clamp(min=1e-9)
    return torch.nn.functional.normalize(row, p=2.0, dim=1) if normalize else row


class Chosen(torch.nn.Module):
    """One of several outputs.  An export takes `inner` as it is and keeps the output `at`."""

    def __init__(self, inner: torch.nn.Module, at: int) -> None:
        super().__init__()
        self.inner, self.at = inner, at

    def forward(self, **feeds: Tensor) -> Tensor:
        answer: Tensor = pytree.tree_leaves(self.inner(**feeds))[self.at]
        return answer


class Positional(torch.nn.Module):
    """Named tensors given in order: an exported program takes only what it was exported with."""

    def __init__(self, inner: torch.nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.inner, self.names = inner, tuple(names)

    def forward(self, **feeds: Tensor) -> Any:
        rest = {name: value for name, value in feeds.items() if name not in self.names}
        return self.inner(*(feeds[name] for name in self.names), **rest)


class Session(torch.nn.Module):
    """An onnxruntime session that is asked like a module."""

    def __init__(self, session: Any, output: str) -> None:
        super().__init__()
        self.session, self.output = session, output

    def forward(self, **feeds: Tensor) -> Tensor:
        answer = self.session.run([self.output], {name: value.numpy() for name, value in feeds.items()})[0]
        return torch.from_numpy(np.ascontiguousarray(answer))
