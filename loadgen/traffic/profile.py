"""The traffic profile: the door where a YAML (or JSON) text becomes a frozen description of load.

Every key:

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
    # distinct: all                # an input of its own for each request, within 1 GiB; default: about 512 in turns
    length: {lognormal: {median: 32, sigma: 0.6, min: 4, max: 128}}   # tokens a row, for a free dimension
    timeout: 5s                    # counted from the moment of sending, default 60s
    cancel: {share: 0.1, after: 500ms}    # a tenth (of dialogues: of first requests) is given up so long after it was sent
    full: {status: [503, 14], words: [busy]}    # such a failure means a full queue, as HTTP 429 does: one of these
                                   # HTTP or gRPC statuses with one of these words; known servers need none
  other:
    model: minilm
    length:                        # one of:
      # 64                                            always 64; also {fixed: 64}
      # uniform: {min: 4, max: 128}
      # normal: {mean: 64, sd: 16, min: 4, max: 128}  cut at min and max, and made up for
      # lognormal: {median: 32, sigma: 0.6, min: 4, max: 128}
      histogram: [{from: 1, to: 16, weight: 5}, {at: 32, weight: 2}]
    inputs:                        # optional: how to fill a tensor, by its name; one law each
      input_ids: {integers: {min: 0, max: 30521}}
      # image: {normal: {mean: 0, sd: 1}, shape: [3, 224, 224]}       shape: a row's, when more than one is free
      # mask: {constant: 1, shape: [1, length]}                       "length" stands for the row's length
      # noise: {uniform: {min: 0, max: 1}}
      # title: {text: {min: 8, max: 64}}                              bytes of a string
      # title: {file: titles.txt}                                     rows of .npy .npz .json .jsonl .txt
      # input_ids: {file: titles.txt, tokenizer: minilm/}             texts as ids by the model's tokenizer.json
      # image: {file: images.npz, column: train, order: random}       order: file (default) | random
    # data: {file: rows.jsonl, columns: {input_ids: question}, tokenizer: minilm/, order: random}   rows together
    # data: {file: rows.jsonl, ignore: [label]}                     a column that fills no input is refused, or left out
  talk:
    model: llm
    chat: {system: You are brief., turns: 3, think: 2s}     # openai+http://; also completion: and generate:; below
    length: {uniform: {min: 20, max: 200}}                  # tokens of a prompt
    output: 64                                              # tokens out asked for: the same laws as length
  summary:
    model: llm
    completion: {temperature: 0}
    lengths: [{in: 1000, out: 20, weight: 3}, {in: 50, out: 400}]     # tokens in and out that go together
  decoupled:
    model: repeat
    stream: true                   # gRPC ModelStreamInfer: any number of answers, each with its stamp
    priority: 1                    # Triton's, and its own timeout and parameters of a request
    server_timeout: 50ms
    parameters: {mode: fast}
  stateful:
    model: accumulate
    sequence: {requests: 8, ids: number}      # each sent when the one before was answered; number | text
  local:
    model: resnet
    shared_memory: {inputs: true, outputs: true}    # of a server on this machine; below
  plain:
    length: 32
    http: {path: /predict, json: {inputs: ["{text}"]}}      # any HTTP server that speaks JSON or bytes; below
network: {delay: 20ms, jitter: 2ms, bandwidth: 10MiB/s}   # optional; each way, so a round trip takes 40ms more
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
  - name: replay
    trace: {file: azure.csv, kind: talk, speed: 10, clamp: {input: 4000}}     # rows of a file by their times; below
objectives:                        # optional; `loadgen check` judges them
  - "latency p99 < 250ms"          # latency | service | lag, with pNN | mean | max
  - "failure rate < 1%"            # failure rate | rejection rate
  - "requests/s > 50"              # requests/s | items/s
  - "mean batch > 2"               # what the server made of it; also server queue | server compute < 5ms, of model NAME
  - "ttft p95 < 500ms"             # of streams: ttft | first content (each also: from sent) | tpot | chunk gap
  - "output tokens/s > 100"        # output tokens/s | input tokens/s | good requests/s | good tokens/s
  - "goodput > 95%"                # requests that meet every bound above on a time of one request
  - "short: service p95 <= 80ms"   # one kind only
  - "latency p99 in phase ramp at length 65-128 < 1s"   # one phase, some lengths; without a phase each must hold it,
                                   # "in all phases" takes their requests together
  - "first request < 2s"           # facts of a run: cold start live | ready | load | model ready, joules a request
```

Durations take ns, us, ms, s, m, h; rates are per s, m or h.  A number without its unit is refused.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, ValidationError, model_validator

from loadgen.records import LoadgenError
from loadgen.target import parse_target
from loadgen.traffic.chat import Chat, Completion, Generate
from loadgen.traffic.data import Data
from loadgen.traffic.document import ProfileError, read_document, read_text
from loadgen.traffic.http_request import HttpRequest
from loadgen.traffic.inputs import Fill
from loadgen.traffic.lengths import Length, Pair
from loadgen.traffic.network import Network
from loadgen.traffic.objective import Objective, parse_objective
from loadgen.traffic.parts import (
    Count,
    DurationNs,
    FaultsError,
    Many,
    Name,
    Part,
    Written,
    as_tuple,
    printable,
)
from loadgen.traffic.phases import Closed, Open, Phase, Segment
from loadgen.traffic.problems import problems
from loadgen.traffic.shared_memory import SharedMemory
from loadgen.traffic.triton import Parameters, Priority, Sequence
from loadgen.traffic.words import near, show_value

__all__ = [
    "Cap", "Closed", "Kind", "Open", "Phase", "ProfileError", "Segment", "TrafficProfile", "load_profile", "parse_profile",
]  # fmt: skip

MOST_PLANNED = 50_000_000
_GRPC_STATUS, _HTTP_STATUS, _GOOD = range(1, 17), range(200, 600), range(200, 300)
Fault = tuple[tuple[str | int, ...], str]
_MOST_KINDS = 1000
_DIALECTS = ("chat", "completion", "generate", "http")  # none of them: tensors, as KServe v2 has them
_OF_TENSORS = (
    "inputs",
    "data",
    "shared_memory",
    "stream",
    "priority",
    "server_timeout",
    "parameters",
    "sequence",
)


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


def _printable_if_any(value: str) -> str:
    return value and printable(value)


KindName = Annotated[str, Field(min_length=1, max_length=60), AfterValidator(_kind_name)]


class Cancel(Part):
    """A share of the requests that the client gives up, so long after they were sent."""

    share: Annotated[float, Field(gt=0, le=1)] = Field(examples=["0.1"])
    after_ns: DurationNs = Field(alias="after", examples=["500ms"])


def _failing(value: int) -> int:
    if value not in _GRPC_STATUS and value not in _HTTP_STATUS:
        raise ValueError(f"{value} is no status of an answer; allowed: HTTP 200 to 599, gRPC 1 to 16")
    return value


class Full(Part):
    """What a failure says when the server's queue is full: one of these statuses, with one of these words."""

    status: Many[Annotated[int, AfterValidator(_failing)]] = Field((), examples=["[503]"])
    words: Many[Annotated[str, Field(min_length=1, max_length=200)]] = Field((), examples=["[queue is full]"])

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.status and not self.words:
            raise ValueError("is empty; give it status, words or both")
        if not self.words and (good := [status for status in self.status if status in _GOOD]):
            raise FaultsError((("words",), f"status {good[0]} alone is no refusal; add words"))
        return self


