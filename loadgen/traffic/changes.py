"""What a sweep lays over a model's own batching configuration: one setting, or a grid of them.

It must not know the form that a server wants them in (triton.overlay does).
"""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from loadgen.traffic.parts import Count, DurationNs, DurationOrZeroNs, FaultsError, Many, Name, Part
from loadgen.traffic.words import show_value
from loadgen.units import show_ns

OF_BATCHER = ("preferred", "delay_ns", "queue", "priorities", "preserve_ordering")


class Queue(Part):
    """Triton's queue policy: how long a request may wait, what becomes of it then, how many may wait."""

    timeout_ns: DurationNs | None = Field(None, alias="timeout", examples=["1s"])
    action: Literal["reject", "delay"] | None = None
    max_size: Count | None = None
    override: bool | None = None  # a request may name its own timeout

    def __str__(self) -> str:
        told = {"timeout": self.timeout_ns and show_ns(self.timeout_ns), "action": self.action,
                "max_size": self.max_size, "override": self.override}  # fmt: skip
        return " ".join(f"{key} {show_value(value).strip(chr(39))}" for key, value in told.items() if value)


class Changes(Part):
    """What is laid over the model's own configuration.  None leaves a field as it is."""

    max_batch_size: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    batching: bool | None = None  # false: no dynamic batching at all
    preferred: Many[Count] | None = None
    delay_ns: DurationOrZeroNs | None = Field(None, alias="delay")
    instances: Annotated[int, Field(ge=1, le=1000)] | None = None
    ragged: bool | None = None
    queue: Queue | None = None
    priorities: Annotated[int, Field(ge=1, le=1000)] | None = None
    preserve_ordering: bool | None = None
    set: dict[str, Any] = Field(default_factory=dict)  # any field, by its dotted path

    @model_validator(mode="after")
    def _batches(self) -> Self:
        if self.batching is False and any(getattr(self, key) is not None for key in OF_BATCHER):
            raise FaultsError((("batching",), "false goes with no setting of the dynamic batcher"))
        return self

    def under(self, over: Changes) -> Changes:
        """These, and `over` wins where both say something."""
        theirs = {key: getattr(over, key) for key in over.model_fields_set & Changes.model_fields.keys()}
        return UNCHANGED.model_copy(
            update={
                **{key: getattr(self, key) for key in self.model_fields_set},
                **theirs,
                "set": {**self.set, **over.set},
            }
        )

    def __str__(self) -> str:
        told = [f"{name_of(Changes, key)} {shown_value(key, value)}" for key in Changes.model_fields
                if key != "set" and (value := getattr(self, key)) is not None]  # fmt: skip
        return ", ".join(told + [f"{path} {show_value(value)}" for path, value in self.set.items()])


UNCHANGED = Changes.model_validate({})


class Named(Changes):
    """A configuration of its own name."""

    name: Name | None = None


class Grid(Part):
    """Values of each setting; every combination of them is a configuration.  The same keys as Changes."""

    max_batch_size: Many[Annotated[int, Field(ge=0, le=1_000_000)]] | None = None
    batching: Many[bool] | None = None
    preferred: Many[Many[Count]] | None = None
    delay_ns: Many[DurationOrZeroNs] | None = Field(None, alias="delay")
    instances: Many[Annotated[int, Field(ge=1, le=1000)]] | None = None
    ragged: Many[bool] | None = None
    queue: Many[Queue] | None = None
    priorities: Many[Annotated[int, Field(ge=1, le=1000)]] | None = None
    preserve_ordering: Many[bool] | None = None
    set: dict[str, Many[Any]] = Field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """No setting has values."""
        return not self.set and all(getattr(self, key) is None for key in Grid.model_fields if key != "set")

    def combinations(self) -> list[Changes]:
        """Every combination, the last key changing fastest.  Batching off meets no setting of the batcher: those
        combinations are one.
        """
        axes = [[(key, value) for value in values] for key in Grid.model_fields
                if key != "set" and (values := getattr(self, key)) is not None]  # fmt: skip
        paths = [[(path, value) for value in values] for path, values in self.set.items()]
        found = []
        for combination in itertools.product(*axes):
            chosen = dict(combination)
            if chosen.get("batching") is False:
                chosen = {key: value for key, value in chosen.items() if key not in OF_BATCHER}
            found += [
                UNCHANGED.model_copy(update={**chosen, "set": dict(settings)})
                for settings in itertools.product(*paths)
            ]
        return found


def name_of(part: type[Part], field: str) -> str:
    return part.model_fields[field].alias or field


def shown_value(key: str, value: Any) -> str:
    if key.endswith("_ns"):
        return show_ns(value) if value else "0"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)
