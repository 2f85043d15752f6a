"""How a profile writes a request to any HTTP server: one that speaks neither KServe nor OpenAI.

```yaml
kinds:
  f:
    length: 32                            # words of {text}
    http:
      # unit: bytes                       then it is bytes of {text}
      method: POST                        # default
      path: /predict?trace={id}           # below the target's own path
      headers: {X-Request: "{id}"}        # credentials go with --header: a profile is written to files
      json: {inputs: ["{text}"], parameters: {max_new: "{length}", seed: "{seed}"}, extra: "{null}"}
      # text: "{text}"                                  text/plain
      # binary: {files: [cat.jpg, dog.jpg]}             as they are; application/octet-stream
      # binary: {tensor: {datatype: FP32, shape: [3, 224, 224], uniform: {min: 0, max: 1}, as: npy}}
      # binary: {bytes: {min: 1000, max: 2000}}         random ones
      # form: {fields: {caption: "{text}"}, files: {image: {files: [cat.jpg], type: image/jpeg}}}
      values:                             # names of your own, drawn anew for each variant; one law each
        seed: {integers: {min: 1, max: 1000}}
        # topic: {choice: [sport, news]}
        # question: {lines: questions.txt}              a line a variant, in order
        # image: {uniform: {min: 0, max: 1}, shape: [28, 28]}       nested lists; "length" is the request's
        # noise: {normal: {mean: 0, sd: 1}}             a number
        # note: {text: {min: 8, max: 64}}               bytes of random words
      success:                            # default: any status from 200 to 299
        status: [200, 202-204]
        json: {path: "$.predictions[0].score", min: 0, max: 1}      # or a list of such; with a path alone: is there
        # json: {path: $.status, equals: ok}            {matches: "^o"} | {exists: false}
      ready: {path: /health, status: [200]}      # asked before the run, until it fits; default: not asked
```

Variables are `{text}`, `{length}`, `{output}`, `{id}` (one a variant), `{null}` and the names under values.  A JSON
text that is one variable and nothing else becomes its value (a number, a list); `{{name}}` stands for itself.
It must not know how bodies are built or sent.
"""

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, InstanceOf, model_validator

from loadgen.traffic.inputs import Dimension, Gauss, Integers, Reals, Text
from loadgen.traffic.lengths import Tokens
from loadgen.traffic.parts import FaultsError, Many, Part, as_tuple, exactly_one
from loadgen.traffic.words import near, show_value

VARIABLE = re.compile(r"\{(?P<itself>\{[A-Za-z_]\w*\})\}|\{(?P<name>[A-Za-z_]\w*)\}")
BUILT_IN = ("text", "length", "output", "id", "null")
BODIES = ("json", "text", "binary", "form")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SECRET = ("authorization", "proxy-authorization", "cookie")
_FRAMING = ("content-length", "transfer-encoding", "connection")
_STEP = re.compile(
    r"\.(?P<key>[^.\[\]\"']+)|\[(?P<index>-?\d+)\]|\[(?P<quote>[\"'])(?P<quoted>.*?)(?P=quote)\]"
)
_STATUS = range(100, 600)
_MOST_BYTES = 2**28

Step = str | int
Datatype = Literal["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"]  # fmt: skip
Shape = Annotated[tuple[Dimension, ...], BeforeValidator(as_tuple), Field(max_length=16)]
FileName = Annotated[str, Field(min_length=1, max_length=500)]


def variables(template: Any) -> set[str]:
    """The names of the variables in a text or in the texts of JSON data."""
    if isinstance(template, str):
        return {found["name"] for found in VARIABLE.finditer(template) if found["name"]}
    if isinstance(template, dict):
        return set().union(*(variables(part) for pair in template.items() for part in pair))
    return set().union(*map(variables, template)) if isinstance(template, list) else set()


def parse_path(text: str) -> tuple[Step, ...]:
    """`$.predictions[0]["score"]` as its steps.  Raises ValueError; `$` alone is the whole answer."""
    steps: list[Step] = []
    at = 1 if text.startswith("$") else 0
    rest = text if at else f".{text}"
    while at < len(rest):
        step = _STEP.match(rest, at)
        if step is None:
            raise ValueError(
                f"{show_value(text)} is no path into JSON: unclear from {show_value(rest[at:])}; write e.g. "
                "$.predictions[0].score (keys after dots or quoted in brackets, places in brackets)"
            )
        steps.append(int(step["index"]) if step["index"] else step["key"] or step["quoted"])
        at = step.end()
    return tuple(steps)


def _checked_path(value: str) -> str:
    parse_path(value)
    return value


