"""What a profile says of a trace: which file, how its columns are meant, which rows, how they are replayed.

It must not know how a file is read: that is `traffic/traces/`.  As a profile writes it:

```yaml
trace:
  file: azure_conv_2023_head.csv   # relative to the profile's folder; .gz and .zst are read as they are
  format: azure                    # azure | mooncake | bailian | burstgpt | ragpulse | sharegpt | triton_log |
                                   # nginx_log | csv | jsonl | parquet; default: recognised from the content, and said
  columns: {time: sent_at, input: prompt_tokens, output: answer_tokens}   # csv, jsonl, parquet only
  unit: ms                         # of the time column: ns | us | ms | s | datetime; never guessed
  tokenizer: tokenizer.json        # sharegpt only; default: UTF-8 bytes / 4, and said
  skip: 100                        # rows of the file that are passed over
  first: 400                       # at most so many rows of the file after those
  from: 10m                        # trace time, 0 being the first row after skip; from <= t < to
  to: 20m
  where: {Model: ChatGPT, status: [200, 201], "Request tokens": {min: 1, max: 4000}}   # all must hold
  zero: one                        # a row with 0 tokens (BurstGPT's failures): one (0 becomes 1) | drop | keep (length unset)
  kind: chat                       # every row is of this kind; default: by the kinds' weights
  kinds: {column: Model, map: {ChatGPT: small, GPT-4: large}, other: refuse}   # instead; other: refuse | drop
  seam: concat                     # time that jumps back: concat (goes on from there) | first | refuse | sort
  max_gap: 30s                     # a longer silence, in trace time (before speed), is cut to this
  speed: 10                        # trace time passes ten times as fast
  scale: {input: 0.5, output: 2}   # lengths are multiplied, rounded, at least 1
  clamp: {input: 128, output: 128} # then cut to this; counted and said
```

Order: skip and first count the file's rows; seams are found in what remains of the file's order; then from
and to, where, zero, kinds; the first row that is left is due at 0; then max_gap, then speed.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from loadgen.traffic.document import ProfileError, read_document
from loadgen.traffic.lengths import Positive, Tokens
from loadgen.traffic.parts import Count, DurationNs, FaultsError, Name, Part, TraceTimeNs
from loadgen.traffic.problems import problems
from loadgen.traffic.words import show_value

Format = Literal[
    "azure", "mooncake", "bailian", "burstgpt", "ragpulse", "sharegpt",
    "triton_log", "nginx_log", "csv", "jsonl", "parquet",
]  # fmt: skip
PLAIN = ("csv", "jsonl", "parquet")  # whose columns the profile must name
Unit = Literal["ns", "us", "ms", "s", "datetime"]
Seam = Literal["concat", "first", "refuse", "sort"]
Scalar = bool | int | float | str


class Columns(Part):
    """Which columns hold what; without `time` the rows have an order but no times."""

    time: Name | None = None
    input: Name | None = None
    output: Name | None = None


def _scalars(value: Any) -> Any:
    items = value if isinstance(value, list) else [value]
    if not items or any(not isinstance(item, Scalar) for item in items):
        raise ValueError(f"{show_value(value)}: allowed: a value, a list of values, or {{min: 1, max: 9}}")
    return tuple(items)


class Condition(Part):
    """What a column must hold: one of some values, or a number from min to max, both included."""

    any_of: Annotated[tuple[Scalar, ...], BeforeValidator(_scalars)] | None = None
    min: float | None = None
    max: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: Any) -> Any:
        return value if isinstance(value, dict) else {"any_of": value}

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.any_of is None) == (self.min is None and self.max is None):
            raise ValueError("needs a value, a list of values, or {min: 1, max: 9}")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is more than max {self.max:g}; swap them")
        return self


class KindsOf(Part):
    """Which kind a row is, by the text in one of its columns."""

    column: Name = Field(examples=["Model"])
    map: dict[str, Name] = Field(min_length=1, max_length=1000, examples=["{ChatGPT: small, GPT-4: large}"])
    other: Literal["refuse", "drop"] = "refuse"


class Scale(Part):
    """Factors for lengths."""

    input: Positive = 1.0
    output: Positive = 1.0


class Clamp(Part):
    """The longest lengths sent."""

    input: Tokens | None = None
    output: Tokens | None = None


class Trace(Part):
    """Rows of a file, replayed."""

    file: Name = Field(examples=["azure_conv_2023_head.csv"])
    format: Format | None = None
    columns: Columns | None = None
    unit: Unit | None = None
    tokenizer: Name | None = None
    skip: Annotated[int, Field(ge=0)] = 0
    first: Count | None = None
    from_ns: TraceTimeNs = Field(0, alias="from")
    to_ns: TraceTimeNs | None = Field(None, alias="to")
    where: dict[Name, Condition] = Field(default_factory=dict)
    zero: Literal["one", "drop", "keep"] = "one"
    kind: Name | None = None
    kinds: KindsOf | None = None
    seam: Seam | None = None
    max_gap_ns: DurationNs | None = Field(None, alias="max_gap")
    speed: Annotated[Positive, Field(ge=1e-3, le=1e6)] = 1.0
    scale: Scale = Scale()
    clamp: Clamp = Clamp()

    @model_validator(mode="after")
    def _together(self) -> Self:
        faults = dict(self._faults())
        if faults:
            raise FaultsError(*(((key,), text) for key, text in faults.items()))
        return self

    def _faults(self) -> "list[tuple[str, str]]":
        faults: list[tuple[str, str]] = []
        plain = self.format in PLAIN or (self.format is None and self.columns is not None)
        timed = self.columns is not None and self.columns.time is not None
        if self.format in PLAIN and self.columns is None:
            said = f"{self.format} needs columns, e.g. columns: {{time: sent_at, input: prompt_tokens}}"
            faults.append(("format", said))
        if self.columns is not None and not plain:
            said = f"the columns of {self.format} are known; for your own names write format: csv, jsonl or parquet"
            faults.append(("columns", said))
        if self.columns is not None and self.columns == Columns():
            faults.append(("columns", "names no column; allowed: time, input, output"))
        if plain and timed and self.unit is None:
            faults.append(("columns", "a time column needs its unit: ns, us, ms, s or datetime"))
        if self.unit is not None and not (plain and timed):
            faults.append(("unit", "belongs to columns.time; the other formats have theirs"))
        if self.tokenizer is not None and self.format not in (None, "sharegpt"):
            faults.append(("tokenizer", f"{self.format} has lengths of its own; only sharegpt needs one"))
        if self.to_ns is not None and self.to_ns <= self.from_ns:
            faults.append(("to", "is not after from; nothing would be left"))
        if self.kind is not None and self.kinds is not None:
            faults.append(("kinds", "kind says it already; keep one"))
        return faults

    @property
    def kind_names(self) -> tuple[str, ...]:
        """The profile's kinds that this trace names, in the order that TraceRows.kind indexes."""
        if self.kinds is not None:
            return tuple(dict.fromkeys(self.kinds.map.values()))
        return () if self.kind is None else (self.kind,)

    @property
    def asked_columns(self) -> Mapping[str, str]:
        """Columns beyond times and lengths that are looked at, each with the key that asks for it."""
        asked = dict.fromkeys(self.where, "where")
        return asked if self.kinds is None else {**asked, self.kinds.column: "kinds.column"}


def parse_trace(file: str, keys: str, name: str) -> Trace:
    """A trace from its file and its other keys as YAML or JSON, e.g. "{unit: ms}".  Raises ProfileError."""
    document = read_document(keys, name)
    if not isinstance(document.data, dict):
        raise ProfileError(
            f"{name}: {show_value(document.data)} where a trace's keys are needed, e.g. {{unit: ms}}"
        )
    try:
        return Trace.model_validate({"file": file, **document.data})
    except ValidationError as error:
        raise ProfileError(*problems(error, Trace, document, name)) from None
