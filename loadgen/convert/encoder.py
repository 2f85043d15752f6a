"""A source loaded in PyTorch, wrapped so that tensors go in and one plain tensor comes out.

Local files only; code that comes with a model runs only when asked for.  It must not know Triton.
"""

import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.convert.inputs import BATCH, LENGTH, Input
from loadgen.convert.sources import Source
from loadgen.records import LoadgenError

if TYPE_CHECKING:
    import torch

_NEEDED = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")


class EncoderError(LoadgenError):
    """A model that cannot be loaded, or is not the kind that can be converted."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """What is exported and compared: `module(**{name: tensor for name in inputs})` is the answer.

    `positions` is the longest input the weights allow, `max_length` the longest that will be served; both are 1
    where no input has an axis "length".  `output` is the name to publish; `per_token` tells [batch, length, width]
    from [batch, width].  `vocab_size` is 0 where no input is token ids.  `given` are the inputs where they are not
    those of a text encoder.  `batched`: every input and the answer begin with the free batch.  `padded`: rows of
    different lengths may share a batch.
    `exporter` says how it becomes ONNX: "dynamo", "torchscript", or "program" and "file" of the source's own `file`.
    `answer` are the answer's axes where they were found by running it.  `notes` are for the user.
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
    given: tuple[Input, ...] = ()
    batched: bool = True
    padded: bool = True
    exporter: str = "dynamo"
    file: Path | None = None
    answer: tuple[str | int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def specs(self) -> tuple[Input, ...]:
        """Every input, in the order of `inputs`, as random values are drawn and shapes are freed from it."""
        return self.given or tuple(self._text(name) for name in self.inputs)

    @property
    def has_length(self) -> bool:
        """Whether an input has an axis "length": rows of tokens, not images."""
        return any(LENGTH in one.axes for one in self.specs)

    def _text(self, name: str) -> Input:
        most = {"input_ids": self.vocab_size, "token_type_ids": max(self.type_vocab_size, 1)}
        ids = name == "input_ids"
        return Input(
            name,
            "INT64",
            (BATCH, LENGTH),
            high=most.get(name, 2) - 1,
            fill=self.pad_token_id if ids else 0,
            mask=name == "attention_mask",
            tokens=ids,
            spans={LENGTH: (1, self.positions)},
        )

    def one_at_a_time(self, why: str) -> "Encoder":
        """The same with a batch of exactly one in every shape: for a model whose batch cannot be free."""
        fixed = tuple(replace(one, axes=(1, *one.axes[1:])) for one in self.specs)
        note = f"max_batch_size is 0, one item a request: {why}"
        return replace(self, given=fixed, batched=False, padded=False, notes=(*self.notes, note))


def require_libraries() -> None:
    """Raises EncoderError naming what is not installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise EncoderError(f"converting needs {', '.join(missing)}: pip install 'loadgen[convert]'")


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps the libraries' progress bars and advice off the user's screen; errors still raise."""
    import logging

    for key in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):  # read once, when transformers is first imported
        os.environ[key] = "1"
    names = (
        "torch.onnx",
        "torch._dynamo",
        "torch.export",
        "torch.fx",
        "onnxscript",
        "onnx_ir",
        "transformers",
    )
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


@contextmanager
def contained(label: str) -> Iterator[None]:
    """The model's own code ends no program and prints not among our answers: what it prints goes to stderr.

    Raises EncoderError where that code calls exit.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except SystemExit as why:
        if isinstance(why.__context__, BrokenPipeError):  # rich's own: nobody reads our progress any more
            raise
        raise EncoderError(f"{label}: the model's code ended the program: exit({why.code!r})") from None


def load_encoder(source: Source, max_length: int | None = None) -> Encoder:
    """Loads the weights on the CPU in FP32 and wraps them.

    Raises EncoderError: unreadable weights, weights that do not fill the model, code that would have to be
    run, inputs that nothing describes, a `max_length` beyond the model's positions.
    """
    require_libraries()
    from loadgen.convert import families, modules

    loaders = {
        "folder": families.load,
        "module": modules.load_module,
        "torchscript": modules.load_torchscript,
        "exported": modules.load_exported,
        "onnx": modules.load_onnx,
    }
    return loaders[source.kind](source, max_length)


def first_line(why: BaseException) -> str:
    """An exception of a library, short enough for a one-line message."""
    lines = str(why).strip().splitlines()
    return f"{type(why).__name__}: {lines[0][:300]}" if lines else type(why).__name__
