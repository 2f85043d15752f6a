"""What a server says when it refuses, in one line for a person.

Pure text.  It must not know how the words were fetched.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_TABLE = ("+--", "| ", "+==")
_FAULT = re.compile(r"^(?:[EF]\d{4} |\S*tritonserver: |Error: |terminate called |  what\(\):)")
_NO_GPU = re.compile(r"Failed to initialize NVML|CudaDriverHelper has not been initialized")  # no fault here


def one_line(text: str) -> str:
    """Whitespace collapsed; what follows a Python error ("At: file(line)") is kept, it tells where."""
    return re.sub(r"\s+", " ", text.replace("\\n", " ")).strip(" ;\n")


def last_lines(log: str, count: int) -> list[str]:
    """The last lines of a server log that say something: no tables, no blanks, nothing of a missing GPU."""
    return _said(log)[-count:]


def _said(log: str) -> list[str]:
    lines = (line.rstrip() for line in log.split("\n") if not line.startswith(_TABLE))
    return [line for line in lines if line and _NO_GPU.search(line) is None]


def faults(log: str, count: int) -> list[str]:
    """The last lines logged as errors, or the last lines if none is."""
    errors = [line.rstrip() for line in _said(log) if _FAULT.match(line)]
    return errors[-count:] if errors else last_lines(log, count)


def poll_failure(log: str, model: str) -> str | None:
    """Why the server would not even read a model: it tells only its log.  None if the log does not say."""
    name = re.escape(model)
    pattern = rf"(?:Poll failed for model directory|failed to poll model) '{name}': (.*)"
    found = re.findall(pattern, log)
    return one_line(found[-1].removesuffix('"')) if found else None


def load_failure(model: str, said: str, log: str, known: Sequence[str] | None) -> str:
    """The reason of a refused load.  `known` are the names in the repository; None if it cannot tell."""
    if known is not None and model not in known:
        return f"no model {model!r} in the server's repository; {_have(known)}"
    reason = one_line(said)
    if "failed to poll" in reason:
        reason = poll_failure(log, model) or f"{reason} (the reason is only in the server's log)"
    reason = reason.removeprefix(f"load failed for model '{model}': ")
    return f"model {model!r} could not be loaded: {reason}"


def without_control(said: str) -> str:
    """What to do where the server's words say that nobody may load models there; "" when they say something else."""
    if "load / unload is not allowed" not in said:
        return ""
    return "; start it with --model-control-mode=explicit, or leave the target out: an embedded server has it"


def not_serving(
    model: str, version: str, index: Iterable[Mapping[str, Any]], where: str, server: str | None
) -> str:
    """Why a model does not answer, from the repository index of the server at `where`.

    `server` is its name when `loadgen serve` started it, else None.
    """
    rows = list(index)
    mine = [row for row in rows if row["name"] == model]
    ready = sorted({row["name"] for row in rows if row.get("state") == "READY"})
    if not mine:
        return f"no model {model!r} on {where}; {_have(sorted({row['name'] for row in rows}))}"
    ready_versions = [row["version"] for row in mine if row.get("state") == "READY"]
    if version and ready_versions:
        return f"model {model!r} has no version {version!r} on {where}; loaded: {', '.join(ready_versions)}"
    row = mine[-1]
    state = row.get("state") or "never loaded"
    reason = f": {one_line(row['reason'])}" if row.get("reason") else ""
    others = f"; loaded: {', '.join(ready)}" if ready else ""
    post = f"POST v2/repository/models/{model}/load"
    how = post if server is None else f"`loadgen serve load {model} --name {server}`, or {post}"
    return f"model {model!r} is known to {where} but not loaded ({state}{reason}){others}; load it with {how}"


def _have(names: Sequence[str]) -> str:
    return f"it has: {', '.join(sorted(names))}" if names else "it has none"
