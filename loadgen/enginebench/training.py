"""One training step of a model: forward, backward, optimizer, in a precision by autocast.

The loss is the mean square of the answer: its cost is the model's own, and there are no labels to know.  It must
not know time or memory.
"""

import copy
from collections.abc import Callable
from typing import Any

from loadgen.convert.encoder import Encoder
from loadgen.convert.parity import Feeds
from loadgen.enginebench.engines import Unavailable, placed

Part = tuple[str, Callable[[], Any]]


class Trainer:
    """A copy of the model with an AdamW.  FP16 scales its loss, as it must not vanish; BF16 need not."""

    def __init__(self, encoder: Encoder, precision: str, device: str, *, compiled: bool) -> None:
        import torch

        kinds = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}
        if precision not in kinds:
            raise Unavailable(
                f"{precision} is for inference; training runs in fp32, or fp16 and bf16 by autocast"
            )
        self.device, self.kind = device, kinds[precision]
        self.module = copy.deepcopy(encoder.module).to(device).train()
        for weight in self.module.parameters():
            weight.requires_grad_(True)
        self.run: Any = self.module
        if compiled:
            torch._dynamo.reset()  # noqa: SLF001 - its only door
            self.run = torch.compile(self.module, dynamic=True)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-5)
        self.scaler = torch.amp.GradScaler(device, enabled=precision == "fp16" and device == "cuda")
        self.loss: Any = None

    def parts(self, feeds: Feeds) -> list[Part]:
        """The step on a batch, in the order it is made."""
        import torch

        held = {name: placed(value, self.device, torch.float32) for name, value in feeds.items()}

        def forward() -> None:
            with torch.autocast(self.device, dtype=self.kind, enabled=self.kind is not None):
                answer = self.run(**held)
            self.loss = answer.float().square().mean()

        def backward() -> None:
            self.scaler.scale(self.loss).backward()

        def optimizer() -> None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=True)

        return [("forward", forward), ("backward", backward), ("optimizer", optimizer)]
