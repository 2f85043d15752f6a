"""How a kind says that its tensors travel through the machine's shared memory, not over the connection.

```yaml
kinds:
  a:
    model: resnet
    shared_memory: {inputs: true, outputs: true}     # or only one of them
    # shared_memory: {outputs: {logits: 64KiB}}      # bytes of each, where the model does not tell its shape
```

Client and server must share a machine.  Each variant of the requests has a place of its own for its inputs and one
for its outputs: requests of the same variant that are in flight together overwrite each other's outputs, which
nobody reads.  It must not know regions, models or servers.
"""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from loadgen.traffic.parts import Part
from loadgen.traffic.words import show_value
from loadgen.units import parse_bytes

_MOST_BYTES = 2**31


def _size(value: Any) -> int:
    if not isinstance(value, str):
        raise ValueError(f"{show_value(value)} has no unit; write e.g. 64KiB")  # noqa: TRY004 - pydantic's way
    size = parse_bytes(value)
    if not 1 <= size <= _MOST_BYTES:
        raise ValueError(f"{show_value(value)} is no size; allowed: 1B to 2GiB")
    return size


Size = Annotated[int, BeforeValidator(_size)]


class SharedMemory(Part):
    """Which tensors of a kind lie in shared memory; outputs by name take their bytes, and only those are asked for."""

    inputs: bool = False
    outputs: bool | Annotated[dict[str, Size], Field(min_length=1)] = False

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.inputs and not self.outputs:
            raise ValueError("needs inputs: true, outputs: true, or both")
        return self
