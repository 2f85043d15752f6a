"""Requests to any HTTP server, built from a profile's template: one a variant wanted.

Reads the files that a profile names, and no others.  It must not know connections, targets or time.
"""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import numpy as np

from loadgen.records import LoadgenError, Message, Request, Wanted
from loadgen.traffic.http_request import VARIABLE, Blob, HttpRequest, RawTensor, Value
from loadgen.traffic.inputs import Fill
from loadgen.traffic.lines import LinesError, text_lines
from loadgen.units import show_bytes
from loadgen.workload.fills import draw
from loadgen.workload.fit import DTYPES
from loadgen.workload.http_answer import judge_of
from loadgen.workload.words import text_of_bytes, words

VARIANTS = 512
_FEWEST = 8
_POOL_BYTES = 64 * 2**20
_MOST_FILE_BYTES = 2**28
PATH_SAFE = "/?&=%:@!$'()*+,;~-._"  # what is escaped already, or may stand as it is
_Item = TypeVar("_Item")
_FormPart = tuple[
    str, str | None, bytes
]  # its name (and file name) as its head has them, media type, content
_DECIMALS = 6  # of a number in JSON: as many as a float32 carries, without its long tail


def build(
    kind: str,
    http: HttpRequest,
    wanted: Sequence[Wanted],
    rng: np.random.Generator,
    folder: Path,
    items: int = 1,
) -> list[Message]:
    """One message a variant; `folder` is where the profile's files are, `items` the rows that one counts for.

    Raises LoadgenError for a file that cannot be read.
    """
    files = _Files(folder, kind)
    judge = judge_of(http.success)
    messages = []
    for number, lengths in enumerate(wanted):
        one = _Variant(number, lengths, rng, files)
        values = _values(kind, http, one)
        body, media_type = _body(http, values, one)
        headers = [(name, _text(value, values)) for name, value in http.headers.items()]
        if media_type and not any(name.lower() == "content-type" for name, _ in headers):
            headers.insert(0, ("Content-Type", media_type))
        path = _text(http.path, values, literal=partial(quote, safe=PATH_SAFE), value=partial(quote, safe=""))
        request = Request(path, tuple(headers), body, http.method, judge=judge)
        messages.append(Message(request, lengths.length, items))
    return messages


