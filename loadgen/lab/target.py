"""The server side of a run: what the models are, are they ready, what they count; and the shots to send.

Everything that can be refused is refused here, before the first request of the load.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from loadgen.clock import MONOTONIC
from loadgen.connect.options import ConnectOptions
from loadgen.engine.parts import Shot
from loadgen.records import LoadgenError, ModelFacts, TensorSpec
from loadgen.workload import payloads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loadgen.records import Request, Tensor, Wanted
    from loadgen.runfile import RunFolder
    from loadgen.seams import Transport
    from loadgen.target import Target
    from loadgen.traffic.profile import TrafficProfile
    from loadgen.triton.control import Control

Models = dict[tuple[str, str], ModelFacts]


def models_of(profile: TrafficProfile) -> list[tuple[str, str]]:
    """(model, version) pairs that the profile's kinds name, each once."""
    return sorted({(kind.model, kind.version) for kind in profile.kinds.values()})


async def read_models(
    control: Control, profile: TrafficProfile, wait_ns: int
) -> tuple[Models, dict[str, Any]]:
    """Waits for each model's own readiness, then reads its facts; also the server's facts for run.json.

    Whether the server calls itself ready is another question: it is written down, not waited for.
    """
    models: Models = {}
    told: dict[str, Any] = {}
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
    return models, {**server, "server_ready": await control.server_ready(), "models": told}


def encode_tensors(
    target: Target, model: str, version: str, tensors: Sequence[Tensor], *, binary: bool = True
) -> Request:
    """An inference request in the target's protocol; `binary` is for HTTP (see ModelFacts)."""
    from loadgen.wire import kserve_grpc, kserve_http

    if target.protocol == "grpc":
        return kserve_grpc.infer_request(model, version, tensors)
    return kserve_http.infer_request(model, version, tensors, binary=binary)


def most_variants(profile: TrafficProfile, models: Models) -> list[int]:
    """How many variants of each kind are worth building; FitError for a kind that its model cannot take."""
    return [payloads.most_variants(kind, models[kind.model, kind.version]) for kind in profile.kinds.values()]


def make_shots(
    transport: Transport[Any],
    target: Target,
    profile: TrafficProfile,
    models: Models,
    seed: int,
    wanted: Sequence[Sequence[Wanted]],
) -> list[Shot]:
    """The variants wanted of each kind, kind after kind, framed by the transport that will send them.

    Raises FitError for a request that cannot fit its model.
    """
    shots = []
    for place, kind in enumerate(profile.kinds.values()):
        rng = payloads.pool_rng(seed, kind.name)
        facts = models[kind.model, kind.version]
        for payload in payloads.build(kind, facts, wanted[place], rng):
            request = encode_tensors(target, kind.model, kind.version, payload.tensors, binary=facts.binary)
            length = -1 if payload.length is None else payload.length
            shots.append(Shot(transport.prepare(request), place, length, payload.items))
    return shots


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
