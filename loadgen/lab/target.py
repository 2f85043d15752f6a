"""The server side of a run: what the models are, are they ready, what they count; and the shots to send.

Everything that can be refused is refused here, before the first request of the load.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen import schedule
from loadgen.clock import MONOTONIC
from loadgen.connect.options import ConnectOptions
from loadgen.lab.plain import openai_facts, plain_facts
from loadgen.planfile import load_plan
from loadgen.records import LoadgenError, ModelFacts, TensorSpec
from loadgen.triton.facts import composing, steps_of
from loadgen.triton.statistics import moved
from loadgen.workload.fit import model_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from loadgen.records import Plan
    from loadgen.runfile import RunFolder
    from loadgen.seams import Transport
    from loadgen.target import Target
    from loadgen.traffic.profile import TrafficProfile
    from loadgen.transport.dial import Via
    from loadgen.triton.control import Control
    from loadgen.triton.shared_memory import SharedMemory

Models = dict[tuple[str, str], ModelFacts]
_NO_LIMIT = 2**31 - 1


def models_of(profile: TrafficProfile) -> list[tuple[str, str]]:
    """(model, version) pairs of a KServe v2 server that the profile's kinds name, each once."""
    return sorted(
        {(kind.model, kind.version) for kind in profile.kinds.values() if kind.is_kserve or kind.generate}
    )


