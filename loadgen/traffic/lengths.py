"""The laws that lengths may follow, as a profile writes them.

Every length is a whole number of tokens (or bytes of text) of at least 1.  It must not know how lengths
are drawn from a law: that is the workload's business.
"""

import itertools
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from loadgen.traffic.parts import FaultsError, Many, Part, exactly_one

_LONGEST = 10**7

Tokens = Annotated[int, Field(ge=1, le=_LONGEST)]
Positive = Annotated[float, Field(gt=0)]


class _Bounded(Part):
    min: Tokens = Field(examples=["4"])
    max: Tokens = Field(examples=["128"])

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}; swap them")
        return self

    def _holds(self, key: str, value: float) -> None:
        # Inside the bounds, so that the part of the law that is cut off can be made up for.
        if not self.min <= value <= self.max:
            raise ValueError(f"{key} {value:g} is outside min {self.min} to max {self.max}")


class Uniform(_Bounded):
    """Every whole number from min to max equally often."""


class Normal(_Bounded):
    """Normal, cut at min and max and made up for (not clamped)."""

    mean: Positive = Field(examples=["64"])
    sd: Positive = Field(examples=["16"])

    @model_validator(mode="after")
    def _inside(self) -> Self:
        self._holds("mean", self.mean)
        return self


class Lognormal(_Bounded):
    """exp(Normal(log(median), sigma)), cut at min and max and made up for (not clamped)."""

    median: Positive = Field(examples=["32"])
    sigma: Positive = Field(examples=["0.6"])

    @model_validator(mode="after")
    def _inside(self) -> Self:
        self._holds("median", self.median)
        return self


class Bin(Part):
    """One bar of a histogram: a length, or a range of lengths that are equally likely inside it."""

    at: Tokens | None = None
    from_: Tokens | None = Field(None, alias="from")
    to: Tokens | None = None
    weight: Annotated[float, Field(ge=0)] = Field(examples=["5"])

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        ranged = self.from_ is not None and self.to is not None and self.at is None
        single = self.at is not None and self.from_ is None and self.to is None
        if not ranged and not single:
            raise ValueError("needs either at, or from and to, e.g. {from: 1, to: 16, weight: 5}")
        if self.low > self.high:
            raise ValueError(f"from {self.low} is more than to {self.high}; swap them")
        return self

    @property
    def low(self) -> int:
        return self.at or self.from_ or 0

    @property
    def high(self) -> int:
        return self.at or self.to or 0


Law = int | Uniform | Normal | Lognormal | tuple[Bin, ...]


class Length(Part):
    """A choice of one law; a bare whole number is a fixed length."""

    fixed: Tokens | None = None
    uniform: Uniform | None = None
    normal: Normal | None = None
    lognormal: Lognormal | None = None
    histogram: Many[Bin] | None = None

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: Any) -> Any:
        return {"fixed": value} if isinstance(value, int) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _one_law(self) -> Self:
        exactly_one(self, list(Length.model_fields))
        if self.histogram is not None:
            if not any(bar.weight for bar in self.histogram):
                raise FaultsError((("histogram",), "every weight is 0; give at least one range a weight"))
            bars = sorted(self.histogram, key=lambda bar: bar.low)
            for below, above in itertools.pairwise(bars):
                if above.low <= below.high:
                    said = f"{below.low} to {below.high} and {above.low} to {above.high} overlap; move one"
                    raise FaultsError((("histogram",), said))
        return self

    @property
    def law(self) -> Law:
        """An int for a fixed length, else the law's own parameters; histogram bars in ascending order."""
        if self.histogram is not None:
            return tuple(sorted(self.histogram, key=lambda bar: bar.low))
        law = self.fixed or self.uniform or self.normal or self.lognormal
        assert law is not None  # noqa: S101 - exactly one is given
        return law


class Pair(Part):
    """Tokens in and tokens out that go together."""

    in_: Tokens = Field(alias="in", examples=["100"])
    out: Tokens = Field(examples=["20"])
    weight: Annotated[float, Field(ge=0)] = 1.0