class Kind(Part):
    """One kind of request."""

    model: Annotated[str, Field(max_length=120), AfterValidator(_printable_if_any)] = ""
    version: str = ""
    weight: Annotated[float, Field(ge=0, le=1e9)] = 1.0
    batch: Count = 1
    distinct: Literal["all"] | None = None
    length: Length | None = None
    output: Length | None = None
    lengths: Many[Pair] | None = None
    timeout_ns: DurationNs = Field(60 * 10**9, alias="timeout")
    cancel: Cancel | None = None
    full: Full | None = None
    inputs: dict[str, Fill] = Field(default_factory=dict)
    data: Data | None = None
    shared_memory: SharedMemory | None = None
    stream: bool = False
    priority: Priority | None = None
    server_timeout_ns: DurationNs | None = Field(None, alias="server_timeout")
    parameters: Parameters = Field(default_factory=dict)
    sequence: Sequence | None = None
    chat: Chat | None = None
    completion: Completion | None = None
    generate: Generate | None = None
    http: HttpRequest | None = None
    _name: str = PrivateAttr("")

    @property
    def name(self) -> str:
        """Its key under `kinds`."""
        return self._name

    @property
    def subject(self) -> str:
        """What it asks: the model's name, or the request of a plain HTTP server."""
        return self.model if self.http is None else f"{self.http.method} {self.http.path}"

    @property
    def text(self) -> Chat | Completion | Generate | None:
        """How it asks for text; None where it sends tensors or plain HTTP."""
        return self.chat or self.completion or self.generate

    @property
    def is_kserve(self) -> bool:
        """Whether it sends tensors, as KServe v2 has it."""
        return self.http is None and self.text is None

    @model_validator(mode="after")
    def _one_dialect(self) -> Self:
        given = [key for key in _DIALECTS if getattr(self, key) is not None]
        if len(given) > 1:
            raise ValueError(f"takes one of {', '.join(_DIALECTS)}; given: {' and '.join(given)}")
        if self.http is None and not self.model:
            raise FaultsError((("model",), "is missing; write e.g. model: minilm"))
        if self.distinct is not None and self.sequence is not None:
            raise FaultsError(
                (("distinct",), "does not go with sequence, whose requests share their variants")
            )
        if not given:
            return self
        names = {info.alias or name: name for name, info in type(self).model_fields.items()}
        others = ("model", "version") if self.http else () if self.generate else ("version",)
        for key in (*_OF_TENSORS, *others):
            if names[key] in self.model_fields_set:
                raise FaultsError(((key,), f"does not go with {given[0]}; take one of them out"))
        if self.text is not None:
            has_output = self.output is not None or self.lengths is not None
            faults = self.text.extra_faults(has_output=has_output)
            if found := [((given[0], *where), said) for where, said in faults]:
                raise FaultsError(*found)
        if self.batch > 1 and self.text is not None:
            raise FaultsError((("batch",), f"does not go with {given[0]}, which has one text a request"))
        return self

    def length_faults(self, *, traced: bool) -> Iterator[Fault]:
        """What is wrong with the lengths it has; `traced`: a trace gives some."""
        own = self.length is not None or self.lengths is not None
        output = self.output is not None or self.lengths is not None
        if self.http is not None:
            yield from self.http.length_faults(length=own, output=output, traced=traced)
        elif self.text is not None:
            has_length = own or (traced and self.text.prompts is None)
            if (said := self.text.length_fault(has_length=has_length)) is not None:
                yield ("length",), said

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


