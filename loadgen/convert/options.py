"""What a conversion may be told: one frozen value, checked before anything slow starts.

It must not know torch, ONNX or where models come from.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadgen.convert.serve_options import ServeOptions
from loadgen.records import LoadgenError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class OptionError(LoadgenError):
    """An option out of its range."""


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """Where the model goes and how it is served.  `max_length` None: what the model itself asks for.

    `threads` None: the runner shares the server's cores among its instances.  `replace` allows an
    existing version to be overwritten.
    """

    name: str
    repository: Path = Path("model_repository")
    version: int = 1
    max_batch: int = 16
    delay_ns: int = 2_000_000
    instances: int = 1
    ragged: bool = True
    max_length: int | None = None
    threads: int | None = None
    replace: bool = False
    serve: ServeOptions = field(default_factory=ServeOptions)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise OptionError(
                f"model name {self.name!r}: allowed are letters, digits, '.', '_' and '-', "
                "the first a letter or digit, at most 100"
            )
        least = {"version": 1, "max_batch": 1, "delay_ns": 0, "instances": 1, "max_length": 1, "threads": 1}
        for key, low in least.items():
            value = getattr(self, key)
            if value is not None and value < low:
                raise OptionError(f"{key} {value}: must be {low} or more")

    @property
    def model_folder(self) -> Path:
        """Where the model's config.pbtxt is, once published."""
        return self.repository / self.name

    @property
    def version_folder(self) -> Path:
        """Where this version's files are, once published."""
        return self.model_folder / str(self.version)

    def recorded(self) -> dict[str, Any]:
        """The options that decide what is published, for the sidecar: not where it goes."""
        return {
            "max_batch": self.max_batch,
            "delay_ns": self.delay_ns,
            "instances": self.instances,
            "ragged": self.ragged,
            "max_length": self.max_length,
            "threads": self.threads,
            **({"serve": serve} if (serve := self.serve.recorded()) else {}),
        }