def steps_beside(told: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(model, version) of the ensembles' steps that are not among these models; `told` as in run.json."""
    steps = {step: None for facts in told.values() for step in steps_of(facts.get("config"))}
    return [(model, version) for model, version in steps if model not in told]


def steps_asked(server: Mapping[str, Any], profile: TrafficProfile) -> list[tuple[str, str]]:
    """(model, version) of the models that the profile's ensembles are made of, each once."""
    asked = models_of(profile)
    configs = (
        {name: facts.get("config") for name, facts in (server.get("models") or {}).items()} if asked else {}
    )
    names = composing([model for model, _ in asked], configs)
    versions = {step for config in configs.values() for step in steps_of(config)}
    return sorted(step for step in versions if step[0] in names)


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
    if control.target.dialect == "openai":
        asked = {kind.model for kind in profile.kinds.values() if kind.text is not None}
        facts_of_plain |= await openai_facts(sorted(asked), control.target, options, wait_ns)
    if not models_of(profile):
        return models, facts_of_plain
    for model, version in models_of(profile):
        await control.wait_model_ready(model, version, wait_ns)
        facts = models[model, version] = await control.model_facts(model, version)
        told[model] = _told(facts)
    while steps := steps_beside(told):  # of ensembles, and of ensembles within them
        for model, version in steps:
            try:
                told[model] = _told(await control.model_facts(model, version))
            except LoadgenError as why:  # the ensemble may answer all the same: its requests are measured
                told[model] = {"ready": False, "why": str(why), "version": version, "config": None}
    server = await control.server_metadata()
    return models, {**facts_of_plain, **server, "server_ready": await control.server_ready(), "models": told}


def _told(facts: ModelFacts) -> dict[str, Any]:
    return {
        "ready": True,
        "version": facts.version or "server's choice",
        "versions": list(facts.versions),
        "max_batch_size": facts.max_batch_size,
        "parameters": dict(facts.parameters),
        "binary": facts.binary,
        "config": facts.config,
    }


def planned(profile: TrafficProfile, seed: int, file: Path | None) -> Plan:
    """The plan of a profile and a seed, or the one that was saved in a file.  Raises LoadgenError."""
    if file is None:
        return schedule.plan(profile, seed)
    saved, sha256 = load_plan(file, tuple(profile.kinds))
    if sha256 == profile.sha256:
        return saved
    said = f"the plan {file} was made from another text of the profile"
    phases = [
        replace(
            p,
            facts={
                **(p.facts or {}),
                "said": [*(p.facts or {}).get("said", ()), said],
                "other_profile": said,
            },
        )
        for p in saved.phases[:1]
    ]
    return replace(saved, phases=(*phases, *saved.phases[1:]))


def clamped(plan: Plan, profile: TrafficProfile, models: Models) -> Plan:
    """The plan with a trace's lengths cut to what the models take, counted in the facts of its phases.

    Lengths of the profile's own laws are not cut: they are refused where they cannot fit.
    """
    limits = np.array(
        [
            (model_number(model, "max_length", f"model {model.name!r}") or _NO_LIMIT)
            if (model := models.get((kind.model, kind.version))) is not None and kind.is_kserve
            else _NO_LIMIT
            for kind in profile.kinds.values()
        ]
    )
    phases = []
    for phase in plan.phases:
        if phase.facts is not None and phase.length is not None:
            cut = np.minimum(phase.length, limits[phase.kind]).astype(np.int32)
            if count := int(np.count_nonzero(cut < phase.length)):
                said = f"{count:,} lengths were cut to what the model takes (at most {int(cut[cut < phase.length].max()):,})"
                facts = {**phase.facts, "cut_to_model": count, "said": [*phase.facts.get("said", ()), said]}
                phases.append(replace(phase, length=cut, facts=facts))
                continue
        phases.append(phase)
    return replace(plan, phases=tuple(phases))


def shared_memory_of(profile: TrafficProfile, target: Target, options: ConnectOptions) -> SharedMemory | None:
    """For the regions of this process, where a kind asks for some."""
    if not any(kind.shared_memory for kind in profile.kinds.values()):
        return None
    from loadgen.triton.shared_memory import SharedMemory

    return SharedMemory(target, options)


def make_transport(
    target: Target,
    name: str = "wire",
    options: ConnectOptions | None = None,
    via: Via | None = None,
) -> Transport[Any]:
    """The transport "wire" is ours; "reference" is the official gRPC client and aiohttp, to compare with.

    `via`: the relay that makes the network's conditions; the reference transport goes through none.
    """
    options = options or ConnectOptions()
    if name == "reference":
        from loadgen.transport.reference import ReferenceTransport

        return ReferenceTransport(target, MONOTONIC, options=options)
    headers, tls = options.headers_for(target), options.tls_for(target)
    if target.protocol == "grpc":
        from loadgen.transport.grpc import GrpcTransport

        return GrpcTransport(target, MONOTONIC, headers=headers, tls=tls, via=via)
    from loadgen.transport.http import HttpTransport

    return HttpTransport(target, MONOTONIC, headers=headers, tls=tls, via=via)


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
    """The server's own statistics before and after each phase, into server.jsonl.

    `models` are those asked; `steps` the models that ensembles among them are made of.  Other models that were
    executed in a phase are written down too: who calls them (another client, or a model that was asked) no server tells.
    """

    def __init__(
        self,
        control: Control,
        models: list[tuple[str, str]],
        folder: RunFolder,
        steps: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._control, self._models, self._folder = control, models, folder
        self._steps = [step for step in steps if step not in models]
        self._others: dict[tuple[str, str], dict[str, Any]] = {}  # their readings before the phase
        self.missing: str | None = None  # why there are none

    async def snapshot(self, t_ns: int, phase: str, at: str, limit_s: float | None = None) -> None:
        """A server that does not count, or is gone, is remembered in `missing` and never fails a run.

        `limit_s`: for each model; None: no limit.
        """
        for model, version in [*self._models, *self._steps]:
            try:
                async with asyncio.timeout(limit_s):
                    stats = await self._control.settled_statistics(model, version)
            except LoadgenError as why:
                self.missing = str(why)
                return
            except TimeoutError:
                self.missing = f"the server did not tell them within {limit_s:g} s"
                return
            self._write(t_ns, phase, at, (model, version, stats))
        if not self._models:  # a server that is asked for no KServe model need not speak KServe
            return
        with contextlib.suppress(LoadgenError, TimeoutError):  # a server that tells of single models only
            async with asyncio.timeout(limit_s):
                await self._snapshot_others(t_ns, phase, at)

    async def _snapshot_others(self, t_ns: int, phase: str, at: str) -> None:
        """Both readings of those that moved, at the end of the phase; of the others there is nothing to tell."""
        mine = {model for model, _ in [*self._models, *self._steps]}
        rows = await self._control.all_statistics()
        keys = [(str(row.get("name")), str(row.get("version", ""))) for row in rows]
        others = {key: row for key, row in zip(keys, rows, strict=True) if key[0] not in mine}
        if at == "after":
            for key, row in others.items():
                before = self._others.get(key)
                if moved(before, row):
                    for when, stats in (("before", before), ("after", row)):
                        if stats is not None:
                            self._write(t_ns, phase, when, (*key, stats))
        self._others = others

    def _write(self, t_ns: int, phase: str, at: str, read: tuple[str, str, dict[str, Any]]) -> None:
        model, version, stats = read
        self._folder.snapshot(
            {"t_ns": t_ns, "phase": phase, "at": at, "model": model, "version": version, "stats": stats}
        )
