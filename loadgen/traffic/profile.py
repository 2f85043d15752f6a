"""The traffic profile: the door where a YAML (or JSON) text becomes a frozen description of load.

It must not know servers, payload bytes or clocks.  Every key:

```yaml
name: mixed-lengths                # default: the file's name
seed: 7                            # whole number; default 0; the same seed sends the same traffic
target: grpc://127.0.0.1:8001      # optional; --target wins
kinds:                             # what is sent: one entry a kind of request
  short:
    model: minilm
    version: "1"                   # default "": the server's choice
    weight: 3                      # share among the kinds, default 1
    batch: 1                       # rows a request, default 1
    length: {lognormal: {median: 32, sigma: 0.6, min: 4, max: 128}}   # tokens a row, for a free dimension
    timeout: 5s                    # counted from the moment of sending, default 60s
    cancel: {share: 0.1, after: 500ms}    # a tenth is given up by the client that long after it was sent
  other:
    model: minilm
    length:                        # one of:
      # 64                                            always 64; also {fixed: 64}
      # uniform: {min: 4, max: 128}
      # normal: {mean: 64, sd: 16, min: 4, max: 128}  cut at min and max, and made up for
      # lognormal: {median: 32, sigma: 0.6, min: 4, max: 128}
      histogram: [{from: 1, to: 16, weight: 5}, {at: 32, weight: 2}]
    output: 64                     # tokens out asked for, where the model generates: the same laws
    inputs:                        # optional: how to fill a tensor, by its name; one law each
      input_ids: {integers: {min: 0, max: 30521}}
      # image: {normal: {mean: 0, sd: 1}, shape: [3, 224, 224]}       shape: a row's, when more than one is free
      # mask: {constant: 1, shape: [1, length]}                       "length" stands for the row's length
      # noise: {uniform: {min: 0, max: 1}}
      # title: {text: {min: 8, max: 64}}                              bytes of a string
  pairs:
    model: llm
    lengths: [{in: 1000, out: 20, weight: 3}, {in: 50, out: 400}]     # tokens in and out that go together
      # title: {file: titles.txt}                                     rows of .npy .npz .json .jsonl .txt
      # input_ids: {file: titles.txt, tokenizer: minilm/}             texts as ids by the model's tokenizer.json
      # image: {file: images.npz, column: train, order: random}       order: file (default) | random
    # data: {file: rows.jsonl, columns: {input_ids: question}, tokenizer: minilm/, order: random}   rows together
cap: {in_flight: 256, when_full: wait}    # optional; wait | drop; latency counts from the due time in both
phases:                            # one after the other; warm-ups first, they enter no figure
  - name: warm-up
    warmup: true
    closed: {users: 8, requests: 64, think: 10ms}     # requests and/or duration (whichever ends first)
  - name: ramp
    open:
      arrivals: poisson            # poisson (default) | uniform | gamma: {burstiness: 4}
      rate:                        # straight lines, one after the other; 0/s is a pause
        - {duration: 30s, from: 10/s, to: 100/s}
        - {duration: 30s, at: 100/s}
  - name: bursty
    open: {arrivals: {gamma: {burstiness: 4}}, rate: [{duration: 20s, at: 50/s}]}   # variance/mean^2 of gaps
  - name: users
    closed: {users: 16, duration: 20s}
objectives:                        # optional; `loadgen check` judges them
  - "latency p99 < 250ms"          # latency | service | lag, with pNN | mean | max
  - "failure rate < 1%"            # failure rate | rejection rate
  - "requests/s > 50"              # requests/s | items/s
  - "mean batch > 2"               # what the server made of it
  - "short: service p95 <= 80ms"   # one kind only
```

Durations take ns, us, ms, s, m, h; rates are per s, m or h.  A number without its unit is refused.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, ValidationError, model_validator

from loadgen.records import LoadgenError
from loadgen.target import parse_target
from loadgen.traffic.data import Data
from loadgen.traffic.document import ProfileError, read_document, read_text
from loadgen.traffic.inputs import Fill
from loadgen.traffic.lengths import Length, Pair
from loadgen.traffic.objective import Objective, parse_objective
from loadgen.traffic.parts import Count, DurationNs, FaultsError, Many, Name, Part, as_tuple
from loadgen.traffic.phases import Closed, Open, Phase, Segment
from loadgen.traffic.problems import problems
from loadgen.traffic.words import near, show_value

__all__ = [
    "Cap", "Closed", "Kind", "Open", "Phase", "ProfileError", "Segment", "TrafficProfile", "load_profile", "parse_profile",
]  # fmt: skip

MOST_PLANNED = 50_000_000
Fault = tuple[tuple[str | int, ...], str]
_MOST_KINDS = 1000


def _kind_name(value: str) -> str:
    if re.fullmatch(r"\w[\w.-]*", value) is None:
        raise ValueError(
            f"the kind's name {show_value(value)} may hold letters, digits, '_', '-' and '.' only"
        )
    return value


def _target(value: str) -> str:
    try:
        return parse_target(value).url
    except LoadgenError as why:
        raise ValueError(str(why)) from None


def _objective(value: Any) -> Objective:
    if not isinstance(value, str):
        raise ValueError(f'{show_value(value)} is not text; write e.g. "latency p99 < 250ms"')  # noqa: TRY004
    try:
        return parse_objective(value)
    except LoadgenError as why:
        raise ValueError(str(why)) from None


KindName = Annotated[str, Field(min_length=1, max_length=60), AfterValidator(_kind_name)]


class Cancel(Part):
    """A share of the requests that the client gives up, so long after they were sent."""

    share: Annotated[float, Field(gt=0, le=1)] = Field(examples=["0.1"])
    after_ns: DurationNs = Field(alias="after", examples=["500ms"])


class Kind(Part):
    """One kind of request."""

    model: Name = Field(examples=["minilm"])
    version: str = ""
    weight: Annotated[float, Field(ge=0, le=1e9)] = 1.0
    batch: Count = 1
    length: Length | None = None
    output: Length | None = None
    lengths: Many[Pair] | None = None
    timeout_ns: DurationNs = Field(60 * 10**9, alias="timeout")
    cancel: Cancel | None = None
    inputs: dict[str, Fill] = Field(default_factory=dict)
    data: Data | None = None
    _name: str = PrivateAttr("")

    @property
    def name(self) -> str:
        """Its key under `kinds`."""
        return self._name

    @model_validator(mode="after")
    def _one_source_of_lengths(self) -> Self:
        if self.lengths is not None:
            if self.length is not None or self.output is not None:
                raise ValueError("takes either lengths (pairs of in and out), or length and output")
            if not any(pair.weight for pair in self.lengths):
                raise FaultsError((("lengths",), "every weight is 0; give at least one pair a weight"))
        return self


class Cap(Part):
    """How many requests may be in flight, and what becomes of one that comes when so many are."""

    in_flight: Count = Field(examples=["256"])
    when_full: Literal["wait", "drop"] = "wait"


class TrafficProfile(Part):
    """A profile that holds together; `text` and `sha256` are those of the file."""

    name: Name
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    target: Annotated[str, AfterValidator(_target)] | None = None
    kinds: Annotated[dict[KindName, Kind], Field(min_length=1, max_length=_MOST_KINDS)] = Field(
        examples=["{short: {model: minilm, length: 32}}"]
    )
    cap: Cap | None = None
    phases: Many[Phase] = Field(examples=["[{name: steady, open: {rate: [{duration: 30s, at: 20/s}]}}]"])
    objectives: Annotated[
        tuple[Annotated[Objective, BeforeValidator(_objective)], ...], BeforeValidator(as_tuple)
    ] = ()
    _text: str = PrivateAttr("")

    @property
    def text(self) -> str:
        """The text it was read from."""
        return self._text

    @property
    def sha256(self) -> str:
        """Of the text, in UTF-8."""
        return hashlib.sha256(self._text.encode()).hexdigest()

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for name, kind in self.kinds.items():
            kind._name = name  # noqa: SLF001 - a kind cannot see its own key
        if faults := [*self._kind_faults(), *self._phase_faults()]:
            raise FaultsError(*faults)
        return self

    def _kind_faults(self) -> Iterator[Fault]:
        if not any(kind.weight for kind in self.kinds.values()):
            yield ("kinds",), "every weight is 0, so nothing would be sent; give at least one a weight"
        for index, objective in enumerate(self.objectives):
            if objective.kind is not None and objective.kind not in self.kinds:
                close, known = near(objective.kind, self.kinds), ", ".join(self.kinds)
                yield ("objectives", index), f"there is no kind {objective.kind!r}{close}; allowed: {known}"

    def _phase_faults(self) -> Iterator[Fault]:
        seen: dict[str, int] = {}
        for index, phase in enumerate(self.phases):
            if (earlier := seen.setdefault(phase.name, index)) != index:
                yield (
                    ("phases", index, "name"),
                    f"{phase.name!r} is the name of phases[{earlier}] too; give it its own",
                )
        measured = [index for index, phase in enumerate(self.phases) if not phase.warmup]
        if not measured:
            yield ("phases",), "all are warm-ups, so nothing would be measured; add one without warmup: true"
        for index, phase in enumerate(self.phases):
            if phase.warmup and measured and index > measured[0]:
                yield (
                    ("phases", index, "warmup"),
                    f"a warm-up after phases[{measured[0]}]; put warm-ups first",
                )
        planned = sum(phase.expected for phase in self.phases)
        if planned > MOST_PLANNED:
            yield (
                ("phases",),
                f"{planned:,.0f} requests are planned; allowed: {MOST_PLANNED:,}; lower a rate or a time",
            )


def parse_profile(text: str, name: str) -> TrafficProfile:
    """Reads a profile from its text; `name` stands in front of every message.  Raises ProfileError."""
    document = read_document(text, name)
    data = document.data
    if isinstance(data, dict) and "name" not in data:
        data = {"name": Path(name).stem or "profile", **data}
    try:
        profile = TrafficProfile.model_validate(data)
    except ValidationError as error:
        raise ProfileError(*problems(error, TrafficProfile, document, name)) from None
    profile._text = text  # noqa: SLF001 - known only after reading
    return profile


def load_profile(path: Path | str) -> TrafficProfile:
    """Reads a profile from a file.  Raises ProfileError, one line a problem."""
    return parse_profile(read_text(Path(path)), str(path))