def most_variants(http: HttpRequest, longest: Wanted, folder: Path) -> int:
    """How many variants are worth building: one where nothing varies, else what 64 MiB hold (8 to 512)."""
    blobs = [http.binary, *(http.form.files.values() if http.form else ())]
    drawn = http.used & {"text", "id", *http.values}
    if not drawn and all(blob is None or (blob.files and len(blob.files) == 1) for blob in blobs):
        return 1
    [message] = build("size", http, [longest], np.random.default_rng(0), folder)
    return max(_FEWEST, min(VARIANTS, _POOL_BYTES // max(1, len(message.request.body))))


class _Files:
    """The files of a profile, each read once."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder, self._where = folder, f"kind {kind!r}"
        self._bytes: dict[str, bytes] = {}
        self._lines: dict[str, list[str]] = {}

    def read(self, name: str) -> bytes:
        if name not in self._bytes:
            path = self._folder / name
            try:
                if path.stat().st_size > _MOST_FILE_BYTES:
                    raise LoadgenError(f"{self._where}: {path} is larger than {show_bytes(_MOST_FILE_BYTES)}")
                self._bytes[name] = path.read_bytes()
            except OSError as why:
                raise LoadgenError(f"{self._where}: {path} cannot be read: {why.strerror}") from None
        return self._bytes[name]

    def lines(self, name: str) -> list[str]:
        """Its lines that are not empty."""
        if name not in self._lines:
            try:
                lines = [line.decode() for line in text_lines(self.read(name)) if line]
            except UnicodeDecodeError as why:
                raise LoadgenError(f"{self._where}: {name}: not UTF-8 text (byte {why.start})") from None
            except LinesError as why:
                raise LoadgenError(f"{self._where}: {name}: {why}") from None
            self._lines[name] = lines
        if not self._lines[name]:
            raise LoadgenError(f"{self._where}: {name} has no line that is not empty")
        return self._lines[name]


@dataclass(frozen=True, slots=True)
class _Variant:
    """Which variant is made, of what lengths, and from what."""

    number: int
    wanted: Wanted
    rng: np.random.Generator
    files: _Files

    def sized(self, shape: tuple[int | str, ...]) -> tuple[int, ...]:
        return tuple(dim if isinstance(dim, int) else self.wanted.length or 1 for dim in shape)

    def turn(self, items: Sequence[_Item]) -> _Item:
        """They take turns, in order."""
        return items[self.number % len(items)]


def _values(kind: str, http: HttpRequest, one: _Variant) -> dict[str, Any]:
    """The variables that the request names."""
    length = one.wanted.length
    made: dict[str, Callable[[], Any]] = {
        "text": lambda: (words if http.unit == "words" else text_of_bytes)(one.rng, length or 1),
        "length": lambda: length,
        "output": lambda: one.wanted.output,
        "id": lambda: f"{kind}-{one.number}",
        "null": lambda: None,
    }
    used = http.used
    values = {name: make() for name, make in made.items() if name in used}
    return values | {name: _drawn(value, one) for name, value in http.values.items() if name in used}


def _drawn(value: Value, one: _Variant) -> Any:
    rng = one.rng
    if value.choice is not None:
        return value.choice[int(rng.integers(len(value.choice)))]
    if value.lines is not None:
        return one.turn(one.files.lines(value.lines))
    if value.text is not None:
        return text_of_bytes(rng, int(rng.integers(value.text.min, value.text.max, endpoint=True)))
    shape = one.sized(value.shape or ())
    if value.integers is not None:
        low, high = value.integers.min, value.integers.max
        dtype = np.uint64 if low >= 0 else np.int64
        return rng.integers(low, high, size=shape, dtype=dtype, endpoint=True).tolist()
    if value.uniform is not None:
        numbers = value.uniform.min + (value.uniform.max - value.uniform.min) * rng.random(shape)
    else:
        assert value.normal is not None  # noqa: S101 - exactly one law is given
        numbers = value.normal.mean + value.normal.sd * rng.standard_normal(shape)
    return np.round(numbers, _DECIMALS).tolist()


def _same(text: str) -> str:
    return text


def _text(
    template: str,
    values: dict[str, Any],
    literal: Callable[[str], str] = _same,
    value: Callable[[str], str] = _same,
) -> str:
    """A text with its variables put in; what is no text itself goes in as JSON."""
    parts, at = [], 0
    for found in VARIABLE.finditer(template):
        parts.append(literal(template[at : found.start()]))
        name = found["name"]
        parts.append(value(_shown(values[name])) if name else literal(found["itself"]))
        at = found.end()
    return "".join((*parts, literal(template[at:])))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _json(template: Any, values: dict[str, Any]) -> Any:
    """JSON data with its variables put in; a text that is one variable becomes its value."""
    if isinstance(template, str):
        whole = VARIABLE.fullmatch(template)
        return values[whole["name"]] if whole and whole["name"] else _text(template, values)
    if isinstance(template, dict):
        return {_text(key, values): _json(part, values) for key, part in template.items()}
    return [_json(part, values) for part in template] if isinstance(template, list) else template


def _body(http: HttpRequest, values: dict[str, Any], one: _Variant) -> tuple[bytes, str | None]:
    """The body and its media type; (b"", None) for a request without one."""
    if http.json_ is not None:
        data = json.dumps(_json(http.json_, values), ensure_ascii=False, separators=(",", ":"))
        return data.encode(), "application/json"
    if http.text is not None:
        return _text(http.text, values).encode(), "text/plain; charset=utf-8"
    if http.binary is not None:
        return _blob(http.binary, one)[0], http.binary.type
    if http.form is None:
        return b"", None
    fields = {name: _text(value, values) for name, value in http.form.fields.items()}
    if not http.form.files:
        return urlencode(fields).encode(), "application/x-www-form-urlencoded"
    parts: list[_FormPart] = [
        (f'name="{_quoted(name)}"', None, value.encode()) for name, value in fields.items()
    ]
    for name, blob in http.form.files.items():
        data_, file_name = _blob(blob, one)
        parts.append((f'name="{_quoted(name)}"; filename="{_quoted(file_name)}"', blob.type, data_))
    return _multipart(parts, one.rng)


def _blob(blob: Blob, one: _Variant) -> tuple[bytes, str]:
    """Bytes and a file's name for them."""
    if blob.files is not None:
        name = one.turn(blob.files)
        return one.files.read(name), Path(name).name
    if blob.bytes_ is not None:
        return one.rng.bytes(
            int(one.rng.integers(blob.bytes_.min, blob.bytes_.max, endpoint=True))
        ), "random.bin"
    assert blob.tensor is not None  # noqa: S101 - exactly one source is given
    return _raw(blob.tensor, one), "tensor.npy" if blob.tensor.form == "npy" else "tensor.bin"


def _raw(tensor: RawTensor, one: _Variant) -> bytes:
    shape = one.sized(tensor.shape)
    laws = {"integers": tensor.integers, "uniform": tensor.uniform, "normal": tensor.normal}
    given = {name: law for name, law in laws.items() if law is not None}
    data = draw(one.rng, tensor.datatype, shape, Fill.model_validate(given) if given else None, None)
    if tensor.form == "raw":
        return data
    file = io.BytesIO()
    np.save(file, np.frombuffer(data, DTYPES[tensor.datatype]).reshape(shape), allow_pickle=False)
    return file.getvalue()


def _quoted(name: str) -> str:
    """A name in a part's head, escaped as browsers do."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _multipart(parts: list[_FormPart], rng: np.random.Generator) -> tuple[bytes, str]:
    """RFC 7578, with a boundary that none of the parts contains."""
    while True:
        boundary = b"loadgen" + rng.bytes(12).hex().encode()
        if not any(boundary in data for _, _, data in parts):
            break
    lines = []
    for name, media_type, data in parts:
        head = f"Content-Disposition: form-data; {name}\r\n"
        head += f"Content-Type: {media_type}\r\n" if media_type else ""
        lines += [b"--", boundary, b"\r\n", head.encode(), b"\r\n", data, b"\r\n"]
    return b"".join(
        (*lines, b"--", boundary, b"--\r\n")
    ), f"multipart/form-data; boundary={boundary.decode()}"
