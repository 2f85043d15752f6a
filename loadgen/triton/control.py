"""The control plane of any KServe v2 server: what it is, what a model is, its counters, load and unload.

    async with Control(parse_target("grpc://host:8001")) as control:
        facts = await control.model_facts("minilm")

Works alike over HTTP and gRPC.  It must not know the load: nothing here is on the hot path.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from loadgen.connect.options import ConnectOptions
from loadgen.records import LoadgenError, ModelFacts
from loadgen.target import Target
from loadgen.triton import named
from loadgen.triton.facts import FactsError, model_facts
from loadgen.triton.grpc_link import GrpcLink
from loadgen.triton.links import ANSWER_S, HttpLink, Link, NoServerError, ServerSaidError
from loadgen.triton.shapes import STATISTICS, fault
from loadgen.triton.words import load_failure, not_serving, one_line, without_control

_POLL_S = 0.02
_SETTLED = 4  # equal readings in a row
_BINARY = "binary_tensor_data"
_LOAD_S = 1800.0  # an engine may be built while loading


class Control:
    """One target.  Every method raises LoadgenError in words: no server, unknown model, model not loaded.

    TLS that comes to nothing is said at once, also by those who wait for a server (it is no NoServerError).
    """

    def __init__(
        self,
        target: Target,
        *,
        timeout_ns: int = round(ANSWER_S * 1e9),
        log: Path | None = None,  # the server's log, if it is here: some reasons are only told there
        options: ConnectOptions = ConnectOptions(),  # noqa: B008 - frozen
    ) -> None:
        self.target = target
        self._log = log
        kind = GrpcLink if target.protocol == "grpc" else HttpLink
        self._link: Link = kind(target, options, timeout_s=timeout_ns / 1e9)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._link.close()

    async def server_live(self) -> bool:
        try:
            return await self._link.live()
        except ServerSaidError as why:
            raise self._unexpected("to say whether it is live", why) from None

    async def server_ready(self) -> bool:
        """False while any model loads, and after one failed to, although others serve: ask for the model's own."""
        try:
            return await self._link.ready()
        except ServerSaidError as why:
            raise self._unexpected("to say whether it is ready", why) from None

    async def model_ready(self, model: str, version: str = "") -> bool:
        try:
            return await self._link.model_ready(model, version)
        except ServerSaidError as why:
            raise self._unexpected(f"to say whether model {model!r} is ready", why) from None

    async def server_metadata(self) -> dict[str, Any]:
        """{"name", "version", "extensions"}."""
        try:
            return await self._link.metadata()
        except ServerSaidError as why:
            raise self._without_api(why) or self._unexpected("its metadata", why) from None

    async def model_facts(self, model: str, version: str = "") -> ModelFacts:
        """Metadata and configuration in one; without the configuration extension, metadata alone."""
        try:
            metadata = await self._link.model_metadata(model, version)
        except ServerSaidError as why:
            raise await self._not_serving(model, version, why) from None
        config: dict[str, Any] | None = None
        try:
            config = await self._link.config(model, version)
        except ServerSaidError as why:
            if not why.absent:
                raise self._unexpected(f"the configuration of {model!r}", why) from None
        try:
            facts = model_facts(version, metadata, config)
        except FactsError as why:
            raise LoadgenError(
                f"{self.target.url} does not speak KServe v2: its {why.what} of model {model!r} is not one: {why.wrong}"
            ) from None
        return replace(facts, binary=await self._takes_binary())

    async def _takes_binary(self) -> bool:
        """Whether tensors may go in binary: always over gRPC; over HTTP unless the server's list lacks it."""
        if self.target.protocol == "grpc":
            return True
        try:
            extensions = (await self._link.metadata()).get("extensions")
        except ServerSaidError:
            extensions = None
        return not isinstance(extensions, list) or _BINARY in extensions

    async def statistics(
        self, model: str, version: str = "", *, timeout_ns: int | None = None
    ) -> dict[str, Any]:
        """The counters of one loaded version since its load; of the highest if none is named.

        `timeout_ns` is for this answer, instead of the Control's own; raises NoServerError when it is over.
        """
        rows = await self.all_statistics(model, version, timeout_ns=timeout_ns)
        if not rows:
            raise LoadgenError(f"{self.target.url} has no statistics of model {model!r}")
        return max(rows, key=lambda row: int(row["version"]) if str(row["version"]).isdigit() else 0)

    async def settled_statistics(
        self,
        model: str,
        version: str = "",
        settle_ns: int = 2 * 10**9,
        *,
        timeout_ns: int | None = None,
    ) -> dict[str, Any]:
        """The counters once they stand still: the last answers arrive before they are counted.

        For readings around a run.  On a server that others keep busy, the last reading after `settle_ns`.
        `timeout_ns` is for each answer, as in `statistics`: it takes settle_ns + timeout_ns at most.
        """
        deadline = time.monotonic_ns() + settle_ns
        last, same = await self.statistics(model, version, timeout_ns=timeout_ns), 1
        while same < _SETTLED and time.monotonic_ns() < deadline:
            await asyncio.sleep(_POLL_S)
            reading = await self.statistics(model, version, timeout_ns=timeout_ns)
            same = same + 1 if reading == last else 1
            last = reading
        return last

    async def all_statistics(
        self, model: str = "", version: str = "", *, timeout_ns: int | None = None
    ) -> list[dict[str, Any]]:
        """The counters of every loaded version of a model, or of every model.  Raises LoadgenError when the answer holds
        none.
        """
        limit_s = None if timeout_ns is None else timeout_ns / 1e9
        try:
            answer = await self._link.statistics(model, version, limit_s)
        except ServerSaidError as why:
            if why.absent and (not model or await self.model_ready(model, version)):
                raise LoadgenError(f"{self.target.url} has no statistics extension") from None
            raise await self._not_serving(model, version, why) from None
        rows = answer.get("model_stats") if isinstance(answer, dict) else None
        if not isinstance(rows, list) or (wrong := fault(rows, [STATISTICS], "model_stats")) is not None:
            why_not = "" if not isinstance(rows, list) else f" that can be read: {wrong}"
            raise LoadgenError(
                f"{self.target.url}: its answer to a question for statistics holds none{why_not}"
            )
        return rows

    async def trace(self, model: str, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The trace settings of a model, after changing those given (None: the server's again).

        Raises LoadgenError for a server without the trace extension.
        """
        try:
            return await self._link.trace(model, None if settings is None else dict(settings))
        except ServerSaidError as why:
            if why.absent:
                raise LoadgenError(f"{self.target.url} has no trace extension") from None
            raise self._unexpected(f"the trace settings of {model!r}", why) from None

    async def repository_index(self) -> list[dict[str, Any]]:
        """[{"name", "version"?, "state"?, "reason"?}]: a model never loaded has a name only."""
        try:
            return await self._link.index()
        except ServerSaidError as why:
            raise self._unexpected("its repository index", why) from None

    async def load(self, model: str, config: Mapping[str, Any] | None = None) -> None:
        """Loads and returns when the server says it has; with a configuration (JSON form) always reloads.

        A plain load of a loaded model whose files did not change does nothing.
        """
        mark = len(self._server_log())
        try:
            await self._link.load(model, None if config is None else json.dumps(config), _LOAD_S)
        except ServerSaidError as why:
            names = await self._names()
            if names is None and why.absent:
                raise await self._missing_api() or self._unexpected(f"to load {model!r}", why) from None
            log = self._server_log()[mark:]
            raise LoadgenError(load_failure(model, why.message, log, names)) from None

    async def unload(self, model: str, timeout_ns: int = 60 * 10**9) -> None:
        """Asks, and waits until requests in flight are drained and the model is gone."""
        known = await self._names()
        if known is not None and model not in known:
            raise self._told(model, "", await self.repository_index())
        try:
            await self._link.unload(model)
        except ServerSaidError as why:
            missing = await self._missing_api() if known is None else None
            raise missing or self._unexpected(
                f"to unload {model!r}", why, without_control(why.message)
            ) from None
        deadline = time.monotonic_ns() + timeout_ns
        while states := [
            row["state"]
            for row in await self.repository_index()
            if row["name"] == model and row.get("state", "UNAVAILABLE") != "UNAVAILABLE"
        ]:
            if time.monotonic_ns() > deadline:
                raise LoadgenError(
                    f"model {model!r} is still {states[0]} {timeout_ns / 1e9:g} s after its unload: "
                    "are requests in flight?"
                )
            await asyncio.sleep(_POLL_S)

    async def wait_model_ready(self, model: str, version: str = "", timeout_ns: int = 60 * 10**9) -> None:
        """Until the model itself says it is ready; a server that does not answer yet is waited for too."""
        deadline = time.monotonic_ns() + timeout_ns
        while True:
            absent: NoServerError | None = None
            said = ServerSaidError("", "not ready")
            try:
                if await self._link.model_ready(model, version):
                    return
            except NoServerError as why:
                absent = why
            except ServerSaidError as why:  # a gateway may say much while a server comes up
                said = why
            if time.monotonic_ns() > deadline:
                break
            await asyncio.sleep(_POLL_S)
        waited = f"after {timeout_ns / 1e9:g} s of waiting: " if timeout_ns else ""
        if absent is not None:
            raise NoServerError(f"{waited}{absent}")
        why_not = await self._not_serving(model, version, said)
        try:
            ready = "ready" if await self._link.ready() else "not ready"
        except ServerSaidError:
            ready = "silent on whether it is ready"
        raise LoadgenError(f"{waited}{why_not} (the server itself is {ready})")

    async def _not_serving(self, model: str, version: str, why: ServerSaidError) -> LoadgenError:
        try:
            index = await self._link.index()
        except ServerSaidError as unlisted:
            if missing := await self._missing_api():
                return missing
            if not why.status and unlisted.absent:
                return LoadgenError(
                    f"model {model!r} is not ready at {self.target.url}, which lists no models to tell why"
                )
            return self._unexpected(f"model {model!r}", why if why.status else unlisted)
        return self._told(model, version, index)

    async def _missing_api(self) -> LoadgenError | None:
        """The reason, when the server does not even answer what every KServe v2 server does."""
        try:
            await self._link.metadata()
        except ServerSaidError as why:
            return self._without_api(why)
        return None

    def _without_api(self, why: ServerSaidError) -> LoadgenError | None:
        if not why.absent:
            return None
        if self.target.protocol == "grpc":
            return LoadgenError(
                f"the server at {self.target.url} has no KServe v2 service: it answered {why.status}"
            )
        base = self.target.base_path
        hint = f"; is the path {base} right?" if base else ""
        return LoadgenError(
            f"the server at {self.target.authority} has no KServe v2 API at {base or '/'}: GET {base}/v2 "
            f"answered {why.status}{hint}"
        )

    def _told(self, model: str, version: str, index: list[dict[str, Any]]) -> LoadgenError:
        url = self.target.url
        return LoadgenError(not_serving(model, version, index, url, named.name_at(self.target)))

    async def _names(self) -> list[str] | None:
        try:
            return sorted({row["name"] for row in await self._link.index()})
        except (ServerSaidError, NoServerError):
            return None

    def _unexpected(self, what: str, why: ServerSaidError, hint: str = "") -> LoadgenError:
        said = one_line(why.message)
        return LoadgenError(
            f"{self.target.url} refused {what}: {f'{said} ({why.status})' if said else why.status}{hint}"
        )

    def _server_log(self) -> str:
        return self._log.read_text(errors="replace") if self._log and self._log.exists() else ""