def _statuses(value: Any) -> Any:
    """200 and "200-204" as ranges."""
    ranges = []
    for item in value if isinstance(value, list) else [value]:
        first, _, last = str(item).partition("-")
        ends = [int(end) if end.strip().isdecimal() else 0 for end in (first, last or first)]
        if isinstance(item, bool) or ends[0] > ends[1] or not all(end in _STATUS for end in ends):
            raise ValueError(
                f"{show_value(item)} is no status; allowed: 100 to 599, or a range such as 200-204"
            )
        ranges.append(range(ends[0], ends[1] + 1))
    if not ranges:
        raise ValueError("is empty; allowed: statuses, e.g. [200]")
    return tuple(ranges)


def _json_only(value: Any) -> Any:
    if isinstance(value, dict):
        if bad := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"the key {show_value(bad[0])} is not text; put it in quotes")
        return {key: _json_only(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_json_only(part) for part in value]
    if value is None:
        raise ValueError('null is written "{null}" here')
    if not isinstance(value, str | bool | int | float) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        raise ValueError(f"{show_value(value)} has no JSON form; put it in quotes")
    return value


Json = Annotated[Any, BeforeValidator(_json_only)]
Statuses = Annotated[tuple[InstanceOf[range], ...], BeforeValidator(_statuses)]


class Value(Part):
    """A variable: one law.  With a shape, nested lists of numbers."""

    integers: Integers | None = None
    uniform: Reals | None = None
    normal: Gauss | None = None
    text: Text | None = None
    choice: (
        Annotated[tuple[Json, ...], BeforeValidator(as_tuple), Field(min_length=1, max_length=10_000)] | None
    ) = None
    lines: FileName | None = None
    shape: Shape | None = None

    @model_validator(mode="after")
    def _one_law(self) -> Self:
        law = exactly_one(self, ("integers", "uniform", "normal", "text", "choice", "lines"))
        if self.shape is not None and law not in ("integers", "uniform", "normal"):
            raise ValueError(f"a shape goes with integers, uniform or normal, not with {law}")
        if self.integers is not None and self.integers.min < 0 and self.integers.max >= 2**63:
            raise FaultsError((("integers",), "spans more than 64 bits; raise min or lower max"))
        return self


class RawTensor(Part):
    """A tensor as bytes: raw (little endian, row-major) or a .npy file."""

    datatype: Datatype = Field(examples=["FP32"])
    shape: Shape = Field(examples=["[3, 224, 224]"])
    integers: Integers | None = None
    uniform: Reals | None = None
    normal: Gauss | None = None
    form: Literal["raw", "npy"] = Field("raw", alias="as")

    @model_validator(mode="after")
    def _one_law(self) -> Self:
        if len([law for law in (self.integers, self.uniform, self.normal) if law is not None]) > 1:
            raise ValueError("takes one of integers, uniform, normal")
        if math.prod(dim for dim in self.shape if isinstance(dim, int)) > _MOST_BYTES:
            raise FaultsError((("shape",), f"has more than {_MOST_BYTES:,} values"))
        return self


class Size(Part):
    """So many random bytes."""

    min: Tokens = Field(examples=["1000"])
    max: Tokens = Field(examples=["2000"])

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}; swap them")
        return self


class Blob(Part):
    """Bytes: files as they are, a tensor, or random ones; `type` is their media type."""

    files: Many[FileName] | None = None
    tensor: RawTensor | None = None
    bytes_: Size | None = Field(None, alias="bytes")
    type: str = Field("application/octet-stream", pattern=r"^[\w.+-]+/[\w.+-]+$")

    @model_validator(mode="before")
    @classmethod
    def _one_source(cls, value: Any) -> Any:
        if (
            isinstance(value, dict)
            and len(given := [k for k in ("files", "tensor", "bytes") if k in value]) != 1
        ):
            said = " and ".join(given) or "none"
            raise ValueError(f"needs exactly one of files, tensor, bytes; given: {said}")
        return value


class Form(Part):
    """A form: multipart/form-data when it has files, else application/x-www-form-urlencoded."""

    fields: dict[str, str] = Field(default_factory=dict)
    files: dict[str, Blob] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.fields and not self.files:
            raise ValueError("is empty; give it fields or files")
        return self


class Condition(Part):
    """What a place in the answer's JSON must be; with a path alone, it must be there."""

    path: Annotated[str, Field(max_length=500), AfterValidator(_checked_path)] = Field(
        examples=["$.predictions[0]"]
    )
    exists: bool = True
    equals: Json | None = None
    min: float | None = None
    max: float | None = None
    matches: str | None = None

    @model_validator(mode="after")
    def _sound(self) -> Self:
        tests = [key for key in ("equals", "min", "max", "matches") if getattr(self, key) is not None]
        if not self.exists and tests:
            raise ValueError(f"exists: false and {tests[0]} cannot both be; take one out")
        try:
            re.compile(self.matches or "")
        except re.error as why:
            raise FaultsError(
                (("matches",), f"{show_value(self.matches)} is no regular expression: {why}")
            ) from None
        return self


