"""The options of `loadgen convert` that say how a model is served, and what they make."""

import re
from dataclasses import replace
from typing import Annotated

import typer

from loadgen.convert.serve_options import (
    LONGEST_US,
    MOST_LEVELS,
    MOST_WAITING,
    Flavour,
    PlanOptions,
    Queue,
    ServeOptionError,
    ServeOptions,
    grid,
    whole_number,
    whole_numbers,
)
from loadgen.records import LoadgenError
from loadgen.units import UnitError, parse_duration

FlavourOption = Annotated[
    Flavour,
    typer.Option(help="What runs it: python (onnxruntime, everywhere) or a backend of the full Triton."),
]
Preferred = Annotated[str, typer.Option(help="Batch sizes the server aims at, e.g. 4,8.")]
Priorities = Annotated[
    str, typer.Option(help="Levels of priority, 1 the highest, and the default one, e.g. 3 or 3:2.")
]
QueueTimeout = Annotated[
    list[str] | None,
    typer.Option(
        help="What waits longer is refused; 50ms:delay puts it behind others, 50ms:override lets a request ask "
        "for less, 3=1s is priority level 3's own. May be repeated."
    ),
]
MaxQueue = Annotated[
    list[str] | None,
    typer.Option(
        help="Requests that may wait; more are refused. 3=20 is priority level 3's. May be repeated."
    ),
]
PreserveOrder = Annotated[
    bool, typer.Option("--preserve-order", help="Answers come in the order of the requests.")
]
Cache = Annotated[bool, typer.Option("--cache", help="The server's response cache may answer.")]
Gpus = Annotated[str, typer.Option(help="GPUs that run it, e.g. 0,1.")]
Warmup = Annotated[str, typer.Option(help="Batch x length to run before it is ready, e.g. 1x16,8x128.")]
Versions = Annotated[str, typer.Option(help="Versions served: latest:N, all, or 1,3.")]
Accelerate = Annotated[
    list[str] | None, typer.Option(help="onnxruntime's accelerator, e.g. tensorrt:precision_mode=FP16.")
]
Optimize = Annotated[str, typer.Option(help="Of graph=LEVEL, cuda-graphs, eager-batching, with commas.")]
Traffic = Annotated[str, typer.Option(help="A traffic profile whose lengths a TensorRT engine is made for.")]
Buckets = Annotated[
    int, typer.Option(help="Optimization profiles of the engine, each for a range of lengths.")
]
PlanBatch = Annotated[str, typer.Option(help="The engine's batches, min:opt:max; left out, 1:MAX:MAX.")]
ServerTensorRT = Annotated[
    str, typer.Option("--server-tensorrt", help="The TensorRT of the server, e.g. 10.13.2.")
]
TF32 = Annotated[
    bool, typer.Option("--tf32", help="The engine's FP32 products may be TF32: faster, less exact.")
]
VersionCompatible = Annotated[
    bool,
    typer.Option("--version-compatible", help="An engine that later TensorRTs of its major version load."),
]
Workspace = Annotated[int, typer.Option(help="MiB that building the engine may use for trying kernels.")]
ServerCompute = Annotated[str, typer.Option(help="Compute capability of the server's GPU, e.g. 9.0.")]


def queues(timeouts: list[str], mosts: list[str]) -> tuple[Queue, tuple[tuple[int, Queue], ...]]:
    """Reads "50ms:delay", "3=1s" and "100", "3=20" as the queue of all, and those of some levels.

    What a level is not given is as for all.
    """
    times, counts = _by_level(timeouts, "--queue-timeout"), _by_level(mosts, "--max-queue")
    fields: dict[int, dict[str, int | bool]] = {
        level: (_timeout(times[level]) if level in times else {})
        | ({"most": _count(counts[level])} if level in counts else {})
        for level in sorted({*times, *counts})
    }
    whole = Queue(**fields.pop(0, {}))  # type: ignore[arg-type]
    return whole, tuple((level, replace(whole, **told)) for level, told in fields.items())  # type: ignore[arg-type]


