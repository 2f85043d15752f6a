"""Network conditions between client and server, as a profile states them.

`delay` is one way, and it is added in each direction: a request that needs one round trip takes twice as much
longer, and so does opening a connection.  It must not know how such a network is made.

```yaml
network:
  delay: 100ms          # each way: a round trip takes 200ms more
  jitter: 5ms           # each piece of data takes delay +- jitter, evenly spread; a connection's order stays
  bandwidth: 10MiB/s    # of the link, each way, shared by all connections
  loss: 0.1%            # of packets; only by the kernel's netem
```
"""

import re
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from loadgen.traffic.parts import DurationOrZeroNs, Part
from loadgen.traffic.words import show_value
from loadgen.units import parse_bytes, show_bytes, show_ns

_LONGEST_NS = 60 * 10**9
_LEAST_PER_S, _MOST_PER_S = 1024, 2**40


def _bandwidth(value: Any) -> int:
    size, slash, second = str(value).partition("/")
    if not isinstance(value, str) or not slash or second.strip() != "s":
        raise ValueError(f"{show_value(value)} is not a bandwidth: write bytes per s, e.g. 10MiB/s")
    per_s = parse_bytes(size)
    if not _LEAST_PER_S <= per_s <= _MOST_PER_S:
        raise ValueError(f"{show_value(value)} is out of range; allowed: 1KiB/s to 1024GiB/s")
    return per_s


def _loss(value: Any) -> float:
    number = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value) if isinstance(value, str) else None
    if number is None:
        raise ValueError(f"{show_value(value)} is not a percentage, e.g. 0.1%")
    if float(number[1]) >= 100:  # noqa: PLR2004 - percent
        raise ValueError(f"{show_value(value)} loses everything; allowed: below 100%")
    return float(number[1]) / 100


class Network(Part):
    """What lies between client and server, in each direction alike.  `loss` is a share, 0 to 1."""

    delay_ns: DurationOrZeroNs = Field(0, alias="delay", examples=["100ms"])
    jitter_ns: DurationOrZeroNs = Field(0, alias="jitter", examples=["5ms"])
    bytes_per_s: Annotated[int, BeforeValidator(_bandwidth)] | None = Field(
        None, alias="bandwidth", examples=["10MiB/s"]
    )
    loss: Annotated[float, BeforeValidator(_loss)] = Field(0.0, examples=["0.1%"])

    @property
    def round_trip_ns(self) -> int:
        """What a round trip takes longer."""
        return 2 * self.delay_ns

    @property
    def words(self) -> str:
        """For a person: what it does to a request."""
        parts = []
        if self.delay_ns:
            jitter = f" +- {show_ns(self.jitter_ns)}" if self.jitter_ns else ""
            parts.append(
                f"{show_ns(self.delay_ns)}{jitter} each way (a round trip takes {show_ns(self.round_trip_ns)} more)"
            )
        if self.bytes_per_s is not None:
            parts.append(f"{show_bytes(self.bytes_per_s)}/s each way")
        if self.loss:
            parts.append(f"{self.loss * 100:g} % of packets lost")
        return ", ".join(parts)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if not (self.delay_ns or self.bytes_per_s or self.loss):
            raise ValueError("changes nothing; give delay, bandwidth or loss, or leave it out")
        if self.delay_ns > _LONGEST_NS:
            raise ValueError(f"delay {show_ns(self.delay_ns)} is longer than 60 s each way")
        if self.jitter_ns > self.delay_ns:
            raise ValueError(
                f"jitter {show_ns(self.jitter_ns)} is more than the delay of {show_ns(self.delay_ns)}: "
                "nothing comes before it was sent"
            )
        return self
