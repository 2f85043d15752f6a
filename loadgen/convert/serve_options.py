"""How a converted model is to be served, as a user asks for it: one frozen value, checked at once.

It must not know torch, ONNX, TensorRT, or which tensors the model has.
"""

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from loadgen.records import LoadgenError

_MOST_BUCKETS = 16  # each has its own memory and its own kernels
LONGEST_US = 2_562_047 * 3_600 * 1_000_000  # whole hours: the server counts nanoseconds in 64 bits
MOST_WAITING = 2**32 - 1  # uint32
MOST_LEVELS = 65_535  # each is a queue of its own, made when the model loads
MOST_INT32 = 2**31 - 1

CPU_ACCELERATOR = "openvino"  # of onnxruntime's; all others are for GPUs


class ServeOptionError(LoadgenError):
    """An option of serving that Triton would not take."""


class Flavour(StrEnum):
    """What runs the model inside the server."""

    PYTHON = "python"  # the python backend with an onnxruntime session: every Triton, also without a GPU
    ONNX = "onnxruntime_onnx"
    TENSORRT = "tensorrt_plan"


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """How a TensorRT engine is built, and for which server.

    `traffic`: the profile whose lengths make the optimization profiles, at most `buckets` of them; "" for one that
    holds every length.  `batch`: min:opt:max, "" for 1:max:max.  `server_tensorrt` "": what is seen on this
    machine.  `server_compute` "": this machine's GPU.  `tf32`: FP32 products with FP16's ten digits, faster.
    """

    traffic: str = ""
    buckets: int = 3
    batch: str = ""
    server_tensorrt: str = ""
    server_compute: str = ""
    tf32: bool = False
    version_compatible: bool = False
    workspace_mib: int = 4096

    def __post_init__(self) -> None:
        if not 1 <= self.buckets <= _MOST_BUCKETS:
            raise ServeOptionError(f"buckets {self.buckets}: allowed are 1 to {_MOST_BUCKETS}")
        if self.workspace_mib < 1:
            raise ServeOptionError(f"workspace_mib {self.workspace_mib}: must be 1 or more")


