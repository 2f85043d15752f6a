"""What TensorRT says while it parses, builds and loads, and the words of a failure made of it.

It must not know what is built.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Log:
    """What the library said, worst last in reading: errors are what a failure is told with."""

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    engine: str = ""  # the finished engine's layers with their tensors, as the builder logs them


def logger_of(trt: Any, log: Log) -> Any:
    base: Any = trt.ILogger

    class Logger(base):  # type: ignore[misc]
        def __init__(self) -> None:
            base.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            if severity in (base.ERROR, base.INTERNAL_ERROR):
                log.errors.append(" ".join(text.split()))
            elif severity == base.WARNING:
                log.warnings.append(" ".join(text.split()))
            elif text.startswith("Engine Layer Information:"):
                log.engine = text

    return Logger()


def parser_line(error: Any) -> str:
    """Makes "node 'x' (Op): what is wrong" of it, with what this version of the parser tells."""
    name, operator = (
        str(getattr(error, a)()) if hasattr(error, a) else "" for a in ("node_name", "node_operator")
    )
    node = f"node {name!r} ({operator}): " if name or operator else ""
    # Without a GPU, what the driver cannot do is appended to what is wrong.
    return node + " ".join(str(error.desc()).partition("[checkMacros")[0].split())


def said(lines: Sequence[str]) -> str:
    """The first lines, whole: the first error is the cause."""
    first = list(dict.fromkeys(lines))
    more = f" (and {len(first) - 3} more)" if len(first) > 3 else ""  # noqa: PLR2004
    return ("; ".join(first[:3]) or "it does not say why") + more
