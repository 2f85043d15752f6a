"""Triton's trace of requests: the extension's settings, and a trace file read into one timeline a request.

Pure.  A trace has stamps but no shapes: a request that is sent with `request_label` as its id says them itself.
It must not know how settings travel, nor what a batch is.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.records import LoadgenError

# in a server's own settings all is a text; None gives a model back to the server's.  With a log frequency traces go
# into numbered files that are closed; without, the last ones stay in the server's buffer until it ends.
ON = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "log_frequency": "10000"}
OFF: dict[str, Any] = {"trace_level": ["OFF"]}
BACK: dict[str, Any] = dict.fromkeys(("trace_level", "trace_rate", "trace_count", "log_frequency"))
_MARK = "loadgen"


@dataclass(frozen=True, slots=True)
class Timeline:
    """One request inside the server, in ns of its monotonic clock.

    `start_ns` and `end_ns` are those of its execution, shared by the requests of its batch; None: it never was
    executed.  `done_ns` is its end.  Rows, tokens a row and shapes (without the batch axis, by input) are None where
    the request did not say them.
    """

    model: str
    version: str
    queue_ns: int
    start_ns: int | None
    end_ns: int | None
    done_ns: int
    rows: int | None = None
    length: int | None = None
    shapes: Mapping[str, tuple[int, ...]] | None = None


def request_label(rows: int, length: int | None, shapes: Mapping[str, Sequence[int]]) -> str:
    """An id that says what a trace does not: `read_label` reads it."""
    told = ";".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in shapes.items())
    return f"{_MARK}/{rows}/{'' if length is None else length}/{told}"


def read_label(text: str) -> tuple[int | None, int | None, dict[str, tuple[int, ...]] | None]:
    """Rows, length and shapes of a `request_label`; None three times of any other id."""
    parts = text.split("/", 3)
    if len(parts) != 4 or parts[0] != _MARK or not parts[1].isdecimal():  # noqa: PLR2004 - the label's parts
        return None, None, None
    shapes = {}
    for piece in filter(None, parts[3].split(";")):
        name, _, dims = piece.rpartition("=")
        shapes[name] = tuple(int(n) for n in dims.split("x") if n)
    return int(parts[1]), int(parts[2]) if parts[2] else None, shapes


def parse_trace(text: str) -> list[Timeline]:
    """The requests of a trace file that were given to a scheduler, by the time of their queueing.

    A file still being written may lack its end: what is whole is read.  Steps of an ensemble are requests of
    their own; the ensemble itself has no stamps of a queue.  Raises LoadgenError for what is no trace.
    """
    seen: dict[int, dict[str, Any]] = {}
    for entry in _entries(text):
        about = seen.setdefault(entry["id"], {})
        about.update({key: value for key, value in entry.items() if key not in ("id", "timestamps")})
        about.update({stamp["name"]: int(stamp["ns"]) for stamp in entry.get("timestamps", ())})
    found = [_timeline(about) for about in seen.values() if "QUEUE_START" in about and "model_name" in about]
    return sorted(found, key=lambda one: one.queue_ns)


def _timeline(about: dict[str, Any]) -> Timeline:
    rows, length, shapes = read_label(str(about.get("request_id", "")))
    return Timeline(
        model=str(about["model_name"]), version=str(about.get("model_version", "")), queue_ns=about["QUEUE_START"],
        start_ns=about.get("COMPUTE_START"), end_ns=about.get("COMPUTE_END"),
        done_ns=max(about[key] for key in about if key.isupper()), rows=rows, length=length, shapes=shapes,
    )  # fmt: skip


def _entries(text: str) -> Iterable[dict[str, Any]]:
    """Of a whole file, or of one whose last entry or closing bracket is missing."""
    whole = text.strip()
    try:
        entries = json.loads(whole or "[]")
    except ValueError:
        cut = whole.rfind("},{")
        try:
            entries = json.loads(f"{whole[: cut + 1]}]") if cut > 0 else None
        except ValueError:
            entries = None
    if not isinstance(entries, list) or not all(isinstance(e, dict) and "id" in e for e in entries):
        raise LoadgenError(
            "the server's trace file is no trace in Triton's own form (mode=triton): a list of stamps"
        )
    return entries