@dataclass(frozen=True, slots=True)
class Queue:
    """What may wait.  `timeout_us` and `most` 0: for ever, and any number.

    What is late is refused or, with `delays`, put behind the others; with `override` a request may bring a shorter
    timeout of its own.
    """

    timeout_us: int = 0
    delays: bool = False
    override: bool = False
    most: int = 0

    def __post_init__(self) -> None:
        for key, high in (("timeout_us", LONGEST_US), ("most", MOST_WAITING)):
            if not 0 <= getattr(self, key) <= high:
                raise ServeOptionError(
                    f"{key} {getattr(self, key)} of a queue: must be 0 or more, at most {high}"
                )
        if (self.delays or self.override) and not self.timeout_us:
            raise ServeOptionError("a queue without a timeout delays nothing, and there is none to override")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Beside the largest batch, the delay and the instances, which ConvertOptions has.

    `gpus` empty: no GPU for python and onnxruntime_onnx, all of them for tensorrt_plan.  `priority_levels` 0: all
    requests are equal.  `level_queues`: those priority levels' own queues, as (level, queue).  `warmup`: (batch,
    length) pairs run before the model is ready.  `versions`: "latest:N", "all" or "1,3"; "" leaves the server its own rule, the newest.
    `accelerators`: of onnxruntime, "name" or "name:key=value,key=value".
    """

    flavour: Flavour = Flavour.PYTHON
    preferred: tuple[int, ...] = ()
    priority_levels: int = 0
    default_priority: int = 0
    queue: Queue = field(default_factory=Queue)
    level_queues: tuple[tuple[int, Queue], ...] = ()
    preserve_ordering: bool = False
    cache: bool = False
    gpus: tuple[int, ...] = ()
    warmup: tuple[tuple[int, int], ...] = ()
    versions: str = ""
    accelerators: tuple[str, ...] = ()
    graph_level: int = 0
    cuda_graphs: bool = False
    eager_batching: bool = False
    plan: PlanOptions = field(default_factory=PlanOptions)

    def __post_init__(self) -> None:
        self._require_levels()
        if any(batch < 1 or length < 1 for batch, length in self.warmup):
            raise ServeOptionError(f"warmup {list(self.warmup)}: batches and lengths are 1 or more")
        for key, least, what in (("preferred", 1, "batch sizes are"), ("gpus", 0, "a GPU's number is")):
            if any(not least <= value <= MOST_INT32 for value in getattr(self, key)):
                raise ServeOptionError(
                    f"{key} {list(getattr(self, key))}: {what} {least} or more, at most {MOST_INT32}"
                )
        if not -MOST_INT32 <= self.graph_level <= MOST_INT32:
            raise ServeOptionError(
                f"graph_level {self.graph_level}: allowed are -{MOST_INT32} to {MOST_INT32}"
            )
        if twice := [value for i, value in enumerate(self.gpus) if value in self.gpus[:i]]:
            raise ServeOptionError(f"gpus {list(self.gpus)}: GPU {twice[0]} is given twice")
        if self.accelerators and self.flavour is not Flavour.ONNX:
            raise ServeOptionError(f"accelerators are onnxruntime's own; the flavour is {self.flavour}")
        names = [text.partition(":")[0] for text in self.accelerators]
        if "" in names:
            raise ServeOptionError(
                "an accelerator without a name; name or name:key=value,key=value is allowed"
            )
        of_gpus = [name for name in names if name != CPU_ACCELERATOR]
        if of_gpus and not self.gpus:
            raise ServeOptionError(
                f"accelerator {of_gpus[0]}: it is a GPU's, and no GPU runs this model; say which do, e.g. --gpus 0 (on the "
                f"CPU there is {CPU_ACCELERATOR} alone)"
            )
        if self.plan != PlanOptions() and self.flavour is not Flavour.TENSORRT:
            named = ", ".join(k for k, v in asdict(PlanOptions()).items() if getattr(self.plan, k) != v)
            raise ServeOptionError(f"{named}: of a TensorRT engine only; the flavour is {self.flavour}")

    def _require_levels(self) -> None:
        for key in ("priority_levels", "default_priority"):
            if not 0 <= getattr(self, key) <= MOST_LEVELS:
                raise ServeOptionError(
                    f"{key} {getattr(self, key)}: must be 0 or more, at most {MOST_LEVELS}"
                )
        if self.default_priority > self.priority_levels:
            raise ServeOptionError(
                f"default_priority {self.default_priority}: the levels are 1 to {self.priority_levels}"
            )
        if outside := [level for level, _ in self.level_queues if not 1 <= level <= self.priority_levels]:
            levels = f"1 to {self.priority_levels}" if self.priority_levels else "none"
            raise ServeOptionError(f"a queue of level {outside[0]}: the priority levels are {levels}")
        delays = any(queue.delays for queue in (self.queue, *(own for _, own in self.level_queues)))
        if self.preserve_ordering and (self.priority_levels > 1 or delays):
            raise ServeOptionError(
                "preserve_ordering: not with more than one priority level or requests delayed at their timeout"
            )

    def recorded(self) -> dict[str, Any]:
        """What was asked for beside the defaults, for the sidecar, as JSON gives it back: tuples are lists."""
        told, plain = asdict(self), asdict(ServeOptions())
        changed = {key: value for key, value in told.items() if value != plain[key]}
        found: dict[str, Any] = json.loads(json.dumps(changed))
        return found


def whole_number(text: str, most: int) -> int | None:
    """Reads a whole number from 0 to `most`; None for any other text, however long."""
    digits = text.lstrip("0") or "0"
    fits = text.isdecimal() and len(digits) <= len(str(most))
    return int(text) if fits and int(digits) <= most else None


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """Reads "4,8" as (4, 8); raises ServeOptionError naming the option."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ServeOptionError(
            f"{option}: {text!r} is not allowed; whole numbers with commas are, e.g. 4,8"
        ) from None


def grid(text: str, option: str = "--warmup") -> tuple[tuple[int, int], ...]:
    """Reads "1x16,8x128" as ((1, 16), (8, 128)): batch by length; raises ServeOptionError."""
    pairs = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        batch, length = (whole_number(size, MOST_INT32) for size in part.partition("x")[::2])
        if batch is None or length is None:
            raise ServeOptionError(f"{option}: {part!r} is not allowed; batch x length is, e.g. 1x16,8x128")
        pairs.append((batch, length))
    return tuple(pairs)