def _by_level(texts: list[str], option: str) -> dict[int, str]:
    """Level 0 is what is said for all."""
    found: dict[int, str] = {}
    for text in texts:
        before, equals, value = text.rpartition("=")
        level = whole_number(before, MOST_LEVELS) if equals else 0
        if not value or level is None or (equals and not level):
            raise LoadgenError(
                f"{option}: {text!r} is not allowed; VALUE or LEVEL=VALUE is, a LEVEL being 1 to {MOST_LEVELS}"
            )
        if level in found:
            raise LoadgenError(f"{option}: {f'level {level}' if level else 'all levels'} given twice")
        found[level] = value
    return found


def _timeout(text: str) -> dict[str, int | bool]:
    time, *actions = text.split(":")
    for action in actions:
        if action not in ("delay", "reject", "override"):
            raise LoadgenError(
                f"--queue-timeout: {action!r} is not allowed; delay, reject and override are, e.g. 50ms:delay"
            )
    try:
        waits = round(parse_duration(time) / 1000)
    except UnitError as why:
        raise LoadgenError(f"--queue-timeout: {why}") from None
    if waits > LONGEST_US or (not waits and re.search("[1-9]", time)):
        raise LoadgenError(
            f"--queue-timeout: {time!r} is not allowed; 1us to {LONGEST_US // 3_600_000_000}h is, and 0s for no timeout"
        )
    return {"timeout_us": waits, "delays": "delay" in actions, "override": "override" in actions}


def _count(text: str) -> int:
    count = whole_number(text, MOST_WAITING)
    if count is None:
        raise LoadgenError(
            f"--max-queue: {text!r} is not allowed; a whole number is, at most {MOST_WAITING}, 0 for no limit"
        )
    return count


def levels(text: str) -> tuple[int, int]:
    """Reads "3:2" as (3, 2); "3" leaves the default level to the configuration, 0."""
    count, colon, middle = text.partition(":")
    most, default = whole_number(count, MOST_LEVELS), whole_number(middle, MOST_LEVELS) if colon else 0
    if not most or default is None or (colon and not 0 < default <= most):
        raise ServeOptionError(
            f"--priorities: {text!r} is not allowed; levels or levels:default is, e.g. 3:2, with at most {MOST_LEVELS} "
            "levels, the default one of them"
        )
    return most, default


def optimizations(text: str) -> dict[str, int | bool]:
    """Reads "graph=1,cuda-graphs" as fields of ServeOptions."""
    made: dict[str, int | bool] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, _, value = part.partition("=")
        if key == "graph" and re.fullmatch(r"-?\d{1,10}", value):
            made["graph_level"] = int(value)
        elif part in ("cuda-graphs", "eager-batching"):
            made[part.replace("-", "_")] = True
        else:
            raise ServeOptionError(
                f"--optimize: {part!r} is not allowed; graph=LEVEL, cuda-graphs and eager-batching are"
            )
    return made


def serve_options(
    *, flavour: Flavour, preferred: str, priorities: str, queue_timeout: list[str] | None,
    max_queue: list[str] | None, preserve_order: bool, cache: bool, gpus: str, warmup: str, versions: str, accelerate: list[str] | None, optimize: str, plan: PlanOptions,
) -> ServeOptions:  # fmt: skip
    """Raises a LoadgenError that names the option."""
    queue, level_queues = queues(queue_timeout or [], max_queue or [])
    priority_levels, default = levels(priorities) if priorities else (0, 0)
    return ServeOptions(
        flavour=flavour,
        preferred=whole_numbers(preferred, "--preferred"),
        priority_levels=priority_levels,
        default_priority=default,
        queue=queue,
        level_queues=level_queues,
        preserve_ordering=preserve_order,
        cache=cache,
        gpus=whole_numbers(gpus, "--gpus"),
        warmup=grid(warmup),
        versions=versions,
        accelerators=tuple(accelerate or ()),
        plan=plan,
        **optimizations(optimize),  # type: ignore[arg-type]
    )
