"""The phases of a profile: open loops whose rate is a list of straight lines, closed loops of users.

It must not know when a single request is due: that is the schedule's business.
"""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from loadgen.traffic.lengths import Positive
from loadgen.traffic.parts import (
    Count,
    DurationNs,
    DurationOrZeroNs,
    FaultsError,
    Many,
    Name,
    Part,
    RatePerS,
    exactly_one,
)
from loadgen.traffic.trace import Trace
from loadgen.traffic.words import near


class Segment(Part):
    """A rate that stays or moves on a straight line for a time."""

    duration_ns: DurationNs = Field(alias="duration", examples=["30s"])
    from_per_s: RatePerS | None = Field(None, alias="from")
    to_per_s: RatePerS | None = Field(None, alias="to")
    at_per_s: RatePerS | None = Field(None, alias="at")

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        line = self.from_per_s is not None and self.to_per_s is not None
        flat = self.at_per_s is not None
        mixed = flat and (self.from_per_s is not None or self.to_per_s is not None)
        if mixed or not (line or flat):
            raise ValueError("needs either at, or from and to, e.g. {duration: 30s, from: 10/s, to: 100/s}")
        return self

    @property
    def start_per_s(self) -> float:
        return self.at_per_s if self.at_per_s is not None else self.from_per_s or 0.0

    @property
    def end_per_s(self) -> float:
        return self.at_per_s if self.at_per_s is not None else self.to_per_s or 0.0

    @property
    def expected(self) -> float:
        """The mean number of arrivals in it."""
        return self.duration_ns * 1e-9 * (self.start_per_s + self.end_per_s) / 2


class Plain(Part):
    """A law without parameters."""


class Gamma(Part):
    """Gaps under a gamma law; the burstiness is their variance over their squared mean, 1 being Poisson."""

    burstiness: Annotated[Positive, Field(le=1000)] = Field(examples=["4"])


class Arrivals(Part):
    """How evenly arrivals come."""

    poisson: Plain | None = None
    uniform: Plain | None = None
    gamma: Gamma | None = None

    @model_validator(mode="before")
    @classmethod
    def _word(cls, value: Any) -> Any:
        if value in ("poisson", "uniform"):
            return {value: {}}
        if isinstance(value, str):
            close = near(value, ("poisson", "uniform")) if value != "gamma" else " needs its burstiness:"
            raise ValueError(  # noqa: TRY004 - pydantic's way
                f"{value!r}{close} allowed: poisson, uniform, {{gamma: {{burstiness: 4}}}}"
            )
        return value

    @model_validator(mode="after")
    def _one_law(self) -> Self:
        exactly_one(self, list(Arrivals.model_fields))
        return self

    @property
    def burstiness(self) -> float:
        """Variance over squared mean of the gaps at a constant rate: 0 uniform, 1 Poisson."""
        if self.gamma is not None:
            return self.gamma.burstiness
        return 1.0 if self.poisson is not None else 0.0

    def __str__(self) -> str:
        law = exactly_one(self, list(Arrivals.model_fields))
        return f"gamma, burstiness {self.burstiness:g}" if law == "gamma" else law


class Open(Part):
    """Arrivals by a schedule, whatever the server does."""

    arrivals: Arrivals = Arrivals(poisson=Plain())
    rate: Many[Segment] = Field(examples=["[{duration: 30s, at: 20/s}]"])

    @model_validator(mode="after")
    def _sends(self) -> Self:
        if self.expected < 1:
            said = (
                f"only {self.expected:.2g} requests would be expected in the whole phase; allowed: 1 or more"
            )
            raise FaultsError((("rate",), said))
        return self

    @property
    def duration_ns(self) -> int:
        return sum(segment.duration_ns for segment in self.rate)

    @property
    def expected(self) -> float:
        """The mean number of arrivals."""
        return sum(segment.expected for segment in self.rate)


class Closed(Part):
    """Users who each send the next request when the last one has ended."""

    users: Annotated[int, Field(ge=1, le=100_000)] = Field(examples=["8"])
    duration_ns: DurationNs | None = Field(None, alias="duration")
    requests: Count | None = None
    think_ns: DurationOrZeroNs = Field(0, alias="think")


class Phase(Part):
    """One stretch of load."""

    name: Name = Field(examples=["steady"])
    warmup: bool = False
    open: Open | None = None
    closed: Closed | None = None
    trace: Trace | None = None

    @model_validator(mode="after")
    def _one_loop(self) -> Self:
        if self.trace is None:
            exactly_one(self, ("open", "closed", "trace"))
        elif self.open is not None and self.closed is not None:
            raise ValueError(
                "takes a trace's rows with open or with closed, or by their own times with neither"
            )
        closed = self.closed
        if (
            closed is not None
            and self.trace is None
            and closed.duration_ns is None
            and closed.requests is None
        ):
            said = "would never end; give it a duration, a number of requests, or both"
            raise FaultsError((("closed",), said))
        if (
            self.warmup
            and closed is not None
            and closed.requests is not None
            and closed.requests < closed.users
        ):
            said = (
                f"{closed.requests} warm-up requests for {closed.users} users leave some of the server's slots "
                f"cold; allowed: {closed.users} or more (several a user is better)"
            )
            raise FaultsError((("closed", "requests"), said))
        return self

    @property
    def expected(self) -> float:
        """How many requests are planned: the mean for an open loop; 0 where only the server's speed or a trace
        tells.
        """
        return self.open.expected if self.open else float((self.closed and self.closed.requests) or 0)
