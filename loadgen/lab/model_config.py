"""A model of a running server under one configuration after another, for sweeps and live comparisons."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loadgen.records import LoadgenError
from loadgen.triton.control import Control
from loadgen.triton.facts import is_ensemble, steps_of
from loadgen.triton.overlay import only_instances_differ

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from loadgen.connect.options import ConnectOptions
    from loadgen.lab.watch import Beside
    from loadgen.target import Target

READY_NS = 120 * 10**9


@dataclass(slots=True)
class ServerUnderTest:
    """The server under test and the configuration its model has now (None: not loaded by us)."""

    control: Target
    load: Target
    log: Path | None
    options: ConnectOptions
    config: dict[str, Any] | None = None
    served: Mapping[str, Any] | None = None  # the same as the server tells it, with what it filled in
    warm: bool = False  # steady under that configuration
    touched: bool = False  # its model was unloaded by us: it is given back as it was found
    beside: Beside | None = None


async def is_alive(server: ServerUnderTest) -> bool:
    async with Control(server.control, options=server.options) as control:
        try:
            return await control.server_live()
        except LoadgenError:
            return False


async def why_changed(server: ServerUnderTest, model: str) -> str | None:
    """Why the model that was just measured is not the one that was loaded; None when it is."""
    async with Control(server.control, options=server.options) as control:
        try:
            config = (await control.model_facts(model)).config
        except LoadgenError as why:
            return str(why)
    return None if config == server.served else f"somebody else loaded {model!r} with another configuration"


async def own_config(server: ServerUnderTest, model: str) -> dict[str, Any]:
    """As the repository has it: an override that someone left is gone after an unload."""
    async with Control(server.control, options=server.options, log=server.log) as control:
        before = None
        with suppress(LoadgenError):  # not loaded: looked at after its load
            before = (await control.model_facts(model)).config
        _refuse_ensemble(model, before)
        await control.unload(model)
        server.touched = True
        await control.load(model)
        await control.wait_model_ready(model, timeout_ns=READY_NS)
        facts = await control.model_facts(model)
    if facts.config is None:
        raise LoadgenError(f"{server.control.url} tells no model configuration: there is none to change")
    _refuse_ensemble(model, facts.config)
    server.config = server.served = dict(facts.config)
    return dict(facts.config)


def _refuse_ensemble(model: str, config: Mapping[str, Any] | None) -> None:
    if is_ensemble(config):
        steps = ", ".join(dict.fromkeys(name for name, _ in steps_of(config)))
        raise LoadgenError(
            f"{model!r} is an ensemble, which batches nothing itself: it has no setting to compare; compare those of what "
            f"it is made of ({steps}), each with a profile that sends to it"
        )


async def bring(server: ServerUnderTest, model: str, config: dict[str, Any]) -> dict[str, Any]:
    """The model under `config`: kept when it is, resized live when only its instances differ, else unloaded,
    waited for and loaded, so that there are never two copies and its counters begin at 0.
    """
    if server.config == config:
        return {"how": "kept"}
    live = server.config is not None and only_instances_differ(server.config, config)
    asked = time.monotonic_ns()
    async with Control(server.control, options=server.options, log=server.log) as control:
        server.config = None  # until it is there
        if not live:
            await control.unload(model)
        await control.load(model, config)
        await control.wait_model_ready(model, timeout_ns=READY_NS)
        server.served = (await control.model_facts(model)).config
    server.config = config
    return {"how": "resized" if live else "loaded", "load_ns": time.monotonic_ns() - asked}