class TrafficProfile(Written):
    """A profile that holds together; `text` and `sha256` are those of the file."""

    name: Name
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    target: Annotated[str, AfterValidator(_target)] | None = None
    kinds: Annotated[dict[KindName, Kind], Field(min_length=1, max_length=_MOST_KINDS)] = Field(
        examples=["{short: {model: minilm, length: 32}}"]
    )
    cap: Cap | None = None
    network: Network | None = None
    phases: Many[Phase] = Field(examples=["[{name: steady, open: {rate: [{duration: 30s, at: 20/s}]}}]"])
    objectives: Annotated[
        tuple[Annotated[Objective, BeforeValidator(_objective)], ...], BeforeValidator(as_tuple)
    ] = ()

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for name, kind in self.kinds.items():
            kind._name = name  # noqa: SLF001 - a kind cannot see its own key
        if faults := [*self._kind_faults(), *self._objective_faults(), *self._phase_faults()]:
            raise FaultsError(*faults)
        return self

    def with_objectives(self, texts: list[str]) -> Self:
        """The same profile with these objectives instead of its own.

        Raises LoadgenError on one that cannot be read, or names a kind or phase that the profile has not.
        """
        changed = self.model_copy(update={"objectives": tuple(map(parse_objective, texts))})
        for (_, place), said in changed._objective_faults():  # noqa: SLF001 - its own
            raise LoadgenError(f"objective {texts[int(place)]!r}: {said}")
        return changed

    def _objective_faults(self) -> Iterator[Fault]:
        measured = [phase.name for phase in self.phases if not phase.warmup]
        for index, objective in enumerate(self.objectives):
            for what, named, there in (
                ("kind", objective.kind, list(self.kinds)),
                ("measured phase", objective.figure.phase, measured),
            ):
                if named is not None and named not in there:
                    close, known = near(named, there), ", ".join(there)
                    yield ("objectives", index), f"there is no {what} {named!r}{close}; allowed: {known}"

    def _kind_faults(self) -> Iterator[Fault]:
        if not any(kind.weight for kind in self.kinds.values()):
            yield ("kinds",), "every weight is 0, so nothing would be sent; give at least one a weight"
        traced = any(phase.trace is not None for phase in self.phases)
        for name, kind in self.kinds.items():
            for where, said in kind.length_faults(traced=traced):
                yield ("kinds", name, *where), said
        for index, phase in enumerate(self.phases):
            for name in () if phase.trace is None else phase.trace.kind_names:
                if name not in self.kinds:
                    key = "kind" if phase.trace is not None and phase.trace.kind else "kinds"
                    said = (
                        f"there is no kind {name!r}{near(name, self.kinds)}; allowed: {', '.join(self.kinds)}"
                    )
                    yield ("phases", index, "trace", key), said

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


def parse_profile(text: str, name: str, folder: Path = Path()) -> TrafficProfile:
    """Reads a profile from its text; `name` stands in front of every message.  Raises ProfileError.

    Files that it names are relative to `folder`.
    """
    document = read_document(text, name)
    data = document.data
    if isinstance(data, dict) and "name" not in data:
        data = {"name": Path(name).stem or "profile", **data}
    try:
        profile = TrafficProfile.model_validate(data)
    except ValidationError as error:
        raise ProfileError(*problems(error, TrafficProfile, document, name)) from None
    profile._text, profile._folder = text, folder.resolve()  # noqa: SLF001 - known only after reading
    return profile


def load_profile(path: Path | str) -> TrafficProfile:
    """Reads a profile from a file.  Raises ProfileError, one line a problem."""
    return parse_profile(read_text(Path(path)), str(path), Path(path).parent)