class Success(Part):
    """When an answer counts as a success."""

    status: Statuses = (range(200, 300),)
    json_: Annotated[
        tuple[Condition, ...], BeforeValidator(lambda v: (v,) if isinstance(v, dict) else as_tuple(v))
    ] = Field(default=(), alias="json")


class Ready(Part):
    """A question that the server answers with one of these statuses once it is ready."""

    path: Annotated[str, Field(min_length=1, max_length=2000)] = Field(examples=["/health"])
    status: Statuses = (range(200, 201),)


class HttpRequest(Part):
    """One kind of request to any HTTP server."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    path: Annotated[str, Field(min_length=1, max_length=8000)] = Field(examples=["/predict"])
    headers: dict[str, str] = Field(default_factory=dict)
    json_: Json | None = Field(None, alias="json")
    text: str | None = None
    binary: Blob | None = None
    form: Form | None = None
    unit: Literal["words", "bytes"] = "words"
    values: dict[str, Value] = Field(default_factory=dict)
    success: Success = Success()
    ready: Ready | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        given = [key for key, value in zip(BODIES, self.bodies, strict=True) if value is not None]
        if len(given) > 1:
            raise ValueError(f"takes one of {', '.join(BODIES)}; given: {' and '.join(given)}")
        faults = [*self._header_faults(), *self._variable_faults()]
        if faults:
            raise FaultsError(*faults)
        return self

    @property
    def bodies(self) -> tuple[Any, str | None, Blob | None, Form | None]:
        """In the order of BODIES; at most one is not None."""
        return self.json_, self.text, self.binary, self.form

    @property
    def used(self) -> set[str]:
        """The variables that its texts name."""
        fields = [*self.form.fields.values()] if self.form else []
        return variables([self.path, *self.headers.values(), self.text or "", self.json_, *fields])

    @property
    def takes_length(self) -> bool:
        """Whether anything of it depends on the request's length."""
        blobs = [self.binary, *(self.form.files.values() if self.form else ())]
        shapes = [value.shape for name, value in self.values.items() if name in self.used]
        shapes += [blob.tensor.shape for blob in blobs if blob and blob.tensor]
        return bool({"text", "length"} & self.used) or any("length" in shape for shape in shapes if shape)

    def length_faults(
        self, *, length: bool, output: bool, traced: bool = False
    ) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """What does not go together with the kind's having, or not having, lengths in and out of its own;
        `traced`: a trace may give them.
        """
        length, output = (
            length or (traced and self.takes_length),
            output or (traced and "output" in self.used),
        )
        if self.takes_length != length:
            said = "nothing of the request takes a length; use {text}, {length} or a shape with length, or take length out"
            yield (
                ("http",),
                said if length else "the request takes a length; give the kind one, e.g. length: 32",
            )
        if ("output" in self.used) != output:
            said = "nothing of the request says {output}; use it, or take output out"
            yield ("http",), said if output else "{output} is used; give the kind one, e.g. output: 64"

    def _header_faults(self) -> list[tuple[tuple[str | int, ...], str]]:
        faults: list[tuple[tuple[str | int, ...], str]] = []
        for name in self.headers:
            if name.lower() in _SECRET:
                said = "credentials do not belong in a profile, it is written to files; use --header"
                faults.append((("headers", name), said))
            elif _TOKEN.fullmatch(name) is None or name.lower() in _FRAMING:
                said = f"not a header that can be set; allowed: any token but {', '.join(_FRAMING)}"
                faults.append((("headers", name), said))
        return faults

    def _variable_faults(self) -> list[tuple[tuple[str | int, ...], str]]:
        known = (*BUILT_IN, *self.values)
        faults: list[tuple[tuple[str | int, ...], str]] = []
        for name in self.values:
            if name in BUILT_IN or VARIABLE.fullmatch(f"{{{name}}}") is None:
                said = "is no name for a value; allowed: a letter, then letters, digits and _ "
                faults.append((("values", name), f"{said}(not {', '.join(BUILT_IN)})"))
            elif name not in self.used:
                faults.append(
                    (("values", name), f"the request does not use {{{name}}}; use it, or take it out")
                )
        places = {"path": self.path, "headers": [*self.headers.values()], "json": self.json_, "text": self.text,
                  "form": [*self.form.fields.values()] if self.form else None}  # fmt: skip
        for place, template in places.items():
            for name in sorted(variables(template) - set(known)):
                said = f"no variable {{{name}}}{near(name, known)}; allowed: {', '.join(known)} (or {{{{{name}}}}} for itself)"
                faults.append(((place,), said))
        return faults
