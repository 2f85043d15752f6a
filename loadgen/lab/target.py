"""The server side of a run: what the models are, are they ready, what they count; and the shots to send.

Everything that can be refused is refused here, before the first request of the load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.engine.loop import Shot
from loadgen.records import LoadgenError
from loadgen.workload.payloads import build_pool

if TYPE_CHECKING:
    from loadgen.records import ModelFacts, Payload, Request
    from loadgen.runfile import RunWriter
    from loadgen.seams import Transport
    from loadgen.target import Target
    from loadgen.traffic.profile import Kind, TrafficProfile
    from loadgen.triton.control import Control

Models = dict[tuple[str, str], "ModelFacts"]


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
            "config": facts.config,
        }
    server = await control.server_metadata()
    return models, {**server, "server_ready": await control.server_ready(), "models": told}


def build_payloads(profile: TrafficProfile, models: Models, seed: int) -> list[list[Payload]]:
    """One pool a kind; raises FitError for a request that cannot fit its model."""
    pools = []
    for at, kind in enumerate(profile.kinds.values()):
        rng = np.random.default_rng(np.random.SeedSequence([seed, 0x706C, at]))
        pools.append(build_pool(kind, models[kind.model, kind.version], rng))
    return pools


def encode(target: Target, kind: Kind, payload: Payload) -> Request:
    """The payload in the target's protocol."""
    from loadgen.wire import kserve_grpc, kserve_http

    codec = {"http": kserve_http.infer_request, "grpc": kserve_grpc.infer_request}[target.protocol]
    return codec(kind.model, kind.version, payload.tensors)


def make_shots(
    transport: Transport[Any], target: Target, profile: TrafficProfile, pools: list[list[Payload]]
) -> list[list[Shot]]:
    """Frames every variant of every kind."""
    return [
        [
            Shot(transport.prepare(encode(target, kind, p)), -1 if p.length is None else p.length, p.items)
            for p in pool
        ]
        for kind, pool in zip(profile.kinds.values(), pools, strict=True)
    ]


class Counters:
    """The server's own statistics before and after each phase, into server.jsonl."""

    def __init__(self, control: Control, models: list[tuple[str, str]], writer: RunWriter) -> None:
        self._control, self._models, self._writer = control, models, writer
        self.missing: str | None = None  # why there are none

    async def snapshot(self, t_ns: int, phase: str, at: str) -> None:
        """A server that does not count, or is gone, is remembered in `missing` and never fails a run."""
        for model, version in self._models:
            try:
                stats = await self._control.settled_statistics(model, version)
            except LoadgenError as why:
                self.missing = str(why)
                return
            line = {
                "t_ns": t_ns,
                "phase": phase,
                "at": at,
                "model": model,
                "version": version,
                "stats": stats,
            }
            self._writer.snapshot(line)
