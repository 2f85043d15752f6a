"""What a conversion may be told: one frozen value, checked before anything slow starts.

It must not know torch, ONNX or where models come from.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadgen.convert.serve_options import LONGEST_US, MOST_INT32, Flavour, ServeOptions
from loadgen.records import LoadgenError

PRECISIONS = ("fp32", "fp16", "bf16", "int8", "fp8")
QUANTIZED = ("int8", "fp8")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class OptionError(LoadgenError):
    """An option out of its range."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How a source is to be understood, where it does not say so itself.

    `task` and `pooling` None: what its own files ask for.  `random_seed`: random weights in place of the files'.
    `inputs` (a file) and `tensors` (texts) describe inputs as loadgen.convert.inputs reads them; `output` picks one
    of several.  `trust_remote_code` runs Python code that lies in the source's folder.
    """

    task: str | None = None
    pooling: str | None = None
    random_seed: int | None = None
    trust_remote_code: bool = False
    inputs: Path | None = None
    tensors: tuple[str, ...] = ()
    output: str | None = None

    def recorded(self) -> dict[str, object]:
        """What was asked for, for the sidecar."""
        told = {key: getattr(self, key) for key in self.__dataclass_fields__}
        told |= {"inputs": self.inputs and self.inputs.name, "tensors": list(self.tensors)}
        return {key: value for key, value in told.items() if value not in (None, False, [])}


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """Where the model goes and how it is served.  `max_length` None: what the model itself asks for.

    `threads` None: the runner shares the server's cores among its instances.  `replace` allows an
    existing version to be overwritten.

    `precision` is one of loadgen.convert.precision's; `keep` names nodes or operators that stay FP32, and
    `calibration` a profile, text or .npz file for int8 and fp8 (`skip_quant`: do without).  `check_served` asks a
    server for answers before anything is published; `force` publishes what failed parity, with that verdict.
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
    precision: str = "fp32"
    keep: tuple[str, ...] = ()
    calibration: Path | None = None
    skip_quant: bool = False
    check_served: bool = False
    force: bool = False
    source: SourceOptions = SourceOptions()
    serve: ServeOptions = field(default_factory=ServeOptions)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise OptionError(
                f"model name {self.name!r}: allowed are letters, digits, '.', '_' and '-', "
                "the first a letter or digit, at most 100"
            )
        allowed = {
            "version": (1, 2**63 - 1), "max_batch": (1, MOST_INT32), "delay_ns": (0, 1000 * LONGEST_US),
            "instances": (1, MOST_INT32), "max_length": (1, MOST_INT32), "threads": (1, MOST_INT32),
        }  # fmt: skip
        for key, (low, high) in allowed.items():
            value = getattr(self, key)
            if value is not None and not low <= value <= high:
                raise OptionError(f"{key} {value}: must be {low} or more, at most {high}")
        self._check_precision()
        if self.check_served and self.serve.flavour is not Flavour.PYTHON:
            raise OptionError(
                f"check_served asks the embedded Triton, which has no backend for {self.serve.flavour}; "
                "the python flavour can be asked, or check with `loadgen parity` where that model is served"
            )

    def _check_precision(self) -> None:
        if self.precision not in PRECISIONS:
            raise OptionError(f"precision {self.precision!r}: allowed are {', '.join(PRECISIONS)}")
        quantized = self.precision in QUANTIZED
        if self.calibration is not None and not quantized:
            raise OptionError(f"calibration is for {' and '.join(QUANTIZED)}; {self.precision} needs none")
        if self.skip_quant and (not quantized or self.calibration is not None):
            raise OptionError("skip-quant is for int8 and fp8 without calibration data")
        if quantized and self.calibration is None and not self.skip_quant:
            raise OptionError(
                f"{self.precision} needs calibration data: give --calibration a traffic profile, a text or an "
                ".npz file; or --skip-quant to store weights in 8 bits and leave the arithmetic FP32"
            )
        if self.keep and self.precision == "fp32":
            raise OptionError("keep names what stays FP32; in fp32 everything does")

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
        asked = self.source.recorded()
        return {
            "max_batch": self.max_batch,
            "delay_ns": self.delay_ns,
            "instances": self.instances,
            "ragged": self.ragged,
            "max_length": self.max_length,
            "threads": self.threads,
            **self._lowering(),
            **({"source": asked} if asked else {}),
            **({"serve": serve} if (serve := self.serve.recorded()) else {}),
        }

    def _lowering(self) -> dict[str, Any]:
        if self.precision == "fp32":
            return {}
        told: dict[str, Any] = {
            "keep": list(self.keep),
            "calibration": self.calibration and self.calibration.name,
        }
        told["skip_quant"] = self.skip_quant
        return {"precision": self.precision} | {key: value for key, value in told.items() if value}
