"""What a kind asks of Triton besides its tensors: parameters of a request, sequences of requests.

It must not know how they are encoded, nor what the model takes.
"""

from typing import Annotated, Literal

from pydantic import Field

from loadgen.traffic.parts import Count, Name, Part

Priority = Annotated[int, Field(ge=0, lt=2**32)]  # 1 is the first; 0: the model's default
Parameters = dict[Name, bool | int | float | str]


class Sequence(Part):
    """Requests that share a correlation id, each sent when the one before was answered."""

    requests: Annotated[Count, Field(le=10_000)] = Field(examples=["8"])
    ids: Literal["number", "text"] = "number"
