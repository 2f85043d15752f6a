"""The server side of a run: what the models are, are they ready, what they count; and the shots to send.

Everything that can be refused is refused here, before the first request of the load.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.clock import MONOTONIC
from loadgen.connect.options import ConnectOptions
from loadgen.engine.parts import Shot
from loadgen.lab.plain import plain_facts
from loadgen.records import LoadgenError, Message, ModelFacts, TensorSpec, Wanted
from loadgen.workload import http_body, payloads
from loadgen.workload.lengths import max_length
from loadgen.workload.outputs import output_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from loadgen.records import Payload, Placed, Region, Request, Tensor
    from loadgen.runfile import RunFolder
    from loadgen.seams import Transport
    from loadgen.target import Target
    from loadgen.traffic.profile import Kind, TrafficProfile
    from loadgen.triton.control import Control
    from loadgen.triton.shared_memory import InMemory, SharedMemory

Models = dict[tuple[str, str], ModelFacts]


def models_of(profile: TrafficProfile) -> list[tuple[str, str]]:
    """(model, version) pairs that the profile's kinds name, each once."""
    return sorted({(kind.model, kind.version) for kind in profile.kinds.values() if kind.http is None})


async def read_models(
    control: Control, profile: TrafficProfile, wait_ns: int, options: ConnectOptions
) -> tuple[Models, dict[str, Any]]:
    """Waits for each model's own readiness, then reads its facts; also the server's facts for run.json.

    Whether the server calls itself ready is another question: it is written down, not waited for.
    """
    models: Models = {}
    told: dict[str, Any] = {}
    plain = {kind.name: kind.http for kind in profile.kinds.values() if kind.http is not None}
    facts_of_plain = await plain_facts(plain, control.target, options, wait_ns) if plain else {}
    if not models_of(profile):
        return models, facts_of_plain
    for model, version in models_of(profile):
        await control.wait_model_ready(model, version, wait_ns)
        facts = models[model, version] = await control.model_facts(model, version)
        told[model] = {
            "ready": True,
            "version": version or "server's choice",
            "versions": list(facts.versions),
            "max_batch_size": facts.max_batch_size,
            "parameters": dict(facts.parameters),
            "binary": facts.binary,
            "config": facts.config,
        }
    server = await control.server_metadata()
    return models, {**facts_of_plain, **server, "server_ready": await control.server_ready(), "models": told}


def encode_tensors(
    target: Target,
    model: str,
    version: str,
    tensors: Sequence[Tensor | Placed],
    *,
    outputs: Mapping[str, Region] | None = None,
    binary: bool = True,
) -> Request:
    """An inference request in the target's protocol; `binary` is for HTTP (see ModelFacts)."""
    from loadgen.wire import kserve_grpc, kserve_http

    if target.protocol == "grpc":
        return kserve_grpc.infer_request(model, version, tensors, outputs=outputs)
    return kserve_http.infer_request(model, version, tensors, outputs=outputs, binary=binary)


def most_variants(profile: TrafficProfile, models: Models) -> list[int]:
    """How many variants of each kind are worth building; FitError for a kind that its model cannot take."""
    return [
        payloads.most_variants(kind, models[kind.model, kind.version])
        if kind.http is None
        else http_body.most_variants(kind.http, _longest(kind), Path())
        for kind in profile.kinds.values()
    ]


def _longest(kind: Kind) -> Wanted:
    if kind.lengths is not None:
        return Wanted(max(pair.in_ for pair in kind.lengths), max(pair.out for pair in kind.lengths))
    laws = [None if one is None else max_length(one.law) for one in (kind.length, kind.output)]
    return Wanted(*laws)


def shared_memory_of(profile: TrafficProfile, target: Target, options: ConnectOptions) -> SharedMemory | None:
    """For the regions of this process, where a kind asks for some."""
    if not any(kind.shared_memory for kind in profile.kinds.values()):
        return None
    from loadgen.triton.shared_memory import SharedMemory

    return SharedMemory(target, options)


