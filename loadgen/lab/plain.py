"""What stands in for the control plane where a server has none: a question that it answers once it is ready.

A plain HTTP server tells no models, no readiness of theirs and no counters.  It must not know how requests are
built or sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from loadgen.records import LoadgenError
from loadgen.traffic.http_request import Ready
from loadgen.triton.links import ANSWER_S, HttpLink, NoServerError
from loadgen.workload.http_answer import show_range
from loadgen.workload.http_body import PATH_SAFE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from loadgen.connect.options import ConnectOptions
    from loadgen.target import Target
    from loadgen.traffic.http_request import HttpRequest

_POLL_S = 0.05
_LISTED = Ready.model_validate(  # a server that wants a key, or lists none, is there too
    {"path": "/models", "status": ["200-499"]}
)
_SHOWN = 120
_MOST_LISTED = 100


async def plain_facts(
    kinds: Mapping[str, HttpRequest], target: Target, options: ConnectOptions, wait_ns: int
) -> dict[str, Any]:
    """Waits for what each kind calls ready; facts for run.json.

    Raises LoadgenError when the target is no HTTP server, or is not ready after `wait_ns`, with what it said.
    A kind that names no such question has nothing to wait for: its first request tells.
    """
    if target.protocol != "http":
        raise LoadgenError(
            f"kind {next(iter(kinds))!r}: plain HTTP requests need an http:// or https:// target, not {target.url}"
        )
    link = HttpLink(target, options, timeout_s=ANSWER_S)
    deadline = time.monotonic_ns() + wait_ns
    try:
        asked: dict[tuple[str, tuple[range, ...]], str] = {}
        told: dict[str, Any] = {}
        for name, http in kinds.items():
            said = "not asked"
            if http.ready is not None:
                question = http.ready.path, http.ready.status
                if question not in asked:
                    asked[question] = await _until_ready(link, target, http.ready, deadline, wait_ns)
                said = asked[question]
            told[name] = {"method": http.method, "path": http.path, "ready": said}
    finally:
        await link.close()
    return {"name": "HTTP server", "extensions": [], "requests": told}


async def _until_ready(link: HttpLink, target: Target, ready: Ready, deadline: int, wait_ns: int) -> str:
    path = quote(f"/{ready.path.lstrip('/')}", safe=PATH_SAFE)
    where = f"GET {target.base_path}{path}"
    while True:
        absent: NoServerError | None = None
        status, text = 0, ""
        try:
            status, text = await link.get(path)
        except NoServerError as why:
            absent = why
        if any(status in allowed for allowed in ready.status):
            return f"{where}: {status}"
        if time.monotonic_ns() >= deadline:
            break
        await asyncio.sleep(_POLL_S)
    waited = f"after {wait_ns / 1e9:g} s of waiting: " if wait_ns else ""
    if absent is not None:
        raise NoServerError(f"{waited}{absent}")
    wanted = ", ".join(map(show_range, ready.status))
    words = " ".join(text.split())[:_SHOWN]
    raise LoadgenError(
        f"{waited}the server at {target.url} is not ready: {where} answered {status}, wanted {wanted}"
        + (f": {words}" if words else "")
    )


async def openai_facts(
    models: Sequence[str], target: Target, options: ConnectOptions, wait_ns: int
) -> dict[str, Any]:
    """What an OpenAI-compatible server lists as its models; waits up to `wait_ns` for it to answer.

    A server that lists none, or not these, may serve them all the same: its first answer tells.
    """
    link = HttpLink(target, options, timeout_s=ANSWER_S)
    deadline = time.monotonic_ns() + wait_ns
    try:
        await _until_ready(link, target, _LISTED, deadline, wait_ns)
        status, text = await link.get("/models")
    finally:
        await link.close()
    listed: list[str] = []
    with contextlib.suppress(ValueError, KeyError, TypeError):
        listed = [str(row["id"]) for row in json.loads(text)["data"]]
    told = {model: {"listed": model in listed} for model in models}
    return {"name": "OpenAI-compatible server", "extensions": [], "models_status": status,
            "models_listed": listed[:_MOST_LISTED], "models": told}  # fmt: skip
