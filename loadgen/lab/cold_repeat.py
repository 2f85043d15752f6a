"""One cold start of one model on one server: unload, make the condition, load, ask until warm, and note all of it.

    row = await cold_repeat(site, condition, "warm cache", 1)

The figures of a row are only noted here; what they mean is the analysis' business.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loadgen.analysis.coldstart import load_fault
from loadgen.clock import MONOTONIC
from loadgen.lab.ask import Answer, Asker
from loadgen.lab.cold_shapes import warmup_rows
from loadgen.lab.target import make_transport
from loadgen.records import LoadgenError, Outcome
from loadgen.triton.memory import tree_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from loadgen.connect.options import ConnectOptions
    from loadgen.environment.nvml import Nvml
    from loadgen.lab.cold_shapes import Shape
    from loadgen.records import Request
    from loadgen.triton.control import Control


class NotColdError(LoadgenError):
    """The load did nothing: what followed was no cold start."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What one cold start differs in from another.  `config` None: as the repository has it."""

    name: str
    cache: str  # "warm", "dropped", or "as found"
    warmup: bool
    config: Mapping[str, Any] | None = None
    told: str = ""  # how the condition was made, for the report
    copied: bool = False  # the model's files are copied afresh for each repeat


@dataclass(frozen=True, slots=True)
class Site:
    """Where and what is asked: the same for every repeat but for the control."""

    control: Control
    options: ConnectOptions
    model: str
    shapes: Sequence[Shape]
    instances: int
    answers: int
    timeout_ns: int
    wait_ns: int
    unload_ns: int
    pid: int | None = None
    began_ns: int | None = None  # of the server's process, when it was started for this repeat
    nvml: Nvml | None = None  # of the server's machine, when that is this one
    tick: Callable[[str], None] = field(default=lambda _: None)


async def cold_load(
    site: Site, condition: Condition, stages: dict[str, int], *, unload: bool, prefix: str = "load"
) -> None:
    """Unloads (if asked) until unavailable, loads, waits for the model's own ready; stamps into `stages`.

    Raises NotColdError when nothing was loaded, LoadgenError when the server refuses.
    """
    control, model = site.control, site.model
    if unload:
        began = MONOTONIC.now_ns()
        try:
            await control.unload(model, site.unload_ns)
        except LoadgenError as why:
            raise NotColdError(str(why)) from None
        stages.setdefault("unload", MONOTONIC.now_ns() - began)
    ready_before = await control.model_ready(model)
    began = MONOTONIC.now_ns()
    await control.load(model, condition.config)
    called = MONOTONIC.now_ns()
    await control.wait_model_ready(model, "", site.wait_ns)
    ready = MONOTONIC.now_ns()
    rows = warmup_rows(await _config(control, model), site.instances)
    fault = load_fault(ready_before=ready_before, counted=await _counted(control, model), warmup_rows=rows)
    if fault is not None:
        raise NotColdError(fault)
    if prefix == "load":
        stages["load_call"] = called - began
        if site.began_ns is not None:
            stages["model_ready"] = ready - site.began_ns
    stages[f"{prefix}_to_ready"] = ready - began


async def cold_repeat(
    site: Site, condition: Condition, repeat: int, *, unload: bool, again: bool
) -> dict[str, Any]:
    """The row of one repeat, JSON-ready.  `again`: once more in the same process, where the model is not the first."""
    stages: dict[str, int] = {}
    row: dict[str, Any] = {
        "condition": condition.name,
        "repeat": repeat,
        "stages_ns": stages,
        "memory_bytes": {},
    }
    _remember(site, row, "before")
    await cold_load(site, condition, stages, unload=unload)
    row["server_ready_at_model_ready"] = await site.control.server_ready()
    _remember(site, row, "loaded")
    await _ask_all(site, row)
    _remember(site, row, "warm")
    if again:
        site.tick("once more in the same process")
        await cold_load(site, condition, stages, unload=True, prefix="reload")
        [answer] = await ask(site, site.shapes[0].requests[:1], in_flight=1)
        if answer.outcome is Outcome.OK:
            stages["reload_first_answer"] = answer.latency_ns
    return row


async def first_requests(site: Site, condition: Condition) -> dict[str, Any]:
    """The row of a server that cannot be told to load: what its first requests took, no more."""
    row: dict[str, Any] = {"condition": condition.name, "repeat": 1, "stages_ns": {}, "memory_bytes": {}}
    _remember(site, row, "before")
    await _ask_all(site, row)
    _remember(site, row, "warm")
    return row


def _sum_up(stages: dict[str, int]) -> None:
    """A client that asks as soon as it may: what was looked at between ready and the first request is left out."""
    for total, ready in (("load_to_answer", "load_to_ready"), ("start_to_answer", "model_ready")):
        if ready in stages:
            stages[total] = stages[ready] + stages["first_answer"]


async def _ask_all(site: Site, row: dict[str, Any]) -> None:
    """Every shape until it has had its answers; the very first request goes alone."""
    stages, told = row["stages_ns"], []
    for place, shape in enumerate(site.shapes):
        site.tick(f"asking {shape.kind}" + ("" if shape.length is None else f", length {shape.length}"))
        requests = list(itertools.islice(itertools.cycle(shape.requests), site.answers))
        answers: list[Answer] = []
        if place == 0:
            answers = await ask(site, requests[:1], in_flight=1)
            if answers[0].outcome is Outcome.OK:
                stages["first_answer"] = answers[0].latency_ns
                _sum_up(stages)
        answers += await ask(site, requests[len(answers) :], in_flight=site.instances)
        told.append({
            "kind": shape.kind, "length": shape.length, "batch": shape.batch, "timeout_ns": shape.timeout_ns,
            "latency_ns": [a.latency_ns for a in answers], "outcomes": [a.outcome.name.lower() for a in answers],
            "said": next((a.detail for a in answers if a.detail), None),
        })  # fmt: skip
    row["shapes"] = told


def _remember(site: Site, row: dict[str, Any], at: str) -> None:
    """Of the server's processes, and of the GPUs of its machine, whoever uses them."""
    if site.pid is not None and (size := tree_memory(site.pid)) is not None:
        row["memory_bytes"][at] = size
    used = [gpu.memory_bytes for gpu in site.nvml.read()] if site.nvml is not None else []
    if told := [size for size in used if size is not None]:
        row["memory_bytes"][f"gpu_{at}"] = sum(told)


async def _config(control: Control, model: str) -> Mapping[str, Any] | None:
    return (await control.model_facts(model)).config


async def _counted(control: Control, model: str) -> int | None:
    """Inferences since the load, those of the warm-up among them; None when the server does not count."""
    try:
        return int((await control.statistics(model)).get("inference_count") or 0)
    except LoadgenError:
        return None


async def ask(site: Site, requests: Sequence[Request], *, in_flight: int) -> list[Answer]:
    """The answers in the order of sending, so many in flight; each is given up after the site's timeout."""
    transport = make_transport(site.control.target, options=site.options)
    asker = Asker()
    try:
        await transport.open(asker, in_flight)
        prepared = [transport.prepare(request) for request in requests]
        return await asker.ask(transport, prepared, in_flight=in_flight, timeout_s=site.timeout_ns / 1e9)
    finally:
        await transport.close()