def make_shots(
    transport: Transport[Any],
    target: Target,
    profile: TrafficProfile,
    models: Models,
    seed: int,
    wanted: Sequence[Sequence[Wanted]],
    memory: SharedMemory | None = None,
) -> list[Shot]:
    """The variants wanted of each kind, kind after kind, framed by the transport that will send them.

    Raises FitError for a request that cannot fit its model.
    """
    shots = []
    for place, kind in enumerate(profile.kinds.values()):
        rng = payloads.pool_rng(seed, kind.name)
        if kind.http is not None:
            messages = http_body.build(kind.name, kind.http, wanted[place], rng, Path(), kind.batch)
        else:
            facts = models[kind.model, kind.version]
            messages = kserve_messages(
                target, kind, facts, payloads.build(kind, facts, wanted[place], rng), memory
            )
        for message in messages:
            length = -1 if message.length is None else message.length
            shots.append(Shot(transport.prepare(message.request), place, length, message.items))
    return shots


def kserve_messages(
    target: Target, kind: Kind, facts: ModelFacts, built: list[Payload], memory: SharedMemory | None
) -> list[Message]:
    """Inference requests for payloads; with `memory`, those of a kind that asks for it refer to its regions."""
    placed: Sequence[Payload | InMemory] = built
    asked = kind.shared_memory
    if memory is not None and asked is not None:
        given = asked.outputs if isinstance(asked.outputs, dict) else None
        sizes = (
            [output_bytes(kind.name, facts, p.length, p.items, given) for p in built]
            if asked.outputs
            else None
        )
        placed = memory.place(kind.name, built, inputs=asked.inputs, outputs=sizes)
    return [
        Message(
            encode_tensors(
                target,
                kind.model,
                kind.version,
                at.tensors,
                binary=facts.binary,
                outputs=getattr(at, "outputs", None),
            ),
            payload.length,
            payload.items,
        )
        for payload, at in zip(built, placed, strict=True)
    ]


def make_transport(
    target: Target, name: str = "wire", options: ConnectOptions | None = None
) -> Transport[Any]:
    """The transport "wire" is ours; "reference" is the official gRPC client and aiohttp, to compare with."""
    options = options or ConnectOptions()
    if name == "reference":
        from loadgen.transport.reference import ReferenceTransport

        return ReferenceTransport(target, MONOTONIC, options=options)
    headers, tls = options.headers_for(target), options.tls_for(target)
    if target.protocol == "grpc":
        from loadgen.transport.grpc import GrpcTransport

        return GrpcTransport(target, MONOTONIC, headers=headers, tls=tls)
    from loadgen.transport.http import HttpTransport

    return HttpTransport(target, MONOTONIC, headers=headers, tls=tls)


def models_to_json(models: Models) -> list[dict[str, Any]]:
    """For a worker process: what was read once need not be asked again."""
    return [asdict(facts) for facts in models.values()]


def models_from_json(rows: list[dict[str, Any]]) -> Models:
    """The other way."""
    models: Models = {}
    for row in rows:
        tensors = {
            key: tuple(TensorSpec(**{**t, "shape": tuple(t["shape"])}) for t in row[key])
            for key in ("inputs", "outputs")
        }
        facts = ModelFacts(**{**row, **tensors, "versions": tuple(row["versions"])})
        models[facts.name, facts.version] = facts
    return models


class Counters:
    """The server's own statistics before and after each phase, into server.jsonl."""

    def __init__(self, control: Control, models: list[tuple[str, str]], folder: RunFolder) -> None:
        self._control, self._models, self._folder = control, models, folder
        self.missing: str | None = None  # why there are none

    async def snapshot(self, t_ns: int, phase: str, at: str, limit_s: float | None = None) -> None:
        """A server that does not count, or is gone, is remembered in `missing` and never fails a run."""
        for model, version in self._models:
            try:
                async with asyncio.timeout(limit_s):
                    stats = await self._control.settled_statistics(model, version)
            except LoadgenError as why:
                self.missing = str(why)
                return
            except TimeoutError:
                self.missing = f"the server did not tell them within {limit_s:g} s"
                return
            line = {
                "t_ns": t_ns,
                "phase": phase,
                "at": at,
                "model": model,
                "version": version,
                "stats": stats,
            }
            self._folder.snapshot(line)
